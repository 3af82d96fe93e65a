"""How far event time has come (Flink's BoundedOutOfOrdernessWatermarks, in epochs).

A watermark is a promise: rows at or before it will not come any more.  It moves only at barriers,
so it is part of the checkpoint and the same input with the same barriers gives the same windows.
"""

from __future__ import annotations

from collections.abc import Mapping

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
) -> int:
    """The least over the partitions that may still grow; a partition not yet read holds it back.

    One more millisecond is taken off, as a later row may carry the same time (Flink's rule).
    """
    if drains or cut.exhausted:
        return MAX_WATERMARK
    open_partitions = [part.partition for part in cut.position if not part.sealed]
    if not has_event_time or not open_partitions:
        return MIN_WATERMARK
    return min(
        event_times_ms[partition] - out_of_orderness_ms - 1
        if partition in event_times_ms
        else MIN_WATERMARK
        for partition in open_partitions
    )
