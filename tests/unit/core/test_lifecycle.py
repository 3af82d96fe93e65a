"""The job's own life: submitted, failed over, restored, stopped, ended.

With it the ends of a checkpoint, completed, committed or failed, and the job's state after each;
and what a restored job continues, forgets, and owes first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import (
    CheckpointType,
    ClaimMode,
    JobConfiguration,
    JobStatus,
    Retention,
)
from sluice.core.coordinator import step
from sluice.core.events import (
    CheckpointCommitted,
    DiscardCompleted,
    DiscardPending,
    Event,
    RootAdopted,
    SavepointsReleased,
    SnapshotsDiscarded,
    Verdict,
    refused,
)
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId, Generation, SavepointId
from sluice.core.lifecycle import next_generation
from sluice.core.plan import SnapshotOrigin
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.state import REMEMBERED_FAILURES, CoordinatorState, RejectedRequest
from sluice.core.tables import TableDecision, TableRecovery
from tests.builders import (
    a_checkpoint,
    a_request,
    a_submitted,
    after,
    committed,
    completed,
    declined,
    failed,
    ids_of,
    restored,
    stopped,
    submitted,
    triggered,
)
from tests.core_events import (
    discarded,
    hooks_restored,
    incarnations,
    job_failed,
    pending_discarded,
    released,
    repaired,
    requested,
    with_backlog,
)

NO_RESTART = RestartStrategy(type=RestartType.NONE)
ONCE = RestartStrategy(type=RestartType.FIXED_DELAY, attempts=1, delay_ms=500)
STOPS = (JobStatus.SUSPENDED, JobStatus.CANCELED, JobStatus.FAILED)


def test_a_submission_starts_a_running_job_of_the_next_generation() -> None:
    transition = step(CoordinatorState(), submitted(num_retained=7))

    assert (transition.verdict, transition.commands) == (Verdict.APPLIED, ())
    assert transition.state == CoordinatorState(
        status=JobStatus.RUNNING,
        status_since_ms=submitted().at_ms,
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
        status_since_ms=submitted().at_ms,
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
        claimed_savepoints=incarnations("theirs"),
        failed=ended.failed,
    )
    assert (ended.next_checkpoint_id, ids_of(ended.completed)) == (11, [9])
    assert (ids_of(ended.discarding), len(ended.failed)) == ([8], 1)


def test_a_status_begins_when_the_job_takes_it_and_a_restore_begins_it_anew() -> None:
    running = after(a_submitted(restart=ONCE), triggered(1))
    restarting = after(running, failed(1, at_ms=10_000, is_task_failure=True))
    back = replace(restored(None), at_ms=20_000)
    restored_ = after(restarting, back)
    again = after(restored_, replace(restored(None), at_ms=30_000, generation=Generation(3)))

    since = [state.status_since_ms for state in (running, restarting, restored_, again)]
    assert since == [submitted().at_ms, 10_000, 20_000, 30_000]


def test_one_failure_too_many_fails_the_job_over() -> None:
    state = after(
        a_submitted(tolerable_failed_checkpoints=1, restart=ONCE), triggered(1), failed(1)
    )

    transition = step(after(state, triggered(2)), failed(2, at_ms=10_000))

    assert transition.commands == pending_discarded(2)
    assert transition.state.status is JobStatus.RESTARTING
    assert transition.state.restart_at_ms == 10_500
    assert transition.state.restarts.attempts == 1


def test_a_tolerated_failure_aborts_the_checkpoint_alone() -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=1), triggered())

    transition = step(state, failed(at_ms=5))

    (remembered,) = transition.state.failed
    assert transition.commands == pending_discarded(1)
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
    assert transition.commands == pending_discarded(1)


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
    assert tuple(c for c in transition.commands if isinstance(c, DiscardPending)) == (
        pending_discarded(2, 3, 1)
    )


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
    assert transition.commands == pending_discarded(1)
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


SUSPEND = CheckpointType.SAVEPOINT_SUSPEND
TERMINATE = CheckpointType.SAVEPOINT_TERMINATE


def committed_and(checkpoint_id: int, *gone: int) -> CheckpointCommitted:
    return replace(committed(checkpoint_id), discarded=tuple(map(CheckpointId, gone)))


def a_failing() -> CoordinatorState:
    """Checkpoint 1 is completed, not committed; then the job failed for good."""
    return after(a_submitted(restart=NO_RESTART), triggered(1), completed(1), job_failed())


def test_completing_makes_the_base_and_owes_a_commit() -> None:
    state = after(a_submitted(), triggered(1, savepoint="s", cause="me"))

    transition = step(state, completed(at_ms=9))

    state = transition.state
    assert transition.verdict is Verdict.APPLIED
    assert transition.commands == ()
    assert state.latest_completed is not None
    assert not state.latest_completed.is_committed
    assert state.pending == ()
    assert (state.base, state.origin, state.last_completed_at_ms) == (1, None, 9)
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


def test_a_success_resets_the_failure_count() -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=1), triggered(1), failed(1))

    state = after(state, *a_checkpoint(2), triggered(3, parent=2), failed(3))

    assert (state.status, state.failure_count.continuous) == (JobStatus.RUNNING, 1)


def test_a_checkpoint_completes_after_its_parent_and_after_that_was_committed() -> None:
    chain = after(a_submitted(max_concurrent=2), triggered(1), triggered(2, parent=1))

    before_its_parent = step(chain, completed(2))
    before_the_commit = step(after(chain, completed(1)), completed(2))
    in_order = step(after(chain, completed(1), committed(1)), completed(2))

    assert before_its_parent.verdict is before_the_commit.verdict is Verdict.REFUSED
    assert before_its_parent.state == chain
    assert in_order.verdict is Verdict.APPLIED
    assert (in_order.state.base, in_order.state.completed[-1].parent) == (2, 1)


def test_a_completion_leaves_the_checkpoints_that_continue_it_pending() -> None:
    chain = after(a_submitted(max_concurrent=2), triggered(1), triggered(2, parent=1))

    state = after(chain, completed(1))

    assert [(p.checkpoint_id, p.parent) for p in state.pending] == [(2, 1)]
    assert (state.base, state.tip) == (1, 2)


def test_the_subsumed_is_listed_to_be_discarded_until_a_commit_did_it() -> None:
    state = after(a_submitted(num_retained=2), *a_checkpoint(1), *a_checkpoint(2, parent=1))

    transition = step(after(state, triggered(3, parent=2)), completed(3))

    state = transition.state
    assert transition.commands == ()
    assert (ids_of(state.completed), ids_of(state.discarding)) == ([2, 3], [1])
    assert ids_of(after(state, committed(3)).discarding) == [1]
    assert ids_of(after(state, committed_and(3, 1)).discarding) == []


def test_what_was_deleted_outside_of_a_commit_is_taken_off_the_list() -> None:
    state = after(a_submitted(num_retained=1), *a_checkpoint(1), *a_checkpoint(2, parent=1))

    transition = step(state, discarded(1, 2))

    assert (transition.verdict, transition.state.discarding) == (Verdict.APPLIED, ())
    assert ids_of(transition.state.completed) == [2]
    assert step(transition.state, discarded(1)).verdict is Verdict.IGNORED


@pytest.mark.parametrize("event", [completed(1), committed(1), failed(1), declined()])
def test_what_concerns_an_unknown_checkpoint_is_ignored(event: Event) -> None:
    state = a_submitted()

    transition = step(state, event)

    assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)
    assert transition.commands == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [(completed(), failed()), (failed(), completed()), (completed(), completed()),
     (failed(), failed()), (failed(), declined())],
)  # fmt: skip
def test_a_checkpoint_ends_once(first: Event, second: Event) -> None:
    state = after(a_submitted(tolerable_failed_checkpoints=9), triggered(), first)

    transition = step(state, second)

    assert (transition.verdict, transition.state) == (Verdict.IGNORED, state)


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
        ({"type": TERMINATE}, JobStatus.FINISHED),
        ({"type": SUSPEND}, JobStatus.SUSPENDED),
        ({"type": SUSPEND, "drains": True}, JobStatus.FINISHED),
        ({"type": CheckpointType.SAVEPOINT}, JobStatus.RUNNING),
    ],
)
def test_a_stopping_checkpoint_ends_the_job_when_it_is_committed(
    plan: dict[str, Any], status: JobStatus
) -> None:
    state = after(a_submitted(), triggered(1, **plan), completed())
    assert state.status is JobStatus.RUNNING

    assert after(state, committed()).status is status


def test_what_is_pending_when_the_job_ends_is_aborted() -> None:
    last = triggered(2, parent=1, token="p2")  # noqa: S106
    state = after(a_submitted(), triggered(1, drains=True), completed(), last)

    transition = step(state, committed())

    assert transition.state.status is JobStatus.FINISHED
    assert transition.state.pending == ()
    discard = DiscardPending(checkpoint_id=CheckpointId(2), plan="p2")
    assert discard in transition.commands


@pytest.mark.parametrize("retention", list(Retention))
def test_a_finished_job_discards_its_checkpoints_and_keeps_its_savepoints(
    retention: Retention,
) -> None:
    savepoint = a_checkpoint(2, parent=1, type=CheckpointType.SAVEPOINT)
    state = after(a_submitted(retention=retention), *a_checkpoint(1), *savepoint)
    state = after(state, triggered(3, parent=2, drains=True), completed(3))

    transition = step(state, committed(3))

    state = transition.state
    assert state.status is JobStatus.FINISHED
    assert (ids_of(state.completed), ids_of(state.discarding)) == ([2], [1, 3])
    assert transition.commands == tuple(DiscardCompleted(checkpoint=c) for c in state.discarding)
    assert (state.base, state.latest_completed) == (None, None)


@pytest.mark.parametrize("ended", [JobStatus.CANCELED, JobStatus.FAILED])
def test_a_late_commit_does_not_revive_a_job_that_ended(ended: JobStatus) -> None:
    state = after(a_submitted(), triggered(1, drains=True), completed(), stopped(ended))

    transition = step(state, committed())

    assert transition.verdict is Verdict.APPLIED
    assert transition.state.completed[0].is_committed
    assert transition.state.status is ended


def test_a_late_commit_does_not_suspend_a_job_that_was_resumed() -> None:
    state = after(a_submitted(), triggered(1, type=SUSPEND), completed(), restored(1))

    assert after(state, committed(generation=2)).status is JobStatus.RUNNING


def test_the_replayed_commit_of_the_last_epoch_finishes_the_resumed_job() -> None:
    state = after(a_submitted(), triggered(1, drains=True), completed(), restored(1))

    assert after(state, committed(generation=2)).status is JobStatus.FINISHED


@pytest.mark.parametrize(
    "next_life",
    [
        [restored(1, tables=TableDecision())],
        [restored(2, savepoint="of another job")],
        [stopped(JobStatus.CANCELED), submitted(generation=2)],
    ],
    ids=["an older checkpoint", "a savepoint", "resubmitted"],
)
def test_a_late_commit_does_not_finish_a_job_that_continues_from_elsewhere(
    next_life: list[Event],
) -> None:
    drained: list[Event] = [triggered(2, parent=1, drains=True), completed(2)]
    state = after(a_submitted(), *a_checkpoint(1), *drained, *next_life)

    state = after(state, committed(2, generation=2))

    assert state.completed[-1].is_committed
    assert state.status is JobStatus.RUNNING


def test_a_job_that_failed_for_good_is_failing_until_its_last_checkpoint_is_committed() -> None:
    state = a_failing()
    assert (state.status, state.restart_at_ms) == (JobStatus.FAILING, None)

    state = after(state, committed(1))

    assert (state.status, state.base) == (JobStatus.FAILED, 1)
    assert state.completed[0].is_committed


def test_a_failing_job_triggers_nothing_fails_no_more_and_is_not_submitted_again() -> None:
    state = a_failing()

    assert step(state, triggered(2, parent=1)).verdict is Verdict.REFUSED
    assert step(state, submitted(generation=2)).verdict is Verdict.REFUSED
    assert step(state, job_failed()).verdict is Verdict.IGNORED
    assert after(state, stopped(JobStatus.CANCELED)).status is JobStatus.CANCELED
    assert after(state, restored(1)).status is JobStatus.RUNNING


def test_a_savepoint_is_not_aborted_as_subsumed() -> None:
    state = after(a_submitted(), triggered(1, type=CheckpointType.SAVEPOINT))

    transition = step(state, failed(1, Reason.CHECKPOINT_SUBSUMED))

    assert (transition.verdict, transition.state) == (Verdict.REFUSED, state)
    assert transition.commands == ()
    assert step(state, failed(1)).verdict is Verdict.APPLIED


def test_only_the_newest_failures_are_remembered() -> None:
    state = a_submitted(tolerable_failed_checkpoints=100)

    for checkpoint_id in range(1, REMEMBERED_FAILURES + 3):
        state = after(state, triggered(checkpoint_id), failed(checkpoint_id))

    assert [f.checkpoint_id for f in state.failed] == [*range(3, REMEMBERED_FAILURES + 3)]
    assert state.failed_checkpoint(2) is None
    assert state.failed_checkpoint(3) == state.failed[0]


@pytest.mark.parametrize(
    ("event", "because"),
    [
        (stopped(JobStatus.CANCELED), "the job was stopped and is CANCELED"),
        (
            replace(stopped(JobStatus.FAILED), message="its checkpoint is damaged"),
            "its checkpoint is damaged",
        ),
        (restored(None), "the job was restored from the empty state"),
        (restored(7, savepoint="mine"), "the job was restored from savepoint mine"),
        (job_failed(), "the job failed over: a hook failed"),
    ],
)
def test_whatever_takes_a_checkpoint_along_says_why(event: Event, because: str) -> None:
    ended = after(a_submitted(), triggered(1), event)

    assert [failure.message for failure in ended.failed] == [because]


def test_a_checkpoint_that_fails_the_job_takes_others_along_by_name() -> None:
    state = after(a_submitted(max_concurrent=2), triggered(1), triggered(2, parent=1))

    ended = after(state, failed(2, Reason.TASK_FAILURE, is_task_failure=True))

    assert [(failure.checkpoint_id, failure.message) for failure in ended.failed] == [
        (2, "because"),
        (1, "the job failed over: checkpoint 2 was aborted, TASK_FAILURE"),
    ]


def test_a_restore_takes_the_next_generation_and_aborts_what_is_pending() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    state = after(state, triggered(3, parent=2), requested(a_request("waits")))

    transition = step(state, restored(1, tables=TableDecision()))

    state = transition.state
    assert transition.verdict is Verdict.APPLIED
    assert transition.commands == pending_discarded(3)
    assert (state.status, state.generation, state.base) == (JobStatus.RUNNING, 2, 1)
    assert (state.next_checkpoint_id, state.num_restarts) == (4, 0)
    assert ids_of(state.completed) == [1, 2]
    assert state.failed[0].reason is Reason.JOB_FAILOVER_REGION
    assert state.rejection("waits") is Reason.JOB_FAILOVER_REGION


def test_a_restore_ends_the_pause_of_a_restarting_job_and_forgets_the_backlog() -> None:
    state = after(a_submitted(), triggered(sources=with_backlog()), failed(is_task_failure=True))
    assert state.is_backlog

    state = after(state, restored(None))

    assert (state.status, state.restart_at_ms, state.base) == (JobStatus.RUNNING, None, None)
    assert not state.is_backlog


def test_a_restore_to_an_unknown_checkpoint_is_refused() -> None:
    state = after(a_submitted(), *a_checkpoint(1))

    transition = step(state, restored(7))

    assert (transition.verdict, transition.state) == (Verdict.REFUSED, state)


def test_a_restore_that_was_asked_for_once_is_served_once_however_often_its_task_is_tried() -> None:
    first = restored(1, cause="mine")
    state = after(a_submitted(), *a_checkpoint(1), first, *a_checkpoint(2, parent=1, generation=2))

    again = step(state, restored(1, generation=3, cause="mine"))
    another = step(state, restored(1, generation=3, cause="theirs", tables=TableDecision()))

    assert (again.verdict, again.state) == (Verdict.IGNORED, state)
    assert another.verdict is Verdict.APPLIED
    assert [served.cause for served in another.state.served] == ["mine", "theirs"]


def test_a_root_that_is_adopted_is_of_the_next_generation_which_fences_the_original() -> None:
    state = after(a_submitted(), triggered())
    adopted = RootAdopted(at_ms=9_000, generation=Generation(2), place="s3://copy")

    transition = step(state, adopted)

    assert (transition.state.place, transition.state.generation) == ("s3://copy", 2)
    assert transition.state.pending == ()
    assert transition.state.failed[-1].message == "the job's root is s3://copy now"
    nobody = step(CoordinatorState(), replace(adopted, generation=Generation(1)))
    assert nobody.verdict is Verdict.REFUSED


def test_a_restore_from_a_savepoint_continues_its_id() -> None:
    origin = SnapshotOrigin(checkpoint_id=CheckpointId(7), savepoint="moved-here")
    state = after(CoordinatorState(), restored(7, generation=1, savepoint="moved-here"))
    assert (state.base, state.origin, state.next_checkpoint_id) == (7, origin, 8)
    assert state.latest_completed is None

    state = after(state, *a_checkpoint(8, parent=7, origin=origin))

    assert (state.origin, state.latest_completed) == (None, state.completed[0])


def test_a_restore_from_an_older_snapshot_does_not_turn_ids_back() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))

    assert after(state, restored(1, savepoint="older")).next_checkpoint_id == 3
    assert after(state, restored(1, tables=TableDecision())).next_checkpoint_id == 3
    assert after(state, restored(None)).next_checkpoint_id == 3


def test_a_restore_may_bring_another_configuration() -> None:
    wider = JobConfiguration(parallelism=8)

    assert after(a_submitted(), restored(None, configuration=wider)).configuration == wider
    assert after(a_submitted(num_retained=9), restored(None)).configuration.num_retained == 9


def test_dropped_in_flight_data_is_dropped_until_a_checkpoint_without_it_completed() -> None:
    state = after(a_submitted(), *a_checkpoint(1), restored(1, ignores_in_flight=True))
    assert state.ignores_in_flight

    state = after(state, triggered(2, parent=1, generation=2), completed(2, generation=2))

    assert not state.ignores_in_flight


@pytest.mark.parametrize(
    ("claim_mode", "claimed"),
    [(ClaimMode.CLAIM, incarnations("theirs")), (ClaimMode.NO_CLAIM, ())],
)
def test_a_claimed_savepoint_is_ours_until_it_is_deleted(
    claim_mode: ClaimMode, claimed: tuple[SavepointId, ...]
) -> None:
    again = restored(7, savepoint="theirs", generation=3, claim_mode=claim_mode)
    state = after(a_submitted(), restored(7, savepoint="theirs", claim_mode=claim_mode), again)
    assert (state.claimed_savepoints, state.claim_mode) == (claimed, claim_mode)

    transition = step(state, discarded(savepoints=("theirs",), generation=3))

    assert transition.state.claimed_savepoints == ()
    assert transition.verdict is (Verdict.APPLIED if claimed else Verdict.IGNORED)


def test_a_checkpoint_of_another_root_has_nothing_to_claim() -> None:
    origin = SnapshotOrigin(checkpoint_id=CheckpointId(7), root="s3://other", pipeline="auctions")

    state = after(a_submitted(), restored(7, origin=origin, claim_mode=ClaimMode.CLAIM))

    assert state.claimed_savepoints == ()


def test_hooks_are_restored_once_and_by_the_generation_that_restored() -> None:
    state = after(a_submitted(), restored(None, has_hooks=True))
    assert state.must_restore_hooks

    transition = step(state, hooks_restored())

    assert transition.state == replace(state, must_restore_hooks=False)
    assert step(transition.state, hooks_restored()).verdict is Verdict.IGNORED
    assert step(state, hooks_restored(generation=1)).verdict is Verdict.FENCED


def test_a_restore_of_the_latest_is_refused_when_another_completed_meanwhile() -> None:
    """Its coordinator may be about to publish it: its rows would be published again."""
    chosen = after(a_submitted(), *a_checkpoint(1))
    meanwhile = after(chosen, triggered(2, parent=1), completed(2))

    assert step(meanwhile, restored(1, is_latest=True)).verdict is Verdict.REFUSED
    decided = TableDecision()
    is_latest = step(meanwhile, restored(1, is_latest=True, tables=decided))
    assert is_latest.verdict is Verdict.REFUSED
    assert step(meanwhile, restored(1, tables=decided)).verdict is Verdict.APPLIED
    assert step(chosen, restored(1, is_latest=True)).verdict is Verdict.APPLIED


def test_nothing_is_restored_from_a_claimed_savepoint_that_is_being_deleted() -> None:
    claimed = after(a_submitted(), restored(7, savepoint="theirs", claim_mode=ClaimMode.CLAIM))

    in_use = step(claimed, released("theirs", generation=2))
    free = after(claimed, *a_checkpoint(8, parent=7, generation=2, origin=claimed.origin))
    releasing = after(free, released("theirs", "not ours", generation=2))
    again = step(releasing, released("theirs", generation=2))
    restoring = step(releasing, restored(7, savepoint="theirs", generation=3))
    gone = after(releasing, discarded(savepoints=("theirs",), generation=2))

    assert in_use.verdict is Verdict.IGNORED
    assert releasing.releasing_savepoints == incarnations("theirs")
    assert (again.verdict, restoring.verdict) == (Verdict.IGNORED, Verdict.REFUSED)
    assert (gone.claimed_savepoints, gone.releasing_savepoints) == ((), ())


def test_an_owner_disposes_of_a_savepoint_that_the_job_does_not_need() -> None:
    """It is the job's to delete from then on, and no restore begins from it."""
    state = after(a_submitted(), *a_checkpoint(1))

    disposed = step(state, released("theirs", "theirs", is_disposal=True))
    restoring = step(disposed.state, restored(7, savepoint="theirs"))
    again = step(disposed.state, released("theirs", is_disposal=True))
    gone = after(disposed.state, discarded(savepoints=("theirs",)))

    theirs = incarnations("theirs")
    assert disposed.state == replace(
        state, claimed_savepoints=theirs, releasing_savepoints=theirs, num_releases=1
    )
    assert (restoring.verdict, again.verdict) == (Verdict.REFUSED, Verdict.IGNORED)
    assert gone == replace(state, num_releases=1)


def test_nothing_is_restored_from_what_was_verified_before_a_release() -> None:
    """The state forgets what was released once its files are gone, and remembers that it was."""
    verified = restored(7, savepoint="theirs")
    state = after(
        a_submitted(),
        *a_checkpoint(1),
        released("theirs", is_disposal=True),
        discarded(savepoints=("theirs",)),
    )

    assert step(state, verified).verdict is Verdict.REFUSED
    assert step(state, replace(verified, releases=1)).verdict is Verdict.APPLIED
    elsewhere = replace(
        verified, origin=SnapshotOrigin(checkpoint_id=CheckpointId(7), root="s3://other")
    )
    assert step(state, elsewhere).verdict is Verdict.APPLIED


def test_another_incarnation_of_a_name_is_another_savepoint() -> None:
    old, new = SavepointId("nightly", "a"), SavepointId("nightly", "b")
    origin = replace(
        SnapshotOrigin(checkpoint_id=CheckpointId(7), savepoint=new.name), token=new.token
    )
    state = after(
        a_submitted(),
        *a_checkpoint(1),
        restored(7, origin=origin, claim_mode=ClaimMode.CLAIM),
    )

    def disposal(of: SavepointId) -> SavepointsReleased:
        return SavepointsReleased(generation=Generation(2), savepoints=(of,), is_disposal=True)

    of_the_old_one, of_the_new_one = disposal(old), disposal(new)
    disposed = step(state, of_the_old_one)

    assert state.claimed_savepoints == (new,)
    assert step(state, of_the_new_one).verdict is Verdict.IGNORED
    assert disposed.state.releasing_savepoints == (old,)
    gone = SnapshotsDiscarded(generation=Generation(2), savepoints=(old,))
    assert step(disposed.state, gone).state.claimed_savepoints == (new,)


def test_no_savepoint_is_disposed_of_that_is_restored_claimed_or_being_taken() -> None:
    running = after(a_submitted(), *a_checkpoint(1))
    of = CheckpointType.SAVEPOINT
    pending = after(running, triggered(2, parent=1, savepoint="theirs", type=of))
    used = {
        "restored": after(running, restored(7, savepoint="theirs")),
        "claimed": after(
            running,
            restored(7, savepoint="theirs", claim_mode=ClaimMode.CLAIM),
            restored(1, generation=3, tables=TableDecision()),
        ),
        "pending": pending,
        "not committed": after(pending, completed(2)),
    }

    for state in used.values():
        named, other = (
            released(name, generation=state.generation, is_disposal=True)
            for name in ("theirs", "other")
        )
        assert step(state, named).verdict is Verdict.IGNORED
        assert step(state, other).verdict is Verdict.APPLIED


def test_a_start_from_empty_is_refused_once_a_checkpoint_has_completed() -> None:
    """A restore finds none, and before it is journaled another coordinator completes one."""
    transition = step(after(a_submitted(), *a_checkpoint(1)), restored(None))

    assert transition.verdict is Verdict.REFUSED
    assert transition.state.base == 1


def test_a_repair_fences_who_knew_the_lost_entries_and_restarts_the_job() -> None:
    before = after(a_submitted(), triggered(1))

    transition = step(before, repaired())

    now = transition.state
    assert transition.verdict is Verdict.APPLIED
    assert (now.status, now.generation, now.next_checkpoint_id) == (JobStatus.RESTARTING, 4, 12)
    assert (now.pending, ids_of(now.completed), now.base) == ((), [], None)
    assert [one.reason for one in now.failed] == [Reason.JOB_FAILOVER_REGION]
    assert step(now, completed(1)).verdict is Verdict.FENCED


def test_a_repair_completes_what_a_lost_entry_had_completed() -> None:
    before = after(a_submitted(max_concurrent=2), triggered(1), triggered(2, parent=1))

    now = step(before, repaired(completed(1))).state

    assert (ids_of(now.completed), now.base, now.status) == ([1], 1, JobStatus.RESTARTING)
    assert [one.checkpoint_id for one in now.failed] == [2]


def test_a_repair_that_names_what_was_not_pending_is_refused() -> None:
    before = a_submitted()

    assert step(before, repaired(completed(1))) == refused(before)
