"""Partitions that Spark overwrites: their old rows are taken back, and the new ones come.

A plain read by Spark of what is there is what each job's tables are compared with.
"""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from sluice.declaration import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.examples import slow_but
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WRITTEN = "n bigint, price double, dt date"
FORMATS: dict[str, dict[str, Any]] = {
    "parquet": {},
    "json": {"schema": "n bigint, price double"},
    "csv": {"schema": "n bigint, price double", "escape": "\\"},
}
DAYS = [date(2026, 3, day) for day in (1, 2, 3)]


def rows_of_day(day: date, first: int, count: int) -> list[dict[str, Any]]:
    return [{"n": n, "price": n / 4, "dt": day} for n in range(first, first + count)]


def put(spark: SparkSession, folder: Path, kind: str, rows: list[dict[str, Any]]) -> None:
    writer = spark.createDataFrame(rows, WRITTEN).repartition(2).write.format(kind)
    writer = writer.partitionBy("dt").option("partitionOverwriteMode", "dynamic")
    writer.mode("overwrite").save(str(folder))


def a_job(spark: SparkSession, folder: Path, kind: str) -> FolderJob:
    """Rows are read unkeyed, past Spark's JVM, and through it."""
    job = FolderJob(spark, folder)
    spec = Files(
        str(job.files),
        format=kind,  # type: ignore[arg-type]
        bounded=False,
        replaced="by partition",
        **FORMATS[kind],
    )
    rows = job.pipeline.source("rows", spec)
    unkeyed = rows.transform("unkeyed", lambda found: found)
    unkeyed.sink("unkeyed_out", FilesTable(changelog=True))
    for way, condition in (("past", "n >= 0"), ("through", "length(hex(n)) >= 0")):
        kept = rows.where(condition).select("n * 2 AS twice", "dt", "price")
        totals = kept.key_by("dt").aggregate(
            way, rows=agg.count(), total=agg.sum("twice"), least=agg.min("price")
        )
        totals.sink(f"{way}_out", FilesTable(upsert_key=("dt",)))
    return job


def check(spark: SparkSession, job: FolderJob, kind: str) -> None:
    """Compare every table with what is there."""
    there = (
        spark.read.schema(WRITTEN).option("escape", "\\").format(kind).load(str(job.files))
    ).collect()
    rows = [row.asDict() for row in there]
    expected: dict[date, list[Any]] = {}
    for row in rows:
        expected.setdefault(row["dt"], []).append(row)
    totals = {
        day: (len(of), sum(2 * row["n"] for row in of), min(row["price"] for row in of))
        for day, of in expected.items()
    }
    for way in ("past", "through"):
        found = {
            row["dt"]: (row["rows"], row["total"], row["least"])
            for row in job.table(f"{way}_out").to_dicts()
        }
        assert found == totals, way
    changes = job.table("unkeyed_out").with_columns(
        weight=pl.when(pl.col("kind") == "-D").then(-1).otherwise(1)
    )
    net = changes.group_by("n", "price", "dt").agg(pl.col("weight").sum())
    net = net.filter(pl.col("weight") != 0).sort("dt", "n")
    assert net.to_dicts() == [
        {**row, "weight": 1} for row in sorted(rows, key=lambda row: (row["dt"], row["n"]))
    ]


@pytest.mark.parametrize("kind", slow_but(FORMATS, "parquet"))
def test_an_overwritten_partition_takes_its_rows_back_and_a_deleted_one_too(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    job = a_job(spark, tmp_path, kind)
    put(spark, job.files, kind, [row for day in DAYS for row in rows_of_day(day, day.day * 10, 5)])
    job.epoch()
    check(spark, job, kind)

    put(spark, job.files, kind, rows_of_day(DAYS[1], 20, 3) + rows_of_day(DAYS[1], 90, 4))
    overwritten = job.epoch()

    check(spark, job, kind)
    (cut,) = overwritten.sources
    assert cut.taken_back == {}
    assert {name for name in cut.copies if "dt=2026-03-02" in name} == {
        entry.partition for entry in cut.position if "dt=2026-03-02" in entry.partition
    }

    shutil.rmtree(job.files / "dt=2026-03-01")
    job.epoch()
    check(spark, job, kind)
