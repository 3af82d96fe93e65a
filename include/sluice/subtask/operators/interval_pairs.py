"""Pairs of rows of two frames: equal keys, and the time of one in the interval of the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

import numpy as np
import numpy.typing as npt
import polars as pl

Indices = npt.NDArray[np.int64]

_STRETCH = "_stretch"


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

    *right* is sorted by *key*, and the rows of a key by *at*, so nothing is sorted here: the cost
    follows the left rows and the pairs.  The pairs are in the order of *left*, then of *right*.
    *lower* and *upper*, of left rows, and *at*, of right rows, are int64.  A null, in a key or a
    bound, matches nothing.
    """
    if left.is_empty() or right.is_empty():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    starts, ends = _stretches(left, right, key)
    times = right.select(at).to_series().to_numpy()
    bounds = left.select(lower.alias("lower"), upper.alias("upper"))
    is_bounded = bounds.select(pl.all_horizontal(pl.all().is_not_null())).to_series().to_numpy()
    filled = bounds.fill_null(0)
    first = _places(times, filled["lower"].to_numpy(), starts, ends, after_equals=False)
    end = _places(times, filled["upper"].to_numpy(), starts, ends, after_equals=True)
    counts = np.where(is_bounded, np.maximum(end - first, 0), 0)  # An interval may be empty.
    offsets = np.cumsum(counts) - counts
    found = np.repeat(first - offsets, counts) + np.arange(counts.sum())
    return np.repeat(np.arange(left.height), counts), found


def _stretches(
    left: pl.DataFrame, right: pl.DataFrame, key: Sequence[str]
) -> tuple[Indices, Indices]:
    """For each left row, the first place of its key in *right*, and the one behind its last."""
    is_first = reduce(or_, (pl.col(name).ne_missing(pl.col(name).shift()) for name in key))
    heads = right.select(is_first).to_series().to_numpy(writable=True)
    heads[0] = True
    starts = np.flatnonzero(heads)
    numbered = right[starts].select(key).with_row_index(_STRETCH)
    joined = left.select(key).join(numbered, on=list(key), how="left", maintain_order="left")
    stretch = joined[_STRETCH].cast(pl.Int64).fill_null(len(starts)).to_numpy()
    # The last stretch, of keys that are missing on the right, is empty.
    firsts = np.append(starts, right.height)
    ends = np.append(firsts[1:], right.height)
    return firsts[stretch], ends[stretch]


def _places(
    times: Indices, sought: Indices, starts: Indices, ends: Indices, *, after_equals: bool
) -> Indices:
    """Where each time *sought* would be inserted among those from its start to its end."""
    low, high = starts.copy(), ends.copy()
    while len(still := np.flatnonzero(low < high)):
        middle = (low[still] + high[still]) // 2
        found, wanted = times[middle], sought[still]
        is_before = found <= wanted if after_equals else found < wanted
        low[still[is_before]] = middle[is_before] + 1
        high[still[~is_before]] = middle[~is_before]
    return low
