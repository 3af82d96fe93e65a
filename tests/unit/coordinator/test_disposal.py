"""A person disposes of a savepoint: what belongs to it goes, unless the job needs it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.jobs import a_job, a_pipeline, a_running_job, keys_of, published_records, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.garbage import collect_garbage
from sluice.coordinator.publication import commit
from sluice.coordinator.record import discard_claimed
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.savepoints import copy_savepoint, dispose, savepoint_names
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import CheckpointType, ClaimMode, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest, RestoreOptions
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job
from tests.begun import begun
from tests.hooked import Crash, hooked
from tests.subtasks import a_savepoint, acknowledge, take_checkpoint

MINE = "auctions/savepoints/mine/"
CLAIM = RestoreOptions(claim_mode=ClaimMode.CLAIM)


@begun
def a_job_with_two_savepoints() -> Job:
    """``mine`` and ``mine-2``, whose name begins as that of the other one."""
    job = a_running_job()
    a_savepoint(job, "mine")
    a_savepoint(job, "mine-2")
    return job


def beside(keys: list[str]) -> list[str]:
    return [key for key in keys if not key.startswith(MINE) and "/journal/" not in key]


def dispose_again(job: Job) -> None:
    assert dispose(job, "mine")


def collect(job: Job) -> None:
    collect_garbage(job, grace_ms=0)


def die_at(number: int, seen: list[str]) -> Callable[[str, str], None]:
    def before(verb: str, key: str) -> None:
        if len(seen) == number:
            raise Crash
        seen.append(f"{verb} {key}")

    return before


def test_what_belongs_to_it_goes_and_nothing_else() -> None:
    job = a_job_with_two_savepoints()
    before = keys_of(job)

    assert dispose(job, "mine")

    assert beside(keys_of(job)) == beside(before)
    assert keys_of(job, MINE) == []
    assert savepoint_names(job) == ["mine-2"]
    assert (job.state().claimed_savepoints, job.state().releasing_savepoints) == ((), ())
    restore(job, Latest())
    take_checkpoint(job)
    assert published_records(job) == list(range(30))
    a_savepoint(job, "mine")  # The name is free again.


def test_it_may_be_repeated_and_is_no_error_where_nothing_is() -> None:
    job = a_job_with_two_savepoints()
    dispose(job, "mine")
    before = keys_of(job)

    assert not dispose(job, "mine")
    assert not dispose(job, "never-taken")
    assert keys_of(job) == before
    with pytest.raises(ConfigurationError, match="is not usable"):
        dispose(job, "../checkpoints")


def test_it_is_refused_while_the_job_has_begun_from_it_and_completed_nothing() -> None:
    job = a_job_with_two_savepoints()
    restore(job, savepoint_target(job, "mine"))
    before = keys_of(job)

    with pytest.raises(ConfigurationError, match="was restored from it, and has completed no"):
        dispose(job, "mine")
    trigger_one(job)
    with pytest.raises(ConfigurationError, match="was restored from it, and has completed no"):
        dispose(job, "mine")
    assert [key for key in before if "/savepoints/" in key] == keys_of(job, "auctions/savepoints/")
    fail_checkpoint(job, job.state().pending[0].checkpoint_id, Reason.CHECKPOINT_EXPIRED, "slow")
    restore(job, Latest())
    take_checkpoint(job)

    assert dispose(job, "mine")
    restore(job, Latest())
    take_checkpoint(job)
    assert published_records(job) == list(range(30))


def test_a_claimed_one_is_the_jobs_to_delete() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    a_savepoint(job, "mine")
    restore(job, savepoint_target(job, "mine"), CLAIM)
    take_checkpoint(job)

    with pytest.raises(ConfigurationError, match="claimed it, and deletes it when no retained"):
        dispose(job, "mine")


def test_one_that_is_being_taken_is_left_alone() -> None:
    job = a_running_job()
    plan = trigger_one(job, type=CheckpointType.SAVEPOINT, savepoint_name="mine", is_periodic=False)
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)

    with pytest.raises(ConfigurationError, match="it is being taken; wait for its end"):
        dispose(job, "mine")
    commit(job, plan.checkpoint_id)
    assert savepoint_names(job) == ["mine"]


def test_nothing_goes_while_a_retained_checkpoint_cannot_be_read_or_reads_it() -> None:
    """The second is a root that a hand left so."""
    job = a_job_with_two_savepoints()
    files = keys_of(job, MINE)
    key = job.paths.metadata(2)
    whole = job.store.get(key)
    assert whole is not None
    job.store.delete([key])

    with pytest.raises(RestoreError):
        dispose(job, "mine")
    theirs = job.store.get(job.paths.savepoint_metadata("mine"))
    assert theirs is not None
    job.store.put(key, theirs)
    with pytest.raises(ConfigurationError, match="checkpoint 2 reads its files, and is retained"):
        dispose(job, "mine")
    job.store.put(key, whole)

    assert keys_of(job, MINE) == files
    assert dispose(job, "mine")


@pytest.mark.parametrize("ends", [dispose_again, collect], ids=["again", "garbage collector"])
def test_a_crash_at_any_request_is_finished_later(ends: Callable[[Job], None]) -> None:
    """Until all of it is gone it cannot be restored, and its name is not free."""
    for requests in range(100):
        job = a_job_with_two_savepoints()
        seen: list[str] = []
        try:
            dispose(hooked(job, die_at(requests, seen)), "mine")
        except Crash:
            released = "mine" in job.state().releasing_savepoints
            whole, files = "mine" in savepoint_names(job), keys_of(job, MINE)
            assert released or whole or not files
            if released:
                with pytest.raises(ConfigurationError, match="choose another name"):
                    a_savepoint(job, "mine")
                ends(job)
                assert keys_of(job, MINE) == []
            assert job.state().claimed_savepoints == ()
        else:
            break
    assert 5 < requests < 100


def test_a_job_that_ended_or_was_never_submitted_here_loses_its_savepoints_as_asked() -> None:
    ended = a_job_with_two_savepoints()
    stop(ended, JobStatus.CANCELED)
    assert dispose(ended, "mine")
    other = a_job(root="memory://copies-of-savepoints")
    copy_savepoint(ended, "mine-2", other.store.root)

    assert dispose(other, "mine-2")

    assert savepoint_names(other) == []
    submit(other, configure(other.pipeline, {}))
    take_checkpoint(other)
    assert discard_claimed(other) == ()
    assert other.metadata(CheckpointId(1)).checkpoint_id == 1
