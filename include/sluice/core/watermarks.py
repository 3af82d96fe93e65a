"""Watermarks: how far event time has come (Flink's BoundedOutOfOrdernessWatermarks, by epoch).

A watermark is a promise: rows at or before it will not come any more.  It moves only at barriers,
so it is part of the checkpoint and the same input with the same barriers gives the same windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.core.plan import SourceCut

MIN_WATERMARK = -(2**63)
MAX_WATERMARK = 2**63 - 1
COMPLETE = ""  # No partition's name.


def known_times(
    before: Mapping[str, int], cut: SourceCut, measured_ms: Mapping[str, int]
) -> dict[str, int]:
    """How far event time has come behind the barrier, in each partition that may hold it back.

    *measured_ms* are this epoch's times: the largest of what was read of a partition, the least of
    a head.  Of partitions that are complete, that are gone, or whose records had no time, only the
    latest is kept, under COMPLETE: so there is no entry for every partition that ever was.
    """
    read = {piece.partition for piece in cut.slices}
    holding = cut.growing({*before, *measured_ms} - {COMPLETE}) - (read - measured_ms.keys())
    if cut.partitions_end:
        holding &= read | set(cut.waiting)
    known: dict[str, int] = {}
    for times_ms in (before, measured_ms):
        for partition, at_ms in times_ms.items():
            name = partition if partition in holding else COMPLETE
            known[name] = max(at_ms, known.get(name, at_ms))
    return known


def source_watermark(
    cut: SourceCut,
    known_ms: Mapping[str, int],
    *,
    is_silent: bool,
    out_of_orderness_ms: int,
    drains: bool,
    has_event_time: bool,
) -> int | None:
    """The least over the partitions that hold event time back; *known_ms* as ``known_times`` says.

    Those are the ones that may still give rows and whose time is known, and those that have records
    waiting and whose time is not: they hold it where it is.  Where there is none, rows are expected
    after the latest so far.  One more millisecond is taken off, as a later row may carry the same
    time (Flink's rule).

    None when the source has no say: all its partitions are idle, or it *is_silent*, which means
    that the records of the epoch had no time.
    """
    if drains or cut.exhausted:
        return MAX_WATERMARK
    if cut.is_idle:
        return None
    if not has_event_time:
        return MIN_WATERMARK
    candidates = cut.growing({*known_ms, *cut.waiting} - {COMPLETE}) - set(cut.idle)
    holding = [known_ms.get(partition) for partition in candidates]
    if None in holding:
        return MIN_WATERMARK
    if is_silent and not holding:
        return None
    at_ms = min(
        (at_ms for at_ms in holding if at_ms is not None),
        default=max(known_ms.values(), default=None),
    )
    return MIN_WATERMARK if at_ms is None else at_ms - out_of_orderness_ms - 1


def combined_watermark(inputs: Iterable[int | None], floor: int) -> int:
    """The least over the inputs that are not idle (None); it never goes back behind *floor*.

    Flink's StatusWatermarkValve: where every input is idle, event time stands still.
    """
    known = [watermark for watermark in inputs if watermark is not None]
    return max(floor, min(known)) if known else floor
