"""``RowFiles``: frames, cut into files of bounded size, in bounded memory.

Rows alone decide where a file ends, so the same rows give the same files, however they were cut
into frames.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa

from sluice.subtask.row_sizes import fixed_width, row_sizes
from sluice.subtask.state.segments import to_table

# Rows of a file: about 64 MB of narrow rows, which one request uploads from one buffer.
ROWS_PER_FILE = 1_048_576
WIDE_ROWS_PER_FILE = 262_144

# Bytes of a file of wider rows: it ends with the row that reaches them.
BYTES_PER_FILE = 128 * 1024**2


class RowFiles:
    """A buffer that calls *write* with the rows of each full file, and at last with the rest."""

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
        """Remove and return the rows that are in no file yet; None if there are none."""
        rest = pl.concat(self._frames) if self._frames else None
        self._frames, self._rows, self._bytes = [], 0, 0
        return rest

    def finish(self) -> None:
        rest = self.take()
        if rest is not None:
            self._write(to_table(rest))
