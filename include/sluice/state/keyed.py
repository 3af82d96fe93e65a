"""Keyed state of one subtask: runs of sorted rows, oldest to newest, of which the newest wins.

A run is one sorted table, in one segment or in several of disjoint hashes, all immutable.  A
deleted row is replaced by a tombstone, which is dropped by a merge that includes the oldest run; a
row whose TTL has passed counts as a tombstone.

Promises: different keys with equal hashes are kept apart; null is a key like any other; reading
costs a search per run and key, never a scan, except for ``scan``, and for ``due`` in runs that have
due rows; a segment is opened only if a hash in its range is searched for.  Nothing here writes:
``delta_table`` returns an epoch's changes as a new run, and merging is pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from sluice.state.at_once import chosen, constant, passing
from sluice.state.evolution import Evolutions
from sluice.state.merging import merged_rows, merged_windows, pieces, stored_run
from sluice.state.runs import (
    Indices,
    Run,
    RunSlice,
    disjoint_run_groups,
    gathered,
    matching,
    newest_per_identity,
    order_of,
    unexpired,
)
from sluice.state.segments import DELETED, HASH, WRITTEN, StateSchema


class KeyedState:
    """The state as of the parent checkpoint, read at the processing time of this epoch."""

    def __init__(
        self,
        schema: StateSchema,
        runs: Sequence[Run | RunSlice],
        *,
        now_ms: int = 0,
        owner: str = "",
    ) -> None:
        """*runs* are ordered from oldest to newest; *owner* is for messages: "stage 'totals'".

        Opening a run, here or when it is first needed, raises:
            RestoreError: it was written by a stage whose columns this one's cannot follow.
        """
        evolutions = Evolutions(schema, owner)
        slices = [RunSlice.of(r, evolutions) if isinstance(r, Run) else r for r in runs]
        self.schema = schema
        self._runs = unexpired(schema, slices, now_ms)
        self._sorted_runs = disjoint_run_groups(self._runs)
        self._now_ms = now_ms

    @property
    def has_runs(self) -> bool:
        """Whether there may be a row; none is opened."""
        return bool(self._runs)

    def lookup(self, keys: pl.DataFrame, *, is_dated: bool = False) -> pl.DataFrame:
        """All live rows of *keys* (distinct hash and key columns), sorted by identity.

        With *is_dated* each has the time of its last write, if it is known, in ``WRITTEN``.
        """
        keys = newest_per_identity(keys.select(self.schema.key), self.schema.key)
        hashes = keys[HASH].to_numpy()
        missing = np.ones(len(hashes), np.bool_)  # Of all runs: another row of a key may be older.
        found = [
            rows
            for segments in self._sorted_runs
            for _, rows in matching(segments, keys, hashes, missing)
        ]
        merged = merged_rows(self.schema, found)
        if is_dated:
            dated = merged.filter(~self.schema.dead(self._now_ms))
            return dated.select(*self.schema.live.names(), WRITTEN)
        return self._live(merged)

    def find(self, identities: pl.DataFrame) -> pl.DataFrame:
        """The live row of each of the distinct *identities*, in their order; all null where none.

        Several times faster than a lookup and a join, and fastest when *identities* are sorted.
        """
        wanted, hashes, order = _by_hash(chosen(identities, self.schema.identity))
        position = np.full(wanted.height, -1)
        found = [self.schema.stored.to_frame()]
        offset = 0
        for segments in reversed(self._sorted_runs):
            for which, rows in matching(segments, wanted, hashes, position < 0):
                position[which] = np.arange(offset, offset + rows.height)
                offset += rows.height
                found.append(rows)
        rows = pl.concat(found, rechunk=True)
        dead = self.schema.are_dead(rows, self._now_ms).to_numpy()
        position[np.append(dead, True)[position]] = -1  # -1, not found, counts as dead.
        if order is not None:
            position[order] = position.copy()
        index = pl.Series(position)
        index = index.set(index < 0, None).cast(pl.UInt32)
        return chosen(rows, self.schema.live)[index]

    def due(self, watermark_ms: int, *, after_ms: int | None = None) -> pl.DataFrame:
        """Live rows whose time is not after the watermark, sorted by identity.

        A run without due rows is searched only for newer versions of rows that are due elsewhere.
        Rows that were due at *after_ms* already are left out, if *after_ms* is given.
        """
        time = self.schema.time_column
        assert time is not None, "nothing in this state waits for a time"
        is_due = pl.col(time) <= watermark_ms
        if after_ms is not None:
            is_due &= pl.col(time) > after_ms
        candidates = [
            run.where(time, is_due)
            for run in self._runs
            if run.min_time_ms is not None and run.min_time_ms <= watermark_ms
        ]
        due = merged_rows(self.schema, candidates)
        if self.schema.is_written_once and after_ms is not None:
            return self._live(due)  # Rows that have been deleted were due at *after_ms*.
        return self.find(due).filter(is_due)

    def scan(self) -> pl.DataFrame:
        """All live rows, sorted by identity."""
        return self._live(merged_rows(self.schema, [run.all_rows() for run in self._runs]))

    def scan_pieces(self, max_rows: int) -> Iterator[pl.DataFrame]:
        """The rows of ``scan``, in pieces of at most *max_rows* rows; see ``merge_pieces``."""
        windows = merged_windows(self.schema, self._runs, max_rows)
        return pieces((self._live(rows) for rows in windows), max_rows)

    def slice(self, first_hash: int, last_hash: int) -> KeyedState:
        """The state between two hashes, both included; it shares opened runs with this one."""
        runs = [run.between(first_hash, last_hash) for run in self._runs]
        return KeyedState(
            self.schema, [run for run in runs if run is not None], now_ms=self._now_ms
        )

    def _live(self, rows: pl.DataFrame) -> pl.DataFrame:
        living = passing(rows, ~self.schema.are_dead(rows, self._now_ms))
        return chosen(living, self.schema.live)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """The changes of an epoch to one table of state.

    ``upserts`` has the columns of the table's ``StateSchema.live``, ``deletes`` at least those of
    its identity.  An identity in both is an upsert.
    """

    upserts: pl.DataFrame
    deletes: pl.DataFrame


def delta_table(
    schema: StateSchema, upserts: pl.DataFrame, deletes: pl.DataFrame, *, now_ms: int = 0
) -> pa.Table:
    """An epoch's changes as a run, written at *now_ms*; of *deletes* only the identity counts.

    Both may come in any order.  An identity in both is an upsert: its row replaces the old one.
    """
    stored = schema.stored
    ours = {name: value for name, value in ((WRITTEN, now_ms), (DELETED, False)) if name in stored}
    rows = chosen(upserts, schema.live).hstack(
        [constant(name, value, stored[name], upserts.height) for name, value in ours.items()]
    )
    assert rows.schema == stored, f"upserts are {rows.schema}, the state keeps {stored}"
    if deletes.height:
        tombstones = deletes.select(
            *(
                pl.col(name) if name in schema.identity else pl.lit(None, dtype).alias(name)
                for name, dtype in schema.live.items()
            ),
            *(pl.lit(now_ms, stored[name]).alias(name) for name in ours if name == WRITTEN),
            pl.lit(True).alias(DELETED),  # noqa: FBT003 - a value
        )
        assert tombstones.schema == stored, f"deletes are {deletes.schema}, not {stored}"
        rows = pl.concat([rows, tombstones], rechunk=True)
    return stored_run(schema, newest_per_identity(rows, schema.identity))


def _by_hash(rows: pl.DataFrame) -> tuple[pl.DataFrame, Indices, Indices | None]:
    """*rows* sorted by hash, their hashes, and the order used; None if they were sorted."""
    hashes = rows[HASH].to_numpy()
    order = order_of(hashes)
    return (rows, hashes, None) if order is None else (gathered(rows, order), hashes[order], order)
