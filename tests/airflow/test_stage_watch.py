"""A watch of a stage, on a real folder with real acks."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, start_attempt
from sluice.coordinator.publication import commit
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import CheckpointType
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from sluice_airflow.polls import POLLS_PER_JOURNAL_READ, Acknowledged, Lost, Outstanding, StageWatch
from sluice_airflow.stage import SnapshotOperator
from tests.airflow.acts import a_context
from tests.airflow.stand_in import (
    CAUSE,
    StandInSpark,
    a_job,
    a_job_with_a_finished_stage,
    a_pending_checkpoint,
    acknowledge,
    decline,
)


def a_watch(job: Job, stage: str = "bids") -> StageWatch:
    return StageWatch(job.location, pipeline="demo", stage=stage, cause=CAUSE)


def fail_over(job: Job) -> None:
    reason = CheckpointFailureReason.TASK_FAILURE
    fail_checkpoint(job, CheckpointId(1), reason, "boom", is_task_failure=True)


def test_it_waits_for_the_stage_s_own_answer(root: str) -> None:
    job = a_pending_checkpoint(root)
    watch = a_watch(job)

    before = watch.poll()
    acknowledge(job, 1, "by_auction")  # Another stage's answer says nothing about this one.

    assert before == watch.poll() == Outstanding("its 2 subtasks run")


def test_it_ends_when_every_subtask_acknowledged(root: str) -> None:
    job = a_pending_checkpoint(root)
    acknowledge(job, 1, "bids")

    assert a_watch(job).poll() == Acknowledged("2 of 2")


def test_a_decline_loses_the_stage(root: str) -> None:
    job = a_pending_checkpoint(root)
    decline(job, 1, "bids", 1)

    assert a_watch(job).poll() == Lost("subtask bids/1 declined checkpoint 1")


def test_an_aborted_checkpoint_is_lost(root: str) -> None:
    job = a_pending_checkpoint(root)
    watch = a_watch(job)
    watch.poll()

    fail_over(job)

    assert watch.poll() == Lost(f"the checkpoint of {CAUSE} was aborted")


def test_an_abort_whose_author_died_before_the_discard_is_found(root: str) -> None:
    job = a_pending_checkpoint(root)
    watch = a_watch(job)
    watch.poll()
    plan = job.store.get(job.paths.plan(1))
    fail_over(job)
    assert plan is not None
    job.store.put(job.paths.plan(1), plan)

    polled = [watch.poll() for _ in range(POLLS_PER_JOURNAL_READ)]

    assert Lost(f"the checkpoint of {CAUSE} was aborted") in polled


def test_the_deadline_loses_the_stage(root: str) -> None:
    job = a_pending_checkpoint(root, timeout=timedelta(milliseconds=10))
    time.sleep(0.02)

    progress = a_watch(job).poll()

    assert isinstance(progress, Lost)
    assert progress.reason.startswith("checkpoint 1 expired after")
    assert progress.reason.endswith("stage 'bids' did not acknowledge")


def test_only_the_newest_attempt_counts(root: str) -> None:
    job = a_pending_checkpoint(root)
    watch = a_watch(job)
    watch.poll()

    start_attempt(job, CheckpointId(1), "bids")
    acknowledge(job, 1, "bids")  # The overtaken attempt,
    overtaken = watch.poll()
    acknowledge(job, 1, "bids", attempt=2)  # and then the new one.
    current = watch.poll()

    assert overtaken == Outstanding("its 2 subtasks run")
    assert current == Acknowledged("2 of 2")


def test_answers_of_a_newer_attempt_make_it_read_the_journal(root: str) -> None:
    job = a_pending_checkpoint(root)
    watch = a_watch(job)
    watch.poll()

    start_attempt(job, CheckpointId(1), "bids")
    acknowledge(job, 1, "bids", attempt=2)

    assert watch.poll() == Acknowledged("2 of 2")


def test_a_sensor_that_was_cleared_finds_the_completed_checkpoint(root: str) -> None:
    job = a_pending_checkpoint(root)
    acknowledge(job, 1, "bids")
    acknowledge(job, 1, "by_auction")
    finalize(job, CheckpointId(1))

    assert a_watch(job).poll() == Acknowledged("checkpoint 1 is completed")


def test_a_sensor_behind_the_end_of_the_job_finds_nothing_wrong(root: str) -> None:
    """FINISHED discards the checkpoints; the run's commit may be done before its sensors are."""
    job = a_job(root)
    submit(job, configure(job.pipeline, {}))
    drain = CheckpointType.SAVEPOINT_TERMINATE
    assert isinstance(trigger(job, type=drain, cause=CAUSE, savepoint_name="last"), Triggered)
    watch = a_watch(job)
    watch.poll()
    for stage in ("bids", "by_auction"):
        acknowledge(job, 1, stage)
    finalize(job, CheckpointId(1))
    commit(job, CheckpointId(1))
    job.store.delete([key.key for key in job.store.list(job.paths.checkpoint(1))])

    assert isinstance(a_watch(job).poll(), Acknowledged)


@pytest.mark.parametrize("cause", ["airflow:demo/another-run", "periodic"])
def test_a_checkpoint_of_another_run_is_not_ours(root: str, cause: str) -> None:
    job = a_pending_checkpoint(root)

    watch = StageWatch(job.location, pipeline="demo", stage="bids", cause=cause)

    assert watch.poll() == Lost(f"the checkpoint of {cause} was aborted")


def test_a_stage_that_is_behind_is_overtaken_when_its_time_to_align_has_passed(root: str) -> None:
    short, long = timedelta(milliseconds=1), timedelta(minutes=5)
    job = a_pending_checkpoint(root, unaligned=True, aligned_checkpoint_timeout=short)
    time.sleep(0.01)

    source_stage, behind = a_watch(job, "bids").poll(), a_watch(job, "by_auction").poll()

    assert source_stage == Outstanding("its 2 subtasks run")  # It has nothing to align.
    assert behind == Acknowledged("overtaken: its input stays in flight")
    assert a_watch(job, "by_auction").poll() == behind
    assert job.state().pending[0].overtaken == ("by_auction",)
    patient = a_pending_checkpoint(
        f"{root}/patient", unaligned=True, aligned_checkpoint_timeout=long
    )
    assert isinstance(a_watch(patient, "by_auction").poll(), Outstanding)


def test_a_checkpoint_goes_on_without_a_stage_that_has_finished(
    root: str, spark: StandInSpark
) -> None:
    """Its tasks are in the DAG all the same."""
    job = a_job_with_a_finished_stage(root)
    task = SnapshotOperator(task_id="snapshot", pipeline=job.pipeline, stage="of_short")

    progress = a_watch(job, "of_short").poll()
    summary = task.execute(a_context())

    assert isinstance(progress, Acknowledged)
    assert "it has finished" in progress.progress
    assert summary == {"checkpoint_id": 2, "stage_ms": 0}
    assert spark.ran == []
    acknowledge(job, 2, "of_long")
    assert finalize(job, CheckpointId(2)).checkpoint_id == 2


def test_a_stage_that_was_declared_since_is_lost(root: str) -> None:
    job = a_pending_checkpoint(root)

    progress = a_watch(job, "new").poll()

    assert isinstance(progress, Lost)
    assert "was triggered before stage 'new' was declared" in progress.reason
