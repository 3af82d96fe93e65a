"""Frames in, files of rows out, in bounded memory: where a file ends is decided by rows alone.

So the same rows give the same files, however they were cut into frames.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa

from sluice.runtime.row_sizes import fixed_width, row_sizes
from sluice.runtime.state.segments import to_table

# About 64 MB of a few numbers, or of a row with strings in it: one request, one buffer.
ROWS_PER_FILE = 1_048_576
WIDE_ROWS_PER_FILE = 262_144

# Of wider rows: a file ends with the row that reaches it.
BYTES_PER_FILE = 128 * 1024**2


class RowFiles:
    """Calls *write* with the rows of every file that is full, and in ``finish`` with the rest."""

    def __init__(self, write: Callable[[pa.Table], None]) -> None:
        self._write = write
        self._frames: list[pl.DataFrame] = []
        self._rows = self._bytes = 0

    def add(self, frame: pl.DataFrame) -> None:
        width = fixed_width(frame.schema)
        limit = WIDE_ROWS_PER_FILE if width is None else ROWS_PER_FILE
        sizes = np.full(frame.height, width) if width is not None else row_sizes(frame).to_numpy()
        ends_at = np.cumsum(sizes)  # The bytes of the frame up to the end of each row.
        start = 0
        while start < frame.height:
            before = int(ends_at[start - 1]) if start else 0
            is_full = int(np.searchsorted(ends_at, BYTES_PER_FILE - self._bytes + before)) + 1
            end = min(start + limit - self._rows, is_full)
            piece = frame.slice(start, end - start)
            self._frames.append(piece)
            self._rows += piece.height
            self._bytes += int(ends_at[start + piece.height - 1]) - before
            if end <= frame.height:
                self.finish()
            start = end

    def take(self) -> pl.DataFrame | None:
        """What no file holds yet, for somebody else to write; None if there is nothing."""
        rest = pl.concat(self._frames) if self._frames else None
        self._frames, self._rows, self._bytes = [], 0, 0
        return rest

    def finish(self) -> None:
        rest = self.take()
        if rest is not None:
            self._write(to_table(rest))
