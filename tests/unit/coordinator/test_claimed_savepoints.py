"""CLAIM gives a savepoint to the job, which deletes it when no checkpoint reads it any more."""

from __future__ import annotations

from typing import Any

import pytest

from harness.jobs import STAGES, a_pipeline, a_running_job, keys_of, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.garbage import Orphans, collect_garbage
from sluice.coordinator.publication import commit
from sluice.coordinator.record import discard_claimed
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.savepoints import savepoint_names
from sluice.coordinator.submission import submit
from sluice.coordinator.trigger import trigger
from sluice.core.configuration import ClaimMode, JobStatus
from sluice.core.ids import CheckpointId
from sluice.core.restoring import FromCheckpoint, Latest, RestoreOptions
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from tests.hooked import Crash, crashing
from tests.subtasks import a_savepoint, acknowledge, state_records, take_checkpoint

CLAIM = RestoreOptions(claim_mode=ClaimMode.CLAIM)


def a_claiming_job(**checkpointing: Any) -> Job:
    job = a_running_job(a_pipeline(**{"num_retained": 1, **checkpointing}))
    take_checkpoint(job)
    a_savepoint(job)
    restore(job, savepoint_target(job, "mine"), CLAIM)
    return job


def take_compacting_checkpoint(job: Job) -> None:
    """Take a checkpoint whose state shares no file with the one before."""
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finish(job, plan.checkpoint_id)


def finish(job: Job, checkpoint_id: CheckpointId) -> None:
    finalize(job, checkpoint_id)
    commit(job, checkpoint_id)


def files_of(job: Job, name: str = "mine") -> list[str]:
    return keys_of(job, job.paths.savepoint(name))


def test_it_stays_whole_as_long_as_a_retained_checkpoint_reads_a_file_of_it() -> None:
    job = a_claiming_job()
    before = files_of(job)

    for _ in range(3):
        take_checkpoint(job)

    assert files_of(job) == before
    assert job.state().claimed_savepoints == ("mine",)
    newest = job.state().completed[-1].checkpoint_id
    assert state_records(job, job.metadata(newest), STAGES[0]) == list(range(50))


def test_it_goes_with_the_last_checkpoint_that_reads_it_and_the_journal_says_so() -> None:
    job = a_claiming_job(num_retained=2)
    take_checkpoint(job)
    take_compacting_checkpoint(job)
    assert files_of(job) != []

    take_compacting_checkpoint(job)

    assert files_of(job) == []
    assert job.state().claimed_savepoints == ()
    newest = job.state().completed[-1].checkpoint_id
    assert state_records(job, job.metadata(newest), STAGES[0]) == list(range(50))


def test_it_stays_until_the_first_checkpoint_for_a_failure_goes_back_to_it() -> None:
    job = a_claiming_job()

    assert discard_claimed(job) == ()
    collect_garbage(job, grace_ms=0)
    restore(job, Latest())
    take_compacting_checkpoint(job)

    assert files_of(job) == []


def test_one_that_was_not_claimed_is_never_deleted() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    take_checkpoint(job)
    a_savepoint(job)
    a_savepoint(job, "other")
    before = files_of(job)
    restore(job, savepoint_target(job, "mine"))
    take_checkpoint(job)
    restore(job, savepoint_target(job, "other"), CLAIM)
    take_compacting_checkpoint(job)
    take_compacting_checkpoint(job)

    assert files_of(job) == before
    assert savepoint_names(job) == ["mine"]


def test_going_back_to_a_checkpoint_of_its_own_frees_the_job_of_it() -> None:
    job = a_claiming_job(num_retained=3)
    first = job.state().completed[0].checkpoint_id
    restore(job, FromCheckpoint(first))

    take_checkpoint(job)

    assert (files_of(job), job.state().claimed_savepoints) == ([], ())
    assert job.state().status is JobStatus.RUNNING


@pytest.mark.parametrize("writes", range(7))
def test_a_crash_never_leaves_one_that_looks_complete_and_is_not(writes: int) -> None:
    job = a_claiming_job()
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finish_without_cleaning(job, plan.checkpoint_id)
    whole = files_of(job)

    with pytest.raises(Crash):
        discard_claimed(crashing(job, writes))

    deletes = max(0, writes - 1)  # The first write journals the release.
    assert savepoint_names(job) == ([] if deletes else ["mine"])
    assert len(files_of(job)) == max(0, len(whole) - deletes)
    assert job.state().claimed_savepoints == ("mine",)
    assert collect_garbage(job, grace_ms=0) == Orphans(), "neither garbage nor incomplete"
    assert (files_of(job), job.state().claimed_savepoints) == ([], ())


def finish_without_cleaning(job: Job, checkpoint_id: CheckpointId) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.coordinator.publication.discard_claimed", lambda job: ())
        finish(job, checkpoint_id)


def test_an_unreadable_checkpoint_keeps_it_and_does_not_hold_up_the_job() -> None:
    job = a_claiming_job()
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finish_without_cleaning(job, plan.checkpoint_id)
    job.store.put(job.paths.metadata(plan.checkpoint_id), b"{}")

    assert discard_claimed(job) == ()
    assert files_of(job) != []


def test_its_name_is_not_free_until_it_is_gone() -> None:
    job = a_claiming_job()
    take_checkpoint(job)
    job.store.delete([job.paths.savepoint_metadata("mine")])

    with pytest.raises(ConfigurationError, match="was claimed by the job and is not deleted yet"):
        trigger(job, savepoint_name="mine", is_periodic=False)


def test_a_new_life_of_the_job_deletes_it_when_the_old_one_is_over() -> None:
    job = a_claiming_job()
    take_checkpoint(job)
    stop(job, JobStatus.CANCELED)
    submit(job, job.state().configuration)
    assert files_of(job) != []

    take_checkpoint(job)

    assert files_of(job) == []
