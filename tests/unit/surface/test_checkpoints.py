"""The lag of a job's sources, over checkpoints that were really taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from harness.counting_store import CountingStore
from harness.jobs import ManualClock, a_pipeline, a_running_job, answer_with, trigger_one
from harness.many_files import Folder, a_files_job
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.core.answers import Ack, SubtaskMetrics
from sluice.core.failures import CheckpointFailureReason
from sluice.figures.rates import SourceLag
from sluice.job.job import Job
from sluice.surface.checkpoints import job_lag
from sluice.surface.pipelines import pipeline_details, pipeline_line
from tests.subtasks import take_checkpoint

EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED


def a_job_of(events: int, clock: ManualClock | None = None) -> Job:
    """Ten events an epoch."""
    return a_running_job(
        a_pipeline(events=events, tolerable_failed_checkpoints=9), clock=clock or ManualClock()
    )


def lag_of(job: Job) -> SourceLag:
    (lag,) = job_lag(job).sources
    return lag


def test_a_job_without_a_checkpoint_has_no_lag_that_is_known() -> None:
    found = job_lag(a_job_of(25))

    assert (found.checkpoint, found.age_ms, found.sources, found.rates) == (None, None, (), None)


def test_the_lag_falls_with_each_completed_checkpoint() -> None:
    job = a_job_of(25)

    for pending_records in (15, 5):
        take_checkpoint(job)
        lag = lag_of(job)
        assert (lag.pending_records, lag.is_behind, lag.exhausted) == (pending_records, True, False)


def test_a_pending_epoch_is_behind_and_so_is_one_that_failed() -> None:
    clock = ManualClock()
    job = a_job_of(45, clock)
    take_checkpoint(job)
    clock.advance(5_000)
    plan = trigger_one(job)

    pending = lag_of(job)
    fail_checkpoint(job, plan.checkpoint_id, EXPIRED, "too slow")
    failed = lag_of(job)
    line = pipeline_line(job)

    assert (pending.pending_records, pending.as_of) == (35, plan.triggered_at_ms)
    assert failed == pending
    assert line.lag == pipeline_details(job).lag == (failed,)


def test_rates_are_over_the_time_of_the_last_checkpoints() -> None:
    clock = ManualClock()
    job = a_job_of(0, clock)
    for _ in range(3):
        clock.advance(4_000)
        take_checkpoint(job)

    found = job_lag(job).rates

    assert found is not None
    assert (found.window, found.checkpoints) == (8_000, 2)
    assert found.nodes["events"].rows_out_per_second == 20 / 8
    assert found.nodes["count_bids"].rows_in_per_second is not None


def test_event_time_is_behind_the_trigger_by_what_the_rows_say() -> None:
    job = a_files_job(Folder(1), event_time="at")
    plan = trigger_one(job)
    (piece,) = plan.source("events").slices
    read_at = plan.triggered_at_ms + 2_000
    acks = [
        Ack(
            checkpoint_id=plan.checkpoint_id,
            subtask=subtask,
            attempt=1,
            event_times_ms={f"events/{piece.partition}": plan.triggered_at_ms - 5_000},
            metrics=SubtaskMetrics(acknowledged_at_ms=read_at),
        )
        for subtask in plan.tasks[0].subtasks
    ]
    answer_with(job, plan, acks)
    finalize(job, plan.checkpoint_id)

    lag = lag_of(job)

    out_of_orderness_ms = job.pipeline.sources["events"].out_of_orderness_ms
    assert lag.watermark == plan.triggered_at_ms - 5_000 - out_of_orderness_ms - 1
    assert lag.watermark_lag == 5_001 + out_of_orderness_ms
    assert lag.emit_event_time_lag == 7_000
    assert (lag.pending_bytes, lag.pending_splits, lag.pending_records) == (0, 0, 0)
    assert pipeline_line(job).watermark_lag == lag.watermark_lag


def test_no_look_costs_a_request_to_the_source_and_few_to_the_bucket() -> None:
    job = a_job_of(45)
    take_checkpoint(job)
    trigger_one(job)
    requests = Counter[str]()
    counted = replace(job, store=CountingStore(job.store, requests))

    job_lag(counted)
    state = Counter(requests)
    counted.state()

    assert state - (requests - state) == Counter(get=2)  # Statistics, and the pending plan.
