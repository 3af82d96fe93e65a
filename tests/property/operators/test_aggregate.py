"""Running aggregates against a few lines of Python, whatever the cuts, the order and the hashes.

Method: a history of epochs is played through partial, combine and process, every epoch's changes
becoming a run of state; keys are few and hashes fewer.  A second play cuts the same epochs into
other chunks, in another order: every frame must be the same, row by row.  Over a changelog,
whatever was sent and not taken back must be the results of the rows that are there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from math import isfinite, isinf, isnan, ulp
from random import Random
from statistics import stdev, variance

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.event_time import MAX_WATERMARK
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import KeyedAggregate as Declared
from sluice.operators.aggregate import KeyedAggregateOperator
from sluice.operators.operator import WEIGHT, EpochTime
from sluice.state.segments import HASH
from tests.examples import examples
from tests.property.operators.changelogs import applied, changelogs, kept, with_weight
from tests.property.operators.played import (
    AGGREGATES,
    WHERES,
    WithColumns,
    a_result,
    a_stage,
    at,
    by_key,
    histories,
    in_order,
    one_aggregate,
    play,
    rows,
    seeds,
)
from tests.property.operators.subtask import INPUT, Epoch, Row, Subtask, check_content_alone_decides

pytestmark = pytest.mark.usefixtures("either_way")


def all_aggregates(schema: pl.Schema = INPUT) -> WithColumns:
    operator = KeyedAggregateOperator(a_stage(Declared(aggregates=AGGREGATES)), schema)
    return WithColumns(operator, WHERES)


@examples(14)
@given(histories, seeds)
def test_an_aggregate_outputs_the_result_of_every_key_whose_result_changed(
    history: list[Epoch], random: Random
) -> None:
    subtask = Subtask(all_aggregates(), [INPUT])
    seen: dict[Row, list[Row]] = defaultdict(list)

    for epoch in history:
        before = {key: a_result(group) for key, group in seen.items()}
        for row in epoch:
            seen[row[:2]].append(row)
        after = {key: a_result(group) for key, group in seen.items()}

        outcome = play(subtask, epoch, random)

        changed = [key for key, result in after.items() if before.get(key) != result]
        assert in_order(outcome.output) == in_order([(*key, *after[key]) for key in changed])
        former = [(*key, *before[key]) for key in changed if key in before]
        assert in_order(outcome.retracted) == in_order(former)
        assert all(changes.deletes.is_empty() for changes in outcome.changes.values())
    state = subtask.state()
    assert state["groups"].scan().height == len(seen)
    distinct = {
        (*row[:2], row[2]) for group in seen.values() for row in group if row[2] is not None
    }
    assert set(state["distinct:different"].scan().drop(HASH).rows()) == distinct


@examples(6)
@given(histories)
def test_an_aggregate_does_not_depend_on_chunks_order_or_subtasks(history: list[Epoch]) -> None:
    check_content_alone_decides(all_aggregates(), [INPUT], [[epoch] for epoch in history])


def test_rows_that_change_nothing_write_nothing() -> None:
    subtask = one_aggregate(agg.min("value"))

    first = subtask.play([[(1, "a", 3, None), (2, "b", None, None)]], time=EpochTime())
    outcome = subtask.play([[(1, "a", 5, None), (2, "b", None, None)]], time=EpochTime())

    assert sorted(first.output.rows()) == [(1, 3), (2, None)]  # A new key is news, even of nulls.
    assert outcome.output.is_empty()
    assert outcome.changes["groups"].upserts.is_empty()


def test_a_mean_that_stays_the_same_is_written_but_not_yielded() -> None:
    subtask = one_aggregate(agg.avg("value"))

    subtask.play([[(1, "a", 3, None)]], time=EpochTime())
    outcome = subtask.play([[(1, "a", 2, None), (1, "a", 4, None)]], time=EpochTime())

    assert outcome.output.is_empty()
    assert outcome.changes["groups"].upserts.height == 1


def test_a_value_of_a_key_that_has_many_is_counted_once() -> None:
    subtask = one_aggregate(agg.count_distinct("value"))
    many = [(1, "a", value, None) for value in range(40)]

    first = subtask.play([[*many[:30], (2, "a", 1, None)]], time=EpochTime())
    second = subtask.play([[*many[20:], (2, "a", 1, None), (2, "a", 2, None)]], time=EpochTime())

    assert in_order(first.output) == [(1, 30), (2, 1)]
    assert in_order(second.output) == [(1, 40), (2, 2)]
    assert second.changes["distinct:result"].upserts["result"].to_list() == [2, *range(30, 40)]


# --- time to live ---------------------------------------------------------------------------------


@examples(12)
@given(histories, seeds, st.lists(st.integers(0, 8), min_size=4, max_size=4))
def test_a_key_nobody_touched_for_its_ttl_starts_anew(
    history: list[Epoch], random: Random, pauses: list[int]
) -> None:
    stage = a_stage(Declared(aggregates={"least": agg.min("value")}), ttl_ms=10)
    subtask = Subtask(KeyedAggregateOperator(stage, INPUT), [INPUT])
    seen: dict[Row, list[Row]] = defaultdict(list)
    touched_ms: dict[Row, int] = {}
    now_ms = 0

    for epoch, pause in zip(history, pauses, strict=False):
        now_ms += pause
        for key in [key for key, then_ms in touched_ms.items() if then_ms <= now_ms - 10]:
            del seen[key], touched_ms[key]
        before = {key: least(group) for key, group in seen.items()}
        for row in epoch:
            seen[row[:2]].append(row)
            touched_ms[row[:2]] = now_ms

        outcome = play(subtask, epoch, random, EpochTime(processing_time_ms=now_ms))

        after = {key: least(group) for key, group in seen.items()}
        news = [(*key, result) for key, result in after.items() if before.get(key, 9) != result]
        assert in_order(outcome.output) == in_order(news)
        assert subtask.state(now_ms)["groups"].scan().height == len(seen)


def least(group: list[Row]) -> int | None:
    return min((row[2] for row in group if row[2] is not None), default=None)


def test_distinct_values_live_as_long_as_they_keep_coming() -> None:
    stage = a_stage(Declared(aggregates={"result": agg.count_distinct("value")}), ttl_ms=10)
    subtask = Subtask(KeyedAggregateOperator(stage, INPUT), [INPUT])

    outcomes = [
        subtask.play([[(1, "a", 7, None)]], time=EpochTime(processing_time_ms=now_ms))
        for now_ms in (0, 6, 12)
    ]

    assert outcomes[-1].output.is_empty()
    assert subtask.state(21)["distinct:result"].scan()["result"].to_list() == [7]
    assert subtask.state(22)["distinct:result"].scan().is_empty()


# --- edges ----------------------------------------------------------------------------------------


def test_an_empty_epoch_has_the_types_of_a_full_one() -> None:
    operator = all_aggregates()
    subtask = Subtask(operator, [INPUT])

    outcome = subtask.play([[], []], time=EpochTime(watermark_ms=MAX_WATERMARK))

    assert outcome.output.is_empty()
    assert outcome.output.schema == operator.output_schema


def test_an_aggregate_needs_the_columns_it_reads_and_no_other() -> None:
    stage = a_stage(
        Declared(aggregates={"total": agg.sum("value"), "top": agg.last("name"), "n": agg.count()}),
        keys=["id"],
    )

    assert KeyedAggregateOperator(stage, INPUT).needed_columns() == ("value", "name", "at")


# --- variance -------------------------------------------------------------------------------------

REALS = pl.Schema({"id": pl.Int64(), "value": pl.Float64()})
# Squares of such numbers have no digits left for what they differ by.
reals = st.tuples(st.integers(0, 1), st.none() | st.integers(-3, 3).map(lambda n: 1e9 + n))


@examples(20)
@given(st.lists(st.lists(reals, max_size=8), min_size=1, max_size=4), st.booleans(), seeds)
def test_the_variance_of_large_numbers_is_not_lost_in_their_squares(
    history: list[Epoch], is_root: bool, random: Random
) -> None:
    subtask = one_aggregate((agg.stddev if is_root else agg.variance)("value"), REALS)
    seen: dict[int, list[float]] = defaultdict(list)
    held: dict[int, float | None] = {}

    for epoch in history:
        for key, value in epoch:
            seen[key] += [] if value is None else [value]

        held |= dict(play(subtask, epoch, random).output.rows())

    expected = stdev if is_root else variance
    results = {key: expected(group) if len(group) > 1 else None for key, group in seen.items()}
    assert held.keys() == results.keys()
    for key, result in results.items():
        assert held[key] == (None if result is None else pytest.approx(result, rel=1e-5, abs=1e-6))


# --- over changelogs ------------------------------------------------------------------------------

CHANGELOG = with_weight(INPUT)

# One key and few values, so that the extremes are often taken back.
crowded_rows = st.tuples(
    st.just(1), st.just("a"), st.integers(-3, 3), st.integers(0, 2).map(at) | st.none()
)
changelog_histories = st.one_of(changelogs(rows), changelogs(crowded_rows, most_rows=12))


def values_of(dtype: pl.DataType) -> pl.Schema:
    return with_weight(pl.Schema({"id": pl.Int64(), "value": dtype}))


def hashable(row: Row) -> Row:
    return tuple(tuple(value) if isinstance(value, list) else value for value in row)


def results(present: Counter[Row]) -> Counter[Row]:
    groups = by_key(present.elements()).items()
    return Counter(hashable((*key, *a_result(group))) for key, group in groups)


@examples(6)
@given(changelog_histories, seeds)
def test_the_results_are_those_of_the_rows_that_are_there(
    history: list[Epoch], random: Random
) -> None:
    subtask = Subtask(all_aggregates(CHANGELOG), [CHANGELOG])
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
@given(changelog_histories)
def test_neither_chunks_nor_order_nor_subtasks_decide_anything(history: list[Epoch]) -> None:
    operator = all_aggregates(CHANGELOG)

    check_content_alone_decides(operator, [CHANGELOG], [[epoch] for epoch in history])


@examples(10)
@given(
    changelogs(st.tuples(st.just(1), st.none() | st.integers(-3, 3).map(lambda n: 1e9 + n))),
    st.booleans(),
    seeds,
)
def test_a_variance_stays_right_however_often_rows_are_taken_back(
    history: list[Epoch], is_root: bool, random: Random
) -> None:
    aggregate = (agg.stddev if is_root else agg.variance)("value")
    subtask = one_aggregate(aggregate, values_of(pl.Float64()))
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


INFINITY, NAN = float("inf"), float("nan")
LARGEST, LEAST = 1.7976931348623157e308, 5e-324
# What absorbs what: a large value the small ones, and a special one all others.
hostile_reals = st.sampled_from(
    [
        *(NAN, INFINITY, -INFINITY, 1e300, -1e300, LARGEST, LEAST, 1.0, 0.1, -0.3, 2.0**64),
        *(None, -0.0, 2.0**-53, 3e-17, 1e18, 123456.78),
    ]
) | st.floats(width=64)


def exact_sum(values: Sequence[float]) -> Fraction | float:
    """The sum as real numbers have it; infinite, or NaN, with an infinity or a NaN among them."""
    special = [value for value in values if not isfinite(value)]
    return sum(special) if special else sum(map(Fraction, values), Fraction())


def nearest(exact: Fraction | float) -> float:
    try:
        return float(exact)
    except OverflowError:
        return INFINITY if exact > 0 else -INFINITY


def is_nearly(found: float, expected: float) -> bool:
    """Whether two doubles are the same, but for two units in the last place."""
    if isnan(expected) or isinf(expected):
        return repr(found) == repr(expected)
    return abs(found - expected) <= 2 * ulp(expected)


@examples(40)
@given(changelogs(st.tuples(st.just(1), hostile_reals)), seeds)
def test_no_value_that_was_taken_back_is_left_in_a_sum_or_a_mean(
    history: list[Epoch], random: Random
) -> None:
    for aggregate, share in ((agg.sum("value"), False), (agg.avg("value"), True)):
        subtask = one_aggregate(aggregate, values_of(pl.Float64()))
        present: list[float] = []
        held: dict[int, float | None] = {}
        by_content: dict[str, float | None] = {}

        for epoch in history:
            for _, value, weight in epoch:
                if value is not None and weight > 0:
                    present.append(value)
            for _, value, weight in epoch:
                if value is not None and weight < 0:
                    present.remove(next(one for one in present if repr(one) == repr(value)))

            outcome = play(subtask, epoch, random)

            assert outcome.retracted is not None
            for key, _ in outcome.retracted.rows():
                del held[key]
            held |= dict(outcome.output.rows())
            if not held:
                continue
            if not present:
                assert held == {1: None}
                continue
            found = held[1]
            assert found is not None
            exact = exact_sum(present)
            assert is_nearly(found, nearest(exact / len(present) if share else exact))
            content = repr(sorted(map(repr, present)))
            assert repr(by_content.setdefault(content, found)) == repr(found)


@examples(4)
@given(changelogs(st.tuples(st.integers(0, 1), hostile_reals)))
def test_a_sum_over_updates_does_not_depend_on_chunks_order_or_subtasks(
    history: list[Epoch],
) -> None:
    for aggregate in (agg.sum("value"), agg.avg("value")):
        stage = a_stage(Declared(aggregates={"result": aggregate}), keys=["id"])
        schema = values_of(pl.Float64())

        operator = KeyedAggregateOperator(stage, schema)

        check_content_alone_decides(operator, [schema], [[epoch] for epoch in history], key_count=1)


def test_the_extremes_of_floats_know_zero_once_and_put_nan_last() -> None:
    nan = float("nan")
    for aggregate, results in ((agg.min("value"), [-1.0, 0.0]), (agg.max("value"), [nan, 0.0])):
        subtask = one_aggregate(aggregate, values_of(pl.Float64()))
        first = [(1, 0.0, 1), (1, -0.0, 1), (1, nan, 1), (1, -1.0, 1), (1, 0.0, 1)]
        second = [(1, nan, -1), (1, -1.0, -1), (1, 0.0, -1), (1, -0.0, -1)]

        found = [subtask.play([epoch], time=EpochTime()).output for epoch in (first, second)]

        assert repr([frame["result"].item() for frame in found]) == repr(results)


def test_the_last_row_of_a_group_takes_its_values_along() -> None:
    for aggregate in (agg.max("value"), agg.count_distinct("value"), agg.string_agg("value", "|")):
        subtask = one_aggregate(aggregate, values_of(pl.String()))
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
            kept_columns = {"id", *needed, WEIGHT, *WHERES}
            narrow = pl.Schema({n: dtype for n, dtype in whole.items() if n in kept_columns})

            operator = KeyedAggregateOperator(stage, narrow)

            rows = pl.Schema({HASH: pl.Int64(), **narrow}).to_frame()
            found = operator.partial(rows, EpochTime()).groups
            assert found.keys() == operator.tables.keys()
