"""Chained stages: one Spark job, and the same rows, state and event time as one job for each.

Where Spark loses what a chained subtask sent, and computes it again by a function that answers
otherwise, the rows of an epoch hold one answer all the same.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa
import pytest

from sluice.coordinator.restore import restore
from sluice.core.answers import Ack, StageAnswer
from sluice.core.completed import CheckpointMetadata
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Tumbling
from sluice.exchange.faults import FAULT_VARIABLE
from sluice.local.driver import run_epochs
from sluice.sinks import FilesTable
from sluice.store.checkpoints import AnswerStore
from tests.spark.folder_job import FolderJob, losing, stage_of
from tests.spark.spark_jobs import spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
STAGES = ("per_key", "totals", "best")
ROWS = 3_000


def a_job(spark: SparkSession, folder: Path, *, chained: bool) -> FolderJob:
    """Windows of a key, their total, and the best of each window; with the totals of an epoch."""
    job = FolderJob(spark, folder)
    rows = job.rows(event_time="at")
    windows = rows.key_by("k").window("per_key", Tumbling(timedelta(seconds=10)), n=agg.count())
    totals = windows.key_by("window_start", "k").aggregate("totals", n=agg.sum("n"))
    best = totals.key_by("window_start").top_n("best", 2, by="n")
    totals.sink("all", FilesTable(upsert_key=("window_start", "k")))
    best.sink("out", FilesTable(upsert_key=("window_start", "rank")))
    if not chained:
        totals.disable_chaining()
    return job


def write(job: FolderJob, epoch: int) -> None:
    numbers = range(epoch * ROWS, (epoch + 1) * ROWS)
    rows = pl.DataFrame(
        {
            "k": [number * 7919 % 61 for number in numbers],
            "at": [START + timedelta(milliseconds=20 * number) for number in numbers],
        },
        schema_overrides={"at": pl.Datetime("us", "UTC")},
    )
    job.write(f"{epoch}.parquet", rows)


def states(metadata: CheckpointMetadata) -> dict[str, tuple[list[str], int]]:
    return {
        uid: (
            [
                handle.segment.checksum
                for subtask in stage_of(metadata, uid).subtasks
                for handle in subtask.state
            ],
            stage_of(metadata, uid).watermark_ms,
        )
        for uid in STAGES
    }


def test_a_chain_is_one_spark_job_and_leaves_the_same_state(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chained = a_job(spark, tmp_path / "chained", chained=True)
    alone = a_job(spark, tmp_path / "alone", chained=False)
    written: list[Ack] = []
    write_answer = AnswerStore.write

    def note(store: AnswerStore, answer: StageAnswer) -> StageAnswer:
        written.extend(answer.acks)
        return write_answer(store, answer)

    monkeypatch.setattr(AnswerStore, "write", note)
    jobs: list[int] = []
    epochs: list[list[CheckpointMetadata]] = []
    for job in (chained, alone):
        before, metadata = spark_jobs(spark), []
        for epoch in range(2):
            write(job, epoch)
            metadata.append(job.epoch())
        jobs.append(spark_jobs(spark) - before)
        epochs.append(metadata)

    assert jobs == [2, 6]
    assert [*map(states, epochs[0])] == [*map(states, epochs[1])]
    assert (
        chained.table("out")
        .sort("window_start", "rank")
        .equals(alone.table("out").sort("window_start", "rank"))
    )
    assert chained.table("all").height == alone.table("all").height > 0
    # The driver writes them, a chain's from the back to the front.
    of_chains = written[: len(written) // 2]
    assert [(ack.subtask.stage, ack.is_chained, ack.output) for ack in of_chains] == [
        (stage, stage != "best", ())
        for _ in range(2)
        for stage in ("best", "best", "totals", "totals", "per_key", "per_key")
    ]


@pytest.mark.parametrize("stage", ["totals"])  # Between two; Nexmark's tests kill the last one.
def test_a_chain_is_exact_through_a_kill_and_a_rescale(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    killed, calm = (a_job(spark, tmp_path / name, chained=True) for name in ("killed", "calm"))
    monkeypatch.setenv(FAULT_VARIABLE, f"fail-worker stage={stage} checkpoint=2")
    failures: list[str] = []
    for job in (killed, calm):
        for epoch in range(3):
            write(job, epoch)
        job.limit(ROWS)
        if job is killed:
            run_epochs(
                job.job,
                spark,
                epochs=2,
                drain=False,
                report=lambda epoch: failures.append(epoch.failure or ""),
            )
            wider = replace(
                job.job.state().configuration, parallelism=3, stage_parallelism={"totals": 1}
            )
            restore(job.job, Latest(), configuration=wider)
        run_epochs(job.job, spark, epochs=None, drain=True, report=lambda _: None)

    assert [failure.partition(" failed")[0] for failure in failures if failure] == [
        f"stage {stage!r}"
    ]
    order = ("window_start", "rank")
    assert killed.table("out").sort(order).equals(calm.table("out").sort(order))
    assert killed.table("out")["n"].sum() > 0


ROWS_OF_A_FILE = 50
CHECKSUMS = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)


def answering(rows: DataFrame) -> DataFrame:
    """A transform that says in each row which execution has made it."""

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        execution = uuid.uuid4().hex
        for batch in batches:
            yield batch.append_column("answer", pa.array([execution] * batch.num_rows))

    schema = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
    return rows.mapInArrow(answer, f"{schema}, answer string")


def a_job_that_computes_again(spark: SparkSession, folder: Path) -> FolderJob:
    """Two files, whose rows a transform sends to more subtasks than run at once."""
    job = FolderJob(spark, folder)
    rows = job.rows()
    heard = (
        rows.transform("said", answering)
        .key_by("k")
        .process(
            "heard",
            losing(folder / "lost", "*/shuffle_*", "k", "file", "answer"),
            state={},
            result={"k": int, "file": int, "answer": str},
        )
    )
    heard.sink("out", FilesTable())
    for file in range(2):
        job.write(
            f"{file}.parquet",
            pl.DataFrame({"k": range(ROWS_OF_A_FILE), "file": [file] * ROWS_OF_A_FILE}),
        )
    more = {"heard": spark.sparkContext.defaultParallelism + 1}
    wider = replace(job.job.state().configuration, stage_parallelism=more)
    restore(job.job, Latest(), configuration=wider)
    return job


def answers_of_each_file(job: FolderJob) -> list[int]:
    rows = job.table("out")
    assert rows.height == 2 * ROWS_OF_A_FILE
    return rows.group_by("file").agg(pl.col("answer").n_unique())["answer"].to_list()


@pytest.fixture(name="compares")
def _compares(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    """Whether Spark compares what it computes again, as since 4.2."""
    for name in CHECKSUMS:
        spark.conf.set(name, str(request.param).lower())
    yield request.param
    for name in CHECKSUMS:
        spark.conf.unset(name)


@pytest.mark.usefixtures("compares")
@pytest.mark.parametrize("compares", [True, False], indirect=True)
def test_a_chain_of_which_two_executions_were_read_begins_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark gives up where it compares, and else the driver finds the mixture."""
    job, before = a_job_that_computes_again(spark, tmp_path), spark_jobs(spark)
    job.epoch()
    assert spark_jobs(spark) - before == 2
    assert answers_of_each_file(job) == [1, 1]


@pytest.mark.usefixtures("compares")
@pytest.mark.parametrize("compares", [False], indirect=True)
def test_unless_it_is_compared_an_epoch_holds_both_answers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.spark.stage.mixture_in", lambda *_: None)
    job = a_job_that_computes_again(spark, tmp_path)
    job.epoch()
    assert max(answers_of_each_file(job)) == 2
