"""Keyed state of one subtask: runs of sorted rows, oldest to newest, of which the newest wins.

A row's identity is its hash, its key columns and its sub-key columns (a window's start, a rank);
the hash is of the key columns alone.  A run is one immutable table sorted by identity.  A delete
is a row too, a tombstone, until a merge that includes the oldest run drops it.

Promises: two keys of one hash are two keys; null is a key like any other; reading costs a binary
search per run and key, never a scan, except ``due`` in runs where something is due, and ``scan``.
Refuses to write: an epoch's changes leave as a new run (``delta_table``); merging is pure, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sluice.core.handles import MAX_HASH, MIN_HASH
from sluice.errors import RestoreError
from sluice.runtime.state.segments import DELETED, HASH, hash_column, to_frame, to_table

# Newest runs are merged while the run before them is less than twice their size: then each run is
# at least twice the next, so there are at most log2(rows) of them.  Simulated with deltas of
# 100,000 rows over 5 million to 500 million: 2 rewrites a row 4 to 7 times in its life and leaves 3
# to 6 runs; 4 rewrites it 6 to 11 times to save one or two.
GROWTH = 2

# The hard bound on runs per subtask: 2**15 deltas of equal size reach it, so it is met only when an
# early delta was huge.  A run costs a lookup of 100,000 keys about 20 ms.
MAX_RUNS = 16

_Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSchema:
    """The columns of a stage's state, all but the hash and the mark of a tombstone.

    ``time_column`` holds, as int64 milliseconds, the event time that a row waits for.
    """

    columns: pl.Schema
    key_columns: tuple[str, ...]
    sub_key_columns: tuple[str, ...] = ()
    time_column: str | None = None

    def __post_init__(self) -> None:
        assert self.key_columns, "keyed state needs a key"
        assert {*self.key_columns, *self.sub_key_columns} <= self.columns.keys()
        assert not {HASH, DELETED} & self.columns.keys(), "these two are ours"
        assert self.time_column is None or self.columns[self.time_column] == pl.Int64()

    @property
    def key(self) -> tuple[str, ...]:
        return (HASH, *self.key_columns)

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.key, *self.sub_key_columns)

    @property
    def live(self) -> pl.Schema:
        """What reading returns: the hash and the columns."""
        return pl.Schema({HASH: pl.Int64(), **self.columns})

    @property
    def stored(self) -> pl.Schema:
        """What a run holds."""
        return pl.Schema({**self.live, DELETED: pl.Boolean()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One segment of state, and the slice of the hash space (both ends included) that is ours.

    ``min_time_ms`` bounds from below the times that its live rows wait for; None: none waits.
    """

    table: pa.Table
    first_hash: int = MIN_HASH
    last_hash: int = MAX_HASH
    min_time_ms: int | None = None


class KeyedState:
    """The state as of the last completed epoch, for reading."""

    def __init__(self, schema: StateSchema, runs: Sequence[Run]) -> None:
        """*runs* are ordered from oldest to newest.

        Raises:
            RestoreError: a run was written by a stage that kept other columns.
        """
        self.schema = schema
        self._runs = tuple(_SlicedRun(schema, run) for run in runs)

    def lookup(self, keys: pl.DataFrame) -> pl.DataFrame:
        """All live rows of *keys* (distinct hash and key columns), sorted by identity."""
        keys = keys.select(self.schema.key).sort(HASH)
        found = [run.matching(keys)[1] for run in reversed(self._runs)]
        return _live(newest_per_identity(_concat(self.schema, found), self.schema.identity))

    def find(self, identities: pl.DataFrame) -> pl.DataFrame:
        """The live row of each of the distinct *identities*, in their order; all null where none.

        Several times faster than a lookup and a join, and fastest when *identities* are sorted.
        """
        wanted = identities.select(self.schema.identity)
        missing = np.arange(wanted.height)
        position = np.full(wanted.height, -1)
        found: list[pl.DataFrame] = []
        offset = 0
        for run in reversed(self._runs):
            if not len(missing):
                break
            which, rows = run.matching(wanted if not found else wanted[missing])
            position[missing[which]] = np.arange(offset, offset + rows.height)
            missing = np.delete(missing, which)
            offset += rows.height
            found.append(rows)
        rows = _concat(self.schema, found)
        dead = np.append(rows[DELETED].to_numpy(), True)  # -1, nowhere, is dead.
        position[dead[position]] = -1
        index = pl.Series(position)
        return rows.select(pl.col(self.schema.live.names()).gather(index.set(index < 0, None)))

    def due(self, watermark_ms: int) -> pl.DataFrame:
        """Live rows whose time is not after the watermark, sorted by identity.

        A run in which nothing is due is searched only for newer versions of what is due elsewhere.
        """
        time = self.schema.time_column
        assert time is not None, "nothing in this state waits for a time"
        candidates = [
            run.due(time, watermark_ms)
            for run in self._runs
            if run.min_time_ms is not None and run.min_time_ms <= watermark_ms
        ]
        identities = newest_per_identity(_concat(self.schema, candidates), self.schema.identity)
        return self.find(identities).filter(pl.col(time) <= watermark_ms)

    def scan(self) -> pl.DataFrame:
        """All live rows, sorted by identity."""
        return _live(_merged(self.schema, self._runs))


class _SlicedRun:
    """A run cut to its bounds, with its hashes as a view over the segment's memory."""

    def __init__(self, schema: StateSchema, run: Run) -> None:
        kept, wanted = to_frame(run.table.slice(0, 0)).schema, schema.stored
        if dict(kept) != dict(wanted):
            raise RestoreError(
                f"the state holds {_described(kept)} but its stage now keeps {_described(wanted)}; "
                "restore with the former declaration, or give the stage another uid and allow "
                "non-restored state"
            )
        table = run.table.select(wanted.names())
        hashes = hash_column(table)
        first = int(np.searchsorted(hashes, run.first_hash))
        end = int(np.searchsorted(hashes, run.last_hash, side="right"))
        self.table = table.slice(first, end - first)
        self.hashes = hashes[first:end]
        self.min_time_ms = run.min_time_ms

    def matching(self, rows: pl.DataFrame) -> tuple[_Indices, pl.DataFrame]:
        """Stored rows, tombstones too, equal to one of *rows* in all columns, and to which."""
        which, where = _equal_hashes(self.hashes, rows[HASH].to_numpy())
        stored = to_frame(self.table.take(pa.array(where)))
        others = [name for name in rows.columns if name != HASH]
        wanted = rows.select(others)[which]
        equal = reduce(and_, (stored[name].eq_missing(wanted[name]) for name in others))
        if equal.all():
            return which, stored
        return which[equal.to_numpy()], stored.filter(equal)

    def due(self, time_column: str, watermark_ms: int) -> pl.DataFrame:
        """Rows that would be due if no newer run held them, too."""
        times = pl.Series(self.table.column(time_column))
        where = (times <= watermark_ms).arg_true().cast(pl.Int64)
        return to_frame(self.table.take(pa.array(where.to_numpy())))


def delta_table(schema: StateSchema, upserts: pl.DataFrame, deletes: pl.DataFrame) -> pa.Table:
    """An epoch's changes as a run; of *deletes* only the identity counts.

    Both may come in any order.  An identity in both is an upsert: its row replaces the old one.
    """
    stored = schema.stored
    tombstones = deletes.select(
        *(
            pl.col(name) if name in schema.identity else pl.lit(None, dtype).alias(name)
            for name, dtype in schema.live.items()
        ),
        pl.lit(True).alias(DELETED),  # noqa: FBT003 - a value
    )
    rows = upserts.select(*schema.live, pl.lit(False).alias(DELETED))  # noqa: FBT003 - a value
    assert rows.schema == stored, f"upserts are {rows.schema}, the state keeps {stored}"
    assert tombstones.schema == stored, f"deletes are {deletes.schema}, the state keeps {stored}"
    return to_table(newest_per_identity(pl.concat([rows, tombstones]), schema.identity))


def min_time(schema: StateSchema, table: pa.Table) -> int | None:
    """The earliest time that a live row of *table* waits for."""
    if schema.time_column is None:
        return None
    rows = to_frame(table.select([schema.time_column, DELETED]))
    earliest = rows.select(pl.col(schema.time_column).filter(~pl.col(DELETED)).min()).item()
    assert earliest is None or isinstance(earliest, int)
    return earliest


def merge_runs(schema: StateSchema, runs: Sequence[Run], *, drop_tombstones: bool) -> pa.Table:
    """Adjacent *runs* (oldest to newest, cut to their bounds) as the one run that replaces them.

    Tombstones may be dropped only if no run before *runs* holds any of their hashes.
    """
    merged = _merged(schema, [_SlicedRun(schema, run) for run in runs])
    return to_table(merged.filter(~pl.col(DELETED)) if drop_tombstones else merged)


def runs_to_merge(row_counts: Sequence[int]) -> int:
    """How many of the newest runs to merge into one; *row_counts* go from oldest to newest.

    One means: none.  Whoever follows this after every epoch keeps at most ``MAX_RUNS`` runs, each
    at least ``GROWTH`` times the next.
    """
    count = min(1, len(row_counts))
    size = sum(row_counts[-count:])
    while count < len(row_counts):
        previous = row_counts[-count - 1]
        if previous >= GROWTH * size and len(row_counts) - count < MAX_RUNS:
            break
        count += 1
        size += previous
    return count


def newest_per_identity(rows: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
    """The first row of each identity in *rows*, sorted by identity (hash first, nulls first).

    Sorting by hash alone is six times faster, and enough unless one hash has several identities.
    """
    assert identity[0] == HASH
    same_hash = pl.col(HASH) == pl.col(HASH).shift()
    others = identity[1:]
    same = reduce(and_, (pl.col(name).eq_missing(pl.col(name).shift()) for name in others))
    rows = rows.sort(HASH, maintain_order=True)
    if rows.select((same_hash & ~same).any()).item():
        rows = rows.sort(identity, maintain_order=True)
    repeated = rows.select((same_hash & same).fill_null(value=False)).to_series()
    return rows.filter(~repeated) if repeated.any() else rows


def _equal_hashes(hashes: _Indices, wanted: _Indices) -> tuple[_Indices, _Indices]:
    """All pairs (index in *wanted*, index in the sorted *hashes*) of equal values."""
    if not len(hashes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    last = len(hashes) - 1
    first = np.searchsorted(hashes, wanted)
    which = np.flatnonzero(hashes[np.minimum(first, last)] == wanted)
    first = first[which]
    counts = np.ones(len(which), np.int64)
    # Most often a hash occurs once; only where the next one is the same, the end is searched, too.
    repeated = hashes[np.minimum(first + 1, last)] == hashes[first]
    several = np.flatnonzero(repeated & (first < last))
    counts[several] = np.searchsorted(hashes, wanted[which[several]], side="right") - first[several]
    starts = np.cumsum(counts) - counts
    where = np.repeat(first - starts, counts) + np.arange(counts.sum())
    return np.repeat(which, counts), where


def _merged(schema: StateSchema, runs: Sequence[_SlicedRun]) -> pl.DataFrame:
    frames = [to_frame(run.table) for run in reversed(runs)]
    return newest_per_identity(_concat(schema, frames), schema.identity)


def _concat(schema: StateSchema, frames: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames) if frames else schema.stored.to_frame()


def _live(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(~pl.col(DELETED)).drop(DELETED)


def _described(schema: pl.Schema) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in schema.items() if name != DELETED)
