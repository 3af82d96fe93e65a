"""A job's first checkpoint where no source has a record yet, and the one after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.jobs import trigger_one
from sluice.coordinator.completion import commit, finalize
from sluice.core.pending import FIRST_ATTEMPT
from sluice.declaration import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.stage import run_stage
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = {
    "text": ({}, "a\nb\na\n", "line"),
    "json": ({"schema": "k string"}, '{"k": "a"}\n{"k": "b"}\n{"k": "a"}\n', "k"),
    "csv": ({"schema": "k string", "header": True}, "k\na\nb\na\n", "k"),
}


@pytest.mark.parametrize("format_", SOURCES)
def test_it_is_whole_and_the_records_behind_it_are_read(
    spark: SparkSession, tmp_path: Path, format_: str
) -> None:
    options, text, key = SOURCES[format_]
    job = FolderJob(spark, tmp_path)
    source = Files(f"{job.files}/", format=format_, bounded=False, **options)
    rows = job.pipeline.source("rows", source)
    counts = rows.select(f"{key} AS k").key_by("k").aggregate("counts", n=agg.count())
    counts.sink("out", FilesTable(upsert_key=("k",)))

    plan = trigger_one(job.job, is_periodic=False)
    for task in plan.tasks:
        run_stage(job.job, spark, plan.checkpoint_id, task.uid, attempt=FIRST_ATTEMPT)
    finalize(job.job, plan.checkpoint_id)
    commit(job.job, plan.checkpoint_id)
    before = job.table("out").height
    (job.files / "some").write_text(text)
    job.epoch()

    assert before == 0
    assert sorted(job.table("out").rows()) == [("a", 2), ("b", 1)]
