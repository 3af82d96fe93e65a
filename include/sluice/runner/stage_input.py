"""What a stage reads in one epoch: a source's slices, or segments that other stages sealed."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.core.handles import SegmentHandle
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.core.watermarks import MIN_WATERMARK
from sluice.runner.event_time import output_watermark
from sluice.runner.job import Job
from sluice.runner.lineage import Lineage, acks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInput:
    """``segments`` are in the order they were sealed: what was left in flight comes first.

    ``schema`` is their serialized Arrow schema; empty while no stage before this one has run yet.
    """

    segments: tuple[SegmentHandle, ...] = ()
    schema: bytes = b""
    watermark_ms: int = MIN_WATERMARK


def stage_input(
    job: Job, plan: CheckpointPlan, pending: PendingCheckpoint, uid: str, lineage: Lineage
) -> StageInput:
    """The input of a stage that reads another stage.

    Raises:
        NotYetAcknowledged: the barrier has not arrived: that stage still runs.
    """
    producer = job.pipeline.stages[uid].input
    before, producer_before = lineage.stage(uid), lineage.stage(producer)
    in_flight = before.in_flight if before is not None else ()
    schema = before.in_flight_schema if before is not None else b""
    ran = any(task.uid == producer for task in plan.tasks) and producer not in pending.overtaken
    if plan.task(uid).is_unaligned or not ran:
        return StageInput(
            segments=in_flight,
            schema=schema,
            watermark_ms=producer_before.watermark_ms if producer_before else MIN_WATERMARK,
        )
    acks = acks_of(job, pending)(producer)
    return StageInput(
        segments=(*in_flight, *(segment for ack in acks for segment in ack.output)),
        schema=acks[0].schema or schema,
        watermark_ms=output_watermark(job, plan, producer, acks, producer_before),
    )
