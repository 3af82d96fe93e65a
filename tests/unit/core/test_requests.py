"""Requests for checkpoints: started, queued, rejected with a reason for their owners, or adopted.

They are rejected for a pause, the backlog, a changed interval, a full queue, a dead owner, or a
failed trigger.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.coordinator import step
from sluice.core.decider import CheckpointRequest
from sluice.core.events import Event, Verdict
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import SnapshotOrigin
from sluice.core.requests import Admission, Examination, adopted, examine
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.state import (
    REMEMBERED_REJECTIONS,
    CoordinatorState,
    RejectedRequest,
    UnsuccessfulTrigger,
)
from sluice.core.tables import TableDecision
from tests.builders import (
    a_checkpoint,
    a_plan,
    a_request,
    a_submitted,
    after,
    committed,
    completed,
    failed,
    ids_of,
    restored,
    stopped,
    submitted,
    triggered,
)
from tests.core_events import (
    a_periodic,
    hooks_restored,
    requested,
    retimed,
    trigger_failed,
    triggered_by,
    with_backlog,
    withdrawn,
)

BACKLOG = with_backlog()
SUSPEND = CheckpointType.SAVEPOINT_SUSPEND
TERMINATE = CheckpointType.SAVEPOINT_TERMINATE


def a_busy(**configuration: Any) -> CoordinatorState:
    """Checkpoint 1 is pending, and no other may be."""
    return after(a_submitted(**configuration), triggered(1))


def queued(state: CoordinatorState) -> list[str]:
    return [request.request_id for request in state.queue]


def admission(
    state: CoordinatorState, request: CheckpointRequest, now_ms: int = 1_000
) -> Admission:
    return examine(state, request, now_ms).admission


def test_a_request_of_an_idle_job_runs_and_changes_nothing_yet() -> None:
    request, state = a_request(), a_submitted()

    transition = step(state, requested(request))

    assert examine(state, request, 1_000).admission is Admission.RUNS
    assert transition.commands == ()
    assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)


def test_a_request_that_cannot_start_waits_in_the_queue() -> None:
    request = a_request("mine")

    transition = step(a_busy(), requested(request))

    assert (transition.verdict, transition.commands) == (Verdict.APPLIED, ())
    assert transition.state.queue == (request,)


def test_asking_again_merely_asks_again() -> None:
    waiting = after(a_busy(), requested(a_request("mine")))

    transition = step(waiting, requested(a_request("mine", requested_at_ms=9_000), at_ms=9_000))

    assert (transition.verdict, transition.state) == (Verdict.IGNORED, waiting)


def test_who_waited_is_told_to_trigger_once_there_is_room_and_keeps_its_place_until_then() -> None:
    request, equal = a_request("mine"), a_request("equal")
    state = after(a_busy(), requested(request), requested(equal), completed(1))

    transition = step(state, requested(request))

    assert examine(transition.state, request, 1_000).head == request
    assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)
    trigger = triggered_by(request, a_plan(2, parent=1))
    assert step(transition.state, trigger).verdict is Verdict.APPLIED


def test_who_asks_too_early_learns_who_is_before_it() -> None:
    first, second = a_request("first"), a_periodic("second")
    state = after(a_busy(), requested(second), requested(first), completed(1))

    transition = step(state, requested(second))

    assert transition.commands == ()
    assert (transition.verdict, queued(transition.state)) == (Verdict.IGNORED, ["first", "second"])
    examined = examine(state, second, 1_000)
    assert (examined.admission, examined.head) == (Admission.WAITS, first)
    assert examined.message == "another request is before it"


def test_a_trigger_takes_its_own_request_from_the_queue_and_leaves_the_others() -> None:
    mine, other = a_request("mine"), a_periodic("other")
    state = after(a_busy(), requested(mine), requested(other), completed(1))

    state = after(state, triggered_by(mine, a_plan(2, parent=1)))

    assert queued(state) == ["other"]
    assert state.pending[0].request_id == "mine"


def test_a_checkpoint_is_found_by_the_request_it_became() -> None:
    request = a_request("mine", savepoint_name="s", type=CheckpointType.SAVEPOINT)
    state = after(
        a_submitted(max_concurrent=2), triggered_by(request, a_plan(1, type=request.type))
    )

    triggered_again = step(state, triggered_by(request, a_plan(2, parent=1, type=request.type)))
    asked_again = step(state, requested(request))

    assert (state.pending[0].request_id, state.pending[0].savepoint_name) == ("mine", "s")
    for transition in (triggered_again, asked_again):
        assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)
        assert transition.commands == ()


@pytest.mark.parametrize(
    ("history", "event"),
    [
        ([triggered(1)], triggered(2, parent=1)),
        ([*a_checkpoint(1)], triggered(2, parent=None)),
        ([*a_checkpoint(1)], triggered(1)),
        ([restored(7, generation=2, savepoint="s")], triggered(8, parent=7, generation=2)),
        ([failed(1), triggered(1), failed(1, is_task_failure=True)], triggered(2)),
        ([stopped(JobStatus.SUSPENDED)], triggered(1)),
        ([stopped(JobStatus.CANCELED)], triggered(1)),
        ([restored(None, has_hooks=True)], triggered(1, generation=2)),
        ([restored(None, tables=TableDecision(newest=1))], triggered(1, generation=2)),
    ],
    ids=["one is pending", "stale parent", "used id", "stale origin", "restarting", "suspended",
         "canceled", "hooks", "tables"],
)  # fmt: skip
def test_a_trigger_that_another_coordinator_overtook_is_refused(
    history: list[Event], event: Event
) -> None:
    before = after(a_submitted(), *history)

    transition = step(before, event)

    assert (transition.verdict, transition.state) == (Verdict.REFUSED, before)
    assert transition.commands == ()


def test_a_plan_of_another_generation_than_its_author_is_refused() -> None:
    event = replace(triggered(1), plan=a_plan(1, generation=2))

    assert step(a_submitted(), event).verdict is Verdict.REFUSED


def test_a_plan_may_skip_ids_but_never_go_back() -> None:
    state = after(a_submitted(), triggered(5), failed(5, Reason.JOB_FAILOVER_REGION))

    assert state.next_checkpoint_id == 6
    assert step(state, triggered(5)).verdict is Verdict.REFUSED
    assert step(state, triggered(6)).verdict is Verdict.APPLIED


def test_concurrent_checkpoints_continue_one_another() -> None:
    state = after(a_submitted(max_concurrent=2), triggered(1))

    assert step(state, triggered(2, parent=None)).verdict is Verdict.REFUSED
    state = after(state, triggered(2, parent=1))

    assert [pending.parent for pending in state.pending] == [None, 1]
    assert state.tip == 2
    assert step(state, triggered(3, parent=2)).verdict is Verdict.REFUSED


def test_only_the_first_checkpoint_after_a_restore_names_its_origin() -> None:
    origin = SnapshotOrigin(checkpoint_id=CheckpointId(7), savepoint="s")
    state = after(a_submitted(max_concurrent=2), restored(7, savepoint="s"))

    state = after(state, triggered(8, parent=7, generation=2, origin=origin))

    assert step(state, triggered(9, parent=8, generation=2, origin=origin)).verdict is (
        Verdict.REFUSED
    )
    assert step(state, triggered(9, parent=8, generation=2)).verdict is Verdict.APPLIED


def test_nothing_is_triggered_before_the_hooks_are_restored() -> None:
    state = after(a_submitted(), restored(None, has_hooks=True))

    state = after(state, hooks_restored())

    assert step(state, triggered(1, generation=2)).verdict is Verdict.APPLIED


@pytest.mark.parametrize("is_forced", [False, True])
def test_only_a_forced_request_ignores_the_limit(is_forced: bool) -> None:
    request = a_request(is_forced=is_forced)

    assert admission(a_busy(), request) is (Admission.RUNS if is_forced else Admission.WAITS)


def test_nobody_can_force_an_unaligned_checkpoint_to_overlap_another() -> None:
    state, request = a_busy(unaligned=True), a_request(is_forced=True)

    state = after(state, requested(request))

    assert state.queue == (replace(request, is_forced=False),)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (a_periodic(), Reason.PERIODIC_SCHEDULER_SHUTDOWN),
        (a_request(), Reason.NOT_ALL_REQUIRED_TASKS_RUNNING),
    ],
)
def test_a_job_that_does_not_run_rejects(request_: CheckpointRequest, reason: Reason) -> None:
    state = after(a_submitted(), triggered(1), failed(1))
    assert state.status is JobStatus.RESTARTING

    examined = examine(state, request_, 1_000)

    assert examined == Examination(
        admission=Admission.REJECTED, after=state, reason=reason, message="the job is RESTARTING"
    )


@pytest.mark.parametrize("plan", [{"type": SUSPEND}, {"type": TERMINATE}, {"drains": True}])
def test_a_checkpoint_that_ends_the_job_holds_back_everything(plan: dict[str, Any]) -> None:
    state = after(a_submitted(max_concurrent=9), triggered(1, **plan))
    forced = a_request(is_forced=True, type=CheckpointType.SAVEPOINT)

    assert admission(state, forced) is Admission.WAITS
    assert examine(state, forced, 1_000).message == "checkpoint 1 is still pending"
    state = after(state, requested(forced), failed(1, Reason.JOB_FAILOVER_REGION))
    assert admission(state, forced) is Admission.RUNS


def test_a_savepoint_that_does_not_stop_the_job_holds_back_nothing() -> None:
    state = after(a_submitted(max_concurrent=2), triggered(1, type=CheckpointType.SAVEPOINT))

    assert admission(state, a_request()) is Admission.RUNS


def test_more_deletions_than_concurrent_checkpoints_hold_back_everything() -> None:
    history = [event for n in (1, 2, 3) for event in a_checkpoint(n, n - 1 or None)]
    state = after(a_submitted(num_retained=1), *history)
    assert ids_of(state.discarding) == [1, 2]

    examined = examine(state, a_request(is_forced=True), 1_000)

    assert examined.admission is Admission.WAITS
    assert examined.message == "2 subsumed checkpoints are still being deleted"


def test_rejections_are_remembered_in_a_bounded_number() -> None:
    state = a_busy(max_queued=2 * REMEMBERED_REJECTIONS)
    for number in range(REMEMBERED_REJECTIONS + 2):
        state = after(state, requested(a_request(f"r-{number}")))

    state = after(state, stopped(JobStatus.CANCELED))

    assert len(state.rejected) == REMEMBERED_REJECTIONS
    assert state.rejection("r-1") is None
    assert state.rejection("r-2") is Reason.CHECKPOINT_COORDINATOR_SUSPEND


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
    return examine(state, request, now_ms).admission is Admission.REJECTED


@pytest.mark.parametrize(
    ("state", "now_ms", "rest_ms", "message"),
    [
        (a_completed(at_ms=3_000, min_pause_ms=100), 3_060, 40, "min_pause lasts 40 ms more"),
        (a_backlog(), 1_200, 300, "a source processes its backlog; its interval lasts 300 ms more"),
    ],
    ids=["min_pause", "backlog"],
)
def test_a_pause_drops_a_periodic_request_and_says_when_to_repeat_it(
    state: CoordinatorState, now_ms: int, rest_ms: int, message: str
) -> None:
    assert examine(state, a_periodic(), now_ms) == Examination(
        admission=Admission.REJECTED,
        after=state,
        reason=PAUSE,
        message=message,
        retry_in_ms=rest_ms,
    )
    assert not is_rejected(state, a_periodic(), now_ms + rest_ms)
    assert not is_rejected(state, a_request(), now_ms)
    assert not is_rejected(state, a_periodic(is_forced=True), now_ms)


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


def test_a_queued_request_that_the_pause_drops_was_refused_by_nobody() -> None:
    request = a_periodic("late", requested_at_ms=0)
    state = after(
        a_submitted(min_pause_ms=9_000), triggered(1), requested(request), completed(1), committed()
    )

    state = after(state, requested(a_periodic("other"), at_ms=3_100))

    assert queued(state) == ["other"]
    assert state.rejection("late") is PAUSE
    assert state.unsuccessful_triggers == ()


def test_a_clock_that_went_back_holds_nothing_up() -> None:
    paused = a_completed(at_ms=90_000, min_pause_ms=100)
    backlog = a_backlog()

    assert not is_rejected(paused, a_periodic(), 3_000)
    assert not is_rejected(backlog, a_periodic(), 999)


def test_a_full_queue_drops_its_lowest_and_remembers_why() -> None:
    state = after(a_submitted(max_queued=1), triggered(1), requested(a_periodic("lowest")))

    state = after(state, requested(a_request("newcomer")))

    assert queued(state) == ["newcomer"]
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

    assert queued(state) == ["other"]
    assert state.rejection("mortal") is Reason.CHECKPOINT_EXPIRED


def test_who_comes_back_too_late_is_told_so() -> None:
    mortal, other = a_request("mortal", expires_at_ms=2_000), a_periodic("other")
    state = after(a_submitted(), triggered(1), requested(mortal), requested(other), completed(1))

    examined = examine(state, mortal, 2_000)

    assert (examined.admission, examined.reason) == (Admission.REJECTED, Reason.CHECKPOINT_EXPIRED)
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
            admission=Admission.REJECTED,
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


def test_a_failed_trigger_that_counts_for_nothing_and_waits_nowhere_is_remembered() -> None:
    state = a_submitted()

    transition = step(state, trigger_failed(a_periodic(), Reason.TRIGGER_CHECKPOINT_FAILURE))

    unsuccessful = UnsuccessfulTrigger(
        failed_at_ms=2_000,
        type=CheckpointType.CHECKPOINT,
        reason=Reason.TRIGGER_CHECKPOINT_FAILURE,
        message="no",
    )
    assert transition.verdict is Verdict.APPLIED
    assert transition.state == replace(
        state, unsuccessful_triggers=(unsuccessful,), num_unsuccessful_triggers=1
    )


def test_failed_triggers_count_in_a_row_and_a_triggered_one_ends_it() -> None:
    """Flink's numUnsuccessfulCheckpointsTriggers."""
    failed = trigger_failed(a_periodic(), Reason.TRIGGER_CHECKPOINT_FAILURE)

    thrice = after(a_submitted(), *[failed] * 3)
    goes_on = after(thrice, triggered(1))

    assert (thrice.num_unsuccessful_triggers, goes_on.num_unsuccessful_triggers) == (3, 0)
    assert goes_on.unsuccessful_triggers == thrice.unsuccessful_triggers
    many = after(goes_on, *[failed] * 20)
    assert (many.num_unsuccessful_triggers, len(many.unsuccessful_triggers)) == (20, 16)


def test_who_waited_too_long_or_was_one_too_many_was_refused_and_who_came_too_early_was_not() -> (
    None
):
    mortal = a_request("mortal", expires_at_ms=2_000, cause="ada")
    state = after(a_submitted(max_queued=1), triggered(1), requested(mortal))

    expired = after(state, requested(a_periodic("low"), at_ms=2_000))
    too_many = after(expired, requested(a_request("high"), at_ms=2_001))
    too_early = examine(
        after(a_submitted(min_pause_ms=9_000), *a_checkpoint(1)), a_periodic(), 4_000
    )

    assert [
        (one.failed_at_ms, one.reason, one.message, one.cause)
        for one in too_many.unsuccessful_triggers
    ] == [
        (2_000, Reason.CHECKPOINT_EXPIRED, "it waited too long", "ada"),
        (2_001, Reason.TOO_MANY_CHECKPOINT_REQUESTS, "1 requests are queued", ""),
    ]
    assert too_early.reason is Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
    assert too_early.after.unsuccessful_triggers == ()
    assert str(too_many.unsuccessful_triggers[0]) == (
        "no checkpoint was triggered, CHECKPOINT_EXPIRED: it waited too long"
    )


def test_a_request_that_is_withdrawn_leaves_the_queue_and_was_refused_by_nobody() -> None:
    mine, other = a_request("mine"), a_request("other")
    state = after(a_submitted(), triggered(1), requested(mine), requested(other))

    left = after(state, withdrawn(mine))

    assert left == replace(state, queue=(other,))
    assert step(left, withdrawn(mine)).verdict is Verdict.IGNORED


def test_triggers_that_fail_for_io_count_though_they_have_no_id() -> None:
    state = a_submitted(tolerable_failed_checkpoints=2, restart=ONCE)

    state = after(state, *[trigger_failed(a_periodic(f"p{n}")) for n in range(2)])
    assert (state.status, state.failure_count.continuous) == (JobStatus.RUNNING, 2)
    assert state.failure_count.counted_ids == (-1, -1)

    transition = step(state, trigger_failed(a_periodic(), at_ms=10_000))

    assert transition.state.status is JobStatus.RESTARTING
    assert (transition.commands, transition.state.restart_at_ms) == ((), 10_500)


def test_a_savepoint_whose_trigger_failed_does_not_count_as_a_failed_checkpoint() -> None:
    state = a_submitted()

    transition = step(state, trigger_failed(a_request(type=SAVEPOINT)))

    assert transition.state.failure_count == state.failure_count
    assert transition.state.status is JobStatus.RUNNING
    assert transition.state.num_unsuccessful_triggers == 1


def test_a_trigger_that_failed_after_the_job_ended_does_not_fail_it_over() -> None:
    state = after(a_submitted(), *a_checkpoint(1), stopped(JobStatus.SUSPENDED))

    transition = step(state, trigger_failed(a_periodic()))

    assert transition.commands == ()
    assert transition.state.status is JobStatus.SUSPENDED


def reason_of(state: CoordinatorState, now_ms: int) -> tuple[Reason | None, int | None]:
    examined = examine(state, a_periodic(requested_at_ms=now_ms), now_ms)
    return examined.reason, examined.retry_in_ms


def test_a_pause_drops_what_is_periodic_and_says_who_paused() -> None:
    by_ada = after(a_submitted(), retimed(is_paused=True, changed_by="ada"))
    unnamed = after(a_submitted(), retimed(is_paused=True))

    assert reason_of(by_ada, 3_000) == (Reason.PERIODIC_SCHEDULER_SHUTDOWN, 1_000)
    assert "paused by ada;" in examine(by_ada, a_periodic(), 3_000).message
    assert "is paused; resume" in examine(unnamed, a_periodic(), 3_000).message
    assert examine(by_ada, a_request("mine"), 3_000).admission is Admission.RUNS


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
