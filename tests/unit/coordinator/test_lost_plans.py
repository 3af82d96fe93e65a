"""A plan that is gone while its checkpoint is pending: a loss, and no takeover."""

from __future__ import annotations

import pytest

from harness.jobs import a_pipeline, a_running_job, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import publish_early
from sluice.core.configuration import CheckpointingMode
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.errors import FencedError, ProtocolViolation
from sluice.job.answers import plan_of
from sluice.job.job import Job
from sluice.job.lineage import lineage_of_tip
from tests.subtasks import acknowledge

LOST = r"checkpoint 1 is lost: it is pending, but its plan, memory://.*/plan, is gone"


def lose_the_plan(job: Job) -> None:
    plan = trigger_one(job)
    acknowledge(job, plan)
    job.store.delete([job.paths.plan(plan.checkpoint_id)])


def test_a_checkpoint_without_its_plan_is_lost_whoever_works_for_it() -> None:
    job = a_running_job(a_pipeline(mode=CheckpointingMode.AT_LEAST_ONCE))
    lose_the_plan(job)

    for act in (
        lambda: plan_of(job, CheckpointId(1)),
        lambda: finalize(job, CheckpointId(1)),
        lambda: publish_early(job, CheckpointId(1), "rank_bids"),
        lambda: lineage_of_tip(job, job.state()),
    ):
        with pytest.raises(ProtocolViolation, match=LOST):
            act()


def test_an_aborted_checkpoint_has_no_plan_and_is_fenced() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "late")

    with pytest.raises(FencedError, match="checkpoint 1 was aborted, CHECKPOINT_EXPIRED: late"):
        plan_of(job, plan.checkpoint_id)
    with pytest.raises(FencedError, match="checkpoint 1 was aborted, CHECKPOINT_EXPIRED: late"):
        finalize(job, plan.checkpoint_id)
