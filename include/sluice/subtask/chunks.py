"""Arrow batches, put together to frames: large enough to be vectorized, and bounded in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import polars as pl
import pyarrow as pa

from sluice.subtask.state.segments import to_frame

CHUNK_ROWS = 2_500_000  # Rows that are pre-aggregated at a time: large enough to be vectorized.
CHUNK_BYTES = 128 * 1024**2  # The same for wide rows: bounds memory.


BATCH_ROWS = 50_000  # As spark.sql.execution.arrow.maxRecordsPerBatch: bounds what the JVM holds.
BATCH_BYTES = 64 * 1024**2  # The same for wide rows: one column of a batch has less than 2 GiB.


def bounded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most BATCH_ROWS and about BATCH_BYTES."""
    for batch in batches:
        pieces = max(1, -(-batch.nbytes // BATCH_BYTES))
        rows = max(1, min(BATCH_ROWS, -(-batch.num_rows // pieces)))
        if batch.num_rows <= rows:
            yield batch
            continue
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
    """The rows in frames of about CHUNK_ROWS, or CHUNK_BYTES if that is less."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        pending.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield to_frame(pa.Table.from_batches(pending))
            pending, rows, size = [], 0, 0
    if pending:
        yield to_frame(pa.Table.from_batches(pending))
