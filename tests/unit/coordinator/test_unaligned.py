"""Unaligned checkpoints: no stage waits for another, and what was not consumed stays in flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.jobs import a_running_job, published_records, trigger_one
from sluice.coordinator.failure import fail_checkpoint, start_attempt
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure
from sluice.coordinator.trigger import NotTriggered, Queued, trigger
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import NotYetAcknowledged
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.in_flight import (
    COUNT,
    RANK,
    THREE_STAGES,
    TOP,
    TWO,
    absorbed,
    an_unaligned_job,
    complete,
    in_flight,
    is_one_cut,
    last_stage_first,
)
from tests.subtasks import (
    acknowledge,
    take_checkpoint,
)


def test_no_stage_waits_for_another_and_rows_move_one_stage_an_epoch() -> None:
    job = an_unaligned_job()

    taken = [last_stage_first(job) for _ in range(5)]

    assert [task.is_unaligned for task in trigger_one(job).tasks] == [False, True, True]
    assert all(is_one_cut(job, checkpoint_id) for checkpoint_id in taken[-3:])
    assert [len(absorbed(job, taken[-1], stage)) for stage in THREE_STAGES] == [50, 40, 30]
    assert published_records(job) == list(range(30))


@pytest.mark.parametrize("type_", [CheckpointType.SAVEPOINT, CheckpointType.SAVEPOINT_TERMINATE])
def test_a_savepoint_and_a_drain_wait_for_everything_that_is_in_flight(
    type_: CheckpointType,
) -> None:
    job = an_unaligned_job()
    for _ in range(5):
        last_stage_first(job)

    plan = trigger_one(job, type=type_, savepoint_name="mine", is_periodic=False)
    with pytest.raises(NotYetAcknowledged, match="0 of 2 subtasks of stage 'rank_bids' have ackn"):
        acknowledge(job, plan, TOP)
    acknowledge(job, plan)
    complete(job, plan)

    assert [task.is_unaligned for task in plan.tasks] == [False] * 3
    assert [len(absorbed(job, plan.checkpoint_id, stage)) for stage in THREE_STAGES] == [60] * 3
    assert job.savepoint_metadata("mine").stages[1].in_flight_segments == ()
    assert published_records(job) == list(range(60))


def test_the_end_of_the_input_is_aligned() -> None:
    job = an_unaligned_job(events=35)
    for _ in range(3):
        last_stage_first(job)

    take_checkpoint(job)

    assert job.state().status is JobStatus.FINISHED
    assert published_records(job) == list(range(35))


def test_unaligned_checkpoints_do_not_overlap_not_even_when_forced() -> None:
    job = an_unaligned_job()
    trigger_one(job)

    assert isinstance(trigger(job, is_forced=True, is_periodic=False), Queued)


@pytest.mark.parametrize("failures", [(), (2,), (3, 5), (2, 3, 4, 5)])
def test_a_restore_with_rows_in_flight_gives_what_no_failure_gives(
    failures: tuple[int, ...],
) -> None:
    job = an_unaligned_job()
    for number in range(1, 7):
        if number in failures:
            plan = trigger_one(job)
            acknowledge(job, plan, TOP)
            task_failure = Reason.TASK_FAILURE
            fail_checkpoint(job, plan.checkpoint_id, task_failure, "lost", is_task_failure=True)
            restore(job, Latest())
        taken = last_stage_first(job)

    assert is_one_cut(job, taken)
    assert [len(absorbed(job, taken, stage)) for stage in THREE_STAGES] == [60, 50, 40]
    assert published_records(job) == list(range(40))


def test_a_restore_may_change_the_parallelism_with_rows_in_flight() -> None:
    job = an_unaligned_job()
    for _ in range(3):
        last_stage_first(job)

    restore(job, Latest(), configuration=configure(job.pipeline, {}, parallelism=3))
    wide = last_stage_first(job)

    assert is_one_cut(job, wide)
    assert published_records(job) == list(range(20))


def test_an_attempt_that_runs_again_reads_the_same_rows_in_flight() -> None:
    job = an_unaligned_job()
    last_stage_first(job)
    plan = trigger_one(job)
    acknowledge(job, plan, RANK)
    start_attempt(job, TWO, RANK)

    for stage in (COUNT, TOP):
        acknowledge(job, plan, stage)
    acknowledge(job, plan, RANK, attempt=2)
    complete(job, plan)

    assert absorbed(job, TWO) == list(range(10))
    assert in_flight(job, TWO) == list(range(10, 20))


def test_an_epoch_without_new_records_is_taken_while_rows_are_in_flight(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ann\nbob\ncid\n")
    pipeline = Pipeline("auctions", Checkpointing(unaligned=True))
    lines = pipeline.source("lines", Files(str(tmp_path / "names.txt"), bounded=False))
    counted = lines.key_by("line").aggregate(COUNT, n=agg.count())
    counted.key_by("line").aggregate(RANK, n=agg.count()).sink(
        "results", FilesTable(changelog=True)
    )
    job = a_running_job(pipeline)

    assert in_flight(job, last_stage_first(job)) == [0, 1, 2]
    assert absorbed(job, last_stage_first(job)) == [0, 1, 2]
    assert trigger(job) == NotTriggered(
        reason=None, message="no new records since the last checkpoint"
    )
    assert published_records(job) == [0, 1, 2]
