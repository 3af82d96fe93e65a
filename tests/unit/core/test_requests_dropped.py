"""Requests that will never run: the pause, the backlog, a full queue, a dead owner, a failure."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.coordinator import step
from sluice.core.decider import CheckpointRequest
from sluice.core.events import Verdict
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.requests import Admission, Examination, examine
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.state import CoordinatorState, RejectedRequest
from tests.builders import (
    a_checkpoint,
    a_request,
    a_submitted,
    after,
    committed,
    completed,
    restored,
    stopped,
    submitted,
    triggered,
)
from tests.core_events import a_periodic, requested, trigger_failed, with_backlog

ONCE = RestartStrategy(type=RestartType.FIXED_DELAY, attempts=1, delay_ms=500)
PAUSE = Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
SAVEPOINT = CheckpointType.SAVEPOINT


def a_completed(at_ms: int, **configuration: Any) -> CoordinatorState:
    return after(
        a_submitted(**configuration), triggered(1), completed(1, at_ms=at_ms), committed(1)
    )


def a_backlog(**configuration: Any) -> CoordinatorState:
    """A checkpoint triggered at 1,000 left records behind; during backlog they are 500 ms apart."""
    given = {"interval_during_backlog_ms": 500, "max_concurrent": 2} | configuration
    return after(a_submitted(**given), triggered(1, sources=with_backlog()))


def is_rejected(state: CoordinatorState, request: CheckpointRequest, now_ms: int) -> bool:
    return examine(state, request, now_ms).standing is Admission.REJECTED


def test_the_pause_drops_a_periodic_request_and_says_when_to_repeat_it() -> None:
    state = a_completed(at_ms=3_000, min_pause_ms=100)

    assert examine(state, a_periodic(), 3_060) == Examination(
        standing=Admission.REJECTED,
        after=state,
        reason=PAUSE,
        message="min_pause lasts 40 ms more",
        retry_in_ms=40,
    )
    assert not is_rejected(state, a_periodic(), 3_100)
    assert not is_rejected(state, a_request(), 3_060)
    assert not is_rejected(state, a_periodic(is_forced=True), 3_060)


def test_the_backlog_interval_drops_a_periodic_request_and_says_when_to_repeat_it() -> None:
    state = a_backlog()

    assert examine(state, a_periodic(), 1_200) == Examination(
        standing=Admission.REJECTED,
        after=state,
        reason=PAUSE,
        message="a source processes its backlog; its interval lasts 300 ms more",
        retry_in_ms=300,
    )
    assert not is_rejected(state, a_periodic(), 1_500)
    assert not is_rejected(state, a_request(), 1_200)
    assert not is_rejected(state, a_periodic(is_forced=True), 1_200)


def test_force_means_nothing_to_an_unaligned_checkpoint() -> None:
    state = a_backlog(unaligned=True, max_concurrent=1)

    assert is_rejected(state, a_periodic(is_forced=True), 1_200)


@pytest.mark.parametrize(
    "state",
    [
        after(a_submitted(), triggered(1, sources=with_backlog())),
        after(a_submitted(interval_during_backlog_ms=500), triggered(1)),
        after(a_submitted(interval_during_backlog_ms=500)),
        after(a_backlog(), restored(None)),
        after(a_backlog(), triggered(2, parent=1, triggered_at_ms=1_100)),
    ],
    ids=["no such interval", "no backlog", "nothing yet", "restored", "caught up"],
)
def test_without_a_backlog_its_interval_holds_back_nothing(state: CoordinatorState) -> None:
    assert not is_rejected(state, a_periodic(), 1_200)


def test_a_queued_request_that_the_backlog_drops_leaves_the_queue() -> None:
    request = a_periodic("late", requested_at_ms=0)
    state = after(
        a_submitted(interval_during_backlog_ms=500), triggered(1), requested(request), completed(1)
    )
    state = after(state, triggered(2, parent=1, sources=with_backlog(), triggered_at_ms=1_000))

    transition = step(state, requested(request, at_ms=1_100))

    assert transition.verdict is Verdict.APPLIED
    assert transition.state.queue == ()
    assert transition.state.rejection("late") is PAUSE


def test_a_clock_that_went_back_holds_nothing_up() -> None:
    paused = a_completed(at_ms=90_000, min_pause_ms=100)
    backlog = a_backlog()

    assert not is_rejected(paused, a_periodic(), 3_000)
    assert not is_rejected(backlog, a_periodic(), 999)


def test_a_full_queue_drops_its_lowest_and_remembers_why() -> None:
    state = after(a_submitted(max_queued=1), triggered(1), requested(a_periodic("lowest")))

    state = after(state, requested(a_request("newcomer")))

    assert [request.request_id for request in state.queue] == ["newcomer"]
    assert state.rejected == (
        RejectedRequest(request_id="lowest", reason=Reason.TOO_MANY_CHECKPOINT_REQUESTS),
    )


def test_a_newcomer_that_the_full_queue_drops_is_told_at_once_and_forgotten() -> None:
    state = after(a_submitted(max_queued=1), triggered(1), requested(a_request("person")))

    transition = step(state, requested(a_request("newcomer")))

    assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)
    examined = examine(state, a_request("newcomer"), 1_000)
    assert examined.reason is Reason.TOO_MANY_CHECKPOINT_REQUESTS
    assert examined.message == "1 requests are queued"


def test_a_queued_request_whose_owner_may_be_dead_expires_when_anybody_asks() -> None:
    mortal = a_request("mortal", expires_at_ms=2_000)
    state = after(a_submitted(), triggered(1), requested(mortal))

    state = after(state, requested(a_request("other"), at_ms=2_000))

    assert [request.request_id for request in state.queue] == ["other"]
    assert state.rejection("mortal") is Reason.CHECKPOINT_EXPIRED


def test_who_comes_back_too_late_is_told_so() -> None:
    mortal, other = a_request("mortal", expires_at_ms=2_000), a_periodic("other")
    state = after(a_submitted(), triggered(1), requested(mortal), requested(other), completed(1))

    examined = examine(state, mortal, 2_000)

    assert (examined.standing, examined.reason) == (Admission.REJECTED, Reason.CHECKPOINT_EXPIRED)
    assert (examined.message, examined.retry_in_ms) == ("it waited too long", None)
    assert examined.head == other
    transition = step(state, requested(mortal, at_ms=2_000))
    assert examine(transition.state, other, 2_000).head == other


def test_the_owner_of_a_rejected_request_hears_the_reason_as_often_as_it_asks() -> None:
    request = a_request("mine")
    state = after(a_submitted(), triggered(1), requested(request), stopped(JobStatus.SUSPENDED))
    resumed = after(state, restored(None))
    anew = after(state, submitted(generation=2))

    for job in (state, resumed, anew):
        assert examine(job, request, 1_000) == Examination(
            standing=Admission.REJECTED,
            after=job,
            reason=Reason.CHECKPOINT_COORDINATOR_SUSPEND,
            message="it was rejected while it waited",
        )


def test_a_failed_trigger_answers_its_queued_request() -> None:
    mine, other = a_request("mine"), a_request("other")
    state = after(a_submitted(), triggered(1), requested(mine), requested(other))

    transition = step(state, trigger_failed(mine, Reason.TRIGGER_CHECKPOINT_FAILURE))

    assert transition.verdict is Verdict.APPLIED
    assert transition.state.queue == (other,)
    assert transition.state.rejection("mine") is Reason.TRIGGER_CHECKPOINT_FAILURE
    assert transition.state.failure_count == state.failure_count


def test_a_failed_trigger_that_counts_for_nothing_and_waits_nowhere_is_ignored() -> None:
    state = a_submitted()

    transition = step(state, trigger_failed(a_request(), Reason.TRIGGER_CHECKPOINT_FAILURE))

    assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)


def test_triggers_that_fail_for_io_count_though_they_have_no_id() -> None:
    state = a_submitted(tolerable_failed_checkpoints=2, restart=ONCE)

    state = after(state, *[trigger_failed(a_periodic(f"p{n}")) for n in range(2)])
    assert (state.status, state.failure_count.continuous) == (JobStatus.RUNNING, 2)
    assert state.failure_count.counted_ids == (-1, -1)

    transition = step(state, trigger_failed(a_periodic(), at_ms=10_000))

    assert transition.state.status is JobStatus.RESTARTING
    assert (transition.commands, transition.state.restart_at_ms) == ((), 10_500)


def test_a_savepoint_whose_trigger_failed_does_not_count() -> None:
    state = a_submitted()

    transition = step(state, trigger_failed(a_request(type=SAVEPOINT)))

    assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)


def test_a_trigger_that_failed_after_the_job_ended_does_not_fail_it_over() -> None:
    state = after(a_submitted(), *a_checkpoint(1), stopped(JobStatus.SUSPENDED))

    transition = step(state, trigger_failed(a_periodic()))

    assert transition.commands == ()
    assert transition.state.status is JobStatus.SUSPENDED
