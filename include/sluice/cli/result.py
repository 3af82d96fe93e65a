"""The final result table of a job, and the file it is written to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError
from sluice.runner.job import Job

if TYPE_CHECKING:
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


def final_table(job: Job, params: Mapping[str, str]) -> pa.Table:
    """What the job's (first) sink has published, sorted by its columns from the left."""
    table = job.result_table(params).read()
    if not table.num_columns:
        return table
    return table.sort_by([(name, "ascending") for name in table.column_names])


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
