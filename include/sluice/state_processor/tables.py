"""Tables of keyed state written anew: sorted rows as the segments of one run, subtask by subtask.

    rows of a snapshot, merged --function--> sorted rows --cut at the subtasks' key groups--> files
    rows of a person --hashed, spilled, sorted by ranges of hashes--^

Promises: a piece of the rows is in memory at a time, whatever the size of the state; a piece has
all rows of each of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa

from sluice.core.handles import MAX_HASH, MIN_HASH, SegmentHandle, StateHandle
from sluice.core.key_groups import hash_range, key_group_range
from sluice.state_processor.rows import Function, Rows, bootstrapped, frames_of, once, rewritten
from sluice.subtask.group_buffer import GroupBuffer, HashRange
from sluice.subtask.operators.operator import Frames
from sluice.subtask.row_file_writer import RowFiles
from sluice.subtask.state.cache import SegmentCache
from sluice.subtask.state.merging import merge_pieces
from sluice.subtask.state.schema import StateSchema
from sluice.subtask.state.segments import HASH, to_frame
from sluice.subtask.state_files import describe_segment, open_runs

PIECE_ROWS = 262_144
MEMORY_BYTES = 512 * 1024**2  # Of which a quarter holds rows that wait to be sorted.

Keep = Callable[[SegmentHandle, bytes], SegmentHandle]
"""Puts a segment's bytes where they are to lie, and says so in its handle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table of a stage; ``now_ms`` is when rows are written that were not there."""

    stage: str
    table: str
    schema: StateSchema
    parallelism: int
    max_parallelism: int
    now_ms: int

    def __str__(self) -> str:
        return f"stage {self.stage!r}, table {self.table!r} of its state"

    @property
    def owned(self) -> list[tuple[int, int]]:
        """The first and the last hash of each subtask."""
        most, count = self.max_parallelism, self.parallelism
        return [hash_range(most, key_group_range(most, count, index)) for index in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """The handles of each subtask, and how many rows were read and written for them."""

    subtasks: tuple[tuple[StateHandle, ...], ...]
    rows_before: int
    rows: int


def rewrite_table(
    place: Place,
    subtasks: Sequence[Sequence[StateHandle]],
    functions: Sequence[Function],
    *,
    as_of_ms: int,
    cache: SegmentCache,
    keep: Keep,
) -> NewTable:
    """What *functions*, one after the other, make of the live rows of a snapshot as of then.

    *subtasks* have the table's segments of each former subtask, oldest first.

    Raises:
        ConfigurationError: a function's rows cannot take the place of those it was given.
        CorruptSegment: a file of the snapshot is gone, or is not what was written.
        RestoreError: the stage, as it is declared now, cannot read its state.
    """
    writer = _Writer(place, keep)
    rows_before = 0
    for handles in subtasks:
        pieces = merge_pieces(
            place.schema,
            open_runs(cache, handles),
            drop_tombstones=True,
            now_ms=as_of_ms,
            max_rows=PIECE_ROWS,
            owner=f"stage {place.stage!r}",
        )
        for piece in pieces:
            rows = to_frame(piece)
            rows_before += rows.height
            for function in functions:
                rows = rewritten(place.schema, rows, function, now_ms=place.now_ms, what=str(place))
            writer.add(rows)
    return NewTable(subtasks=writer.finish(), rows_before=rows_before, rows=writer.rows)


def bootstrap_table(place: Place, given: Rows, keep: Keep) -> NewTable:
    """The table that holds the rows *given*.

    Raises:
        ConfigurationError: they are no rows of this table; the message says why.
    """
    writer = _Writer(place, keep)
    with GroupBuffer(_AsTheyAre(), HashRange(MIN_HASH, MAX_HASH), MEMORY_BYTES) as buffer:
        buffer.add({place.table: place.schema.stored.to_frame()})
        for frame in frames_of(given, str(place)):
            rows = bootstrapped(place.schema, frame, now_ms=place.now_ms, what=str(place))
            buffer.add({place.table: rows})
        for _, groups in buffer.ranges(0):
            writer.add(once(place.schema, groups[place.table], str(place)))
    return NewTable(subtasks=writer.finish(), rows_before=0, rows=writer.rows)


class _AsTheyAre:
    """As much of an operator as a buffer needs, for rows that are not folded."""

    def combine(self, groups: Frames) -> Frames:
        return groups


class _Writer:
    """Stored rows, ascending by identity, as files of which each is of one subtask."""

    def __init__(self, place: Place, keep: Keep) -> None:
        self._place = place
        self._keep = keep
        self._files = RowFiles(self._write)
        self._owned = place.owned
        self._written: list[list[StateHandle]] = [[] for _ in self._owned]
        self._index = 0
        self.rows = 0

    def add(self, rows: pl.DataFrame) -> None:
        self.rows += rows.height
        for index, part in self._by_subtask(rows):
            if index != self._index:
                self._files.finish()
                self._index = index
            self._files.add(part)

    def finish(self) -> tuple[tuple[StateHandle, ...], ...]:
        self._files.finish()
        return tuple(map(tuple, self._written))

    def _by_subtask(self, rows: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
        hashes = rows[HASH].to_numpy()
        lasts = np.array([last for _, last in self._owned], np.int64)
        start = 0
        for index, end in enumerate(np.searchsorted(hashes, lasts, side="right").tolist()):
            if end > start:
                yield index, rows.slice(start, end - start)
                start = end

    def _write(self, rows: pa.Table) -> None:
        handle, body = describe_segment(self._place.schema, rows)
        segment = self._keep(handle.segment, body)
        handle = replace(handle, segment=segment, table=self._place.table, run=1)
        self._written[self._index].append(handle)
