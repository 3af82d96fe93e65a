"""How far event time has come at a barrier: what the acks of the stages say about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sluice.core.acks import Ack
from sluice.core.completed import StageState
from sluice.core.plan import CheckpointPlan, SourceCut
from sluice.core.watermarks import (
    MIN_WATERMARK,
    combined_watermark,
    known_times,
    source_watermark,
)
from sluice.declaration.nodes import SourceNode
from sluice.job.job import Job
from sluice.job.positions import whole_cut


def measured_by(acks: Iterable[Ack]) -> dict[str, int]:
    """Per ``source/partition`` what the subtasks measured in their epoch."""
    seen: dict[str, int] = {}
    for ack in acks:
        for partition, at_ms in ack.event_times_ms.items():
            seen[partition] = max(at_ms, seen.get(partition, at_ms))
    return dict(sorted(seen.items()))


def latest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Per ``source/partition`` the later event time."""
    return {
        partition: max(one.get(partition, MIN_WATERMARK), other.get(partition, MIN_WATERMARK))
        for partition in sorted({*one, *other})
    }


def event_times(
    job: Job,
    plan: CheckpointPlan,
    stage: str,
    measured_ms: Mapping[str, int],
    before: StageState | None,
) -> dict[str, int]:
    """What the stage knows of the partitions of its sources behind the barrier."""
    known = {
        f"{source.uid}/{partition}": at_ms
        for source in job.pipeline.sources_of(stage)
        for partition, at_ms in _known(job, plan, source, measured_ms, before).items()
    }
    return dict(sorted(known.items()))


def output_watermark(
    job: Job, plan: CheckpointPlan, stage: str, acks: Sequence[Ack], before: StageState | None
) -> int:
    """The watermark behind a stage at this barrier, known once all its subtasks acknowledged."""
    return stage_watermark(job, plan, stage, measured_by(acks), _of_streams(acks), before)


def stage_watermark(
    job: Job,
    plan: CheckpointPlan,
    stage: str,
    measured_ms: Mapping[str, int],
    streams_ms: int | None,
    before: StageState | None,
) -> int:
    """The least over what the stage reads; *streams_ms* is that of other stages' streams, None
    when it reads none, or only such as have no say.

    It never goes back, not even when a partition appears whose rows are older.
    """
    floor = before.watermark_ms if before is not None else MIN_WATERMARK
    inputs = _inputs(job, plan, stage, measured_ms, streams_ms, before)
    return combined_watermark(inputs, floor)


def known_of_source(
    job: Job, plan: CheckpointPlan, source: SourceNode, acks: Sequence[Ack], after: StageState
) -> tuple[int | None, int | None]:
    """The source's own watermark behind its barrier, and the latest event time that is known of it;
    *after* is a stage that reads it, *acks* are its.  None where it has no say, or no time.
    """
    known = _of(source, after.event_times_ms)
    measured = _of(source, measured_by(acks))
    watermark_ms = source_watermark(
        _cut(job, plan, source.uid),
        known,
        is_silent=_is_silent(plan, source, measured),
        out_of_orderness_ms=source.out_of_orderness_ms,
        drains=plan.drains,
        has_event_time=source.event_time is not None,
    )
    return watermark_ms, max(known.values(), default=None)


def has_no_say(
    job: Job, plan: CheckpointPlan, stage: str, acks: Sequence[Ack], before: StageState | None
) -> bool:
    """Whether nothing that the stage read in this epoch says how far event time has come."""
    inputs = _inputs(job, plan, stage, measured_by(acks), _of_streams(acks), before)
    return all(watermark_ms is None for watermark_ms in inputs)


def is_idle(job: Job, plan: CheckpointPlan, producer: str) -> bool:
    """Whether a source, or everything that a stage reads, has been silent for long."""
    if producer in job.pipeline.sources:
        return _cut(job, plan, producer).is_idle
    return all(is_idle(job, plan, one) for one in job.pipeline.stages[producer].producers)


def _inputs(
    job: Job,
    plan: CheckpointPlan,
    stage: str,
    measured_ms: Mapping[str, int],
    streams_ms: int | None,
    before: StageState | None,
) -> list[int | None]:
    """None for an input that has no say."""
    sources = [
        _source_watermark(job, plan, source, measured_ms, before)
        for source in job.pipeline.sources_of(stage)
    ]
    return [streams_ms, *sources]


def _of_streams(acks: Sequence[Ack]) -> int | None:
    return min((ack.watermark_ms for ack in acks if ack.watermark_ms is not None), default=None)


def _source_watermark(
    job: Job,
    plan: CheckpointPlan,
    source: SourceNode,
    measured_ms: Mapping[str, int],
    before: StageState | None,
) -> int | None:
    return source_watermark(
        _cut(job, plan, source.uid),
        _known(job, plan, source, measured_ms, before),
        is_silent=_is_silent(plan, source, measured_ms),
        out_of_orderness_ms=source.out_of_orderness_ms,
        drains=plan.drains,
        has_event_time=source.event_time is not None,
    )


def _is_silent(plan: CheckpointPlan, source: SourceNode, measured_ms: Mapping[str, int]) -> bool:
    return bool(plan.source(source.uid).slices) and not _of(source, measured_ms)


def _known(
    job: Job,
    plan: CheckpointPlan,
    source: SourceNode,
    measured_ms: Mapping[str, int],
    before: StageState | None,
) -> dict[str, int]:
    earlier_ms = before.event_times_ms if before is not None else {}
    return known_times(
        _of(source, earlier_ms), _cut(job, plan, source.uid), _of(source, measured_ms)
    )


def _cut(job: Job, plan: CheckpointPlan, source: str) -> SourceCut:
    """With all partitions only where one in a layer may hold event time back."""
    cut = plan.source(source)
    return whole_cut(job, cut) if cut.needs_layers else cut


def _of(source: SourceNode, times_ms: Mapping[str, int]) -> dict[str, int]:
    own = f"{source.uid}/"
    return {name.removeprefix(own): at for name, at in times_ms.items() if name.startswith(own)}
