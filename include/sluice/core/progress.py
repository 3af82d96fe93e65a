"""What becomes of a pending checkpoint: attempts, acks, declines, completion, commit, failure."""

from __future__ import annotations

from dataclasses import replace

from sluice.core.aborts import abort, abort_children
from sluice.core.completed import CompletedCheckpoint, subsumed
from sluice.core.lifecycle import end, fail_over
from sluice.core.messages import (
    AcksReceived,
    AlignmentTimedOut,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    DeclineReceived,
)
from sluice.core.pending import AckResult, PendingCheckpoint
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.state import CoordinatorState
from sluice.core.transition import Transition, ignored, refused


def on_attempt(state: CoordinatorState, event: AttemptStarted) -> Transition:
    """What continues this checkpoint may have read the fenced attempt's state: it goes.  So do the
    answers of the stages behind it.
    """
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None or event.attempt <= pending.attempt_of(event.stage):
        return ignored(state)
    after, commands = abort_children(
        state,
        pending,
        f"stage {event.stage!r} of checkpoint {pending.checkpoint_id} runs again",
    )
    after = _with_pending(after, pending.start_attempt(event.stage, event.attempt))
    return Transition(state=after, commands=commands)


def on_acks(state: CoordinatorState, event: AcksReceived) -> Transition:
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None:
        late = (AckResult.DISCARDED,) * len(event.acks)
        return replace(ignored(state), ack_results=late)
    after, results = pending.acknowledge(event.acks)
    if AckResult.SUCCESS not in results:
        return replace(ignored(state), ack_results=results)
    return Transition(state=_with_pending(state, after), ack_results=results)


def on_decline(state: CoordinatorState, event: DeclineReceived) -> Transition:
    decline = event.decline
    pending = state.pending_checkpoint(decline.checkpoint_id)
    if (
        pending is None
        or decline.attempt != pending.attempt_of(decline.subtask.stage)
        or decline.subtask.stage in pending.overtaken
    ):
        return ignored(state)
    failed = CheckpointFailed(
        generation=event.generation,
        at_ms=event.at_ms,
        checkpoint_id=decline.checkpoint_id,
        reason=decline.reason,
        message=f"{decline.subtask}: {decline.message}",
        is_task_level=True,
    )
    return on_failed(state, failed)


def on_alignment_timed_out(state: CoordinatorState, event: AlignmentTimedOut) -> Transition:
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None:
        return ignored(state)
    after = pending.overtake(event.stages)
    if after == pending:
        return ignored(state)
    return Transition(state=_with_pending(state, after))


def on_completed(state: CoordinatorState, event: CheckpointCompleted) -> Transition:
    """The oldest pending one completes, after its parent was committed; the others wait.

    So nothing older is ever pending that this one could subsume, and sinks publish in order.
    """
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None:
        return ignored(state)
    parent = state.latest_completed
    if pending is not state.pending[0] or (parent is not None and not parent.is_committed):
        return refused(state)
    completed = CompletedCheckpoint(
        checkpoint_id=pending.checkpoint_id,
        generation=state.generation,
        parent=pending.parent,
        type=pending.type,
        triggered_at_ms=pending.triggered_at_ms,
        completed_at_ms=event.at_ms,
        drains=pending.drains,
        records=pending.records,
        checkpointed_bytes=event.checkpointed_bytes,
        full_bytes=event.full_bytes,
        savepoint_name=pending.savepoint_name,
        cause=pending.cause,
    )
    store = (*state.completed, completed)
    configured = state.configuration
    gone = subsumed(store, configured.num_retained, retain_ms=configured.retain_ms)
    after = replace(
        state,
        pending=state.pending[1:],
        completed=tuple(c for c in store if c not in gone),
        discarding=(*state.discarding, *gone),
        base=completed.checkpoint_id,
        restores_of_base=0,
        origin=None,
        tables=None,
        ignores_in_flight=False,
        dropped_stages=(),
        last_completed_at_ms=event.at_ms,
        failure_count=state.failure_count.succeed(completed.checkpoint_id),
    )
    return Transition(state=after)


def on_committed(state: CoordinatorState, event: CheckpointCommitted) -> Transition:
    completed = state.completed_checkpoint(event.checkpoint_id)
    if completed is None or completed.is_committed:
        return ignored(state)
    done = replace(completed, is_committed=True)
    after = replace(
        state,
        completed=tuple(done if c is completed else c for c in state.completed),
        discarding=tuple(c for c in state.discarding if c.checkpoint_id not in event.discarded),
    )
    if completed is state.latest_completed and state.tables is not None:
        made = dict.fromkeys(event.sinks, int(completed.checkpoint_id))
        after = replace(after, tables=state.tables | made)
    status = _status_after(after, done)
    if status is None:
        return Transition(state=after)
    because = f"checkpoint {done.checkpoint_id} was the job's last: it is {status.value}"
    ended, commands = end(after, status, event.at_ms, because)
    return Transition(state=ended, commands=commands)


def on_failed(state: CoordinatorState, event: CheckpointFailed) -> Transition:
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None:
        return ignored(state)
    if not pending.can_be_aborted(event.reason):
        return refused(state)
    count, is_over = state.failure_count.fail(
        event.checkpoint_id,
        event.reason,
        tolerable=state.tolerable_failed_checkpoints,
        type=pending.type,
        is_task_level=event.is_task_level,
    )
    after, commands = abort(state, pending, event.at_ms, event.reason, event.message)
    after = replace(after, failure_count=count)
    if is_over or event.is_task_failure:
        because = f"checkpoint {event.checkpoint_id} was aborted, {event.reason.value}"
        after, more = fail_over(after, event.at_ms, because)
        commands = (*commands, *more)
    return Transition(state=after, commands=commands)


def _status_after(state: CoordinatorState, committed: CompletedCheckpoint) -> JobStatus | None:
    """The status that this commit brings about; None when the job goes on.

    A late commit publishes; it does not revive an ended job, nor stop one that was resumed or that
    continues from elsewhere.
    """
    if state.status.is_globally_terminal or committed != state.latest_completed:
        return None
    if state.status is JobStatus.FAILING:
        return JobStatus.FAILED
    suspends = committed.type is CheckpointType.SAVEPOINT_SUSPEND and not committed.drains
    was_resumed = suspends and committed.generation != state.generation
    if was_resumed or not (committed.drains or committed.type.stops_the_job):
        return None
    return JobStatus.SUSPENDED if suspends else JobStatus.FINISHED


def _with_pending(state: CoordinatorState, pending: PendingCheckpoint) -> CoordinatorState:
    return replace(
        state,
        pending=tuple(
            pending if p.checkpoint_id == pending.checkpoint_id else p for p in state.pending
        ),
    )
