"""The clock of a stage: sources and streams together, by what was measured of an epoch."""

from __future__ import annotations

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK, SourceClock, StageClock, latest
from sluice.core.plan import PartitionOffset, Slice, SourceCut


def a_source(uid: str = "events", *, drains: bool = False, timed: bool = True) -> SourceClock:
    cut = SourceCut(
        uid=uid,
        position=tuple(PartitionOffset(partition=name, offset=1, records=1) for name in ("a", "b")),
        slices=(Slice(partition="a", start=0, end=1, first_record=0, records=1),),
    )
    return SourceClock(
        uid=uid,
        cut=cut,
        before_ms={f"{uid}/a": 10, f"{uid}/b": 50, "another/a": 1},
        out_of_orderness_ms=5,
        drains=drains,
        has_event_time=timed,
    )


def test_what_is_measured_counts_beside_what_was_known() -> None:
    source = a_source()

    known = source.known_ms({"events/a": 70, "another/b": 2})

    assert known == {"events/a": 70, "events/b": 50}
    assert source.watermark_ms({"events/a": 70}) == 50 - 5 - 1
    assert source.watermark_of(known, {"events/a": 70}) == 50 - 5 - 1


def test_a_source_without_a_time_holds_its_stage_back() -> None:
    assert a_source(timed=False).watermark_ms({}) == MIN_WATERMARK


def test_a_stage_goes_by_the_least_of_its_inputs() -> None:
    clock = StageClock(sources=(a_source(), a_source("clicks")), streams_ms=30)

    assert clock.inputs_ms({"events/a": 70, "clicks/a": 20}) == [30, 44, 14]
    assert clock.watermark_ms({"events/a": 70, "clicks/a": 20}) == 14


def test_a_clock_never_goes_back() -> None:
    clock = StageClock(sources=(a_source(),), streams_ms=None, floor_ms=60)

    assert clock.watermark_ms({"events/a": 70}) == 60


def test_a_drained_stage_is_at_the_end_of_time() -> None:
    clock = StageClock(sources=(a_source(drains=True),), streams_ms=None)

    assert clock.watermark_ms({}) == MAX_WATERMARK


def test_the_later_time_of_a_partition_counts() -> None:
    assert latest({"a": 1, "b": 5}, {"b": 3, "c": 4}) == {"a": 1, "b": 5, "c": 4}
