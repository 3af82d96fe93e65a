"""A job with real state and no Spark: how often each auction was bid for, by a hundred events."""

from __future__ import annotations

from typing import Any

import polars as pl

from harness.jobs import a_running_job, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.core.configuration import CheckpointType
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.job.places import open_result_table
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage
from sluice.state.segments import to_frame
from tests.begun import begun

STAGE, TABLE = "per_auction", "groups"


def a_pipeline(uid: str = "bids", *, parallelism: int = 2, **checkpointing: Any) -> Pipeline:
    usual = {"max_records_per_epoch": 100, "num_retained": 9, "data_inline_threshold": 0}
    pipeline = Pipeline(uid, Checkpointing(**usual | checkpointing), parallelism=parallelism)
    bids = pipeline.source("events", Nexmark(900, columns=("bid_auction",)))
    per_auction = bids.key_by("bid_auction").aggregate(STAGE, bids=agg.count())
    per_auction.sink("counts", FilesTable(upsert_key=("bid_auction",)))
    return pipeline


@begun
def a_job_of_two_epochs(**declared: Any) -> Job:
    """Checkpoint 1, and savepoint ``before``, which is checkpoint 2."""
    job = a_running_job(a_pipeline(**declared))
    take(job)
    a_savepoint(job, "before")
    return job


def take(job: Job, stage: str = STAGE, **given: object) -> None:
    plan = trigger_one(job, **given)
    run_stage(job, None, plan.checkpoint_id, stage, attempt=1)  # type: ignore[arg-type]
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)


def a_savepoint(job: Job, name: str) -> None:
    take(job, type=CheckpointType.SAVEPOINT, savepoint_name=name, is_periodic=False)


def counted(rows: pl.DataFrame) -> dict[int | None, int]:
    return dict(zip(rows["bid_auction"], rows["bids"], strict=True))


def published(job: Job) -> dict[int | None, int]:
    return counted(to_frame(open_result_table(job, {}).read()))
