"""Spark loses what a chained subtask sent, and computes it again by a function that answers
otherwise: the rows of an epoch hold one answer all the same.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest

from sluice.coordinator.restore import restore
from sluice.core.restoring import Latest
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.spark.folder_job import FolderJob
from tests.spark.spark_jobs import spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 50
CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
Function = Callable[[pl.DataFrame, pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame]]


def answering(rows: DataFrame) -> DataFrame:
    """A transform that says in each row which execution has made it."""

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        said = uuid.uuid4().hex
        for batch in batches:
            yield batch.append_column("answer", pa.array([said] * batch.num_rows))

    schema = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
    return rows.mapInArrow(answer, f"{schema}, answer string")


def losing(lost: Path) -> Function:
    """A function that has Spark lose all of its shuffles, when it is called first."""

    def function(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        try:
            lost.touch(exist_ok=False)
        except FileExistsError:
            return rows.select("k", "file", "answer"), state
        for folder in os.environ["SPARK_LOCAL_DIRS"].split(","):
            for file in Path(folder).glob("*/shuffle_*"):
                file.unlink()
        return rows.select("k", "file", "answer"), state

    return function


def a_job(spark: SparkSession, folder: Path) -> FolderJob:
    """Two files, whose rows a transform sends to more subtasks than run at once."""
    job = FolderJob(spark, folder)
    rows = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    heard = (
        rows.transform("said", answering)
        .key_by("k")
        .process(
            "heard",
            losing(folder / "lost"),
            state={},
            result={"k": int, "file": int, "answer": str},
        )
    )
    heard.sink("out", FilesTable())
    for file in range(2):
        job.write(f"{file}.parquet", pl.DataFrame({"k": range(ROWS), "file": [file] * ROWS}))
    more = {"heard": spark.sparkContext.defaultParallelism + 1}
    wider = replace(job.job.state().configuration, stage_parallelism=more)
    restore(job.job, Latest(), configuration=wider)
    return job


def answers_of_each_file(job: FolderJob) -> list[int]:
    rows = job.table("out")
    assert rows.height == 2 * ROWS
    return rows.group_by("file").agg(pl.col("answer").n_unique())["answer"].to_list()


@pytest.fixture(name="without_checksums")
def _without_checksums(spark: SparkSession) -> Iterator[None]:
    """Spark does not look what it computes again, as before 4.2."""
    for name in CHECKSUMS:
        spark.conf.set(name, "false")
    yield
    for name in CHECKSUMS:
        spark.conf.unset(name)


def test_what_spark_gives_up_begins_again(spark: SparkSession, tmp_path: Path) -> None:
    job, before = a_job(spark, tmp_path), spark_jobs(spark)
    job.epoch()
    assert spark_jobs(spark) - before == 2
    assert answers_of_each_file(job) == [1, 1]


@pytest.mark.usefixtures("without_checksums")
def test_what_was_read_of_two_executions_begins_again(spark: SparkSession, tmp_path: Path) -> None:
    job, before = a_job(spark, tmp_path), spark_jobs(spark)
    job.epoch()
    assert spark_jobs(spark) - before == 2
    assert answers_of_each_file(job) == [1, 1]


@pytest.mark.usefixtures("without_checksums")
def test_unless_it_is_compared_an_epoch_holds_both_answers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.spark.stage.mixture_in", lambda *_: None)
    job = a_job(spark, tmp_path)
    job.epoch()
    assert max(answers_of_each_file(job)) == 2
