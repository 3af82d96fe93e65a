"""Requests that a person makes where no stage can run, and the hosts that take them up; and a job
whose checkpointing a person pauses, resumes, or gives other times.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from harness.jobs import ONE, STAGES, ManualClock, a_job, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
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
from sluice.coordinator.trigger import NotDue, Queued, Triggered, trigger
from sluice.core.configuration import CheckpointType, JobStatus, Timing
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId, SavepointId
from sluice.core.restoring import Latest
from sluice.errors import ConfigurationError
from sluice.figures.overview import Details
from sluice.job.job import Job
from sluice.surface.checkpoints import details
from sluice.surface.journal import RequestStatus, last_host, request_progress
from tests.in_flight import an_unaligned_job
from tests.subtasks import a_savepoint, acknowledge, carry_out, state_records, take_checkpoint

SAVEPOINT = CheckpointType.SAVEPOINT
NOW = UserRequest(by="ada")


def a_named(name: str = "mine", type: CheckpointType = SAVEPOINT) -> UserRequest:  # noqa: A002
    return UserRequest(by="ada", type=type, name=name)


def progress_of(job: Job, request_id: str) -> tuple[RequestStatus, int | None]:
    told = request_progress(job, request_id)
    return told.status, told.checkpoint


def test_a_host_takes_the_request_up_in_the_place_of_its_own() -> None:
    job = a_running_job()
    asked = request_checkpoint(job, a_named())
    waits = progress_of(job, asked.request_id)

    outcome = trigger(job, cause="airflow:auctions/1", request_id="periodic")

    assert waits == (RequestStatus.WAITING, None)
    assert isinstance(outcome, Triggered)
    assert outcome.is_adopted
    assert (outcome.plan.type, outcome.plan.cause) == (SAVEPOINT, "airflow:auctions/1")
    assert (job.state().queue, job.state().pending[0].savepoint_name) == ((), "mine")
    assert progress_of(job, asked.request_id) == (RequestStatus.IN_PROGRESS, 1)
    carry_out(job, outcome.plan)
    assert progress_of(job, asked.request_id) == (RequestStatus.COMPLETED, 1)
    assert job.savepoint_metadata("mine").checkpoint_id == 1


def test_a_checkpoint_now_needs_no_new_records_and_no_pause() -> None:
    job = a_running_job(a_pipeline(min_pause=timedelta(minutes=1)))
    take_checkpoint(job)
    assert isinstance(trigger(job), NotDue)

    request_checkpoint(job, NOW)

    assert isinstance(trigger(job), Triggered)


def test_a_request_waits_for_the_checkpoint_before_it() -> None:
    job = a_running_job()
    first = trigger_one(job)
    asked = request_checkpoint(job, NOW)

    queued = trigger(job, request_id="periodic")
    carry_out(job, first)
    outcome = trigger(job, request_id="periodic")

    assert isinstance(queued, Queued)
    assert isinstance(outcome, Triggered)
    assert outcome.is_adopted
    # The host's own request was queued as well; it would hold up those behind it.
    assert job.state().queue == ()
    assert progress_of(job, asked.request_id) == (RequestStatus.IN_PROGRESS, 2)


def test_a_full_checkpoint_shares_no_file_with_those_before_it_and_those_behind_share_its() -> None:
    job = a_running_job(a_pipeline(num_retained=3))
    before = take_checkpoint(job)
    request_checkpoint(job, UserRequest(by="ada", is_full=True))

    full = take_checkpoint(job)
    behind = take_checkpoint(job)

    first, second, third = (
        {handle.key for handle in job.metadata(one).files} for one in (before, full, behind)
    )
    assert first
    assert not first & second
    assert second & third
    assert state_records(job, job.metadata(full), STAGES[0]) == list(range(20))


def test_only_a_checkpoint_is_asked_for_in_full() -> None:
    with pytest.raises(ConfigurationError, match="a savepoint is always full; ask for"):
        UserRequest(by="ada", type=SAVEPOINT, name="mine", is_full=True)


@pytest.mark.parametrize(
    "request_", [NOW, a_named(), a_named(type=CheckpointType.SAVEPOINT_SUSPEND)]
)
def test_a_forced_request_does_not_wait_for_the_checkpoint_before_it(request_: UserRequest) -> None:
    job = a_running_job()
    first = trigger_one(job)
    request_checkpoint(job, replace(request_, is_forced=True))

    outcome = trigger(job, request_id="periodic")

    assert isinstance(outcome, Triggered)
    assert (outcome.plan.parent, outcome.is_adopted) == (first.checkpoint_id, True)
    carry_out(job, first)
    carry_out(job, outcome.plan)
    assert len(job.state().completed) == 2


def test_unaligned_checkpoints_do_not_overlap_so_none_is_forced() -> None:
    job = an_unaligned_job()
    trigger_one(job)

    asked = request_checkpoint(job, UserRequest(by="ada", is_forced=True))

    assert not asked.is_forced
    assert isinstance(trigger(job), Queued)


def test_a_request_for_a_savepoint_of_its_own_takes_up_no_other() -> None:
    job = a_running_job()
    asked = request_checkpoint(job, NOW)

    outcome = trigger(job, type=SAVEPOINT, savepoint_name="other", is_periodic=False)

    assert isinstance(outcome, Triggered)
    assert (outcome.is_adopted, outcome.plan.type) == (False, SAVEPOINT)
    assert progress_of(job, asked.request_id)[0] is RequestStatus.WAITING


def test_only_the_host_that_was_faster_gets_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(max_concurrent_checkpoints=2))
    request_checkpoint(job, NOW)
    seen, load = [job.journal.load()], job.journal.load
    first = trigger(job, cause="airflow:auctions/1")

    monkeypatch.setattr(job.journal, "load", lambda **_: seen.pop() if seen else load())
    second = trigger(job, cause="airflow:auctions/2")

    assert isinstance(first, Triggered)
    assert isinstance(second, Triggered)
    assert (first.is_adopted, second.is_adopted) == (True, False)
    assert [pending.cause for pending in job.state().pending] == [
        "airflow:auctions/1",
        "airflow:auctions/2",
    ]


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_checkpoint_that_completes_while_one_looks_has_ended_once_it_is_published(
    monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    job = a_running_job()
    asked = request_checkpoint(job, a_named())
    outcome = trigger(job)
    assert isinstance(outcome, Triggered)

    def completed_meanwhile(job: Job, checkpoint_id: CheckpointId) -> Details:
        acknowledge(job, outcome.plan)
        finalize(job, checkpoint_id)
        if is_committed:
            commit(job, checkpoint_id)
        return details(job, checkpoint_id)

    monkeypatch.setattr("sluice.surface.journal.details", completed_meanwhile)
    told = request_progress(job, asked.request_id)

    assert told.savepoint == "mine"
    assert told.has_ended is is_committed


def test_what_no_host_takes_up_expires_and_holds_up_nothing() -> None:
    clock = ManualClock()
    job = a_running_job(clock=clock)
    asked = request_checkpoint(job, UserRequest(by="ada", waits=timedelta(seconds=5)))
    clock.advance(5_000)

    told = request_progress(job, asked.request_id)
    outcome = trigger(job)

    assert (told.status, told.reason) == (RequestStatus.REJECTED, "CHECKPOINT_EXPIRED")
    assert isinstance(outcome, Triggered)
    assert not outcome.is_adopted


def test_a_stop_takes_its_savepoint_and_suspends_the_job() -> None:
    job = a_running_job()
    asked = request_checkpoint(job, a_named("last", CheckpointType.SAVEPOINT_SUSPEND))

    outcome = trigger(job)
    assert isinstance(outcome, Triggered)
    carry_out(job, outcome.plan)

    assert job.state().status is JobStatus.SUSPENDED
    assert job.savepoint_metadata("last").checkpoint_id == 1
    assert progress_of(job, asked.request_id) == (RequestStatus.COMPLETED, 1)


def test_a_name_that_was_taken_meanwhile_ends_the_request_and_not_the_host() -> None:
    job = a_running_job()
    first = trigger_one(job)
    asked = request_checkpoint(job, a_named())
    carry_out(job, first)
    job.savepoints.reserve(SavepointId("mine", "theirs"), CheckpointId(9))

    outcome = trigger(job)

    assert isinstance(outcome, Triggered)
    assert not outcome.is_adopted
    assert request_progress(job, asked.request_id).reason == "TRIGGER_CHECKPOINT_FAILURE"


def test_an_abort_of_what_it_became_is_told() -> None:
    job = a_running_job()
    asked = request_checkpoint(job, NOW)
    trigger(job)
    fail_checkpoint(job, ONE, Reason.CHECKPOINT_EXPIRED, "late")

    told = request_progress(job, asked.request_id)

    assert (told.status, told.checkpoint) == (RequestStatus.FAILED, 1)
    assert (told.reason, told.message) == ("CHECKPOINT_EXPIRED", "late")


def test_what_cannot_be_asked_for_is_refused_before_it_is_queued() -> None:
    job = a_running_job()
    a_savepoint(job)
    before = job.state()

    with pytest.raises(ConfigurationError, match="savepoint 'mine' exists"):
        request_checkpoint(job, a_named())
    with pytest.raises(ConfigurationError, match="was never submitted"):
        request_checkpoint(a_job(), NOW)
    with pytest.raises(
        ConfigurationError, match="a savepoint needs a name, and a checkpoint takes none"
    ):
        UserRequest(by="ada", name="mine")
    with pytest.raises(ConfigurationError, match="a checkpoint has no format"):
        UserRequest(by="ada", is_canonical=True)
    with pytest.raises(ConfigurationError, match="waits is 0; use 1 s or more"):
        UserRequest(by="ada", waits=timedelta(0))
    assert job.state() == before
    stop(job, JobStatus.SUSPENDED)
    with pytest.raises(ConfigurationError, match="is SUSPENDED; 'sluice restore auctions' lets it"):
        request_checkpoint(job, NOW)


def test_requests_wait_for_one_another_in_their_order_and_name_the_last_host() -> None:
    job = a_running_job()
    for number in range(3):
        request_checkpoint(job, a_named(f"s{number}"))
    state = job.state()

    assert [queued.savepoint_name for queued in state.queue] == ["s0", "s1", "s2"]
    assert last_host(state) is None
    take_checkpoint(job, cause="sluice run")
    assert [queued.savepoint_name for queued in job.state().queue] == ["s1", "s2"]
    host = last_host(job.state())
    assert host is not None
    assert (host.cause, host.checkpoint) == ("sluice run", 1)


SECOND = timedelta(seconds=1)


def test_a_paused_job_takes_no_periodic_checkpoint_and_every_other_one() -> None:
    job = a_running_job()
    state = pause(job, by="ada")

    dropped = trigger(job)
    by_hand = take_checkpoint(job, is_periodic=False)
    request_checkpoint(job, UserRequest(by="ada"))
    adopted = trigger(job)

    assert dropped == NotDue(
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

    assert isinstance(trigger(job, request_id="periodic"), NotDue)
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

    assert early == NotDue(
        reason=Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
        message="the interval was changed to 1 min 40 s, and lasts 11.0 s more",
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
    assert isinstance(paused, NotDue)
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
    with pytest.raises(ConfigurationError, match="timeout is 0; use 10 ms or more"):
        NewTimes(timeout=timedelta(0))
    with pytest.raises(ConfigurationError, match="interval is 0; use 10 ms or more"):
        NewTimes(interval=timedelta(0))
    with pytest.raises(ConfigurationError, match="min_pause is -1 s; use 0 or more"):
        NewTimes(min_pause=-SECOND)
    with pytest.raises(ConfigurationError, match="tolerable_failed_checkpoints"):
        NewTimes(tolerable_failed_checkpoints=-1)


def test_a_backlog_and_a_changed_interval_hold_back_each_for_itself() -> None:
    job = a_running_job(a_pipeline(interval_during_backlog=timedelta(minutes=1)))
    retime(job, NewTimes(interval=SECOND), by="ada")
    take_checkpoint(job)

    assert isinstance(trigger(job), NotDue)
