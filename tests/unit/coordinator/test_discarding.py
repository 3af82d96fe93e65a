"""The files that are deleted when a checkpoint is aborted or subsumed, or the job ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

import pytest

from harness.jobs import (
    ManualClock,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, watch
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.savepoints import savepoint_names
from sluice.core.configuration import CheckpointType, JobStatus, Retention
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.restoring import FromCheckpoint, Latest
from sluice.declaration.pipeline import Pipeline
from sluice.errors import RestoreError
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.builders import ids_of
from tests.subtasks import a_savepoint, acknowledge, state_records, take_checkpoint

ONE, TWO = CheckpointId(1), CheckpointId(2)
EXPIRED = Reason.CHECKPOINT_EXPIRED
ON_CANCELLATION, ON_FAILURE, NEVER = (
    Retention.RETAIN_ON_CANCELLATION,
    Retention.RETAIN_ON_FAILURE,
    Retention.NEVER_RETAIN_AFTER_TERMINATION,
)


def test_aborting_deletes_exactly_its_own_files_and_the_plan_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    take_checkpoint(job)
    before = keys_of(job)
    plan = trigger_one(job)
    acknowledge(job, plan)
    journal = [key for key in keys_of(job) if "/journal/" in key]
    deleted: list[list[str]] = []
    delete = job.store.delete

    def note_and_delete(keys: Iterable[str]) -> None:
        deleted.append([*keys])
        delete(deleted[-1])

    monkeypatch.setattr(job.store, "delete", note_and_delete)

    state = fail_checkpoint(job, plan.checkpoint_id, EXPIRED, "too slow")

    left = [key for key in keys_of(job) if "/journal/" not in key]
    kept = [job.paths.statistics(2)]
    assert left == sorted([*kept, *(key for key in before if "/journal/" not in key)])
    assert len(keys_of(job, "auctions/journal/")) == len(journal) + 1
    assert deleted[-1] == [job.paths.plan(2)]
    assert job.paths.plan(2) not in deleted[0]
    assert (state.status, state.base) == (JobStatus.RUNNING, 1)
    assert [f.message for f in state.failed] == ["too slow"]


def test_a_table_that_an_aborted_checkpoint_pinned_is_deleted_too(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ann\nbob\n")
    pipeline = Pipeline("auctions")
    names = pipeline.source("names", Files(str(tmp_path / "names.txt")), table=True)
    lines = pipeline.source("lines", Files(str(tmp_path / "names.txt")))
    lines.lookup("known", names, on="line").sink("results", FilesTable())
    job = a_running_job(pipeline)
    table = trigger_one(job).source("names").table
    assert table is not None
    assert table.key in keys_of(job)

    fail_checkpoint(job, ONE, EXPIRED, "too slow")

    assert table.key not in keys_of(job)


def test_aborting_twice_aborts_once() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=9))
    trigger_one(job)
    first = fail_checkpoint(job, ONE, EXPIRED, "first")

    second = fail_checkpoint(job, ONE, Reason.TASK_FAILURE, "second", is_task_failure=True)

    assert second == first
    assert [(f.reason, f.message) for f in second.failed] == [(EXPIRED, "first")]


def test_a_subsumed_checkpoints_own_files_go_and_shared_ones_stay() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    first = take_checkpoint(job)
    shared = {handle.key for handle in job.metadata(first).files}

    second = take_checkpoint(job)

    keys = set(keys_of(job))
    assert ids_of(job.state().completed) == [second]
    assert job.state().discarding == ()
    assert not [key for key in keys if key.startswith(job.paths.checkpoint(first))]
    assert not [key for key in keys if key.startswith(job.paths.streams("count_bids", first))]
    assert shared <= keys  # The second continues them.
    assert published_records(job) == list(range(20))
    assert state_records(job, job.metadata(second), "count_bids") == list(range(20))


def test_a_subsumed_checkpoints_files_go_when_no_retained_one_names_them() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    first = take_checkpoint(job)
    own = {handle.key for handle in job.metadata(first).files}
    acknowledge(job, trigger_one(job), compacts=True)
    finalize(job, TWO)
    assert own <= set(keys_of(job))  # Its successor may still have to be taken from it.

    commit(job, TWO)

    assert own
    assert not own & set(keys_of(job))
    assert state_records(job, job.metadata(TWO), "rank_bids") == list(range(20))


def damage(job: Job, checkpoint_id: CheckpointId) -> None:
    job.store.put(job.paths.metadata(checkpoint_id), b"not what it was")


def lose(job: Job, checkpoint_id: CheckpointId) -> None:
    job.store.delete([job.paths.metadata(checkpoint_id)])


@pytest.mark.parametrize("harm", [damage, lose])
def test_an_unreadable_retained_checkpoint_keeps_every_file_and_does_not_stop_the_job(
    harm: Callable[[Job, CheckpointId], None], caplog: pytest.LogCaptureFixture
) -> None:
    job = a_running_job(a_pipeline(num_retained=2))
    take_checkpoint(job)
    take_checkpoint(job)
    before = {key for key in keys_of(job) if "/journal/" not in key}
    harm(job, ONE)
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finalize(job, plan.checkpoint_id)
    harm(job, TWO)  # Retained, and read before anything is deleted.

    commit(job, plan.checkpoint_id)

    lost = {job.paths.metadata(ONE), job.paths.metadata(TWO)}
    assert before - lost <= set(keys_of(job))
    assert "nothing was discarded" in caplog.text
    assert job.state().discarding == ()
    assert take_checkpoint(job) == 4
    assert published_records(job) == list(range(40))


def test_what_a_commit_that_died_did_not_delete_is_deleted_by_the_next() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    take_checkpoint(job)
    acknowledge(job, trigger_one(job))
    finalize(job, TWO)
    assert ids_of(job.state().discarding) == [1]

    third = trigger_one(job)

    assert job.state().discarding == ()
    assert not keys_of(job, job.paths.checkpoint(ONE))
    assert third.parent == 2


def test_cancelling_aborts_what_is_pending_and_keeps_what_retention_keeps() -> None:
    job = a_running_job()
    take_checkpoint(job)
    trigger_one(job)

    state = stop(job, JobStatus.CANCELED)

    assert (state.status, state.pending, ids_of(state.completed)) == (JobStatus.CANCELED, (), [1])
    assert not keys_of(job, job.paths.checkpoint(TWO))
    assert restore(job, Latest()).checkpoint_id == 1


def cancel(job: Job) -> None:
    stop(job, JobStatus.CANCELED)


def suspend(job: Job) -> None:
    stop(job, JobStatus.SUSPENDED)


def fail(job: Job) -> None:
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, Reason.TASK_FAILURE, "lost", is_task_failure=True)


def drain(job: Job) -> None:
    take_checkpoint(job, type=CheckpointType.SAVEPOINT_TERMINATE, is_periodic=False)


@pytest.mark.parametrize(
    ("retention", "end", "kept"),
    [
        (ON_CANCELLATION, cancel, [1, 2, 3]),
        (ON_CANCELLATION, suspend, [1, 2, 3]),
        (ON_CANCELLATION, fail, [1, 2, 3]),
        (ON_CANCELLATION, drain, [2, 4]),
        (ON_FAILURE, cancel, [2]),
        (ON_FAILURE, suspend, [2]),
        (ON_FAILURE, fail, [1, 2, 3]),
        (ON_FAILURE, drain, [2, 4]),
        (NEVER, cancel, [2]),
        (NEVER, suspend, [2]),
        (NEVER, fail, [2]),
        (NEVER, drain, [2, 4]),
    ],
)
def test_the_end_of_the_job_applies_the_discard_matrix(
    retention: Retention, end: Callable[[Job], None], kept: list[int]
) -> None:
    """Checkpoints 1 and 3, and savepoint 2, which is its owner's."""
    job = a_running_job(
        a_pipeline(
            externalized_checkpoint_retention=retention,
            restart_strategy=RestartStrategy(type=RestartType.NONE),
        )
    )
    take_checkpoint(job)
    a_savepoint(job)
    take_checkpoint(job)

    end(job)

    state = job.state()
    assert state.discarding == ()
    assert ids_of(state.completed) == kept
    for checkpoint_id in (1, 3):
        left = keys_of(job, job.paths.checkpoint(checkpoint_id))
        assert bool(left) == (checkpoint_id in kept)
    assert savepoint_names(job) == ["mine"]
    assert restore(job, savepoint_target(job, "mine")).checkpoint_id == 2


def test_a_job_that_retains_none_leaves_nothing_and_says_so_when_it_is_restored() -> None:
    job = a_running_job(a_pipeline(externalized_checkpoint_retention=NEVER))
    take_checkpoint(job)
    take_checkpoint(job)

    stop(job, JobStatus.CANCELED)

    for kind in ("checkpoints", "shared", "streams"):
        assert keys_of(job, f"auctions/{kind}/") == []
    assert published_records(job) == list(range(20))
    with pytest.raises(RestoreError, match=r"is CANCELED, and its checkpoints were deleted when"):
        restore(job, Latest())
    with pytest.raises(RestoreError, match="checkpoint 1 is not retained; retained are: none"):
        restore(job, FromCheckpoint(ONE))


def test_an_end_whose_coordinator_died_is_cleaned_up_by_the_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(externalized_checkpoint_retention=NEVER))
    take_checkpoint(job)
    with monkeypatch.context() as patch:
        patch.setattr("sluice.coordinator.record.clean_up", lambda *_: None)
        stop(job, JobStatus.CANCELED)
    assert keys_of(job, job.paths.checkpoint(ONE))

    watched = watch(job)

    assert watched.actions == ("deleted what 1 subsumed checkpoints left",)
    assert not keys_of(job, job.paths.checkpoint(ONE))


def test_checkpoints_stay_for_a_time_and_their_files_with_them() -> None:
    clock = ManualClock()
    hour = timedelta(hours=1)
    job = a_running_job(a_pipeline(num_retained=1, retain_for=hour), clock=clock)
    for _ in range(4):
        take_checkpoint(job)
        clock.advance(hour // timedelta(milliseconds=1) // 2)

    retained = [int(one.checkpoint_id) for one in job.state().completed]

    assert retained == [3, 4]
    assert not keys_of(job, job.paths.checkpoint(2))
    restore(job, FromCheckpoint(CheckpointId(3)))
    assert take_checkpoint(job) == 5
    assert published_records(job) == list(range(40))
