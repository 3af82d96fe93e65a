"""A job's checkpoint statistics, for pages, REST, the command line and metrics alike.

An overview of 1,000 checkpoints is two GETs beside the journal's newest entry, and the details of
one checkpoint are one; what is pending now is read from the acks that are there.
"""

from __future__ import annotations

import msgspec

from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError
from sluice.job.answered import exceptions_in_folder, stages_in_folder
from sluice.job.ended import ended_checkpoints, newest_ended
from sluice.job.job import Job
from sluice.job.retained import why_not_retained
from sluice.protocol.paths import PipelinePaths
from sluice.statistics.checkpoints import (
    CheckpointStatus,
    StageStats,
    SubtaskException,
)
from sluice.statistics.history import CheckpointStatistics, History, whole_history
from sluice.statistics.lag import measured_sources, with_pending
from sluice.statistics.measuring import of_completed, of_failed, of_pending
from sluice.statistics.overview import (
    Counts,
    Details,
    Overview,
    Restored,
    failures_by_reason,
    latest_of,
    page_of,
    summary_of_checkpoints,
    summary_of_stage,
)
from sluice.storage.statistics import StatisticsStore


def overview(
    job: Job,
    *,
    limit: int | None = None,
    before: int | None = None,
    statuses: frozenset[CheckpointStatus] = frozenset(CheckpointStatus),
    types: frozenset[str] = frozenset(),
    state: CoordinatorState | None = None,
) -> Overview:
    """Counts, distributions, the latest of each kind, and a page of the history; as of *state*, if
    that was loaded already.

    The page has the newest *limit* checkpoints with an id below *before*, of the *statuses* and, if
    any are given, *types*.  What is pending costs a LIST each, and a GET for each stage that ended.
    """
    state = state or job.state()
    ended = _history(job, state)
    pending = [_pending(job, one).checkpoint for one in state.pending]
    known = [*ended.checkpoints, *pending]
    return Overview(
        counts=Counts(
            restored=state.num_restored,
            total=ended.completed + ended.failed + len(pending),
            in_progress=len(pending),
            completed=ended.completed,
            failed=ended.failed,
        ),
        summary=summary_of_checkpoints(known),
        latest=latest_of(known, _restored(job, state)),
        failures=failures_by_reason(known),
        history=page_of(known, limit=limit, before=before, statuses=statuses, types=types),
    )


def details(job: Job, checkpoint_id: CheckpointId) -> Details:
    """All that was measured of a checkpoint, retained or not, pending or failed.

    Raises:
        ConfigurationError: there is none, or it ended so long ago that nothing is kept of it.
    """
    state = job.state()
    pending = state.pending_checkpoint(checkpoint_id)
    if pending is not None:
        kept = _pending(job, pending)
    else:
        found = StatisticsStore(job.store, job.paths).read(checkpoint_id)
        kept = found or _derived(job, state, checkpoint_id)
    retained = state.completed_checkpoint(checkpoint_id)
    line = kept.checkpoint
    is_done = line.status is CheckpointStatus.COMPLETED
    committed = retained.is_committed if retained is not None else line.committed or None
    return Details(
        checkpoint=msgspec.structs.replace(line, committed=committed),
        sources=kept.sources,
        stages=kept.stages,
        summaries={stage.id: summary_of_stage(stage.subtasks) for stage in kept.stages},
        exceptions=kept.exceptions,
        discarded=is_done and retained is None,
        external_path=None if retained is None else _path(job, checkpoint_id),
    )


def _history(job: Job, state: CoordinatorState) -> History:
    """Everything that has ended, as far as the bound goes back."""
    store, ended = StatisticsStore(job.store, job.paths), ended_checkpoints(state)
    bound = job.pipeline.checkpointing.history_size
    likely = newest_ended(state)
    newest = None if likely is None else store.newest(likely)
    if newest is None:
        return whole_history(History(), (), ended, bound=bound)
    before = newest.history
    older = store.read(before.older) if before.older is not None else None
    lines = older.history.checkpoints if older is not None else ()
    return whole_history(before, lines, ended, bound=bound)


def _pending(job: Job, pending: PendingCheckpoint) -> CheckpointStatistics:
    """How far a pending checkpoint has got by now; with its plan gone, only that it is pending."""
    checkpoint_id = pending.checkpoint_id
    plan = job.plan(checkpoint_id)
    sources = () if plan is None else measured_sources(plan)
    stages: tuple[StageStats, ...] | None = None
    exceptions: tuple[SubtaskException, ...] = ()
    if plan is not None:
        folder = [*job.store.list(job.paths.checkpoint(checkpoint_id))]
        exceptions = exceptions_in_folder(job, checkpoint_id, folder)
        stages = stages_in_folder(
            job,
            plan,
            folder,
            status=CheckpointStatus.IN_PROGRESS,
            attempts={task.uid: pending.attempt_of(task.uid) for task in plan.tasks},
            overtaken=pending.overtaken,
        )
    return CheckpointStatistics(
        checkpoint=with_pending(of_pending(pending, stages), sources),
        history=History(),
        sources=sources,
        stages=stages or (),
        exceptions=exceptions,
    )


def _derived(
    job: Job, state: CoordinatorState, checkpoint_id: CheckpointId
) -> CheckpointStatistics:
    """From what else is there: a retained checkpoint's folder, or the line of an ended one."""
    done, failed = state.completed_checkpoint(checkpoint_id), state.failed_checkpoint(checkpoint_id)
    if done is not None:
        stages = _retained_stages(job, checkpoint_id)
        line = of_completed(done, stages)
        return CheckpointStatistics(checkpoint=line, history=History(), stages=stages or ())
    if failed is not None:
        return CheckpointStatistics(checkpoint=of_failed(failed), history=History())
    for ended in _history(job, state).checkpoints:
        if ended.id == checkpoint_id:
            return CheckpointStatistics(checkpoint=ended, history=History())
    raise ConfigurationError(why_not_retained(job, state, str(checkpoint_id)))


def _retained_stages(job: Job, checkpoint_id: CheckpointId) -> tuple[StageStats, ...] | None:
    plan = job.plan(checkpoint_id)
    if plan is None:
        return None
    metadata = job.metadata(checkpoint_id)
    return stages_in_folder(
        job,
        plan,
        [*job.store.list(job.paths.checkpoint(checkpoint_id))],
        status=CheckpointStatus.COMPLETED,
        overtaken=[stage.uid for stage in metadata.stages if stage.is_overtaken],
        metadata=metadata,
    )


def _restored(job: Job, state: CoordinatorState) -> Restored | None:
    restored = state.restored
    if restored is None:
        return None
    origin = restored.origin
    root = (origin.root if origin is not None else "") or job.store.root
    paths = PipelinePaths((origin.pipeline if origin is not None else "") or job.pipeline.uid)
    key = (
        paths.savepoint(origin.savepoint)
        if origin is not None and origin.savepoint is not None
        else paths.checkpoint(restored.checkpoint_id)
    )
    return Restored(
        id=restored.checkpoint_id,
        restore_timestamp=restored.restored_at_ms,
        is_savepoint=restored.is_savepoint,
        external_path=f"{root}/{key}",
    )


def _path(job: Job, checkpoint_id: CheckpointId) -> str:
    return f"{job.store.root}/{job.paths.checkpoint(checkpoint_id)}"
