"""The names of things: checkpoints, generations, subtasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

CheckpointId = NewType("CheckpointId", int)
"""Starts at 1, grows by 1 per attempt, is never reused (Flink's CheckpointIDCounter)."""

FIRST_CHECKPOINT_ID = CheckpointId(1)

Generation = NewType("Generation", int)
"""The fencing token of a job: whoever holds a lower one than the journal's can do nothing."""

NO_GENERATION = Generation(0)


@dataclass(frozen=True, slots=True, order=True)
class SubtaskId:
    """One parallel instance of one stage, e.g. subtask 3 of ``window_rule``."""

    stage: str
    index: int

    def __str__(self) -> str:
        return f"{self.stage}/{self.index}"
