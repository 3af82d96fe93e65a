"""The coordinator as a whole: the events that it takes, and what becomes of a pending checkpoint.

Its acks, declines, attempts, and stages that are overtaken.  Requests and the job's status have
tests of their own beside this file.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.jobs import STAGES
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.coordinator import step
from sluice.core.events import AcksReceived, Event, Transition, Verdict
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.pending import AckResult
from sluice.core.state import CoordinatorState
from tests.builders import (
    SUBTASKS,
    TASKS,
    a_plan,
    a_request,
    a_submitted,
    acked,
    after,
    all_acks,
    an_ack,
    an_attempt,
    committed,
    completed,
    declined,
    failed,
    ids_of,
    read,
    restored,
    run,
    stopped,
    submitted,
    triggered,
)
from tests.core_events import (
    discarded,
    hooks_restored,
    job_failed,
    pending_discarded,
    released,
    requested,
    timed_out,
    trigger_failed,
)

OVERTAKEN: list[Event] = [
    submitted(generation=2),
    restored(None, generation=2),
    restored(None, generation=1),
    requested(a_request()),
    triggered(2, generation=1),
    trigger_failed(a_request()),
    an_attempt(2),
    timed_out("count_bids"),
    completed(),
    committed(),
    discarded(1),
    released("s"),
    failed(),
    declined(),
    job_failed(),
    hooks_restored(generation=1),
    stopped(JobStatus.CANCELED),
    stopped(JobStatus.CANCELED, generation=3),
]


@pytest.mark.parametrize("event", OVERTAKEN)
def test_who_was_overtaken_changes_nothing(event: Event) -> None:
    state = after(a_submitted(), triggered(), restored(None), triggered(2, generation=2))

    transition = step(state, event)

    assert (transition.verdict, transition.state) == (Verdict.FENCED, state)
    assert transition.commands == ()


def test_an_ack_is_fenced_by_its_checkpoint_and_attempt_alone() -> None:
    state = after(a_submitted(), restored(None), triggered(1, generation=2))

    assert step(state, acked(SUBTASKS[0])).verdict is Verdict.APPLIED


def test_a_life_of_a_job_with_two_checkpoints_at_a_time() -> None:
    stop = CheckpointType.SAVEPOINT_SUSPEND
    state, commands = run(
        CoordinatorState(),
        submitted(max_concurrent=2, num_retained=1, tolerable_failed_checkpoints=1),
        triggered(1),
        triggered(2, parent=1),
        *all_acks(2),
        *all_acks(1),
        completed(1),
        committed(1),
        completed(2),
        committed(2),
        triggered(3, parent=2),
        triggered(4, parent=3),
        declined(checkpoint_id=3),
        triggered(5, parent=2, type=stop, savepoint="end"),
        *all_acks(5),
        completed(5),
        committed(5),
    )

    assert state.status is JobStatus.SUSPENDED
    assert (ids_of(state.completed), ids_of(state.discarding)) == ([5], [1, 2])
    assert [failure.checkpoint_id for failure in state.failed] == [3, 4]
    assert commands == [
        *pending_discarded(3, 4),
    ]


FIRST, SECOND = STAGES
LAX = (TASKS[0], replace(TASKS[1], may_be_overtaken=True))


def a_chain(length: int, **configuration: object) -> CoordinatorState:
    """Checkpoints 1 to *length* are pending, each the parent of the next."""
    return after(
        a_submitted(
            **{"max_concurrent": length, "tolerable_failed_checkpoints": 9} | configuration
        ),
        *(
            triggered(n, parent=n - 1 or None, triggered_at_ms=1_000 + n)
            for n in range(1, length + 1)
        ),
    )


def test_a_trigger_makes_a_pending_checkpoint_and_takes_its_id() -> None:
    plan = a_plan(1, cause="periodic")

    transition = step(a_submitted(), triggered(1, cause="periodic"))

    (pending,) = transition.state.pending
    assert (transition.verdict, transition.commands) == (Verdict.APPLIED, ())
    assert pending.not_yet_acknowledged == SUBTASKS
    assert (pending.checkpoint_id, pending.records, pending.cause) == (1, 10, "periodic")
    assert pending.expires_at_ms == plan.expires_at_ms
    assert transition.state.last_triggered_at_ms == plan.triggered_at_ms
    assert transition.state.next_checkpoint_id == 2


def test_the_last_ack_completes_the_set_and_no_earlier_one_does() -> None:
    state, commands = run(a_submitted(), triggered(), *all_acks()[:-1])
    assert commands == []

    transition = step(state, all_acks()[-1])

    assert transition.commands == ()
    assert not state.pending[0].is_fully_acknowledged
    assert transition.state.pending[0].is_fully_acknowledged
    assert transition.ack_results == (AckResult.SUCCESS,)


def test_a_duplicate_ack_does_not_complete_the_checkpoint() -> None:
    state = after(a_submitted(), triggered(), *all_acks()[:-1])

    transition = step(state, acked(SUBTASKS[0]))

    assert (transition.verdict, transition.ack_results) == (Verdict.IGNORED, (AckResult.DUPLICATE,))
    assert (transition.state, transition.commands) == (state, ())


@pytest.mark.parametrize(
    "stranger",
    [
        acked(SUBTASKS[0], attempt=0),
        acked(SUBTASKS[0], attempt=2),
        acked(SubtaskId(FIRST, 2)),
        acked(SubtaskId(FIRST, -1)),
        acked(SubtaskId("elsewhere", 0)),
    ],
)
def test_an_ack_of_a_stranger_is_unknown(stranger: Event) -> None:
    state = after(a_submitted(), triggered())

    transition = step(state, stranger)

    assert (transition.verdict, transition.ack_results) == (Verdict.IGNORED, (AckResult.UNKNOWN,))
    assert transition.state == state


@pytest.mark.parametrize("end", [completed(), failed()])
def test_an_ack_of_a_checkpoint_that_ended_is_discarded(end: Event) -> None:
    state = after(a_submitted(), triggered(), end)

    transition = step(state, acked(SUBTASKS[0]))

    assert transition.ack_results == (AckResult.DISCARDED,)
    assert transition.state == state


def test_acks_that_are_read_together_are_taken_in_one_step() -> None:
    state = after(a_submitted(), triggered(), acked(SUBTASKS[0]))
    stranger = SubtaskId("elsewhere", 0)

    transition = step(state, read(*map(an_ack, (*SUBTASKS, stranger))))

    assert transition.state == after(state, *all_acks()[1:])
    assert transition.verdict is Verdict.APPLIED
    assert transition.ack_results == (
        AckResult.DUPLICATE,
        *[AckResult.SUCCESS] * 3,
        AckResult.UNKNOWN,
    )


def test_to_read_no_ack_changes_nothing() -> None:
    state = after(a_submitted(), triggered())

    transition = step(state, AcksReceived(checkpoint_id=CheckpointId(1), acks=()))

    assert transition == Transition(state=state, verdict=Verdict.IGNORED)


def test_acks_of_two_checkpoints_are_no_event() -> None:
    acks = (an_ack(SUBTASKS[0]), an_ack(SUBTASKS[0], checkpoint_id=2))

    with pytest.raises(ValueError, match="read together are of one checkpoint"):
        AcksReceived(checkpoint_id=CheckpointId(1), acks=acks)


def test_acks_reach_the_checkpoint_they_are_for() -> None:
    state = after(a_chain(2), *all_acks(2)[:-1], acked(SUBTASKS[0], checkpoint_id=1))

    first, second = after(state, all_acks(2)[-1]).pending

    assert first.not_yet_acknowledged == SUBTASKS[1:]
    assert second.is_fully_acknowledged


def test_a_new_attempt_fences_the_acks_of_the_one_before() -> None:
    state = after(a_submitted(), triggered(), an_attempt(2))

    old = step(state, acked(SUBTASKS[0], attempt=1))
    new = step(state, acked(SUBTASKS[0], attempt=2))
    other_stage = step(state, acked(SUBTASKS[2], attempt=1))

    assert old.ack_results == (AckResult.UNKNOWN,)
    assert new.ack_results == (AckResult.SUCCESS,)
    assert other_stage.ack_results == (AckResult.SUCCESS,)


def test_a_checkpoint_does_not_complete_as_an_attempt_that_was_overtaken() -> None:
    state = after(a_submitted(), triggered(), an_attempt(2))
    stage = SUBTASKS[0].stage

    late = step(state, completed())
    current = step(state, completed(attempts=dict.fromkeys(STAGES, 1) | {stage: 2}))

    assert (late.verdict, late.state) == (Verdict.REFUSED, state)
    assert current.verdict is Verdict.APPLIED


def test_a_new_attempt_takes_back_what_the_one_before_acknowledged() -> None:
    state = after(a_submitted(), triggered(), *all_acks()[:-1])

    retried = after(state, an_attempt(2))

    assert retried.pending[0].not_yet_acknowledged == (*SUBTASKS[:2], SUBTASKS[3])
    assert step(retried, acked(SUBTASKS[0], attempt=2)).ack_results == (AckResult.SUCCESS,)
    assert not after(retried, acked(SUBTASKS[3])).pending[0].is_fully_acknowledged


def test_a_new_attempt_aborts_what_may_have_read_the_state_of_the_one_before() -> None:
    state = a_chain(3)

    transition = step(state, an_attempt(2, checkpoint_id=2))

    (child,) = transition.state.failed
    assert [pending.checkpoint_id for pending in transition.state.pending] == [1, 2]
    assert transition.commands == pending_discarded(3)
    assert (child.checkpoint_id, child.reason) == (3, Reason.JOB_FAILOVER_REGION)
    assert child.message == f"stage {FIRST!r} of checkpoint 2 runs again"
    assert child.failed_at_ms == child.triggered_at_ms == 1_003
    assert transition.state.failure_count == state.failure_count


@pytest.mark.parametrize("event", [an_attempt(2), an_attempt(1), an_attempt(3, checkpoint_id=9)])
def test_an_attempt_that_already_runs_or_is_over_is_ignored(event: Event) -> None:
    state = after(a_submitted(), triggered(), an_attempt(2))

    transition = step(state, event)

    assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)


def test_a_decline_aborts_with_the_subtask_and_its_words() -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=1), triggered())

    transition = step(state, declined(SUBTASKS[3]))

    (remembered,) = transition.state.failed
    assert transition.commands == pending_discarded(1)
    assert remembered.reason is Reason.CHECKPOINT_DECLINED
    assert remembered.message == "rank_bids/1: no"


@pytest.mark.parametrize(
    "reason",
    [
        Reason.CHECKPOINT_DECLINED_TASK_NOT_READY,
        Reason.CHECKPOINT_DECLINED_TASK_CLOSING,
        Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM,
    ],
)
def test_a_decline_for_a_reason_that_does_not_count_leaves_the_job_running(reason: Reason) -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=0), triggered(), declined(reason=reason))

    assert (state.status, state.pending) == (JobStatus.RUNNING, ())
    assert [failure.reason for failure in state.failed] == [reason]
    assert state.failure_count.continuous == 0


@pytest.mark.parametrize("reason", [Reason.CHECKPOINT_DECLINED, Reason.CHECKPOINT_ASYNC_EXCEPTION])
def test_a_decline_for_a_reason_that_counts_fails_the_job_over(reason: Reason) -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=0), triggered(), declined(reason=reason))

    assert state.status is JobStatus.RESTARTING


def test_a_task_does_not_decline_for_a_reason_of_the_coordinator() -> None:
    with pytest.raises(ValueError, match="a task declines for a reason of its own"):
        declined(reason=Reason.CHECKPOINT_EXPIRED)


def test_a_decline_of_an_older_attempt_or_an_ended_checkpoint_is_ignored() -> None:
    state = after(a_submitted(), triggered(), an_attempt(2))

    assert step(state, declined(attempt=1)).verdict is Verdict.IGNORED
    assert step(state, declined(attempt=2, checkpoint_id=9)).verdict is Verdict.IGNORED
    assert step(state, declined(attempt=2)).verdict is Verdict.APPLIED


def test_the_coordinator_acknowledges_for_the_stages_that_may_be_overtaken_and_no_other() -> None:
    state = after(a_submitted(), triggered(tasks=LAX), acked(SUBTASKS[2]))

    transition = step(state, timed_out(FIRST, SECOND))

    (pending,) = transition.state.pending
    assert (transition.verdict, transition.commands) == (Verdict.APPLIED, ())
    assert pending.overtaken == (SECOND,)
    assert pending.not_yet_acknowledged == SUBTASKS[:2]
    assert pending.acks == {}
    assert after(transition.state, *all_acks()[:2]).pending[0].is_fully_acknowledged


def test_who_reads_an_overtaken_stage_is_overtaken_with_it_even_if_it_has_answered() -> None:
    reads = (replace(TASKS[0], may_be_overtaken=True), replace(TASKS[1], reads=(FIRST,)))
    state = after(a_submitted(), triggered(tasks=reads), *all_acks()[2:])

    transition = step(state, timed_out(FIRST))

    (pending,) = transition.state.pending
    assert (pending.overtaken, pending.acks) == ((FIRST, SECOND), {})
    assert pending.is_fully_acknowledged


def test_who_reads_what_was_left_in_flight_before_is_not_overtaken_with_it() -> None:
    free = replace(TASKS[1], reads=(FIRST,), is_unaligned=True)
    tasks = (replace(TASKS[0], may_be_overtaken=True), free)
    state = after(a_submitted(), triggered(tasks=tasks), *all_acks()[2:3])

    pending = after(state, timed_out(FIRST)).pending[0]

    assert pending.overtaken == (FIRST,)
    assert pending.not_yet_acknowledged == SUBTASKS[3:]


def test_an_overtaken_stage_has_nothing_more_to_say() -> None:
    state = after(a_submitted(), triggered(tasks=LAX), timed_out(SECOND))

    late = step(state, acked(SUBTASKS[2]))
    unable = step(state, declined(SUBTASKS[2]))

    assert (late.ack_results, late.state) == ((AckResult.UNKNOWN,), state)
    assert (unable.verdict, unable.state) == (Verdict.IGNORED, state)
    assert step(state, declined(SUBTASKS[0])).verdict is Verdict.APPLIED


@pytest.mark.parametrize(
    "event",
    [
        timed_out(FIRST),
        timed_out("elsewhere"),
        timed_out(),
        timed_out(SECOND),
        timed_out(SECOND, checkpoint_id=9),
    ],
    ids=["may not be", "not a stage", "nobody is behind", "is already", "another checkpoint"],
)
def test_a_timeout_that_overtakes_nobody_is_ignored(event: Event) -> None:
    state = after(a_submitted(), triggered(tasks=LAX), timed_out(SECOND))

    transition = step(state, event)

    assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)


def test_a_failure_aborts_its_checkpoint_and_those_that_continue_it_but_counts_once() -> None:
    transition = step(a_chain(3), failed(2))

    state = transition.state
    assert [pending.checkpoint_id for pending in state.pending] == [1]
    assert transition.commands == pending_discarded(2, 3)
    assert {f.checkpoint_id: (f.reason, f.message) for f in state.failed} == {
        2: (Reason.CHECKPOINT_EXPIRED, "because"),
        3: (Reason.JOB_FAILOVER_REGION, "checkpoint 2, which it continues, was aborted"),
    }
    assert (state.failure_count.continuous, state.status) == (1, JobStatus.RUNNING)


def test_an_aborted_id_is_not_used_again_by_the_next_chain() -> None:
    state = after(a_chain(3), failed(2))

    assert step(state, triggered(2, parent=1)).verdict is Verdict.REFUSED
    assert step(state, triggered(4, parent=1)).verdict is Verdict.APPLIED


def test_a_stage_of_another_plan_has_its_own_subtasks() -> None:
    narrow = (replace(TASKS[0], parallelism=1),)

    state = after(a_submitted(), triggered(1, tasks=narrow), acked(SUBTASKS[0]))

    assert state.pending[0].is_fully_acknowledged
    assert state.pending[0].is_participant(SUBTASKS[0])
    assert not state.pending[0].is_participant(SUBTASKS[1])


def test_a_subtask_that_failed_fails_the_job_over_whatever_is_tolerated() -> None:
    """One exception of the user's is one reason, whether code of ours called his or not."""
    state = after(a_submitted(tolerable_failed_checkpoints=9), triggered())

    transition = step(state, declined(reason=Reason.TASK_FAILURE))

    (failed,) = transition.state.failed
    assert failed.reason is Reason.TASK_FAILURE
    assert transition.state.status is JobStatus.RESTARTING
    assert transition.state.failure_count == state.failure_count
