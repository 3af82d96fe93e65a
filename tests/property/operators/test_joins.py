"""Regular joins against joining the rows that are there, whatever the cuts and the hashes.

Method: as in ``test_aggregate``, with two inputs, each a changelog or append-only; whatever was
yielded and not taken back must be the join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.declaration import operations as ops
from sluice.operators.build import build_operator
from sluice.operators.operator import WEIGHT, Operator
from tests.examples import examples
from tests.property.operators.changelogs import applied, changelogs, kept, with_weight
from tests.property.operators.joining import (
    LEFT,
    RIGHT,
    History,
    a_stage,
    bag,
    histories,
    is_pair,
    joined,
    lefts,
    play,
    rights,
)
from tests.property.operators.played import seeds, times_of
from tests.property.operators.subtask import Epoch, Row, Subtask, check_content_alone_decides

pytestmark = pytest.mark.usefixtures("either_way")

HOWS = ["inner", "left", "right", "full", "semi", "anti"]
APPENDED = (LEFT, RIGHT)
CHANGED = (with_weight(LEFT), with_weight(RIGHT))
EPOCHS = 4

Schemas = tuple[pl.Schema, pl.Schema]

crowded_lefts = st.tuples(st.just(1), st.just("a"), st.integers(0, 1), st.none(), st.none())
crowded_rights = st.tuples(st.just(1), st.just("a"), st.integers(0, 1), st.none())


def both(
    left: st.SearchStrategy[list[Epoch]], right: st.SearchStrategy[list[Epoch]]
) -> st.SearchStrategy[History]:
    """Histories of two inputs, of the same epochs."""
    return st.tuples(left, right).map(lambda sides: list(zip(*sides, strict=True)))


def appended(rows: st.SearchStrategy[Row]) -> st.SearchStrategy[list[Epoch]]:
    return st.lists(st.lists(rows, max_size=6), min_size=EPOCHS, max_size=EPOCHS)


changed_histories = st.one_of(
    both(changelogs(lefts, 6, EPOCHS), changelogs(rights, 6, EPOCHS)),
    both(changelogs(crowded_lefts, 3, EPOCHS), changelogs(crowded_rights, 2, EPOCHS)),
)


def a_join(how: Any, schemas: Schemas, ttl_ms: int | None = None) -> Operator:
    return build_operator(a_stage(ops.RegularJoin(how=how), ttl_ms), schemas)


def alone(right: Row) -> Row:
    """A right row without a partner; ``name``, which both sides have, is the right one's."""
    return (None, right[1], None, None, None, right[0], *right[2:])


def partners(row: Row, others: Iterable[Row]) -> int:
    return sum(is_pair(row, other) for other in others)


def join(how: str, present: list[Counter[Row]]) -> Counter[Row]:
    """The join's result, by definition."""
    left, right = ([*side.elements()] for side in present)
    if how in ("semi", "anti"):
        return Counter(row for row in left if bool(partners(row, right)) is (how == "semi"))
    result = Counter(joined(one, other) for one in left for other in right if is_pair(one, other))
    if how in ("left", "full"):
        result.update(joined(row, None) for row in left if not partners(row, right))
    if how in ("right", "full"):
        result.update(alone(row) for row in right if not partners(row, left))
    return result


def check(how: str, schemas: Schemas, history: History, random: Random) -> None:
    subtask = Subtask(a_join(how, schemas), schemas)
    present: list[Counter[Row]] = [Counter(), Counter()]
    held: Counter[Row] = Counter()

    for epoch, time in zip(history, times_of([0] * len(history)), strict=True):
        present = [
            applied(before, rows) if WEIGHT in schema else before + Counter(rows)
            for before, rows, schema in zip(present, epoch, schemas, strict=True)
        ]

        outcome = play(subtask, epoch, time, random)

        retracted = Counter[Row]()
        if schemas != APPENDED or how not in ("inner", "semi"):
            assert outcome.retracted is not None
            retracted = bag(outcome.retracted)
        else:
            assert outcome.retracted is None
        assert not bag(outcome.output) & retracted
        held = kept(held, outcome.output.rows(), retracted.elements())
        assert held == join(how, present)


@examples(20)
@given(changed_histories, st.sampled_from(HOWS), seeds)
def test_what_was_yielded_and_not_taken_back_is_the_join(
    history: History, how: str, random: Random
) -> None:
    check(how, CHANGED, history, random)


@pytest.mark.parametrize("how", ["inner", "semi"])
@examples(14)
@given(history=histories, random=seeds)
def test_of_append_only_sides_each_result_is_yielded_once_and_never_taken_back(
    how: str, history: History, random: Random
) -> None:
    check(how, APPENDED, history, random)


@examples(10)
@given(
    both(appended(lefts), appended(rights)),
    st.sampled_from(["left", "right", "full", "anti"]),
    seeds,
)
def test_rows_of_append_only_sides_are_taken_back_when_a_partner_comes(
    history: History, how: str, random: Random
) -> None:
    check(how, APPENDED, history, random)


@examples(8)
@given(both(changelogs(lefts, 6, EPOCHS), appended(rights)), st.sampled_from(HOWS), seeds)
def test_one_side_may_be_append_only(history: History, how: str, random: Random) -> None:
    check(how, (CHANGED[0], RIGHT), history, random)


@examples(4)
@given(changed_histories, st.sampled_from(HOWS), st.none() | st.just(1_000))
def test_neither_chunks_nor_order_nor_subtasks_decide_anything(
    history: History, how: str, ttl_ms: int | None
) -> None:
    operator = a_join(how, CHANGED, ttl_ms)

    check_content_alone_decides(operator, CHANGED, history, times_of([0] * len(history)))


@examples(8)
@given(histories, st.sampled_from(["inner", "semi"]), st.none() | st.just(1_000))
def test_neither_decides_anything_of_append_only_sides(
    history: History, how: str, ttl_ms: int | None
) -> None:
    operator = a_join(how, APPENDED, ttl_ms)

    check_content_alone_decides(operator, APPENDED, history, times_of([0] * len(history)))
