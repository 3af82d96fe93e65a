"""The stage of a chain that is named when the attempt of all of them has failed."""

from __future__ import annotations

from typing import Any

from harness.jobs import STAGES, a_running_job, trigger_one
from sluice.core.failures import note_of_stage
from sluice.core.ids import SubtaskId
from sluice.core.plan import CheckpointPlan
from sluice.job.job import Job
from sluice.job.stage_input import StageInput
from sluice.spark.stage import stage_failure
from sluice.spark.tasks import StageRun
from tests.subtasks import decline

FIRST, SECOND = STAGES[:2]
LATER = SubtaskId(SECOND, 0)


def chain_of(job: Job, plan: CheckpointPlan, attempt: int) -> list[StageRun]:
    rest: dict[str, Any] = {"spark": None, "before": None, "given": StageInput()}
    configuration = job.state().configuration
    return [
        StageRun(
            job=job,
            plan=plan,
            node=node,
            configuration=configuration,
            attempt=attempt,
            driver="mine",
            **rest,
        )
        for node in job.pipeline.stages.values()
    ]


def test_the_stage_is_named_that_declined_or_that_raised() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    chain, error = chain_of(job, plan, 1), ValueError("no such row")
    assert stage_failure(chain, error).stage == FIRST

    error.add_note(note_of_stage(SECOND))
    raised = stage_failure(chain, error)
    decline(job, plan.checkpoint_id, LATER)
    declined = stage_failure(chain, ValueError("killed"))

    assert (raised.stage, raised.is_declined) == (SECOND, False)
    assert raised.cause == "ValueError: no such row"
    assert (declined.stage, declined.is_declined) == (SECOND, True)


def test_what_an_earlier_attempt_declined_is_not_said_again() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    decline(job, plan.checkpoint_id, LATER)

    failed = stage_failure(chain_of(job, plan, 2), ValueError("no such row"))

    assert (failed.stage, failed.is_declined) == (FIRST, False)
