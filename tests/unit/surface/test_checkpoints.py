"""The lag of a job's sources, and how unevenly subtasks work, over checkpoints that were taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from harness.counting_store import CountingStore
from harness.jobs import STAGES, ManualClock, a_pipeline, a_running_job, answer_with, trigger_one
from harness.many_files import Folder, a_files_job
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure
from sluice.core.answers import Ack, HotGroup, LateRows, SubtaskMetrics
from sluice.core.failures import CheckpointFailureReason
from sluice.core.restoring import Latest
from sluice.figures.rates import SourceLag
from sluice.job.job import Job
from sluice.surface.checkpoints import JobSkew, job_lag, job_skew
from sluice.surface.pipelines import pipeline_details, pipeline_line
from tests.subtasks import measure, take_checkpoint

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


def work(job: Job, *rows: int, late: LateRows | None = None) -> None:
    """A checkpoint whose subtasks of the first stage have read so many *rows*, in their order;
    each of them has found *late* ones of the source.
    """
    measure(
        job,
        *(
            SubtaskMetrics(
                started_at_ms=1_000,
                acknowledged_at_ms=1_000 + many,
                rows_in=many,
                late={} if late is None else {"bids": late},
            )
            for many in rows
        ),
    )


def test_a_job_without_a_completed_checkpoint_has_no_skew() -> None:
    assert job_skew(a_running_job()) == JobSkew(checkpoints=0, stages=())


def test_the_worst_subtask_is_named_with_how_often_and_how_far_it_is_above_the_median() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    work(job, 10, 30)
    work(job, 40, 20)
    work(job, 10, 90)

    found = job_skew(job)

    assert found.checkpoints == 3
    first, second = found.stages
    assert (first.id, first.num_subtasks, second.id) == (STAGES[0], 2, STAGES[1])
    rows = first.figures["rows_in"]
    assert (rows.worst, rows.worst_in) == (1, 2)
    assert rows.ratio == (30 + 40 + 90) / (20 + 30 + 50)
    assert [(one.checkpoint, one.median, one.max, one.subtask) for one in rows.points] == [
        (1, 20, 30, 1), (2, 30, 40, 0), (3, 50, 90, 1),
    ]  # fmt: skip
    assert [one.max for one in first.figures["duration"].points] == [30, 40, 90]


def test_a_figure_that_is_zero_for_all_has_no_worst_subtask() -> None:
    job = a_running_job()
    work(job, 1, 2)

    late = job_skew(job).stages[0].figures["late_rows"]

    assert (late.ratio, late.worst_in) == (None, 0)


def test_late_rows_are_added_up_by_what_they_are_of_and_the_farthest_is_kept() -> None:
    job = a_running_job()
    work(job, 1, 1, late=LateRows(rows=3, most_ms=70_000, within=(1, 2, 2, 3, 3, 3)))
    work(job, 1, 1)
    work(job, 1, 1, late=LateRows(rows=1, most_ms=90_000, within=(0, 0, 0, 1, 1, 1)))

    first, second = job_skew(job).stages

    assert first.late == {"bids": LateRows(rows=8, most_ms=90_000, within=(2, 4, 4, 8, 8, 8))}
    assert second.late == {}


def test_checkpoints_of_another_parallelism_are_left_out() -> None:
    job = a_running_job()
    take_checkpoint(job)
    restore(job, Latest(), configuration=configure(job.pipeline, {}, parallelism=3))
    take_checkpoint(job)

    found = job_skew(job)

    assert (found.checkpoints, found.stages[0].num_subtasks) == (1, 3)


def test_the_hottest_key_groups_of_all_checkpoints_are_named_with_their_newest_keys() -> None:
    job = a_running_job()
    old, new = (HotGroup(group=7, rows=8, keys=(key,)) for key in ("k=old", "k=new"))
    others = tuple(HotGroup(group=group, rows=group, keys=()) for group in range(1, 5))
    for hot in (old, new):
        measure(
            job,
            SubtaskMetrics(rows_in=20, hot_groups=(hot,)),
            SubtaskMetrics(rows_in=30, hot_groups=others),
        )

    [first, _] = job_skew(job).stages

    assert first.rows_in == 100
    assert first.hot_groups == (
        HotGroup(group=7, rows=16, keys=("k=new",)),
        *(HotGroup(group=group, rows=2 * group) for group in (4, 3, 2, 1)),
    )
    assert job_skew(job, names_keys=False).stages[0].hot_groups[0] == HotGroup(group=7, rows=16)
