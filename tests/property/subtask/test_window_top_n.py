"""WindowTopN against sorting all rows of every window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from random import Random

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.declaration.operations import Attached, Hopping, Tumbling, Window
from sluice.declaration.operations import WindowTopN as DeclaredWindowTopN
from sluice.operators.operator import EpochTime
from sluice.operators.ranking import WindowTopNOperator
from tests.examples import examples
from tests.property.subtask.played import (
    EPOCH,
    KEYS,
    a_stage,
    ascending,
    at,
    falling,
    in_order,
    max_timestamp_ms,
    play,
    seeds,
    timed_histories,
)
from tests.property.subtask.subtask import (
    INPUT,
    Epoch,
    Row,
    Subtask,
    check_cuts_decide_nothing,
    check_subtasks_share_the_work,
)

pytestmark = pytest.mark.usefixtures("either_way")

MS = timedelta(milliseconds=1)


def a_window_top_n(
    window: Window, n: int, *, ties: bool, keys: Sequence[str] = KEYS, schema: pl.Schema = INPUT
) -> Subtask:
    operation = DeclaredWindowTopN(window=window, n=n, by="value", has_ties=ties)
    operator = WindowTopNOperator(a_stage(operation, keys=keys), schema)
    return Subtask(operator, [schema], key_count=len(keys))


def ranked(rows: Iterable[Row], n: int, *, ties: bool) -> list[Row]:
    """The best of a window's rows, with their rank, by SQL's definition."""
    ordered = sorted(rows, key=lambda row: (falling(row[2]), *ascending(row[3:])))
    if not ties:
        return [(*row, rank) for rank, row in enumerate(ordered[:n], start=1)]
    places = [1 + sum(falling(o[2]) < falling(row[2]) for o in ordered) for row in ordered]
    return [(*row, rank) for row, rank in zip(ordered, places, strict=True) if rank <= n]


@examples(25)
@given(
    timed_histories(),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([Tumbling(10 * MS), Hopping(12 * MS, 4 * MS)]),
    seeds,
)
def test_a_window_top_n_has_the_best_rows_of_each_window(
    played: tuple[list[Epoch], list[EpochTime]],
    n: int,
    ties: bool,
    window: Tumbling | Hopping,
    random: Random,
) -> None:
    subtask = a_window_top_n(window, n, ties=ties)
    slide = window.slide if isinstance(window, Hopping) else window.size
    waiting: dict[Row, list[Row]] = defaultdict(list)

    for epoch, time in zip(*played, strict=True):
        late = []
        for row in epoch:
            live = []
            if row[3] is not None:
                last = EPOCH + (row[3] - EPOCH) // slide * slide
                starts = [last - index * slide for index in range(window.size // slide)]
                live = [
                    s
                    for s in starts
                    if max_timestamp_ms(s + window.size) > time.previous_watermark_ms
                ]
            for start in live:
                waiting[*row[:2], start, start + window.size].append(row)
            if not live:
                late.append(row)
        ended = [w for w in waiting if max_timestamp_ms(w[3]) <= time.watermark_ms]
        expected = [
            (*row[:-1], *bounds[2:], row[-1])
            for bounds in ended
            for row in ranked(waiting.pop(bounds), n, ties=ties)
        ]

        outcome = play(subtask, epoch, random, time)

        assert in_order(outcome.output) == in_order(expected)
        assert in_order(outcome.late[0]) == in_order(late)
        assert outcome.retracted is None
    assert subtask.state()["rows"].scan().is_empty() == (not waiting)


@pytest.mark.parametrize("ties", [False, True])
@examples(4)
@given(played=timed_histories())
def test_a_window_top_n_does_not_depend_on_chunks_order_or_subtasks(
    ties: bool, played: tuple[list[Epoch], list[EpochTime]]
) -> None:
    history, times = [[epoch] for epoch in played[0]], played[1]
    operator = a_window_top_n(Hopping(12 * MS, 4 * MS), 2, ties=ties).operator

    check_cuts_decide_nothing(operator, [INPUT], history, times)
    check_subtasks_share_the_work(operator, [INPUT], history, times)


def test_without_keys_attached_windows_are_ranked_over_all_rows() -> None:
    schema = pl.Schema(
        {"window_start": INPUT["at"], "window_end": INPUT["at"], "value": pl.Int32()}
    )
    subtask = a_window_top_n(Attached(), 1, ties=True, keys=(), schema=schema)
    early, later = (at(0), at(10)), (at(2), at(12))
    time = EpochTime(watermark_ms=9)

    first = subtask.play([[(*early, 3), (*later, 9)], [(*early, 5), (*early, 5)]], time=time)
    second = subtask.play(
        [[(*later, 8), (*early, 7)]],
        time=EpochTime(previous_watermark_ms=9, watermark_ms=MAX_WATERMARK),
    )

    assert first.output.columns == ["window_start", "window_end", "value", "rank"]
    assert first.output.rows() == [(*early, 5, 1), (*early, 5, 1)]
    assert second.output.rows() == [(*later, 9, 1)]
    assert second.late[0].rows() == [(*early, 7)]


@pytest.mark.parametrize("window", [Tumbling(4 * MS), Hopping(4 * MS, 2 * MS)])
def test_without_keys_windows_of_event_time_are_ranked_over_all_rows(window: Window) -> None:
    subtask = a_window_top_n(window, 1, ties=False, keys=())
    rows = [(1, "a", 3, at(0)), (2, "b", 5, at(1)), (3, "c", 4, at(3)), (4, "d", 1, at(9))]

    outcomes = [
        subtask.play([rows], time=EpochTime(watermark_ms=2)),
        subtask.play([[]], time=EpochTime(previous_watermark_ms=2, watermark_ms=3)),
    ]

    assert outcomes[-1].output.rows() == [(2, "b", 5, at(1), at(0), at(4), 1)]


def test_rows_that_lose_their_rank_to_a_tie_of_the_best_leave_the_state() -> None:
    subtask = a_window_top_n(Tumbling(10 * MS), 1, ties=True)
    time = EpochTime(previous_watermark_ms=MIN_WATERMARK, watermark_ms=0)
    subtask.play([[(1, "a", 3, at(1)), (1, "a", 3, at(2))]], time=time)

    subtask.play([[(1, "a", 4, at(3))]], time=time)

    assert subtask.state()["rows"].scan()["value"].to_list() == [4]
