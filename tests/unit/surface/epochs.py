"""Epochs whose stages really run, and a job that counts bids for the tests of its state."""

from __future__ import annotations

from harness.jobs import a_running_job, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage

COUNTING = "per_auction"


def a_counting_job() -> Job:
    """A hundred events an epoch."""
    checkpointing = Checkpointing(max_records_per_epoch=100, num_retained=9)
    pipeline = Pipeline("bids", checkpointing, parallelism=2)
    bids = pipeline.source("events", Nexmark(300, columns=("bid_auction",)))
    counted = bids.key_by("bid_auction").aggregate(COUNTING, bids=agg.count())
    counted.sink("counts", FilesTable(upsert_key=("bid_auction",)))
    return a_running_job(pipeline)


def take(job: Job, **request: object) -> None:
    """Trigger a checkpoint, run the stages that have not finished, and publish it."""
    plan = trigger_one(job, **request)
    for task in plan.tasks:
        run_stage(job, None, plan.checkpoint_id, task.uid, attempt=1)  # type: ignore[arg-type]
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)


def play(job: Job, epochs: int) -> None:
    for _ in range(epochs):
        take(job)
