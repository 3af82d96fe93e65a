"""The checkpoint coordinator: a pure state machine (Flink's CheckpointCoordinator without threads).

Rule 1: every state change of the coordinator happens in this file.
Rule 2: this file never waits.  It reads no clock, no bucket, no database; time and acks arrive as
events, and effects leave as commands.
Rule 3: an event of a generation that was overtaken changes nothing and asks for nothing.

    CREATED --JobSubmitted--> RUNNING --JobStopped--> SUSPENDED | CANCELED | FAILED
                               |   ^
              CheckpointFailed |   | JobRestored (generation + 1)
                               v   |
                             RESTARTING --(attempts exhausted)--> FAILED

    in RUNNING:  CheckpointTriggered -> pending -> CheckpointCompleted -> CheckpointCommitted
                                           |                                |
                                           +-> CheckpointFailed             +-> FINISHED, if drained
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import assert_never

from sluice.core.completed import CompletedCheckpoint, subsumed
from sluice.core.ids import CheckpointId, Generation
from sluice.core.messages import (
    AckReceived,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    Command,
    CommitCheckpoint,
    DeclineReceived,
    DiscardCompleted,
    DiscardPending,
    Event,
    FinalizeCheckpoint,
    JobRestored,
    JobStopped,
    JobSubmitted,
    RestartJob,
)
from sluice.core.pending import AckResult, PendingCheckpoint
from sluice.core.properties import CheckpointType, JobStatus, is_discarded
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.restart import next_restart
from sluice.core.state import REMEMBERED_FAILURES, CoordinatorState, FailedCheckpoint


class Verdict(Enum):
    """What became of an event."""

    APPLIED = auto()
    IGNORED = auto()  # Already true, or about something that ended: repeating is harmless.
    FENCED = auto()  # Its author's generation was overtaken.
    REFUSED = auto()  # Not allowed in this state; the caller asks for the reason.


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    state: CoordinatorState
    verdict: Verdict = Verdict.APPLIED
    commands: tuple[Command, ...] = ()
    ack_result: AckResult | None = None


def step(state: CoordinatorState, event: Event) -> Transition:
    """Apply one event.  Total: every event is legal in every state."""
    if not isinstance(event, AckReceived) and _is_fenced(state, event):
        return Transition(state=state, verdict=Verdict.FENCED)
    match event:
        case JobSubmitted():
            return _on_submitted(state, event)
        case CheckpointTriggered():
            return _on_triggered(state, event)
        case AttemptStarted():
            return _on_attempt(state, event)
        case AckReceived():
            return _on_ack(state, event)
        case DeclineReceived():
            return _on_decline(state, event)
        case CheckpointCompleted():
            return _on_completed(state, event)
        case CheckpointCommitted():
            return _on_committed(state, event)
        case CheckpointFailed():
            return _on_failed(state, event)
        case JobRestored():
            return _on_restored(state, event)
        case JobStopped():
            return _on_stopped(state, event)
        case _:
            assert_never(event)


def _is_fenced(
    state: CoordinatorState,
    event: JobSubmitted
    | JobRestored
    | CheckpointTriggered
    | AttemptStarted
    | DeclineReceived
    | CheckpointCompleted
    | CheckpointCommitted
    | CheckpointFailed
    | JobStopped,
) -> bool:
    if isinstance(event, JobSubmitted | JobRestored):
        return event.generation <= state.generation  # Whoever takes over takes the next one.
    return event.generation != state.generation


def _on_submitted(state: CoordinatorState, event: JobSubmitted) -> Transition:
    if state.status in (JobStatus.RUNNING, JobStatus.RESTARTING):
        return Transition(state=state, verdict=Verdict.REFUSED)
    after, commands = _abort_all(
        state, event.at_ms, CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN
    )
    fresh = replace(
        CoordinatorState(),
        status=JobStatus.RUNNING,
        generation=event.generation,
        configuration=event.configuration,
        next_checkpoint_id=state.next_checkpoint_id,
        completed=after.completed,
        failed=after.failed,
    )
    return Transition(state=fresh, commands=commands)


def _on_triggered(state: CoordinatorState, event: CheckpointTriggered) -> Transition:
    plan = event.plan
    stale = (
        state.status is not JobStatus.RUNNING
        or plan.generation != state.generation
        or plan.parent != state.base
        or plan.checkpoint_id < state.next_checkpoint_id
        or len(state.pending) >= state.configuration.max_concurrent
    )
    if stale:
        return Transition(state=state, verdict=Verdict.REFUSED)
    pending = PendingCheckpoint(
        checkpoint_id=plan.checkpoint_id,
        parent=plan.parent,
        type=plan.type,
        triggered_at_ms=plan.triggered_at_ms,
        expires_at_ms=plan.expires_at_ms,
        drains=plan.drains,
        records=plan.records,
        tasks=plan.tasks,
        savepoint_name=event.savepoint_name,
        cause=plan.cause,
    )
    after = replace(
        state,
        pending=(*state.pending, pending),
        next_checkpoint_id=CheckpointId(plan.checkpoint_id + 1),
    )
    return Transition(state=after)


def _on_attempt(state: CoordinatorState, event: AttemptStarted) -> Transition:
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None or event.attempt <= pending.attempt_of(event.stage):
        return Transition(state=state, verdict=Verdict.IGNORED)
    return Transition(state=_with_pending(state, pending.start_attempt(event.stage, event.attempt)))


def _on_ack(state: CoordinatorState, event: AckReceived) -> Transition:
    pending = state.pending_checkpoint(event.ack.checkpoint_id)
    if pending is None:
        return Transition(state=state, verdict=Verdict.IGNORED, ack_result=AckResult.DISCARDED)
    after, result = pending.acknowledge(event.ack)
    if result is not AckResult.SUCCESS:
        return Transition(state=state, verdict=Verdict.IGNORED, ack_result=result)
    commands = (FinalizeCheckpoint(pending=after),) if after.is_fully_acknowledged else ()
    return Transition(state=_with_pending(state, after), commands=commands, ack_result=result)


def _on_decline(state: CoordinatorState, event: DeclineReceived) -> Transition:
    decline = event.decline
    pending = state.pending_checkpoint(decline.checkpoint_id)
    if pending is None or decline.attempt != pending.attempt_of(decline.subtask.stage):
        return Transition(state=state, verdict=Verdict.IGNORED)
    failed = CheckpointFailed(
        generation=event.generation,
        at_ms=event.at_ms,
        checkpoint_id=decline.checkpoint_id,
        reason=CheckpointFailureReason.CHECKPOINT_DECLINED,
        message=f"{decline.subtask}: {decline.message}",
        is_task_level=True,
    )
    return _on_failed(state, failed)


def _on_completed(state: CoordinatorState, event: CheckpointCompleted) -> Transition:
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None:
        return Transition(state=state, verdict=Verdict.IGNORED)
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
    gone = subsumed(store, state.configuration.num_retained)
    after = replace(
        state,
        pending=tuple(p for p in state.pending if p is not pending),
        completed=tuple(c for c in store if c not in gone),
        base=completed.checkpoint_id,
        base_savepoint=None,
        last_completed_at_ms=event.at_ms,
        failure_count=state.failure_count.succeed(completed.checkpoint_id),
    )
    commands: tuple[Command, ...] = (
        CommitCheckpoint(checkpoint_id=completed.checkpoint_id),
        *(DiscardCompleted(checkpoint=old) for old in gone),
    )
    return Transition(state=after, commands=commands)


def _on_committed(state: CoordinatorState, event: CheckpointCommitted) -> Transition:
    completed = state.completed_checkpoint(event.checkpoint_id)
    if completed is None or completed.is_committed:
        return Transition(state=state, verdict=Verdict.IGNORED)
    done = replace(completed, is_committed=True)
    after = replace(state, completed=tuple(done if c is completed else c for c in state.completed))
    if state.status.is_globally_terminal:
        return Transition(state=after)  # A late commit publishes; it does not revive the job.
    suspends = completed.type is CheckpointType.SAVEPOINT_SUSPEND and not completed.drains
    was_resumed = suspends and completed.generation != state.generation
    if was_resumed or not (completed.drains or completed.type.stops_the_job):
        return Transition(state=after)
    status = JobStatus.SUSPENDED if suspends else JobStatus.FINISHED
    after, commands = _abort_all(
        after, event.at_ms, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
    )
    return Transition(state=replace(after, status=status, restart_at_ms=None), commands=commands)


def _on_failed(state: CoordinatorState, event: CheckpointFailed) -> Transition:
    pending = state.pending_checkpoint(event.checkpoint_id)
    if pending is None:
        return Transition(state=state, verdict=Verdict.IGNORED)
    count, over = state.failure_count.fail(
        event.checkpoint_id,
        event.reason,
        tolerable=state.configuration.tolerable_failed_checkpoints,
        type=pending.type,
        is_task_level=event.is_task_level,
    )
    after = replace(
        _without_pending(state, pending, event.at_ms, event.reason, event.message),
        failure_count=count,
    )
    discard = DiscardPending(checkpoint_id=pending.checkpoint_id)
    if not (over or event.is_task_failure):
        return Transition(state=after, commands=(discard,))
    after, commands = _fail_over(after, event.at_ms)
    return Transition(state=after, commands=(discard, *commands))


def _on_restored(state: CoordinatorState, event: JobRestored) -> Transition:
    known = event.checkpoint_id is None or state.completed_checkpoint(event.checkpoint_id)
    if not known and event.savepoint is None:
        return Transition(state=state, verdict=Verdict.REFUSED)
    after, commands = _abort_all(state, event.at_ms, CheckpointFailureReason.JOB_FAILOVER_REGION)
    restored = replace(
        after,
        status=JobStatus.RUNNING,
        generation=event.generation,
        base=event.checkpoint_id,
        base_savepoint=event.savepoint,
        configuration=event.configuration or state.configuration,
        restart_at_ms=None,
        num_restarts=state.num_restarts + 1,
    )
    if event.savepoint is not None and event.checkpoint_id is not None:
        next_id = max(restored.next_checkpoint_id, event.checkpoint_id + 1)
        restored = replace(restored, next_checkpoint_id=CheckpointId(next_id))
    return Transition(state=restored, commands=commands)


def _on_stopped(state: CoordinatorState, event: JobStopped) -> Transition:
    assert event.status in (JobStatus.SUSPENDED, JobStatus.CANCELED, JobStatus.FAILED)
    if state.status.is_globally_terminal or state.status is event.status:
        return Transition(state=state, verdict=Verdict.IGNORED)
    after, commands = _abort_all(
        state, event.at_ms, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
    )
    return _ended(replace(after, restart_at_ms=None), event.status, commands)


def _fail_over(state: CoordinatorState, at_ms: int) -> tuple[CoordinatorState, tuple[Command, ...]]:
    """The job restarts by its strategy, or is FAILED for good (Flink's ExecutionFailureHandler)."""
    aborted, commands = _abort_all(state, at_ms, CheckpointFailureReason.JOB_FAILOVER_REGION)
    history, restart_at_ms = next_restart(state.configuration.restart, state.restarts, at_ms)
    aborted = replace(aborted, restarts=history)
    if restart_at_ms is None:
        ended = _ended(aborted, JobStatus.FAILED, commands)
        return ended.state, ended.commands
    after = replace(aborted, status=JobStatus.RESTARTING, restart_at_ms=restart_at_ms)
    return after, (*commands, RestartJob(at_ms=restart_at_ms))


def _ended(state: CoordinatorState, status: JobStatus, commands: tuple[Command, ...]) -> Transition:
    """Apply the discard matrix of externalized retention; savepoints are the user's."""
    retention = state.configuration.retention
    gone = tuple(c for c in state.completed if is_discarded(c.type, retention, status))
    after = replace(
        state, status=status, completed=tuple(c for c in state.completed if c not in gone)
    )
    return Transition(
        state=after, commands=(*commands, *(DiscardCompleted(checkpoint=c) for c in gone))
    )


def _abort_all(
    state: CoordinatorState, at_ms: int, reason: CheckpointFailureReason
) -> tuple[CoordinatorState, tuple[Command, ...]]:
    commands = tuple(DiscardPending(checkpoint_id=p.checkpoint_id) for p in state.pending)
    for pending in state.pending:
        state = _without_pending(state, pending, at_ms, reason, "")
    return state, commands


def _without_pending(
    state: CoordinatorState,
    pending: PendingCheckpoint,
    at_ms: int,
    reason: CheckpointFailureReason,
    message: str,
) -> CoordinatorState:
    failed = FailedCheckpoint(
        checkpoint_id=pending.checkpoint_id,
        type=pending.type,
        triggered_at_ms=pending.triggered_at_ms,
        failed_at_ms=at_ms,
        reason=reason,
        message=message,
    )
    return replace(
        state,
        pending=tuple(p for p in state.pending if p is not pending),
        failed=(*state.failed, failed)[-REMEMBERED_FAILURES:],
    )


def _with_pending(state: CoordinatorState, pending: PendingCheckpoint) -> CoordinatorState:
    return replace(
        state,
        pending=tuple(
            pending if p.checkpoint_id == pending.checkpoint_id else p for p in state.pending
        ),
    )


def next_generation(state: CoordinatorState) -> Generation:
    """The generation that fences everybody now alive."""
    return Generation(state.generation + 1)
