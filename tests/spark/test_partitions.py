"""Partitions of a DataFrame, and of tasks that all run at once: the same rows, errors, and tags
that end them.

Rows that subtasks of one machine send each other are in files: those of one epoch at a time; lost
ones are sent again.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from sluice.coordinator.restore import restore
from sluice.core.failures import root_cause
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.errors import StageFailed
from sluice.exchange.blocks import BlockFolder
from sluice.extras import is_within
from sluice.local.driver import EpochDriver
from sluice.sinks import FilesTable
from sluice.spark.session import (
    interrupt,
    interrupted_with,
    is_on_one_machine,
    tagged,
    task_slots,
)
from sluice.spark.tasks import (
    Batches,
    Frame,
    Partition,
    Partitions,
    Pipelined,
    numbered_partitions,
)
from tests.spark.folder_job import FolderJob, losing
from tests.spark.spark_jobs import spark_jobs, spark_stages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
SCHEMA = pa.schema([("to", pa.int32()), ("from", pa.string()), ("body", pa.binary())])
HEARD = SCHEMA.append(pa.field("here", pa.int64()))
BODIES = [None, bytes(100_000)]
FOLDER = BlockFolder(stage="a-test", attempt="1")
Made = Callable[["SparkSession"], Partitions]


def of_a_frame(spark: SparkSession) -> Partitions:
    return Frame(spark.range(0, PARTITIONS, 1, PARTITIONS))


def pipelined(spark: SparkSession) -> Partitions:
    made = numbered_partitions(spark, PARTITIONS, FOLDER)
    assert isinstance(made, Pipelined)
    return made


def in_one_slot(spark: SparkSession) -> Partitions:
    return Pipelined(spark=spark, slots=1, count=PARTITIONS, folder=FOLDER)


either = pytest.mark.parametrize("made", [of_a_frame, pipelined, in_one_slot])


def to_each(_: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
    """A batch with a row for every partition, and one without any."""
    for number in (number for batch in batches for number in batch.column(0).to_pylist()):
        rows = {
            "to": range(PARTITIONS),
            "from": [f"{number}"] * PARTITIONS,
            "body": BODIES,
        }
        yield pa.RecordBatch.from_pydict(rows, schema=SCHEMA)
        yield pa.RecordBatch.from_pylist([], schema=SCHEMA)


@either
def test_each_row_comes_once_and_where_it_is_placed(spark: SparkSession, made: Made) -> None:
    def heard(partition: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert batch.schema.equals(SCHEMA)
            here = pa.array([partition.number] * batch.num_rows)
            yield pa.RecordBatch.from_arrays([*batch.columns, here], schema=HEARD)

    rows = made(spark).mapped(to_each, SCHEMA).placed(PARTITIONS, "to").mapped(heard, HEARD)

    assert sorted(rows.collected()) == [
        (to, f"{number}", BODIES[to], to)
        for to in range(PARTITIONS)
        for number in range(PARTITIONS)
    ]


@either
def test_the_cause_of_a_failure_is_what_was_raised(spark: SparkSession, made: Made) -> None:
    def fails(_: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError("the price of lot 7 is negative")

    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    with pytest.raises((PySparkException, Py4JError)) as caught:
        made(spark).mapped(fails, pa.schema([("id", pa.int64())])).collected()

    cause = root_cause(str(caught.value))
    assert cause.summary == "ValueError: the price of lot 7 is negative"


@either
def test_a_job_is_interrupted_by_its_tag(spark: SparkSession, made: Made, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def hangs(_: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
        begun.touch()
        time.sleep(600)
        yield from batches

    def collect() -> None:
        with tagged(spark, "a-stage"):
            made(spark).mapped(hangs, pa.schema([("id", pa.int64())])).collected()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(collect)
        while not begun.exists():
            assert not running.done(), running.exception()
            time.sleep(0.05)
        interrupt(spark, "another-stage")
        time.sleep(0.2)
        assert not running.done()
        interrupt(spark, "a-stage")
        assert "cancelled" in str(running.exception(timeout=60)).lower()


def test_a_try_that_ends_by_an_exception_interrupts_its_own_jobs_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    begun, goes_on = tmp_path / "begun", tmp_path / "goes_on"

    def waits(_: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
        begun.touch()
        while not goes_on.exists():
            time.sleep(0.05)
        yield from batches

    def collect() -> list[tuple[Any, ...]]:
        with interrupted_with(spark, "a-stage"):
            return of_a_frame(spark).mapped(waits, pa.schema([("id", pa.int64())])).collected()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(collect)
        while not begun.exists():
            assert not running.done(), running.exception()
            time.sleep(0.05)
        with pytest.raises(TimeoutError), interrupted_with(spark, "a-stage"):
            raise TimeoutError
        time.sleep(0.2)
        goes_on.touch()
        assert running.result(timeout=60)


def test_all_run_in_the_same_python_workers(spark: SparkSession) -> None:
    """Two daemons would import everything twice, and keep twice the memory."""

    def daemon(_: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})

    schema = pa.schema([("pid", pa.int64())])
    daemons = {
        pid
        for made in (of_a_frame, pipelined)
        for (pid,) in made(spark)
        .mapped(to_each, SCHEMA)
        .placed(PARTITIONS, "to")
        .mapped(daemon, schema)
        .collected()
    }

    assert len(daemons) == 1


def to_the_first(_: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        first = pa.array([0] * batch.num_rows, pa.int32())
        yield pa.RecordBatch.from_arrays([first, *batch.columns[1:]], schema=SCHEMA)


def test_tasks_that_all_run_at_once_are_one_spark_stage(spark: SparkSession) -> None:
    def rows(made: Made) -> list[tuple[object, ...]]:
        placed = made(spark).mapped(to_each, SCHEMA).placed(PARTITIONS, "to")
        alone = placed.mapped(to_the_first, SCHEMA).placed(1, "to")
        return sorted(alone.mapped(to_the_first, SCHEMA).collected(), key=str)

    before = spark_jobs(spark)
    at_once = rows(pipelined)
    then = spark_jobs(spark)
    stages_at_once = spark_stages(spark, before)
    shuffled = rows(of_a_frame)

    assert at_once == shuffled
    assert len(at_once) == PARTITIONS**2
    assert (stages_at_once, spark_stages(spark, then)) == (1, 3)


def test_more_partitions_than_slots_share_these(spark: SparkSession) -> None:
    many = 5 * task_slots(spark) + 1

    def to_all(partition: Partition, _: Batches) -> Iterator[pa.RecordBatch]:
        rows = {"to": range(many), "from": [f"{partition.number}"] * many, "body": [b""] * many}
        yield pa.RecordBatch.from_pydict(rows, schema=SCHEMA)

    rows = numbered_partitions(spark, many, FOLDER).mapped(to_all, SCHEMA).placed(many, "to")
    alone = rows.mapped(to_the_first, SCHEMA).placed(1, "to").mapped(to_the_first, SCHEMA)

    before = spark_jobs(spark)
    assert len(alone.collected()) == many**2
    assert spark_stages(spark, before) == 1


def test_without_a_folder_the_rows_are_shuffled(spark: SparkSession) -> None:
    """Their tasks may run on several machines."""
    assert isinstance(numbered_partitions(spark, PARTITIONS), Frame)


def test_a_task_that_is_tried_again_goes_on_behind_what_it_has_sent(
    spark: SparkSession, tmp_path: Path
) -> None:
    def counted(partition: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
        (tmp_path / uuid.uuid4().hex).touch()
        yield from to_each(partition, batches)

    def dies_once(partition: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
        assert partition.is_retried == (tmp_path / "died").exists()
        if partition.number == 0 and not partition.is_retried:
            (tmp_path / "died").touch()
            os._exit(1)
        yield from to_the_first(partition, batches)

    rows = pipelined(spark).mapped(counted, SCHEMA).placed(PARTITIONS, "to")
    rows = rows.mapped(dies_once, SCHEMA).placed(PARTITIONS, "to").mapped(to_the_first, SCHEMA)

    assert len(rows.collected()) == PARTITIONS**2
    assert len(list(tmp_path.iterdir())) == PARTITIONS + 1


def test_jobs_that_need_all_slots_end_one_behind_the_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also where tasks fail, whose slots Spark offers to the next job first."""
    slots = task_slots(spark)

    def collected(job: int) -> int:
        def fails_once(partition: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
            failed = tmp_path / f"{job}"
            if partition.number == slots - 1 and not failed.exists():
                failed.touch()
                raise ValueError("the price of lot 7 is negative")
            yield from to_the_first(partition, batches)

        rows = numbered_partitions(spark, slots, FOLDER).mapped(to_each, SCHEMA)
        for _ in range(2):
            rows = rows.placed(slots, "to").mapped(fails_once, SCHEMA)
        return len(rows.collected())

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(collected, number) for number in range(4)]
        try:
            counts = [job.result(timeout=120) for job in jobs]
        finally:
            spark.sparkContext.cancelAllJobs()

    assert counts == [slots * PARTITIONS] * 4


def test_who_waits_for_a_job_that_has_failed_does_not_wait_for_ever(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The next job has its slot."""

    def fails(partition: Partition, batches: Batches) -> Iterator[pa.RecordBatch]:
        if partition.number == 0:
            raise ValueError("the price of lot 7 is negative")
        yield from to_each(partition, batches)

    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    rows = pipelined(spark).mapped(fails, SCHEMA).placed(PARTITIONS, "to")
    with pytest.raises((PySparkException, Py4JError), match="lot 7"):
        rows.mapped(to_the_first, SCHEMA).collected()

    again = pipelined(spark).mapped(to_each, SCHEMA).placed(PARTITIONS, "to")
    assert len(again.collected()) == PARTITIONS**2


ROWS = 40_000


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
    rows = job.rows()
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


def a_job_that_loses(pattern: str, spark: SparkSession, folder: Path) -> FolderJob:
    """A stage of more subtasks than run at once, so that one reads when something is lost."""
    job = FolderJob(spark, folder)
    rows = job.rows()
    function = losing(folder / "lost", pattern, "k", "n")
    heard = rows.key_by("k").process("heard", function, state={}, result={"k": str, "n": int})
    heard.sink("out", FilesTable())
    job.write("1.parquet", rows_of(1))
    wider = {"heard": spark.sparkContext.defaultParallelism + 1}
    configuration = replace(job.job.state().configuration, stage_parallelism=wider)
    restore(job.job, Latest(), configuration=configuration)
    return job


def test_senders_whose_shuffle_is_lost_send_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a DataFrame Spark compares what is sent again, and has the job begin again.

    Older ones do not compare; here both executions have sent the same.
    """
    monkeypatch.setattr("sluice.spark.tasks.task_slots", lambda _: 0)
    job, before = a_job_that_loses("*/shuffle_*", spark, tmp_path), spark_jobs(spark)

    job.epoch()

    assert spark_jobs(spark) - before == (2 if compares_shuffles(spark) else 1)
    assert job.table("out").sort("k").equals(rows_of(1).sort("k"))


def compares_shuffles(spark: SparkSession) -> bool:
    """Whether Spark compares by itself what a shuffle computes again."""
    return is_within(spark.version, first="4.2")


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
