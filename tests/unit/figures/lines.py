"""Lines of a history and figures of a stage, as tests need them."""

from __future__ import annotations

from typing import Any

from sluice.figures.record import CheckpointStats, CheckpointStatus, StageStats

COMPLETED, FAILED = CheckpointStatus.COMPLETED, CheckpointStatus.FAILED


def a_line(
    checkpoint_id: int, status: CheckpointStatus = COMPLETED, **given: Any
) -> CheckpointStats:
    usual: dict[str, Any] = {
        "checkpoint_type": "CHECKPOINT",
        "is_savepoint": False,
        "trigger_timestamp": 1_000 * checkpoint_id,
    }
    return CheckpointStats(id=checkpoint_id, status=status, **usual | given)


def a_stage(**given: Any) -> StageStats:
    usual: dict[str, Any] = {
        "id": "count",
        "status": COMPLETED,
        "num_subtasks": 1,
        "num_acknowledged_subtasks": 1,
    }
    return StageStats(**usual | given)
