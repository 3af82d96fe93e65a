"""Several checkpoints at once, and unaligned ones.

With concurrent checkpoints a stage is on epoch n + 1 while the one behind it is on n.  With
unaligned ones no stage waits for another, and what was not consumed stays in flight.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.jobs import (
    COUNT,
    ONE,
    RANK,
    STAGES,
    THREE,
    TWO,
    ManualClock,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    results,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, start_attempt, watch
from sluice.coordinator.planning import NothingToDo
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure
from sluice.coordinator.trigger import Queued, trigger
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import FencedError, NotYetAcknowledged
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.in_flight import (
    THREE_STAGES,
    TOP,
    absorbed,
    an_unaligned_job,
    complete,
    in_flight,
    is_one_cut,
    last_stage_first,
)
from tests.subtasks import acknowledge, carry_out, finish, state_records, take_checkpoint

EXPIRED = Reason.CHECKPOINT_EXPIRED


def a_pipelined_job(concurrent: int = 2, **checkpointing: Any) -> Job:
    given: dict[str, Any] = {"tolerable_failed_checkpoints": 9} | checkpointing
    return a_running_job(a_pipeline(max_concurrent_checkpoints=concurrent, **given))


def files_of(job: Job) -> list[str]:
    return [key for key in keys_of(job) if "/journal/" not in key]


def has_absorbed(job: Job, checkpoint_id: CheckpointId, records: int) -> bool:
    metadata = job.metadata(checkpoint_id)
    return all(state_records(job, metadata, uid) == list(range(records)) for uid in STAGES)


def test_a_stage_begins_the_next_epoch_while_the_one_behind_it_is_on_this() -> None:
    job = a_pipelined_job()
    one, two = trigger_one(job), trigger_one(job)

    acknowledge(job, one, COUNT)
    acknowledge(job, two, COUNT)
    acknowledge(job, one, RANK)
    finish(job, ONE)
    acknowledge(job, two, RANK)
    finish(job, TWO)

    assert (one.parent, two.parent) == (None, ONE)
    assert [two.starts_lineage, one.starts_lineage] == [False, True]
    assert has_absorbed(job, ONE, 10)
    assert has_absorbed(job, TWO, 20)
    assert published_records(job) == list(range(20))


def test_a_stage_waits_for_what_it_reads_and_for_its_own_earlier_epoch() -> None:
    job = a_pipelined_job()
    one, two = trigger_one(job), trigger_one(job)
    with pytest.raises(NotYetAcknowledged, match="0 of 2 subtasks of stage 'count_bids' have ackn"):
        acknowledge(job, two, COUNT)
    acknowledge(job, one, COUNT)
    acknowledge(job, two, COUNT)

    with pytest.raises(NotYetAcknowledged, match="0 of 2 subtasks of stage 'rank_bids' have ackno"):
        acknowledge(job, two, RANK)


def test_no_checkpoint_completes_before_its_parent_and_none_before_that_is_published() -> None:
    job = a_pipelined_job()
    one, two = trigger_one(job), trigger_one(job)
    acknowledge(job, one)
    acknowledge(job, two)

    with pytest.raises(NotYetAcknowledged, match="2 continues checkpoint 1, which is still pend"):
        finalize(job, TWO)
    finalize(job, ONE)  # And its own commit never comes.
    finalize(job, TWO)

    assert results(job).versions() == (1,)
    assert [completed.is_committed for completed in job.state().completed] == [True, False]
    commit(job, TWO)
    assert [manifest.parent for manifest in results(job).chain()] == [None, 1]


def test_the_next_one_waits_when_as_many_as_may_be_are_pending() -> None:
    job = a_pipelined_job(3)
    for _ in range(3):
        trigger_one(job)

    assert trigger(job, request_id="mine") == Queued(
        request_id="mine", message="checkpoint 3 is still pending"
    )


@pytest.mark.parametrize("stops", ["SAVEPOINT_SUSPEND", "SAVEPOINT_TERMINATE"])
def test_nothing_follows_a_checkpoint_that_ends_the_job(stops: str) -> None:
    job = a_pipelined_job(3)
    trigger_one(job)
    trigger_one(job, type=CheckpointType(stops), savepoint_name="mine", is_periodic=False)

    assert isinstance(trigger(job), Queued)


def test_nothing_follows_the_end_of_the_input() -> None:
    job = a_running_job(a_pipeline(events=15, max_concurrent_checkpoints=3))
    one, two = trigger_one(job), trigger_one(job)
    assert isinstance(trigger(job), Queued)

    acknowledge(job, one)
    acknowledge(job, two)
    finish(job, ONE)
    finish(job, TWO)

    assert (two.drains, job.state().status) == (True, JobStatus.FINISHED)
    assert published_records(job) == list(range(15))


def test_an_aborted_parent_takes_its_children_and_their_files_along() -> None:
    job = a_pipelined_job(3)
    take_checkpoint(job)
    before = files_of(job)
    two, three = trigger_one(job), trigger_one(job)
    trigger_one(job)
    acknowledge(job, two, COUNT)
    acknowledge(job, three, COUNT)

    state = fail_checkpoint(job, TWO, EXPIRED, "too slow")

    assert state.pending == ()
    statistics = [job.paths.statistics(number) for number in (2, 3, 4)]
    assert files_of(job) == sorted([*before, *statistics])
    assert [(f.checkpoint_id, f.reason) for f in state.failed] == [
        (2, EXPIRED),
        (3, Reason.JOB_FAILOVER_REGION),
        (4, Reason.JOB_FAILOVER_REGION),
    ]
    assert len(state.failure_count.counted_ids) == 1
    assert has_absorbed(job, take_checkpoint(job), 20)


def test_an_aborted_child_leaves_its_parent_alone() -> None:
    job = a_pipelined_job()
    one, two = trigger_one(job), trigger_one(job)
    acknowledge(job, one)
    before = files_of(job)
    acknowledge(job, two, COUNT)

    fail_checkpoint(job, TWO, EXPIRED, "too slow")

    assert files_of(job) == sorted(
        [
            *(key for key in before if key != job.paths.plan(TWO)),
            job.paths.statistics(TWO),
        ]
    )
    finish(job, ONE)
    three = trigger_one(job)
    carry_out(job, three)
    assert (three.parent, has_absorbed(job, THREE, 20)) == (ONE, True)
    assert published_records(job) == list(range(20))


def test_a_stage_that_runs_again_ends_the_checkpoints_that_continue_it() -> None:
    job = a_pipelined_job()
    one, two = trigger_one(job), trigger_one(job)
    acknowledge(job, one, COUNT)
    acknowledge(job, two, COUNT)

    assert start_attempt(job, ONE, COUNT) == 2

    state = job.state()
    assert [pending.checkpoint_id for pending in state.pending] == [1]
    assert [f.message for f in state.failed] == ["stage 'count_bids' of checkpoint 1 runs again"]
    left = [key for key in files_of(job) if f"/{TWO:010d}" in key]
    assert left == [job.paths.statistics(TWO)]
    with pytest.raises(FencedError, match="checkpoint 2 was aborted, JOB_FAILOVER_REGION"):
        finalize(job, TWO)
    acknowledge(job, one, COUNT, attempt=2)
    three = trigger_one(job)
    acknowledge(job, three, COUNT)
    acknowledge(job, one, RANK, attempt=2)  # It runs again with the stage that it reads.
    acknowledge(job, three, RANK)
    finish(job, ONE)
    finish(job, THREE)
    assert has_absorbed(job, THREE, 20)


def test_a_stage_of_a_child_that_runs_again_leaves_the_parent_alone() -> None:
    job = a_pipelined_job()
    one, two = trigger_one(job), trigger_one(job)
    acknowledge(job, one)
    acknowledge(job, two, COUNT)

    assert start_attempt(job, TWO, COUNT) == 2

    assert [p.attempt_of(COUNT) for p in job.state().pending] == [1, 2]
    with pytest.raises(FencedError, match="checkpoint 7 ended before stage 'count_bids' ran again"):
        start_attempt(job, CheckpointId(7), COUNT)


def test_the_watchdog_tells_of_an_expired_chain_once() -> None:
    clock = ManualClock()
    pipeline = a_pipeline(
        max_concurrent_checkpoints=2,
        tolerable_failed_checkpoints=9,
        timeout=timedelta(minutes=1),
    )
    job = a_running_job(pipeline, clock=clock)
    trigger_one(job)
    trigger_one(job)
    clock.advance(60_000)

    assert watch(job).actions == ("aborted checkpoint 1: CHECKPOINT_EXPIRED",)
    assert job.state().pending == ()


def test_a_failure_with_a_chain_under_way_starts_from_the_last_completed_one() -> None:
    job = a_pipelined_job()
    one, two = trigger_one(job), trigger_one(job)
    acknowledge(job, one)
    finalize(job, ONE)
    acknowledge(job, two, COUNT)
    fail_checkpoint(job, TWO, Reason.TASK_FAILURE, "lost", is_task_failure=True)

    restore(job, Latest())
    three, four = trigger_one(job), trigger_one(job)
    acknowledge(job, three)
    acknowledge(job, four)
    finish(job, THREE)
    finish(job, four.checkpoint_id)

    assert (three.starts_lineage, four.starts_lineage) == (True, False)
    assert has_absorbed(job, four.checkpoint_id, 30)
    assert published_records(job) == list(range(30))


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
    assert trigger(job) == NothingToDo(message="no new records since the last checkpoint")
    assert published_records(job) == [0, 1, 2]
