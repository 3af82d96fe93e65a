"""Changelogs, and the bag of rows that is there after each epoch of one: the oracle's only memory.

A row of an epoch ends with its weight.  Rows come several times over, go in the epoch in which they
came or in a later one, and come again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import polars as pl
from hypothesis import strategies as st

from sluice.operators.operator import WEIGHT
from tests.property.operators.subtask import Epoch, Row


def with_weight(schema: pl.Schema) -> pl.Schema:
    return pl.Schema({**schema, WEIGHT: pl.Int8()})


@st.composite
def changelogs(
    draw: st.DrawFn, rows: st.SearchStrategy[Row], most_rows: int = 8, epochs: int | None = None
) -> list[Epoch]:
    """Epochs of rows that come and rows that are taken back, these having come before."""
    present: list[Row] = []
    history: list[Epoch] = []
    for _ in range(epochs or draw(st.integers(1, 5))):
        came = draw(st.lists(rows, max_size=most_rows))
        present += came
        places = draw(st.sets(st.integers(0, len(present) - 1))) if present else set()
        gone = [present[place] for place in sorted(places)]
        present = [row for place, row in enumerate(present) if place not in places]
        history.append([*((*row, 1) for row in came), *((*row, -1) for row in gone)])
    return history


def applied(present: Counter[Row], epoch: Epoch) -> Counter[Row]:
    """The bag after *epoch*."""
    after = Counter(present)
    for *row, weight in epoch:
        after[tuple(row)] += weight
    assert min(after.values(), default=0) >= 0, "nothing is taken back that was not there"
    return +after


def kept(held: Counter[Row], output: Sequence[Row], retracted: Iterable[Row]) -> Counter[Row]:
    """What a consumer has that *held* so much; it is only told to give back what it has."""
    gone = Counter(retracted)
    assert not gone - held, "only what was sent can be taken back"
    return held - gone + Counter(output)
