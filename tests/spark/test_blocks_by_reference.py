"""Rows that subtasks of one machine send each other in files: those of one epoch are there at a
time, and what is lost of them is sent again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest

from sluice.coordinator.restore import restore
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.errors import StageFailed
from sluice.local.driver import EpochDriver
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.session import is_on_one_machine
from tests.spark.folder_job import FolderJob
from tests.spark.spark_jobs import spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 40_000
Function = Callable[[pl.DataFrame, pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame]]


def block_files(spark: SparkSession) -> set[Path]:
    """Those of all jobs, in Spark's local folders, which its workers know."""

    def folders(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (pa.record_batch({"at": [os.environ["SPARK_LOCAL_DIRS"]]}) for _ in batches)

    [row] = spark.range(0, 1, 1, 1).mapInArrow(folders, "at string").collect()
    return {file for folder in row["at"].split(",") for file in Path(folder).rglob("*.arrow")}


def rows_of(epoch: int) -> pl.DataFrame:
    return pl.DataFrame(
        {"k": [f"a key of some length, number {n}" for n in range(ROWS)], "n": [epoch] * ROWS}
    )


def test_only_the_last_epochs_files_are_there_and_all_its_rows_have_come(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert is_on_one_machine(spark)
    job, others = FolderJob(spark, tmp_path), block_files(spark)
    rows = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    rows.key_by("k").aggregate("totals", n=agg.sum("n"), rows=agg.count()).sink(
        "out", FilesTable(upsert_key=("k",))
    )
    seen: list[set[Path]] = []
    for epoch in (1, 2, 3):
        job.write(f"{epoch}.parquet", rows_of(epoch))
        job.epoch()
        seen.append(block_files(spark) - others)

    assert all(seen)
    assert not seen[0] & seen[1]
    assert not seen[1] & seen[2]
    assert len({file.parent for file in seen[2]}) == 1
    assert job.table("out").select("n", "rows").unique().rows() == [(6, 3)]
    assert job.table("out").height == ROWS


def losing(lost: Path, pattern: str) -> Function:
    """A function that has Spark's local folders lose files, when it is called first."""

    def function(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        try:
            lost.touch(exist_ok=False)
        except FileExistsError:
            return rows, state
        for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
            for file in Path(folder).glob(pattern):
                file.unlink()
        return rows, state

    return function


def a_job_that_loses(pattern: str, spark: SparkSession, folder: Path) -> FolderJob:
    """A stage of more subtasks than run at once, so that one reads when something is lost."""
    job = FolderJob(spark, folder)
    rows = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    function = losing(folder / "lost", pattern)
    heard = rows.key_by("k").process("heard", function, state={}, result={"k": str, "n": int})
    heard.sink("out", FilesTable())
    job.write("1.parquet", rows_of(1))
    wider = {"heard": spark.sparkContext.defaultParallelism + 1}
    configuration = replace(job.job.state().configuration, stage_parallelism=wider)
    restore(job.job, Latest(), configuration=configuration)
    return job


@pytest.mark.parametrize(("has_rdds", "jobs"), [(True, 1), (False, 2)])
def test_senders_whose_shuffle_is_lost_send_again(
    has_rdds: bool, jobs: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a DataFrame Spark compares what is sent again, and has the job begin again."""
    monkeypatch.setattr("sluice.spark.tasks.has_rdds", lambda _: has_rdds)
    job, before = a_job_that_loses("*/shuffle_*", spark, tmp_path), spark_jobs(spark)

    job.epoch()

    assert spark_jobs(spark) - before == jobs
    assert job.table("out").sort("k").equals(rows_of(1).sort("k"))


def test_an_attempt_whose_block_files_are_lost_fails_and_the_next_one_is_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = a_job_that_loses("sluice-blocks/**/*.arrow", spark, tmp_path)

    with EpochDriver(job.job, spark) as driver:
        epoch = driver.take()
        assert epoch is not None
        assert isinstance(epoch.error, StageFailed)
        assert epoch.error.is_transient
        assert "rows that a subtask sent cannot be read" in str(epoch.error)
    restore(job.job, Latest())
    job.epoch()

    assert job.table("out").sort("k").equals(rows_of(1).sort("k"))
