"""A pause, changed times and requests that await a host, as the pure core decides them."""

from __future__ import annotations

from sluice.core.configuration import JobStatus
from sluice.core.coordinator import step
from sluice.core.events import Verdict
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.requests import Admission, adopted, examine
from sluice.core.state import CoordinatorState
from tests.builders import a_request, a_submitted, after, stopped, triggered
from tests.core_events import a_periodic, requested, retimed


def reason_of(state: CoordinatorState, now_ms: int) -> tuple[Reason | None, int | None]:
    examined = examine(state, a_periodic(requested_at_ms=now_ms), now_ms)
    return examined.reason, examined.retry_in_ms


def test_a_pause_drops_what_is_periodic_and_says_who_paused() -> None:
    by_ada = after(a_submitted(), retimed(is_paused=True, changed_by="ada"))
    unnamed = after(a_submitted(), retimed(is_paused=True))

    assert reason_of(by_ada, 3_000) == (Reason.PERIODIC_SCHEDULER_SHUTDOWN, 1_000)
    assert "paused by ada;" in examine(by_ada, a_periodic(), 3_000).message
    assert "is paused; resume" in examine(unnamed, a_periodic(), 3_000).message
    assert examine(by_ada, a_request("mine"), 3_000).standing is Admission.RUNS


def test_a_changed_interval_holds_back_until_a_tenth_before_its_end() -> None:
    state = after(a_submitted(), triggered(1, triggered_at_ms=1_000), retimed(interval_ms=1_000))

    assert reason_of(state, 1_800) == (Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS, 200)
    assert reason_of(state, 1_900)[0] is None


def test_what_is_in_force_is_what_was_retimed() -> None:
    before = after(a_submitted())
    state = after(a_submitted(), retimed(min_pause_ms=300, tolerable_failed_checkpoints=2))

    assert (before.min_pause_ms, before.tolerable_failed_checkpoints) == (0, 0)
    assert (state.min_pause_ms, state.tolerable_failed_checkpoints) == (300, 2)


def test_the_same_change_is_ignored_and_a_job_that_has_ended_takes_none() -> None:
    state = after(a_submitted(), retimed(is_paused=True))
    ended = after(a_submitted(), stopped(JobStatus.CANCELED))
    suspended = after(a_submitted(), stopped(JobStatus.SUSPENDED))

    assert step(state, retimed(is_paused=True)).verdict is Verdict.IGNORED
    assert step(ended, retimed(is_paused=True)).verdict is Verdict.REFUSED
    assert step(suspended, retimed(is_paused=True)).verdict is Verdict.APPLIED


def test_a_request_that_awaits_a_host_is_queued_though_it_could_start_and_adopted() -> None:
    asked = a_request("theirs", awaits_a_host=True, expires_at_ms=9_000)
    free = after(a_submitted(), requested(asked))
    busy = after(a_submitted(), triggered(1), requested(asked))
    owned = after(a_submitted(), triggered(1), requested(a_request("mine")))

    found = adopted(free, 2_000, cause="a run")

    assert free.queue == (asked,)
    assert found is not None
    assert (found.request_id, found.cause) == ("theirs", "a run")
    assert adopted(busy, 2_000, cause="a run") is None
    assert adopted(owned, 2_000, cause="a run") is None
    assert adopted(free, 9_000, cause="a run") is None
