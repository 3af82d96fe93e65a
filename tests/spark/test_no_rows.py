"""Filters that contradict each other: Spark sees by itself that no row passes, and starts no task;
the subtasks acknowledge all the same, and the next epoch goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Stream
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.spark.folder_job import FolderJob, stage_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL, NONE = "id >= 0", "id % 2 = 0 AND id = 3"
ROWS = pl.DataFrame({"id": range(10)})
Function = Callable[["DataFrame"], "DataFrame"]


def a_transform(rows: Stream, passing: Function) -> Stream:
    return rows.transform("stage", passing)


def a_chain(rows: Stream, passing: Function) -> Stream:
    some = rows.transform("some", passing)
    return some.key_by("id").process(
        "stage", lambda rows, state: (rows, state), state={}, result={"id": int}
    )


def a_union(rows: Stream, passing: Function) -> Stream:
    first, second = (rows.transform(uid, passing).disable_chaining() for uid in ("a", "b"))
    return first.union("stage", second)


@pytest.mark.parametrize("declared", [a_transform, a_chain, a_union])
def test_an_epoch_of_which_no_row_can_pass_is_completed(
    spark: SparkSession, tmp_path: Path, declared: Callable[[Stream, Function], Stream]
) -> None:
    job = FolderJob(spark, tmp_path)
    rows = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    conditions = [ALL]
    declared(rows, lambda rows: rows.where(conditions[-1])).sink("out", FilesTable())
    heights = []
    for epoch, condition in enumerate((ALL, NONE, ALL)):
        conditions.append(condition)
        job.write(f"{epoch}.parquet", ROWS)
        metadata = job.epoch()
        assert len(stage_of(metadata, "stage").subtasks) == 2
        heights.append(job.table("out").height)

    assert heights[0] == heights[1] > 0
    assert heights[2] == 2 * heights[0]


def test_a_keyed_stage_whose_rows_spark_reads_is_completed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.spark.deployment.exchange_of", lambda _: None)
    job = FolderJob(spark, tmp_path)
    rows = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    for condition in NONE.split(" AND "):
        rows = rows.where(condition)
    rows.key_by("id").aggregate("stage", n=agg.count()).sink("out", FilesTable(upsert_key=("id",)))
    job.write("1.parquet", ROWS)

    assert len(stage_of(job.epoch(), "stage").subtasks) == 2
    assert job.table("out").is_empty()


def test_a_transform_with_fewer_partitions_is_told_so(spark: SparkSession, tmp_path: Path) -> None:
    job = FolderJob(spark, tmp_path)
    rows = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    rows.transform("stage", lambda rows: rows.coalesce(1)).sink("out", FilesTable())
    job.write("1.parquet", ROWS)

    assert "without an ack of stage/1; a transform must not change the part" in job.failure()
