"""A job's first checkpoint where no source has a record yet, and the one after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.jobs import trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.core.pending import FIRST_ATTEMPT
from sluice.declaration import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.stage import run_stage
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def lines_in(folder: Path) -> Files:
    return Files(f"{folder}/", bounded=False)


def json_in(folder: Path) -> Files:
    return Files(f"{folder}/", format="json", schema="line string", bounded=False)


def csv_in(folder: Path) -> Files:
    return Files(f"{folder}/", format="csv", schema="line string", header=True, bounded=False)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (lines_in, "a\nb\na\n"),
        (json_in, '{"line": "a"}\n{"line": "b"}\n{"line": "a"}\n'),
        (csv_in, "line\na\nb\na\n"),
    ],
)
def test_it_is_whole_and_the_records_behind_it_are_read(
    spark: SparkSession, tmp_path: Path, source: Callable[[Path], Files], text: str
) -> None:
    job = FolderJob(spark, tmp_path)
    rows = job.pipeline.source("rows", source(job.files))
    counts = rows.select("line AS k").key_by("k").aggregate("counts", n=agg.count())
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
