"""The plan of the next checkpoint: the barrier on every source, and the stages that take part."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial

from sluice.coordinator.compatibility import require_same_chain
from sluice.coordinator.holds import hold
from sluice.coordinator.hook_calls import call_hook
from sluice.coordinator.participants import running_and_finished, task_plan
from sluice.coordinator.source_cuts import Barriers, cut_sources
from sluice.coordinator.timing import timeout_ms
from sluice.core.decider import CheckpointRequest
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.properties import CheckpointType, ClaimMode
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import CoordinatorState
from sluice.epoch.lineage import CompletedParent, Lineage, lineage_of_tip
from sluice.epoch.table_sources import write_table
from sluice.job.job import Job
from sluice.job.positions import store_layers
from sluice.storage.journal import Head

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPlan:
    """``reason`` is None when there is nothing to do."""

    reason: CheckpointFailureReason | None
    message: str


def make_plan(
    job: Job, head: Head, request: CheckpointRequest, barriers: Barriers
) -> CheckpointPlan | NoPlan:
    """What the checkpoint that *request* asks for will do; nothing is written yet.

    *barriers* are those that were decided elsewhere, an end offset per source and partition.

    Raises:
        ConfigurationError: a source cannot be read as declared, or the chain is not that of before.
        RestoreError: the checkpoint that the epoch continues is gone.
    """
    state = head.state
    lineage = lineage_of_tip(job, state)
    require_same_chain(job.pipeline, state, lineage)
    full = request.is_full or is_full(state)
    cuts = cut_sources(job, state, lineage, barriers, shares_files=not full)
    streams = {source.uid for source in job.pipeline.stream_sources()}
    exhausted = all(cut.exhausted for cut in cuts if cut.uid in streams)
    drains = exhausted or request.type is CheckpointType.SAVEPOINT_TERMINATE
    running, finished = running_and_finished(job, lineage, {c.uid: c for c in cuts})
    if finished and not state.configuration.checkpoints_after_tasks_finish:
        return _not_all_run(finished[0])
    if full or request.is_canonical:  # Who has finished runs once more, to copy its state.
        running, finished = tuple(job.pipeline.stages), ()
    must_align = request.type.is_savepoint or drains or full
    now_ms = job.clock()
    plan = CheckpointPlan(
        checkpoint_id=state.next_checkpoint_id,
        generation=state.generation,
        parent=state.tip,
        origin=None if state.pending else state.origin,
        ignores_in_flight=not state.pending and state.ignores_in_flight,
        type=request.type,
        triggered_at_ms=now_ms,
        expires_at_ms=now_ms + timeout_ms(job, state),
        drains=drains,
        sources=cuts,
        tasks=tuple(task_plan(job, state, uid, lineage, must_align=must_align) for uid in running),
        finished=finished,
        starts_lineage=_starts_lineage(state, lineage),
        is_full=full,
        is_canonical=request.is_canonical,
        processing_time_ms=max(now_ms, state.processing_time_ms),
        cause=request.cause,
        journal_seq=head.seq,
    )
    is_idle = plan.records == 0 and not (drains or full or is_behind(job, lineage))
    if request.is_periodic and is_idle:
        return NoPlan(reason=None, message="no new records since the last checkpoint")
    return plan


def _not_all_run(stage: str) -> NoPlan:
    return NoPlan(
        reason=CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
        message=f"{stage!r} has finished, and checkpoints_after_tasks_finish is off",
    )


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
            act = partial(hook.trigger, plan.checkpoint_id, plan.triggered_at_ms)
            answers[hook.uid] = call_hook(act, hook.timeout)
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            return _hook_failed(hook.uid, plan.checkpoint_id, error)
    return replace(plan, sources=cuts, master_states=answers)


def prepare(job: Job, state: CoordinatorState) -> NoPlan | None:
    """Call what hooks have to do before the barrier is cut; why there is no plan, if one fails."""
    for hook in job.pipeline.hooks.values():
        if hook.prepare_snapshot_pre_barrier is None:
            continue
        try:
            act = partial(hook.prepare_snapshot_pre_barrier, state.next_checkpoint_id)
            call_hook(act, hook.timeout)
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            return _hook_failed(hook.uid, state.next_checkpoint_id, error)
    return None


def _hook_failed(uid: str, checkpoint_id: CheckpointId, error: Exception) -> NoPlan:
    message = f"master hook {uid!r} failed: {error}"
    log.warning("no checkpoint checkpoint_id=%d: %s", checkpoint_id, message)
    return NoPlan(reason=CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE, message=message)


def is_behind(job: Job, lineage: Lineage) -> bool:
    """Whether rows are in flight, so that an epoch without new records has work to do."""
    return isinstance(lineage, CompletedParent) and any(
        stage.in_flight_segments
        for uid in job.pipeline.stages
        if (stage := lineage.stage(uid)) is not None
    )


def is_full(state: CoordinatorState) -> bool:
    """The first checkpoint behind a snapshot that is not the job's own shares no file with it."""
    return not state.pending and state.origin is not None and state.claim_mode is ClaimMode.NO_CLAIM


def _starts_lineage(state: CoordinatorState, lineage: Lineage) -> bool:
    """An origin may be of another job, so its generation says nothing."""
    if not isinstance(lineage, CompletedParent):
        return False
    before = lineage.metadata
    return before is None or state.origin is not None or before.generation != state.generation
