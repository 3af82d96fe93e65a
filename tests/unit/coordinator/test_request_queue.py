"""Requests that cannot start at once: the queue, its order, and dropped requests."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harness.jobs import ManualClock, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import stop
from sluice.coordinator.trigger import NotTriggered, Queued, Triggered, trigger
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from tests.subtasks import acknowledge, take_checkpoint

ONE = CheckpointId(1)
SAVEPOINT = CheckpointType.SAVEPOINT


def complete(job: Job, plan: CheckpointPlan) -> None:
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)


def test_a_request_waits_for_the_pending_checkpoint_and_keeps_its_id() -> None:
    job = a_running_job()
    first = trigger_one(job)

    waits = trigger(job, request_id="mine")
    still_waits = trigger(job, request_id="mine")

    assert waits == Queued(request_id="mine", message="checkpoint 1 is still pending")
    assert still_waits == waits
    assert [request.request_id for request in job.state().queue] == ["mine"]
    complete(job, first)
    outcome = trigger(job, request_id="mine")
    assert isinstance(outcome, Triggered)
    assert (job.state().queue, job.state().pending[0].request_id) == ((), "mine")


def test_a_savepoint_goes_before_those_that_waited_longer() -> None:
    job = a_running_job()
    first = trigger_one(job)
    trigger(job, request_id="periodic")
    trigger(job, request_id="person", is_periodic=False)
    trigger(job, request_id="savepoint", type=SAVEPOINT, savepoint_name="s", is_periodic=False)
    complete(job, first)

    waits = trigger(job, request_id="person")
    outcome = trigger(job, request_id="savepoint", type=SAVEPOINT, savepoint_name="s")

    assert waits == Queued(request_id="person", message="another request is before it")
    assert isinstance(outcome, Triggered)
    assert [request.request_id for request in job.state().queue] == ["person", "periodic"]


def test_a_forced_request_does_not_wait() -> None:
    job = a_running_job()
    first = trigger_one(job)

    second = trigger_one(job, is_forced=True, is_periodic=False)

    assert second.parent == first.checkpoint_id
    assert [p.checkpoint_id for p in job.state().pending] == [1, 2]


def test_a_request_whose_owner_does_not_come_back_blocks_nobody_for_ever() -> None:
    clock = ManualClock()
    job = a_running_job(a_pipeline(timeout=timedelta(minutes=1)), clock=clock)
    first = trigger_one(job)
    trigger(job, request_id="dead", is_periodic=False)
    complete(job, first)
    assert isinstance(trigger(job, request_id="alive"), Queued)
    clock.advance(60_000)

    outcome = trigger(job, request_id="alive again")

    assert isinstance(outcome, Triggered)
    assert trigger(job, request_id="dead") == NotTriggered(
        reason=Reason.CHECKPOINT_EXPIRED, message="it was rejected while it waited"
    )


def test_who_waits_while_the_job_ends_is_told_why() -> None:
    job = a_running_job()
    trigger_one(job)
    trigger(job, request_id="mine")
    stop(job, JobStatus.CANCELED)

    assert trigger(job, request_id="mine") == NotTriggered(
        reason=Reason.CHECKPOINT_COORDINATOR_SUSPEND, message="it was rejected while it waited"
    )


def test_min_pause_holds_back_the_periodic_and_not_a_persons() -> None:
    clock = ManualClock()
    job = a_running_job(a_pipeline(min_pause=timedelta(seconds=10)), clock=clock)
    take_checkpoint(job)
    clock.advance(4_000)
    before = job.journal.load()

    assert trigger(job) == NotTriggered(
        reason=Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
        message="min_pause lasts 6000 ms more",
        retry_in_ms=6_000,
    )
    assert job.journal.load() == before
    trigger_one(job, is_periodic=False)


def test_a_name_that_another_savepoint_will_have_is_taken() -> None:
    job = a_running_job()
    first = trigger_one(job, type=SAVEPOINT, savepoint_name="pending")
    trigger(job, type=SAVEPOINT, savepoint_name="queued", is_periodic=False, request_id="q")

    for name in ("pending", "queued"):
        with pytest.raises(ConfigurationError, match=f"savepoint '{name}' is being taken"):
            trigger(job, type=SAVEPOINT, savepoint_name=name, is_periodic=False)
    acknowledge(job, first)
    finalize(job, first.checkpoint_id)  # Its own commit never comes.

    with pytest.raises(ConfigurationError, match="savepoint 'pending' exists"):
        trigger(job, type=SAVEPOINT, savepoint_name="pending", is_periodic=False)
    assert job.savepoint_metadata("pending").checkpoint_id == first.checkpoint_id


def test_a_waiting_savepoint_whose_name_was_taken_elsewhere_leaves_the_queue() -> None:
    job = a_running_job()
    first = trigger_one(job)
    trigger(job, type=SAVEPOINT, savepoint_name="mine", is_periodic=False, request_id="q")
    job.store.put(job.paths.savepoint_metadata("mine"), b"of another root, copied here")
    complete(job, first)

    with pytest.raises(ConfigurationError, match="savepoint 'mine' exists"):
        trigger(job, type=SAVEPOINT, savepoint_name="mine", request_id="q")

    assert isinstance(trigger(job), Triggered)


def test_an_expired_checkpoint_lets_the_next_request_run() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    trigger_one(job)
    trigger(job, request_id="mine")
    fail_checkpoint(job, ONE, Reason.CHECKPOINT_EXPIRED, "too slow")

    outcome = trigger(job, request_id="mine")

    assert isinstance(outcome, Triggered)
    assert (outcome.plan.checkpoint_id, outcome.plan.parent) == (2, None)
