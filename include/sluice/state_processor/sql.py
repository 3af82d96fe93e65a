"""Changes of a table's rows that are said in SQL: which rows go, and what their columns become.

The SQL is Polars', as behind a stage's result: an expression of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl

from sluice.declaration.steps import across_rows
from sluice.errors import ConfigurationError
from sluice.state_processor.rows import Function
from sluice.subtask.row_sql import expression


def dropping(where: str) -> Function:
    """Leaves out the rows for which *where* is true."""

    def function(rows: pl.DataFrame) -> pl.DataFrame:
        is_dropped = _condition(where, rows)
        return _computed(where, lambda: rows.filter(~is_dropped.fill_null(value=False)))

    return function


def setting(columns: Mapping[str, str], where: str | None = None) -> Function:
    """Computes *columns*, each by its SQL of the row as it was, of those rows alone for which
    *where* is true.
    """

    def function(rows: pl.DataFrame) -> pl.DataFrame:
        is_set = pl.lit(value=True) if where is None else _condition(where, rows)
        for name in columns:
            if name not in rows.columns:
                raise ConfigurationError(
                    f"the state has no column {name!r} to set; it has {', '.join(rows.columns)}"
                )
        changed = [
            pl.when(is_set).then(_expression(sql, rows)).otherwise(pl.col(name)).alias(name)
            for name, sql in columns.items()
        ]
        return _computed(", ".join(columns.values()), lambda: rows.with_columns(changed))

    return function


def _condition(sql: str, rows: pl.DataFrame) -> pl.Expr:
    found = _expression(sql, rows)
    of = _computed(sql, lambda: rows.head(0).select(found)).dtypes[0]
    if of != pl.Boolean():
        raise ConfigurationError(f"{sql!r} is {of}, and has to say yes or no of each row")
    return found


def _expression(sql: str, rows: pl.DataFrame) -> pl.Expr:
    what = across_rows(sql)
    if what is not None:
        raise ConfigurationError(f"{sql!r} has {what}, and has to be of one row by itself")
    try:
        return expression(sql, rows.columns)
    except pl.exceptions.PolarsError as error:
        raise ConfigurationError(f"{sql!r} is no SQL of one row: {_first_line(error)}") from error


def _computed(sql: str, work: Callable[[], pl.DataFrame]) -> pl.DataFrame:
    try:
        return work()
    except pl.exceptions.PolarsError as error:
        raise ConfigurationError(f"{sql!r} cannot be computed: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
