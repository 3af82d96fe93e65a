"""An abort by a person, and the watchdog.

An abort ends one pending checkpoint: nothing counts, nothing fails over, no record is lost.  The
watchdog reads only the bucket, and brings every job that hangs to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from harness.jobs import (
    ONE,
    STAGES,
    TWO,
    ManualClock,
    a_job,
    a_pipeline,
    a_running_job,
    answer_with,
    keys_of,
    published_records,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import (
    Watched,
    abort_checkpoint,
    fail_checkpoint,
    pending_checkpoint,
    watch,
)
from sluice.coordinator.record import record
from sluice.coordinator.restore import restore
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.events import AttemptStarted, Event, Transition
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.restoring import Latest
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, FencedError
from sluice.job.job import Job
from sluice.surface.checkpoints import history
from tests.builders import SUBTASKS, an_ack
from tests.subtasks import acknowledge, complete_one, decline, take_checkpoint, take_checkpoints


def aborted(job: Job, checkpoint_id: CheckpointId) -> None:
    abort_checkpoint(job, checkpoint_id, by="ada: too slow")


def test_an_abort_says_who_asked_and_changes_nothing_else() -> None:
    job = a_running_job()
    take_checkpoint(job)
    before = job.state()
    acknowledge(job, trigger_one(job), STAGES[0])

    after = abort_checkpoint(job, TWO, by="ada: too slow")

    (failed,) = after.failed
    assert (failed.reason, failed.message) == (
        Reason.CHECKPOINT_ABORTED_BY_USER,
        "aborted by ada: too slow",
    )
    assert (after.status, after.generation, after.base) == (JobStatus.RUNNING, 1, ONE)
    assert after.failure_count == before.failure_count
    assert not [key for key in keys_of(job) if job.paths.checkpoint_of(key) == 2]


def test_a_late_ack_is_harmless_and_the_records_come_again() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan, STAGES[0])
    aborted(job, ONE)

    answer_with(job, plan, [an_ack(subtask) for subtask in SUBTASKS[2:]])
    with pytest.raises(FencedError, match="aborted by ada"):
        finalize(job, ONE)
    take_checkpoint(job)

    assert published_records(job) == [*range(10)]
    assert job.state().latest_completed is not None


def test_a_decline_in_the_bucket_is_not_counted_when_a_person_was_first() -> None:
    job = a_running_job()
    trigger_one(job)
    decline(job, 1, SUBTASKS[0])

    after = abort_checkpoint(job, ONE, by="ada")

    assert (after.status, after.failure_count.continuous) == (JobStatus.RUNNING, 0)
    assert after.failed[-1].reason is Reason.CHECKPOINT_ABORTED_BY_USER


def test_what_continues_it_is_aborted_with_it_and_what_it_continues_stays() -> None:
    job = a_running_job(a_pipeline(max_concurrent_checkpoints=3))
    for _ in range(3):
        trigger_one(job)

    after = abort_checkpoint(job, TWO, by="ada")

    assert [pending.checkpoint_id for pending in after.pending] == [1]
    assert [(one.checkpoint_id, one.reason.value) for one in after.failed] == [
        (2, "CHECKPOINT_ABORTED_BY_USER"),
        (3, "JOB_FAILOVER_REGION"),
    ]


def test_a_stopping_savepoint_that_is_aborted_leaves_the_job_running() -> None:
    job = a_running_job()
    trigger_one(
        job,
        type=CheckpointType.SAVEPOINT_SUSPEND,
        savepoint_name="last",
        is_periodic=False,
    )

    assert abort_checkpoint(job, ONE, by="ada").status is JobStatus.RUNNING

    assert take_checkpoint(job) == 2


def test_what_is_not_pending_says_what_became_of_it() -> None:
    job = a_running_job()
    with pytest.raises(ConfigurationError, match="is RUNNING and has no pending checkpoint"):
        aborted(job, ONE)
    take_checkpoint(job)
    with pytest.raises(ConfigurationError, match="checkpoint 1 has completed, and only a pending"):
        aborted(job, ONE)
    trigger_one(job)
    with pytest.raises(ConfigurationError, match="checkpoint 7 is not pending; pending are: 2"):
        aborted(job, CheckpointId(7))
    assert pending_checkpoint(job, "latest") == 2
    aborted(job, TWO)
    with pytest.raises(ConfigurationError, match="nothing to abort: checkpoint 2 was aborted"):
        aborted(job, TWO)
    with pytest.raises(ConfigurationError, match="has no pending checkpoint"):
        pending_checkpoint(job, "latest")


def test_an_abort_that_a_restore_overtakes_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_running_job()
    trigger_one(job)

    def restored_before(job: Job, decide: Callable[[CoordinatorState], Event]) -> Transition:
        restore(job, Latest())
        return record(job, decide)

    monkeypatch.setattr("sluice.coordinator.failure.record", restored_before)

    with pytest.raises(FencedError, match="checkpoint 1 was aborted, JOB_FAILOVER_REGION"):
        aborted(job, ONE)


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
    assert job.state().failed[0].message == "found by the watchdog after 1 min"
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
    complete_one(job)
    clock.advance(MINUTE_MS - 1)
    assert watch(job) == NOTHING

    clock.advance(1)
    watched = watch(job)

    assert watched.actions == ("committed checkpoint 1, whose own task did not",)
    assert published_records(job) == list(range(10))


def test_a_stopping_savepoint_that_nobody_committed_still_stops_the_job() -> None:
    job, _ = a_watched_job()
    stop = CheckpointType.SAVEPOINT_SUSPEND
    complete_one(job, type=stop, savepoint_name="mine")

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
    take_checkpoints(job, 3)
    before = job.state()
    assert len(keys_of(job, job.paths.journal())) == 10

    watch(job, kept_entries=4)

    assert len(keys_of(job, job.paths.journal())) == 4
    assert job.state() == before
    assert [record.id for record in history(job)] == [1, 2, 3]
    assert take_checkpoint(job) == 4
