"""The names of things: checkpoints, generations, subtasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from sluice.errors import require

CheckpointId = NewType("CheckpointId", int)
"""Starts at 1, grows by 1 per attempt, is never reused (Flink's CheckpointIDCounter)."""

FIRST_CHECKPOINT_ID = CheckpointId(1)

Generation = NewType("Generation", int)
"""The fencing token of a job: a coordinator with a lower one than the journal's is fenced."""

NO_GENERATION = Generation(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIdCounter:
    """Hands out checkpoint ids (Flink's CheckpointIDCounter); it never goes backwards.

    A value: the next counter is stored by a compare-and-swap.
    """

    next_id: CheckpointId = FIRST_CHECKPOINT_ID

    def __post_init__(self) -> None:
        require(self.next_id >= FIRST_CHECKPOINT_ID, "the first checkpoint's id is 1")

    def get(self) -> CheckpointId:
        """The id that the next attempt will have."""
        return self.next_id

    def at_least(self, next_id: int) -> CheckpointIdCounter:
        """Continue at *next_id* after a restore (Flink's setCount), but never below what was."""
        return CheckpointIdCounter(next_id=CheckpointId(max(self.next_id, next_id)))


@dataclass(frozen=True, slots=True, order=True)
class SavepointId:
    """One incarnation of a savepoint: the name that people call it by, and a token that is drawn
    once.  A name that is taken anew means another token, so that nothing which is meant for one
    incarnation, however late it comes, reaches the next.
    """

    name: str
    token: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, order=True)
class SubtaskId:
    """One parallel instance of one stage, e.g. subtask 3 of ``window_rule``."""

    stage: str
    index: int

    def __str__(self) -> str:
        return f"{self.stage}/{self.index}"
