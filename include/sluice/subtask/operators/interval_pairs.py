"""Pairs of rows of two frames: equal keys, and the time of one in the interval of the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

Indices = npt.NDArray[np.int64]

_NOWHERE = -1
_ID = "_id"


def interval_pairs(
    left: pl.DataFrame,
    right: pl.DataFrame,
    key: Sequence[str],
    *,
    lower: pl.Expr,
    upper: pl.Expr,
    at: pl.Expr,
) -> tuple[Indices, Indices]:
    """All pairs of equal *key* with ``lower <= at <= upper``, as places in *left* and in *right*.

    In the order of *left*, then of *at*, then of *right*.  *lower* and *upper*, of left rows, and
    *at*, of right rows, are int64.  A null, in a key or a bound, matches nothing.  The cost follows
    the rows and the pairs, not the rows of a key squared.
    """
    if left.is_empty() or right.is_empty():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys = right.select(key).unique().with_row_index(_ID)
    left_ids, right_ids = _ids(left, keys, key), _ids(right, keys, key)
    times = right.select(at).to_series().to_numpy()
    # Times are replaced by their ranks, so that key and rank fit into one number to search for.
    ranked = np.sort(times)
    span = len(ranked) + 1
    places = right_ids * span + np.searchsorted(ranked, times)
    order = np.argsort(places, kind="stable")
    bounds = left.select(lower.alias("lower"), upper.alias("upper"))
    is_bounded = bounds.select(pl.all_horizontal(pl.all().is_not_null())).to_series().to_numpy()
    filled = bounds.fill_null(0)
    lowers = np.searchsorted(ranked, filled["lower"].to_numpy())
    uppers = np.searchsorted(ranked, filled["upper"].to_numpy(), side="right")
    base = left_ids * span
    sorted_places = places[order]
    first = np.searchsorted(sorted_places, base + lowers)
    end = np.searchsorted(sorted_places, base + uppers)
    # A key that is missing on the right is searched before all places; an interval may be empty.
    counts = np.where(is_bounded, np.maximum(end - first, 0), 0)
    starts = np.cumsum(counts) - counts
    found = np.repeat(first - starts, counts) + np.arange(counts.sum())
    return np.repeat(np.arange(left.height), counts), order[found]


def _ids(rows: pl.DataFrame, keys: pl.DataFrame, key: Sequence[str]) -> Indices:
    """The number of each row's key among *keys*."""
    numbered = rows.select(key).join(keys, on=list(key), how="left", maintain_order="left")
    return numbered[_ID].cast(pl.Int64).fill_null(_NOWHERE).to_numpy()
