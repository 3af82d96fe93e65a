"""Rows with maps, of which Spark knows no order, pass every stage that puts rows in an order."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from sluice import Tumbling
from sluice import aggregates as agg
from sluice.sinks import FilesTable
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INSTANT = pa.timestamp("us", "UTC")
ROWS = pa.table(
    {
        "k": ["a", "a", "b"],
        "d": [0.5, 0.25, 1.0],
        "at": pa.array([0, 1_000_000, 2_000_000], pa.int64()).cast(INSTANT),
        "m": pa.array([[("x", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "deep": pa.array([[[("x", 1)]], [], None], pa.list_(pa.map_(pa.string(), pa.int32()))),
    }
)


def same(rows: DataFrame) -> DataFrame:
    return rows


def test_a_window_of_floats_reads_rows_with_maps(job: FolderJob) -> None:
    job.write("1.parquet", ROWS)
    windows = (
        job.rows(event_time="at")
        .key_by("k")
        .window("w", Tumbling(timedelta(minutes=1)), spread=agg.stddev("d"), total=agg.sum("d"))
    )
    windows.sink("out", FilesTable())

    job.epoch()
    later = pa.array([600_000_000], pa.int64()).cast(INSTANT)
    job.write("2.parquet", ROWS.slice(2, 1).set_column(2, "at", later))
    job.epoch()  # The windows of the first minute end.

    assert sorted(job.table("out").select("k", "total").rows()) == [("a", 0.75), ("b", 1.0)]


def test_updates_of_rows_with_maps_are_merged_in_an_order(job: FolderJob) -> None:
    newest = job.rows().key_by("k").latest("newest", by="d")
    newest.sink("all", FilesTable(upsert_key=("k",)))  # So the reader projects for itself.
    newest.select("k", "m", "deep").transform("same", same).sink("out", FilesTable(changelog=True))
    job.write("1.parquet", ROWS)
    job.epoch()
    job.write("2.parquet", ROWS.slice(0, 1).set_column(1, "d", pa.array([7.0])))

    job.epoch()

    found = job.table("out")
    assert found.filter(pl.col("k") == "b").height == 1
    assert found["deep"].null_count() == 1
