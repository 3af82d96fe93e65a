"""State that a job has, against what its stages would keep now."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from harness.jobs import a_running_job, trigger_one
from sluice.coordinator.restore import stop
from sluice.core.configuration import JobStatus
from sluice.core.plan import CheckpointPlan
from sluice.declaration import aggregates as agg
from sluice.declaration.aggregates import Aggregate
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.operations import KeyedAggregate
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.analysis import analyse, check_state
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage
from tests.subtasks import finish

pytestmark = pytest.mark.usefixtures("without_spark")


def a_pipeline(most: Aggregate, key: str = "bid_auction") -> Pipeline:
    pipeline = Pipeline("bids", Checkpointing(max_records_per_epoch=150), parallelism=2)
    events = pipeline.source("events", Nexmark(1_000, columns=("bid_auction", "price", "category")))
    counted = events.key_by(key).aggregate("counted", most=most)
    counted.sink("out", FilesTable(upsert_key=(key,)))
    return pipeline


def a_job_with_state() -> Job:
    job = a_running_job(a_pipeline(agg.max("price")))
    plan = trigger_one(job)
    run_stage(job, None, plan.checkpoint_id, "counted", attempt=1)  # type: ignore[arg-type]
    finish(job, plan.checkpoint_id)
    return job


def check(job: Job, pipeline: Pipeline) -> None:
    check_state(replace(job, pipeline=pipeline), analyse(pipeline, {}, None))


def test_another_aggregate_is_refused_with_both_meanings() -> None:
    job = a_job_with_state()

    with pytest.raises(ConfigurationError) as error:
        check(job, a_pipeline(agg.collect("price")))

    assert str(error.value) == (
        "stage 'counted': column 'most' was max(price) and is now collect(price); put it back, or "
        "begin it anew: restore with --begin counted.most (checkpoint 1)"
    )


def test_another_key_is_refused() -> None:
    job = a_job_with_state()

    with pytest.raises(ConfigurationError, match="its keys were bid_auction and are now category"):
        check(job, a_pipeline(agg.max("price"), key="category"))


def test_the_same_meaning_passes_and_a_new_column_asks_for_consent() -> None:
    job = a_job_with_state()
    more = a_pipeline(agg.max("price"))
    more.stages["counted"] = replace(
        more.stages["counted"],
        operation=KeyedAggregate(aggregates={"most": agg.max("price"), "n": agg.count()}),
    )

    check(job, a_pipeline(agg.max("price")))
    check(job, a_pipeline(agg.max("price"), key="BID_AUCTION"))
    with pytest.raises(ConfigurationError, match=r"column 'n' is new, count\(\); .* counted.n"):
        check(job, more)


@pytest.mark.parametrize("status", [None, JobStatus.CANCELED])
def test_a_job_that_starts_anew_has_no_state_to_read(status: JobStatus | None) -> None:
    job = a_job_with_state() if status is not None else a_running_job(a_pipeline(agg.max("price")))
    if status is not None:
        stop(job, status)

    check(job, a_pipeline(agg.collect("price")))


def over_updates(most: Aggregate) -> Pipeline:
    checkpointing = Checkpointing(
        max_records_per_epoch=150, unaligned=True, aligned_checkpoint_timeout=timedelta(hours=1)
    )
    pipeline = Pipeline("bids", checkpointing)
    events = pipeline.source("events", Nexmark(1_000, columns=("bid_auction", "price", "category")))
    newest = events.key_by("bid_auction").latest("newest", by="price")
    counted = newest.key_by("category").aggregate("counted", most=most)
    counted.sink("out", FilesTable(upsert_key=("category",)))
    return pipeline


def taken(job: Job) -> CheckpointPlan:
    plan = trigger_one(job)
    for task in plan.tasks:
        run_stage(job, None, plan.checkpoint_id, task.uid, attempt=1)  # type: ignore[arg-type]
    finish(job, plan.checkpoint_id)
    return plan


def test_what_is_recomputed_is_said_and_done_by_the_next_checkpoint_alone() -> None:
    job = a_running_job(over_updates(agg.max("price")))
    first = taken(job)
    changed = replace(job, pipeline=over_updates(agg.min("price")))

    (note,) = check_state(changed, analyse(changed.pipeline, {}, None))
    plan, later = taken(changed), taken(changed)

    assert note == (
        "stage 'counted': column 'most' was max(price) and is now min(price): recomputed from the "
        "rows of stage 'newest'"
    )
    assert (first.recomputed, plan.recomputed, later.recomputed) == ((), ("counted",), ())
    assert [one.task("counted").may_be_overtaken for one in (first, plan, later)] == [
        True, False, True
    ]  # fmt: skip
