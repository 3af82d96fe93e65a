"""The watermark of a source: the least over the partitions that hold it back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.event_time import (
    COMPLETE,
    MAX_WATERMARK,
    MIN_WATERMARK,
    known_times,
    source_watermark,
)
from sluice.core.plan import PartitionOffset, Slice, SourceCut


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
            PartitionOffset(partition=name, offset=1, records=1, sealed=name in sealed)
            for name in partitions
        ),
        slices=tuple(
            Slice(partition=name, start=0, end=1, first_record=0, records=1) for name in reading
        ),
        exhausted=exhausted,
        waiting=waiting,
        partitions_end=partitions_end,
    )


def watermark(cut: SourceCut, known: dict[str, int], **given_: Any) -> int | None:
    options = {
        "is_silent": False,
        "out_of_orderness_ms": 0,
        "drains": False,
        "has_event_time": True,
    }
    return source_watermark(cut, known, **(options | given_))


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
