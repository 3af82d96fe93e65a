"""The watchdog: it reads only the bucket, and brings every job that hangs to its end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from harness.jobs import (
    STAGES,
    ManualClock,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import Watched, fail_checkpoint, watch
from sluice.coordinator.restore import restore
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.events import AttemptStarted
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.restoring import Latest
from sluice.job.job import Job
from sluice.surface.checkpoints import history
from tests.builders import SUBTASKS
from tests.subtasks import acknowledge, decline, take_checkpoint

ONE = CheckpointId(1)
MINUTE_MS = 60_000
NOTHING = Watched(())


def a_watched_job(**checkpointing: Any) -> tuple[Job, ManualClock]:
    clock = ManualClock()
    delay = RestartStrategy(type=RestartType.FIXED_DELAY, delay_ms=5_000)
    given: dict[str, Any] = {
        "timeout": timedelta(minutes=1),
        "restart_strategy": delay,
    } | checkpointing
    return a_running_job(a_pipeline(**given), clock=clock), clock


def test_a_healthy_job_is_left_alone() -> None:
    job, clock = a_watched_job()
    take_checkpoint(job)
    trigger_one(job)
    clock.advance(MINUTE_MS - 1)
    before = keys_of(job)

    assert watch(job) == NOTHING
    assert watch(a_job()) == NOTHING
    assert keys_of(job) == before


def test_a_checkpoint_past_its_timeout_is_expired() -> None:
    job, clock = a_watched_job(tolerable_failed_checkpoints=1)
    trigger_one(job)
    clock.advance(MINUTE_MS)

    watched = watch(job)

    assert watched.actions == ("aborted checkpoint 1: CHECKPOINT_EXPIRED",)
    assert job.state().status is JobStatus.RUNNING
    assert job.state().failed[0].message == "found by the watchdog after 60000 ms"
    assert watch(job) == NOTHING


def test_a_declined_checkpoint_is_aborted_without_waiting() -> None:
    job, _ = a_watched_job(tolerable_failed_checkpoints=1)
    trigger_one(job)
    decline(job, 1, SUBTASKS[1])

    watched = watch(job)

    assert watched.actions == ("aborted checkpoint 1: CHECKPOINT_DECLINED",)
    assert job.state().failed[0].message == "count_bids/1: the input is odd"


def test_a_decline_is_told_by_its_own_reason() -> None:
    job, _ = a_watched_job(tolerable_failed_checkpoints=0)
    trigger_one(job)
    decline(job, 1, SUBTASKS[1], reason=Reason.CHECKPOINT_DECLINED_TASK_NOT_READY)

    watched = watch(job)

    told = "aborted checkpoint 1: CHECKPOINT_DECLINED_TASK_NOT_READY"
    assert (watched.actions, job.state().status) == ((told,), JobStatus.RUNNING)


def test_a_decline_of_an_overtaken_attempt_is_none() -> None:
    job, clock = a_watched_job(tolerable_failed_checkpoints=1)
    trigger_one(job)
    decline(job, 1, SUBTASKS[1])
    job.journal.append(
        lambda state: AttemptStarted(
            generation=state.generation, checkpoint_id=ONE, stage=STAGES[0], attempt=2
        )
    )

    assert watch(job) == NOTHING
    clock.advance(MINUTE_MS)
    assert watch(job).actions == ("aborted checkpoint 1: CHECKPOINT_EXPIRED",)
    assert job.state().pending == ()


def test_a_commit_that_never_came_is_made_up_for_after_a_grace() -> None:
    job, clock = a_watched_job()
    acknowledge(job, trigger_one(job))
    finalize(job, ONE)
    clock.advance(MINUTE_MS - 1)
    assert watch(job) == NOTHING

    clock.advance(1)
    watched = watch(job)

    assert watched.actions == ("committed checkpoint 1, whose own task did not",)
    assert published_records(job) == list(range(10))


def test_a_stopping_savepoint_that_nobody_committed_still_stops_the_job() -> None:
    job, _ = a_watched_job()
    stop = CheckpointType.SAVEPOINT_SUSPEND
    acknowledge(job, trigger_one(job, type=stop, savepoint_name="mine"))
    finalize(job, ONE)

    watch(job, commit_grace_ms=0)

    assert job.state().status is JobStatus.SUSPENDED
    assert job.savepoint_metadata("mine").checkpoint_id == 1


def test_a_restarting_job_is_restored_once_its_pause_is_over() -> None:
    job, clock = a_watched_job()
    take_checkpoint(job)
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, Reason.TASK_FAILURE, "lost", is_task_failure=True)
    clock.advance(4_999)
    assert watch(job) == NOTHING

    clock.advance(1)
    watched = watch(job)

    assert watched.actions == ("restored the job from checkpoint 1",)
    assert (job.state().status, job.state().generation) == (JobStatus.RUNNING, 2)
    assert watch(job) == NOTHING


def test_expiry_and_restart_may_happen_in_one_look() -> None:
    job, clock = a_watched_job(
        restart_strategy=RestartStrategy(type=RestartType.FIXED_DELAY, delay_ms=0)
    )
    trigger_one(job)
    clock.advance(MINUTE_MS)

    watched = watch(job)

    assert watched.actions == (
        "aborted checkpoint 1: CHECKPOINT_EXPIRED",
        "restored the job from the empty state",
    )


def test_a_job_without_restarts_left_is_not_restored() -> None:
    job, clock = a_watched_job(restart_strategy=RestartStrategy(type=RestartType.NONE))
    trigger_one(job)
    clock.advance(MINUTE_MS)
    watch(job)
    clock.advance(100 * MINUTE_MS)

    assert watch(job) == NOTHING
    assert job.state().status is JobStatus.FAILED


def test_a_restored_job_is_not_restored_again_for_the_same_failure() -> None:
    job, clock = a_watched_job()
    trigger_one(job)
    fail_checkpoint(job, ONE, Reason.TASK_FAILURE, "lost", is_task_failure=True)
    restore(job, Latest())
    clock.advance(10 * MINUTE_MS)

    assert watch(job) == NOTHING
    assert job.state().generation == 2


def test_the_journal_is_kept_short() -> None:
    job, _ = a_watched_job()
    for _ in range(3):
        take_checkpoint(job)
    before = job.state()
    assert len(keys_of(job, job.paths.journal())) == 10

    watch(job, kept_entries=4)

    assert len(keys_of(job, job.paths.journal())) == 4
    assert job.state() == before
    assert [record.id for record in history(job)] == [1, 2, 3]
    assert take_checkpoint(job) == 4
