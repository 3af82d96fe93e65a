"""Files of state: handles opened as runs, and rows encoded as segments with their handles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from sluice.core.handles import SegmentHandle, StateHandle
from sluice.subtask.state.cache import SegmentCache
from sluice.subtask.state.evolution import identity_metadata
from sluice.subtask.state.keyed import last_write, min_time
from sluice.subtask.state.merging import merge_pieces
from sluice.subtask.state.runs import Run
from sluice.subtask.state.schema import StateSchema
from sluice.subtask.state.segments import checksum, encode_segment, hash_column, to_frame

MERGE_ROWS = 1_048_576  # Rows of a piece of a merge; about three are in memory at a time.


def open_runs(cache: SegmentCache, handles: Sequence[StateHandle]) -> list[Run]:
    """The runs of *handles*, oldest first; a segment is fetched when a row of it is needed."""
    return [
        Run(
            table=_Opener(cache, handle.segment),
            first_hash=handle.first_hash,
            last_hash=handle.last_hash,
            min_time_ms=handle.min_time_ms,
            last_write_ms=handle.last_write_ms,
        )
        for handle in handles
    ]


def merged_frames(
    schema: StateSchema, runs: Sequence[Run], *, drop_tombstones: bool, now_ms: int
) -> Iterator[pl.DataFrame]:
    """The merged rows of *runs*, oldest first."""
    for piece in merge_pieces(
        schema,
        runs,
        drop_tombstones=drop_tombstones,
        now_ms=now_ms,
        max_rows=MERGE_ROWS,
    ):
        yield to_frame(piece)


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


@dataclass(frozen=True, slots=True)
class _Opener:
    cache: SegmentCache
    segment: SegmentHandle

    def __call__(self) -> pa.Table:
        return self.cache.open(self.segment)
