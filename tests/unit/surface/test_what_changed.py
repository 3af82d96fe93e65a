"""What changed in a job, from the lines of its checkpoints and its journal."""

from __future__ import annotations

from typing import Any

import pytest

from harness.jobs import a_pipeline, a_running_job, trigger_one
from sluice.coordinator.failure import abort_checkpoint, fail_checkpoint
from sluice.coordinator.requests import pause
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.submission import configure
from sluice.core.answers import SubtaskMetrics
from sluice.core.failures import CheckpointFailureReason
from sluice.core.restoring import Latest
from sluice.job.job import Job, open_job
from sluice.sinks import FilesTable
from sluice.store.open import StoreLocation
from sluice.surface import what_changed as module
from sluice.surface.what_changed import JobChangeKind, what_changed
from tests.subtasks import a_savepoint, measure, take_checkpoint


def a_job(**given: Any) -> Job:
    return a_running_job(a_pipeline(tolerable_failed_checkpoints=9, **given))


def told(job: Job) -> list[tuple[JobChangeKind, str]]:
    """The oldest first."""
    return [(one.kind, one.says) for one in what_changed(job).changes[::-1]]


def test_failures_restores_savepoints_and_acts_are_on_one_time_line() -> None:
    job = a_job()
    take_checkpoint(job)
    job.clock.advance(1_000)  # type: ignore[attr-defined]
    a_savepoint(job, cause="ann")
    job.clock.advance(1_000)  # type: ignore[attr-defined]
    expired = CheckpointFailureReason.CHECKPOINT_EXPIRED
    fail_checkpoint(job, trigger_one(job).checkpoint_id, expired, "too slow")
    job.clock.advance(1_000)  # type: ignore[attr-defined]
    restore(job, savepoint_target(job, "mine"))
    job.clock.advance(1_000)  # type: ignore[attr-defined]
    abort_checkpoint(job, trigger_one(job).checkpoint_id, by="ann")
    job.clock.advance(1_000)  # type: ignore[attr-defined]
    pause(job, by="ann")

    assert told(job) == [
        (JobChangeKind.ACT, "it was submitted"),
        (JobChangeKind.SAVEPOINT, "savepoint mine was taken"),
        (JobChangeKind.FAILURE, "checkpoint 3 failed: too slow"),
        (JobChangeKind.RESTORE, "restored from savepoint mine, generation 2"),
        (JobChangeKind.ACT, "checkpoint 4 failed: aborted by ann"),
        (JobChangeKind.ACT, "checkpointing was paused"),
    ]
    newest, *_ = what_changed(job).changes
    assert newest.by == "ann"


def test_a_deploy_and_a_rescale_are_told_by_the_first_checkpoint_behind_them() -> None:
    job = a_job()
    take_checkpoint(job)
    wider = a_pipeline(beside={"copy": FilesTable(changelog=True)}, tolerable_failed_checkpoints=9)
    deployed = open_job(wider, StoreLocation(root=job.store.root), clock=job.clock)
    job.clock.advance(1_000)  # type: ignore[attr-defined]
    restore(deployed, Latest(), configuration=configure(wider, {}, parallelism=3))
    job.clock.advance(1_000)  # type: ignore[attr-defined]
    take_checkpoint(deployed)

    assert sorted(told(deployed)[2:]) == [
        (JobChangeKind.DEPLOY, "another declaration: checkpoint 2 is the first of it"),
        (JobChangeKind.RESCALE, "rescaled from 4 to 6 subtasks"),
    ]


def test_records_that_could_not_be_decoded_are_one_change_of_all_checkpoints_in_a_row() -> None:
    job = a_job()
    of_each = [[0, 3], [1, 1], [0, 0], [2, 0]]
    for malformed in of_each:
        measure(job, *(SubtaskMetrics(malformed_rows=count) for count in malformed))
        job.clock.advance(1_000)  # type: ignore[attr-defined]

    (stage,) = filter(job.pipeline.sources_of, job.pipeline.stages)
    shown = f"`sluice side-output {job.pipeline.uid} {stage}.malformed` shows them"
    assert told(job)[1:] == [
        (JobChangeKind.MALFORMED, f"5 records of checkpoints 1 to 2 could not be decoded; {shown}"),
        (JobChangeKind.MALFORMED, f"2 records of checkpoint 4 could not be decoded; {shown}"),
    ]
    assert [one.checkpoint for one in what_changed(job).changes[:2]] == [4, 2]


def test_what_the_journal_does_not_tell_any_more_is_in_the_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_job()
    take_checkpoint(job)
    job.clock.advance(1_000)  # type: ignore[attr-defined]
    restore(job, Latest())
    job.clock.advance(1_000)  # type: ignore[attr-defined]
    take_checkpoint(job)
    monkeypatch.setattr(module, "JOURNAL_ENTRIES", 1)

    assert told(job) == [(JobChangeKind.RESTORE, "restored, generation 2")]
