"""Merging of runs: the newest version of every row, at once or in pieces that fit into memory.

    runs, oldest to newest --windows--> rows of a few hashes --newest wins--> pieces of max_rows

Windows are cut between hashes, so each is merged by itself.  Their bounds depend on the runs; the
bounds of pieces depend on the merged rows alone, and not on how runs were cut into segments.

``runs_to_merge`` is the compaction policy: how many runs to merge, as a function of their sizes.
``run_merges`` is a compaction inside a Spark task: neighbouring runs of one subtask's table become
one run, whose rows ``describe_segment`` encodes as segments with their handles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
import polars as pl
import pyarrow as pa

from sluice.core.compaction import MergedRuns, SortedRun, replaced_segment
from sluice.core.handles import MAX_HASH, SegmentHandle, StateHandle
from sluice.protocol.keys import JournalPaths
from sluice.protocol.records import checksum, encode_merged_runs
from sluice.state.at_once import passing
from sluice.state.cache import SegmentCache
from sluice.state.evolution import Evolutions, identity_metadata
from sluice.state.runs import Run, RunSlice, newest_per_identity, unexpired
from sluice.state.segments import (
    DELETED,
    HASH,
    WRITTEN,
    RowFiles,
    StateSchema,
    encode_segment,
    hash_column,
    to_frame,
    to_table,
)
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store

# Newest runs are merged while the run before them is less than twice their size: then each settled
# run is at least twice the next, so there are about log2(rows) of them.
GROWTH = 2

# Fewer runs are not merged: each merge rewrites rows that the next one rewrites anyway.  Simulated
# with 100,000 changed rows an epoch, spread over a state of 1, 5 and 50 million rows: a row is
# rewritten 1.4, 2.7 and 4.6 times for each time it is written, there are 4.0, 5.0 and 6.5 runs on
# average, never more than 7, 9 and 12, and every seventh epoch has a merge.  With 4 instead of 8 it
# is rewritten 2.2, 3.2 and 5.5 times, there are 2.5, 3.8 and 4.8 runs, and every third epoch has a
# merge; measured in turn, such epochs cost a fifth more.
FAN_IN = 8

# The hard bound on runs per subtask; met only when sizes fall in an odd pattern, or a state of 5
# billion rows grows from deltas of 100,000.  A run costs a lookup of 100,000 keys 5 to 15 ms.
MAX_RUNS = 16

MERGE_ROWS = 1_048_576  # Rows of a piece of a merge; about three are in memory at a time.

MERGED_SCHEMA = pa.schema([("merged", pa.binary())])


def merge_pieces(
    schema: StateSchema,
    runs: Sequence[Run],
    *,
    drop_tombstones: bool,
    now_ms: int = 0,
    max_rows: int,
    owner: str = "",
) -> Iterator[pa.Table]:
    """The run that replaces the adjacent *runs* (oldest to newest, cut to their bounds).

    It comes in ascending pieces; no hash is in two, and no piece is empty.  A piece has at most
    *max_rows* rows, unless a single hash has more.  About three times as many are in memory at a
    time, whatever the size of the runs; runs are opened as they are reached.

    Tombstones may be dropped only if no run before *runs* holds any of their hashes; expired rows
    are dropped with them.  Otherwise an expired row becomes a tombstone, for it may hide an older
    version.  So no epoch whose processing time is before *now_ms* may read the result.  *owner* is
    for messages: "stage 'totals'".
    """
    evolutions = Evolutions(schema, owner)
    slices: Sequence[RunSlice] = [RunSlice.of(run, evolutions) for run in runs]
    if drop_tombstones:
        slices = unexpired(schema, slices, now_ms)
    swept = (
        _swept(schema, rows, drop_tombstones=drop_tombstones, now_ms=now_ms)
        for rows in merged_windows(schema, slices, max_rows)
    )
    return (stored_run(schema, piece) for piece in pieces(swept, max_rows))


def merged_frames(
    schema: StateSchema, runs: Sequence[Run], *, drop_tombstones: bool, now_ms: int
) -> Iterator[pl.DataFrame]:
    """The pieces of ``merge_pieces`` as frames of at most ``MERGE_ROWS`` rows."""
    return map(
        to_frame,
        merge_pieces(
            schema, runs, drop_tombstones=drop_tombstones, now_ms=now_ms, max_rows=MERGE_ROWS
        ),
    )


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

    A window is larger only if a single hash has more rows than a run's share of that.
    """
    assert max_rows > 0
    waiting = sorted(enumerate(runs), key=lambda aged: aged[1].first_hash, reverse=True)
    del runs  # Release the run when it has been read.
    reading: list[_Cursor] = []
    while waiting or reading:
        here = min((cursor.next_hash for cursor in reading), default=MAX_HASH)
        if waiting and (not reading or waiting[-1][1].first_hash <= here):
            cursor = _Cursor(*waiting.pop())
            if cursor.unread:
                reading.append(cursor)
            continue
        bound = waiting[-1][1].first_hash - 1 if waiting else MAX_HASH
        unread = sum(cursor.unread for cursor in reading)
        for cursor in reading:
            # Half of the rows are shared by size, half evenly, so that a short run advances, too.
            step = max_rows // 2 // len(reading) + max_rows // 2 * cursor.unread // unread
            bound = min(bound, cursor.hash_of(max(step, 1)))
        reading.sort(key=attrgetter("age"))
        yield merged_rows(schema, [cursor.read_to(bound) for cursor in reading])
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


def stored_run(schema: StateSchema, rows: pl.DataFrame) -> pa.Table:
    """*rows*, sorted by identity, as a run."""
    return to_table(rows).replace_schema_metadata(identity_metadata(schema))


def runs_to_merge(row_counts: Sequence[int]) -> int:
    """The number of the newest runs to merge into one; *row_counts* go from oldest to newest.

    One means none.  Followed after every epoch, it keeps at most ``MAX_RUNS`` runs.
    """
    total = len(row_counts)
    count = min(1, total)
    size = sum(row_counts[-count:])
    while count < total and row_counts[-count - 1] < GROWTH * size:
        size += row_counts[-count - 1]
        count += 1
    if total > MAX_RUNS:
        return max(count, FAN_IN, total - MAX_RUNS + 1)
    return count if count >= FAN_IN else min(1, total)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadOtherwise:
    """The way to read state of an earlier meaning: *without* columns, which are then null, as if
    the rows had been written before they were there, and with others *computed* of those in it.
    """

    without: frozenset[str] = frozenset()
    computed: Mapping[str, pl.Expr] = field(default_factory=dict[str, pl.Expr])

    def __bool__(self) -> bool:
        return bool(self.without or self.computed)

    def of(self, table: pa.Table) -> pa.Table:
        # A column may be left of an earlier meaning, in any case.
        begun = {name.lower() for name in self.without}
        is_gone = {n: n.lower() in begun or n in self.computed for n in table.column_names}
        table = table.drop_columns([name for name, gone in is_gone.items() if gone])
        if not self.computed:
            return table
        values = [value.alias(name) for name, value in self.computed.items()]
        read = {name.lower(): name for value in values for name in value.meta.root_names()}
        rows = to_frame(table).rename(lambda name: read.get(name.lower(), name))
        computed = to_table(rows.select(values))
        for name in computed.column_names:
            table = table.append_column(name, computed[name])
        return table


AS_IT_IS = ReadOtherwise()


def open_runs(
    cache: SegmentCache, handles: Sequence[StateHandle], reads: ReadOtherwise = AS_IT_IS
) -> list[Run]:
    """The runs of *handles*, oldest first; a segment is fetched when a row of it is needed."""

    def opened(segment: SegmentHandle) -> pa.Table:
        return reads.of(cache.open(segment))

    return [Run.of(handle, opened if reads else cache.open) for handle in handles]


def describe_segment(schema: StateSchema, rows: pa.Table) -> tuple[StateHandle, bytes]:
    """The handle and the bytes of a segment of *rows*, which are sorted and not empty."""
    body = encode_segment(rows.replace_schema_metadata(identity_metadata(schema)))
    hashes = hash_column(rows)
    segment = SegmentHandle(
        key="", size_bytes=len(body), rows=rows.num_rows, checksum=checksum(body), inline=body
    )
    handle = StateHandle(
        segment=segment,
        first_hash=int(hashes[0]),
        last_hash=int(hashes[-1]),
        min_time_ms=min_time(schema, rows),
        last_write_ms=last_write(schema, rows),
    )
    return handle, body


def min_time(schema: StateSchema, table: pa.Table) -> int | None:
    """The earliest timer of a live row of *table*; None if no row has one."""
    if schema.time_column is None:
        return None
    rows = to_frame(table.select([schema.time_column, DELETED]))
    earliest = rows.select(pl.col(schema.time_column).filter(~pl.col(DELETED)).min()).item()
    assert earliest is None or isinstance(earliest, int)
    return earliest


def last_write(schema: StateSchema, table: pa.Table) -> int | None:
    """The time of the newest write in *table*; None if it is unknown for some row."""
    if schema.ttl_ms is None or not table.num_rows:
        return None
    written = to_frame(table.select([WRITTEN])).to_series()
    newest = None if written.null_count() else written.max()
    assert newest is None or isinstance(newest, int)
    return newest


@dataclass(frozen=True, slots=True, kw_only=True)
class DueMerge:
    """A merge to do: runs of one table of one subtask, oldest first.

    ``is_oldest``: no other run is before them, so their tombstones can be dropped.
    """

    subtask: int
    table: str
    schema: StateSchema
    runs: tuple[SortedRun, ...]
    is_oldest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSpec:
    """The merges of a compaction; ``now_ms``, a checkpoint's processing time, expires rows."""

    location: StoreLocation
    paths: JournalPaths
    stage: str
    checkpoint_id: int
    now_ms: int
    merges: tuple[DueMerge, ...]


def run_merges(spec: CompactionSpec, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Do the merges whose numbers *batches* hold; run in a Spark task."""
    store = open_store(spec.location)
    cache = SegmentCache(spec.location, store)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            merged = encode_merged_runs(_merge(spec, spec.merges[number], store, cache))
            yield pa.RecordBatch.from_pydict({"merged": [merged]}, schema=MERGED_SCHEMA)


def _swept(
    schema: StateSchema, rows: pl.DataFrame, *, drop_tombstones: bool, now_ms: int
) -> pl.DataFrame:
    if drop_tombstones:
        return passing(rows, ~schema.are_dead(rows, now_ms))
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


def _last_cut(hashes: pl.Series, max_rows: int) -> int:
    """The end of a piece of at most *max_rows*; *hashes* must have more than that."""
    next_hash = hashes[max_rows]
    end = int(np.searchsorted(hashes.head(max_rows).to_numpy(), next_hash))
    return end or int(np.searchsorted(hashes.to_numpy(), next_hash, side="right"))


def _merge(
    spec: CompactionSpec, due: DueMerge, store: ObjectStore, cache: SegmentCache
) -> MergedRuns:
    written: list[StateHandle] = []

    def write(table: pa.Table) -> None:
        handle, body = describe_segment(due.schema, table)
        name = f"{due.subtask:05d}-{handle.segment.checksum}"
        key = spec.paths.compacted_segment(spec.stage, spec.checkpoint_id, name)
        store.put(key, body)
        segment = replace(handle.segment, key=key, inline=None)
        cache.add(segment, body)
        written.append(replace(handle, segment=segment, table=due.table, run=due.runs[-1].run))

    files = RowFiles(write)
    handles = [handle for run in due.runs for handle in run.handles]
    cache.prefetch(handle.segment for handle in handles)
    for frame in merged_frames(
        due.schema, open_runs(cache, handles), drop_tombstones=due.is_oldest, now_ms=spec.now_ms
    ):
        files.add(frame)
    files.finish()
    return MergedRuns(replaced=tuple(map(replaced_segment, handles)), merged=tuple(written))
