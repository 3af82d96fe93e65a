"""A checkpoint that has been triggered and is still collecting acks.

A ``PendingCheckpoint`` has two ends and no third: every subtask acknowledges and it becomes a
``CompletedCheckpoint``, or it is aborted with a ``CheckpointFailureReason``.  The journal holds it
without acks; acks are objects in the bucket and are folded in when it is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from sluice.core.acks import Ack
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.plan import TaskPlan
from sluice.core.properties import CheckpointType

FIRST_ATTEMPT = 1


class AckResult(Enum):
    """What an acknowledgement turned out to be.  None of these is an error."""

    SUCCESS = auto()
    DUPLICATE = auto()  # The same subtask acknowledged again: a retried Spark task.
    UNKNOWN = auto()  # Another execution attempt, or not a participant; its files are garbage.
    DISCARDED = auto()  # Late: the checkpoint already ended; its files are garbage.


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCheckpoint:
    checkpoint_id: CheckpointId
    parent: CheckpointId | None
    type: CheckpointType
    triggered_at_ms: int
    expires_at_ms: int
    drains: bool
    records: int
    tasks: tuple[TaskPlan, ...]
    savepoint_name: str | None = None
    cause: str = ""
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])
    acks: Mapping[str, Ack] = field(default_factory=dict[str, Ack])  # By str(subtask).

    @property
    def not_yet_acknowledged(self) -> tuple[SubtaskId, ...]:
        return tuple(
            subtask
            for task in self.tasks
            for subtask in task.subtasks
            if str(subtask) not in self.acks
        )

    @property
    def is_fully_acknowledged(self) -> bool:
        return len(self.acks) == sum(task.parallelism for task in self.tasks)

    def is_participant(self, subtask: SubtaskId) -> bool:
        return any(
            task.uid == subtask.stage and 0 <= subtask.index < task.parallelism
            for task in self.tasks
        )

    def attempt_of(self, stage: str) -> int:
        """The execution attempt of *stage* whose acks count."""
        return self.attempts.get(stage, FIRST_ATTEMPT)

    def start_attempt(self, stage: str, attempt: int) -> PendingCheckpoint:
        """Fence every earlier execution attempt of *stage*: its acks become UNKNOWN."""
        assert attempt > self.attempt_of(stage)
        acks = {key: ack for key, ack in self.acks.items() if ack.subtask.stage != stage}
        return replace(self, attempts={**self.attempts, stage: attempt}, acks=acks)

    def acknowledge(self, ack: Ack) -> tuple[PendingCheckpoint, AckResult]:
        """Return the checkpoint with *ack* added, and what kind of ack it was."""
        assert ack.checkpoint_id == self.checkpoint_id

        is_current = ack.attempt == self.attempt_of(ack.subtask.stage)
        if not (is_current and self.is_participant(ack.subtask)):
            return self, AckResult.UNKNOWN
        if str(ack.subtask) in self.acks:
            return self, AckResult.DUPLICATE
        return replace(self, acks={**self.acks, str(ack.subtask): ack}), AckResult.SUCCESS
