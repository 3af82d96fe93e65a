"""A lookup of rows that are updated, against what it sent: a model that knows every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sluice.declaration.changelog import Upsert
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import KeyedLookup as Declared
from sluice.declaration.operations import Lookup
from sluice.operators.joins import KeyedLookupOperator
from sluice.operators.operator import WEIGHT
from tests.examples import examples
from tests.property.operators.played import play, seeds
from tests.property.operators.subtask import Epoch, Row, Subtask, check_content_alone_decides

INPUT = pl.Schema({"id": pl.Int64(), "city": pl.String(), WEIGHT: pl.Int8()})

# Per epoch, the keys that change, and the cities that Spark found for each: none, or several.
cities = st.lists(st.sampled_from([None, "Rome", "Bonn"]), max_size=3)
epochs = st.dictionaries(st.sampled_from([None, 0, 1, 2]), cities, max_size=4)
histories = st.lists(epochs, min_size=1, max_size=4)


def an_operator() -> KeyedLookupOperator:
    lookup = Lookup(table="table", on={"id": "id"}, keep="matched", add={"city": "city"})
    read = Input(producer="rows", kind=Upsert(("id",)), keys=("id",))
    stage = StageNode(uid="stage", operation=Declared(lookup=lookup), inputs=(read,))
    return KeyedLookupOperator(stage, INPUT)


def arriving(changes: dict[int | None, list[str | None]], known: set[int | None]) -> Epoch:
    """As Spark sends them: what is found, and a mark for every key that was there before."""
    new: Epoch = [(key, city, 1) for key, found in changes.items() for city in found]
    return [*new, *((key, None, -1) for key in changes if key in known)]


def history_of(history: Sequence[dict[int | None, list[str | None]]]) -> list[Epoch]:
    known: set[int | None] = set()
    rows = []
    for changes in history:
        rows.append(arriving(changes, known))
        known |= changes.keys()
    return rows


@examples(60)
@given(histories, seeds)
def test_what_was_sent_of_a_key_is_taken_back_when_it_changes_and_nothing_else(
    history: list[dict[int | None, list[str | None]]], random: Random
) -> None:
    subtask = Subtask(an_operator(), [INPUT], key_count=1)
    sent: dict[int | None, Counter[Row]] = {}
    for changes, rows in zip(history, history_of(history), strict=True):
        expected_back: Counter[Row] = Counter()
        expected: Counter[Row] = Counter()
        for key, found in changes.items():
            before = sent.get(key, Counter())
            sent[key] = Counter((key, city) for city in found)
            expected_back += before - sent[key]
            expected += sent[key] - before

        outcome = play(subtask, rows, random)

        assert outcome.retracted is not None
        assert Counter(outcome.retracted.rows()) == expected_back
        assert Counter(outcome.output.rows()) == expected


@examples(40)
@given(histories)
def test_neither_cuts_nor_subtasks_decide_anything(
    history: list[dict[int | None, list[str | None]]],
) -> None:
    rows = [[epoch] for epoch in history_of(history)]

    check_content_alone_decides(an_operator(), [INPUT], rows, key_count=1)
