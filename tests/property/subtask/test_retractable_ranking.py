"""TopN and Latest over changelogs against sorting the rows that are there.

Method: as in ``test_operators``; whatever was sent and not taken back must be the ranking.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.declaration.operations import Latest as DeclaredLatest
from sluice.declaration.operations import TopN as DeclaredTopN
from sluice.operators.operator import EpochTime
from sluice.operators.ranking import LatestOperator, TopNOperator
from sluice.state.segments import HASH
from tests.examples import examples
from tests.property.subtask.changelogs import applied, changelogs, kept, with_weight
from tests.property.subtask.played import (
    a_stage,
    ascending,
    by_key,
    falling,
    ids,
    in_order,
    names,
    play,
    seeds,
)
from tests.property.subtask.subtask import (
    Epoch,
    Row,
    Subtask,
    check_cuts_decide_nothing,
    check_subtasks_share_the_work,
)

pytestmark = pytest.mark.usefixtures("either_way")

ROWS = pl.Schema(
    {
        "id": pl.Int64(),
        "name": pl.String(),
        "item": pl.String(),
        "by": pl.Int64(),
        "tags": pl.List(pl.Int64()),
    }
)
INPUT = with_weight(ROWS)

rows = st.tuples(
    ids,
    names,
    st.sampled_from([None, "u", "v"]),
    st.none() | st.integers(0, 4),
    st.sampled_from([None, (), (1,), (1, None)]).map(lambda tags: tags and list(tags)),
)
flat_rows = st.tuples(
    ids, names, st.sampled_from([None, "u", "v"]), st.none() | st.integers(0, 4), st.none()
)
# One key and many rows, so that its best rows are often taken back.
crowded_rows = st.tuples(
    st.just(1), st.just("a"), st.sampled_from("uvw"), st.integers(0, 9), st.none()
)


def a_top_n(
    n: int, *, unique: tuple[str, ...] = ("item",), ttl_ms: int | None = None
) -> TopNOperator:
    operation = DeclaredTopN(n=n, by="by", unique=unique)
    return TopNOperator(a_stage(operation, event_time=None, ttl_ms=ttl_ms), INPUT)


def a_latest(ttl_ms: int | None = None) -> LatestOperator:
    return LatestOperator(
        a_stage(DeclaredLatest(by=("by",)), event_time=None, ttl_ms=ttl_ms), INPUT
    )


def ranking(present: Counter[Row], n: int) -> Counter[Row]:
    ranked: Counter[Row] = Counter()
    for key, group in by_key(present.elements()).items():
        best = sorted(group, key=lambda row: (falling(row[3]), *ascending(row[2:])))[:n]
        ranked.update((*key, rank, *row[2:]) for rank, row in enumerate(best, start=1))
    return ranked


def latest(present: Counter[Row]) -> Counter[Row]:
    groups = by_key(present.elements()).values()
    return Counter(max(group, key=lambda row: ascending((row[3], row[2]))) for group in groups)


@examples(30)
@given(
    st.one_of(changelogs(flat_rows), changelogs(crowded_rows, most_rows=12)),
    st.integers(1, 3),
    st.sampled_from([(), ("item",)]),
    seeds,
)
def test_the_best_rows_that_are_there_have_the_ranks(
    history: list[Epoch], n: int, unique: tuple[str, ...], random: Random
) -> None:
    subtask = Subtask(a_top_n(n, unique=unique), [INPUT])
    present: Counter[Row] = Counter()
    sent: Counter[Row] = Counter()

    for epoch in history:
        present = applied(present, epoch)

        outcome = play(subtask, epoch, random)

        assert outcome.retracted is not None
        assert not set(outcome.output.rows()) & set(outcome.retracted.rows())
        sent = kept(sent, outcome.output.rows(), outcome.retracted.rows())
        assert sent == ranking(present, n)
        state = subtask.state()
        assert in_order(state["rows"].scan().drop(HASH)) == in_order(list(sent.elements()))
        assert in_order(state["bag"].scan().drop(HASH)) == in_order(
            [(*row, copies) for row, copies in present.items()]
        )


@examples(30)
@given(st.one_of(changelogs(flat_rows), changelogs(crowded_rows, most_rows=12)), seeds)
def test_the_latest_of_the_rows_that_are_there_is_sent(
    history: list[Epoch], random: Random
) -> None:
    subtask = Subtask(a_latest(), [INPUT])
    present: Counter[Row] = Counter()
    sent: Counter[Row] = Counter()

    for epoch in history:
        present = applied(present, epoch)

        outcome = play(subtask, epoch, random)

        assert outcome.retracted is not None
        assert not set(outcome.output.rows()) & set(outcome.retracted.rows())
        sent = kept(sent, outcome.output.rows(), outcome.retracted.rows())
        assert sent == latest(present)


A_NESTED_HISTORY = [
    [(1, "a", "u", 3, [1, None], 1), (1, "a", "u", 3, [1], 1)],
    [(1, "a", "u", 3, [1, None], -1)],
]


@examples(5)
@given(changelogs(rows))
@example(A_NESTED_HISTORY)
def test_neither_chunks_nor_order_nor_subtasks_decide_anything(history: list[Epoch]) -> None:
    one_by_one = [[epoch] for epoch in history]
    times = [EpochTime()] * len(history)

    for operator in (a_top_n(2), a_top_n(1, unique=()), a_latest()):
        check_cuts_decide_nothing(operator, [INPUT], one_by_one, times)
        check_subtasks_share_the_work(operator, [INPUT], one_by_one, times)


def test_a_value_that_falls_makes_room_for_the_next_best() -> None:
    for operator in (a_top_n(1), a_latest()):
        subtask = Subtask(operator, [INPUT])
        rich, poor, second = (
            (1, "a", item, by, None) for item, by in (("u", 100), ("u", 10), ("v", 50))
        )
        subtask.play([[(*rich, 1), (*second, 1)]], time=EpochTime())

        outcome = subtask.play([[(*rich, -1), (*poor, 1)]], time=EpochTime())

        assert outcome.output["by"].to_list() == [50]
        assert outcome.retracted is not None
        assert outcome.retracted["by"].to_list() == [100]


def test_a_row_that_is_not_there_is_not_taken_back_twice() -> None:
    subtask = Subtask(a_top_n(1, ttl_ms=10), [INPUT])
    row, other = (1, "a", "u", 3, None), (1, "a", "v", 2, None)
    subtask.play([[(*row, 1)]], time=EpochTime())

    subtask.play([[(*row, -1)]], time=EpochTime(processing_time_ms=10))
    outcome = subtask.play([[(*other, 1)]], time=EpochTime(processing_time_ms=11))

    assert outcome.output.rows() == [(1, "a", 1, *other[2:])]
    assert subtask.state(11)["bag"].scan().height == 1
