"""A subtask in memory: plays epochs through an operator, their changes becoming its state.

The hash of a key has two values, so that most keys share theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import polars as pl

from sluice.runtime.operators.operator import Operator, Outcome, Watermarks
from sluice.runtime.state.keyed import KeyedState, Run, delta_table, merge_runs, min_time
from sluice.runtime.state.segments import HASH

Row = tuple[Any, ...]
Epoch = list[Row]

INPUT = pl.Schema(
    {
        "id": pl.Int64(),
        "name": pl.String(),
        "value": pl.Int32(),
        "at": pl.Datetime("us", "UTC"),
    }
)


def a_hash(row: Row) -> int:
    """Of the key, id and name; two values."""
    return ((row[0] or 0) + len(row[1] or "")) % 2


def a_frame(epoch: Sequence[Row], schema: pl.Schema = INPUT) -> pl.DataFrame:
    hashed = [(a_hash(row), *row) for row in epoch]
    return pl.DataFrame(hashed, schema={HASH: pl.Int64(), **schema}, orient="row")


def in_chunks(epoch: Sequence[Row], random: Random) -> list[list[Row]]:
    """The epoch's rows, shuffled and cut anywhere; at least one chunk."""
    shuffled = random.sample(epoch, len(epoch))
    chunks: list[list[Row]] = [[] for _ in range(random.randint(1, 3))]
    for row in shuffled:
        random.choice(chunks).append(row)
    return chunks


@dataclass
class Subtask:
    """Plays epochs as a subtask does, its state in memory."""

    operator: Operator
    schema: pl.Schema

    def __post_init__(self) -> None:
        self.runs: list[Run] = []

    @property
    def state(self) -> KeyedState:
        return KeyedState(self.operator.state_schema, self.runs)

    def play(self, chunks: list[list[Row]], watermarks: Watermarks, merge: bool = False) -> Outcome:
        operator = self.operator
        partials = [operator.partial(a_frame(c, self.schema), watermarks) for c in chunks]
        groups = operator.combine(partials[0].groups)
        for partial in partials[1:]:
            groups = operator.combine(pl.concat([groups, partial.groups]))
        outcome = operator.process(groups, self.state, watermarks)
        self._keep(outcome, merge)
        late = pl.concat([outcome.late, *(partial.late for partial in partials)])
        return Outcome(
            output=outcome.output, upserts=outcome.upserts, deletes=outcome.deletes, late=late
        )

    def _keep(self, outcome: Outcome, merge: bool) -> None:
        schema = self.operator.state_schema
        assert outcome.output.schema == self.operator.output_schema
        assert outcome.upserts.schema == schema.live
        assert outcome.late.schema == self.schema
        table = delta_table(schema, outcome.upserts, outcome.deletes)
        self.runs.append(Run(table=table, min_time_ms=min_time(schema, table)))
        if merge:
            table = merge_runs(schema, self.runs, drop_tombstones=True)
            self.runs = [Run(table=table, min_time_ms=min_time(schema, table))]


def same(left: Outcome, right: Outcome) -> bool:
    """Row by row; only late rows leave in the order they came."""
    frames = [(left.output, right.output), (left.upserts, right.upserts)]
    frames += [(left.deletes, right.deletes)]
    return all(a.equals(b) for a, b in frames) and left.late.sort(pl.all()).equals(
        right.late.sort(pl.all())
    )


def check_cuts_decide_nothing(
    operator: Operator, schema: pl.Schema, history: list[Epoch], watermarks: list[Watermarks]
) -> None:
    one, other = Subtask(operator, schema), Subtask(operator, schema)
    random = Random(len(history))

    for epoch, marks in zip(history, watermarks, strict=True):
        whole = one.play([epoch], marks)
        cut = other.play(in_chunks(epoch, random), marks, merge=random.random() < 0.5)
        assert same(whole, cut)

    assert one.state.scan().equals(other.state.scan())


def check_subtasks_share_the_work(
    operator: Operator, schema: pl.Schema, history: list[Epoch], watermarks: list[Watermarks]
) -> None:
    alone = Subtask(operator, schema)
    shares = [Subtask(operator, schema) for _ in range(2)]

    for epoch, marks in zip(history, watermarks, strict=True):
        expected = alone.play([epoch], marks)
        outcomes = [
            share.play([[row for row in epoch if a_hash(row) == index]], marks)
            for index, share in enumerate(shares)
        ]
        together = pl.concat([outcome.output for outcome in outcomes])
        assert together.sort(pl.all()).equals(expected.output.sort(pl.all()))
