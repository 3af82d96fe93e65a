"""Checkpoints that overlap, and barriers that overtake: the result is that of one at a time."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice.coordinator.restore import restore
from sluice.core.configuration import CheckpointingMode, JobStatus
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.job.places import open_result_table
from sluice.local.driver import Epoch, run_epochs
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from tests.spark.folder_job import a_submitted_job, no_failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS, EPOCH = 4_500, 1_500
SLOW_S = 1.0


def pass_on(rows: DataFrame) -> DataFrame:
    return rows


def slowly(rows: DataFrame) -> DataFrame:
    time.sleep(SLOW_S)  # On the driver: the stage is behind, whatever it reads.
    return rows


def a_pipeline(**checkpointing: Any) -> Pipeline:
    is_slow = checkpointing.pop("slow", False)
    pipeline = Pipeline(
        "bids", Checkpointing(max_records_per_epoch=EPOCH, **checkpointing), parallelism=2
    )
    events = pipeline.source("events", Nexmark(EVENTS, columns=("bid_auction", "price")))
    counted = (
        events.transform("read", pass_on)
        .transform("enrich", slowly if is_slow else pass_on)
        .key_by("bid_auction")
        .aggregate("count", bids=agg.count("price"), paid=agg.sum("price"))
    )
    counted.sink("counts", FilesTable(upsert_key=("bid_auction",)))
    return pipeline


def a_job(tmp_path: Path, name: str = "job", **checkpointing: Any) -> Job:
    return a_submitted_job(a_pipeline(**checkpointing), tmp_path / name)


def counts(job: Job) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = open_result_table(job, {}).read().to_pylist()
    return sorted(rows, key=lambda row: (row["bid_auction"] is None, row["bid_auction"]))


@pytest.fixture(name="expected", scope="module")
def _expected(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    job = a_job(tmp_path_factory.mktemp("aligned"))
    run_epochs(job, spark, epochs=None, drain=False, report=no_failure)
    return counts(job)


@pytest.mark.parametrize(
    "checkpointing",
    [
        {"max_concurrent_checkpoints": 3},
        {"unaligned": True},
        {"unaligned": True, "aligned_checkpoint_timeout": timedelta(seconds=0.3), "slow": True},
        {"mode": CheckpointingMode.AT_LEAST_ONCE},
    ],
    ids=["concurrent", "unaligned", "aligned with timeout", "at least once"],
)
def test_the_result_is_that_of_aligned_checkpoints_one_at_a_time(
    spark: SparkSession, tmp_path: Path, expected: list[Any], checkpointing: dict[str, Any]
) -> None:
    job = a_job(tmp_path, **checkpointing)
    epochs: list[Epoch] = []

    status = run_epochs(job, spark, epochs=None, drain=False, report=epochs.append)

    assert status is JobStatus.FINISHED
    is_unaligned = any(task.is_unaligned for epoch in epochs for task in epoch.plan.tasks)
    assert is_unaligned == bool(checkpointing.get("unaligned"))
    assert [epoch.failure for epoch in epochs] == [None] * (EVENTS // EPOCH)
    assert counts(job) == expected


def test_what_is_in_flight_is_consumed_first_after_a_restore(
    spark: SparkSession, tmp_path: Path, expected: list[Any]
) -> None:
    job = a_job(tmp_path, unaligned=True)
    run_epochs(job, spark, epochs=2, drain=False, report=no_failure)
    base = job.base_metadata(job.state())
    assert base is not None
    in_flight = {stage.uid: sum(h.rows for h in stage.in_flight_segments) for stage in base.stages}

    restore(job, Latest())
    run_epochs(job, spark, epochs=None, drain=False, report=no_failure)

    assert in_flight["read"] == 0
    assert in_flight["enrich"] > 0
    assert counts(job) == expected
