"""Finalize and commit: the checkpoint becomes true, then its sinks publish it."""

from __future__ import annotations

import logging

from sluice.core.completed import (
    CheckpointMetadata,
    CompletedCheckpoint,
    StageState,
    SubtaskState,
)
from sluice.core.coordinator import Verdict, step
from sluice.core.ids import CheckpointId
from sluice.core.messages import (
    AckReceived,
    CheckpointCommitted,
    CheckpointCompleted,
    FinalizeCheckpoint,
)
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.state import CoordinatorState
from sluice.errors import FencedError, ProtocolViolation, StageFailed
from sluice.protocol.records import decode_metadata, encode_metadata
from sluice.runner.commands import carry_out
from sluice.runner.event_time import event_times, output_watermark
from sluice.runner.job import Job, side_outputs
from sluice.runner.savepoints import export_savepoint
from sluice.storage.object_store import AlreadyExists

log = logging.getLogger(__name__)


def finalize(job: Job, checkpoint_id: CheckpointId) -> CompletedCheckpoint:
    """Fold the acks, write ``_metadata``, journal *completed*.  Idempotent.

    Raises:
        StageFailed: a planned ack is missing; the message names the subtasks.
        FencedError: the checkpoint was aborted, or a newer generation owns the job.
    """
    state = job.state()
    done = state.completed_checkpoint(checkpoint_id)
    if done is not None:
        return done
    pending = _fully_acknowledged(job, state, checkpoint_id)
    plan = job.plan(checkpoint_id)
    if plan is None:
        raise FencedError(f"checkpoint {checkpoint_id} was aborted while it was finalized")
    metadata = _write_metadata(job, assemble(job, plan, pending))
    acks = pending.acks.values()
    transition = job.journal.append(
        lambda _: CheckpointCompleted(
            generation=metadata.generation,
            at_ms=job.clock(),
            checkpoint_id=checkpoint_id,
            checkpointed_bytes=sum(ack.metrics.checkpointed_bytes for ack in acks),
            full_bytes=sum(ack.metrics.full_bytes for ack in acks),
        )
    )
    completed = transition.state.completed_checkpoint(checkpoint_id)
    if completed is None:
        raise FencedError(_why_gone(transition.state, checkpoint_id))
    if transition.verdict is Verdict.APPLIED:
        carry_out(job, transition)
        log.info(
            "checkpoint completed checkpoint_id=%d duration_ms=%d bytes=%d",
            checkpoint_id,
            completed.completed_at_ms - completed.triggered_at_ms,
            completed.checkpointed_bytes,
        )
    return completed


def commit(job: Job, checkpoint_id: CheckpointId) -> CoordinatorState:
    """Have every sink publish the completed checkpoint, then journal *committed*.  Idempotent.

    Raises:
        FencedError: the checkpoint is not a completed one of this generation.
    """
    state = job.state()
    completed = state.completed_checkpoint(checkpoint_id)
    if completed is None:
        raise FencedError(_why_gone(state, checkpoint_id))
    if completed.is_committed:
        return state
    metadata = job.metadata(checkpoint_id)
    for uid, sink in job.sinks(state.configuration.params).items():
        if metadata.tables.get(uid) == checkpoint_id:
            mine = tuple(c for c in metadata.committables if c.sink == uid)
            sink.commit(checkpoint_id, metadata.previous_tables.get(uid), mine)
    if completed.savepoint_name is not None:
        export_savepoint(job, metadata, completed.savepoint_name)
    transition = job.journal.append(
        lambda current: CheckpointCommitted(
            generation=current.generation, at_ms=job.clock(), checkpoint_id=checkpoint_id
        )
    )
    carry_out(job, transition)
    log.info("checkpoint committed checkpoint_id=%d", checkpoint_id)
    return transition.state


def assemble(job: Job, plan: CheckpointPlan, pending: PendingCheckpoint) -> CheckpointMetadata:
    """What a restore will need, from the plan and its acks; equal acks give equal bytes."""
    parent = job.parent_metadata(plan)
    stages = tuple(_stage_state(job, plan, task, pending, parent) for task in plan.tasks)
    committables = tuple(
        committable
        for key in sorted(pending.acks)
        for committable in pending.acks[key].committables
    )
    starts_lineage = parent is None or parent.generation != plan.generation
    published = {committable.sink for committable in committables} | set(job.pipeline.sinks)
    if starts_lineage:
        published |= set(side_outputs(job.pipeline))
    tables = dict(parent.tables) if parent is not None else {}
    return CheckpointMetadata(
        pipeline=job.pipeline.uid,
        checkpoint_id=plan.checkpoint_id,
        parent=plan.parent,
        parent_savepoint=plan.parent_savepoint,
        generation=plan.generation,
        type=plan.type,
        triggered_at_ms=plan.triggered_at_ms,
        drains=plan.drains,
        sources=plan.sources,
        stages=stages,
        committables=committables,
        previous_tables=tables,
        tables=tables | dict.fromkeys(sorted(published), int(plan.checkpoint_id)),
    )


def _stage_state(
    job: Job,
    plan: CheckpointPlan,
    task: TaskPlan,
    pending: PendingCheckpoint,
    parent: CheckpointMetadata | None,
) -> StageState:
    acks = [pending.acks[str(subtask)] for subtask in task.subtasks]
    return StageState(
        uid=task.uid,
        parallelism=task.parallelism,
        max_parallelism=task.max_parallelism,
        subtasks=tuple(
            SubtaskState(subtask=ack.subtask, state=ack.state, output=ack.output) for ack in acks
        ),
        watermark_ms=output_watermark(job, plan, task.uid, acks, parent),
        event_times_ms=event_times(task.uid, acks, parent),
    )


def _fully_acknowledged(
    job: Job, state: CoordinatorState, checkpoint_id: CheckpointId
) -> PendingCheckpoint:
    if state.pending_checkpoint(checkpoint_id) is None:
        raise FencedError(_why_gone(state, checkpoint_id))
    for ack in job.answers.acks(checkpoint_id):
        transition = step(state, AckReceived(ack=ack))
        state = transition.state
        for command in transition.commands:
            if isinstance(command, FinalizeCheckpoint):
                return command.pending
    pending = state.pending_checkpoint(checkpoint_id)
    assert pending is not None
    missing = ", ".join(str(subtask) for subtask in pending.not_yet_acknowledged)
    raise StageFailed(f"checkpoint {checkpoint_id} lacks the acks of {missing}")


def _write_metadata(job: Job, metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Write it once.  An existing one was written by a coordinator that died before it journaled:
    it was assembled from a complete set of acks, too, and it stays.
    """
    key = job.paths.metadata(metadata.checkpoint_id)
    result = job.store.create(key, encode_metadata(metadata))
    if not isinstance(result, AlreadyExists):
        return metadata
    existing = decode_metadata(result.body, key)
    if (existing.generation, existing.parent) != (metadata.generation, metadata.parent):
        raise ProtocolViolation(f"{key} is of generation {existing.generation}; ids are not reused")
    return existing


def _why_gone(state: CoordinatorState, checkpoint_id: CheckpointId) -> str:
    failed = state.failed_checkpoint(checkpoint_id)
    if failed is not None:
        detail = f": {failed.message}" if failed.message else ""
        return f"checkpoint {checkpoint_id} was aborted, {failed.reason.value}{detail}"
    return (
        f"checkpoint {checkpoint_id} is neither pending nor retained under generation "
        f"{state.generation}; a newer coordinator owns the job"
    )
