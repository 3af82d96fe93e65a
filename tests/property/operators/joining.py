"""What the property tests of joins share: two inputs, their histories, and what a pair is.

Keys are few, some of them null, and the columns of the two sides overlap in a key column only.
Instants differ by less than a millisecond at times.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from random import Random

import polars as pl
from hypothesis import strategies as st

from sluice.declaration import operations as ops
from sluice.declaration.nodes import Input, StageNode
from sluice.operators.operator import EpochTime, Outcome
from tests.property.operators.played import EPOCH, MS, rising
from tests.property.operators.subtask import Epoch, Row, Subtask, in_chunks

INSTANT = pl.Datetime("us", "UTC")
LEFT = pl.Schema(
    {"id": pl.Int64(), "name": pl.String(), "value": pl.Int32(), "at": INSTANT, "until": INSTANT}
)
RIGHT = pl.Schema({"key": pl.Int64(), "name": pl.String(), "score": pl.Int64(), "seen": INSTANT})
SCHEMAS = (LEFT, RIGHT)
ids = st.sampled_from([None, 0, 1])
names = st.sampled_from([None, "a", "b", "b"])
instants = st.none() | st.integers(-35_000, 35_000).map(lambda us: EPOCH + us * MS / 1000)
lefts = st.tuples(ids, names, st.integers(0, 2), instants, instants)
rights = st.tuples(ids, names, st.integers(0, 2), instants)
epochs = st.tuples(st.lists(lefts, max_size=9), st.lists(rights, max_size=9))
histories = st.lists(epochs, min_size=1, max_size=4)

History = list[tuple[Epoch, Epoch]]
Played = tuple[History, list[EpochTime]]


@st.composite
def timed_histories(draw: st.DrawFn) -> Played:
    history = draw(histories)
    return history, draw(rising(len(history)))


def a_stage(operation: ops.Operation, ttl_ms: int | None = None) -> StageNode:
    return StageNode(
        uid="join",
        operation=operation,
        inputs=(
            Input(producer="left", keys=("id", "name"), event_time="at"),
            Input(producer="right", keys=("key", "name"), event_time="seen"),
        ),
        ttl_ms=ttl_ms,
    )


def key_of(row: Row) -> Row | None:
    """None, which equals nothing, if any of it is null."""
    return None if None in row[:2] else row[:2]


def is_pair(left: Row, right: Row) -> bool:
    return key_of(left) is not None and key_of(left) == key_of(right)


def joined(left: Row, right: Row | None) -> Row:
    """The result's row: all of the left, then the right without ``name``, which both have."""
    right = right or (None,) * len(RIGHT)
    return (*left, right[0], *right[2:])


def ms_of(instant: datetime) -> int:
    return (instant - EPOCH) // MS


def bag(frame: pl.DataFrame) -> Counter[Row]:
    return Counter(frame.rows())


def play(subtask: Subtask, epoch: tuple[Epoch, Epoch], time: EpochTime, random: Random) -> Outcome:
    return subtask.play(
        *(in_chunks(side, random) for side in epoch),
        time=time,
        merge=random.random() < 0.3,
        by_hash=random.random() < 0.5,
    )
