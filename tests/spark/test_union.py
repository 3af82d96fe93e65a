"""Streams of different kinds united: a source's rows and those of a stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from sluice.job.places import open_side_table
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.checking import check_pipeline
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_stage_and_a_source_whose_rows_may_be_malformed_are_united(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = FolderJob(spark, tmp_path)
    source = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    (tmp_path / "lines").mkdir()
    files = Files(
        str(tmp_path / "lines"), format="json", schema="k bigint, v string", bounded=False
    )
    lines = job.pipeline.source("lines", files)
    first = source.key_by("k").deduplicate("first")
    first.union("all_rows", lines, source).sink("out", FilesTable())
    job.write("1.parquet", pl.DataFrame({"k": [1, 1], "v": ["a", "b"]}))
    (tmp_path / "lines" / "1.json").write_text('{"k": 2, "v": "c"}\nno json\n')

    job.epoch()

    assert sorted(job.table("out").rows()) == [(1, "a"), (1, "a"), (1, "b"), (2, "c")]
    malformed = open_side_table(job.job, "all_rows.malformed").read().to_pylist()
    assert [(row["partition"], row["record_number"], row["line"]) for row in malformed] == [
        ("1.json", 2, "no json")
    ]
    assert set(check_pipeline(job.pipeline, spark, {}, None)) == {"first", "all_rows"}
