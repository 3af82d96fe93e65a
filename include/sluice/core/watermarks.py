"""How far event time has come (Flink's BoundedOutOfOrdernessWatermarks, in epochs).

A watermark is a promise: rows at or before it will not come any more.  It moves only at barriers,
so it is part of the checkpoint and the same input with the same barriers gives the same windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.core.plan import SourceCut

MIN_WATERMARK = -(2**63)
MAX_WATERMARK = 2**63 - 1


def source_watermark(
    cut: SourceCut,
    event_times_ms: Mapping[str, int],
    *,
    out_of_orderness_ms: int,
    drains: bool,
    has_event_time: bool,
) -> int | None:
    """The least over the partitions that may still grow; a partition not yet read holds it back.

    One more millisecond is taken off, as a later row may carry the same time (Flink's rule).  Idle
    partitions have no say; None when all are idle, so that the source has none.  Where all that was
    read is sealed and more may come, as with files, rows are expected after the latest so far.
    """
    if drains or cut.exhausted:
        return MAX_WATERMARK
    if cut.is_idle:
        return None
    open_partitions = [
        part.partition
        for part in cut.position
        if not part.sealed and part.partition not in cut.idle
    ]
    if not has_event_time:
        return MIN_WATERMARK
    if not open_partitions:
        latest_ms = max(event_times_ms.values(), default=None)
        return MIN_WATERMARK if latest_ms is None else latest_ms - out_of_orderness_ms - 1
    return min(
        event_times_ms[partition] - out_of_orderness_ms - 1
        if partition in event_times_ms
        else MIN_WATERMARK
        for partition in open_partitions
    )


def combined_watermark(inputs: Iterable[int | None], floor: int) -> int:
    """The least over the inputs that are not idle (None); it never goes back behind *floor*.

    Flink's StatusWatermarkValve: where every input is idle, event time stands still.
    """
    known = [watermark for watermark in inputs if watermark is not None]
    return max(floor, min(known)) if known else floor
