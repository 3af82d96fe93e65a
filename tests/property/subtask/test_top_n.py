"""TopN against sorting all the rows there ever were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.declaration.operations import TopN as DeclaredTopN
from sluice.operators.operator import EpochTime
from sluice.operators.ranking import Ranking, TopNOperator, descending
from sluice.operators.ranking import ascending as rising
from sluice.state.segments import HASH
from tests.examples import examples
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

RANKED = pl.Schema(
    {
        "id": pl.Int64(),
        "name": pl.String(),
        "item": pl.String(),
        "by": pl.Int64(),
        "note": pl.Int32(),
    }
)


@st.composite
def growing_histories(draw: st.DrawFn) -> list[Epoch]:
    """Upserts on (id, name, item) in which ``by`` never decreases."""
    reached: dict[Row, int] = defaultdict(int)
    history = []
    for _ in range(draw(st.integers(1, 4))):
        epoch = []
        for key in draw(st.lists(st.tuples(ids, names, st.sampled_from("uvwx")), max_size=10)):
            reached[key] += draw(st.integers(0, 2))
            epoch.append((*key, reached[key], reached[key] % 2))
        history.append(epoch)
    return history


def a_top_n(n: int = 2, ttl_ms: int | None = None) -> TopNOperator:
    operation = DeclaredTopN(n=n, by="by", unique=("item",))
    return TopNOperator(a_stage(operation, event_time=None, ttl_ms=ttl_ms), RANKED)


def ranking(latest: Mapping[Row, Row], n: int) -> set[Row]:
    return {
        (*key, rank, *row[2:])
        for key, group in by_key(latest.values()).items()
        for rank, row in enumerate(sorted(group, key=lambda r: (-r[3], r[2]))[:n], start=1)
    }


def replaced(before: set[Row], after: set[Row]) -> set[Row]:
    """The rows of *before* whose key and rank have another row in *after*."""
    news = {row[:3] for row in after - before}
    return {row for row in before if row[:3] in news}


@examples(14)
@given(growing_histories(), st.integers(1, 3), seeds)
def test_top_n_outputs_the_ranks_that_changed(history: list[Epoch], n: int, random: Random) -> None:
    subtask = Subtask(a_top_n(n), [RANKED])
    latest: dict[Row, Row] = {}

    for epoch in history:
        before = ranking(latest, n)
        latest |= {row[:3]: row for row in epoch}

        outcome = play(subtask, epoch, random)

        after = ranking(latest, n)
        assert in_order(outcome.output) == in_order(after - before)
        assert in_order(outcome.retracted) == in_order(replaced(before, after))
        assert outcome.changes["rows"].upserts.height == len(after - before)
        assert set(subtask.state()["rows"].scan().drop(HASH).rows()) == after


# --- rows that are only appended

appended_rows = st.tuples(
    ids, names, st.sampled_from([None, "u", "v"]), st.none() | st.integers(0, 3), st.integers(0, 1)
)
appended = st.lists(st.lists(appended_rows, max_size=10), min_size=1, max_size=4)


def an_append_only_top_n(n: int = 2) -> TopNOperator:
    return TopNOperator(
        a_stage(DeclaredTopN(n=n, by="by", ties_by=("note",)), event_time=None), RANKED
    )


def ranking_of_all(rows: Iterable[Row], n: int) -> set[Row]:
    def order(row: Row) -> tuple[Any, ...]:
        return (falling(row[3]), *ascending((row[4], row[2])))

    return {
        (*key, rank, *row[2:])
        for key, group in by_key(rows).items()
        for rank, row in enumerate(sorted(group, key=order)[:n], start=1)
    }


@examples(14)
@given(appended, st.integers(1, 3), seeds)
def test_without_unique_columns_every_row_has_a_rank(
    history: list[Epoch], n: int, random: Random
) -> None:
    subtask = Subtask(an_append_only_top_n(n), [RANKED])
    seen: list[Row] = []

    for epoch in history:
        before = ranking_of_all(seen, n)
        seen += epoch

        outcome = play(subtask, epoch, random)

        after = ranking_of_all(seen, n)
        assert in_order(outcome.output) == in_order(after - before)
        assert in_order(outcome.retracted) == in_order(replaced(before, after))


@examples(4)
@given(growing_histories(), appended)
def test_top_n_does_not_depend_on_chunks_order_or_subtasks(
    growing: list[Epoch], rows: list[Epoch]
) -> None:
    for operator, history in ((a_top_n(), growing), (an_append_only_top_n(), rows)):
        one_by_one = [[epoch] for epoch in history]
        times = [EpochTime()] * len(history)

        check_cuts_decide_nothing(operator, [RANKED], one_by_one, times)
        check_subtasks_share_the_work(operator, [RANKED], one_by_one, times)


def test_touching_a_key_keeps_all_its_ranks_alive() -> None:
    subtask = Subtask(a_top_n(ttl_ms=10), [RANKED])
    subtask.play([[(1, "a", "u", 3, 0), (1, "a", "v", 2, 0)]], time=EpochTime())

    time = EpochTime(processing_time_ms=9)
    outcome = subtask.play([[(1, "a", "w", 1, 0)]], time=time)

    assert outcome.output.is_empty()
    assert subtask.state(18)["rows"].scan().height == 2
    assert subtask.state(19)["rows"].scan().is_empty()


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("has_ties", [False, True])
@pytest.mark.parametrize("is_descending", [False, True])
def test_pruning_loses_none_of_the_best(n: int, has_ties: bool, is_descending: bool) -> None:
    random = Random(n)
    values = [None, float("nan"), *range(50)]
    rows = [(random.randrange(3), random.choice(values), i) for i in range(2_000)]
    rows += [(3, None, i) for i in range(9)] + [(4, float("nan"), i) for i in range(9)]
    schema = {HASH: pl.Int64, "by": pl.Float64, "note": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    order = descending(["by", "note"]) if is_descending else rising(["by", "note"], nulls_last=True)

    found = Ranking(n=n, order=order, has_ties=has_ties).ranked(frame, [HASH])

    everything = Ranking(n=len(rows), order=order, has_ties=has_ties).ranked(frame, [HASH])
    assert found.equals(everything.filter(pl.col("rank") <= n))
