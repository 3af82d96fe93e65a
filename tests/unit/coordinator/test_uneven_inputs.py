"""A stage loses no row of an input while another one has finished, or has not begun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.jobs import a_running_job, trigger_one
from sluice.core.configuration import JobStatus
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.lineage import CompletedParent, lineage_of
from sluice.job.stage_input import stage_input
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage
from tests.subtasks import finish

pytestmark = pytest.mark.usefixtures("without_spark")


def a_job() -> Job:
    """A union of 300 rows of a stage and 600 of another, or of a source; 150 an epoch of each."""
    pipeline = Pipeline("bids", Checkpointing(max_records_per_epoch=150), parallelism=2)
    long, short = (
        pipeline.source(uid, Nexmark(rows, columns=("bid_auction", "price")))
        for uid, rows in (("long", 600), ("short", 300))
    )
    ending = short.transform("ending", lambda rows: rows)
    long.union("both", ending).sink("out", FilesTable())
    return a_running_job(pipeline)


def play(job: Job) -> tuple[list[str], int]:
    """The stages of the next checkpoint, and how many rows the union read in it."""
    plan = trigger_one(job)
    stages = [task.uid for task in plan.tasks]
    for stage in stages:
        done = run_stage(job, None, plan.checkpoint_id, stage, attempt=1)  # type: ignore[arg-type]
    finish(job, plan.checkpoint_id)
    return stages, sum(ack.metrics.rows_in for ack in done.acks)


def test_rows_of_an_input_that_goes_on_are_read_when_another_has_ended() -> None:
    job = a_job()

    assert [play(job) for _ in range(4)] == [
        (["ending", "both"], 300),
        (["ending", "both"], 300),
        (["both"], 150),
        (["both"], 150),
    ]


def test_a_checkpoint_that_does_not_say_the_columns_of_what_ended_is_refused() -> None:
    job = a_job()
    play(job)
    play(job)
    plan = trigger_one(job)
    lineage = lineage_of(job, job.state(), plan)
    assert isinstance(lineage, CompletedParent)
    assert lineage.metadata is not None
    older = tuple(replace(stage, schema=b"") for stage in lineage.metadata.stages)
    before = replace(lineage, metadata=replace(lineage.metadata, stages=older))

    with pytest.raises(ConfigurationError, match="'both' reads 'ending', which has finished, and"):
        stage_input(job, job.state(), plan, "both", before)


@pytest.mark.parametrize("reads_a_source", [False, True])
def test_no_row_is_lost_while_the_columns_of_another_input_are_unknown(
    reads_a_source: bool,
) -> None:
    pipeline = Pipeline("bids", Checkpointing(max_records_per_epoch=100, unaligned=True))
    near, far = (
        pipeline.source(uid, Nexmark(500, columns=("bid_auction", "price")))
        for uid in ("near", "far")
    )
    one = near if reads_a_source else near.transform("one", lambda rows: rows)
    three = far.transform("two", lambda rows: rows).transform("three", lambda rows: rows)
    one.union("both", three).sink("out", FilesTable())
    job = a_running_job(pipeline)

    read = 0
    while job.state().status is JobStatus.RUNNING:
        read += play(job)[1]

    assert read == 1_000
