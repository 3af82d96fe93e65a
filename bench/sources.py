"""The source of a keyed stage by its format: CPU seconds of an epoch, of the whole process tree.

    python -m bench.sources [--rows 1000000] [--rounds 5] [--formats parquet,csv,json,...]

The same rows (key, value, at) arrive in each format, in turn, in one Spark session; the stage
computes count, sum and largest value of 100,000 keys.  The first two rounds warm up.  Every
format's state has to be the same in the end.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import polars as pl  # noqa: TID253 - no other module imports a benchmark
import zstandard

from bench.cpu import adopt_orphans, tree_cpu_s
from sluice.coordinator.submission import configure, submit
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job, open_job
from sluice.local.driver import EpochDriver
from sluice.sources import Files
from sluice.spark.session import local_session
from sluice.store.open import StoreLocation
from sluice.surface.state import open_state

PACKED: dict[str, Callable[[bytes], bytes]] = {
    "json": bytes,
    "json.gz": gzip.compress,
    "json.zst": zstandard.compress,
}
FORMATS = ("parquet", "csv", *PACKED)
SCHEMA = "key bigint, value bigint, at bigint"
KEYS = 100_000
WARM_UP = 2
FILES = 4  # An epoch; two for each of two subtasks.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--formats", default=",".join(FORMATS))
    given = parser.parse_args()
    formats: list[str] = given.formats.split(",")
    adopt_orphans()
    spent: dict[str, list[float]] = {name: [] for name in formats}
    with tempfile.TemporaryDirectory() as folder, local_session(cores=2) as spark:
        jobs = {name: a_job(name, Path(folder)) for name in formats}
        for number in range(WARM_UP + given.rounds):
            rows = rows_of(number, given.rows)
            for name, job in jobs.items():
                arrive(rows, Path(folder) / name, name, number)
                before = tree_cpu_s()
                with EpochDriver(job, spark) as driver:
                    epoch = driver.take()
                    assert epoch is not None, "there are new files"
                    assert epoch.completed is not None, epoch.failure
                spent[name].append(tree_cpu_s() - before)
        states = [
            open_state(job, "latest", "totals", "groups").frame().sort("key")
            for job in jobs.values()
        ]
    assert all(state.equals(states[0]) for state in states), "the formats do not agree"
    fastest = statistics.median(spent[formats[0]][WARM_UP:])
    for name, seconds in spent.items():
        measured = seconds[WARM_UP:]
        middle = statistics.median(measured)
        print(
            f"{name:10} CPU s: {min(measured):6.2f} best {middle:6.2f} median  "
            f"{fastest / middle:5.0%} of the speed of {formats[0]}"
        )


def a_job(name: str, folder: Path) -> Job:
    (folder / name).mkdir()
    kind = name.partition(".")[0]
    files = Files(
        str(folder / name),
        format=kind,  # type: ignore[arg-type]
        schema="" if kind == "parquet" else SCHEMA,
        header=kind == "csv",
        bounded=False,
    )
    pipeline = Pipeline("by_" + name.replace(".", "_"), checkpointing=Checkpointing(interval=None))
    pipeline.source("events", files).key_by("key").aggregate(
        "totals", count=agg.count(), sum=agg.sum("value"), max=agg.max("value")
    )
    job = open_job(pipeline, StoreLocation(root=f"file://{folder / 'jobs'}"))
    submit(job, configure(pipeline, {}, parallelism=2))
    return job


def rows_of(number: int, rows: int) -> pl.DataFrame:
    index = pl.int_range(rows, eager=True) + number * rows
    key, value = index.hash(1) % KEYS, index.hash(2) % 1_000_000
    at = index + 1_767_225_600_000
    return pl.DataFrame({"key": key, "value": value, "at": at}).cast(pl.Int64)


def arrive(rows: pl.DataFrame, folder: Path, name: str, number: int) -> None:
    """Write the rows of an epoch to FILES files."""
    size = -(-rows.height // FILES)
    for part in range(FILES):
        piece, path = rows.slice(part * size, size), folder / f"{number:04}-{part}.{name}"
        if name == "parquet":
            piece.write_parquet(path)
            continue
        if name == "csv":
            piece.write_csv(path)
            continue
        lines = piece.write_ndjson().encode()
        path.write_bytes(PACKED[name](lines))


if __name__ == "__main__":
    main()
