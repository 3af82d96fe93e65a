"""The rows of a side output as people read them."""

from __future__ import annotations

import polars as pl

from sluice.connectors.contracts.source import MALFORMED_COLUMN, RAW
from sluice.subtask.operators.operator import COMPUTED, WEIGHT
from sluice.subtask.state.segments import HASH

SOURCE = "_source"  # struct<partition: string, record: long>: where a row came from.


def readable(frame: pl.DataFrame) -> pl.DataFrame:
    """A side output's rows for people: origin first, reserved names without the underscore.

    A column of the rows keeps its name; the reserved one of that name gets an underscore then.
    """
    theirs = {*frame.columns} - {SOURCE, MALFORMED_COLUMN, RAW, HASH, WEIGHT}

    def ours(name: str) -> str:
        return name if name not in theirs else ours(f"_{name}")

    if SOURCE in frame.columns:
        origin = pl.col(SOURCE).struct
        frame = frame.select(
            origin.field("partition").alias(ours("partition")),
            # From 1, as editors count lines.
            (origin.field("record") + 1).alias(ours("record_number")),
            pl.all().exclude(SOURCE),
        )
    kept = [name for name in theirs if name.startswith(COMPUTED)]
    frame = frame.drop(HASH, WEIGHT, *kept, strict=False)
    return frame.rename({MALFORMED_COLUMN: ours("reason"), RAW: ours("line")}, strict=False)
