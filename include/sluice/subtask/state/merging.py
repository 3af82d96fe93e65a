"""Merging of runs: the newest version of every row, at once or in pieces that fit into memory.

    runs, oldest to newest --windows--> rows of a few hashes --newest wins--> pieces of max_rows

Windows are cut between hashes, so each is merged by itself.  Their bounds depend on the runs; the
bounds of pieces depend on the merged rows alone, and not on how runs were cut into segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import polars as pl
import pyarrow as pa

from sluice.core.handles import MAX_HASH
from sluice.subtask.state.evolution import Evolutions, identity_metadata
from sluice.subtask.state.order import newest_per_identity
from sluice.subtask.state.runs import Run, RunSlice, unexpired
from sluice.subtask.state.schema import StateSchema
from sluice.subtask.state.segments import DELETED, HASH, to_table


def merge_pieces(
    schema: StateSchema,
    runs: Sequence[Run],
    *,
    drop_tombstones: bool,
    now_ms: int = 0,
    max_rows: int,
    owner: str = "",
) -> Iterator[pa.Table]:
    """Adjacent *runs* (oldest to newest, cut to their bounds) as the one run that replaces them, in
    ascending pieces; no hash is in two, and no piece is empty.

    Tombstones may be dropped only if no run before *runs* holds any of their hashes; expired rows
    go with them.  Otherwise an expired row becomes a tombstone, for it may hide an older version.
    So the result must not be read by an epoch whose processing time is before *now_ms*.

    A piece has at most *max_rows* rows, unless a single hash has more.  About three times as many
    are in memory at a time, whatever the size of the runs; runs are opened as they are reached.
    *owner* is for messages: "stage 'totals'".
    """
    slices = _slices(schema, runs, drop_tombstones=drop_tombstones, now_ms=now_ms, owner=owner)
    swept = (
        _swept(schema, rows, drop_tombstones=drop_tombstones, now_ms=now_ms)
        for rows in merged_windows(schema, slices, max_rows)
    )
    return (stored_table(schema, piece) for piece in pieces(swept, max_rows))


def merged_rows(schema: StateSchema, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The newest version of every row of *frames* (oldest to newest), sorted by identity."""
    frames = [frame for frame in frames if frame.height]
    if not frames:
        return schema.stored.to_frame()
    if len(frames) == 1:
        return frames[0]
    return newest_per_identity(pl.concat(reversed(frames), rechunk=True), schema.identity)


def merged_windows(
    schema: StateSchema, runs: Sequence[RunSlice], max_rows: int
) -> Iterator[pl.DataFrame]:
    """The merged rows of *runs*, in windows made of at most *max_rows* stored rows.

    Only a hash with more rows than its share of that makes a window larger.
    """
    assert max_rows > 0
    waiting = sorted(enumerate(runs), key=lambda aged: aged[1].first_hash, reverse=True)
    del runs  # Release the run when it has been read.
    reading: list[_Cursor] = []
    while waiting or reading:
        here = min((cursor.next_hash for cursor in reading), default=MAX_HASH)
        if waiting and (not reading or waiting[-1][1].first_hash <= here):
            reading += _opened(*waiting.pop())
            continue
        bound = waiting[-1][1].first_hash - 1 if waiting else MAX_HASH
        unread = sum(cursor.unread for cursor in reading)
        for cursor in reading:
            # Half of the rows are shared by size, half evenly, so that a short run advances, too.
            step = max_rows // 2 // len(reading) + max_rows // 2 * cursor.unread // unread
            bound = min(bound, cursor.hash_of(max(step, 1)))
        yield merged_rows(schema, [cursor.read_to(bound) for cursor in sorted(reading, key=_age)])
        reading = [cursor for cursor in reading if cursor.unread]


def pieces(windows: Iterable[pl.DataFrame], max_rows: int) -> Iterator[pl.DataFrame]:
    """The rows of *windows* in pieces: each ends before the first hash that does not fit."""
    frames: list[pl.DataFrame] = []
    height = 0
    for window in windows:
        frames.append(window)
        height += window.height
        while height > max_rows:
            rows = pl.concat(frames)
            end = _last_cut(rows[HASH], max_rows)
            yield rows.head(end)
            height -= end
            frames = [rows.tail(height)] if height else []
    if height:
        yield pl.concat(frames)


def stored_table(schema: StateSchema, rows: pl.DataFrame) -> pa.Table:
    """*rows*, sorted by identity, as a run."""
    return to_table(rows).replace_schema_metadata(identity_metadata(schema))


def _slices(
    schema: StateSchema,
    runs: Sequence[Run],
    *,
    drop_tombstones: bool,
    now_ms: int,
    owner: str = "",
) -> tuple[RunSlice, ...]:
    evolutions = Evolutions(schema, owner)
    slices = tuple(RunSlice.of(run, evolutions) for run in runs)
    return unexpired(schema, slices, now_ms) if drop_tombstones else slices


def _swept(
    schema: StateSchema, rows: pl.DataFrame, *, drop_tombstones: bool, now_ms: int
) -> pl.DataFrame:
    if drop_tombstones:
        return rows.filter(~schema.dead(now_ms))
    if schema.ttl_ms is None:
        return rows
    is_expired = rows.select(schema.expired(now_ms)).to_series()
    if not is_expired.any():
        return rows
    values = [name for name in schema.columns if name not in schema.identity]
    return rows.with_columns(
        *(pl.when(~is_expired).then(pl.col(name)).alias(name) for name in values),
        pl.col(DELETED) | is_expired,
    )


class _Cursor:
    """The position up to which a run has been read."""

    def __init__(self, age: int, run: RunSlice) -> None:
        self.age = age
        self._run = run
        self._place = 0

    @property
    def unread(self) -> int:
        return len(self._run.hashes) - self._place

    @property
    def next_hash(self) -> int:
        return int(self._run.hashes[self._place])

    def hash_of(self, row: int) -> int:
        """The hash of an unread row, counted from 1; MAX_HASH after the last."""
        return int(self._run.hashes[self._place + row - 1]) if row < self.unread else MAX_HASH

    def read_to(self, last_hash: int) -> pl.DataFrame:
        unread = self._run.hashes[self._place :]
        end = self._place + int(np.searchsorted(unread, last_hash, side="right"))
        rows = self._run.rows(self._place, end)
        self._place = end
        return rows


def _age(cursor: _Cursor) -> int:
    return cursor.age


def _opened(age: int, run: RunSlice) -> list[_Cursor]:
    return [_Cursor(age, run)] if len(run.hashes) else []


def _last_cut(hashes: pl.Series, max_rows: int) -> int:
    """The end of a piece of at most *max_rows*; *hashes* must have more than that."""
    next_hash = hashes[max_rows]
    end = int(np.searchsorted(hashes.head(max_rows).to_numpy(), next_hash))
    return end or int(np.searchsorted(hashes.to_numpy(), next_hash, side="right"))
