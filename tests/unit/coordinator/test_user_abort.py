"""A person aborts one pending checkpoint: nothing counts, nothing fails over, no record is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.jobs import STAGES, a_pipeline, a_running_job, keys_of, published_records, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import abort_checkpoint, pending_checkpoint
from sluice.coordinator.record import record
from sluice.coordinator.restore import restore
from sluice.core.answers import Ack
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.events import Event, Transition
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, FencedError
from sluice.job.job import Job
from tests.builders import SUBTASKS
from tests.subtasks import acknowledge, decline, take_checkpoint

ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)


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

    job.answers.write_ack(Ack(checkpoint_id=ONE, subtask=SUBTASKS[0], attempt=1))
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
