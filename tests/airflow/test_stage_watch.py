"""A look at a stage, on a real folder with real acks."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest

from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import CheckpointType
from sluice.core.events import AttemptStarted
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from sluice_airflow.answers import (
    POLLS_PER_JOURNAL_READ,
    Acknowledged,
    Lost,
    Outstanding,
    StageWatch,
)
from tests.airflow.stand_in import CAUSE, a_job, a_pipeline, acknowledge, decline


def a_pending_checkpoint(root: str, **checkpointing: Any) -> Job:
    job = a_job(root, a_pipeline(**checkpointing))
    submit(job, configure(job.pipeline, {}))
    assert isinstance(trigger(job, cause=CAUSE), Triggered)
    return job


def a_watch(job: Job, stage: str = "bids") -> StageWatch:
    return StageWatch(job.location, pipeline="demo", stage=stage, cause=CAUSE)


def test_it_waits_for_the_subtasks_that_did_not_answer(root: str) -> None:
    job = a_pending_checkpoint(root)
    watch = a_watch(job)

    none = watch.look()
    acknowledge(job, 1, "bids", 0)
    acknowledge(job, 1, "by_auction", 0, 1)  # Another stage's answers say nothing about this one.
    one = watch.look()

    assert none == Outstanding("0 of 2, waiting for bids/0 and 1 more")
    assert one == Outstanding("1 of 2, waiting for bids/1")


def test_it_ends_when_every_subtask_acknowledged(root: str) -> None:
    job = a_pending_checkpoint(root)
    acknowledge(job, 1, "bids", 0, 1)

    assert a_watch(job).look() == Acknowledged("2 of 2")


def test_a_decline_loses_the_stage(root: str) -> None:
    job = a_pending_checkpoint(root)
    acknowledge(job, 1, "bids", 0)
    decline(job, 1, "bids", 1)

    assert a_watch(job).look() == Lost("subtask bids/1 declined checkpoint 1")


def test_an_aborted_checkpoint_is_lost(root: str) -> None:
    job = a_pending_checkpoint(root)
    watch = a_watch(job)
    watch.look()

    fail_checkpoint(
        job, CheckpointId(1), CheckpointFailureReason.TASK_FAILURE, "boom", is_task_failure=True
    )

    assert watch.look() == Lost(f"the checkpoint of {CAUSE} was aborted")


def test_an_abort_whose_author_died_before_the_discard_is_found(root: str) -> None:
    job = a_pending_checkpoint(root)
    watch = a_watch(job)
    watch.look()
    plan = job.store.get(job.paths.plan(1))
    fail_checkpoint(
        job, CheckpointId(1), CheckpointFailureReason.TASK_FAILURE, "boom", is_task_failure=True
    )
    assert plan is not None
    job.store.put(job.paths.plan(1), plan)

    sights = [watch.look() for _ in range(POLLS_PER_JOURNAL_READ)]

    assert Lost(f"the checkpoint of {CAUSE} was aborted") in sights


def test_the_deadline_loses_the_stage_and_names_who_was_missing(root: str) -> None:
    job = a_pending_checkpoint(root, timeout=timedelta(milliseconds=10))
    acknowledge(job, 1, "bids", 1)
    time.sleep(0.02)

    sight = a_watch(job).look()

    assert isinstance(sight, Lost)
    assert sight.reason.startswith("checkpoint 1 expired after")
    assert sight.reason.endswith("bids/0 did not acknowledge")


def test_only_the_newest_attempt_counts(root: str) -> None:
    job = a_pending_checkpoint(root)
    watch = a_watch(job)
    acknowledge(job, 1, "bids", 0)
    watch.look()

    job.journal.append(
        lambda state: AttemptStarted(
            generation=state.generation, checkpoint_id=CheckpointId(1), stage="bids", attempt=2
        )
    )
    acknowledge(job, 1, "bids", 1)  # The overtaken attempt completes its set,
    overtaken = watch.look()
    acknowledge(job, 1, "bids", 0, 1, attempt=2)  # and then the new one.
    current = watch.look()

    assert overtaken == Outstanding("0 of 2, waiting for bids/0 and 1 more")
    assert current == Acknowledged("2 of 2")


def test_answers_of_a_newer_attempt_make_it_read_the_journal(root: str) -> None:
    job = a_pending_checkpoint(root)
    watch = a_watch(job)
    watch.look()

    job.journal.append(
        lambda state: AttemptStarted(
            generation=state.generation, checkpoint_id=CheckpointId(1), stage="bids", attempt=2
        )
    )
    acknowledge(job, 1, "bids", 0, 1, attempt=2)

    assert watch.look() == Acknowledged("2 of 2")


def test_a_sensor_that_was_cleared_finds_the_completed_checkpoint(root: str) -> None:
    job = a_pending_checkpoint(root)
    acknowledge(job, 1, "bids", 0, 1)
    acknowledge(job, 1, "by_auction", 0, 1)
    finalize(job, CheckpointId(1))

    assert a_watch(job).look() == Acknowledged("checkpoint 1 is completed")


def test_a_sensor_behind_the_end_of_the_job_finds_nothing_wrong(root: str) -> None:
    """FINISHED discards the checkpoints; the run's commit may be done before its sensors are."""
    job = a_job(root)
    submit(job, configure(job.pipeline, {}))
    drain = CheckpointType.SAVEPOINT_TERMINATE
    assert isinstance(trigger(job, type=drain, cause=CAUSE, savepoint_name="last"), Triggered)
    watch = a_watch(job)
    watch.look()
    for stage in ("bids", "by_auction"):
        acknowledge(job, 1, stage, 0, 1)
    finalize(job, CheckpointId(1))
    commit(job, CheckpointId(1))
    job.store.delete([key.key for key in job.store.list(job.paths.checkpoint(1))])

    assert isinstance(a_watch(job).look(), Acknowledged)


@pytest.mark.parametrize("cause", ["airflow:demo/another-run", "periodic"])
def test_a_checkpoint_of_another_run_is_not_ours(root: str, cause: str) -> None:
    job = a_pending_checkpoint(root)

    watch = StageWatch(job.location, pipeline="demo", stage="bids", cause=cause)

    assert watch.look() == Lost(f"the checkpoint of {cause} was aborted")


def test_a_stage_that_is_behind_is_overtaken_when_its_time_to_align_has_passed(root: str) -> None:
    short, long = timedelta(milliseconds=1), timedelta(minutes=5)
    job = a_pending_checkpoint(root, unaligned=True, aligned_checkpoint_timeout=short)
    acknowledge(job, 1, "bids", 0)
    time.sleep(0.01)

    source_stage, behind = a_watch(job, "bids").look(), a_watch(job, "by_auction").look()

    assert source_stage == Outstanding("1 of 2, waiting for bids/1")  # It has nothing to align.
    assert behind == Acknowledged("overtaken: its input stays in flight")
    assert a_watch(job, "by_auction").look() == behind
    assert job.state().pending[0].overtaken == ("by_auction",)
    patient = a_pending_checkpoint(
        f"{root}/patient", unaligned=True, aligned_checkpoint_timeout=long
    )
    assert isinstance(a_watch(patient, "by_auction").look(), Outstanding)
