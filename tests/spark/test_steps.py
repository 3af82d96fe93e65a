"""``where`` and ``select`` apply in the order written, on a source and behind a stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.checking import check_pipeline
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pl.DataFrame({"k": [1, 2, 3], "v": [1, 2, 30], "user": ["a", "b", "c"]})


@pytest.mark.parametrize("first", ["v AS w", "v + 0 AS w"])  # Without Spark's JVM, and through it.
def test_the_steps_of_a_source_apply_in_the_order_written(
    spark: SparkSession, tmp_path: Path, first: str
) -> None:
    job = FolderJob(spark, tmp_path)
    source = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    renamed = source.where("v < 30").select("k AS v", first, "user").where("v >= 2").select("*")
    renamed.key_by("user").aggregate("sums", w=agg.sum("w"), n=agg.count()).sink(
        "out", FilesTable(upsert_key=("user",))
    )
    job.write("1.parquet", ROWS)

    job.epoch()

    assert job.table("out").rows() == [("b", 2, 1)]


def test_the_steps_behind_a_stage_apply_in_the_order_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = FolderJob(spark, tmp_path)
    source = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    sums = source.key_by("user").aggregate("sums", v=agg.sum("v"))
    sums.select("user", "v * 10 AS v").where("v >= 20").select("user", "v + 1 AS v").sink(
        "out", FilesTable(upsert_key=("user",))
    )
    job.write("1.parquet", ROWS)

    job.epoch()

    assert sorted(job.table("out").rows()) == [("b", 21), ("c", 301)]


def test_a_check_knows_the_columns_of_every_step(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("checked")
    ROWS.write_parquet(tmp_path / "1.parquet")
    source = pipeline.source("rows", Files(str(tmp_path), format="parquet"))
    stream: Stream = source.select("*", "v * 2 AS twice").select("user", "twice")
    stream.transform("same", lambda rows: rows).select("user", "twice > 3 AS dear")

    result = check_pipeline(pipeline, spark, {}, None)["same"]

    assert result.columns == pl.Schema({"user": pl.String(), "dear": pl.Boolean()})
