"""A subtask in memory: plays epochs through an operator, their changes becoming its state.

A side's rows are tuples in the order of its schema; the key columns come first.  The hash of a key
has two values, so that most keys share theirs.  An epoch is processed in one call, or in one call
per hash, as a subtask short of memory does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import polars as pl

from sluice.operators.operator import EpochTime, Operator, Outcome, input_schema
from sluice.state.keyed import Changes, KeyedState, delta_table
from sluice.state.merging import min_time
from sluice.state.runs import Run
from sluice.state.segments import HASH
from tests.merged_runs import merge_runs

Row = tuple[Any, ...]
Epoch = list[Row]
Cut = list[list[Row]]  # One side's rows of an epoch, in chunks.

INPUT = pl.Schema(
    {
        "id": pl.Int64(),
        "name": pl.String(),
        "value": pl.Int32(),
        "at": pl.Datetime("us", "UTC"),
    }
)


def a_hash(key: Sequence[Any]) -> int:
    """Two values."""
    return sum(len(part) if isinstance(part, str) else (part or 0) for part in key) % 2


def in_chunks(epoch: Sequence[Row], random: Random) -> Cut:
    """The epoch's rows, shuffled and cut anywhere; at least one chunk."""
    shuffled = random.sample(epoch, len(epoch))
    chunks: Cut = [[] for _ in range(random.randint(1, 3))]
    for row in shuffled:
        random.choice(chunks).append(row)
    return chunks


@dataclass
class Subtask:
    """Plays epochs as a subtask does, its state in memory.

    ``schemas`` has the schema of each side; the first ``key_count`` columns of each are its key.
    """

    operator: Operator
    schemas: Sequence[pl.Schema]
    key_count: int = 2
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))

    def state(self, now_ms: int = 0) -> dict[str, KeyedState]:
        return {
            name: KeyedState(schema, self.runs[name], now_ms=now_ms)
            for name, schema in self.operator.tables.items()
        }

    def frame(self, epoch: Sequence[Row], side: int = 0) -> pl.DataFrame:
        hashed = [(int(a_hash(row[: self.key_count])), *row) for row in epoch]
        schema = {HASH: pl.Int64(), **self.schemas[side]}
        return pl.DataFrame(hashed, schema=schema, orient="row")

    def play(
        self, *sides: Cut, time: EpochTime, merge: bool = False, by_hash: bool = False
    ) -> Outcome:
        """Play one epoch; ``late`` of the outcome has the late rows of all calls."""
        groups: dict[str, pl.DataFrame] = {}
        late: dict[int, list[pl.DataFrame]] = defaultdict(list)
        for side, chunks in enumerate(sides):
            for chunk in chunks:
                partial = self.operator.partial(self.frame(chunk, side), time, side)
                assert partial.late.schema == input_schema(self.schemas[side])
                late[side].append(partial.late)
                both = {
                    name: pl.concat([groups[name], frame]) if name in groups else frame
                    for name, frame in partial.groups.items()
                }
                groups |= self.operator.combine(both)
        state = self.state(time.processing_time_ms)
        if by_hash:
            outcomes = [
                self.operator.process(
                    {name: frame.filter(pl.col(HASH) == h) for name, frame in groups.items()},
                    {name: table.slice(h, h) for name, table in state.items()},
                    time,
                )
                for h in (0, 1)
            ]
        else:
            outcomes = [self.operator.process(groups, state, time)]
        outcome = _together(outcomes)
        self._keep(outcome, time, merge=merge)
        for side, frame in outcome.late.items():
            late[side].append(frame)
        together = {side: pl.concat(frames) for side, frames in late.items()}
        return Outcome(
            output=outcome.output,
            retracted=outcome.retracted,
            changes=outcome.changes,
            late=together,
        )

    def _keep(self, outcome: Outcome, time: EpochTime, *, merge: bool) -> None:
        assert outcome.output.schema == self.operator.output_schema
        assert outcome.retracted is None or outcome.retracted.schema == outcome.output.schema
        for name, changes in outcome.changes.items():
            schema = self.operator.tables[name]
            assert changes.upserts.schema == schema.live
            table = delta_table(
                schema, changes.upserts, changes.deletes, now_ms=time.processing_time_ms
            )
            self.runs[name].append(Run(table=table, min_time_ms=min_time(schema, table)))
            if merge:
                table = merge_runs(
                    schema, self.runs[name], drop_tombstones=True, now_ms=time.processing_time_ms
                )
                self.runs[name] = [Run(table=table, min_time_ms=min_time(schema, table))]


def same(left: Outcome, right: Outcome) -> bool:
    """Row by row; only late rows leave in the order they came."""
    frames = [(left.output, right.output)]
    if left.retracted is not None and right.retracted is not None:
        frames.append((left.retracted, right.retracted))
    for name in left.changes.keys() | right.changes.keys():
        frames.append((left.changes[name].upserts, right.changes[name].upserts))
        frames.append((left.changes[name].deletes, right.changes[name].deletes))
    late = [(left.late[side].sort(pl.all()), right.late[side].sort(pl.all())) for side in left.late]
    return all(a.equals(b) for a, b in (*frames, *late))


def check_content_alone_decides(
    operator: Operator,
    schemas: Sequence[pl.Schema],
    history: Sequence[Sequence[Epoch]],
    times: Sequence[EpochTime] | None = None,
    key_count: int = 2,
) -> None:
    """Neither chunks nor the order of rows nor the number of subtasks change what is played.

    *history* has, per epoch, the rows of each side.
    """
    times = [EpochTime()] * len(history) if times is None else times
    _check_cuts(operator, schemas, history, times, key_count)
    _check_subtasks(operator, schemas, history, times, key_count)


def _check_cuts(
    operator: Operator,
    schemas: Sequence[pl.Schema],
    history: Sequence[Sequence[Epoch]],
    times: Sequence[EpochTime],
    key_count: int,
) -> None:
    one = Subtask(operator, schemas, key_count)
    other = Subtask(operator, schemas, key_count)
    random = Random(len(history))

    for epoch, time in zip(history, times, strict=True):
        whole = one.play(*([side] for side in epoch), time=time)
        cut = other.play(
            *(in_chunks(side, random) for side in epoch),
            time=time,
            merge=random.random() < 0.5,
            by_hash=random.random() < 0.5,
        )
        assert same(whole, cut)

    now_ms = times[-1].processing_time_ms if times else 0
    for name, state in one.state(now_ms).items():
        assert state.scan().equals(other.state(now_ms)[name].scan())


def _check_subtasks(
    operator: Operator,
    schemas: Sequence[pl.Schema],
    history: Sequence[Sequence[Epoch]],
    times: Sequence[EpochTime],
    key_count: int,
) -> None:
    alone = Subtask(operator, schemas, key_count)
    shares = [Subtask(operator, schemas, key_count) for _ in range(2)]

    for epoch, time in zip(history, times, strict=True):
        expected = alone.play(*([side] for side in epoch), time=time)
        outcomes = [
            share.play(
                *([[row for row in side if a_hash(row[:key_count]) == index]] for side in epoch),
                time=time,
            )
            for index, share in enumerate(shares)
        ]
        together = pl.concat([outcome.output for outcome in outcomes])
        assert together.sort(pl.all()).equals(expected.output.sort(pl.all()))


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    names = {name for outcome in outcomes for name in outcome.changes}
    retracted = [o.retracted for o in outcomes if o.retracted is not None]
    sides = {side for outcome in outcomes for side in outcome.late}
    return Outcome(
        output=pl.concat([outcome.output for outcome in outcomes]),
        retracted=pl.concat(retracted) if retracted else None,
        changes={
            name: Changes(
                upserts=pl.concat([o.changes[name].upserts for o in outcomes if name in o.changes]),
                deletes=pl.concat([o.changes[name].deletes for o in outcomes if name in o.changes]),
            )
            for name in names
        },
        late={
            side: pl.concat([o.late[side] for o in outcomes if side in o.late]) for side in sides
        },
    )
