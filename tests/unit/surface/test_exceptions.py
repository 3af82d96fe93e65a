"""What checkpoints failed with, by root cause, from the records of those that failed."""

from __future__ import annotations

import re

import pytest

from harness.jobs import STAGES, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.failure import fail_checkpoint, stack_behind, start_attempt
from sluice.core.answers import TaskFailure
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import SubtaskId
from sluice.job.job import Job
from sluice.surface import exceptions
from sluice.surface.exceptions import ExceptionHistory, exception_history
from tests.subtasks import acknowledge, decline, finish, take_checkpoint

EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED
TASK_FAILURE = CheckpointFailureReason.TASK_FAILURE


@pytest.fixture(name="job")
def _job() -> Job:
    return a_running_job(a_pipeline(tolerable_failed_checkpoints=99))


def ask_price(message: str) -> None:
    raise ValueError(message)


def tell(job: Job, checkpoint_id: int, message: str, *, attempt: int = 1) -> None:
    """As a stage that failed does, before it raises."""
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        ask_price(message)
    job.answers.keep_failure(
        TaskFailure(
            checkpoint_id=checkpoint_id,  # type: ignore[arg-type]
            task=f"{STAGES[0]}.snapshot",
            attempt=attempt,
            message=message,
            stack=stack_behind(raised.value),
        )
    )


def fail(job: Job, message: str) -> int:
    checkpoint_id = trigger_one(job).checkpoint_id
    tell(job, checkpoint_id, message)
    fail_checkpoint(job, checkpoint_id, EXPIRED, "nobody came", is_task_failure=False)
    return checkpoint_id


def test_a_job_without_failures_has_none(job: Job) -> None:
    take_checkpoint(job)

    assert exception_history(job) == ExceptionHistory(failures=0, groups=())


def test_failures_of_one_cause_are_one_group_whichever_record_they_name(job: Job) -> None:
    fail(job, "record 3 has no price")
    fail(job, "the disk is full")
    fail(job, "record 41 has no price")

    found = exception_history(job)

    assert found.failures == 3
    first, second = found.groups
    assert (first.root_cause, first.count, first.checkpoints) == (
        "record 41 has no price", 2, (3, 1),
    )  # fmt: skip
    assert (first.stage, first.subtask, first.attempt) == (STAGES[0], None, 1)
    assert (first.reason, first.message) == (
        "CHECKPOINT_EXPIRED", "nobody came: record 41 has no price",
    )  # fmt: skip
    assert first.stack.startswith("ValueError: record 41 has no price")
    assert "in ask_price" in first.stack
    assert (second.root_cause, second.count, second.checkpoints) == ("the disk is full", 1, (2,))


def test_the_subtask_that_declined_is_to_blame_before_the_stage_that_failed_with_it(
    job: Job,
) -> None:
    checkpoint_id = trigger_one(job).checkpoint_id
    acknowledge(job, job.plan(checkpoint_id), STAGES[0])  # type: ignore[arg-type]
    decline(job, checkpoint_id, SubtaskId(STAGES[1], 1))
    tell(job, checkpoint_id, "stage failed: the input is odd")
    fail_checkpoint(job, checkpoint_id, EXPIRED, "too slow")

    (group,) = exception_history(job).groups

    assert (group.stage, group.subtask, group.root_cause) == (STAGES[1], 1, "the input is odd")


def test_a_failure_of_which_nothing_is_written_has_the_words_of_the_checkpoint(job: Job) -> None:
    fail_checkpoint(job, trigger_one(job).checkpoint_id, EXPIRED, "too slow")

    (group,) = exception_history(job).groups

    assert (group.root_cause, group.task, group.stack) == ("too slow", None, "")


def test_a_stage_that_ran_again_and_succeeded_has_failed_once(job: Job) -> None:
    plan = trigger_one(job)
    tell(job, plan.checkpoint_id, "a worker was lost")
    start_attempt(job, plan.checkpoint_id, STAGES[0])
    acknowledge(job, plan, STAGES[0], attempt=2)
    acknowledge(job, plan, STAGES[1], attempt=2)
    finish(job, plan.checkpoint_id)

    (group,) = exception_history(job).groups

    assert (group.reason, group.root_cause, group.attempt) == (None, "a worker was lost", 1)


def test_the_newest_fifty_are_shown(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exceptions, "MAX_FAILURES", 2)
    for _ in range(3):
        fail(job, "the disk is full")

    found = exception_history(job)

    assert (found.failures, found.groups[0].checkpoints) == (2, (3, 2))


def test_a_stack_is_kept_without_secrets(job: Job) -> None:
    fail(job, "no login with password=hunter22")

    (group,) = exception_history(job).groups

    assert "hunter22" not in group.stack + group.root_cause + group.message
    assert "password=***" in group.stack
