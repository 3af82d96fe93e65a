"""The plan of the next checkpoint: the barrier on every source, and who takes part.

Flink's CheckpointPlanCalculator with our stages as its vertices.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeAlias

from sluice.connectors.source import Barrier, Source
from sluice.core.decider import CheckpointRequest
from sluice.core.idleness import with_idleness
from sluice.core.key_groups import check_parallelism, default_max_parallelism
from sluice.core.plan import CheckpointPlan, Slice, SourceCut, TaskPlan
from sluice.core.plan_calculator import (
    CalculatedPlan,
    DistributionPattern,
    Edge,
    Vertex,
    calculate,
)
from sluice.core.position import Position, with_layers, with_whole
from sluice.core.properties import CheckpointType, ClaimMode
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import CoordinatorState
from sluice.core.watermarks import MAX_WATERMARK
from sluice.errors import ConfigurationError
from sluice.runner.holds import hold
from sluice.runner.job import Job
from sluice.runner.lineage import CompletedParent, Lineage, PendingParent, lineage_of_tip
from sluice.runner.positions import layer_of, load_position, store_layers
from sluice.runner.tables import write_table
from sluice.runner.upgrades import require_same_chain
from sluice.storage.journal import Head

log = logging.getLogger(__name__)


Barriers: TypeAlias = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """``reason`` is None when there is nothing to do."""

    reason: CheckpointFailureReason | None
    message: str


def make_plan(
    job: Job, head: Head, request: CheckpointRequest, barriers: Barriers
) -> CheckpointPlan | NoPlan:
    """What the checkpoint that *request* asks for will do; nothing is written yet.

    *barriers* are those that somebody else decided, an end offset per source and partition.

    Raises:
        ConfigurationError: a source cannot be read as declared, or the chain is not that of before.
        RestoreError: the checkpoint that the epoch continues is gone.
    """
    state = head.state
    lineage = lineage_of_tip(job, state)
    require_same_chain(job.pipeline, state, lineage)
    _check_barriers(job, barriers)
    is_full = (
        not state.pending and state.origin is not None and state.claim_mode is ClaimMode.NO_CLAIM
    )
    cuts = tuple(
        _cut(job, state, uid, lineage, barriers, shares_files=not is_full)
        for uid in job.pipeline.sources
    )
    streams = {source.uid for source in job.pipeline.stream_sources()}
    exhausted = all(cut.exhausted for cut in cuts if cut.uid in streams)
    drains = exhausted or request.type is CheckpointType.SAVEPOINT_TERMINATE
    running, finished = _running_and_finished(job, state, lineage, {c.uid: c for c in cuts})
    if finished and not state.configuration.checkpoints_after_tasks_finish:
        return NoPlan(
            reason=CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
            message=f"{finished[0]!r} has finished, and checkpoints_after_tasks_finish is off",
        )
    if is_full or request.is_canonical:  # Who has finished runs once more, to copy its state.
        running, finished = tuple(job.pipeline.stages), ()
    must_align = request.type.is_savepoint or drains or is_full
    now_ms = job.clock()
    plan = CheckpointPlan(
        checkpoint_id=state.next_checkpoint_id,
        generation=state.generation,
        parent=state.tip,
        origin=None if state.pending else state.origin,
        ignores_in_flight=not state.pending and state.ignores_in_flight,
        type=request.type,
        triggered_at_ms=now_ms,
        expires_at_ms=now_ms + job.pipeline.checkpointing.timeout // timedelta(milliseconds=1),
        drains=drains,
        sources=cuts,
        tasks=tuple(_task(job, state, uid, lineage, must_align=must_align) for uid in running),
        finished=finished,
        starts_lineage=_starts_lineage(state, lineage),
        is_full=is_full,
        is_canonical=request.is_canonical,
        processing_time_ms=max(now_ms, state.processing_time_ms),
        cause=request.cause,
        journal_seq=head.seq,
    )
    has_to_run = drains or is_full or _is_behind(job, lineage)
    is_idle = plan.records == 0 and not has_to_run
    if request.is_periodic and is_idle:
        return NoPlan(reason=None, message="no new records since the last checkpoint")
    return plan


def pin_outside(job: Job, state: CoordinatorState, plan: CheckpointPlan) -> CheckpointPlan | NoPlan:
    """Have the sources and master hooks answer for this checkpoint id, in that order.

    A table source is pinned as of this barrier; an unchanged one keeps its segment, unless that is
    not the job's own.  The layer that a position adds is written.  There is no plan when a hook
    fails.
    """
    params = state.configuration.params
    cuts = tuple(
        replace(
            cut,
            table=write_table(
                job, cut.uid, params, plan.checkpoint_id, None if plan.is_full else cut.table
            ),
        )
        if job.pipeline.sources[cut.uid].is_table
        else store_layers(job, cut, plan.checkpoint_id)
        for cut in plan.sources
    )
    hold(job, state, cuts, str(plan.checkpoint_id))
    answers: dict[str, str | None] = {}
    for hook in job.pipeline.hooks.values():
        try:
            answers[hook.uid] = hook.trigger(plan.checkpoint_id, plan.triggered_at_ms)
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            message = f"master hook {hook.uid!r} failed: {error}"
            log.warning("no checkpoint checkpoint_id=%d: %s", plan.checkpoint_id, message)
            return NoPlan(
                reason=CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE, message=message
            )
    return replace(plan, sources=cuts, master_states=answers)


def _check_barriers(job: Job, barriers: Barriers) -> None:
    streams = [source.uid for source in job.pipeline.stream_sources()]
    for uid in barriers:
        if uid not in streams:
            raise ConfigurationError(
                f"a barrier is given for {uid!r}, which is no stream source of "
                f"{job.pipeline.uid!r}; those are {', '.join(streams)}"
            )


def _cut(
    job: Job,
    state: CoordinatorState,
    uid: str,
    lineage: Lineage,
    barriers: Barriers,
    *,
    shares_files: bool,
) -> SourceCut:
    source = job.source(uid, state.configuration.params)
    previous = lineage.source(uid)
    if job.pipeline.sources[uid].is_table:
        return SourceCut(uid=uid, position=(), table=previous.table if previous else None)
    node = job.pipeline.sources[uid]
    before = load_position(job, previous)
    barrier = source.plan(
        before.whole,
        max_records=state.configuration.max_records_per_epoch,
        parallelism=_first_parallelism(job, state, uid),
        until=barriers.get(uid, {} if node.is_induced else None),
    )
    cut = SourceCut(
        uid=uid,
        position=barrier.position,
        slices=barrier.slices,
        exhausted=barrier.exhausted,
        is_backlog=barrier.is_backlog,
        waiting=barrier.waiting,
        heads=_heads(source, barrier, before) if node.event_time is not None else (),
        partitions_end=source.partitions_end and node.idle_after_ms is None,
    )
    if node.idle_after_ms is not None:
        after_ms = node.idle_after_ms
        parent = None if previous is None else with_whole(previous, before)
        cut = with_idleness(cut, parent, now_ms=job.clock(), idle_after_ms=after_ms)
    return with_layers(cut, before, shares_files=shares_files, layer_of=layer_of)


def _heads(source: Source, barrier: Barrier, before: Position) -> tuple[Slice, ...]:
    """Of what waits and was not there at the barrier before: each partition is looked at once."""
    unread = {part.partition for part in barrier.position if part.offset == 0}
    new = unread - before.entries.keys()
    return source.heads([name for name in barrier.waiting if name in new])


def _first_parallelism(job: Job, state: CoordinatorState, source: str) -> int:
    return max(
        job.parallelism_of(stage.uid, state.configuration)
        for stage in job.pipeline.stages.values()
        if source in stage.producers
    )


def _running_and_finished(
    job: Job, state: CoordinatorState, lineage: Lineage, cuts: Mapping[str, SourceCut]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The stages that take part, and those that saw the end of their input at the parent's barrier.

    When every one has, all take part: the job is about to end, or was restored after its end.
    """
    done: set[str] = set()
    for uid, stage in job.pipeline.stages.items():
        inputs_ended = all(
            _had_ended(lineage, cuts[producer]) if producer in cuts else producer in done
            for producer in stage.producers
        )
        if inputs_ended and _has_seen_the_end(lineage, uid):
            done.add(uid)
    vertices = [
        Vertex(uid=uid, parallelism=count, finished=frozenset(range(count) if uid in done else ()))
        for uid in job.pipeline.stages
        if (count := job.parallelism_of(uid, state.configuration))
    ]
    edges = [
        Edge(source=producer, target=uid, pattern=DistributionPattern.ALL_TO_ALL)
        for uid in job.pipeline.stages
        for producer in job.pipeline.upstream_of(uid)
    ]
    plan = calculate(vertices, edges)
    if not isinstance(plan, CalculatedPlan):
        raise TypeError("a stage runs, or has finished")
    if not plan.to_wait_for:
        return tuple(job.pipeline.stages), ()
    return tuple(plan.to_wait_for), tuple(plan.fully_finished)


def _had_ended(lineage: Lineage, cut: SourceCut) -> bool:
    """Whether the source was exhausted at the parent's barrier, and still is."""
    before = lineage.source(cut.uid)
    return before is not None and before.exhausted and cut.exhausted and not cut.slices


def _has_seen_the_end(lineage: Lineage, uid: str) -> bool:
    if isinstance(lineage, PendingParent):
        return True  # It reads the end in the parent's epoch, which is aligned.
    stage = lineage.stage(uid)
    if stage is None or stage.in_flight_segments:
        return False
    return stage.watermark_ms == MAX_WATERMARK


def _is_behind(job: Job, lineage: Lineage) -> bool:
    """Whether rows are in flight, so that an epoch without new records has work to do."""
    return isinstance(lineage, CompletedParent) and any(
        stage.in_flight_segments
        for uid in job.pipeline.stages
        if (stage := lineage.stage(uid)) is not None
    )


def _task(
    job: Job, state: CoordinatorState, uid: str, lineage: Lineage, *, must_align: bool
) -> TaskPlan:
    """Who reads a source is not left behind: its records are not in flight but in the source.  Who
    was overtaken first catches up, undisturbed: else a stage always behind would never advance.
    """
    parallelism = job.parallelism_of(uid, state.configuration)
    declared = job.pipeline.max_parallelism or default_max_parallelism(parallelism)
    max_parallelism = lineage.max_parallelism(uid) or declared
    check_parallelism(uid, parallelism, max_parallelism)
    upstream = job.pipeline.upstream_of(uid)
    reads_streams_alone = len(upstream) == len(job.pipeline.stages[uid].inputs)
    can_be_behind = state.configuration.unaligned and not must_align and reads_streams_alone
    is_from_the_start = state.configuration.aligned_timeout_ms == 0
    is_unaligned = can_be_behind and (is_from_the_start or lineage.was_overtaken(uid))
    return TaskPlan(
        uid=uid,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        is_unaligned=is_unaligned,
        may_be_overtaken=can_be_behind and not is_unaligned,
        reads=upstream,
    )


def _starts_lineage(state: CoordinatorState, lineage: Lineage) -> bool:
    """An origin may be of another job, so its generation says nothing."""
    if not isinstance(lineage, CompletedParent):
        return False
    before = lineage.metadata
    return before is None or state.origin is not None or before.generation != state.generation
