"""``StageClock``: how far event time has come in a stage, by what was measured of an epoch's rows.

Times are per ``source/partition``, in milliseconds.  A clock is plain data: the driver of a stage
makes it, and whichever process has seen all rows of the epoch reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.core.acks import Ack
from sluice.core.plan import SourceCut
from sluice.core.watermarks import (
    MIN_WATERMARK,
    combined_watermark,
    known_times,
    source_watermark,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceClock:
    """The clock of one source that a stage reads; *before_ms* is what was known of it before."""

    uid: str
    cut: SourceCut
    before_ms: Mapping[str, int]
    out_of_orderness_ms: int
    drains: bool
    has_event_time: bool

    def known_ms(self, measured_ms: Mapping[str, int]) -> dict[str, int]:
        """Per ``source/partition`` what is known behind the barrier."""
        known = known_times(_of(self.uid, self.before_ms), self.cut, _of(self.uid, measured_ms))
        return {f"{self.uid}/{partition}": at_ms for partition, at_ms in known.items()}

    def watermark_ms(self, measured_ms: Mapping[str, int]) -> int | None:
        """The source's own watermark; None where it has no say."""
        return self.watermark_of(self.known_ms(measured_ms), measured_ms)

    def watermark_of(
        self, known_ms: Mapping[str, int], measured_ms: Mapping[str, int]
    ) -> int | None:
        """``watermark_ms`` where it is known already what ``known_ms`` would say."""
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
    """The clock of a stage: the least over what it reads.

    ``streams_ms`` is that of other stages' streams, None when it reads none, or only such as have
    no say.  It never goes back behind ``floor_ms``, not even when a partition appears whose rows
    are older.
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
        """The watermark behind the stage, whose *acks* say what it read."""
        return self._with_streams_of(acks).watermark_ms(measured_by(acks))

    def has_no_say(self, acks: Sequence[Ack]) -> bool:
        """Whether nothing that the stage read, by its *acks*, says how far event time has come."""
        inputs_ms = self._with_streams_of(acks).inputs_ms(measured_by(acks))
        return all(watermark_ms is None for watermark_ms in inputs_ms)

    def _with_streams_of(self, acks: Sequence[Ack]) -> StageClock:
        streams_ms = (ack.watermark_ms for ack in acks if ack.watermark_ms is not None)
        return replace(self, streams_ms=min(streams_ms, default=None))


def measured_by(acks: Iterable[Ack]) -> dict[str, int]:
    """Per ``source/partition`` what the subtasks measured in their epoch."""
    seen: dict[str, int] = {}
    for ack in acks:
        for partition, at_ms in ack.event_times_ms.items():
            seen[partition] = max(at_ms, seen.get(partition, at_ms))
    return dict(sorted(seen.items()))


def latest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Per partition the later event time."""
    return {
        partition: max(one.get(partition, MIN_WATERMARK), other.get(partition, MIN_WATERMARK))
        for partition in sorted({*one, *other})
    }


def _of(source: str, times_ms: Mapping[str, int]) -> dict[str, int]:
    own = f"{source}/"
    return {name.removeprefix(own): at for name, at in times_ms.items() if name.startswith(own)}
