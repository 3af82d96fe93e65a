"""The checkpoint coordinator: a pure state machine (Flink's CheckpointCoordinator without threads).

Rule 1: every state change of the coordinator is a ``step``.
Rule 2: a step never waits.  It reads no clock, no bucket, no database; time and acks arrive as
events, and effects leave as commands.
Rule 3: an event of a generation that was overtaken changes nothing and asks for nothing.

    CREATED --JobSubmitted--> RUNNING --JobStopped--> SUSPENDED | CANCELED | FAILED
                               |   ^
              CheckpointFailed |   | JobRestored (generation + 1)
                     JobFailed v   |
                             RESTARTING --(attempts exhausted)--> FAILING --(committed)--> FAILED

    in RUNNING:  CheckpointRequested -> queue -> CheckpointTriggered -> pending
        pending: CheckpointCompleted -> CheckpointCommitted --(drained)--> FINISHED
                 CheckpointFailed    -> aborted, with every checkpoint that continues it

This file has the rules of a pending checkpoint: attempts, acks, declines, completion, commit and
failure.  Requests are in ``core/requests.py``, the job's status is in ``core/lifecycle.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from sluice.core.completed import CompletedCheckpoint, subsumed
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.events import (
    AcksReceived,
    AlignmentTimedOut,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointingChanged,
    CheckpointRequested,
    CheckpointTriggered,
    DeclineReceived,
    Event,
    HooksRestored,
    JobFailed,
    JobRestored,
    JobStopped,
    JobSubmitted,
    JournalRepaired,
    RequestWithdrawn,
    RootAdopted,
    SavepointsReleased,
    SnapshotsDiscarded,
    TablesRecovered,
    Transition,
    TriggerFailed,
    Verdict,
    ignored,
    refused,
)
from sluice.core.failures import CheckpointFailureReason
from sluice.core.lifecycle import (
    abort_children,
    abort_with_successors,
    end,
    fail_over,
    on_adopted,
    on_checkpointing_changed,
    on_discarded,
    on_hooks_restored,
    on_job_failed,
    on_released,
    on_repaired,
    on_restored,
    on_stopped,
    on_submitted,
    on_tables_recovered,
)
from sluice.core.pending import AckResult, PendingCheckpoint
from sluice.core.requests import on_requested, on_trigger_failed, on_triggered, on_withdrawn
from sluice.core.state import CoordinatorState
from sluice.core.transitions import NO_CONSENT


def step(state: CoordinatorState, event: Event) -> Transition:
    """Apply one event.  Total: every event is legal in every state."""
    applied = _applied(state, event)
    is_begun = isinstance(event, JobSubmitted | JobRestored) and applied.verdict is Verdict.APPLIED
    if applied.state.status is state.status and not is_begun:
        return applied
    at_ms: int | None = getattr(event, "at_ms", None)
    return replace(applied, state=replace(applied.state, status_since_ms=at_ms))


def _applied(state: CoordinatorState, event: Event) -> Transition:  # noqa: C901 - a case for each event
    if _is_fenced(state, event):
        return Transition(state=state, verdict=Verdict.FENCED)
    match event:
        case CheckpointRequested():
            return on_requested(state, event)
        case CheckpointTriggered():
            return on_triggered(state, event)
        case TriggerFailed():
            return on_trigger_failed(state, event)
        case RequestWithdrawn():
            return on_withdrawn(state, event)
        case AttemptStarted():
            return _on_attempt(state, event)
        case AcksReceived():
            return _on_acks(state, event)
        case DeclineReceived():
            return _on_decline(state, event)
        case AlignmentTimedOut():
            return _on_alignment_timed_out(state, event)
        case CheckpointCompleted():
            return _on_completed(state, event)
        case CheckpointCommitted():
            return _on_committed(state, event)
        case CheckpointFailed():
            return _on_failed(state, event)
        case JobSubmitted():
            return on_submitted(state, event)
        case JobFailed():
            return on_job_failed(state, event)
        case JobRestored():
            return on_restored(state, event)
        case RootAdopted():
            return on_adopted(state, event)
        case HooksRestored():
            return on_hooks_restored(state, event)
        case TablesRecovered():
            return on_tables_recovered(state, event)
        case JobStopped():
            return on_stopped(state, event)
        case SavepointsReleased():
            return on_released(state, event)
        case SnapshotsDiscarded():
            return on_discarded(state, event)
        case CheckpointingChanged():
            return on_checkpointing_changed(state, event)
        case JournalRepaired():
            return _on_repaired(state, event)
        case _:
            assert_never(event)


def _is_fenced(state: CoordinatorState, event: Event) -> bool:
    match event:
        case AcksReceived():
            return False  # Its checkpoint and its attempt fence it.
        case JobSubmitted() | JobRestored() | RootAdopted() | JournalRepaired():
            return event.generation <= state.generation  # Who takes over takes the next one.
        case _:
            return event.generation != state.generation


def _on_attempt(state: CoordinatorState, event: AttemptStarted) -> Transition:
    """Fence the earlier attempts of the stage, and with them the answers of the stages behind it.

    Checkpoints that continue this one may have read the fenced attempt's state, so they end.
    """
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None or event.attempt <= pending.attempt_of(event.stage):
        return ignored(state)
    because = f"stage {event.stage!r} of checkpoint {pending.checkpoint_id} runs again"
    aborted = abort_children(state, pending, because)
    restarted = pending.start_attempt(event.stage, event.attempt)
    return replace(aborted, state=_with_pending(aborted.state, restarted))


def _on_acks(state: CoordinatorState, event: AcksReceived) -> Transition:
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None:
        return replace(ignored(state), ack_results=(AckResult.DISCARDED,) * len(event.acks))
    after, results = pending.acknowledge(event.acks)
    if AckResult.SUCCESS not in results:
        return replace(ignored(state), ack_results=results)
    return Transition(state=_with_pending(state, after), ack_results=results)


def _on_decline(state: CoordinatorState, event: DeclineReceived) -> Transition:
    decline = event.decline
    pending = state.pending_checkpoint(decline.checkpoint_id)
    if pending is None or not pending.awaits(decline):
        return ignored(state)
    failed = CheckpointFailed(
        generation=event.generation,
        at_ms=event.at_ms,
        checkpoint_id=decline.checkpoint_id,
        reason=decline.reason,
        message=f"{decline.subtask}: {decline.message}",
        is_task_failure=decline.reason is CheckpointFailureReason.TASK_FAILURE,
        is_task_level=True,
    )
    return _on_failed(state, failed)


def _on_alignment_timed_out(state: CoordinatorState, event: AlignmentTimedOut) -> Transition:
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None:
        return ignored(state)
    after = pending.overtake(event.stages)
    if after == pending:
        return ignored(state)
    return Transition(state=_with_pending(state, after))


def _on_completed(state: CoordinatorState, event: CheckpointCompleted) -> Transition:
    """Complete the oldest pending checkpoint, once its parent is committed; the others wait.

    So a completed checkpoint never subsumes a pending one, and sinks publish in order.  Refused if
    a stage has begun another attempt since ``_metadata`` was made: what continues the checkpoint
    may have read that one's answer.
    """
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None:
        return ignored(state)
    if pending is not state.pending[0] or state.owed is not None:
        return refused(state)
    if event.attempts != pending.current_attempts:
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
        savepoint_token=pending.savepoint_token,
        cause=pending.cause,
        queued_ms=pending.queued_ms,
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
        consent=NO_CONSENT,
        processing_time_ms=pending.processing_time_ms,
        last_completed_at_ms=event.at_ms,
        failure_count=state.failure_count.succeed(completed.checkpoint_id),
    )
    return Transition(state=after)


def _on_repaired(state: CoordinatorState, event: JournalRepaired) -> Transition:
    if event.completed is None:
        return on_repaired(state, event)
    completed = _on_completed(state, event.completed)
    if completed.verdict is not Verdict.APPLIED:
        return refused(state)
    return on_repaired(completed.state, event)


def _on_committed(state: CoordinatorState, event: CheckpointCommitted) -> Transition:
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
    return end(after, status, event.at_ms, because, is_final=status.is_globally_terminal)


def _status_after(state: CoordinatorState, committed: CompletedCheckpoint) -> JobStatus | None:
    """The status that this commit brings about; None when the job goes on.

    A late commit publishes, and no more: it neither revives a job that has ended, nor stops one
    that was resumed or that continues from elsewhere.
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


def _on_failed(state: CoordinatorState, event: CheckpointFailed) -> Transition:
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
    aborted = abort_with_successors(state, pending, event.at_ms, event.reason, event.message)
    after = replace(aborted.state, failure_count=count)
    if not (is_over or event.is_task_failure):
        return replace(aborted, state=after)
    because = f"checkpoint {event.checkpoint_id} was aborted, {event.reason.value}"
    failed_over = fail_over(after, event.at_ms, because)
    return replace(failed_over, commands=(*aborted.commands, *failed_over.commands))


def _with_pending(state: CoordinatorState, pending: PendingCheckpoint) -> CoordinatorState:
    return replace(
        state,
        pending=tuple(
            pending if p.checkpoint_id == pending.checkpoint_id else p for p in state.pending
        ),
    )
