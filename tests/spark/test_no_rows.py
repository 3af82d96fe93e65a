"""Epochs without rows, or whose rows do not all come: the subtasks acknowledge all rows or none.

Filters that contradict each other, of which Spark plans no task; sources without a record yet; what
feeds a subtask fails, and Spark ends its input as if that were all; a job that has read everything,
and ends only when it is drained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from harness.jobs import trigger_one
from pipelines.ssh_threats import parse_sshd
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.pending import FIRST_ATTEMPT
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.job.places import open_result_table
from sluice.local.driver import run_epochs
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.stage import run_stage
from sluice.surface.checkpoints import history
from tests.spark.folder_job import FolderJob, a_submitted_job, no_failure, stage_of
from tests.spark.sshd_log import write_log

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
    job: FolderJob, declared: Callable[[Stream, Function], Stream]
) -> None:
    rows = job.rows()
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
    job: FolderJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.spark.deployment.exchange_of", lambda _: None)
    rows = job.rows()
    for condition in NONE.split(" AND "):
        rows = rows.where(condition)
    rows.key_by("id").aggregate("stage", n=agg.count()).sink("out", FilesTable(upsert_key=("id",)))
    job.write("1.parquet", ROWS)

    assert len(stage_of(job.epoch(), "stage").subtasks) == 2
    assert job.table("out").is_empty()


def test_a_transform_with_fewer_partitions_is_told_so(job: FolderJob) -> None:
    rows = job.rows()
    rows.transform("stage", lambda rows: rows.coalesce(1)).sink("out", FilesTable())
    job.write("1.parquet", ROWS)

    assert "without an ack of stage/1; a transform must not change the part" in job.failure()


OF_LINES = {"schema": "line string"}


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({}, "a\nb\na\n"),
        ({"format": "json", **OF_LINES}, '{"line": "a"}\n{"line": "b"}\n{"line": "a"}\n'),
        ({"format": "csv", "header": True, **OF_LINES}, "line\na\nb\na\n"),
    ],
    ids=["text", "json", "csv"],
)
def test_a_checkpoint_without_a_record_is_whole_and_the_records_behind_it_are_read(
    job: FolderJob, spark: SparkSession, files: dict[str, Any], text: str
) -> None:
    rows = job.pipeline.source("rows", Files(f"{job.files}/", bounded=False, **files))
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


MANY_ROWS = 400_001  # In each subtask several of the batches in which Spark sends them to Python.


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


def test_a_subtask_acknowledges_all_of_its_rows_or_none(job: FolderJob, tmp_path: Path) -> None:
    failed = tmp_path / "failed"
    rows = job.rows()
    rows.transform("sent", failing_once(failed)).sink("out", FilesTable())
    job.write("rows.parquet", pl.DataFrame({"n": range(MANY_ROWS)}))

    job.epoch()

    assert failed.exists(), "Spark has run a subtask again"
    assert sorted(job.table("out")["n"]) == [*range(MANY_ROWS)]


def test_windows_wait_for_the_watermark_until_the_job_is_drained(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_log(tmp_path / "auth.log", lines=50, seed=2)
    pipeline = Pipeline("unbounded", parallelism=1)
    log = pipeline.source("log", Files(str(tmp_path / "auth.log"), bounded=False), event_time="at")
    failures = (
        log.transform("parse", parse_sshd, since="2015-03-01")
        .key_by("source_ip")
        .window("all_day", Tumbling(timedelta(days=1)), failed=agg.sum("failures"))
    )
    failures.sink("failures", FilesTable())
    job = a_submitted_job(pipeline, tmp_path / "root")

    assert run_epochs(job, spark, epochs=None, drain=False, report=no_failure) is JobStatus.RUNNING
    assert open_result_table(job, {}).row_count() == 0
    assert run_epochs(job, spark, epochs=None, drain=True, report=no_failure) is JobStatus.FINISHED

    assert open_result_table(job, {}).row_count() > 0
    last = history(job)[-1]
    assert (last.type, last.records) == (CheckpointType.SAVEPOINT_TERMINATE.value, 0)
