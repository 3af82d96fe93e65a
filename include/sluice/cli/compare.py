"""``sluice compare``: two tables, row by row, as when a pipeline takes a script's place.

A table is a folder of Parquet files, with columns in the names of its folders or without, or a
``FilesTable`` by its location.  Both are read into memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sluice.cli.options import print_json, print_line
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.state.segments import to_frame
from sluice.store.open import StoreLocation
from sluice.surface.comparison import compared, lines_of

if TYPE_CHECKING:
    import polars as pl

DIFFERENT = 2  # The exit code; 1 is that of a mistake.


def compare(
    table_a: str, table_b: str, keys: tuple[str, ...], *, as_json: bool, endpoint_url: str | None
) -> None:
    """The command; it ends with DIFFERENT unless the tables are equal."""
    a, b = (_read(place, keys, endpoint_url) for place in (table_a, table_b))
    found = compared(a, b, keys)
    if as_json:
        print_json(found)
    else:
        for line in lines_of(found):
            print_line(line)
    if not found.are_equal:
        raise typer.Exit(DIFFERENT)


def _read(place: str, keys: tuple[str, ...], endpoint_url: str | None) -> pl.DataFrame:
    root = place if "://" in place else f"file://{Path(place).resolve()}"
    location = StoreLocation(root=root, endpoint_url=endpoint_url)
    table = FilesTable(upsert_key=keys).open("compared", {}, location)
    if table.size().version is not None:
        return to_frame(table.read())
    import pyarrow as pa

    source = Files(place, "parquet").open({}, endpoint_url)
    plan = source.plan((), max_records=None, parallelism=1)
    source = source.settled(entry.partition for entry in plan.position)
    batches = [batch for piece in plan.slices for batch in source.read(piece)]
    return to_frame(pa.Table.from_batches(batches, source.schema()))
