"""Latest and Deduplicate against looking at all the rows there ever were."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.declaration.operations import Deduplicate as DeclaredDeduplicate
from sluice.declaration.operations import Latest as DeclaredLatest
from sluice.declaration.operations import Stateful
from sluice.operators.build import build_operator
from sluice.operators.operator import WEIGHT, EpochTime
from sluice.operators.ranking import DeduplicateOperator, LatestOperator
from sluice.state.segments import HASH
from tests.examples import examples
from tests.property.subtask.played import (
    a_stage,
    ascending,
    at,
    by_key,
    histories,
    in_order,
    nulls_last,
    play,
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


def a_latest(*by: str, ttl_ms: int | None = None) -> LatestOperator:
    return LatestOperator(a_stage(DeclaredLatest(by=by or ("at",)), ttl_ms=ttl_ms), INPUT)


@examples(14)
@given(histories, st.permutations(["at", "value"]), seeds)
def test_latest_is_the_row_with_the_largest_by(
    history: list[Epoch], by: Sequence[str], random: Random
) -> None:
    subtask = Subtask(a_latest(*by), [INPUT])
    seen: list[Row] = []

    def latest() -> dict[Row, Row]:
        columns = [list(INPUT).index(name) for name in by]
        return {
            key: max(group, key=lambda row: ascending(row[index] for index in columns))
            for key, group in by_key(seen).items()
        }

    for epoch in history:
        before = latest()
        seen += epoch
        after = latest()

        outcome = play(subtask, epoch, random)

        changed = [key for key, row in after.items() if before.get(key) != row]
        assert in_order(outcome.output) == in_order(after[key] for key in changed)
        former = [before[key] for key in changed if key in before]
        assert in_order(outcome.retracted) == in_order(former)
        assert in_order(subtask.state()["rows"].scan().drop(HASH)) == in_order(after.values())


@examples(14)
@given(histories, st.sampled_from([None, "value"]), seeds)
def test_deduplicate_keeps_the_first_row_of_a_key(
    history: list[Epoch], by: str | None, random: Random
) -> None:
    operator = DeduplicateOperator(a_stage(DeclaredDeduplicate(by=by)), INPUT)
    subtask = Subtask(operator, [INPUT])
    known: set[Row] = set()

    def order(row: Row) -> tuple[Any, ...]:
        return nulls_last(row[3:1:-1] if by is None else row[2:])

    for epoch in history:
        first = {key: min(group, key=order) for key, group in by_key(epoch).items()}

        outcome = play(subtask, epoch, random)

        news = [row for key, row in first.items() if key not in known]
        known |= first.keys()
        assert in_order(outcome.output) == in_order(news)
        assert outcome.retracted is None
    assert set(subtask.state()["keys"].scan().drop(HASH).rows()) == known


@examples(4)
@given(histories)
def test_latest_and_deduplicate_do_not_depend_on_chunks_order_or_subtasks(
    history: list[Epoch],
) -> None:
    one_by_one = [[epoch] for epoch in history]
    times = [EpochTime()] * len(history)

    for operator in (a_latest(), DeduplicateOperator(a_stage(DeclaredDeduplicate()), INPUT)):
        check_cuts_decide_nothing(operator, [INPUT], one_by_one, times)
        check_subtasks_share_the_work(operator, [INPUT], one_by_one, times)


def test_a_key_is_a_duplicate_as_long_as_rows_of_it_keep_coming() -> None:
    stage = a_stage(DeclaredDeduplicate(), ttl_ms=10)
    subtask = Subtask(DeduplicateOperator(stage, INPUT), [INPUT])

    found = [
        subtask.play([[(1, "a", 7, None)]], time=EpochTime(processing_time_ms=now_ms)).output.height
        for now_ms in (0, 9, 18, 28)
    ]

    assert found == [1, 0, 0, 1]


def test_an_older_row_still_keeps_the_latest_one_alive() -> None:
    subtask = Subtask(a_latest(ttl_ms=10), [INPUT])
    subtask.play([[(1, "a", 7, at(5))]], time=EpochTime())

    outcome = subtask.play([[(1, "a", 7, at(4))]], time=EpochTime(processing_time_ms=9))

    assert outcome.output.is_empty()
    assert subtask.state(18)["rows"].scan()["at"].to_list() == [at(5)]


@pytest.mark.parametrize("is_changelog", [False, True])
def test_a_column_of_the_rows_called_rank_is_left_alone(*, is_changelog: bool) -> None:
    columns = {"id": pl.Int64(), "rank": pl.Int32(), "value": pl.Int64()}
    schema = pl.Schema({**columns, WEIGHT: pl.Int8()} if is_changelog else columns)
    rows = [(1, 1, 5), (1, 2, 7), (1, 2, 6)]
    epoch = [(*row, 1) for row in rows] if is_changelog else rows
    expected: dict[Stateful, list[tuple[int, int, int]]] = {
        DeclaredLatest(by=("value",)): [(1, 1, 5), (1, 2, 7)]
    }
    if not is_changelog:
        expected[DeclaredDeduplicate(by="value")] = [(1, 1, 5), (1, 2, 6)]

    for operation, found in expected.items():
        stage = a_stage(operation, keys=["id", "rank"], event_time=None)
        subtask = Subtask(build_operator(stage, [schema]), [schema], key_count=2)
        assert in_order(subtask.play([epoch], time=EpochTime()).output) == found
