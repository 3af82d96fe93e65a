"""Regular joins of changelogs against joining the rows that are there.

Method: as in ``test_operators``, with two inputs; whatever was yielded and not taken back must be
the join.
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
from sluice.operators.operator import Operator
from tests.examples import examples
from tests.property.operators.barriers import times_of
from tests.property.operators.changelogs import applied, changelogs, kept, with_weight
from tests.property.operators.joining import (
    LEFT,
    RIGHT,
    a_stage,
    bag,
    is_pair,
    joined,
    lefts,
    play,
    rights,
    seeds,
)
from tests.property.operators.subtask import (
    Epoch,
    Row,
    Subtask,
    check_cuts_decide_nothing,
    check_subtasks_share_the_work,
)

pytestmark = pytest.mark.usefixtures("either_way")

HOWS = ["inner", "left", "right", "full", "semi", "anti"]
SCHEMAS = (with_weight(LEFT), with_weight(RIGHT))
EPOCHS = 4

crowded_lefts = st.tuples(st.just(1), st.just("a"), st.integers(0, 1), st.none(), st.none())
crowded_rights = st.tuples(st.just(1), st.just("a"), st.integers(0, 1), st.none())
histories = st.one_of(
    st.tuples(changelogs(lefts, 6, EPOCHS), changelogs(rights, 6, EPOCHS)),
    st.tuples(changelogs(crowded_lefts, 3, EPOCHS), changelogs(crowded_rights, 2, EPOCHS)),
)
appended = st.tuples(
    st.lists(st.lists(lefts, max_size=6), min_size=EPOCHS, max_size=EPOCHS),
    st.lists(st.lists(rights, max_size=6), min_size=EPOCHS, max_size=EPOCHS),
)

Sides = tuple[Counter[Row], Counter[Row]]


def a_join(
    how: Any, schemas: tuple[pl.Schema, pl.Schema] = SCHEMAS, ttl_ms: int | None = None
) -> Any:
    return build_operator(a_stage(ops.RegularJoin(how=how), ttl_ms), schemas)


def alone(right: Row) -> Row:
    """A right row without a partner; ``name``, which both sides have, is the right one's."""
    return (None, right[1], None, None, None, right[0], *right[2:])


def partners(row: Row, others: Iterable[Row]) -> int:
    return sum(is_pair(row, other) for other in others)


def join(how: str, present: Sides) -> Counter[Row]:
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


def check(operator: Operator, how: str, history: list[tuple[Epoch, Epoch]], random: Random) -> None:
    subtask = Subtask(operator, SCHEMAS)
    present: Sides = (Counter(), Counter())
    held: Counter[Row] = Counter()

    for epoch, time in zip(history, times_of([0] * len(history)), strict=True):
        present = (applied(present[0], epoch[0]), applied(present[1], epoch[1]))

        outcome = play(subtask, epoch, time, random)

        assert outcome.retracted is not None
        assert not bag(outcome.output) & bag(outcome.retracted)
        held = kept(held, outcome.output.rows(), outcome.retracted.rows())
        assert held == join(how, present)


@examples(20)
@given(histories, st.sampled_from(HOWS), seeds)
def test_what_was_yielded_and_not_taken_back_is_the_join(
    history: tuple[list[Epoch], list[Epoch]], how: str, random: Random
) -> None:
    check(a_join(how), how, list(zip(*history, strict=True)), random)


@examples(10)
@given(appended, st.sampled_from(["left", "right", "full", "anti"]), seeds)
def test_rows_of_append_only_sides_are_taken_back_when_a_partner_comes(
    history: tuple[list[Epoch], list[Epoch]], how: str, random: Random
) -> None:
    subtask = Subtask(a_join(how, (LEFT, RIGHT)), (LEFT, RIGHT))
    present: Sides = (Counter(), Counter())
    held: Counter[Row] = Counter()

    for epoch, time in zip(zip(*history, strict=True), times_of([0] * EPOCHS), strict=True):
        present = (present[0] + Counter(epoch[0]), present[1] + Counter(epoch[1]))

        outcome = play(subtask, epoch, time, random)

        assert outcome.retracted is not None
        held = kept(held, outcome.output.rows(), outcome.retracted.rows())
        assert held == join(how, present)


@examples(8)
@given(changelogs(lefts, 6, EPOCHS), appended, st.sampled_from(HOWS), seeds)
def test_one_side_may_be_append_only(
    left: list[Epoch], plain: tuple[list[Epoch], list[Epoch]], how: str, random: Random
) -> None:
    subtask = Subtask(a_join(how, (SCHEMAS[0], RIGHT)), (SCHEMAS[0], RIGHT))
    present: Sides = (Counter(), Counter())
    held: Counter[Row] = Counter()

    for epoch, time in zip(zip(left, plain[1], strict=True), times_of([0] * EPOCHS), strict=True):
        present = (applied(present[0], epoch[0]), present[1] + Counter(epoch[1]))

        outcome = play(subtask, epoch, time, random)

        assert outcome.retracted is not None
        held = kept(held, outcome.output.rows(), outcome.retracted.rows())
        assert held == join(how, present)


@examples(4)
@given(histories, st.sampled_from(HOWS), st.none() | st.just(1_000))
def test_neither_chunks_nor_order_nor_subtasks_decide_anything(
    history: tuple[list[Epoch], list[Epoch]], how: str, ttl_ms: int | None
) -> None:
    epochs, times = list(zip(*history, strict=True)), times_of([0] * EPOCHS)
    operator = a_join(how, ttl_ms=ttl_ms)

    check_cuts_decide_nothing(operator, SCHEMAS, epochs, times)
    check_subtasks_share_the_work(operator, SCHEMAS, epochs, times)


@pytest.mark.parametrize("how", ["inner", "semi"])
def test_of_append_only_sides_nothing_is_ever_taken_back(how: str) -> None:
    subtask = Subtask(a_join(how, (LEFT, RIGHT)), (LEFT, RIGHT))

    outcome = subtask.play([[]], [[]], time=times_of([0])[0])

    assert outcome.retracted is None
