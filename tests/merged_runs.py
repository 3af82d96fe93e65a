"""Runs merged at once, beside which tests hold what is merged in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from sluice.state.merging import merge_pieces, stored_run
from sluice.state.runs import Run
from sluice.state.segments import StateSchema

ALL_ROWS = 1 << 40


def merge_runs(
    schema: StateSchema, runs: Sequence[Run], *, drop_tombstones: bool, now_ms: int = 0
) -> pa.Table:
    """Adjacent *runs* (oldest to newest, cut to their bounds) as the one run that replaces them."""
    pieces = [
        *merge_pieces(
            schema, runs, drop_tombstones=drop_tombstones, now_ms=now_ms, max_rows=ALL_ROWS
        )
    ]
    none: pl.DataFrame = schema.stored.to_frame()
    return pa.concat_tables(pieces) if pieces else stored_run(schema, none)
