"""Columns that change under a source: refused by name or right, whichever way the rows take."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.files.parquet import ParquetSource
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import JobStatus
from sluice.core.pending import FIRST_ATTEMPT
from sluice.errors import ConfigurationError, StageFailed
from sluice.exchange.reading import ParquetRows
from sluice.job.places import open_side_table
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.stage import run_stage
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Columns = dict[str, tuple[str, Any]]  # Name: Avro's type and a value.

FIRST: Columns = {"n": ("long", 1), "a": ("int", 10), "b": ("int", 20)}
DRIFTS: dict[str, Columns] = {
    "new": {**FIRST, "c": ("int", 30)},
    "dropped": {"n": ("long", 2), "a": ("int", 11)},
    "renamed": {"n": ("long", 2), "a": ("int", 11), "c": ("int", 21)},
    "swapped": {"n": ("long", 2), "b": ("int", 21), "a": ("int", 11)},
    "widened": {"n": ("long", 2), "a": ("long", 11), "b": ("int", 21)},
    "narrowed": {"n": ("int", 2), "a": ("int", 11), "b": ("int", 21)},
    "other": {"n": ("long", 2), "a": ("string", "11"), "b": ("int", 21)},
}
ARROW = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
WAYS = ("unkeyed", "past", "through")
FORMATS = ("parquet", "avro")

every_drift = pytest.mark.parametrize("drift", DRIFTS)
each_format = pytest.mark.parametrize("format_", FORMATS)
# Past the JVM columns are found by their names, wherever they are: see the next test.
EVERY = [one for one in product(FORMATS, DRIFTS, WAYS) if one != ("parquet", "swapped", "past")]
FEW = [
    ("parquet", "swapped", "unkeyed"),
    ("parquet", "swapped", "through"),
    ("parquet", "renamed", "past"),
    ("parquet", "widened", "past"),
    ("avro", "swapped", "through"),
]
SOME = EVERY if os.environ.get("SLUICE_WAYS") else FEW


def write(path: Path, columns: Columns) -> None:
    """A file of one row, moved into place."""
    temporary = path.with_name("." + path.name)
    if path.suffix == ".parquet":
        arrays = {name: pa.array([value], ARROW[kind]) for name, (kind, value) in columns.items()}
        pq.write_table(pa.table(arrays), temporary)
    else:
        fields = [{"name": name, "type": kind} for name, (kind, _) in columns.items()]
        row = {name: value for name, (_, value) in columns.items()}
        schema = {"type": "record", "name": "row", "fields": fields}
        with temporary.open("wb") as file:
            fastavro.writer(file, schema, [row])
    temporary.replace(path)


def a_job(spark: SparkSession, folder: Path, **how: Any) -> FolderJob:
    job = FolderJob(spark, folder)
    rows = job.pipeline.source("rows", Files(str(job.files), bounded=False, **how))
    rows.transform("unkeyed", lambda found: found).sink("unkeyed_out", FilesTable())
    rows.where("n >= 0").key_by("n").deduplicate("past").sink("past_out", FilesTable())
    keyed = rows.where("abs(n) >= 0").key_by("n")
    keyed.deduplicate("through").sink("through_out", FilesTable())
    return job


def tables(job: FolderJob) -> list[list[dict[str, Any]]]:
    return [job.table(f"{way}_out").sort("n").to_dicts() for way in WAYS]


@every_drift
@each_format
def test_files_of_other_columns_are_refused_in_one_epoch_and_in_the_next(
    spark: SparkSession, tmp_path: Path, format_: str, drift: str
) -> None:
    """Nothing of such a file is read; without it the job goes on."""
    job = a_job(spark, tmp_path, format=format_)
    write(job.files / f"b.{format_}", FIRST)
    assert job.job.state().status is JobStatus.RUNNING
    bad = job.files / f"a.{format_}"
    write(bad, DRIFTS[drift])
    with pytest.raises(ConfigurationError, match=r"column '\w' of b\.\w+ is .* rewrite one of"):
        job.epoch()
    bad.unlink()
    if (drift, format_) != ("new", "parquet"):  # Epochs of Spark's for one of them are enough.
        return
    job.epoch()
    write(bad.with_stem("c"), DRIFTS[drift])
    with pytest.raises(ConfigurationError, match=r"column 'c' of c\.\w+ is int32, and of b"):
        job.epoch()
    bad.with_stem("c").unlink()
    write(bad.with_stem("d"), {**FIRST, "n": ("long", 2)})
    job.epoch()

    first = {name: value for name, (_, value) in FIRST.items()}
    assert tables(job) == [[first, {**first, "n": 2}]] * len(WAYS)


@pytest.mark.parametrize(("format_", "drift", "way"), SOME)
def test_what_arrives_between_plan_and_read_lends_its_columns_to_nobody(
    spark: SparkSession, tmp_path: Path, format_: str, drift: str, way: str
) -> None:
    """A file of a lesser name, which a stage asks for the columns of all."""
    job = a_job(spark, tmp_path, format=format_)
    write(job.files / f"b.{format_}", FIRST)
    planned = trigger(job.job)
    assert isinstance(planned, Triggered)
    write(job.files / f"a.{format_}", DRIFTS[drift])

    with pytest.raises(StageFailed, match=r"'\w+' failed .*: (column '\w'|the columns) of b\."):
        run_stage(job.job, spark, planned.plan.checkpoint_id, way, attempt=FIRST_ATTEMPT)


def test_past_the_jvm_columns_are_found_by_their_names(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", FIRST)
    source = ParquetSource(str(tmp_path))
    slices = source.plan((), max_records=None, parallelism=1).slices
    moved = pa.schema([(name, ARROW[kind]) for name, (kind, _) in DRIFTS["swapped"].items()])
    rows = ParquetRows(source, (slices,), moved.serialize().to_pybytes())

    ((_, batch),) = rows.read(0, moved.names)

    assert batch.to_pylist() == [{"n": 1, "b": 20, "a": 10}]


LINES = [
    '{"n": 1, "a": 1, "b": "x"}',
    '{"n": 2, "a": 2, "b": "y", "c": {"new": 1}}',
    '{"n": 3, "b": "dropped"}',
    '{"b": "moved", "a": 4, "n": 4}',
    '{"n": 5, "a": 2147483648, "b": "wider"}',
    '{"n": 6, "a": "text", "b": "other"}',
    '{"n": 7, "a": 1.5, "b": "real"}',
]


def test_lines_of_json_with_other_fields_are_read_by_the_schema_or_malformed(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = a_job(spark, tmp_path, format="json", schema="n bigint, a int, b string")
    for number, line in enumerate(LINES):
        (job.files / f"{number}.json").write_text(line + "\n")
        if number == 2:
            job.epoch()
    job.epoch()

    rows = [(1, 1, "x"), (2, 2, "y"), (3, None, "dropped"), (4, 4, "moved")]
    expected = [dict(zip("nab", row, strict=True)) for row in rows]
    assert tables(job) == [expected] * len(WAYS)
    malformed = pl.from_arrow(open_side_table(job.job, "unkeyed.malformed").read())
    assert isinstance(malformed, pl.DataFrame)
    assert sorted(malformed["line"]) == LINES[4:]
