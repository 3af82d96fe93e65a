"""Rankings, aggregates and joins of rows that are taken back, and aggregates over SQL, on Spark."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Stream
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.property.subtask.played import at, in_order
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def a_source(job: FolderJob, uid: str = "rows") -> Stream:
    folder = job.files / uid
    folder.mkdir()
    files = Files(str(folder), format="parquet", bounded=False)
    return job.pipeline.source(uid, files, event_time="at" if uid == "rows" else None)


def a_row(key: int, value: int, **more: Any) -> dict[str, Any]:
    return {"k": key, "v": value, "user": 7, "name": "n", "b": {"x": key}, "at": at(value), **more}


@pytest.mark.parametrize("is_plain", [True, False])  # Without Spark's JVM, and through it.
def test_an_aggregate_takes_a_column_a_field_or_sql(
    spark: SparkSession, tmp_path: Path, *, is_plain: bool
) -> None:
    job = FolderJob(spark, tmp_path)
    computed: dict[str, Any] = (
        {} if is_plain else {"product": agg.sum("v * k"), "dearest": agg.last("v", by="-v")}
    )
    rows = a_source(job).key_by("k")
    upserts = FilesTable(upsert_key=("k",))
    rows.aggregate("sums", user=agg.max("user"), x=agg.sum("b.x"), **computed).sink("out", upserts)
    rows.window("late", Tumbling(timedelta(seconds=1)), x=agg.avg("b.x"), **computed).sink(
        "windows", FilesTable()
    )
    job.write("rows/1.parquet", pl.DataFrame([a_row(1, 2), a_row(1, 3), a_row(2, 4)]))

    job.epoch()
    job.write("rows/2.parquet", pl.DataFrame([a_row(1, 2_000)]))
    job.epoch()  # The windows of the first second end.

    more = ((2_005, 2), (8, 4)) if computed else ((), ())
    assert in_order(job.table("out")) == [(1, 7, 3, *more[0]), (2, 7, 2, *more[1])]
    more = ((5, 2), (8, 4)) if computed else ((), ())
    assert in_order(job.table("windows").drop("window_start", "window_end")) == [
        (1, 1.0, *more[0]),
        (2, 2.0, *more[1]),
    ]


def test_a_balance_that_falls_makes_room_for_the_next(spark: SparkSession, tmp_path: Path) -> None:
    job = FolderJob(spark, tmp_path)
    balances = a_source(job).key_by("k", "name").aggregate("balances", total=agg.sum("v"))
    named = balances.key_by("name")
    upserts = FilesTable(upsert_key=("name",))
    named.top_n("richest", 1, by="total").sink("top", FilesTable(upsert_key=("name", "rank")))
    named.latest("largest", by="total").sink("latest", upserts)
    named.aggregate("stats", most=agg.max("total"), who=agg.first("k", by="total")).sink(
        "stats_out", upserts
    )
    job.write("rows/1.parquet", pl.DataFrame([a_row(1, 100), a_row(2, 50)]))
    job.epoch()

    job.write("rows/2.parquet", pl.DataFrame([a_row(1, -90)]))
    job.epoch()

    assert job.table("top").rows() == [("n", 1, 2, 50)]
    assert job.table("latest").rows() == [(2, "n", 50)]
    assert job.table("stats_out").rows() == [("n", 50, 1)]


def test_a_row_that_stood_alone_leaves_when_its_partner_comes(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = FolderJob(spark, tmp_path)
    lefts, rights = (a_source(job, uid).key_by("k") for uid in ("left", "right"))
    both = lefts.join("both", rights, how="full")
    both.sink("changes", FilesTable(changelog=True))
    both.key_by("k").aggregate("counts", n=agg.count(), most=agg.max("w")).sink(
        "out", FilesTable(upsert_key=("k",))
    )
    job.write("left/1.parquet", pl.DataFrame({"k": [1, 2, None], "v": [10, 20, 30]}))
    job.write("right/1.parquet", pl.DataFrame({"k": [3], "w": [300]}))
    job.epoch()

    job.write("left/2.parquet", pl.DataFrame({"k": [3], "v": [30]}))
    job.write("right/2.parquet", pl.DataFrame({"k": [1, 1], "w": [100, 101]}))
    job.epoch()

    assert in_order(job.table("changes").filter(pl.col("kind") == "-D")) == [
        ("-D", 1, 10, None),
        ("-D", 3, None, 300),
    ]
    assert in_order(job.table("out")) == [
        (1, 2, 101),
        (2, 1, None),
        (3, 1, 300),
        (None, 1, None),
    ]


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_sum_that_is_no_bigint_is_declined_with_its_name(
    spark: SparkSession, tmp_path: Path, *, is_plain: bool
) -> None:
    job = FolderJob(spark, tmp_path)
    rows = a_source(job) if is_plain else a_source(job).where("k + 0 = 1")
    sums = rows.key_by("k").aggregate("sums", total=agg.sum("v"), mean=agg.avg("v"))
    sums.sink("out", FilesTable(upsert_key=("k",)))
    job.write("rows/1.parquet", pl.DataFrame([a_row(1, 1)] * 20))
    job.epoch()  # From the next one on, so many rows of a key are grouped before the shuffle.

    large = [a_row(1, 1) | {"v": 2**62} for _ in range(20)]
    job.write("rows/2.parquet", pl.DataFrame(large))
    failure = job.failure()

    assert "stage 'sums' cannot compute 'total': sum('v') of some group does not fit" in failure
    assert job.table("out").rows() == [(1, 20, 1.0)]
