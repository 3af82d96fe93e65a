"""Event times that come with the rows: every subtask computes the same watermark of them."""

from __future__ import annotations

import polars as pl

from sluice.core.event_time import SourceClock, StageClock
from sluice.core.plan import PartitionOffset, Slice, SourceCut
from sluice.exchange.reading import CarriedClock, decisive_times, times_frame, times_of
from sluice.operators.operator import EpochTime

CUT = SourceCut(
    uid="events",
    position=tuple(PartitionOffset(partition=name, offset=1, records=1) for name in ("a", "b")),
    slices=(Slice(partition="a", start=0, end=1, first_record=0, records=1),),
    waiting=("b",),
    heads=(Slice(partition="b", start=0, end=1, first_record=0, records=1),),
)
SOURCE = SourceClock(
    uid="events",
    cut=CUT,
    before_ms={},
    out_of_orderness_ms=0,
    drains=False,
    has_event_time=True,
)
CLOCK = CarriedClock(
    stage=StageClock(sources=(SOURCE,), streams_ms=None),
    sources={0: "events", 1: "events"},
    heads={0: frozenset({"b"}), 1: frozenset({"b"})},
)


def test_times_of_several_readers_are_put_together() -> None:
    one, other = {"a": (3, 9), "b": (7, 8)}, {"a": (1, 5)}

    together = times_of(pl.concat([times_frame(one), times_frame(other)]))

    assert together == {"a": (1, 9), "b": (7, 8)}
    assert decisive_times(together, frozenset({"b"})) == {"a": 9, "b": 7}


def test_the_latest_of_two_inputs_of_one_source_counts() -> None:
    seen = {0: times_frame({"a": (1, 9), "b": (4, 8)}), 1: times_frame({"a": (2, 6)})}

    measured = CLOCK.measured_ms(seen)

    assert measured == {"events/a": 9, "events/b": 4}
    time = CLOCK.read(EpochTime(checkpoint_id=7, processing_time_ms=5), measured)
    assert time == EpochTime(checkpoint_id=7, processing_time_ms=5, watermark_ms=3)


def test_a_clock_stands_still_where_no_row_came() -> None:
    assert CLOCK.read(EpochTime(), CLOCK.measured_ms({})) == EpochTime()
