"""The order of state: by hash, then by the rest of the identity, nulls first; the newest row wins.

Hashes are nearly unique, so rows are sorted by hash alone, and then only rows with equal hashes by
the other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_

import numpy as np
import numpy.typing as npt
import polars as pl

from sluice.subtask.state.segments import HASH

Indices = npt.NDArray[np.int64]

# Timsort merges ascending stretches, 16 runs of state as well as two: 2.5 million rows take 8 ms to
# 30 ms.  With stretches shorter than this on average, sorting anew (50 ms) is faster.
_LONG_STRETCH = 64


def newest_per_identity(rows: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    """The first row of each identity in *rows*, sorted by identity (hash first, nulls first)."""
    assert identity[0] == HASH
    order = order_of(rows[HASH].to_numpy())
    if order is not None:
        rows = gathered(rows, order)
    hashes = rows[HASH].to_numpy()
    twins = np.flatnonzero(hashes[1:] == hashes[:-1])  # Rows with the same hash as the next one.
    if not len(twins):
        return rows
    others = identity[1:]
    left, right = _pairs(rows, twins, others)
    if not _ascend(left, right):
        # Except for collisions they differ in sub-keys only, and sorting by strings is slow.
        differ = [n for n in others if not left[n].eq_missing(right[n]).all()]
        rows = gathered(rows, _order_within_hashes(rows.select(HASH, *differ), twins))
        left, right = _pairs(rows, twins, others)
    repeated = reduce(and_, (left[n].eq_missing(right[n]) for n in others)).to_numpy()
    if not repeated.any():
        return rows
    return gathered(rows, np.delete(np.arange(rows.height), twins[repeated] + 1))


def order_of(hashes: Indices) -> Indices | None:
    """The stable order that sorts *hashes*; None if they are sorted."""
    descents = np.count_nonzero(hashes[1:] < hashes[:-1])
    if not descents:
        return None
    if descents * _LONG_STRETCH < len(hashes):
        return np.argsort(hashes, kind="stable")
    # Sorting numbers is four times faster than sorting indices: sort the high bits of each hash
    # with its index in the place of the low ones.  Those bits tell nearly all hashes apart.  Polars
    # sorts them three times as fast as NumPy.
    indices = (1 << (len(hashes) - 1).bit_length()) - 1
    packed = pl.Series((hashes & ~indices) | np.arange(len(hashes)))
    order: Indices = packed.sort().to_numpy() & indices
    ordered = hashes[order]
    if np.all(ordered[1:] >= ordered[:-1]):
        return order
    return order[np.argsort(ordered, kind="stable")]


def gathered(rows: pl.DataFrame, indices: Indices) -> pl.DataFrame:
    return rows[pl.Series(indices.astype(np.uint32))]  # The type of Polars' indices.


def with_next(rows: Indices, height: int) -> Indices:
    """*rows* of a frame of *height*, and the row behind each; ascending, each once."""
    is_in = np.zeros(height, np.bool_)
    is_in[rows] = is_in[rows + 1] = True
    return np.flatnonzero(is_in)


def _pairs(
    rows: pl.DataFrame, twins: Indices, columns: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Each of *twins*, and the row after it."""
    return gathered(rows.select(columns), twins), gathered(rows.select(columns), twins + 1)


def can_compare(schema: pl.Schema) -> bool:
    """Whether rows of these columns can be compared; Polars sorts nested ones, and no more."""
    return not any(dtype.is_nested() for dtype in schema.values())


def precedes(left: pl.DataFrame, right: pl.DataFrame, *, or_equals: bool) -> pl.Series:
    """Whether each row of *left* comes before the row of *right* beside it."""
    fine = pl.repeat(or_equals, left.height, dtype=pl.Boolean, eager=True)
    for name in reversed(left.columns):
        a, b = left[name], right[name]
        smaller = (a < b).fill_null(value=False) | (a.is_null() & b.is_not_null())
        fine = smaller | (a.eq_missing(b) & fine)
    return fine


def _ascend(left: pl.DataFrame, right: pl.DataFrame) -> bool:
    """Whether no row of *left* comes after the one beside it; False if it cannot be compared."""
    return can_compare(left.schema) and bool(precedes(left, right, or_equals=True).all())


def _order_within_hashes(rows: pl.DataFrame, twins: Indices) -> Indices:
    """The order that sorts *rows*, sorted by their hashes already, by the other columns, too."""
    shared = with_next(twins, rows.height)
    within = gathered(rows, shared).select(pl.arg_sort_by(rows.columns, maintain_order=True))
    order = np.arange(rows.height)
    order[shared] = shared[within.to_series().to_numpy()]
    return order
