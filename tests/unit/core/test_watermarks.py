"""The watermark of a source: the least over the partitions that may still grow."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.plan import PartitionOffset, SourceCut
from sluice.core.watermarks import MAX_WATERMARK, MIN_WATERMARK, source_watermark


def a_cut(*partitions: str, sealed: tuple[str, ...] = (), exhausted: bool = False) -> SourceCut:
    return SourceCut(
        uid="events",
        position=tuple(
            PartitionOffset(partition=name, offset=1, records=1, sealed=name in sealed)
            for name in partitions
        ),
        exhausted=exhausted,
    )


def watermark(cut: SourceCut, seen: dict[str, int], **given_: Any) -> int:
    options = {"out_of_orderness_ms": 0, "drains": False, "has_event_time": True} | given_
    return source_watermark(cut, seen, **options)


def test_it_trails_the_largest_time_by_the_bound_and_one_millisecond() -> None:
    assert watermark(a_cut("a"), {"a": 10_000}) == 9_999
    assert watermark(a_cut("a"), {"a": 10_000}, out_of_orderness_ms=5_000) == 4_999


def test_the_slowest_partition_decides() -> None:
    assert watermark(a_cut("a", "b"), {"a": 10_000, "b": 300}) == 299


def test_a_partition_not_yet_read_holds_it_back() -> None:
    assert watermark(a_cut("a", "b"), {"a": 10_000}) == MIN_WATERMARK


def test_a_sealed_partition_holds_nothing_back() -> None:
    assert watermark(a_cut("a", "b", sealed=("b",)), {"a": 10_000, "b": 300}) == 9_999


def test_behind_sealed_partitions_rows_are_expected_after_the_latest() -> None:
    both = a_cut("a", "b", sealed=("a", "b"))

    assert watermark(both, {"a": 10_000, "b": 300}) == 9_999


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
    cut = a_cut("a", "b", "c")
    later = {name: time + growth.get(name, 0) for name, time in before.items()}

    first = watermark(cut, before, out_of_orderness_ms=out_of_orderness_ms)
    second = watermark(cut, later, out_of_orderness_ms=out_of_orderness_ms)

    assert first <= second
    assert second <= max(later.values())
