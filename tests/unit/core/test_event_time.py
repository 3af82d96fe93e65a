"""Watermarks of sources and stages, and the partitions whose silence makes them idle.

A source's is the least over the partitions that hold it back; a stage's the least over its sources
and streams, by what was measured of an epoch's rows, or by the acks of its subtasks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.answers import Ack
from sluice.core.event_time import (
    COMPLETE,
    MAX_WATERMARK,
    MIN_WATERMARK,
    SourceClock,
    StageClock,
    combined_watermark,
    known_times,
    later_times,
    measured_by,
    source_watermark,
    trailing,
    with_activity,
)
from sluice.core.ids import SubtaskId
from sluice.core.plan import PartitionOffset, Slice, SourceCut
from tests.builders import an_ack


def a_cut(
    *partitions: str,
    sealed: tuple[str, ...] = (),
    exhausted: bool = False,
    reading: tuple[str, ...] = (),
    waiting: tuple[str, ...] = (),
    partitions_end: bool = False,
) -> SourceCut:
    return SourceCut(
        uid="events",
        position=tuple(
            PartitionOffset(
                partition=name,
                offset=1,
                records=1,
                sealed=name in sealed,
                is_waiting=name in waiting,
            )
            for name in partitions
        ),
        slices=tuple(
            Slice(partition=name, start=0, end=1, first_record=0, records=1) for name in reading
        ),
        exhausted=exhausted,
        partitions_end=partitions_end,
    )


def watermark(cut: SourceCut, known_ms: dict[str, int], **options: Any) -> int | None:
    usual = {
        "is_silent": False,
        "out_of_orderness_ms": 0,
        "drains": False,
        "has_event_time": True,
    }
    return source_watermark(cut, known_ms, **(usual | options))


def test_it_trails_the_largest_time_by_the_bound_and_one_millisecond() -> None:
    assert watermark(a_cut("a"), {"a": 10_000}) == 9_999
    assert watermark(a_cut("a"), {"a": 10_000}, out_of_orderness_ms=5_000) == 4_999


def test_the_slowest_partition_decides() -> None:
    assert watermark(a_cut("a", "b"), {"a": 10_000, "b": 300}) == 299


def test_a_partition_with_records_waiting_of_unknown_time_holds_it_back() -> None:
    assert watermark(a_cut("a", "b", waiting=("b",)), {"a": 10_000}) == MIN_WATERMARK


def test_a_partition_that_gave_no_time_and_was_read_to_its_end_holds_nothing_back() -> None:
    assert watermark(a_cut("a", "b"), {"a": 10_000}) == 9_999


def test_a_sealed_partition_holds_nothing_back() -> None:
    cut = a_cut("a", "b", sealed=("b",))

    assert known_times({}, cut, {"a": 10_000, "b": 300}) == {"a": 10_000, COMPLETE: 300}
    assert watermark(cut, {"a": 10_000, COMPLETE: 300}) == 9_999


def test_behind_sealed_partitions_rows_are_expected_after_the_latest() -> None:
    both = a_cut("a", "b", sealed=("a", "b"))

    assert known_times({"b": 300}, both, {"a": 10_000}) == {COMPLETE: 10_000}
    assert watermark(both, {COMPLETE: 10_000}) == 9_999


def test_a_source_whose_records_have_no_time_has_no_say() -> None:
    cut = a_cut("a", reading=("a",))

    assert known_times({"a": 300}, cut, {}) == {COMPLETE: 300}
    assert watermark(cut, {COMPLETE: 300}, is_silent=True) is None


def test_a_source_that_waits_has_a_say_even_if_it_is_silent() -> None:
    cut = a_cut("a", reading=("a",), waiting=("a",))

    assert watermark(cut, {COMPLETE: 300}, is_silent=True) == MIN_WATERMARK


def test_a_file_at_its_end_is_complete_until_it_grows() -> None:
    first = a_cut("a", "b", reading=("a", "b"), partitions_end=True)
    second = a_cut("a", "b", reading=("b",), partitions_end=True)
    quiet = a_cut("a", "b", partitions_end=True)

    both = known_times({}, first, {"a": 300, "b": 500})
    one = known_times(both, second, {"b": 700})
    none = known_times(one, quiet, {})
    again = known_times(none, first, {"a": 600, "b": 800})

    assert [both, one, none] == [
        {"a": 300, "b": 500},
        {"b": 700, COMPLETE: 300},
        {COMPLETE: 700},
    ]
    assert again == {"a": 600, "b": 800, COMPLETE: 700}
    assert [watermark(first, both), watermark(second, one)] == [299, 699]
    assert [watermark(quiet, none), watermark(first, again)] == [699, 599]


def test_a_file_that_waits_is_known_by_its_first_rows() -> None:
    cut = a_cut("a", "b", reading=("a",), waiting=("b",), partitions_end=True)

    known = known_times({}, cut, {"a": 900, "b": 400})

    assert known == {"a": 900, "b": 400}
    assert watermark(cut, known) == 399


def test_a_partition_that_is_gone_leaves_no_entry() -> None:
    assert known_times({"gone": 300, "a": 200}, a_cut("a"), {}) == {"a": 200, COMPLETE: 300}


def test_without_anything_read_nothing_is_promised() -> None:
    assert watermark(a_cut("a", sealed=("a",)), {}) == MIN_WATERMARK
    assert watermark(a_cut(), {}) == MIN_WATERMARK


def test_without_event_time_nothing_is_promised() -> None:
    assert watermark(a_cut("a"), {"a": 10_000}, has_event_time=False) == MIN_WATERMARK


def test_a_source_that_ended_or_is_drained_fires_everything() -> None:
    assert watermark(a_cut("a", exhausted=True), {}) == MAX_WATERMARK
    assert watermark(a_cut("a"), {}, drains=True, has_event_time=False) == MAX_WATERMARK


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**12), min_size=1),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**6)),
    st.integers(0, 10**6),
)
def test_it_never_goes_back_while_times_only_grow(
    before: dict[str, int], growth: dict[str, int], out_of_orderness_ms: int
) -> None:
    cut = a_cut("a", "b", "c", waiting=("a", "b", "c"))
    later = {name: time + growth.get(name, 0) for name, time in before.items()}

    first = watermark(cut, before, out_of_orderness_ms=out_of_orderness_ms)
    second = watermark(cut, later, out_of_orderness_ms=out_of_orderness_ms)

    assert first is not None
    assert second is not None
    assert first <= second <= max(later.values())


MINUTE_MS = 60_000
KNOWN_MS = {"a": 5_000, "b": 1_000}


def a_cut_of_two(*reading: str, **given: Any) -> SourceCut:
    """Of the partitions a and b, with records of those *reading*."""
    return a_cut("a", "b", reading=reading, **given)


def follow(cut: SourceCut, previous: SourceCut | None, now_ms: int) -> SourceCut:
    return with_activity(
        cut,
        cut.waiting,
        {} if previous is None else {entry.partition: entry for entry in previous.position},
        previous=previous,
        now_ms=now_ms,
        idle_after_ms=MINUTE_MS,
    )


def active_at_ms(cut: SourceCut) -> dict[str, int | None]:
    return {entry.partition: entry.active_at_ms for entry in cut.position}


def test_a_partition_is_idle_once_it_was_silent_for_so_long() -> None:
    first = follow(a_cut_of_two("a", "b"), None, now_ms=0)
    busy = follow(a_cut_of_two("a"), first, now_ms=MINUTE_MS - 1)
    idle = follow(a_cut_of_two("a"), busy, now_ms=MINUTE_MS)

    assert (first.idle, busy.idle, idle.idle) == (set(), set(), {"b"})
    assert active_at_ms(idle) == {"a": MINUTE_MS, "b": 0}
    assert [watermark(cut, KNOWN_MS) for cut in (first, busy, idle)] == [999, 999, 4_999]


def test_a_partition_that_speaks_again_is_waited_for_again() -> None:
    first = follow(a_cut_of_two("a"), None, now_ms=0)
    idle = follow(a_cut_of_two("a"), first, now_ms=MINUTE_MS)

    back = follow(a_cut_of_two("b"), idle, now_ms=MINUTE_MS + 1)

    assert idle.idle == {"b"}
    assert back.idle == set()


def test_a_source_all_of_whose_partitions_are_idle_has_no_watermark() -> None:
    silent = follow(a_cut_of_two(), follow(a_cut_of_two(), None, now_ms=0), now_ms=MINUTE_MS)

    assert silent.is_idle
    assert watermark(silent, KNOWN_MS) is None


@pytest.mark.parametrize("sealed", [("a",), ("b",)])
def test_a_sealed_partition_is_not_waited_for(sealed: tuple[str, ...]) -> None:
    silent = follow(
        a_cut_of_two(sealed=sealed), follow(a_cut_of_two(), None, now_ms=0), now_ms=MINUTE_MS
    )

    assert silent.is_idle


@pytest.mark.parametrize("partitions", [(), ("a", "b")], ids=["none yet", "read to their ends"])
def test_a_source_that_nothing_grows_in_is_idle_once_it_was_silent_for_so_long(
    partitions: tuple[str, ...],
) -> None:
    first = follow(a_cut(*partitions, reading=partitions, sealed=partitions), None, now_ms=0)
    waited = follow(a_cut(*partitions, sealed=partitions), first, now_ms=MINUTE_MS - 1)
    silent = follow(a_cut(*partitions, sealed=partitions), waited, now_ms=MINUTE_MS)

    known_ms = {COMPLETE: 5_000} if partitions else {}
    held_ms = 4_999 if partitions else MIN_WATERMARK
    assert [watermark(cut, known_ms) for cut in (first, waited, silent)] == [held_ms, held_ms, None]


def test_a_source_that_has_just_read_a_whole_file_is_not_idle() -> None:
    first = follow(a_cut_of_two(), None, now_ms=0)
    read = follow(a_cut_of_two("b", sealed=("b",)), first, now_ms=MINUTE_MS)

    assert not read.is_idle
    assert watermark(read, {COMPLETE: 1_000, "a": 5_000}) == 4_999


def test_a_partition_whose_records_a_cap_left_behind_is_not_idle() -> None:
    first = follow(a_cut_of_two("a", "b"), None, now_ms=0)

    capped = follow(a_cut_of_two("a", waiting=("b",)), first, now_ms=MINUTE_MS)

    assert capped.idle == set()


def test_a_partition_that_waited_was_active_then() -> None:
    capped = follow(a_cut_of_two("a", waiting=("b",)), None, now_ms=0)

    busy = follow(a_cut_of_two("a"), capped, now_ms=MINUTE_MS - 1)
    silent = follow(a_cut_of_two("a"), busy, now_ms=MINUTE_MS)

    assert (busy.idle, silent.idle) == (set(), {"b"})


def test_of_a_sealed_partition_nothing_is_kept() -> None:
    cut = follow(a_cut_of_two("a", sealed=("a",)), None, now_ms=7)

    assert active_at_ms(cut) == {"a": None, "b": 7}


def test_an_exhausted_source_is_at_its_end_and_not_idle() -> None:
    before = follow(a_cut_of_two(), None, now_ms=0)
    ended = follow(a_cut_of_two(exhausted=True, sealed=("a", "b")), before, now_ms=MINUTE_MS)

    assert not ended.is_idle
    assert watermark(ended, KNOWN_MS) == MAX_WATERMARK


def test_the_least_of_the_inputs_that_are_not_idle_counts_and_never_goes_back() -> None:
    assert combined_watermark([3, None, 7], floor=0) == 3
    assert combined_watermark([3, 7], floor=5) == 5
    assert combined_watermark([None, None], floor=5) == 5
    assert combined_watermark([], floor=MIN_WATERMARK) == MIN_WATERMARK


def a_source(uid: str = "events", *, drains: bool = False, timed: bool = True) -> SourceClock:
    return SourceClock(
        uid=uid,
        cut=replace(a_cut_of_two("a"), uid=uid),
        before_ms={f"{uid}/a": 10, f"{uid}/b": 50, "another/a": 1},
        out_of_orderness_ms=5,
        drains=drains,
        has_event_time=timed,
    )


@pytest.mark.parametrize(
    ("watermark_ms", "expected"),
    [
        (10_000, 9_000),
        (MIN_WATERMARK + 1, MIN_WATERMARK),
        (MIN_WATERMARK, MIN_WATERMARK),
        (MAX_WATERMARK, MAX_WATERMARK),
    ],
    ids=["trails", "not before all time", "nothing is promised", "the end of time"],
)
def test_assigned_event_time_trails_what_the_stage_read(watermark_ms: int, expected: int) -> None:
    assert trailing(watermark_ms, 1_000) == expected


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
    assert later_times({"a": 1, "b": 5}, {"b": 3, "c": 4}) == {"a": 1, "b": 5, "c": 4}


SOURCE = SourceClock(
    uid="rows",
    cut=replace(a_cut("a", reading=("a",)), uid="rows"),
    before_ms={},
    out_of_orderness_ms=10,
    drains=False,
    has_event_time=True,
)
OF_STREAMS = StageClock(sources=(), streams_ms=None, floor_ms=4)


def acks(*measured: tuple[dict[str, int], int | None]) -> list[Ack]:
    return [
        replace(an_ack(SubtaskId("s", index)), event_times_ms=times, watermark_ms=watermark_ms)
        for index, (times, watermark_ms) in enumerate(measured)
    ]


def test_the_latest_time_that_any_subtask_measured_counts() -> None:
    answers = acks(({"rows/b": 3, "rows/a": 5}, None), ({"rows/a": 7}, None), ({"rows/a": 6}, None))

    assert [*measured_by(answers).items()] == [("rows/a", 7), ("rows/b", 3)]
    assert StageClock(sources=(SOURCE,), streams_ms=None).behind_ms(answers) == 7 - 10 - 1


@pytest.mark.parametrize(
    ("watermarks_ms", "behind_ms", "has_no_say"),
    [((9, 7), 7, False), ((None, 7), 7, False), ((3, 9), 4, False), ((None, None), 4, True)],
)
def test_the_least_watermark_of_its_streams_counts(
    watermarks_ms: tuple[int | None, ...], behind_ms: int, *, has_no_say: bool
) -> None:
    answers = acks(*(({}, watermark_ms) for watermark_ms in watermarks_ms))

    assert OF_STREAMS.behind_ms(answers) == behind_ms
    assert OF_STREAMS.has_no_say(answers) is has_no_say


def test_a_source_that_was_silent_has_no_say_beside_a_stream_that_has() -> None:
    clock = StageClock(sources=(SOURCE,), streams_ms=None)

    assert clock.behind_ms(acks(({}, 8))) == 8
    assert clock.has_no_say(acks(({}, None)))
    assert clock.behind_ms(acks(({}, None))) == MIN_WATERMARK
