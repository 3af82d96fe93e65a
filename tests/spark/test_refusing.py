"""A part of a stage that is refused ends the stage at its first execution; what is lost is tried
again by Spark.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from sluice.coordinator.trigger import TriggerOutcome, trigger
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.errors import CheckpointDeclined, StageFailed
from sluice.local.driver import Epoch, EpochDriver
from sluice.sinks import FilesTable
from tests.spark.folder_job import FolderJob, Function
from tests.spark.spark_jobs import failed_tasks, spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pl.DataFrame({"k": ["ann", "bob", "cid"], "n": [1, 2, 3]})
Strike = Callable[[], None]
exchanges = pytest.mark.parametrize(
    "is_shuffled", [False, True], ids=["at once", "shuffled"], indirect=True
)


@pytest.fixture(name="is_shuffled")
def _is_shuffled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether rows are exchanged as between machines."""
    is_shuffled: bool = request.param
    if is_shuffled:
        monkeypatch.setattr("sluice.spark.tasks.task_slots", lambda _: 0)
    return is_shuffled


def striking(asked: Path, strike: Strike) -> Function:
    """A function that counts how often it was called, and strikes each time."""

    def function(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        (asked / uuid.uuid4().hex).touch()
        strike()
        return rows.select("k", "n"), state

    return function


def kept(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    return rows.select("k", "n"), state


def a_job(spark: SparkSession, folder: Path, strike: Strike, *, is_chained: bool) -> FolderJob:
    """One row reaches the function; with *is_chained* from a stage that runs in the same job."""
    (folder / "asked").mkdir()
    job = FolderJob(spark, folder)
    rows = job.rows().where("k = 'ann'")
    if is_chained:
        rows = rows.key_by("k").process("first", kept, state={}, result={"k": str, "n": int})
    function = striking(folder / "asked", strike)
    struck = rows.key_by("k").process("struck", function, state={}, result={"k": str, "n": int})
    struck.sink("out", FilesTable())
    job.write("1.parquet", ROWS)
    return job


def taken(job: FolderJob, spark: SparkSession) -> Epoch:
    with EpochDriver(job.job, spark) as driver:
        epoch = driver.take()
    assert epoch is not None
    return epoch


def poison() -> None:
    raise ValueError("the price of lot 7 is negative")


def hesitate() -> None:
    raise CheckpointDeclined("come again")


@pytest.mark.parametrize("is_chained", [False, True], ids=["alone", "chained"])
@exchanges
@pytest.mark.parametrize(
    ("strike", "reason", "cause"),
    [
        (poison, Reason.TASK_FAILURE, "ValueError: the price of lot 7 is negative"),
        (hesitate, Reason.CHECKPOINT_DECLINED, "come again"),
    ],
    ids=["raises", "declines"],
)
def test_a_refusal_is_asked_for_once_and_is_the_cause(
    spark: SparkSession,
    tmp_path: Path,
    is_shuffled: bool,
    is_chained: bool,
    strike: Strike,
    reason: Reason,
    cause: str,
) -> None:
    job = a_job(spark, tmp_path, strike, is_chained=is_chained)
    jobs = spark_jobs(spark)

    epoch = taken(job, spark)

    assert isinstance(epoch.error, StageFailed)
    assert (epoch.error.stage, cause in epoch.error.cause) == ("struck", True)
    assert [one.reason for one in job.job.state().failed] == [reason]
    assert len([*(tmp_path / "asked").iterdir()]) == 1
    assert (spark_jobs(spark) - jobs, failed_tasks(spark, jobs)) == (1, 0)


@exchanges
def test_an_input_that_is_refused_is_read_once(
    spark: SparkSession, tmp_path: Path, is_shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its senders refuse, and so do all subtasks that they send rows to."""

    def trigger_and_overwrite(*arguments: Any, **options: Any) -> TriggerOutcome:
        outcome = trigger(*arguments, **options)
        job.write("1.parquet", ROWS.with_columns(n=pl.col("n") + 1))  # Another file of that name.
        return outcome

    job = a_job(spark, tmp_path, lambda: None, is_chained=True)
    jobs = spark_jobs(spark)
    monkeypatch.setattr("sluice.local.driver.trigger", trigger_and_overwrite)

    epoch = taken(job, spark)

    assert isinstance(epoch.error, StageFailed)
    assert epoch.error.stage == "first"
    assert "1.parquet" in epoch.error.cause
    assert not [*(tmp_path / "asked").iterdir()]
    assert (spark_jobs(spark) - jobs, failed_tasks(spark, jobs)) == (1, 0)


@exchanges
def test_a_worker_that_is_lost_is_replaced_by_spark(
    spark: SparkSession, tmp_path: Path, is_shuffled: bool
) -> None:
    def die_once() -> None:
        if len([*(tmp_path / "asked").iterdir()]) == 1:
            os._exit(1)

    job = a_job(spark, tmp_path, die_once, is_chained=True)

    assert taken(job, spark).error is None

    assert len([*(tmp_path / "asked").iterdir()]) == 2
    assert job.table("out").rows() == [("ann", 1)]


@exchanges
def test_an_error_that_may_pass_is_tried_once_more(
    spark: SparkSession, tmp_path: Path, is_shuffled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever raises it again refuses: the second execution of the subtask answers with it."""
    monkeypatch.setenv("SLUICE_FAULT", "fail-worker stage=struck")
    job = a_job(spark, tmp_path, lambda: None, is_chained=False)
    jobs = spark_jobs(spark)

    epoch = taken(job, spark)

    assert isinstance(epoch.error, StageFailed)
    assert epoch.error.stage == "struck"
    assert epoch.error.cause.startswith("RuntimeError: fault injected")
    assert [one.reason for one in job.job.state().failed] == [Reason.TASK_FAILURE]
    assert failed_tasks(spark, jobs) == 1
    assert spark_jobs(spark) - jobs == (1 if is_shuffled else 2)
