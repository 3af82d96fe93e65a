"""The ends of a checkpoint, completed or failed, and the job's state after each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import CheckpointType, JobStatus, Retention
from sluice.core.coordinator import step
from sluice.core.events import CheckpointCommitted, DiscardCompleted, DiscardPending, Event, Verdict
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId, Generation
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.state import REMEMBERED_FAILURES, CoordinatorState
from sluice.core.tables import TableDecision
from tests.builders import (
    a_checkpoint,
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
from tests.core_events import discarded, job_failed

NO_RESTART = RestartStrategy(type=RestartType.NONE)
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
    state = after(a_submitted(), triggered(1, drains=True), completed(), triggered(2, parent=1))

    transition = step(state, committed())

    assert transition.state.status is JobStatus.FINISHED
    assert transition.state.pending == ()
    assert DiscardPending(checkpoint_id=CheckpointId(2)) in transition.commands


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

    assert [one.message for one in ended.failed] == [because]


def test_a_checkpoint_that_fails_the_job_takes_others_along_by_name() -> None:
    state = after(a_submitted(max_concurrent=2), triggered(1), triggered(2, parent=1))

    ended = after(state, failed(2, Reason.TASK_FAILURE, is_task_failure=True))

    assert [(one.checkpoint_id, one.message) for one in ended.failed] == [
        (2, "because"),
        (1, "the job failed over: checkpoint 2 was aborted, TASK_FAILURE"),
    ]
