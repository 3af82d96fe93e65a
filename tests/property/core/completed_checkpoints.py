"""Completed checkpoints and their metadata, of which a test names what matters to it."""

from __future__ import annotations

from typing import Any

from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint, StageState
from sluice.core.configuration import CheckpointType
from sluice.core.ids import CheckpointId, Generation


def a_completed(
    checkpoint_id: int, type_: CheckpointType = CheckpointType.CHECKPOINT, **given: Any
) -> CompletedCheckpoint:
    usual: dict[str, Any] = {
        "generation": Generation(1),
        "parent": None,
        "triggered_at_ms": 0,
        "completed_at_ms": 0,
        "drains": False,
        "records": 0,
        "checkpointed_bytes": 0,
        "full_bytes": 0,
    }
    return CompletedCheckpoint(
        checkpoint_id=CheckpointId(checkpoint_id), type=type_, **usual | given
    )


def a_metadata(checkpoint_id: int = 1, *stages: StageState, **given: Any) -> CheckpointMetadata:
    usual: dict[str, Any] = {
        "pipeline": "auctions",
        "life": "life-1",
        "parent": None,
        "generation": Generation(1),
        "type": CheckpointType.CHECKPOINT,
        "triggered_at_ms": 0,
        "drains": False,
        "sources": (),
        "committables": (),
    }
    return CheckpointMetadata(
        checkpoint_id=CheckpointId(checkpoint_id), stages=stages, **usual | given
    )
