"""Comparisons row by row: of two frames, or of each row with the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

import polars as pl

_NUMBER = "_number"


def differs(left: pl.DataFrame, right: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """Row by row, whether two frames of one height differ in any of *columns*."""
    same = pl.repeat(False, left.height, dtype=pl.Boolean, eager=True)  # noqa: FBT003 - a value
    return reduce(or_, (left[name].ne_missing(right[name]) for name in columns), same)


def beside(rows: pl.DataFrame, others: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    """For each of *rows* the one of *others* with its *identity*; all null where there is none."""
    numbered = others.with_row_index(_NUMBER).select(*identity, _NUMBER)
    joined = rows.select(identity).join(
        numbered, on=identity, how="left", nulls_equal=True, maintain_order="left"
    )
    return others.select(pl.all().gather(joined[_NUMBER]))


def differs_from_previous(columns: Sequence[str]) -> pl.Expr:
    """Whether a sorted row is the first with its values in *columns*, which start with the hash."""
    return reduce(or_, (pl.col(name).ne_missing(pl.col(name).shift()) for name in columns))
