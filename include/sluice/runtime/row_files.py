"""Frames in, files of rows out, in bounded memory: where a file ends is decided by rows alone.

So the same rows give the same files, however they were cut into frames.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pyarrow as pa

from sluice.runtime.state.segments import to_table

# About 64 MB of a few numbers, or of a row with strings in it: one request, one buffer.
ROWS_PER_FILE = 1_048_576
WIDE_ROWS_PER_FILE = 262_144


class RowFiles:
    """Calls *write* with the rows of every file that is full, and in ``finish`` with the rest."""

    def __init__(self, write: Callable[[pa.Table], None]) -> None:
        self._write = write
        self._frames: list[pl.DataFrame] = []
        self._rows = 0

    def add(self, frame: pl.DataFrame) -> None:
        if not frame.height:
            return
        self._frames.append(frame)
        self._rows += frame.height
        limit = rows_per_file(frame.schema)
        if self._rows < limit:
            return
        rows = pl.concat(self._frames, rechunk=True)
        full = rows.height // limit * limit
        for start in range(0, full, limit):
            self._write(to_table(rows.slice(start, limit)))
        rest = rows.slice(full)
        self._frames, self._rows = [rest] if rest.height else [], rest.height

    def take(self) -> pl.DataFrame | None:
        """What no file holds yet, for somebody else to write; None if there is nothing."""
        rest = pl.concat(self._frames) if self._frames else None
        self._frames, self._rows = [], 0
        return rest

    def finish(self) -> None:
        rest = self.take()
        if rest is not None:
            self._write(to_table(rest))


def rows_per_file(schema: pl.Schema) -> int:
    is_narrow = all(
        dtype.is_numeric() or dtype.is_temporal() or dtype == pl.Boolean()
        for dtype in schema.dtypes()
    )
    return ROWS_PER_FILE if is_narrow else WIDE_ROWS_PER_FILE
