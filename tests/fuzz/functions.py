"""The functions of the user that plans name: row-wise transforms, and functions of a key's state.

Each transform says what it does in SQL that DuckDB and Spark read alike, so the oracle reads the
very same text; what a keyed function does, ``oracle`` says again in its own words.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import polars as pl

from sluice.declaration.keyed_process import (
    Context,
    KeyedProcessFunction,
    OnTimerContext,
    Row,
    ValueState,
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
    """Numbers the rows of a key; two seconds behind a row's event time it tells the number then."""

    seen = ValueState(int)

    def __init__(self, key: str) -> None:
        self._key = key

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        number = self.seen.get(0) + 1
        self.seen.set(number)
        if context.timestamp is not None:
            context.timers.register_event_time(context.timestamp + timedelta(seconds=2))
        yield {self._key: row[self._key], "number": number, "fired_at": None}

    def on_timer(self, timestamp: Any, context: OnTimerContext) -> Iterable[Row]:
        yield {
            self._key: context.key[self._key],
            "number": self.seen.get(0),
            "fired_at": timestamp,
        }
