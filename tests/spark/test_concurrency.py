"""Checkpoints that overlap, and barriers that overtake: the result is that of one at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sluice.connectors.files_table.table import ManifestTable
from sluice.coordinator.restore import restore
from sluice.core.configuration import CheckpointingMode, JobStatus
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.results import Replace, Upsert
from sluice.job.job import Job
from sluice.job.places import open_result_table, open_sinks
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


def added_up(events: DataFrame, previous: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    bids = events.where("price IS NOT NULL").selectExpr("bid_auction", "1 AS bids")
    both = bids.unionByName(previous["bids"]).groupBy("bid_auction").sum("bids")
    epochs = previous["epochs"].groupBy().count().selectExpr("1 + count AS epoch")
    return {
        "bids": both.selectExpr("bid_auction", "CAST(`sum(bids)` AS bigint) AS bids"),
        "epochs": epochs,
    }


def test_what_a_function_has_answered_before_is_awaited(
    spark: SparkSession, tmp_path: Path
) -> None:
    checkpointing = Checkpointing(max_records_per_epoch=EPOCH, max_concurrent_checkpoints=3)
    pipeline = Pipeline("bids", checkpointing, parallelism=2)
    events = pipeline.source("events", Nexmark(EVENTS, columns=("bid_auction", "price")))
    streams = pipeline.spark_results(
        "added_up",
        added_up,
        reads={"events": events},
        results={
            "bids": ("bid_auction bigint, bids bigint", Replace("bid_auction")),
            "epochs": ("epoch bigint", Upsert("epoch")),
        },
    )
    streams["bids"].sink("bids_out", FilesTable(upsert_key=("bid_auction",)))
    streams["epochs"].sink("epochs_out", FilesTable(upsert_key=("epoch",)))
    job = a_submitted_job(pipeline, tmp_path / "job")

    run_epochs(job, spark, epochs=None, drain=False, report=no_failure)

    bids, epochs = (rows_of_table(job, sink) for sink in ("bids_out", "epochs_out"))
    assert sorted(row["epoch"] for row in epochs) == [1, 2, 3]
    assert sum(row["bids"] for row in bids) == EVENTS * 46 // 50


def rows_of_table(job: Job, sink: str) -> list[dict[str, Any]]:
    table = open_sinks(job, {})[sink]
    assert isinstance(table, ManifestTable)
    rows: list[dict[str, Any]] = table.read().to_pylist()
    return rows
