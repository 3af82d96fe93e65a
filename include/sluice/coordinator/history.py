"""Keeps the statistics of a checkpoint when it ends, before its acks are deleted.

Best effort: they are written after the journal says that the checkpoint has ended, and a failure to
do so is logged and changes nothing.  What is missing is derived from what the journal remembers.
See docs/adr/0017-statistics-lag-and-spans.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from sluice.core.answers import Ack
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.ids import CheckpointId
from sluice.core.pending import FIRST_ATTEMPT
from sluice.core.plan import CheckpointPlan
from sluice.core.state import CoordinatorState
from sluice.errors import SluiceError
from sluice.figures.measuring import (
    coordinator_state_size,
    stats_of_completed,
    stats_of_failed,
)
from sluice.figures.rates import EventTime, flow_of, followed_by, measured_sources, with_pending
from sluice.figures.record import (
    CheckpointStatistics,
    CheckpointStats,
    CheckpointStatus,
    History,
    SourceStats,
    StageStats,
    TaskException,
    extended,
    is_due_for_pruning,
    kept_objects,
    needs_older,
)
from sluice.job.answers import exceptions_in_folder, stages_in_folder, stages_of_acks
from sluice.job.job import Job
from sluice.job.lineage import watermark_after_source
from sluice.job.snapshots import ended_checkpoints, newest_ended
from sluice.protocol.records import checksum
from sluice.store.checkpoints import StatisticsStore
from sluice.store.object_store import Listed

DIGEST_LETTERS = 12  # Of a declaration: it is compared with the one before, and with no other.

log = logging.getLogger(__name__)


def keep_completed(
    job: Job,
    state: CoordinatorState,
    done: CompletedCheckpoint,
    plan: CheckpointPlan,
    acks: Iterable[Ack],
    metadata: CheckpointMetadata,
) -> None:
    """Costs two requests: a GET of the statistics before, and one create.

    If a stage ran again it costs a LIST more, and a GET for each failure of its earlier attempts.
    """
    try:
        acks = [*acks]
        stages = stages_of_acks(job, plan, acks, metadata)
        sources = measured_sources(plan, _event_times(job, plan, acks, metadata))
        line = msgspec.structs.replace(
            with_pending(stats_of_completed(done, stages), sources),
            coordinator_state_size=coordinator_state_size(metadata),
        )
        exceptions: tuple[TaskException, ...] = ()
        if any(ack.attempt > FIRST_ATTEMPT for ack in acks):
            folder = [*job.store.list(job.paths.checkpoint(done.checkpoint_id))]
            exceptions = exceptions_in_folder(job, done.checkpoint_id, folder)
        line = _as_declared(line, plan)
        _keep(job, state, _Kept(line, done.parent, sources, stages, exceptions))
    except SluiceError as error:
        _log_loss(done.checkpoint_id, error)


def keep_failed(
    job: Job, state: CoordinatorState, checkpoint_id: CheckpointId, folder: Sequence[Listed]
) -> None:
    """Keep the statistics of an aborted checkpoint, whose *folder* is about to be deleted."""
    failed = state.failed_checkpoint(checkpoint_id)
    if failed is None:
        return  # It failed long ago, and is being discarded again.
    try:
        plan, parent = job.plan(checkpoint_id), None
        stages: tuple[StageStats, ...] = ()
        sources: tuple[SourceStats, ...] = ()
        if plan is not None:
            stages = stages_in_folder(job, plan, folder, status=CheckpointStatus.FAILED)
            sources, parent = measured_sources(plan), plan.parent
        line = with_pending(stats_of_failed(failed, plan, stages or None), sources)
        if plan is not None:
            line = _as_declared(line, plan)
        exceptions = exceptions_in_folder(job, checkpoint_id, folder)
        _keep(job, state, _Kept(line, parent, sources, stages, exceptions))
    except SluiceError as error:
        _log_loss(checkpoint_id, error)


@dataclass(frozen=True, slots=True)
class _Kept:
    line: CheckpointStats
    parent: int | None
    sources: tuple[SourceStats, ...]
    stages: tuple[StageStats, ...]
    exceptions: tuple[TaskException, ...] = ()


def _keep(job: Job, state: CoordinatorState, kept: _Kept) -> None:
    store, bound = StatisticsStore(job.store, job.paths), job.pipeline.checkpointing.history_size
    remembered = [line for line in ended_checkpoints(state) if line.id != kept.line.id]
    likely = newest_ended(state, other_than=kept.line.id)
    previous = None if likely is None else store.newest(likely)
    before = previous.history if previous is not None else History()
    older = store.read(before.older) if before.older is not None and needs_older(before) else None
    line = _as_far_as_known(kept.line)
    history = extended(
        before,
        [*map(_as_far_as_known, remembered), line],
        previous_id=None if previous is None else previous.checkpoint.id,
        older=older.history.checkpoints if older is not None else (),
        bound=bound,
    )
    store.write(
        CheckpointStatistics(
            checkpoint=line,
            history=history,
            parent=kept.parent,
            sources=kept.sources,
            stages=kept.stages,
            exceptions=kept.exceptions,
            flow=followed_by(
                previous.flow if previous is not None else (),
                flow_of(line, kept.sources, kept.stages),
            ),
        )
    )
    if is_due_for_pruning(before, history):
        store.prune(kept_objects(bound))


def _event_times(
    job: Job, plan: CheckpointPlan, acks: Sequence[Ack], metadata: CheckpointMetadata
) -> dict[str, EventTime]:
    """The event time of each source, as the first stage that reads it knows it."""
    found: dict[str, EventTime] = {}
    for stage in (stage for stage in metadata.stages if stage.uid in job.pipeline.stages):
        own = [ack for ack in acks if ack.subtask.stage == stage.uid]
        emitted = max((ack.metrics.acknowledged_at_ms for ack in own), default=0)
        for source in job.pipeline.sources_of(stage.uid):
            if source.is_table or source.uid in found:
                continue
            watermark, latest = watermark_after_source(job, plan, source, own, stage)
            found[source.uid] = EventTime(
                watermark=watermark, latest=latest, emitted=emitted or None
            )
    return found


def _as_declared(line: CheckpointStats, plan: CheckpointPlan) -> CheckpointStats:
    declared = msgspec.json.encode(plan.fingerprints, order="deterministic")
    return msgspec.structs.replace(
        line, generation=plan.generation, declaration=checksum(declared)[:DIGEST_LETTERS]
    )


def _as_far_as_known(line: CheckpointStats) -> CheckpointStats:
    """The line, in which "not committed yet" is unknown: it may be committed a moment later."""
    return msgspec.structs.replace(line, committed=line.committed or None)


def _log_loss(checkpoint_id: CheckpointId, error: SluiceError) -> None:
    log.warning("checkpoint statistics lost checkpoint_id=%d error=%s", checkpoint_id, error)
