"""A person pauses the checkpointing of a running job, resumes it, or changes its times."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harness.jobs import ManualClock, a_job, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.requests import (
    NewTimes,
    UserRequest,
    pause,
    request_checkpoint,
    resume,
    retime,
)
from sluice.coordinator.restore import restore, stop
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import NotTriggered, Queued, Triggered, trigger
from sluice.core.configuration import JobStatus, Timing
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest
from sluice.errors import ConfigurationError
from tests.subtasks import take_checkpoint

ONE = CheckpointId(1)
SECOND = timedelta(seconds=1)


def test_a_paused_job_takes_no_periodic_checkpoint_and_every_other_one() -> None:
    job = a_running_job()
    state = pause(job, by="ada")

    dropped = trigger(job)
    by_hand = take_checkpoint(job, is_periodic=False)
    request_checkpoint(job, UserRequest(by="ada"))
    adopted = trigger(job)

    assert dropped == NotTriggered(
        reason=Reason.PERIODIC_SCHEDULER_SHUTDOWN,
        message="checkpointing is paused by ada; resume it to go on",
        retry_in_ms=1_000,
    )
    assert by_hand == 1
    assert isinstance(adopted, Triggered)
    assert (state.status, state.timing.changed_at_ms) == (JobStatus.RUNNING, job.clock())


def test_what_is_queued_when_the_job_is_paused_is_dropped_when_it_asks_again() -> None:
    job = a_running_job()
    trigger_one(job)
    assert isinstance(trigger(job, request_id="periodic"), Queued)

    pause(job, by="ada")

    assert isinstance(trigger(job, request_id="periodic"), NotTriggered)
    assert job.state().queue == ()


def test_a_resumed_job_goes_on() -> None:
    job = a_running_job()
    pause(job, by="ada")

    resumed = resume(job, by="bob")
    again = resume(job, by="eve")  # It changes nothing, and is not journaled.

    assert resumed.timing.changed_by == again.timing.changed_by == "bob"
    assert isinstance(trigger(job), Triggered)


def test_a_changed_interval_holds_from_the_last_trigger_on_and_a_tenth_early_is_in_time() -> None:
    clock = ManualClock()
    job = a_running_job(clock=clock)
    retime(job, NewTimes(interval=timedelta(seconds=100)), by="ada")
    take_checkpoint(job)

    clock.advance(89_000)
    early = trigger(job)
    clock.advance(1_000)
    in_time = trigger(job)

    assert early == NotTriggered(
        reason=Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
        message="the interval was changed to 100000 ms, and lasts 11000 ms more",
        retry_in_ms=11_000,
    )
    assert isinstance(in_time, Triggered)


def test_changed_times_hold_from_the_next_checkpoint_on() -> None:
    clock = ManualClock()
    job = a_running_job(clock=clock)
    times = NewTimes(min_pause=5 * SECOND, timeout=7 * SECOND, tolerable_failed_checkpoints=1)
    before = trigger_one(job)
    retime(job, times, by="ada")

    state = fail_checkpoint(job, ONE, Reason.CHECKPOINT_EXPIRED, "late")
    after = take_checkpoint(job)
    paused = trigger(job)
    clock.advance(5_000)
    plan = trigger_one(job)

    assert before.expires_at_ms - before.triggered_at_ms == 600_000
    assert state.status is JobStatus.RUNNING  # One failure was tolerable by then.
    assert after == 2
    assert isinstance(paused, NotTriggered)
    assert paused.retry_in_ms == 5_000
    assert plan.expires_at_ms - plan.triggered_at_ms == 7_000


def test_a_change_survives_a_restore_and_a_reset_or_a_submission_ends_it() -> None:
    job = a_running_job()
    take_checkpoint(job)
    pause(job, by="ada")
    retime(job, NewTimes(timeout=7 * SECOND), by="ada")
    configuration = configure(job.pipeline, {}, parallelism=1)

    restored = restore(job, Latest(), configuration=configuration).state
    retimed = retime(job, NewTimes(min_pause=SECOND), by="ada")
    reset = retime(job, NewTimes(resets=True), by="bob")
    stop(job, JobStatus.CANCELED)
    submitted = submit(job, configuration)

    assert (restored.timing.is_paused, restored.timing.timeout_ms) == (True, 7_000)
    assert (retimed.timing.timeout_ms, retimed.min_pause_ms) == (7_000, 1_000)
    assert (reset.timing.is_paused, reset.timing.timeout_ms, reset.min_pause_ms) == (True, None, 0)
    assert submitted.timing == Timing()


def test_a_job_that_has_ended_takes_no_change_and_a_suspended_one_does() -> None:
    job = a_running_job()
    stop(job, JobStatus.SUSPENDED)
    assert pause(job, by="ada").timing.is_paused
    stop(job, JobStatus.CANCELED)

    with pytest.raises(ConfigurationError, match="is CANCELED: it takes no checkpoints any more"):
        resume(job, by="ada")
    with pytest.raises(ConfigurationError, match="was never submitted"):
        pause(a_job(), by="ada")


def test_a_change_has_the_limits_of_a_declaration() -> None:
    with pytest.raises(ConfigurationError, match="checkpointing timeout"):
        NewTimes(timeout=timedelta(0))
    with pytest.raises(ConfigurationError, match="checkpointing interval"):
        NewTimes(interval=timedelta(0))
    with pytest.raises(ConfigurationError, match="checkpointing min_pause"):
        NewTimes(min_pause=-SECOND)
    with pytest.raises(ConfigurationError, match="tolerable_failed_checkpoints"):
        NewTimes(tolerable_failed_checkpoints=-1)


def test_a_backlog_and_a_changed_interval_hold_back_each_for_itself() -> None:
    job = a_running_job(a_pipeline(interval_during_backlog=timedelta(minutes=1)))
    retime(job, NewTimes(interval=SECOND), by="ada")
    take_checkpoint(job)

    assert isinstance(trigger(job), NotTriggered)
