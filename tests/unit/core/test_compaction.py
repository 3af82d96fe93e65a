"""A compaction is taken over where all of what it replaces still is, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.compaction import (
    Compaction,
    MergedRuns,
    Merges,
    SortedRun,
    replaced_segment,
    sorted_runs,
    still_useful,
)
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId


def a_handle(name: str, run: int, *, rows: int = 10, is_inline: bool = False) -> StateHandle:
    segment = SegmentHandle(
        key="" if is_inline else name,
        size_bytes=1,
        rows=rows,
        checksum=name,
        inline=b"x" if is_inline else None,
    )
    return StateHandle(segment=segment, run=run)


A, B, C, D = (a_handle(name, run) for run, name in enumerate("abcd", start=1))
MERGED = a_handle("bc", 3)


def a_compaction(*replaced: StateHandle, merged: tuple[StateHandle, ...] = (MERGED,)) -> Compaction:
    one = MergedRuns(replaced=tuple(map(replaced_segment, replaced)), merged=merged)
    return Compaction(stage="count", checkpoint_id=CheckpointId(3), merged=(one,))


def taken_over(
    state: tuple[StateHandle, ...], compactions: list[Compaction]
) -> tuple[StateHandle, ...]:
    return Merges(compactions).applied_to(state)


def test_merged_runs_take_the_place_of_what_they_replace() -> None:
    assert taken_over((A, B, C, D), [a_compaction(B, C)]) == (A, MERGED, D)


def test_nothing_is_taken_over_where_a_part_is_gone_or_was_cut_by_a_rescale() -> None:
    halved = replace(C, first_hash=0)

    assert taken_over((A, B, D), [a_compaction(B, C)]) == (A, B, D)
    assert taken_over((A, B, halved), [a_compaction(B, C)]) == (A, B, halved)


def test_two_equal_segments_do_not_stand_for_one_that_is_gone() -> None:
    """Small state travels in acks, without a name: what epochs wrote alike looks the same."""
    alike = a_handle("b", 2, is_inline=True)

    assert taken_over((A, alike, alike), [a_compaction(alike, C)]) == (A, alike, alike)
    assert taken_over((A, alike, alike), [a_compaction(alike, alike)]) == (A, MERGED)


def test_runs_of_another_order_are_not_the_runs_that_were_merged() -> None:
    """What looks the same is newer here than there: the merged run would lose the newest rows."""
    one, other = a_handle("b", 2, is_inline=True), a_handle("c", 3, is_inline=True)
    swapped = (replace(other, run=2), replace(one, run=3))

    assert taken_over((A, *swapped), [a_compaction(one, other)]) == (A, *swapped)
    assert taken_over((A, one, other), [a_compaction(one, other)]) == (A, MERGED)


def test_a_run_between_those_that_were_merged_stays_older_than_the_newest() -> None:
    assert taken_over((A, B, D, C), [a_compaction(B, C)]) == (A, B, D, C)

    beside, low, high = (
        replace(D, first_hash=10),
        replace(B, last_hash=9),
        replace(C, last_hash=9),
    )
    elsewhere = replace(D, table="timers")
    for between in (beside, elsewhere):
        state = (A, low, between, high)
        assert taken_over(state, [a_compaction(low, high)]) == (A, MERGED, between)


def test_everything_may_have_been_deleted() -> None:
    assert taken_over((A, B), [a_compaction(A, B, merged=())]) == ()


def test_a_compaction_may_build_on_another() -> None:
    again = a_handle("all", 4)

    state = taken_over(
        (A, B, C, D), [a_compaction(B, C), a_compaction(A, MERGED, D, merged=(again,))]
    )

    assert state == (again,)
    assert taken_over(
        (A, B, C, D), [a_compaction(B, C), a_compaction(MERGED, D, merged=(again,))]
    ) == (A, again)


def test_segments_of_one_run_belong_together() -> None:
    first, second = a_handle("x", 7), replace(a_handle("y", 7), first_hash=5)

    runs = sorted_runs((A, first, second))

    assert runs == [SortedRun(run=1, handles=(A,)), SortedRun(run=7, handles=(first, second))]
    assert [run.rows for run in runs] == [10, 20]


def test_it_is_useful_while_what_it_replaces_can_be_continued() -> None:
    compaction = a_compaction(B, C)

    assert still_useful([compaction], {"a", "b", "c"}) == [compaction]
    assert still_useful([compaction], {"a", "b"}) == []
    half_inline = a_compaction(a_handle("b", 2, is_inline=True), C)
    assert still_useful([half_inline], {"c"}) == [half_inline]


def test_it_is_useful_while_what_it_replaces_can_be_taken_over() -> None:
    first, second = a_compaction(B, C), a_compaction(MERGED, D, merged=(a_handle("all", 4),))

    assert still_useful([second, first], {"b", "c", "d"}) == [first, second]
    assert still_useful([second, first], {"c", "d"}) == []
    assert [segment.key for segment in first.files] == ["bc"]


@given(st.integers(2, 8), st.data())
def test_whichever_neighbours_are_merged_the_order_of_runs_stays(
    count: int, data: st.DataObject
) -> None:
    state = tuple(a_handle(f"s{run}", run) for run in range(count))
    first = data.draw(st.integers(0, count - 2))
    last = data.draw(st.integers(first + 1, count - 1))
    merged = a_handle("merged", last)

    taken = taken_over(state, [a_compaction(*state[first : last + 1], merged=(merged,))])

    assert taken == (*state[:first], merged, *state[last + 1 :])
    assert [handle.run for handle in taken] == sorted(handle.run for handle in taken)
