"""Requests for checkpoints: started, queued or dropped, and the reasons that owners get."""

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
from sluice.core.requests import Admission, Examination, examine
from sluice.core.state import REMEMBERED_REJECTIONS, CoordinatorState
from sluice.core.tables import TableDecision
from tests.builders import (
    a_checkpoint,
    a_plan,
    a_request,
    a_submitted,
    after,
    completed,
    failed,
    ids_of,
    restored,
    stopped,
    triggered,
)
from tests.core_events import (
    a_periodic,
    hooks_restored,
    requested,
    triggered_by,
    with_backlog,
)

BACKLOG = with_backlog()
SUSPEND = CheckpointType.SAVEPOINT_SUSPEND
TERMINATE = CheckpointType.SAVEPOINT_TERMINATE


def a_busy(**configuration: Any) -> CoordinatorState:
    """Checkpoint 1 is pending, and no other may be."""
    return after(a_submitted(**configuration), triggered(1))


def queued(state: CoordinatorState) -> list[str]:
    return [request.request_id for request in state.queue]


def standing(state: CoordinatorState, request: CheckpointRequest, now_ms: int = 1_000) -> Admission:
    return examine(state, request, now_ms).standing


def test_a_request_of_an_idle_job_runs_and_changes_nothing_yet() -> None:
    request, state = a_request(), a_submitted()

    transition = step(state, requested(request))

    assert examine(state, request, 1_000).standing is Admission.RUNS
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
    assert (examined.standing, examined.head) == (Admission.WAITS, first)
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

    assert standing(a_busy(), request) is (Admission.RUNS if is_forced else Admission.WAITS)


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
        standing=Admission.REJECTED, after=state, reason=reason, message="the job is RESTARTING"
    )


@pytest.mark.parametrize("plan", [{"type": SUSPEND}, {"type": TERMINATE}, {"drains": True}])
def test_a_checkpoint_that_ends_the_job_holds_back_everything(plan: dict[str, Any]) -> None:
    state = after(a_submitted(max_concurrent=9), triggered(1, **plan))
    forced = a_request(is_forced=True, type=CheckpointType.SAVEPOINT)

    assert standing(state, forced) is Admission.WAITS
    assert examine(state, forced, 1_000).message == "checkpoint 1 is still pending"
    state = after(state, requested(forced), failed(1, Reason.JOB_FAILOVER_REGION))
    assert standing(state, forced) is Admission.RUNS


def test_a_savepoint_that_does_not_stop_the_job_holds_back_nothing() -> None:
    state = after(a_submitted(max_concurrent=2), triggered(1, type=CheckpointType.SAVEPOINT))

    assert standing(state, a_request()) is Admission.RUNS


def test_more_deletions_than_concurrent_checkpoints_hold_back_everything() -> None:
    history = [event for n in (1, 2, 3) for event in a_checkpoint(n, n - 1 or None)]
    state = after(a_submitted(num_retained=1), *history)
    assert ids_of(state.discarding) == [1, 2]

    examined = examine(state, a_request(is_forced=True), 1_000)

    assert examined.standing is Admission.WAITS
    assert examined.message == "2 subsumed checkpoints are still being deleted"


def test_rejections_are_remembered_in_a_bounded_number() -> None:
    state = a_busy(max_queued=2 * REMEMBERED_REJECTIONS)
    for number in range(REMEMBERED_REJECTIONS + 2):
        state = after(state, requested(a_request(f"r-{number}")))

    state = after(state, stopped(JobStatus.CANCELED))

    assert len(state.rejected) == REMEMBERED_REJECTIONS
    assert state.rejection("r-1") is None
    assert state.rejection("r-2") is Reason.CHECKPOINT_COORDINATOR_SUSPEND
