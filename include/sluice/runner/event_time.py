"""How far event time has come at a barrier: what the acks of the stages say about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.core.acks import Ack
from sluice.core.completed import StageState
from sluice.core.plan import CheckpointPlan
from sluice.core.watermarks import MIN_WATERMARK, combined_watermark, source_watermark
from sluice.nodes import SourceNode
from sluice.runner.job import Job


def event_times(acks: Sequence[Ack], before: StageState | None) -> dict[str, int]:
    """The largest event time ever seen per source and partition, up to this epoch."""
    seen = dict(before.event_times_ms) if before is not None else {}
    for ack in acks:
        seen = latest(seen, ack.event_times_ms)
    return seen


def latest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Per ``source/partition`` the later event time."""
    return {
        partition: max(one.get(partition, MIN_WATERMARK), other.get(partition, MIN_WATERMARK))
        for partition in sorted({*one, *other})
    }


def output_watermark(
    job: Job, plan: CheckpointPlan, stage: str, acks: Sequence[Ack], before: StageState | None
) -> int:
    """The watermark behind a stage at this barrier, known once all its subtasks acknowledged."""
    streams = [ack.watermark_ms for ack in acks if ack.watermark_ms is not None]
    return stage_watermark(
        job, plan, stage, event_times(acks, before), min(streams, default=None), before
    )


def stage_watermark(
    job: Job,
    plan: CheckpointPlan,
    stage: str,
    event_times_ms: Mapping[str, int],
    streams_ms: int | None,
    before: StageState | None,
) -> int:
    """The least over what the stage reads; *streams_ms* is that of other stages' streams, None
    when it reads none, or only idle ones.

    It never goes back, not even when a partition appears whose rows are older.
    """
    floor = before.watermark_ms if before is not None else MIN_WATERMARK
    sources = [
        _source_watermark(plan, source, event_times_ms) for source in job.pipeline.sources_of(stage)
    ]
    return combined_watermark([streams_ms, *sources], floor)


def is_idle(job: Job, plan: CheckpointPlan, producer: str) -> bool:
    """Whether a source, or everything that a stage reads, has been silent for long."""
    if producer in job.pipeline.sources:
        return plan.source(producer).is_idle
    return all(is_idle(job, plan, one) for one in job.pipeline.stages[producer].producers)


def _source_watermark(
    plan: CheckpointPlan, source: SourceNode, event_times_ms: Mapping[str, int]
) -> int | None:
    own = f"{source.uid}/"
    return source_watermark(
        plan.source(source.uid),
        {name.removeprefix(own): at for name, at in event_times_ms.items() if name.startswith(own)},
        out_of_orderness_ms=source.out_of_orderness_ms,
        drains=plan.drains,
        has_event_time=source.event_time is not None,
    )
