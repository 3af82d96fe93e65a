"""Watermarks: how far event time has come (Flink's BoundedOutOfOrdernessWatermarks, by epoch).

A watermark is a promise: rows at or before it will not come any more.  It moves only at barriers,
so it is part of the checkpoint, and the same input with the same barriers gives the same windows.
A partition that has been silent for long is idle and holds nothing back, as in Flink's
WatermarksWithIdleness.  No processing-time timer decides: the moments compared are those at which
checkpoints were triggered, and they are part of the checkpoint, too.

Times are per ``source/partition``, in milliseconds.  A ``StageClock`` is plain data: the driver of
a stage makes it, and whichever process has seen all rows of the epoch reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.core.answers import Ack
from sluice.core.plan import PartitionOffset, SourceCut

MIN_WATERMARK = -(2**63)
MAX_WATERMARK = 2**63 - 1
COMPLETE = ""  # Stands for all partitions that are over; no partition has this name.


def known_times(
    before: Mapping[str, int], cut: SourceCut, measured_ms: Mapping[str, int]
) -> dict[str, int]:
    """The event time behind the barrier, of each partition that may hold it back.

    *measured_ms* are this epoch's times: the largest of the records read of a partition, the least
    of a head.  Partitions that are complete, that are gone, or whose records had no time share one
    entry, COMPLETE, with the latest of their times; so the entries do not grow without end.
    """
    read = {piece.partition for piece in cut.slices}
    holding = cut.growing({*before, *measured_ms} - {COMPLETE}) - (read - measured_ms.keys())
    if cut.partitions_end:
        holding &= read | cut.waiting
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
    """The least over the partitions that hold event time back, of their ``known_times``.

    A partition holds it back if it may still give rows and its time is known.  A partition whose
    time is unknown while records of it wait holds it at MIN_WATERMARK.  Where no partition does,
    rows are expected after the latest so far.  One more millisecond is taken off, as a later row
    may carry the same time (Flink's rule).

    None when the source has no say: all its partitions are idle, or it *is_silent*, which means
    that the records of the epoch had no time.
    """
    if drains or cut.exhausted:
        return MAX_WATERMARK
    if cut.is_idle:
        return None
    if not has_event_time:
        return MIN_WATERMARK
    candidates = cut.growing({*known_ms, *cut.waiting} - {COMPLETE}) - cut.idle
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
    """The least over the inputs that are not idle (None), and never less than *floor*.

    Flink's StatusWatermarkValve: where every input is idle, event time stands still.
    """
    known = [watermark for watermark in inputs if watermark is not None]
    return max(floor, min(known)) if known else floor


def trailing(watermark_ms: int, by_ms: int) -> int:
    """A watermark for rows that may be older by *by_ms* than *watermark_ms* promises."""
    if watermark_ms in (MIN_WATERMARK, MAX_WATERMARK):
        return watermark_ms
    return max(MIN_WATERMARK, watermark_ms - by_ms)


def with_activity(
    cut: SourceCut,
    waiting: Iterable[str],
    before: Mapping[str, PartitionOffset],
    *,
    previous: SourceCut | None = None,
    now_ms: int | None = None,
    idle_after_ms: int | None = None,
) -> SourceCut:
    """*cut*, which says which partitions are *waiting*, and when it and each of them was active.

    *before* are the entries at the parent's barrier, whose cut was *previous*.  A partition is
    active in an epoch that reads records of it or leaves some behind the barrier, and in the first
    epoch that has it; a source likewise.  Nothing waits for a sealed partition, idle or not.
    """
    waits, read = set(waiting), {piece.partition for piece in cut.slices}
    before_ms = None if previous is None else previous.at_ms
    source_ms = None if previous is None or waits or read else previous.active_at_ms

    def marked(entry: PartitionOffset) -> PartitionOffset:
        is_waiting, active_at_ms = entry.partition in waits, None
        if idle_after_ms is not None and not (is_waiting or entry.sealed):
            was = None if entry.partition in read else before.get(entry.partition)
            last_ms = None if was is None else before_ms if was.is_waiting else was.active_at_ms
            active_at_ms = now_ms if last_ms is None else last_ms
        if (entry.is_waiting, entry.active_at_ms) == (is_waiting, active_at_ms):
            return entry  # ``with_layers`` finds the same object again in no time.
        return replace(entry, is_waiting=is_waiting, active_at_ms=active_at_ms)

    position = tuple(map(marked, cut.position))
    return replace(
        cut,
        position=position,
        at_ms=now_ms,
        active_at_ms=now_ms if source_ms is None else source_ms,
        idle_after_ms=idle_after_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceClock:
    """The clock of one source that a stage reads; ``before_ms`` are the parent's known times."""

    uid: str
    cut: SourceCut
    before_ms: Mapping[str, int]
    out_of_orderness_ms: int
    drains: bool
    has_event_time: bool

    def known_ms(self, measured_ms: Mapping[str, int]) -> dict[str, int]:
        """The ``known_times`` behind the barrier, per ``source/partition``."""
        known = known_times(_of(self.uid, self.before_ms), self.cut, _of(self.uid, measured_ms))
        return {f"{self.uid}/{partition}": at_ms for partition, at_ms in known.items()}

    def watermark_ms(self, measured_ms: Mapping[str, int]) -> int | None:
        """The source's own watermark; None where it has no say."""
        return self.watermark_of(self.known_ms(measured_ms), measured_ms)

    def watermark_of(
        self, known_ms: Mapping[str, int], measured_ms: Mapping[str, int]
    ) -> int | None:
        """``watermark_ms`` for a caller that has the result of ``known_ms`` already."""
        return source_watermark(
            self.cut,
            _of(self.uid, known_ms),
            is_silent=bool(self.cut.slices) and not _of(self.uid, measured_ms),
            out_of_orderness_ms=self.out_of_orderness_ms,
            drains=self.drains,
            has_event_time=self.has_event_time,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageClock:
    """The clock of a stage: the least watermark over its inputs.

    ``streams_ms`` is the watermark of the streams that it reads, None where it reads none that has
    a say.  The clock never goes back behind ``floor_ms``, not even when a partition appears whose
    rows are older.
    """

    sources: tuple[SourceClock, ...]
    streams_ms: int | None
    floor_ms: int = MIN_WATERMARK

    def inputs_ms(self, measured_ms: Mapping[str, int]) -> list[int | None]:
        """The watermark of each input; None for one that has no say."""
        return [self.streams_ms, *(source.watermark_ms(measured_ms) for source in self.sources)]

    def watermark_ms(self, measured_ms: Mapping[str, int]) -> int:
        return combined_watermark(self.inputs_ms(measured_ms), self.floor_ms)

    def behind_ms(self, acks: Sequence[Ack]) -> int:
        """The watermark behind the stage, by what its subtasks measured in their *acks*."""
        return self._with_streams_of(acks).watermark_ms(measured_by(acks))

    def has_no_say(self, acks: Sequence[Ack]) -> bool:
        """Whether no input of the stage, by its *acks*, has a watermark."""
        inputs_ms = self._with_streams_of(acks).inputs_ms(measured_by(acks))
        return all(watermark_ms is None for watermark_ms in inputs_ms)

    def _with_streams_of(self, acks: Sequence[Ack]) -> StageClock:
        streams_ms = (ack.watermark_ms for ack in acks if ack.watermark_ms is not None)
        return replace(self, streams_ms=min(streams_ms, default=None))


def measured_by(acks: Iterable[Ack]) -> dict[str, int]:
    """By ``source/partition`` the event time that the subtasks measured in their epoch."""
    measured: dict[str, int] = {}
    for ack in acks:
        for partition, at_ms in ack.event_times_ms.items():
            measured[partition] = max(at_ms, measured.get(partition, at_ms))
    return dict(sorted(measured.items()))


def later_times(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """By partition the later event time."""
    return {
        partition: max(one.get(partition, MIN_WATERMARK), other.get(partition, MIN_WATERMARK))
        for partition in sorted({*one, *other})
    }


def _of(source: str, times_ms: Mapping[str, int]) -> dict[str, int]:
    """The times of one source's partitions, by partition."""
    own = f"{source}/"
    return {name.removeprefix(own): at for name, at in times_ms.items() if name.startswith(own)}
