"""The final result table of a job, and the file it is written to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.places import open_result_table

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

SUFFIXES = (".parquet", ".json", ".csv")


def check_result_file(path: Path | None) -> None:
    """Raises ConfigurationError unless the table can be written there; asked before the work."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise ConfigurationError(
            f"--output {path} has no known ending; name it {' or '.join(SUFFIXES)}"
        )
    if not path.resolve().parent.is_dir():
        raise ConfigurationError(f"--output {path}: there is no folder {path.resolve().parent}")


def chosen_sink(pipeline: Pipeline, named: str | None, output: Path | None) -> str | None:
    """The sink whose table is the result; None if there are several and none is named.

    Raises:
        ConfigurationError: there is none of that name, or --output is given and not of which.
    """
    sinks = ", ".join(pipeline.sinks)
    if named is not None:
        if named not in pipeline.sinks:
            raise ConfigurationError(
                f"--sink {named}: pipeline {pipeline.uid!r} has no such sink; it has {sinks}"
            )
        return named
    if len(pipeline.sinks) == 1:
        return next(iter(pipeline.sinks))
    if output is not None:
        raise ConfigurationError(
            f"--output {output}: pipeline {pipeline.uid!r} has the sinks {sinks}; say which one "
            "with --sink NAME"
        )
    return None


def check_result_columns(path: Path | None, sink: str, columns: pl.Schema) -> None:
    """Raises ConfigurationError when the file cannot hold the columns; asked before the work."""
    if path is None or path.suffix != ".csv":
        return
    for name, of in columns.items():
        if of.is_nested() or str(of) == "Binary":
            raise ConfigurationError(
                f"--output {path}: column {name!r} of sink {sink!r} is {of}, which a CSV file "
                "cannot hold; write .parquet or .json"
            )


def final_table(job: Job, params: Mapping[str, str], sink: str | None = None) -> pa.Table:
    """What *sink*, by default the first, has published, sorted by its columns from the left, as far
    as they have an order.
    """
    table = open_result_table(job, params, sink).read()
    ordered = [(field.name, "ascending") for field in table.schema if not _is_nested(field.type)]
    return table.sort_by(ordered) if ordered else table


def _is_nested(dtype: pa.DataType) -> bool:
    import pyarrow as pa

    nested: bool = pa.types.is_nested(dtype)
    return nested


def write_result(table: pa.Table, path: Path) -> None:
    """Write Parquet, JSON (an array of rows; times as ISO 8601 in UTC) or CSV, by the ending."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, path)
    elif path.suffix == ".csv":
        import pyarrow.csv

        pyarrow.csv.write_csv(table, path)
    else:
        import msgspec

        raw = msgspec.json.encode(table.to_pylist())
        path.write_bytes(msgspec.json.format(raw, indent=1) + b"\n")
