"""Between handles and runs: segments opened for reading, and described when they are written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from sluice.core.handles import SegmentHandle, StateHandle
from sluice.runtime.state.cache import SegmentCache
from sluice.runtime.state.evolution import identity_metadata
from sluice.runtime.state.keyed import last_write, min_time
from sluice.runtime.state.merging import merge_pieces
from sluice.runtime.state.runs import Run
from sluice.runtime.state.schema import StateSchema
from sluice.runtime.state.segments import checksum, encode_segment, hash_column, to_frame

MERGE_ROWS = 1_048_576  # Of each piece, while runs are merged; some three are in memory at a time.


def open_runs(cache: SegmentCache, handles: Sequence[StateHandle]) -> list[Run]:
    """Runs for reading, oldest first; a segment is fetched when a row of it is needed."""
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
    """The rows that *runs*, oldest first, come to."""
    for piece in merge_pieces(
        schema,
        runs,
        drop_tombstones=drop_tombstones,
        now_ms=now_ms,
        max_rows=MERGE_ROWS,
    ):
        yield to_frame(piece)


def describe_segment(schema: StateSchema, rows: pa.Table) -> tuple[StateHandle, bytes]:
    """A segment of *rows*, sorted and at least one: its bytes, and its handle with them inline."""
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
