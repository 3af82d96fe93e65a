"""Builders for tests: they say what matters and hide the rest.

They make events and states of the pure core; ``harness.jobs`` has a declared job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.jobs import STAGES
from sluice.core.answers import Ack, Decline
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import CheckpointType, JobConfiguration, JobStatus
from sluice.core.coordinator import step
from sluice.core.decider import CheckpointRequest
from sluice.core.events import (
    AcksReceived,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    Command,
    DeclineReceived,
    Event,
    JobRestored,
    JobStopped,
    JobSubmitted,
)
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, Generation, SubtaskId
from sluice.core.plan import (
    CheckpointPlan,
    PartitionOffset,
    Slice,
    SnapshotOrigin,
    SourceCut,
    TaskPlan,
)
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableDecision

TASKS = tuple(TaskPlan(uid=uid, parallelism=2, max_parallelism=128) for uid in STAGES)
SUBTASKS = tuple(subtask for task in TASKS for subtask in task.subtasks)
TIMEOUT_MS = 600_000
PLANNED = "a_b"  # The token of a checkpoint, as a sink is told it,
ATTEMPTED = "1-a"  # and of an attempt.


def a_plan(checkpoint_id: int = 1, **given: Any) -> CheckpointPlan:
    """Of generation 1, from empty state, one slice of ten records."""
    position = PartitionOffset(partition="nexmark", offset=10, records=10)
    piece = Slice(partition="nexmark", start=0, end=10, first_record=0, records=10)
    plan: dict[str, Any] = {
        "checkpoint_id": CheckpointId(checkpoint_id),
        "generation": Generation(1),
        "parent": None,
        "type": CheckpointType.CHECKPOINT,
        "triggered_at_ms": 1_000,
        "expires_at_ms": 1_000 + TIMEOUT_MS,
        "drains": given.get("type") is CheckpointType.SAVEPOINT_TERMINATE,
        "sources": (SourceCut(uid="events", position=(position,), slices=(piece,)),),
        "tasks": TASKS,
    }
    return CheckpointPlan(**plan | given)


def a_request(request_id: str = "r", **given: Any) -> CheckpointRequest:
    """A person's, at once; see the core's request decider for the rest."""
    usual: dict[str, Any] = {"is_periodic": False, "requested_at_ms": 1_000}
    return CheckpointRequest(request_id=request_id, **usual | given)


def triggered(
    checkpoint_id: int = 1, savepoint: str | None = None, **plan: Any
) -> CheckpointTriggered:
    made = a_plan(checkpoint_id, **plan)
    request = a_request(f"r{checkpoint_id}", type=made.type, savepoint_name=savepoint)
    return CheckpointTriggered(generation=made.generation, plan=made, request=request)


def an_ack(subtask: SubtaskId, *, checkpoint_id: int = 1, attempt: int = 1) -> Ack:
    return Ack(checkpoint_id=CheckpointId(checkpoint_id), subtask=subtask, attempt=attempt)


def read(*acks: Ack) -> AcksReceived:
    """They were read of one checkpoint, together."""
    return AcksReceived(checkpoint_id=acks[0].checkpoint_id, acks=acks)


def acked(subtask: SubtaskId, *, checkpoint_id: int = 1, attempt: int = 1) -> AcksReceived:
    return read(an_ack(subtask, checkpoint_id=checkpoint_id, attempt=attempt))


def all_acks(checkpoint_id: int = 1) -> list[AcksReceived]:
    """One by one."""
    return [acked(subtask, checkpoint_id=checkpoint_id) for subtask in SUBTASKS]


def an_attempt(
    attempt: int, *, stage: str = STAGES[0], checkpoint_id: int = 1, generation: int = 1
) -> AttemptStarted:
    return AttemptStarted(
        generation=Generation(generation),
        checkpoint_id=CheckpointId(checkpoint_id),
        stage=stage,
        attempt=attempt,
    )


def declined(
    subtask: SubtaskId = SUBTASKS[0],
    *,
    checkpoint_id: int = 1,
    attempt: int = 1,
    generation: int = 1,
    at_ms: int = 2_000,
    reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_DECLINED,
) -> DeclineReceived:
    decline = Decline(
        checkpoint_id=CheckpointId(checkpoint_id),
        subtask=subtask,
        attempt=attempt,
        message="no",
        reason=reason,
    )
    return DeclineReceived(generation=Generation(generation), at_ms=at_ms, decline=decline)


def completed(
    checkpoint_id: int = 1,
    *,
    generation: int = 1,
    at_ms: int = 3_000,
    attempts: Mapping[str, int] | None = None,
) -> CheckpointCompleted:
    """By default of the first attempt of every stage."""
    return CheckpointCompleted(
        attempts=dict(attempts or dict.fromkeys(STAGES, 1)),
        generation=Generation(generation),
        at_ms=at_ms,
        checkpoint_id=CheckpointId(checkpoint_id),
        checkpointed_bytes=100,
        full_bytes=200,
    )


def committed(checkpoint_id: int = 1, *, generation: int = 1) -> CheckpointCommitted:
    return CheckpointCommitted(
        generation=Generation(generation), at_ms=4_000, checkpoint_id=CheckpointId(checkpoint_id)
    )


def failed(
    checkpoint_id: int = 1,
    reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_EXPIRED,
    *,
    generation: int = 1,
    at_ms: int = 5_000,
    is_task_failure: bool = False,
) -> CheckpointFailed:
    return CheckpointFailed(
        generation=Generation(generation),
        at_ms=at_ms,
        checkpoint_id=CheckpointId(checkpoint_id),
        reason=reason,
        message="because",
        is_task_failure=is_task_failure,
    )


def restored(
    checkpoint_id: int | None, *, generation: int = 2, savepoint: str | None = None, **given: Any
) -> JobRestored:
    if savepoint is not None and checkpoint_id is not None:
        given["origin"] = SnapshotOrigin(
            checkpoint_id=CheckpointId(checkpoint_id), savepoint=savepoint
        )
    if given.get("origin") is not None:
        given = {"tables": TableDecision(), "life": "restored"} | given
    return JobRestored(
        at_ms=6_000,
        generation=Generation(generation),
        checkpoint_id=None if checkpoint_id is None else CheckpointId(checkpoint_id),
        **given,
    )


def stopped(status: JobStatus, *, generation: int = 1) -> JobStopped:
    return JobStopped(at_ms=7_000, generation=Generation(generation), status=status)


def submitted(*, generation: int = 1, **configuration: Any) -> JobSubmitted:
    return JobSubmitted(
        at_ms=0,
        generation=Generation(generation),
        configuration=JobConfiguration(**configuration),
        life=f"life-{generation}",
    )


def run(state: CoordinatorState, *events: Event) -> tuple[CoordinatorState, list[Command]]:
    """The state after *events*, and every command on the way."""
    commands: list[Command] = []
    for event in events:
        transition = step(state, event)
        state = transition.state
        commands.extend(transition.commands)
    return state, commands


def after(state: CoordinatorState, *events: Event) -> CoordinatorState:
    return run(state, *events)[0]


def a_submitted(**configuration: Any) -> CoordinatorState:
    """RUNNING under generation 1; the next checkpoint is 1."""
    return after(CoordinatorState(), submitted(**configuration))


def a_checkpoint(checkpoint_id: int = 1, parent: int | None = None, **plan: Any) -> list[Event]:
    """Triggered, completed and committed."""
    generation = plan.get("generation", 1)
    return [
        triggered(checkpoint_id, parent=parent, **plan),
        completed(checkpoint_id, generation=generation),
        committed(checkpoint_id, generation=generation),
    ]


def ids_of(checkpoints: Iterable[CompletedCheckpoint]) -> list[int]:
    return [int(checkpoint.checkpoint_id) for checkpoint in checkpoints]
