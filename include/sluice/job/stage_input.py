"""The input of a stage in one epoch: the segments that other stages sealed for it, and whether it
may get them chained, in the Spark job of the stage that seals them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.core.completed import StageState
from sluice.core.configuration import JobConfiguration
from sluice.core.event_time import MIN_WATERMARK, combined_watermark, trailing
from sluice.core.handles import SegmentHandle
from sluice.core.plan import CheckpointPlan
from sluice.core.state import CoordinatorState
from sluice.declaration.nodes import StageNode
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.answers import answer_of, still_pending
from sluice.job.job import Job
from sluice.job.lineage import Lineage, is_idle, schema_before, watermark_after_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInput:
    """``segments`` are in the order in which they were sealed: what is in flight comes first.

    ``schema`` is their serialized Arrow schema; empty as long as no stage before this one has run.
    ``watermark_ms``, its producer's less the reader's bound, is None for a stream that does not
    hold event time back: it is idle, or has no event time.  With ``has_waited`` some of its rows
    are of earlier epochs.  With ``is_chained``
    the stage got the stream in the Spark job of the stage before it.  ``driver`` is the one whose
    answer says what was sealed in this epoch; None where nothing of this epoch is read.
    """

    segments: tuple[SegmentHandle, ...]
    schema: bytes
    watermark_ms: int | None
    has_waited: bool = False
    is_chained: bool = False
    driver: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput:
    """The streams of a stage by producer; none for one that reads sources alone."""

    streams: Mapping[str, StreamInput] = field(default_factory=dict[str, StreamInput])

    @property
    def is_known(self) -> bool:
        """Whether the columns of every stream are."""
        return all(stream.schema for stream in self.streams.values())

    @property
    def is_chained(self) -> bool:
        """Whether the stage has already run, chained to the one that it reads."""
        return any(stream.is_chained for stream in self.streams.values())

    @property
    def drivers(self) -> dict[str, str]:
        """By stage that is read in this epoch, the driver whose answer it is."""
        streams = self.streams.items()
        return {producer: one.driver for producer, one in streams if one.driver is not None}

    def watermark_ms(self, before: StageState | None) -> int | None:
        """The least watermark of the streams; None if there is no stream, or none that holds event
        time back.  *before* is the stage as the parent left it.
        """
        watermarks = (stream.watermark_ms for stream in self.streams.values())
        known = [watermark_ms for watermark_ms in watermarks if watermark_ms is not None]
        if not known:
            return None
        floor = before.watermark_ms if before is not None else MIN_WATERMARK
        return combined_watermark(known, floor)


def stage_input(
    job: Job, state: CoordinatorState, plan: CheckpointPlan, uid: str, lineage: Lineage
) -> StageInput:
    """The streams that a stage reads in *plan*, whose checkpoint is pending in *state*.

    Raises:
        NotYetAcknowledged: a barrier has not arrived: a stage before this one still runs.
        FencedError: the checkpoint is not pending.
    """
    streams = {
        producer: _stream(job, state, plan, uid, producer, lineage)
        for producer in job.pipeline.upstream_of(uid)
    }
    return StageInput(streams=streams)


def _stream(
    job: Job,
    state: CoordinatorState,
    plan: CheckpointPlan,
    uid: str,
    producer: str,
    lineage: Lineage,
) -> StreamInput:
    before, producer_before = lineage.stage(uid), lineage.stage(producer)
    in_flight = before.in_flight_of(producer) if before is not None else None
    segments = in_flight.segments if in_flight is not None else ()
    schema = schema_before(before, producer_before, producer)
    if producer in plan.finished and not schema:
        # Without its columns no row of the other inputs could be read.
        raise ConfigurationError(
            f"stage {uid!r} reads {producer!r}, which has finished, and the checkpoint does not "
            "have its columns, as no stage has read it beside other inputs before; restore a "
            f"checkpoint from before {producer!r} finished"
        )
    bound_ms = job.pipeline.stages[uid].out_of_orderness_ms(producer)
    overtaken = still_pending(state, plan.checkpoint_id).overtaken
    ran = any(task.uid == producer for task in plan.tasks) and producer not in overtaken
    is_chained, driver = False, None
    if plan.task(uid).is_unaligned or not ran:
        # What it reads came before the barrier: sources that are idle since then were not yet when
        # it was sent, and its event time comes first (Flink sends WatermarkStatus.IDLE behind it).
        if producer_before is None:
            watermark_ms, no_say = MIN_WATERMARK, is_idle(job, plan, producer)
        else:
            watermark_ms, no_say = producer_before.watermark_ms, producer_before.has_no_say
    else:
        answer = answer_of(job, state, plan.checkpoint_id, producer)
        acks, driver = [*answer.acks], answer.driver
        segments = (*segments, *(segment for ack in acks for segment in ack.output))
        schema = acks[0].schema or schema
        is_chained = any(ack.is_chained for ack in acks)
        watermark_ms, no_say, _ = watermark_after_stage(job, plan, producer, acks, producer_before)
    return StreamInput(
        segments=segments,
        schema=schema,
        watermark_ms=None if no_say else trailing(watermark_ms, bound_ms),
        has_waited=in_flight is not None and bool(in_flight.segments),
        is_chained=is_chained,
        driver=driver,
    )


def chained_behind(
    pipeline: Pipeline,
    configuration: JobConfiguration,
    plan: CheckpointPlan,
    uid: str,
    lineage: Lineage,
) -> StageNode | None:
    """The only stage that reads the stream of *uid*, if it reads nothing else and may be chained.

    A stage is not chained with concurrent checkpoints (the stage before it may already work on the
    next one), if it may be overtaken, or if it has rows in flight.  The driver decides whether
    Python can hash and cut the rows between the two stages (``spark.chaining``).
    """
    consumers = pipeline.consumers_of(uid)
    if len(consumers) != 1 or configuration.max_concurrent > 1:
        return None
    (node,) = consumers
    if node.producers != (uid,) or not node.is_stateful:
        return None
    is_chained = pipeline.stages[uid].chained and node.chained
    return node if is_chained and _waits(plan, node.uid, lineage) else None


def _waits(plan: CheckpointPlan, uid: str, lineage: Lineage) -> bool:
    """Whether the stage waits for the one that it reads, and reads the rows of this epoch alone."""
    task = next((task for task in plan.tasks if task.uid == uid), None)
    if task is None or task.is_unaligned or task.may_be_overtaken:
        return False
    before = lineage.stage(uid)
    return before is None or not before.in_flight_segments
