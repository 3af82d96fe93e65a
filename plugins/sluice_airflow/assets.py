"""Asset events for other DAGs: one per completed checkpoint, and one per table of it.

    sluice://{pipeline}/checkpoints        extra: checkpoint_id, records, bytes, watermark
    sluice://{pipeline}/tables/{sink}      extra: checkpoint_id, rows, bytes, watermark

An event follows the commit, so a DAG that is scheduled by it reads exactly-once epochs.  An event
may be repeated, with the same id, if a task died after its commit.  A lost event does no harm, as
the next one names the newest id.  A table has an event for every epoch, also without rows, since
its watermark may have moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

from airflow.sdk import Asset

from sluice.core.watermarks import MAX_WATERMARK, MIN_WATERMARK

if TYPE_CHECKING:
    from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
    from sluice.declaration.pipeline import Pipeline

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
    """Whether a stage has event time; one without does not hold the watermark back."""
    return watermark_ms != MIN_WATERMARK
