"""Operations on a frame without a query: columns chosen, rows kept, a constant, a comparison.

``select``, ``drop``, ``filter`` and a literal are queries, which Polars plans and optimizes: 0.1 to
0.2 ms each, however few the rows are.  A subtask of few rows asked some sixty of them, which was
nearly all of its time; these take a few microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import polars as pl


def chosen(rows: pl.DataFrame, names: Iterable[str]) -> pl.DataFrame:
    """The columns *names* of *rows*, in that order."""
    return rows[:, list(names)]  # Without the colon Polars makes a series of the names first.


def without(rows: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """*rows* without the columns *names*, as far as they have them."""
    rest = [name for name in rows.columns if name not in names]
    return rows if len(rest) == rows.width else chosen(rows, rest)


def passing(rows: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """The *rows* for which *mask* is true."""
    if mask.all(ignore_nulls=False):
        return rows
    return rows.filter(mask) if mask.any() else rows.clear()


def constant(name: str, value: object, dtype: pl.DataType, height: int) -> pl.Series:
    return pl.Series(name, [value], dtype).new_from_index(0, height)


def differ(left: pl.Series, right: pl.Series) -> pl.Series:
    """Value by value, whether two columns of one type differ; nulls are equal to each other."""
    return left != right if _compare_plainly(left, right) else left.ne_missing(right)


def agree(left: pl.Series, right: pl.Series) -> pl.Series:
    """Value by value, whether two columns of one type are equal; nulls are equal to each other."""
    return left == right if _compare_plainly(left, right) else left.eq_missing(right)


def _compare_plainly(left: pl.Series, right: pl.Series) -> bool:
    is_flat = left.dtype == right.dtype and not left.dtype.is_nested()
    return is_flat and not left.null_count() and not right.null_count() and len(left) == len(right)
