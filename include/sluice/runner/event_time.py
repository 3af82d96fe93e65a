"""What the acks of a stage say about event time."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.core.acks import Ack
from sluice.core.completed import StageState
from sluice.core.plan import CheckpointPlan
from sluice.core.watermarks import MIN_WATERMARK, source_watermark
from sluice.runner.job import Job


def event_times(acks: Sequence[Ack], before: StageState | None) -> dict[str, int]:
    """The largest event time ever seen per source partition, up to this epoch."""
    seen = dict(before.event_times_ms) if before is not None else {}
    for ack in acks:
        for partition, event_time_ms in ack.event_times_ms.items():
            seen[partition] = max(event_time_ms, seen.get(partition, event_time_ms))
    return seen


def output_watermark(
    job: Job, plan: CheckpointPlan, stage: str, acks: Sequence[Ack], before: StageState | None
) -> int:
    """The watermark behind a stage at this barrier, known once all its subtasks acknowledged.

    It never goes back, not even when a partition appears whose rows are older.
    """
    floor = before.watermark_ms if before is not None else MIN_WATERMARK
    source = job.pipeline.source_of(stage)
    if source is None:
        return max(floor, min(_known(ack) for ack in acks))
    reached = source_watermark(
        plan.source(source.uid),
        event_times(acks, before),
        out_of_orderness_ms=source.out_of_orderness_ms,
        drains=plan.drains,
        has_event_time=source.event_time is not None,
    )
    return max(floor, reached)


def _known(ack: Ack) -> int:
    assert ack.watermark_ms is not None, f"{ack.subtask} reads a stream, so it was told a watermark"
    return ack.watermark_ms
