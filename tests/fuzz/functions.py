"""The functions of the user that plans name: row-wise transforms, and functions of a key's state.

Each transform says what it does in SQL that DuckDB and Spark read alike, so the oracle reads the
very same text; what a keyed function does, ``oracle`` says again in its own words.
"""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import polars as pl

from sluice.declaration.keyed_functions import (
    BroadcastContext,
    BroadcastState,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    OnTimerContext,
    OperatorListState,
    Row,
    SubtaskContext,
    UnionListState,
)
from sluice.declaration.keyed_states import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateTtlConfig,
    ValueState,
)

# Longer than any history, so that nothing expires: what is written again must change no result.
_LONG = timedelta(days=10_000)
READ = StateTtlConfig(_LONG, StateTtlConfig.UpdateType.OnReadAndWrite)
ONCE_MORE = StateTtlConfig(
    _LONG,
    StateTtlConfig.UpdateType.OnReadAndWrite,
    StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp,
)
OURS = ("_source", "_malformed", "_raw", "_weight")


def project(rows: Any, columns: str, condition: str = "") -> Any:
    """A transform: ``columns`` is a list of SQL expressions, one a line."""
    if condition:
        rows = rows.where(condition)
    kept = [name for name in OURS if name in rows.columns]
    return rows.selectExpr(*columns.split("\n"), *kept)


def count_rows(key: str) -> Any:
    """A ``process``: of each key the rows of the epoch, and how many there have been."""

    def function(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        counted = rows.group_by(key, maintain_order=True).agg(pl.len().cast(pl.Int64).alias("rows"))
        both = counted.join(state, on=key, how="left", nulls_equal=True, maintain_order="left")
        total = both.select(
            key, "rows", (pl.col("rows") + pl.col("total").fill_null(0)).alias("total")
        )
        return total, total.select(key, "total")

    return function


class NumberRows(KeyedProcessFunction):
    """Numbers the rows of a key; two seconds after a row's time it yields the number again."""

    seen = ValueState(int)

    def __init__(self, key: str) -> None:
        self._key = key

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        self._count()
        if context.timestamp is not None:
            context.timers.register_event_time(context.timestamp + timedelta(seconds=2))
        yield {self._key: row[self._key], "number": self._number(), "fired_at": None}

    def on_timer(self, timestamp: Any, context: OnTimerContext) -> Iterable[Row]:
        yield {
            self._key: context.key[self._key],
            "number": self._number(),
            "fired_at": timestamp,
        }

    def _count(self) -> None:
        self.seen.set(self.seen.get(0) + 1)

    def _number(self) -> int:
        return self.seen.get(0)


class NumberByList(NumberRows):
    numbers = ListState(int, ttl=READ)

    def _count(self) -> None:
        self.numbers.add(len(self.numbers.get()))

    def _number(self) -> int:
        return len(self.numbers.get())


class NumberByMap(NumberRows):
    digits = MapState(str, int, ttl=ONCE_MORE)

    def _count(self) -> None:
        self.digits.put(f"n{self._number()}", 1)

    def _number(self) -> int:
        return sum(one for _, one in self.digits.items())


class NumberByReducing(NumberRows):
    added = ReducingState(operator.add, int, ttl=READ)

    def _count(self) -> None:
        self.added.add(1)

    def _number(self) -> int:
        return self.added.get() or 0


class _Twice(AggregateFunction[int, tuple[int, float], int]):
    """Counts a value once in whole numbers and once in others."""

    def create_accumulator(self) -> tuple[int, float]:
        return 0, 0.0

    def add(self, value: int, accumulator: tuple[int, float]) -> tuple[int, float]:
        return accumulator[0] + value, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, float]) -> int:
        return int(sum(accumulator)) // 2


class NumberByAggregating(NumberRows):
    counted = AggregatingState(_Twice(), tuple[int, float], ttl=ONCE_MORE)

    def _count(self) -> None:
        self.counted.add(1)

    def _number(self) -> int:
        return self.counted.get() or 0


class NumberByUnion(NumberRows):
    """Counts with a list of all subtasks; in each epoch another one takes over what all had."""

    noted = UnionListState(str)

    def initialize_state(self, context: SubtaskContext) -> None:
        before = self.noted.get()
        self._counted = Counter(before)
        if context.checkpoint_id % context.parallelism == context.subtask:
            self.noted.update(before)
        else:
            self.noted.clear()

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        self._current = json.dumps(row[self._key])
        return super().process(row, context)

    def on_timer(self, timestamp: Any, context: OnTimerContext) -> Iterable[Row]:
        self._current = json.dumps(context.key[self._key])
        return super().on_timer(timestamp, context)

    def _count(self) -> None:
        self._counted[self._current] += 1
        self.noted.add(self._current)

    def _number(self) -> int:
        return self._counted[self._current]


class HoldRows(NumberRows):
    """What it yields of a row waits in a list of the subtask for one epoch."""

    waiting = OperatorListState(str)

    def initialize_state(self, context: SubtaskContext) -> None:
        self._before = self.waiting.get()

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        for result in super().process(row, context):
            self.waiting.add(json.dumps(result))
        return ()

    def prepare_snapshot_pre_barrier(self, context: SubtaskContext) -> Iterable[Row]:
        self.waiting.update(self.waiting.get()[len(self._before) :])
        return map(json.loads, self._before)


LISTS = {"union": NumberByUnion, "split": HoldRows}


class HearRows(NumberRows, KeyedBroadcastProcessFunction):
    """Numbers nothing: yields how many rows all have heard of, without each third of a ``k``."""

    heard = BroadcastState(str, int)

    def process_broadcast(self, row: Row, context: BroadcastContext) -> None:
        of = json.dumps(row["k"])
        count = self.heard.get(of, 0) + 1
        if count == 3:
            self.heard.remove(of)
        else:
            self.heard.put(of, count)

    def _count(self) -> None: ...

    def _number(self) -> int:
        return sum(count for _, count in self.heard.items())


def number_rows(key: str, uid: str, lists: str = "", *, hears: bool = False) -> NumberRows:
    """One of the functions that number rows, each with state of another kind: that with operator
    *lists*, that which *hears* others, or else by the uid, so that a seed's plan stays what it was.
    """
    if hears:
        return HearRows(key)
    if lists:
        return LISTS[lists](key)
    kinds = (NumberRows, NumberByReducing, NumberByAggregating, NumberByMap, NumberByList)
    return kinds[sum(map(ord, uid)) % len(kinds)](key)
