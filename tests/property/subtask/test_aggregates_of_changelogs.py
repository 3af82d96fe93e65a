"""Running aggregates over changelogs against computing them of the rows that are there.

Method: as in ``test_operators``; whatever was sent and not taken back must be the results.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from statistics import stdev, variance

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.declaration import aggregates as agg
from sluice.declaration.aggregates import Aggregate
from sluice.declaration.operations import KeyedAggregate as Declared
from sluice.operators.aggregate import KeyedAggregateOperator
from sluice.operators.operator import WEIGHT, EpochTime
from sluice.state.segments import HASH
from tests.examples import examples
from tests.property.subtask.changelogs import applied, changelogs, kept, with_weight
from tests.property.subtask.played import (
    AGGREGATES,
    WHERES,
    WithColumns,
    a_result,
    a_stage,
    at,
    by_key,
    play,
    rows,
    seeds,
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

CHANGELOG = with_weight(INPUT)

# One key and few values, so that the extremes are often taken back.
crowded_rows = st.tuples(
    st.just(1), st.just("a"), st.integers(-3, 3), st.integers(0, 2).map(at) | st.none()
)
histories = st.one_of(changelogs(rows), changelogs(crowded_rows, most_rows=12))


def an_aggregate(ttl_ms: int | None = None) -> WithColumns:
    stage = a_stage(Declared(aggregates=AGGREGATES), ttl_ms=ttl_ms)
    return WithColumns(KeyedAggregateOperator(stage, CHANGELOG), WHERES)


def one(aggregate: Aggregate, dtype: pl.DataType) -> Subtask:
    schema = with_weight(pl.Schema({"id": pl.Int64(), "value": dtype}))
    stage = a_stage(Declared(aggregates={"result": aggregate}), keys=["id"], event_time=None)
    return Subtask(KeyedAggregateOperator(stage, schema), [schema], key_count=1)


def hashable(row: Row) -> Row:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)


def results(present: Counter[Row]) -> Counter[Row]:
    groups = by_key(present.elements()).items()
    return Counter(hashable((*key, *a_result(group))) for key, group in groups)


@examples(6)
@given(histories, seeds)
def test_the_results_are_those_of_the_rows_that_are_there(
    history: list[Epoch], random: Random
) -> None:
    subtask = Subtask(an_aggregate(), [CHANGELOG])
    present: Counter[Row] = Counter()
    sent: Counter[Row] = Counter()

    for epoch in history:
        present = applied(present, epoch)

        outcome = play(subtask, epoch, random)

        assert outcome.retracted is not None
        output, retracted = (
            [hashable(row) for row in frame.rows()] for frame in (outcome.output, outcome.retracted)
        )
        assert not set(output) & set(retracted)
        sent = kept(sent, output, retracted)
        assert sent == results(present)
    state = subtask.state()
    assert state["groups"].scan().height == len(by_key(present))
    values = Counter((*row[:2], row[2]) for row in present.elements() if row[2] is not None)
    for name in ("least", "different", "everything", "middle"):
        stored = state[f"values:{name}"].scan().select("id", "name", name, "_copies").rows()
        assert {row[:3]: row[3] for row in stored} == values


@examples(3)
@given(histories)
def test_neither_chunks_nor_order_nor_subtasks_decide_anything(history: list[Epoch]) -> None:
    one_by_one = [[epoch] for epoch in history]
    times = [EpochTime()] * len(history)

    check_cuts_decide_nothing(an_aggregate(), [CHANGELOG], one_by_one, times)
    check_subtasks_share_the_work(an_aggregate(), [CHANGELOG], one_by_one, times)


@examples(10)
@given(
    changelogs(st.tuples(st.just(1), st.none() | st.integers(-3, 3).map(lambda n: 1e9 + n))),
    st.booleans(),
    seeds,
)
def test_a_variance_stays_right_however_often_rows_are_taken_back(
    history: list[Epoch], is_root: bool, random: Random
) -> None:
    subtask = one((agg.stddev if is_root else agg.variance)("value"), pl.Float64())
    present: Counter[Row] = Counter()
    held: dict[int, float | None] = {}

    for epoch in history:
        present = applied(present, epoch)

        outcome = play(subtask, epoch, random)

        assert outcome.retracted is not None
        for key, _ in outcome.retracted.rows():
            del held[key]
        held |= dict(outcome.output.rows())
        values = [row[1] for row in present.elements() if row[1] is not None]
        assert list(held) == ([1] if present else [])
        if len(values) > 1:
            expected = (stdev if is_root else variance)(values)
            assert held[1] == pytest.approx(expected, rel=1e-9)
        else:
            assert not any(held.values())


def test_the_extremes_of_floats_know_zero_once_and_put_nan_last() -> None:
    nan = float("nan")
    for aggregate, results in ((agg.min("value"), [-1.0, 0.0]), (agg.max("value"), [nan, 0.0])):
        subtask = one(aggregate, pl.Float64())
        first = [(1, 0.0, 1), (1, -0.0, 1), (1, nan, 1), (1, -1.0, 1), (1, 0.0, 1)]
        second = [(1, nan, -1), (1, -1.0, -1), (1, 0.0, -1), (1, -0.0, -1)]

        found = [subtask.play([epoch], time=EpochTime()).output for epoch in (first, second)]

        assert repr([frame["result"].item() for frame in found]) == repr(results)


def test_the_last_row_of_a_group_takes_its_values_along() -> None:
    for aggregate in (agg.max("value"), agg.count_distinct("value"), agg.string_agg("value", "|")):
        subtask = one(aggregate, pl.String())
        subtask.play([[(1, "a", 1), (1, "b", 1)]], time=EpochTime())

        outcome = subtask.play([[(1, "a", -1), (1, "b", -1)]], time=EpochTime())

        assert outcome.output.is_empty()
        assert outcome.retracted is not None
        assert outcome.retracted.height == 1
        assert all(table.scan().is_empty() for table in subtask.state().values())


def test_an_aggregate_is_computed_of_the_columns_it_says_it_needs() -> None:
    for schema in (INPUT, CHANGELOG):
        whole = pl.Schema({**schema, **dict.fromkeys(WHERES, pl.Boolean())})
        for name, aggregate in AGGREGATES.items():
            stage = a_stage(Declared(aggregates={name: aggregate}), keys=["id"])
            needed = KeyedAggregateOperator(stage, whole).needed_columns()
            assert needed is not None
            mine = {"id", *needed, WEIGHT, *WHERES}
            narrow = pl.Schema({n: dtype for n, dtype in whole.items() if n in mine})

            operator = KeyedAggregateOperator(stage, narrow)

            rows = pl.Schema({HASH: pl.Int64(), **narrow}).to_frame()
            found = operator.partial(rows, EpochTime()).groups
            assert found.keys() == operator.tables.keys()
