"""How far event time has come at a barrier: what the acks of the stages say about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.core.acks import Ack
from sluice.core.completed import StageState
from sluice.core.plan import CheckpointPlan, SourceCut
from sluice.core.stage_clock import SourceClock, StageClock, measured_by
from sluice.core.watermarks import MIN_WATERMARK
from sluice.declaration.nodes import SourceNode
from sluice.job.job import Job
from sluice.job.positions import whole_cut


def stage_clock(
    job: Job,
    plan: CheckpointPlan,
    stage: str,
    streams_ms: int | None,
    before: StageState | None,
) -> StageClock:
    """The clock of a stage at this barrier; *streams_ms* is the watermark of the streams it reads,
    None when it reads none, or only such as have no say.
    """
    return StageClock(
        sources=tuple(
            _source_clock(job, plan, source, before.event_times_ms if before is not None else {})
            for source in job.pipeline.sources_of(stage)
        ),
        streams_ms=streams_ms,
        floor_ms=before.watermark_ms if before is not None else MIN_WATERMARK,
    )


def behind_stage(
    job: Job, plan: CheckpointPlan, stage: str, acks: Sequence[Ack], before: StageState | None
) -> tuple[int, bool, dict[str, int]]:
    """The watermark behind a stage at this barrier, known once all its subtasks acknowledged;
    whether nothing that it read in this epoch says how far event time has come; and what it knows
    of the partitions of its sources.
    """
    clock = stage_clock(job, plan, stage, None, before)
    measured_ms = measured_by(acks)
    known = {
        name: at_ms
        for source in clock.sources
        for name, at_ms in source.known_ms(measured_ms).items()
    }
    return clock.behind_ms(acks), clock.has_no_say(acks), dict(sorted(known.items()))


def known_of_source(
    job: Job, plan: CheckpointPlan, source: SourceNode, acks: Sequence[Ack], after: StageState
) -> tuple[int | None, int | None]:
    """The source's own watermark behind its barrier, and the latest event time that is known of it;
    *after* is a stage that reads it, *acks* are its.  None where it has no say, or no time.
    """
    clock = _source_clock(job, plan, source, {})
    own = f"{source.uid}/"
    known = [at_ms for name, at_ms in after.event_times_ms.items() if name.startswith(own)]
    watermark_ms = clock.watermark_of(after.event_times_ms, measured_by(acks))
    return watermark_ms, max(known, default=None)


def is_idle(job: Job, plan: CheckpointPlan, producer: str) -> bool:
    """Whether a source, or everything that a stage reads, has been silent for long."""
    if producer in job.pipeline.sources:
        return _cut(job, plan, producer).is_idle
    return all(is_idle(job, plan, one) for one in job.pipeline.stages[producer].producers)


def _source_clock(
    job: Job, plan: CheckpointPlan, source: SourceNode, before_ms: Mapping[str, int]
) -> SourceClock:
    return SourceClock(
        uid=source.uid,
        cut=_cut(job, plan, source.uid),
        before_ms=before_ms,
        out_of_orderness_ms=source.out_of_orderness_ms,
        drains=plan.drains,
        has_event_time=source.event_time is not None,
    )


def _cut(job: Job, plan: CheckpointPlan, source: str) -> SourceCut:
    """With all partitions only where one in a layer may hold event time back."""
    cut = plan.source(source)
    return whole_cut(job, cut) if cut.needs_layers else cut
