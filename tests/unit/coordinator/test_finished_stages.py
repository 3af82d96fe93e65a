"""Checkpoints after a source has ended: its finished stages are skipped, their state is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.jobs import a_running_job, keys_of, published_records, results, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.trigger import NotTriggered, Queued, trigger
from sluice.core.configuration import JobStatus
from sluice.core.event_time import MAX_WATERMARK
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import FromCheckpoint, Latest, RestoreOptions
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    in_flight_records,
    state_records,
    take_checkpoint,
)

COUNT, RANK, CLICKS = "count_bids", "rank_bids", "count_clicks"
ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)


def a_chain_with_an_ending_source(
    clicks: int = 0, *, cleaned: bool = False, **checkpointing: Any
) -> Pipeline:
    """Two stages read 15 events in two epochs of ten; a third reads clicks without an end."""
    usual = {"max_records_per_epoch": 10, "data_inline_threshold": 0}
    pipeline = Pipeline("auctions", checkpointing=Checkpointing(**usual | checkpointing))
    events = pipeline.source("events", Nexmark(15))
    if cleaned:
        events = events.transform("clean", lambda rows: rows)
    counted = events.key_by("bid_auction")
    ranked = counted.aggregate(COUNT, bids=agg.count()).key_by("bids")
    ranked.aggregate(RANK, bids=agg.count()).sink("results", FilesTable(changelog=True))
    clicked = pipeline.source("clicks", Nexmark(clicks)).key_by("bid_auction")
    clicked.aggregate(CLICKS, n=agg.count()).sink("clicked", FilesTable(changelog=True))
    return pipeline


def a_job_with_an_ending_source(clicks: int = 0, **checkpointing: Any) -> Job:
    return a_running_job(a_chain_with_an_ending_source(clicks, **checkpointing))


def running(plan: CheckpointPlan) -> list[str]:
    return [task.uid for task in plan.tasks]


def counted(job: Job, checkpoint_id: CheckpointId) -> list[int]:
    """How many records each stage has absorbed."""
    metadata = job.metadata(checkpoint_id)
    return [len(state_records(job, metadata, stage)) for stage in (COUNT, RANK, CLICKS)]


def test_who_has_seen_the_end_is_skipped_and_carried() -> None:
    job = a_job_with_an_ending_source()
    take_checkpoint(job)
    take_checkpoint(job)
    before = job.metadata(TWO)

    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, THREE)
    commit(job, THREE)
    take_checkpoint(job)

    assert (running(plan), plan.finished) == ([CLICKS], (COUNT, RANK))
    metadata = job.metadata(THREE)
    assert [stage.is_finished for stage in metadata.stages] == [True, True, False]
    for stage, ended in zip(before.stages[:2], metadata.stages[:2], strict=True):
        assert ended.watermark_ms == MAX_WATERMARK
        assert [s.state for s in ended.subtasks] == [s.state for s in stage.subtasks]
        assert all(subtask.output == () for subtask in ended.subtasks)
    assert (metadata.tables["results"], metadata.tables["clicked"]) == (2, 3)
    assert counted(job, CheckpointId(4)) == [15, 15, 40]
    assert published_records(job) == list(range(15))
    assert job.state().status is JobStatus.RUNNING


def test_the_files_of_a_finished_stage_outlive_the_checkpoints_it_took_part_in() -> None:
    job = a_job_with_an_ending_source(num_retained=1)

    for _ in range(5):
        last = take_checkpoint(job)

    assert counted(job, last) == [15, 15, 50]
    assert not keys_of(job, "auctions/streams/")  # No stage reads them any more.


def test_the_job_may_refuse_checkpoints_once_a_source_has_ended() -> None:
    job = a_job_with_an_ending_source(checkpoints_after_tasks_finish=False)
    take_checkpoint(job)
    take_checkpoint(job)

    assert trigger(job) == NotTriggered(
        reason=Reason.NOT_ALL_REQUIRED_TASKS_RUNNING,
        message="'count_bids' has finished, and checkpoints_after_tasks_finish is off",
    )


def test_the_job_finishes_with_its_last_source() -> None:
    job = a_job_with_an_ending_source(clicks=35)
    for _ in range(3):
        take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    assert counted(job, plan.checkpoint_id) == [15, 15, 35]

    state = commit(job, plan.checkpoint_id)

    assert (running(plan), plan.drains, state.status) == ([CLICKS], True, JobStatus.FINISHED)
    assert published_records(job) == list(range(15))


def test_after_a_restore_who_had_finished_stays_so_and_its_table_keeps_its_rows() -> None:
    job = a_job_with_an_ending_source()
    for _ in range(3):
        take_checkpoint(job)
    restore(job, Latest())

    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)

    assert running(plan) == [CLICKS]
    assert results(job).versions() == (1, 2, 4)  # The first of a generation publishes each table.
    assert published_records(job) == list(range(15))
    assert counted(job, plan.checkpoint_id) == [15, 15, 40]


def test_a_restore_to_before_the_end_reads_to_the_end_again() -> None:
    job = a_job_with_an_ending_source()
    for _ in range(3):
        take_checkpoint(job)
    restore(job, FromCheckpoint(CheckpointId(1)))

    assert running(trigger_one(job)) == [COUNT, RANK, CLICKS]


def test_who_had_finished_copies_its_state_out_of_a_savepoint() -> None:
    job = a_job_with_an_ending_source()
    for _ in range(2):
        take_checkpoint(job)
    a_savepoint(job)
    assert [s.is_finished for s in job.savepoint_metadata("mine").stages] == [True, True, False]
    restore(job, savepoint_target(job, "mine"))

    first = take_checkpoint(job)
    second = take_checkpoint(job)

    for taken in (first, second):
        assert not [handle for handle in job.metadata(taken).files if "/savepoints/" in handle.key]
    assert counted(job, second) == [15, 15, 50]
    assert [s.is_finished for s in job.metadata(first).stages] == [False, False, False]
    assert [s.is_finished for s in job.metadata(second).stages] == [True, True, False]
    assert published_records(job) == list(range(15))


def test_the_end_passes_an_unaligned_stage_an_epoch_later() -> None:
    job = a_job_with_an_ending_source(unaligned=True)
    plans = []
    for _ in range(4):
        plans.append(trigger_one(job))
        acknowledge(job, plans[-1])
        finalize(job, plans[-1].checkpoint_id)
        commit(job, plans[-1].checkpoint_id)

    everybody = [COUNT, RANK, CLICKS]
    assert [running(plan) for plan in plans] == [everybody, everybody, [RANK, CLICKS], [CLICKS]]
    assert len(in_flight_records(job, job.metadata(TWO), RANK)) == 5
    assert counted(job, CheckpointId(4)) == [15, 15, 40]
    assert published_records(job) == list(range(15))


def test_the_end_is_seen_in_a_chain_of_pending_checkpoints() -> None:
    job = a_job_with_an_ending_source(max_concurrent_checkpoints=4)

    plans = [trigger_one(job) for _ in range(4)]
    assert isinstance(trigger(job), Queued)
    for stage in (COUNT, RANK, CLICKS):
        for plan in plans:
            if stage in running(plan):
                acknowledge(job, plan, stage)
    for plan in plans:
        finalize(job, plan.checkpoint_id)
        commit(job, plan.checkpoint_id)

    assert [plan.finished for plan in plans] == [(), (), (COUNT, RANK), (COUNT, RANK)]
    assert counted(job, CheckpointId(4)) == [15, 15, 40]
    assert published_records(job) == list(range(15))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_failure_after_the_end_changes_nothing(number: int) -> None:
    job = a_job_with_an_ending_source()
    for epoch in range(1, 5):
        if epoch == number:
            trigger_one(job)
            restore(job, Latest())
        last = take_checkpoint(job)

    assert counted(job, last) == [15, 15, 40]
    assert published_records(job) == list(range(15))


def test_a_new_stage_before_a_finished_one_is_refused_by_every_way_in() -> None:
    job = a_job_with_an_ending_source(num_retained=4)
    for _ in range(3):
        take_checkpoint(job)
    a_savepoint(job)
    changed = replace(job, pipeline=a_chain_with_an_ending_source(cleaned=True))
    before = keys_of(job)

    said = "stage 'count_bids' has finished in checkpoint [34], and stage 'clean' before it is new"
    for target in (Latest(), FromCheckpoint(THREE), savepoint_target(changed, "mine")):
        with pytest.raises(RestoreError, match=said):
            restore(changed, target, RestoreOptions(allow_non_restored_state=True))
    with pytest.raises(ConfigurationError, match=f"changed under its job: {said}"):
        trigger(changed)

    assert keys_of(job) == before
    restore(changed, FromCheckpoint(ONE))
    assert running(trigger_one(changed)) == ["clean", COUNT, RANK, CLICKS]
