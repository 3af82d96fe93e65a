"""The coordinator's memory cannot hold what its rules exclude."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, CheckpointIdCounter
from sluice.core.plan import CheckpointPlan, Slice, SnapshotOrigin, SourceCut, journaled
from sluice.core.state import CoordinatorState, FailedCheckpoint
from tests.builders import a_checkpoint, a_plan, a_request, a_submitted, after, triggered
from tests.core_events import requested


def a_chain() -> CoordinatorState:
    return after(a_submitted(max_concurrent=2), triggered(1), triggered(2, parent=1))


@pytest.mark.parametrize(
    "changes",
    [
        {"base": CheckpointId(1)},
        {"pending": a_chain().pending[::-1]},
        {"pending": a_chain().pending[1:]},
        {"ids": CheckpointIdCounter(next_id=CheckpointId(2))},
        {"status": JobStatus.RESTARTING},
    ],
    ids=["another base", "out of order", "a link is missing", "an id to come", "not running"],
)
def test_pending_checkpoints_are_a_chain_of_a_running_job(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="pending"):
        replace(a_chain(), **changes)


def test_only_a_running_job_has_a_queue() -> None:
    state = after(a_submitted(), triggered(1), requested(a_request()))

    with pytest.raises(ValueError, match="rejects what is queued"):
        replace(state, pending=(), status=JobStatus.FAILED)


def test_a_new_checkpoint_continues_the_newest_pending_one_else_the_base() -> None:
    assert CoordinatorState().tip is None
    assert after(a_submitted(), *a_checkpoint(1)).tip == 1
    assert a_chain().tip == 2


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        (SnapshotOrigin(checkpoint_id=CheckpointId(7)), "checkpoint 7"),
        (SnapshotOrigin(checkpoint_id=CheckpointId(7), savepoint="x"), "savepoint x"),
        (
            SnapshotOrigin(checkpoint_id=CheckpointId(7), root="s3://b", pipeline="p"),
            "checkpoint 7 of s3://b/p",
        ),
        (
            SnapshotOrigin(
                checkpoint_id=CheckpointId(7), savepoint="x", root="s3://b", pipeline="p"
            ),
            "savepoint x of s3://b/p",
        ),
    ],
)
def test_an_origin_says_what_it_is_and_where(origin: SnapshotOrigin, name: str) -> None:
    assert str(origin) == name


@pytest.mark.parametrize("changes", [{"tasks": ()}, {"parent": 5}, {"parent": 6}])
def test_a_plan_has_stages_and_an_older_parent(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a checkpoint"):
        a_plan(5, **changes)


def test_a_plan_finds_its_parts_by_name() -> None:
    plan: CheckpointPlan = a_plan()

    assert plan.source("events") == plan.sources[0]
    assert plan.task("rank_bids") == plan.tasks[1]
    assert (plan.records, plan.is_backlog) == (10, False)


def test_the_journal_has_one_piece_of_each_partition() -> None:
    first, other = _slice("a", 0, 10), _slice("b", 0, 5)
    cut = SourceCut(uid="events", position=(), slices=(first, other, _slice("a", 10, 30)))

    (kept,) = journaled(a_plan(sources=(cut,))).sources

    assert kept.slices == (_slice("a", 0, 30), other)


def _slice(partition: str, start: int, end: int) -> Slice:
    return Slice(partition=partition, start=start, end=end, first_record=start, records=end - start)


@pytest.mark.parametrize(("message", "tail"), [("", ""), ("disk full", ": disk full")])
def test_a_failed_checkpoint_says_its_reason_and_what_is_known(message: str, tail: str) -> None:
    failed = FailedCheckpoint(
        checkpoint_id=CheckpointId(3),
        type=CheckpointType.CHECKPOINT,
        triggered_at_ms=1,
        failed_at_ms=2,
        reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
        message=message,
    )

    assert str(failed) == f"checkpoint 3 was aborted, CHECKPOINT_EXPIRED{tail}"


def test_processing_time_is_not_behind_that_of_the_checkpoint_which_is_continued() -> None:
    state = after(a_submitted(max_concurrent=2), triggered(1, processing_time_ms=5_000))

    assert state.tip_processing_time_ms == 5_000
    completed_ = after(a_submitted(), *a_checkpoint(1, processing_time_ms=5_000))
    assert (completed_.pending, completed_.tip_processing_time_ms) == ((), 5_000)
