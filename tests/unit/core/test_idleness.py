"""Idleness: the partitions that hold the watermark back, and those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.event_time import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    combined_watermark,
    source_watermark,
    with_idleness,
)
from sluice.core.plan import PartitionOffset, Slice, SourceCut

MINUTE_MS = 60_000


def a_cut(*reading: str, sealed: tuple[str, ...] = (), exhausted: bool = False) -> SourceCut:
    """Of the partitions a and b, with records of those *reading*."""
    return SourceCut(
        uid="events",
        position=tuple(
            PartitionOffset(partition=name, offset=9, records=9, sealed=name in sealed)
            for name in ("a", "b")
        ),
        slices=tuple(
            Slice(partition=name, start=8, end=9, first_record=8, records=1) for name in reading
        ),
        exhausted=exhausted,
    )


def follow(cut: SourceCut, previous: SourceCut | None, now_ms: int) -> SourceCut:
    return with_idleness(cut, previous, now_ms=now_ms, idle_after_ms=MINUTE_MS)


def watermark(cut: SourceCut) -> int | None:
    return source_watermark(
        cut,
        {"a": 5_000, "b": 1_000},
        is_silent=False,
        out_of_orderness_ms=0,
        drains=False,
        has_event_time=True,
    )


def test_a_partition_is_idle_once_it_was_silent_for_so_long() -> None:
    first = follow(a_cut("a", "b"), None, now_ms=0)
    busy = follow(a_cut("a"), first, now_ms=MINUTE_MS - 1)
    idle = follow(a_cut("a"), busy, now_ms=MINUTE_MS)

    assert (first.idle, busy.idle, idle.idle) == ((), (), ("b",))
    assert idle.active_at_ms == {"a": MINUTE_MS, "b": 0}
    assert [watermark(cut) for cut in (first, busy, idle)] == [999, 999, 4_999]


def test_a_partition_that_speaks_again_is_waited_for_again() -> None:
    first = follow(a_cut("a"), None, now_ms=0)
    idle = follow(a_cut("a"), first, now_ms=MINUTE_MS)

    back = follow(a_cut("b"), idle, now_ms=MINUTE_MS + 1)

    assert idle.idle == ("b",)
    assert back.idle == ()


def test_a_source_all_of_whose_partitions_are_idle_has_no_watermark() -> None:
    silent = follow(a_cut(), follow(a_cut(), None, now_ms=0), now_ms=MINUTE_MS)

    assert silent.is_idle
    assert watermark(silent) is None


@pytest.mark.parametrize("sealed", [("a",), ("b",)])
def test_a_sealed_partition_is_not_waited_for(sealed: tuple[str, ...]) -> None:
    silent = follow(a_cut(sealed=sealed), follow(a_cut(), None, now_ms=0), now_ms=MINUTE_MS)

    assert silent.is_idle


def test_a_partition_whose_records_a_cap_left_behind_is_not_idle() -> None:
    first = follow(a_cut("a", "b"), None, now_ms=0)

    capped = follow(replace(a_cut("a"), waiting=("b",)), first, now_ms=MINUTE_MS)

    assert capped.idle == ()


def test_of_a_sealed_partition_nothing_is_kept() -> None:
    assert follow(a_cut("a", sealed=("a",)), None, now_ms=7).active_at_ms == {"b": 7}


def test_an_exhausted_source_is_at_its_end_and_not_idle() -> None:
    before = follow(a_cut(), None, now_ms=0)
    ended = follow(a_cut(exhausted=True, sealed=("a", "b")), before, now_ms=MINUTE_MS)

    assert not ended.is_idle
    assert watermark(ended) == MAX_WATERMARK


def test_the_least_of_the_inputs_that_are_not_idle_counts_and_never_goes_back() -> None:
    assert combined_watermark([3, None, 7], floor=0) == 3
    assert combined_watermark([3, 7], floor=5) == 5
    assert combined_watermark([None, None], floor=5) == 5
    assert combined_watermark([], floor=MIN_WATERMARK) == MIN_WATERMARK
