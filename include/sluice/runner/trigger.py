"""Trigger: decide, resolve the barrier, write the plan, journal it.  The checkpoint is pending."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeAlias

from sluice.core.completed import CheckpointMetadata
from sluice.core.coordinator import Verdict
from sluice.core.ids import CheckpointId
from sluice.core.key_groups import check_parallelism, default_max_parallelism
from sluice.core.messages import CheckpointTriggered
from sluice.core.plan import CheckpointPlan, SourceCut, TaskPlan
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import CoordinatorState
from sluice.errors import StoreUnavailable
from sluice.protocol.records import encode_plan
from sluice.runner.completion import commit
from sluice.runner.job import Job
from sluice.runner.savepoints import require_free_name
from sluice.runner.tables import write_table
from sluice.storage.object_store import Created

log = logging.getLogger(__name__)

MAX_ORPHANED_PLANS = 1_000  # Plans of coordinators that died before they journaled them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggered:
    plan: CheckpointPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTriggered:
    """The request decider dropped the request; ``reason`` is None when there was nothing to do."""

    reason: CheckpointFailureReason | None
    message: str


TriggerOutcome: TypeAlias = Triggered | NotTriggered


def trigger(
    job: Job,
    *,
    type: CheckpointType = CheckpointType.CHECKPOINT,  # noqa: A002 - Flink's word
    cause: str = "periodic",
    savepoint_name: str | None = None,
    is_periodic: bool = True,
) -> TriggerOutcome:
    """Start checkpoint n, or say why not.  Never an error for what can normally happen.

    Raises:
        ConfigurationError: a source cannot be read as declared, or the savepoint exists.
        RestoreError: the checkpoint that the epoch continues is gone.
    """
    if savepoint_name is not None:
        require_free_name(job, savepoint_name)
    state = job.state()
    refusal = why_not(state, job.clock(), is_periodic=is_periodic)
    if refusal is not None:
        return refusal
    if state.base is not None and (latest := state.latest_completed) and not latest.is_committed:
        commit(job, latest.checkpoint_id)  # Its own task died; nothing new before it is published.
        state = job.state()
    base = job.base_metadata(state)
    cuts = tuple(_cut(job, state, uid, base) for uid in job.pipeline.sources)
    streams = {source.uid for source in job.pipeline.stream_sources()}
    exhausted = all(cut.exhausted for cut in cuts if cut.uid in streams)
    plan = CheckpointPlan(
        checkpoint_id=state.next_checkpoint_id,
        generation=state.generation,
        parent=state.base,
        parent_savepoint=state.base_savepoint,
        type=type,
        triggered_at_ms=job.clock(),
        expires_at_ms=job.clock() + job.pipeline.checkpointing.timeout // timedelta(milliseconds=1),
        drains=exhausted or type is CheckpointType.SAVEPOINT_TERMINATE,
        sources=cuts,
        tasks=_tasks(job, state, base),
        cause=cause,
    )
    if is_periodic and not plan.drains and plan.records == 0:
        return NotTriggered(reason=None, message="no new records since the last checkpoint")
    return _journal(job, state, plan, savepoint_name)


def why_not(state: CoordinatorState, now_ms: int, *, is_periodic: bool) -> NotTriggered | None:
    """Why a request does not run now, or None."""
    if state.status is not JobStatus.RUNNING:
        return NotTriggered(
            reason=CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN,
            message=f"the job is {state.status.value}",
        )
    if len(state.pending) >= state.configuration.max_concurrent:
        pending = state.pending[0].checkpoint_id
        return NotTriggered(
            reason=CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS,
            message=f"checkpoint {pending} is still pending",
        )
    since_ms = None if state.last_completed_at_ms is None else now_ms - state.last_completed_at_ms
    rest_ms = 0 if since_ms is None else state.configuration.min_pause_ms - since_ms
    if is_periodic and rest_ms > 0:
        return NotTriggered(
            reason=CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
            message=f"min_pause lasts {rest_ms} ms more",
        )
    return None


def _cut(job: Job, state: CoordinatorState, uid: str, base: CheckpointMetadata | None) -> SourceCut:
    source = job.source(uid, state.configuration.params)
    previous = base.source(uid) if base is not None else None
    if job.pipeline.sources[uid].is_table:
        return SourceCut(uid=uid, position=(), table=previous.table if previous else None)
    barrier = source.plan(
        previous.position if previous is not None else (),
        max_records=state.configuration.max_records_per_epoch,
        parallelism=_first_parallelism(job, state, uid),
    )
    return SourceCut(
        uid=uid,
        position=barrier.position,
        slices=barrier.slices,
        exhausted=barrier.exhausted,
    )


def _first_parallelism(job: Job, state: CoordinatorState, source: str) -> int:
    override = state.configuration.parallelism
    return max(
        job.pipeline.parallelism_of(stage.uid, override)
        for stage in job.pipeline.stages.values()
        if stage.input == source
    )


def _write_tables(job: Job, state: CoordinatorState, plan: CheckpointPlan) -> CheckpointPlan:
    """Pin every table source as of this barrier; an unchanged one keeps its segment."""
    params = state.configuration.params
    cuts = tuple(
        replace(cut, table=write_table(job, cut.uid, params, plan.checkpoint_id, cut.table))
        if job.pipeline.sources[cut.uid].is_table
        else cut
        for cut in plan.sources
    )
    return replace(plan, sources=cuts)


def _tasks(
    job: Job, state: CoordinatorState, base: CheckpointMetadata | None
) -> tuple[TaskPlan, ...]:
    tasks: list[TaskPlan] = []
    for uid in job.pipeline.stages:
        parallelism = job.pipeline.parallelism_of(uid, state.configuration.parallelism)
        before = base.stage(uid) if base is not None else None
        max_parallelism = before.max_parallelism if before else default_max_parallelism(parallelism)
        check_parallelism(uid, parallelism, max_parallelism)
        tasks.append(TaskPlan(uid=uid, parallelism=parallelism, max_parallelism=max_parallelism))
    return tuple(tasks)


def _journal(
    job: Job, state: CoordinatorState, plan: CheckpointPlan, savepoint_name: str | None
) -> TriggerOutcome:
    """Write the plan under the first free id, then journal it; losing the race is an outcome."""
    unpinned = plan
    for _ in range(MAX_ORPHANED_PLANS):
        plan = _write_tables(job, state, unpinned)  # Under the plan's id: an abort finds them.
        raw = encode_plan(plan)
        result = job.store.create(job.paths.plan(plan.checkpoint_id), raw)
        if isinstance(result, Created) or result.body == raw:
            break
        unpinned = replace(unpinned, checkpoint_id=CheckpointId(plan.checkpoint_id + 1))
    else:
        raise StoreUnavailable(
            f"{MAX_ORPHANED_PLANS} checkpoint ids in a row are taken in {job.store.root}"
        )
    transition = job.journal.append(
        lambda _: CheckpointTriggered(
            generation=plan.generation, plan=plan, savepoint_name=savepoint_name
        )
    )
    if transition.verdict is Verdict.APPLIED:
        log.info(
            "checkpoint triggered checkpoint_id=%d parent=%s records=%d type=%s",
            plan.checkpoint_id, plan.parent, plan.records, plan.type.value,
        )  # fmt: skip
        return Triggered(plan=plan)
    return why_not(transition.state, job.clock(), is_periodic=False) or NotTriggered(
        reason=CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE,
        message="another coordinator triggered or restored first",
    )
