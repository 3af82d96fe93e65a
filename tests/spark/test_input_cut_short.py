"""What feeds a subtask fails in mid-epoch: Spark ends its input as if that were all of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 400_001  # Several of the batches in which Spark sends them to Python, in each subtask.


def failing_once(failed: Path) -> Callable[[DataFrame], DataFrame]:
    """A transform that sends some of the rows, and then raises, when it runs first."""

    def transform(rows: DataFrame) -> DataFrame:
        return rows.mapInArrow(send, rows.schema)

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 2 and not failed.exists():
                failed.touch()
                raise OSError("a service that the function asks is away for a moment")
            yield batch

    return transform


def test_a_subtask_acknowledges_all_of_its_rows_or_none(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = FolderJob(spark, tmp_path)
    failed = tmp_path / "failed"
    rows = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    rows.transform("sent", failing_once(failed)).sink("out", FilesTable())
    job.write("rows.parquet", pl.DataFrame({"n": range(ROWS)}))

    job.epoch()

    assert failed.exists(), "Spark has run a subtask again"
    assert sorted(job.table("out")["n"]) == [*range(ROWS)]
