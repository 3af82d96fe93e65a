"""The job's own life: submitted, failed over, stopped; ``test_restored`` has how it goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.configuration import (
    CheckpointType,
    ClaimMode,
    JobConfiguration,
    JobStatus,
    Retention,
)
from sluice.core.coordinator import step
from sluice.core.events import DiscardCompleted, DiscardPending, Event, Verdict
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId, Generation
from sluice.core.lifecycle import next_generation
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.state import CoordinatorState, RejectedRequest
from sluice.core.tables import TableRecovery
from tests.builders import (
    a_checkpoint,
    a_request,
    a_submitted,
    after,
    declined,
    failed,
    ids_of,
    restored,
    stopped,
    submitted,
    triggered,
)
from tests.core_events import (
    job_failed,
    requested,
)

NO_RESTART = RestartStrategy(type=RestartType.NONE)
ONCE = RestartStrategy(type=RestartType.FIXED_DELAY, attempts=1, delay_ms=500)
STOPS = (JobStatus.SUSPENDED, JobStatus.CANCELED, JobStatus.FAILED)


def test_a_submission_starts_a_running_job_of_the_next_generation() -> None:
    transition = step(CoordinatorState(), submitted(num_retained=7))

    assert (transition.verdict, transition.commands) == (Verdict.APPLIED, ())
    assert transition.state == CoordinatorState(
        status=JobStatus.RUNNING,
        life="life-1",
        generation=next_generation(CoordinatorState()),
        tables={},
        configuration=JobConfiguration(num_retained=7),
    )
    assert transition.state.generation == 1


def test_a_running_or_restarting_job_is_not_submitted_again() -> None:
    running = a_submitted()
    restarting = after(running, triggered(), failed(is_task_failure=True))

    for state in (running, restarting):
        transition = step(state, submitted(generation=2))
        assert (transition.verdict, transition.state) == (Verdict.REFUSED, state)


@pytest.mark.parametrize("status", STOPS)
def test_a_resubmission_starts_from_empty_and_remembers_what_is_not_over(
    status: JobStatus,
) -> None:
    restored_ = after(
        a_submitted(num_retained=1), restored(7, savepoint="theirs", claim_mode=ClaimMode.CLAIM)
    )
    history = [*a_checkpoint(8, parent=7, generation=2, origin=restored_.origin)]
    history += [*a_checkpoint(9, parent=8, generation=2), triggered(10, parent=9, generation=2)]
    ended = after(restored_, *history, stopped(status, generation=2))

    transition = step(ended, submitted(generation=3))

    assert transition.commands == ()
    assert transition.state == CoordinatorState(
        status=JobStatus.RUNNING,
        life="life-3",
        earlier_lives=("life-1",),
        generation=Generation(3),
        ids=ended.ids,
        num_restored=1,
        restored=ended.restored,
        tables={},
        table_recovery=TableRecovery(through=CheckpointId(10)),
        completed=ended.completed,
        discarding=ended.discarding,
        claimed_savepoints=("theirs",),
        failed=ended.failed,
    )
    assert (ended.next_checkpoint_id, ids_of(ended.completed)) == (11, [9])
    assert (ids_of(ended.discarding), len(ended.failed)) == ([8], 1)


def test_one_failure_too_many_fails_the_job_over() -> None:
    state = after(
        a_submitted(tolerable_failed_checkpoints=1, restart=ONCE), triggered(1), failed(1)
    )

    transition = step(after(state, triggered(2)), failed(2, at_ms=10_000))

    assert transition.commands == (DiscardPending(checkpoint_id=CheckpointId(2)),)
    assert transition.state.status is JobStatus.RESTARTING
    assert transition.state.restart_at_ms == 10_500
    assert transition.state.restarts.attempts == 1


def test_a_tolerated_failure_aborts_the_checkpoint_alone() -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=1), triggered())

    transition = step(state, failed(at_ms=5))

    (remembered,) = transition.state.failed
    assert transition.commands == (DiscardPending(checkpoint_id=CheckpointId(1)),)
    assert (transition.state.status, transition.state.pending) == (JobStatus.RUNNING, ())
    assert (remembered.reason, remembered.message) == (Reason.CHECKPOINT_EXPIRED, "because")
    assert (remembered.checkpoint_id, remembered.failed_at_ms) == (1, 5)


@pytest.mark.parametrize(
    "event", [failed(1, Reason.TASK_FAILURE, is_task_failure=True), job_failed()]
)
def test_a_failed_task_or_job_fails_over_however_many_failures_are_tolerated(event: Event) -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=99, restart=ONCE), triggered())

    transition = step(state, event)

    assert transition.state.status is JobStatus.RESTARTING
    assert transition.state.restart_at_ms == 5_500
    assert transition.commands == (DiscardPending(checkpoint_id=CheckpointId(1)),)


EXPIRED = Reason.CHECKPOINT_EXPIRED
BY_A_TASK = replace(failed(1, EXPIRED), is_task_level=True)


@pytest.mark.parametrize(
    ("type_", "tolerable", "event", "fails_over"),
    [
        (CheckpointType.CHECKPOINT, 0, failed(1, EXPIRED), True),
        (CheckpointType.SAVEPOINT, 0, failed(1, EXPIRED), False),
        (CheckpointType.SAVEPOINT, 0, declined(), True),
        (CheckpointType.SAVEPOINT, 0, BY_A_TASK, True),
        (CheckpointType.SAVEPOINT, 1, declined(), False),
        (CheckpointType.SAVEPOINT_SUSPEND, 0, failed(1, EXPIRED), False),
        (CheckpointType.SAVEPOINT_SUSPEND, 99, declined(), True),
        (CheckpointType.SAVEPOINT_TERMINATE, 99, BY_A_TASK, True),
    ],
)
def test_a_savepoint_fails_the_job_only_when_a_task_failed_it(
    type_: CheckpointType, tolerable: int, event: Event, fails_over: bool
) -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=tolerable), triggered(1, type=type_))

    status = after(state, event).status

    assert status is (JobStatus.RESTARTING if fails_over else JobStatus.RUNNING)


def test_failing_over_ends_everything_that_is_pending_or_queued() -> None:
    chain = [triggered(1), triggered(2, parent=1), triggered(3, parent=2)]
    state = after(a_submitted(max_concurrent=3), *chain, requested(a_request("waits")))

    transition = step(state, failed(2, Reason.TASK_FAILURE, is_task_failure=True))

    state = transition.state
    assert (state.pending, state.queue) == ((), ())
    assert {f.checkpoint_id: f.reason for f in state.failed} == {
        2: Reason.TASK_FAILURE,
        3: Reason.JOB_FAILOVER_REGION,
        1: Reason.JOB_FAILOVER_REGION,
    }
    assert state.rejected == (
        RejectedRequest(request_id="waits", reason=Reason.JOB_FAILOVER_REGION),
    )
    assert [c for c in transition.commands if isinstance(c, DiscardPending)] == [
        DiscardPending(checkpoint_id=CheckpointId(n)) for n in (2, 3, 1)
    ]


@pytest.mark.parametrize("strategy", [NO_RESTART, replace(ONCE, attempts=0)])
def test_a_job_without_restarts_left_has_failed(strategy: RestartStrategy) -> None:
    retention = Retention.NEVER_RETAIN_AFTER_TERMINATION
    state = after(a_submitted(restart=strategy, retention=retention), *a_checkpoint(1))
    (checkpoint,) = state.completed

    transition = step(state, job_failed())

    assert transition.state.status is JobStatus.FAILED
    assert transition.state.restart_at_ms is None
    assert transition.commands == (DiscardCompleted(checkpoint=checkpoint),)


def test_a_job_that_is_not_running_does_not_fail_over_again() -> None:
    state = after(a_submitted(), job_failed())

    transition = step(state, job_failed(at_ms=9_000))

    assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)


@pytest.mark.parametrize("status", STOPS)
def test_stopping_ends_what_is_pending_or_queued(status: JobStatus) -> None:
    state = after(a_submitted(), triggered(), requested(a_request("waits")))

    transition = step(state, stopped(status))

    assert transition.state.status is status
    assert (transition.state.pending, transition.state.queue) == ((), ())
    assert transition.commands == (DiscardPending(checkpoint_id=CheckpointId(1)),)
    assert transition.state.failed[0].reason is Reason.CHECKPOINT_COORDINATOR_SUSPEND
    assert transition.state.rejection("waits") is Reason.CHECKPOINT_COORDINATOR_SUSPEND


def test_stopping_a_restarting_job_cancels_its_restart() -> None:
    state = after(a_submitted(), job_failed(), stopped(JobStatus.SUSPENDED))

    assert (state.status, state.restart_at_ms) == (JobStatus.SUSPENDED, None)


def test_a_job_that_ended_is_not_stopped_again() -> None:
    canceled = after(a_submitted(), stopped(JobStatus.CANCELED))
    suspended = after(a_submitted(), stopped(JobStatus.SUSPENDED))

    assert step(canceled, stopped(JobStatus.FAILED)).verdict is Verdict.IGNORED
    assert step(suspended, stopped(JobStatus.SUSPENDED)).verdict is Verdict.IGNORED
    assert after(suspended, stopped(JobStatus.CANCELED)).status is JobStatus.CANCELED


@pytest.mark.parametrize("status", JobStatus)
def test_only_an_ended_or_suspended_job_is_terminal(status: JobStatus) -> None:
    ended = {JobStatus.CANCELED, JobStatus.FAILED, JobStatus.FINISHED}
    assert status.is_globally_terminal is (status in ended)
    assert status.is_terminal is (status in ended | {JobStatus.SUSPENDED})
