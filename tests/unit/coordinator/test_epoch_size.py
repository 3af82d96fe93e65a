"""A job with a target for its epochs: each is cut by what the ones before it took."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from harness.jobs import ManualClock, a_job, a_pipeline, trigger_one
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.submission import configure, submit
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.sources import Nexmark
from tests.subtasks import acknowledge, finish

pytestmark = pytest.mark.usefixtures("small")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.core.requests.FIRST_RECORDS", 8)
    monkeypatch.setattr("sluice.core.requests.LEAST_RECORDS", 2)


def a_sized_job(pipeline: Pipeline | None = None, **checkpointing: Any) -> Job:
    usual = {"target_epoch": timedelta(seconds=60), "max_records_per_epoch": None}
    job = a_job(pipeline or a_pipeline(**usual | checkpointing))
    submit(job, configure(job.pipeline, {}))
    return job


def take(job: Job, *, lasts_s: int) -> int:
    """Take a checkpoint that lasts so long; return its records."""
    assert isinstance(job.clock, ManualClock)
    plan = trigger_one(job)
    acknowledge(job, plan)
    job.clock.advance(lasts_s * 1_000)
    finish(job, plan.checkpoint_id)
    return plan.records


def test_an_epoch_takes_what_was_worked_through_in_the_target_time() -> None:
    job = a_sized_job()

    taken = [take(job, lasts_s=seconds) for seconds in (30, 30, 60, 240, 60)]

    assert taken == [8, 16, 32, 32, 8]


def test_the_cap_of_a_source_holds_beside_it() -> None:
    job = a_sized_job(max_records_per_epoch=10)

    assert [take(job, lasts_s=1) for _ in range(3)] == [8, 10, 10]


def test_an_epoch_that_expired_is_followed_by_half_of_it() -> None:
    job = a_sized_job(tolerable_failed_checkpoints=3)
    take(job, lasts_s=60)
    assert trigger_one(job).records == 8
    fail_checkpoint(job, job.state().pending[0].checkpoint_id, Reason.CHECKPOINT_EXPIRED, "slow")

    assert take(job, lasts_s=60) == 4


@pytest.mark.parametrize(
    ("first", "second", "taken"), [(0, 0, [4, 4]), (2, 0, [2, 6]), (0, 2, [4, 2])]
)
def test_sources_share_and_what_one_has_not_is_left_for_those_behind_it(
    first: int, second: int, taken: list[int]
) -> None:
    pipeline = a_pipeline(
        target_epoch=timedelta(seconds=60), max_records_per_epoch=None, events=first
    )
    others = pipeline.source("others", Nexmark(second))
    others.key_by("bid_auction").aggregate("count_others", bids=agg.count())

    plan = trigger_one(a_sized_job(pipeline))

    assert [cut.records for cut in plan.sources] == taken
