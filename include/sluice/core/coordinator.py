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
"""

from __future__ import annotations

from typing import assert_never

from sluice.core.lifecycle import (
    on_checkpointing_changed,
    on_discarded,
    on_hooks_restored,
    on_job_failed,
    on_released,
    on_restored,
    on_stopped,
    on_submitted,
    on_tables_recovered,
)
from sluice.core.messages import (
    AcksReceived,
    AlignmentTimedOut,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointEvent,
    CheckpointFailed,
    CheckpointingChanged,
    CheckpointRequested,
    CheckpointTriggered,
    DeclineReceived,
    Event,
    HooksRestored,
    JobEvent,
    JobFailed,
    JobRestored,
    JobStopped,
    JobSubmitted,
    SavepointsReleased,
    SnapshotsDiscarded,
    TablesRecovered,
    TriggerFailed,
)
from sluice.core.progress import (
    on_acks,
    on_alignment_timed_out,
    on_attempt,
    on_committed,
    on_completed,
    on_decline,
    on_failed,
)
from sluice.core.requests import on_requested, on_trigger_failed, on_triggered
from sluice.core.state import CoordinatorState
from sluice.core.transition import Transition, Verdict


def step(state: CoordinatorState, event: Event) -> Transition:
    """Apply one event.  Total: every event is legal in every state."""
    if _is_fenced(state, event):
        return Transition(state=state, verdict=Verdict.FENCED)
    match event:
        case CheckpointRequested():
            return on_requested(state, event)
        case CheckpointTriggered():
            return on_triggered(state, event)
        case TriggerFailed():
            return on_trigger_failed(state, event)
        case (
            JobSubmitted() | JobFailed() | JobRestored() | HooksRestored() | TablesRecovered()
            | JobStopped() | SavepointsReleased() | SnapshotsDiscarded() | CheckpointingChanged()
        ):  # fmt: skip
            return _step_job(state, event)
        case _:
            return _step_checkpoint(state, event)


def _step_job(state: CoordinatorState, event: JobEvent) -> Transition:
    match event:
        case JobSubmitted():
            return on_submitted(state, event)
        case JobFailed():
            return on_job_failed(state, event)
        case JobRestored():
            return on_restored(state, event)
        case HooksRestored():
            return on_hooks_restored(state, event)
        case TablesRecovered():
            return on_tables_recovered(state, event)
        case SavepointsReleased():
            return on_released(state, event)
        case SnapshotsDiscarded():
            return on_discarded(state, event)
        case JobStopped():
            return on_stopped(state, event)
        case CheckpointingChanged():
            return on_checkpointing_changed(state, event)
        case _:
            assert_never(event)


def _step_checkpoint(state: CoordinatorState, event: CheckpointEvent) -> Transition:
    match event:
        case AttemptStarted():
            return on_attempt(state, event)
        case AcksReceived():
            return on_acks(state, event)
        case DeclineReceived():
            return on_decline(state, event)
        case AlignmentTimedOut():
            return on_alignment_timed_out(state, event)
        case CheckpointCompleted():
            return on_completed(state, event)
        case CheckpointCommitted():
            return on_committed(state, event)
        case CheckpointFailed():
            return on_failed(state, event)
        case _:
            assert_never(event)


def _is_fenced(state: CoordinatorState, event: Event) -> bool:
    match event:
        case AcksReceived():
            return False  # The attempt fences it, and the checkpoint it is for.
        case JobSubmitted() | JobRestored():
            return event.generation <= state.generation  # Who takes over takes the next one.
        case _:
            return event.generation != state.generation
