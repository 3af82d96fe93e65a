"""A request for a checkpoint: it starts one, waits its turn, or is dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.jobs import (
    ManualClock,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import NotTriggered, Queued, trigger
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.events import CheckpointTriggered, JobStopped, Verdict
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import FromCheckpoint
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, FencedError, StoreUnavailable
from sluice.job.job import Job
from sluice.protocol.records import encode_plan
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.builders import a_request
from tests.subtasks import a_savepoint, acknowledge, take_checkpoint

ONE = CheckpointId(1)
SAVEPOINT = CheckpointType.SAVEPOINT


def complete(job: Job, plan: CheckpointPlan) -> None:
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)


def orphan(job: Job, plan: CheckpointPlan, checkpoint_id: int) -> CheckpointPlan:
    """The plan of a coordinator that died before it journaled it."""
    made = replace(plan, checkpoint_id=CheckpointId(checkpoint_id), cause="somebody who died")
    job.store.create(job.paths.plan(checkpoint_id), encode_plan(made))
    return made


def test_a_source_that_no_stage_reads_is_refused_when_the_job_is_submitted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    pipeline = a_pipeline()
    pipeline.source("forgotten", Files(str(tmp_path)))

    with pytest.raises(ConfigurationError, match="'forgotten' is read by no stage"):
        submit(a_job(pipeline), configure(pipeline, {}))


def test_who_lost_the_answer_finds_the_checkpoint_that_his_request_became() -> None:
    job = a_running_job()
    first = trigger(job, request_id="mine")

    assert trigger(job, request_id="mine") == first
    assert len(keys_of(job, "auctions/checkpoints/")) == 1


def test_processing_time_never_goes_back_whatever_the_clock_does_and_whoever_restores() -> None:
    """What expired in one epoch and was merged away must not come back in the next."""
    clock = ManualClock()
    job = a_running_job(clock=clock)
    take_checkpoint(job)
    clock.advance(60_000)
    take_checkpoint(job)
    ahead_ms = clock.now_ms
    clock.advance(-50_000)
    restore(job, FromCheckpoint(ONE))

    behind = trigger_one(job)

    assert behind.triggered_at_ms == ahead_ms - 50_000
    assert behind.processing_time_ms == ahead_ms


@pytest.mark.parametrize(
    ("is_periodic", "reason"),
    [
        (True, Reason.PERIODIC_SCHEDULER_SHUTDOWN),
        (False, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING),
    ],
)
def test_a_job_that_does_not_run_takes_no_checkpoint(is_periodic: bool, reason: Reason) -> None:
    job = a_job()

    assert trigger(job, is_periodic=is_periodic) == NotTriggered(
        reason=reason, message="the job is CREATED"
    )
    assert keys_of(job) == []


def a_job_over(file: Path) -> Job:
    """Of one stage that counts the lines of a file that may grow."""
    pipeline = Pipeline("auctions")
    lines = pipeline.source("lines", Files(str(file), bounded=False))
    lines.key_by("line").aggregate("count_bids", n=agg.count()).sink(
        "results", FilesTable(changelog=True)
    )
    return a_running_job(pipeline)


def test_without_new_records_a_periodic_request_does_nothing_and_a_persons_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "names.txt").write_text("ann\n")
    job = a_job_over(tmp_path / "names.txt")
    take_checkpoint(job)

    assert trigger(job) == NotTriggered(
        reason=None, message="no new records since the last checkpoint"
    )
    assert trigger_one(job, is_periodic=False).records == 0


def test_a_queued_request_that_finds_nothing_to_do_leaves_the_queue(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ann\n")
    job = a_job_over(tmp_path / "names.txt")
    first = trigger_one(job)
    trigger(job, request_id="idle")
    complete(job, first)

    outcome = trigger(job, request_id="idle")

    assert outcome == NotTriggered(reason=None, message="no new records since the last checkpoint")
    assert job.state().queue == ()


def test_a_queued_request_whose_source_is_gone_leaves_the_queue(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ann\n")
    job = a_job_over(tmp_path / "names.txt")
    first = trigger_one(job)
    trigger(job, request_id="mine")
    complete(job, first)
    (tmp_path / "names.txt").write_text("")

    with pytest.raises(ConfigurationError):
        trigger(job, request_id="mine")

    assert (job.state().queue, job.state().status) == ((), JobStatus.RUNNING)
    assert job.state().rejection("mine") is Reason.TRIGGER_CHECKPOINT_FAILURE


@pytest.mark.parametrize(("tolerable", "status"), [(1, JobStatus.RUNNING), (0, "RESTARTING")])
def test_a_store_that_fails_while_the_plan_is_made_counts(
    monkeypatch: pytest.MonkeyPatch, tolerable: int, status: JobStatus | str
) -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=tolerable))

    def fails(*_: object) -> None:
        raise StoreUnavailable("the bucket of the source is away")

    monkeypatch.setattr("sluice.coordinator.trigger.make_plan", fails)
    with pytest.raises(StoreUnavailable, match="the bucket of the source is away"):
        trigger(job)

    assert job.state().status is JobStatus(status)
    assert job.state().pending == ()


def test_a_commit_whose_task_died_is_replayed_before_the_next_trigger() -> None:
    job = a_running_job()
    acknowledge(job, trigger_one(job))
    finalize(job, ONE)

    second = trigger_one(job)

    assert published_records(job) == list(range(10))
    assert job.state().completed[0].is_committed
    assert second.parent == 1


def test_the_id_of_a_dead_coordinators_plan_is_skipped_and_never_reused() -> None:
    job = a_running_job()
    first = trigger_one(job)
    dead = orphan(job, first, 2)
    complete(job, first)

    third = trigger_one(job)

    assert third.checkpoint_id == 3
    assert job.plan(CheckpointId(2)) == dead
    late = job.journal.append(
        lambda state: CheckpointTriggered(
            generation=state.generation, plan=dead, request=a_request()
        )
    )
    assert late.verdict is Verdict.REFUSED
    complete(job, third)
    assert trigger_one(job).checkpoint_id == 4


def other_checkpoint(job: Job) -> None:
    trigger(job, is_periodic=False, request_id="faster")


def other_restore(job: Job) -> None:
    restore(job, savepoint_target(job, "before"))


def cancellation(job: Job) -> None:
    job.journal.append(
        lambda s: JobStopped(at_ms=0, generation=s.generation, status=JobStatus.CANCELED)
    )


@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        (other_checkpoint, Queued(request_id="mine", message="another coordinator was faster")),
        (other_restore, Queued(request_id="mine", message="another coordinator was faster")),
        (
            cancellation,
            NotTriggered(reason=Reason.PERIODIC_SCHEDULER_SHUTDOWN, message="the job is CANCELED"),
        ),
    ],
)
def test_who_is_overtaken_between_plan_and_journal_is_told(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Job], None], outcome: object
) -> None:
    job = a_running_job()
    a_savepoint(job, "before")
    create = job.store.create

    def create_after_the_others(key: str, body: bytes) -> object:
        if b'"cause":"slow"' in body and "/journal/" in key:
            monkeypatch.undo()
            act(job)
        return create(key, body)

    monkeypatch.setattr(job.store, "create", create_after_the_others)

    assert trigger(job, cause="slow", request_id="mine") == outcome
    assert all(pending.request_id != "mine" for pending in job.state().pending)


def test_submitting_a_running_job_is_refused_with_the_fix() -> None:
    job = a_running_job()

    with pytest.raises(ConfigurationError, match=r"'auctions' is RUNNING.*sluice cancel auctions"):
        submit(job, configure(job.pipeline, {}))


def test_who_slept_before_submitting_does_not_begin_a_job_anew_that_has_ended() -> None:
    """Found by ``tests.exactly_once``: all rows were published twice."""
    job = a_job()
    seen = job.state().generation
    configuration = configure(job.pipeline, {})
    submit(job, configuration, only_generation=seen)
    stop(job, JobStatus.CANCELED)

    with pytest.raises(FencedError, match="another coordinator submitted job 'auctions' first"):
        submit(job, configuration, only_generation=seen)

    assert job.state().status is JobStatus.CANCELED
    assert submit(job, configuration).generation == 2  # A person may.


def test_a_savepoint_of_a_used_name_does_not_pretend_to_have_been_written() -> None:
    job = a_running_job()
    a_savepoint(job)

    with pytest.raises(ConfigurationError, match="savepoint 'mine' exists"):
        a_savepoint(job)
