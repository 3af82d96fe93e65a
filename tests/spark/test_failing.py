"""A stage that fails for ever stops the run at its second equal failure, with the cause last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.restart import RestartStrategy
from sluice.core.restoring import Latest
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.nodes import StageNode
from sluice.declaration.pipeline import Pipeline
from sluice.errors import CheckpointDeclined, ConfigurationError, StageFailed
from sluice.job.job import Job, open_job
from sluice.job.places import open_result_table, open_side_table
from sluice.local.driver import EpochDriver, is_same_failure, run_epochs
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark import deployment
from sluice.spark.checking import check_pipeline
from sluice.spark.frames import transformed
from sluice.store.open import StoreLocation
from sluice.surface.checkpoints import history
from tests.spark.folder_job import a_submitted_job

if TYPE_CHECKING:
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

CLICKS = "ann,1\nbob,2\ncid,x\n"
AT_ONCE = RestartStrategy(delay_ms=1, max_delay_ms=1)


def numbered(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("name", "CAST(n AS int) AS n", "_source", "_malformed", "_raw")


def forgiving(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("name", "try_cast(n AS int) AS n", "_source", "_malformed", "_raw")


def a_job(folder: Path, function: object = numbered) -> Job:
    (folder / "clicks.csv").write_text(CLICKS)
    pipeline = Pipeline(
        "clicks", checkpointing=Checkpointing(max_records_per_epoch=2, restart_strategy=AT_ONCE)
    )
    files = Files(str(folder / "clicks.csv"), format="csv", schema="name string, n string")
    rows = pipeline.source("clicks", files)
    rows.transform("numbered", function).sink("out", FilesTable())  # type: ignore[arg-type]
    return open_job(pipeline, StoreLocation(root=f"file://{folder / 'root'}"))


def test_the_second_equal_failure_suspends_and_a_mended_pipeline_goes_on_from_there(
    tmp_path: Path, spark: SparkSession
) -> None:
    job = a_job(tmp_path)
    submit(job, configure(job.pipeline, {}, parallelism=1))

    with pytest.raises(StageFailed) as error:
        run_epochs(job, spark, epochs=None, drain=False, report=lambda _: None)

    cause = (
        "in 'CAST(n AS int) AS n': CAST_INVALID_INPUT: The value 'x' of the type \"STRING\" cannot "
        'be cast to "INT" because it is malformed'
    )
    failed = f"stage 'numbered' failed over records 3 to 3 of clicks.csv: {cause}"
    assert str(error.value) == (
        "job 'clicks' failed twice for the same reason and is SUSPENDED; mend it and run it again, "
        f"and it goes on from checkpoint 1: {failed}"
    )
    assert error.value.cause == cause
    assert job.state().status is JobStatus.SUSPENDED
    assert [(one.status, one.message) for one in history(job)] == [
        ("COMPLETED", None),
        ("FAILED", failed),
        ("FAILED", failed),
    ]

    mended = a_job(tmp_path, forgiving)
    restored = restore(mended, Latest())
    status = run_epochs(mended, spark, epochs=None, drain=False, report=lambda _: None)

    assert (restored.checkpoint_id, status) == (1, JobStatus.FINISHED)
    rows = open_result_table(mended, {}).read().to_pylist()
    named = {row["name"]: row["n"] for row in rows}
    assert (len(rows), named) == (3, {"ann": 1, "bob": 2, "cid": None})


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (StageFailed("", stage="bids", cause="KeyError: 'n' in row 4"), True),
        (StageFailed("", stage="asks", cause="KeyError: 'n' in row 3"), False),
        (StageFailed("", stage="bids", cause="ValueError: 'n' in row 3"), False),
        (StageFailed("", stage="bids", cause="KeyError: 'n' in row 3", is_transient=True), False),
    ],
)
def test_failures_are_equal_of_one_stage_and_cause_unless_they_may_pass(
    other: StageFailed, expected: bool
) -> None:
    before = StageFailed("", stage="bids", cause="KeyError: 'n' in row 3")

    assert is_same_failure(other, before) is expected


def ranked(rows: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    window = Window.partitionBy("name").orderBy("n")
    return rows.withColumn("rank", F.row_number().over(window))


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (ranked, "a window function (OVER)"),
        (
            lambda rows: rows.groupBy("name", "_malformed", "_raw").count(),
            "an aggregate (groupBy)",
        ),
        (lambda rows: rows.dropDuplicates(["name"]), "dropDuplicates()"),
        (lambda rows: rows.limit(2), "limit()"),
    ],
)
def test_a_function_that_compares_the_rows_of_an_epoch_is_refused(
    tmp_path: Path, spark: SparkSession, function: object, what: str
) -> None:
    job = a_job(tmp_path, function)

    with pytest.raises(ConfigurationError) as error:
        check_pipeline(job.pipeline, spark, {}, None)

    assert f"the function of stage 'numbered' has {what}, whose result depends" in str(error.value)


MOVING: dict[str, Callable[[DataFrame], DataFrame]] = {
    "repartition": lambda rows: rows.repartition(5),
    "coalesce": lambda rows: rows.where("n > 0").coalesce(1),
    "by a column": lambda rows: rows.repartition("name").selectExpr("*"),
    "a hint": lambda rows: rows.hint("repartition", 3),
}


@pytest.mark.parametrize("name", MOVING)
def test_a_function_that_moves_its_rows_is_refused(
    tmp_path: Path, spark: SparkSession, name: str
) -> None:
    job = a_job(tmp_path, MOVING[name])

    with pytest.raises(ConfigurationError, match=r"stage 'numbered' has repartition\(\) or coal"):
        check_pipeline(job.pipeline, spark, {}, None)


def test_what_a_function_joins_to_its_rows_may_be_aggregated(
    tmp_path: Path, spark: SparkSession
) -> None:
    def joined(rows: DataFrame) -> DataFrame:
        names = spark.createDataFrame([("ann",), ("ann",)], "name string").distinct()
        names = names.repartition(3)
        return rows.join(names, on="name", how="left")

    job = a_job(tmp_path, joined)

    results = check_pipeline(job.pipeline, spark, {}, None)

    assert results["numbered"].columns.names() == ["name", "n"]


def test_a_function_that_is_not_ready_declines_and_the_job_goes_on_without_a_restart(
    tmp_path: Path, spark: SparkSession
) -> None:
    mark = tmp_path / "was-asked"

    def hesitates(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        if not mark.exists():
            mark.touch()
            raise CheckpointDeclined("come again", reason="CHECKPOINT_DECLINED_TASK_NOT_READY")
        return rows.select("name"), state

    (tmp_path / "clicks.csv").write_text(CLICKS)
    pipeline = Pipeline("clicks", checkpointing=Checkpointing(restart_strategy=AT_ONCE))
    files = Files(str(tmp_path / "clicks.csv"), format="csv", schema="name string, n string")
    rows = pipeline.source("clicks", files).key_by("name")
    asked = rows.process("asks", hesitates, state={"n": int}, result={"name": str})
    asked.sink("out", FilesTable())
    job = a_submitted_job(pipeline, tmp_path / "root", parallelism=1)

    status = run_epochs(job, spark, epochs=None, drain=False, report=lambda _: None)

    assert (status, job.state().num_restarts) == (JobStatus.FINISHED, 0)
    declined, completed = history(job)
    assert (declined.reason, declined.message) == (
        "CHECKPOINT_DECLINED_TASK_NOT_READY",
        "asks/0: come again",
    )
    assert completed.status == "COMPLETED"
    assert open_result_table(job, {}).read().num_rows == 3


def poisoned(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    raise ValueError("poison")


def poisoned_by_pandas(rows: DataFrame) -> DataFrame:
    from collections.abc import Iterator

    def raises(frames: Iterator[Any]) -> Iterator[Any]:
        for _ in frames:
            raise ValueError("poison")
        yield from ()

    return rows.mapInPandas(raises, rows.schema)


@pytest.mark.parametrize("where", ["transform", "process"])
def test_one_exception_of_the_users_is_one_reason_wherever_it_is_raised(
    tmp_path: Path, spark: SparkSession, where: str
) -> None:
    """A task that fails fails the job over, whatever is tolerated."""
    (tmp_path / "clicks.csv").write_text(CLICKS)
    tolerant = Checkpointing(restart_strategy=AT_ONCE, tolerable_failed_checkpoints=5)
    pipeline = Pipeline("clicks", checkpointing=tolerant)
    files = Files(str(tmp_path / "clicks.csv"), format="csv", schema="name string, n string")
    rows = pipeline.source("clicks", files)
    if where == "transform":
        rows.transform("stage", poisoned_by_pandas).sink("out", FilesTable())
    else:
        keyed = rows.key_by("name").process("stage", poisoned, state={"n": int}, result={"n": int})
        keyed.sink("out", FilesTable())
    job = a_submitted_job(pipeline, tmp_path / "root", parallelism=1)

    with EpochDriver(job, spark) as driver:
        epoch = driver.take()

    assert epoch is not None
    assert epoch.error is not None
    state = job.state()
    (failed,) = state.failed
    assert (failed.reason, state.status) == (Reason.TASK_FAILURE, JobStatus.RESTARTING)
    assert state.failure_count.continuous == 0
    assert "ValueError: poison" in failed.message


def test_a_later_reader_of_a_source_reads_no_malformed_lines_for_a_function_that_filters(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: dict[str, str] = {}

    def watched(node: StageNode, *args: Any, **kwargs: Any) -> DataFrame:
        result = transformed(node, *args, **kwargs)
        plans[node.uid] = result._jdf.queryExecution().optimizedPlan().toString()  # noqa: SLF001
        return result

    monkeypatch.setattr(deployment, "transformed", watched)
    (tmp_path / "clicks.csv").write_text(f"{CLICKS}dora\n")
    pipeline = Pipeline("clicks")
    files = Files(str(tmp_path / "clicks.csv"), format="csv", schema="name string, n string")
    rows = pipeline.source("clicks", files)
    for uid in ("first", "second"):
        rows.transform(uid, lambda rows: rows.where("n <> 'x'")).sink(f"{uid}_rows", FilesTable())
    job = a_submitted_job(pipeline, tmp_path / "root", parallelism=1)

    run_epochs(job, spark, epochs=None, drain=False, report=lambda _: None)

    reads = {uid: plan.count("MapInArrow") for uid, plan in plans.items()}
    assert reads == {"first": 2, "second": 1}
    assert open_side_table(job, "first.malformed").read().num_rows == 1
    assert open_side_table(job, "second.malformed").read().num_rows == 0
    for uid in ("first", "second"):
        assert open_result_table(job, {}, f"{uid}_rows").read().num_rows == 2
