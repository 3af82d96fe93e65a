"""The coordinator, event by event: what is applied, what is not, and what it asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.completed import CompletedCheckpoint
from sluice.core.coordinator import Verdict, step
from sluice.core.ids import CheckpointId, Generation, SubtaskId
from sluice.core.messages import (
    CommitCheckpoint,
    DiscardCompleted,
    DiscardPending,
    Event,
    FinalizeCheckpoint,
    JobConfiguration,
    RestartJob,
)
from sluice.core.pending import AckResult
from sluice.core.properties import CheckpointType, JobStatus, Retention
from sluice.core.reasons import CheckpointFailureReason as Reason
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.state import REMEMBERED_FAILURES, CoordinatorState
from tests.builders import (
    STAGES,
    SUBTASKS,
    TASKS,
    a_checkpoint,
    a_plan,
    a_submitted,
    after,
    all_acks,
    an_ack,
    an_attempt,
    committed,
    completed,
    declined,
    failed,
    ids_of,
    restored,
    run,
    stopped,
    submitted,
    triggered,
)

NO_RESTART = RestartStrategy(type=RestartType.NONE)
ONCE = RestartStrategy(type=RestartType.FIXED_DELAY, attempts=1, delay_ms=500)


def test_a_submission_starts_a_running_job_of_the_next_generation() -> None:
    transition = step(CoordinatorState(), submitted(num_retained=7))

    assert transition.verdict is Verdict.APPLIED
    assert transition.commands == ()
    assert transition.state == CoordinatorState(
        status=JobStatus.RUNNING,
        generation=transition.state.generation,
        configuration=JobConfiguration(num_retained=7),
    )
    assert transition.state.generation == 1


def test_a_running_or_restarting_job_is_not_submitted_again() -> None:
    running = a_submitted()
    restarting = after(running, triggered(), failed(is_task_failure=True))

    for state in (running, restarting):
        transition = step(state, submitted(generation=2))
        assert transition.verdict is Verdict.REFUSED
        assert transition.state == state


@pytest.mark.parametrize("status", [JobStatus.SUSPENDED, JobStatus.CANCELED, JobStatus.FAILED])
def test_a_resubmission_starts_from_empty_and_its_ids_go_on(status: JobStatus) -> None:
    ended = after(a_submitted(), *a_checkpoint(1), stopped(status))

    state = after(ended, submitted(generation=2))

    assert (state.status, state.generation) == (JobStatus.RUNNING, 2)
    assert (state.base, state.next_checkpoint_id) == (None, 2)
    assert ids_of(state.completed) == [1]
    assert state.restarts == CoordinatorState().restarts


def test_a_trigger_makes_a_pending_checkpoint_and_takes_its_id() -> None:
    plan = a_plan(1, cause="periodic")

    transition = step(a_submitted(), triggered(1, cause="periodic"))

    (pending,) = transition.state.pending
    assert transition.verdict is Verdict.APPLIED
    assert transition.commands == ()
    assert pending.not_yet_acknowledged == SUBTASKS
    assert (pending.checkpoint_id, pending.records, pending.cause) == (1, 10, "periodic")
    assert pending.expires_at_ms == plan.expires_at_ms
    assert transition.state.next_checkpoint_id == 2


def test_a_plan_may_skip_ids_but_never_go_back() -> None:
    state = after(a_submitted(), triggered(5), failed(5, Reason.JOB_FAILOVER_REGION))

    assert state.next_checkpoint_id == 6
    assert step(state, triggered(5)).verdict is Verdict.REFUSED
    assert step(state, triggered(6)).verdict is Verdict.APPLIED


@pytest.mark.parametrize(
    ("history", "event"),
    [
        ([triggered(1)], triggered(2)),
        ([*a_checkpoint(1)], triggered(2, parent=None)),
        ([*a_checkpoint(1)], triggered(1)),
        ([triggered(1), failed(1, is_task_failure=True)], triggered(2)),
        ([stopped(JobStatus.SUSPENDED)], triggered(1)),
        ([stopped(JobStatus.CANCELED)], triggered(1)),
    ],
    ids=["one is pending", "stale parent", "used id", "restarting", "suspended", "canceled"],
)
def test_a_trigger_that_another_coordinator_overtook_is_refused(
    history: list[Event], event: Event
) -> None:
    before = after(a_submitted(), *history)

    transition = step(before, event)

    assert transition.verdict is Verdict.REFUSED
    assert transition.state == before
    assert transition.commands == ()


def test_a_plan_of_another_generation_than_its_author_is_refused() -> None:
    event = replace(triggered(1), plan=a_plan(1, generation=2))

    assert step(a_submitted(), event).verdict is Verdict.REFUSED


def test_as_many_checkpoints_are_pending_as_the_job_allows() -> None:
    state = after(a_submitted(max_concurrent=2), triggered(1), triggered(2))

    assert [pending.checkpoint_id for pending in state.pending] == [1, 2]
    assert step(state, triggered(3)).verdict is Verdict.REFUSED


def test_the_last_ack_asks_to_finalize_and_no_earlier_one_does() -> None:
    state, commands = run(a_submitted(), triggered(), *all_acks()[:-1])
    assert commands == []

    transition = step(state, all_acks()[-1])

    (command,) = transition.commands
    assert isinstance(command, FinalizeCheckpoint)
    assert command.pending == transition.state.pending[0]
    assert command.pending.is_fully_acknowledged
    assert transition.ack_result is AckResult.SUCCESS


def test_a_duplicate_ack_does_not_complete_the_checkpoint() -> None:
    state = after(a_submitted(), triggered(), *all_acks()[:-1])

    transition = step(state, an_ack(SUBTASKS[0]))

    assert (transition.verdict, transition.ack_result) == (Verdict.IGNORED, AckResult.DUPLICATE)
    assert transition.state == state
    assert transition.commands == ()


@pytest.mark.parametrize(
    "stranger",
    [
        an_ack(SUBTASKS[0], attempt=2),
        an_ack(SubtaskId(STAGES[0], 2)),
        an_ack(SubtaskId("elsewhere", 0)),
    ],
)
def test_an_ack_of_a_stranger_is_unknown(stranger: Event) -> None:
    state = after(a_submitted(), triggered())

    transition = step(state, stranger)

    assert (transition.verdict, transition.ack_result) == (Verdict.IGNORED, AckResult.UNKNOWN)
    assert transition.state == state


@pytest.mark.parametrize("end", [completed(), failed()])
def test_an_ack_of_a_checkpoint_that_ended_is_discarded(end: Event) -> None:
    state = after(a_submitted(), triggered(), end)

    transition = step(state, an_ack(SUBTASKS[0]))

    assert transition.ack_result is AckResult.DISCARDED
    assert transition.state == state


def test_a_new_attempt_fences_the_acks_of_the_one_before() -> None:
    state = after(a_submitted(), triggered(), an_attempt(2))

    old = step(state, an_ack(SUBTASKS[0], attempt=1))
    new = step(state, an_ack(SUBTASKS[0], attempt=2))
    other_stage = step(state, an_ack(SUBTASKS[2], attempt=1))

    assert old.ack_result is AckResult.UNKNOWN
    assert new.ack_result is AckResult.SUCCESS
    assert other_stage.ack_result is AckResult.SUCCESS


def test_a_new_attempt_takes_back_what_the_one_before_acknowledged() -> None:
    state = after(a_submitted(), triggered(), *all_acks()[:-1])

    retried = after(state, an_attempt(2))

    assert retried.pending[0].not_yet_acknowledged == (*SUBTASKS[:2], SUBTASKS[3])
    assert step(retried, an_ack(SUBTASKS[0], attempt=2)).ack_result is AckResult.SUCCESS
    assert step(retried, an_ack(SUBTASKS[3])).commands == ()


@pytest.mark.parametrize("event", [an_attempt(2), an_attempt(1), an_attempt(3, checkpoint_id=9)])
def test_an_attempt_that_already_runs_or_is_over_is_ignored(event: Event) -> None:
    state = after(a_submitted(), triggered(), an_attempt(2))

    transition = step(state, event)

    assert transition.verdict is Verdict.IGNORED
    assert transition.state == state


def test_completing_makes_the_base_and_asks_to_commit() -> None:
    transition = step(
        after(a_submitted(), triggered(1, savepoint="s", cause="me")), completed(at_ms=9)
    )

    state = transition.state
    assert transition.verdict is Verdict.APPLIED
    assert transition.commands == (CommitCheckpoint(checkpoint_id=CheckpointId(1)),)
    assert state.pending == ()
    assert (state.base, state.base_savepoint, state.last_completed_at_ms) == (1, None, 9)
    assert state.completed == (
        CompletedCheckpoint(
            checkpoint_id=CheckpointId(1),
            generation=Generation(1),
            parent=None,
            type=CheckpointType.CHECKPOINT,
            triggered_at_ms=1_000,
            completed_at_ms=9,
            drains=False,
            records=10,
            checkpointed_bytes=100,
            full_bytes=200,
            savepoint_name="s",
            cause="me",
        ),
    )
    assert state.latest_completed == state.completed[0]


def test_completing_subsumes_the_oldest_and_asks_to_discard_it() -> None:
    state = after(a_submitted(num_retained=2), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    first = state.completed[0]

    transition = step(after(state, triggered(3, parent=2)), completed(3))

    assert ids_of(transition.state.completed) == [2, 3]
    assert transition.commands == (
        CommitCheckpoint(checkpoint_id=CheckpointId(3)),
        DiscardCompleted(checkpoint=first),
    )


@pytest.mark.xfail(strict=True, reason="max_concurrent > 1: nothing sets it, and this is missing")
def test_completing_subsumes_older_pending_checkpoints() -> None:
    state = after(a_submitted(max_concurrent=2), triggered(1), triggered(2))

    transition = step(state, completed(2))

    assert transition.state.pending == ()
    assert DiscardPending(checkpoint_id=CheckpointId(1)) in transition.commands


@pytest.mark.parametrize("event", [completed(1), committed(1), failed(1), declined()])
def test_what_concerns_an_unknown_checkpoint_is_ignored(event: Event) -> None:
    state = a_submitted()

    transition = step(state, event)

    assert transition.verdict is Verdict.IGNORED
    assert transition.state == state
    assert transition.commands == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [(completed(), failed()), (failed(), completed()), (completed(), completed()),
     (failed(), failed()), (failed(), declined())],
)  # fmt: skip
def test_a_checkpoint_ends_once(first: Event, second: Event) -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=9), triggered(), first)

    transition = step(state, second)

    assert transition.verdict is Verdict.IGNORED
    assert transition.state == state


def test_committing_is_remembered_once() -> None:
    state = after(a_submitted(), triggered(), completed())

    transition = step(state, committed())

    assert transition.verdict is Verdict.APPLIED
    assert transition.state.completed[0].is_committed
    assert transition.state.status is JobStatus.RUNNING
    assert step(transition.state, committed()).verdict is Verdict.IGNORED


@pytest.mark.parametrize(
    ("plan", "status"),
    [
        ({"drains": True}, JobStatus.FINISHED),
        ({"type": CheckpointType.SAVEPOINT_TERMINATE}, JobStatus.FINISHED),
        ({"type": CheckpointType.SAVEPOINT_SUSPEND}, JobStatus.SUSPENDED),
        ({"type": CheckpointType.SAVEPOINT}, JobStatus.RUNNING),
    ],
)
def test_a_stopping_checkpoint_ends_the_job_when_it_is_committed(
    plan: dict[str, object], status: JobStatus
) -> None:
    state = after(a_submitted(), triggered(1, **plan), completed())
    assert state.status is JobStatus.RUNNING

    state = after(state, committed())

    assert state.status is status
    assert ids_of(state.completed) == [1]


def test_what_is_pending_when_the_job_ends_is_aborted() -> None:
    state = after(a_submitted(), triggered(1, drains=True), completed(), triggered(2, parent=1))

    transition = step(state, committed())

    assert transition.state.status is JobStatus.FINISHED
    assert transition.state.pending == ()
    assert transition.commands == (DiscardPending(checkpoint_id=CheckpointId(2)),)


@pytest.mark.parametrize("ended", [JobStatus.CANCELED, JobStatus.FAILED])
def test_a_late_commit_does_not_revive_a_job_that_ended(ended: JobStatus) -> None:
    state = after(a_submitted(), triggered(1, drains=True), completed(), stopped(ended))

    transition = step(state, committed())

    assert transition.verdict is Verdict.APPLIED
    assert transition.state.completed[0].is_committed
    assert transition.state.status is ended


def test_a_tolerated_failure_aborts_the_checkpoint_alone() -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=1), triggered())

    transition = step(state, failed(at_ms=5))

    (remembered,) = transition.state.failed
    assert transition.verdict is Verdict.APPLIED
    assert transition.commands == (DiscardPending(checkpoint_id=CheckpointId(1)),)
    assert transition.state.status is JobStatus.RUNNING
    assert transition.state.pending == ()
    assert (remembered.reason, remembered.message) == (Reason.CHECKPOINT_EXPIRED, "because")
    assert (remembered.checkpoint_id, remembered.failed_at_ms) == (1, 5)


def test_one_failure_too_many_fails_the_job_over() -> None:
    state = after(
        a_submitted(tolerable_failed_checkpoints=1, restart=ONCE), triggered(1), failed(1)
    )

    transition = step(after(state, triggered(2)), failed(2, at_ms=10_000))

    assert transition.commands == (
        DiscardPending(checkpoint_id=CheckpointId(2)),
        RestartJob(at_ms=10_500),
    )
    assert transition.state.status is JobStatus.RESTARTING
    assert transition.state.restart_at_ms == 10_500
    assert transition.state.restarts.failures == 1


def test_a_task_failure_fails_the_job_over_however_many_are_tolerated() -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=99, restart=ONCE), triggered())

    state = after(state, failed(1, Reason.TASK_FAILURE, is_task_failure=True))

    assert state.status is JobStatus.RESTARTING


def test_failing_over_aborts_everything_that_is_pending() -> None:
    state = after(a_submitted(max_concurrent=3), triggered(1), triggered(2), triggered(3))

    transition = step(state, failed(2, Reason.TASK_FAILURE, is_task_failure=True))

    assert transition.state.pending == ()
    assert {f.checkpoint_id: f.reason for f in transition.state.failed} == {
        2: Reason.TASK_FAILURE,
        1: Reason.JOB_FAILOVER_REGION,
        3: Reason.JOB_FAILOVER_REGION,
    }
    assert [c for c in transition.commands if isinstance(c, DiscardPending)] == [
        DiscardPending(checkpoint_id=CheckpointId(n)) for n in (2, 1, 3)
    ]


@pytest.mark.parametrize("strategy", [NO_RESTART, replace(ONCE, attempts=0)])
def test_a_job_without_restarts_left_has_failed(strategy: RestartStrategy) -> None:
    state = after(a_submitted(restart=strategy), triggered())

    transition = step(state, failed())

    assert transition.state.status is JobStatus.FAILED
    assert transition.state.restart_at_ms is None
    assert not [c for c in transition.commands if isinstance(c, RestartJob)]


def test_a_decline_aborts_with_the_subtask_and_its_words() -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=1), triggered())

    transition = step(state, declined(SUBTASKS[3]))

    (remembered,) = transition.state.failed
    assert transition.commands == (DiscardPending(checkpoint_id=CheckpointId(1)),)
    assert remembered.reason is Reason.CHECKPOINT_DECLINED
    assert remembered.message == "rank_bids/1: no"


def test_a_decline_of_an_overtaken_attempt_is_ignored() -> None:
    state = after(a_submitted(), triggered(), an_attempt(2))

    assert step(state, declined(attempt=1)).verdict is Verdict.IGNORED
    assert step(state, declined(attempt=2)).verdict is Verdict.APPLIED


def test_only_the_newest_failures_are_remembered() -> None:
    state = a_submitted(tolerable_failed_checkpoints=100)

    for checkpoint_id in range(1, REMEMBERED_FAILURES + 3):
        state = after(state, triggered(checkpoint_id), failed(checkpoint_id))

    assert [f.checkpoint_id for f in state.failed] == [*range(3, REMEMBERED_FAILURES + 3)]


def test_a_restore_takes_the_next_generation_and_aborts_what_is_pending() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    state = after(state, triggered(3, parent=2))

    transition = step(state, restored(1))

    state = transition.state
    assert transition.verdict is Verdict.APPLIED
    assert transition.commands == (DiscardPending(checkpoint_id=CheckpointId(3)),)
    assert (state.status, state.generation, state.base) == (JobStatus.RUNNING, 2, 1)
    assert (state.next_checkpoint_id, state.num_restarts) == (4, 1)
    assert ids_of(state.completed) == [1, 2]
    assert state.failed[0].reason is Reason.JOB_FAILOVER_REGION


def test_a_restore_ends_the_pause_of_a_restarting_job() -> None:
    state = after(a_submitted(), triggered(), failed(is_task_failure=True))

    state = after(state, restored(None))

    assert (state.status, state.restart_at_ms, state.base) == (JobStatus.RUNNING, None, None)


def test_a_restore_to_an_unknown_checkpoint_is_refused() -> None:
    state = after(a_submitted(), *a_checkpoint(1))

    transition = step(state, restored(7))

    assert transition.verdict is Verdict.REFUSED
    assert transition.state == state


def test_a_restore_from_a_savepoint_continues_its_id() -> None:
    state = after(CoordinatorState(), restored(7, generation=1, savepoint="moved-here"))

    assert (state.base, state.base_savepoint, state.next_checkpoint_id) == (7, "moved-here", 8)
    assert after(state, *a_checkpoint(8, parent=7)).base_savepoint is None


def test_a_restore_from_an_older_savepoint_does_not_turn_ids_back() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))

    assert after(state, restored(1, savepoint="older")).next_checkpoint_id == 3


def test_a_restore_may_bring_another_configuration() -> None:
    wider = JobConfiguration(parallelism=8)

    assert after(a_submitted(), restored(None, configuration=wider)).configuration == wider
    assert after(a_submitted(num_retained=9), restored(None)).configuration.num_retained == 9


@pytest.mark.parametrize(
    "event",
    [
        submitted(generation=2),
        restored(None, generation=2),
        restored(None, generation=1),
        triggered(2, generation=1),
        an_attempt(2),
        completed(),
        committed(),
        failed(),
        declined(),
        stopped(JobStatus.CANCELED),
        stopped(JobStatus.CANCELED, generation=3),
    ],
)
def test_who_was_overtaken_changes_nothing(event: Event) -> None:
    state = after(a_submitted(), triggered(), restored(None), triggered(2, generation=2))

    transition = step(state, event)

    assert transition.verdict is Verdict.FENCED
    assert transition.state == state
    assert transition.commands == ()


@pytest.mark.parametrize("status", [JobStatus.SUSPENDED, JobStatus.CANCELED, JobStatus.FAILED])
def test_stopping_aborts_what_is_pending(status: JobStatus) -> None:
    state = after(a_submitted(), triggered())

    transition = step(state, stopped(status))

    assert transition.state.status is status
    assert transition.state.pending == ()
    assert transition.commands == (DiscardPending(checkpoint_id=CheckpointId(1)),)
    assert transition.state.failed[0].reason is Reason.CHECKPOINT_COORDINATOR_SUSPEND


def test_a_job_that_ended_is_not_stopped_again() -> None:
    canceled = after(a_submitted(), stopped(JobStatus.CANCELED))
    suspended = after(a_submitted(), stopped(JobStatus.SUSPENDED))

    assert step(canceled, stopped(JobStatus.FAILED)).verdict is Verdict.IGNORED
    assert step(suspended, stopped(JobStatus.SUSPENDED)).verdict is Verdict.IGNORED
    assert after(suspended, stopped(JobStatus.CANCELED)).status is JobStatus.CANCELED


# What CheckpointPropertiesTest says of each retention: does the end of the job discard?
DISCARDS = {
    Retention.NEVER_RETAIN_AFTER_TERMINATION: (True, True, True),
    Retention.RETAIN_ON_FAILURE: (True, False, True),
    Retention.RETAIN_ON_CANCELLATION: (False, False, False),
}
ENDS = (JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED)


@pytest.mark.parametrize(
    ("retention", "status", "discards"),
    [(r, s, d) for r, row in DISCARDS.items() for s, d in zip(ENDS, row, strict=True)],
)
def test_the_end_of_the_job_discards_as_its_retention_says_but_never_a_savepoint(
    retention: Retention, status: JobStatus, discards: bool
) -> None:
    savepoint = a_checkpoint(2, parent=1, type=CheckpointType.SAVEPOINT, savepoint="mine")
    state = after(a_submitted(retention=retention), *a_checkpoint(1), *savepoint)
    checkpoint = state.completed[0]

    transition = step(state, stopped(status))

    expected = (DiscardCompleted(checkpoint=checkpoint),) if discards else ()
    assert transition.commands == expected
    assert ids_of(transition.state.completed) == ([2] if discards else [1, 2])


@pytest.mark.parametrize("retention", list(Retention))
@pytest.mark.xfail(strict=True, reason="the discard matrix is not applied on FINISHED")
def test_a_finished_job_discards_its_checkpoints(retention: Retention) -> None:
    state = after(a_submitted(retention=retention), *a_checkpoint(1))
    state = after(state, triggered(2, parent=1, drains=True), completed(2), committed(2))

    assert state.status is JobStatus.FINISHED
    assert state.completed == ()


def test_a_stage_of_another_plan_has_its_own_subtasks() -> None:
    narrow = (replace(TASKS[0], parallelism=1),)

    state, commands = run(a_submitted(), triggered(1, tasks=narrow), an_ack(SUBTASKS[0]))

    assert isinstance(commands[-1], FinalizeCheckpoint)
    assert state.pending[0].is_participant(SUBTASKS[0])
    assert not state.pending[0].is_participant(SUBTASKS[1])
