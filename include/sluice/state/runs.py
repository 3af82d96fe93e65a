"""Runs: the sorted tables that keyed state is made of, opened only when they are needed.

State is ordered by hash, then by the rest of the identity, nulls first; the newest row of an
identity wins.  Hashes are nearly unique, so rows are sorted by hash alone, and then only rows with
equal hashes by the other columns.  Hashes are evenly distributed, so in a long run the place of one
is estimated from its value, and a binary search is for short runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from operator import and_
from threading import Lock
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sluice.core.handles import MAX_HASH, MIN_HASH, SegmentHandle, StateHandle
from sluice.state.at_once import agree, chosen, constant, without
from sluice.state.evolution import Evolution, Evolutions, identity_metadata
from sluice.state.segments import HASH, StateSchema, hash_column, to_frame, to_table

Indices = npt.NDArray[np.int64]

# Rows of one hash are nearly always of one key.  Below this many rows all are compared; from there
# on the wanted ones are found by a search.
BISECT_FROM = 16

# In fewer rows a binary search stays in the processor's caches.  100,000 sorted keys: in 1 million
# rows 5 ms either way; in 10 million 10 ms by interpolation, 20 ms without; in 50 million 15 ms,
# 50 ms without.
_INTERPOLATE_FROM = 2**21

_CHUNK = 2**14  # Keys searched for at a time: the steps below work within a processor's cache.
_STEPS = 2  # Each step takes the error, in rows, to about its square root: 50 million, 7,000, 80.
_NEAR = 16  # An estimate this near is made exact by halving; any other key is searched for.

# Timsort merges ascending stretches, 16 runs of state as well as two: 2.5 million rows take 8 ms to
# 30 ms.  With stretches shorter than this on average, sorting anew (50 ms) is faster.
_LONG_STRETCH = 64

# A million rows in 100 chunks are gathered in 0.58 CPU seconds, in one chunk in 0.12; to put them
# into one takes 0.02.
_FEW_OF_A_CHUNK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One segment of state, and the range of hashes (both ends included) that this subtask owns.

    Its rows are sorted by identity, and no two have the same.  Several segments of disjoint hashes
    may together be one sorted run.  ``table`` may be a function that opens the segment, called at
    most once, when a row is needed.  ``min_time_ms`` is a lower bound of its live rows' timers;
    None if there are none.  ``last_write_ms`` is the time of its newest write; None if unknown.
    """

    table: pa.Table | Callable[[], pa.Table]
    first_hash: int = MIN_HASH
    last_hash: int = MAX_HASH
    min_time_ms: int | None = None
    last_write_ms: int | None = None

    @classmethod
    def of(cls, handle: StateHandle, open_segment: Callable[[SegmentHandle], pa.Table]) -> Run:
        return cls(
            table=partial(open_segment, handle.segment),
            first_hash=handle.first_hash,
            last_hash=handle.last_hash,
            min_time_ms=handle.min_time_ms,
            last_write_ms=handle.last_write_ms,
        )


class RunSlice:
    """The rows of a run between two hashes, both included: a view of the segment's memory."""

    def __init__(self, lazy: _LazyRun, run: Run, first_hash: int, last_hash: int) -> None:
        self._lazy = lazy
        self._run = run
        self.first_hash = first_hash
        self.last_hash = last_hash
        self.min_time_ms = run.min_time_ms

    @classmethod
    def of(cls, run: Run, evolutions: Evolutions) -> RunSlice:
        return cls(_LazyRun(run, evolutions), run, run.first_hash, run.last_hash)

    def between(self, first_hash: int, last_hash: int) -> RunSlice | None:
        """The part of this slice between two hashes; None if it has no rows there."""
        first_hash, last_hash = max(first_hash, self.first_hash), min(last_hash, self.last_hash)
        if first_hash > last_hash:
            return None
        return RunSlice(self._lazy, self._run, first_hash, last_hash)

    def has_expired(self, schema: StateSchema, now_ms: int) -> bool:
        return schema.has_expired(self._run.last_write_ms, now_ms)

    def overlaps(self, other: RunSlice) -> bool:
        return self.first_hash <= other.last_hash and other.first_hash <= self.last_hash

    @cached_property
    def hashes(self) -> Indices:
        first, end = self._span
        return self._lazy.opened().hashes[first:end]

    def rows(self, start: int, end: int) -> pl.DataFrame:
        """Stored rows from the place *start* to before *end*."""
        opened = self._lazy.opened()
        table = opened.table.slice(self._span[0] + start, end - start)
        return opened.evolution.evolved(to_frame(table))

    def all_rows(self) -> pl.DataFrame:
        return self.rows(0, len(self.hashes))

    def hits(
        self, rows: pl.DataFrame, hashes: Indices, missing: npt.NDArray[np.bool_]
    ) -> Hits | None:
        """Stored rows that may match one of the *missing* ones of *rows*; None if there are none.

        *rows* are sorted by their *hashes*, and have the first columns of the identity.
        """
        first = int(np.searchsorted(hashes, self.first_hash))
        end = int(np.searchsorted(hashes, self.last_hash, side="right"))
        wanted = first + np.flatnonzero(missing[first:end])
        if not len(wanted):
            return None  # The run stays closed.
        blocks = equal_hashes(self.hashes, hashes[wanted])
        large = np.flatnonzero(blocks.counts > BISECT_FROM)
        others = without(rows, (HASH,))
        if len(large) and can_compare(others.schema):
            sought = gathered(others, wanted[blocks.which[large]])
            starts = blocks.first[large]
            ends = starts + blocks.counts[large]
            low = self._bisected(sought, starts, ends, after_equals=False)
            blocks.first[large] = low
            blocks.counts[large] = self._bisected(sought, low, ends, after_equals=True) - low
        which, where = blocks.pairs()
        if not len(which):
            return None
        opened = self._lazy.opened()
        table = opened.table.take(pa.array(where + self._span[0]))
        return Hits(wanted[which], table, opened.evolution)

    def where(self, column: str, condition: pl.Expr) -> pl.DataFrame:
        """Stored rows, tombstones too, for which a *condition* on that one *column* holds."""
        opened = self._lazy.opened()
        if column not in opened.evolution.columns:
            return opened.evolution.evolved(to_frame(opened.table.slice(0, 0)))
        first, end = self._span
        values = to_frame(opened.table.select([column]).slice(first, end - first))
        places = values.select(condition.arg_true().cast(pl.Int64)).to_series()
        return self._at(places.to_numpy())

    def _bisected(
        self, sought: pl.DataFrame, first: Indices, ends: Indices, *, after_equals: bool
    ) -> Indices:
        """The places where each row *sought* would be inserted, from *first* to *ends*."""
        low, high = first.copy(), ends.copy()
        while len(still := np.flatnonzero(low < high)):
            middle = (low[still] + high[still]) // 2
            stored = self._at(middle).select(sought.columns)
            is_before = precedes(stored, gathered(sought, still), or_equals=after_equals).to_numpy()
            low[still[is_before]] = middle[is_before] + 1
            high[still[~is_before]] = middle[~is_before]
        return low

    @cached_property
    def _span(self) -> tuple[int, int]:
        hashes = self._lazy.opened().hashes
        first = int(np.searchsorted(hashes, self.first_hash))
        return first, int(np.searchsorted(hashes, self.last_hash, side="right"))

    def _at(self, places: Indices) -> pl.DataFrame:
        opened = self._lazy.opened()
        taken = opened.table.take(pa.array(places + self._span[0]))
        return opened.evolution.evolved(to_frame(taken))


class _OpenedRun:
    """A run's rows, which all slices of it share."""

    def __init__(self, run: Run, evolutions: Evolutions) -> None:
        table = evolutions.respelt(run.table() if callable(run.table) else run.table)
        if evolutions.is_sorted_otherwise(table):
            rows = newest_per_identity(to_frame(table), evolutions.schema.identity)
            table = to_table(rows).replace_schema_metadata(identity_metadata(evolutions.schema))
        self.evolution = evolutions.of(table)
        self.table = table.select(self.evolution.columns)
        self.hashes = hash_column(self.table)


class _LazyRun:
    def __init__(self, run: Run, evolutions: Evolutions) -> None:
        self._run = run
        self._evolutions = evolutions
        self._opened: _OpenedRun | None = None
        self._lock = Lock()

    def opened(self) -> _OpenedRun:
        with self._lock:  # Several threads may read slices of one state.
            if self._opened is None:
                self._opened = _OpenedRun(self._run, self._evolutions)
            return self._opened


class Hits(NamedTuple):
    """Stored rows, not yet evolved, each with the index of the hash that found it."""

    which: Indices
    rows: pa.Table
    evolution: Evolution


def matching(
    runs: Sequence[RunSlice],
    wanted: pl.DataFrame,
    hashes: Indices,
    missing: npt.NDArray[np.bool_],
) -> list[tuple[Indices, pl.DataFrame]]:
    """Stored rows, tombstones too, equal to a *missing* row of *wanted* in all its columns, with
    the indices of those rows.

    *hashes* are those of *wanted*, and sorted.  *runs* ascend and are disjoint: one sorted run.  So
    each part is in the order of *wanted*.
    """
    by_evolution: dict[Evolution, list[Hits]] = {}
    for run in _reached(runs, hashes):
        hits = run.hits(wanted, hashes, missing)
        if hits is not None:
            by_evolution.setdefault(hits.evolution, []).append(hits)
    found: list[tuple[Indices, pl.DataFrame]] = []
    for evolution, alike in by_evolution.items():  # There is one, unless the declaration changed.
        which = np.concatenate([hit.which for hit in alike])
        stored = evolution.evolved(to_frame(pa.concat_tables([hit.rows for hit in alike])))
        rows = gathered(wanted, which)
        equal = reduce(and_, (agree(stored[name], rows[name]) for name in rows.columns))
        if not equal.all():
            which, stored = which[equal.to_numpy()], stored.filter(equal)
        found.append((which, stored))
    return found


def _reached(runs: Sequence[RunSlice], hashes: Indices) -> Sequence[RunSlice]:
    """The *runs*, ascending and disjoint, between the first and the last of the sorted *hashes*."""
    if not len(hashes):
        return ()
    first = bisect_left(runs, hashes[0], key=lambda run: run.last_hash)
    return runs[first : bisect_right(runs, hashes[-1], lo=first, key=lambda run: run.first_hash)]


def disjoint_run_groups(runs: Sequence[RunSlice]) -> list[list[RunSlice]]:
    """*runs* in groups of ascending, disjoint hashes; the runs of a group are of one age."""
    grouped: list[list[RunSlice]] = []
    for run in runs:
        if not grouped or run.first_hash <= grouped[-1][-1].last_hash:
            grouped.append([])
        grouped[-1].append(run)
    return grouped


def unexpired(schema: StateSchema, runs: Sequence[RunSlice], now_ms: int) -> tuple[RunSlice, ...]:
    """*runs* without those in which every row has expired, which need not be opened.

    An expired run is kept if it hides older rows that have not expired: rows written before the
    stage had a TTL, or while a clock was ahead.
    """
    kept: list[RunSlice] = []
    for run in runs:
        if not run.has_expired(schema, now_ms) or any(run.overlaps(older) for older in kept):
            kept.append(run)
    return tuple(kept)


class Blocks(NamedTuple):
    """Matches: the ``counts[i]`` rows from ``first[i]`` on match the wanted hash ``which[i]``."""

    which: Indices
    first: Indices
    counts: Indices

    def pairs(self) -> tuple[Indices, Indices]:
        """``which``, repeated for every matching row, and the place of that row."""
        starts = np.cumsum(self.counts) - self.counts
        where = np.repeat(self.first - starts, self.counts) + np.arange(self.counts.sum())
        return np.repeat(self.which, self.counts), where


def equal_hashes(hashes: Indices, wanted: Indices) -> Blocks:
    """The matches of *wanted* in the sorted *hashes*."""
    if not len(hashes) or not len(wanted):
        return Blocks(*(np.empty(0, np.int64) for _ in range(3)))
    last = len(hashes) - 1
    first = first_not_less(hashes, wanted)
    which = np.flatnonzero(hashes[np.minimum(first, last)] == wanted)
    first = first[which]
    # Most hashes occur once; the end is searched only where the next row has the same hash.
    repeated = hashes[np.minimum(first + 1, last)] == hashes[first]
    several = np.flatnonzero(repeated & (first < last))
    counts = np.ones(len(which), np.int64)
    if len(several):
        ends = np.searchsorted(hashes, wanted[which[several]], side="right")
        counts[several] = ends - first[several]
    return Blocks(which, first, counts)


def aligned(rows: pl.DataFrame, identities: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """For each of *identities* the one of *rows* that has it, all null where there is none; and the
    rest of *rows*.

    Both are sorted by hash, and neither has an identity twice.  The hash is that of the identity:
    rows that share one are compared with each other.
    """
    which, where = equal_hashes(rows[HASH].to_numpy(), identities[HASH].to_numpy()).pairs()
    others = without(identities, (HASH,))
    found, sought = gathered(chosen(rows, others.columns), where), gathered(others, which)
    equal = constant("", value=True, dtype=pl.Boolean(), height=len(which))
    equal = reduce(and_, (agree(found[name], sought[name]) for name in others.columns), equal)
    if not equal.all():
        which, where = which[equal.to_numpy()], where[equal.to_numpy()]
    rest = gathered(rows, np.delete(np.arange(rows.height), where))
    if len(which) == identities.height:
        return gathered(rows, where), rest
    index = np.full(identities.height, -1)
    index[which] = where
    places = pl.Series(index)
    return rows[places.set(places < 0, None).cast(pl.UInt32)], rest


def first_not_less(hashes: Indices, wanted: Indices) -> Indices:
    """For each of *wanted*, the index of the first of the sorted *hashes* that is not less."""
    if len(hashes) < _INTERPOLATE_FROM or hashes[0] == hashes[-1]:
        return np.searchsorted(hashes, wanted)
    chunks = (wanted[start : start + _CHUNK] for start in range(0, len(wanted), _CHUNK))
    return np.concatenate([np.empty(0, np.int64), *(_interpolated(hashes, c) for c in chunks)])


def _interpolated(hashes: Indices, wanted: Indices) -> Indices:
    last = len(hashes) - 1
    values = wanted.astype(np.float64)
    rows_per_value = last / (float(hashes[-1]) - float(hashes[0]))
    guess = (values - float(hashes[0])) * rows_per_value
    for _ in range(_STEPS):
        index = np.clip(guess, 0, last).astype(np.int64)
        guess = index + (values - hashes[index]) * rows_per_value
    place = np.maximum(np.clip(guess, 0, last).astype(np.int64) - _NEAR, 0)
    half = _NEAR
    while half:
        place += half * (hashes[np.minimum(place + half - 1, last)] < wanted)
        half //= 2
    place = np.minimum(place, last + 1)
    is_after_smaller = (place == 0) | (hashes[np.maximum(place, 1) - 1] < wanted)
    is_not_smaller = (place > last) | (hashes[np.minimum(place, last)] >= wanted)
    wrong = np.flatnonzero(~(is_after_smaller & is_not_smaller))
    place[wrong] = np.searchsorted(hashes, wanted[wrong])
    return place


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
    equal = {name: agree(left[name], right[name]) for name in others}
    differing = [name for name in others if not equal[name].all()]
    if differing and not _ascend(chosen(left, differing), chosen(right, differing)):
        # Except for collisions they differ in sub-keys only, and sorting by strings is slow.
        rows = gathered(rows, _order_within_hashes(chosen(rows, (HASH, *differing)), twins))
        left, right = _pairs(rows, twins, others)
        equal = {name: agree(left[name], right[name]) for name in others}
    repeated = reduce(and_, equal.values()).to_numpy()
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
    # with its index in the place of the low ones.  The high bits differ for nearly all hashes.
    # Polars sorts them three times as fast as NumPy.
    indices = (1 << (len(hashes) - 1).bit_length()) - 1
    packed = pl.Series((hashes & ~indices) | np.arange(len(hashes)))
    order: Indices = packed.sort().to_numpy() & indices
    ordered = hashes[order]
    if np.all(ordered[1:] >= ordered[:-1]):
        return order
    return order[np.argsort(ordered, kind="stable")]


def gathered(rows: pl.DataFrame, indices: Indices) -> pl.DataFrame:
    if len(indices) == rows.height and np.array_equal(indices, np.arange(rows.height)):
        return rows
    if rows.n_chunks() > 1 and len(indices) > rows.height // _FEW_OF_A_CHUNK:
        rows = rows.rechunk()
    return rows[pl.Series(indices.astype(np.uint32))]  # The type of Polars' indices.


def with_next(rows: Indices, height: int) -> Indices:
    """*rows* of a frame of *height*, and the row behind each; ascending, each once."""
    is_in = np.zeros(height, np.bool_)
    is_in[rows] = is_in[rows + 1] = True
    return np.flatnonzero(is_in)


def can_compare(schema: pl.Schema) -> bool:
    """Whether rows of these columns can be compared: nested ones Polars can only sort."""
    return not any(dtype.is_nested() for dtype in schema.values())


def precedes(left: pl.DataFrame, right: pl.DataFrame, *, or_equals: bool) -> pl.Series:
    """Whether each row of *left* comes before the row of *right* beside it."""
    is_before = constant("", or_equals, pl.Boolean(), left.height)
    for name in reversed(left.columns):
        a, b = left[name], right[name]
        is_smaller = a < b
        if a.null_count() or b.null_count():
            is_smaller = is_smaller.fill_null(value=False) | (a.is_null() & b.is_not_null())
        is_before = is_smaller | (agree(a, b) & is_before)
    return is_before


def _pairs(
    rows: pl.DataFrame, twins: Indices, columns: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The *twins*, and the rows behind them."""
    compared = chosen(rows, columns)
    return gathered(compared, twins), gathered(compared, twins + 1)


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
