"""What a pipeline tells other DAGs: an event per completed checkpoint, and one per table with it.

    sluice://{pipeline}/checkpoints        extra: checkpoint_id, records, bytes, watermark
    sluice://{pipeline}/tables/{sink}      extra: checkpoint_id, rows, bytes, watermark

An event follows the commit, so who is scheduled on one reads exactly-once epochs.  It may come
twice (a task that died after its commit runs again): the id says so.  Losing one loses nothing, for
the next names the newest id.  A table's event comes with every epoch, without rows too, since its
watermark may have moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from airflow.sdk import Asset

from sluice.core.watermarks import MAX_WATERMARK, MIN_WATERMARK

if TYPE_CHECKING:
    from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
    from sluice.pipeline import Pipeline

Extra: TypeAlias = dict[str, int | str | None]


def checkpoints_asset(pipeline: str) -> Asset:
    return Asset(f"sluice://{pipeline}/checkpoints")


def table_asset(pipeline: str, sink: str) -> Asset:
    return Asset(f"sluice://{pipeline}/tables/{sink}")


def assets_of(pipeline: Pipeline) -> list[Asset]:
    return [
        checkpoints_asset(pipeline.uid),
        *(table_asset(pipeline.uid, sink) for sink in pipeline.sinks),
    ]


def events_of(
    pipeline: Pipeline, completed: CompletedCheckpoint, metadata: CheckpointMetadata
) -> Mapping[Asset, Extra]:
    """The ``extra`` of every asset for one committed checkpoint."""
    watermarks = {stage.uid: stage.watermark_ms for stage in metadata.stages}
    events: dict[Asset, Extra] = {
        checkpoints_asset(pipeline.uid): {
            "checkpoint_id": completed.checkpoint_id,
            "records": completed.records,
            "bytes": completed.checkpointed_bytes,
            "watermark": _shown(min(filter(_is_known, watermarks.values()), default=None)),
        }
    }
    for sink in pipeline.sinks.values():
        staged = [c for c in metadata.committables if c.sink == sink.uid]
        events[table_asset(pipeline.uid, sink.uid)] = {
            "checkpoint_id": completed.checkpoint_id,
            "rows": sum(c.rows for c in staged),
            "bytes": sum(c.size_bytes for c in staged),
            "watermark": _shown(watermarks.get(sink.input)),
        }
    return events


def _shown(watermark_ms: int | None) -> str | None:
    """ISO 8601 in UTC; None before there is one, "end" once the input has ended."""
    if watermark_ms is None or not _is_known(watermark_ms):
        return None
    if watermark_ms == MAX_WATERMARK:
        return "end"
    return datetime.fromtimestamp(watermark_ms / 1000, UTC).isoformat()


def _is_known(watermark_ms: int) -> bool:
    """A stage without event time has none; it holds nobody back."""
    return watermark_ms != MIN_WATERMARK
