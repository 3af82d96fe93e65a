"""Checkpoints by name, lists of them, and what is said of one that is gone."""

from __future__ import annotations

import pytest

from harness.jobs import ManualClock, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.restore import restore, stop
from sluice.coordinator.trigger import trigger
from sluice.core.configuration import JobStatus, Retention
from sluice.core.failures import FAILURE_REASONS, CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest
from sluice.job.job import Job
from tests.cli.conftest import Sluice
from tests.subtasks import a_savepoint, take_checkpoint

ONE, TWO = CheckpointId(1), CheckpointId(2)


def test_the_latest_checkpoint_is_found_by_that_name(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    take_checkpoint(job)

    latest = sluice("checkpoints", "show", "auctions", "latest", "--json").json
    restored = sluice("restore", "auctions", "--checkpoint", "latest", "--dry-run", "--json").json

    assert (latest["id"], restored["checkpoint"]) == (2, 2)
    for command in (("checkpoints", "show", "auctions"), ("restore", "auctions", "--checkpoint")):
        error = sluice(*command, "newest").error
        assert "checkpoint 'newest' is no number; write 'latest'" in error


@pytest.mark.parametrize(
    "command",
    [
        ("checkpoints", "show", "auctions", "1"),
        ("checkpoints", "show", "auctions", "latest"),
        ("state", "read", "auctions", "latest", "bids"),
        ("restore", "auctions", "--checkpoint", "1", "--dry-run"),
        ("restore", "auctions"),
    ],
)
def test_a_finished_job_says_what_became_of_its_checkpoints(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    job = a_running_job(a_pipeline(events=10))
    monkeypatch.setenv("SLUICE_ROOT", job.store.root)
    take_checkpoint(job)
    assert (job.state().status, job.state().completed) == (JobStatus.FINISHED, ())

    said = sluice(*command).error

    assert "it is FINISHED, and a job that has read all of its input discards" in said
    assert "'sluice run auctions --epochs N' stops after N of them and keeps them" in said


def test_a_cancelled_job_names_the_retention_that_discarded_its_checkpoints(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = Retention.NEVER_RETAIN_AFTER_TERMINATION
    job = a_running_job(a_pipeline(externalized_checkpoint_retention=never))
    monkeypatch.setenv("SLUICE_ROOT", job.store.root)
    none_yet = sluice("checkpoints", "show", "auctions", "latest").error
    take_checkpoint(job)
    stop(job, JobStatus.CANCELED)

    said = sluice("checkpoints", "show", "auctions", "1").error

    assert "job 'auctions' has no checkpoint: it has completed none in memory://" in none_yet
    assert "it is CANCELED, and its retention is NEVER_RETAIN_AFTER_TERMINATION" in said


def test_a_failed_checkpoint_is_one_line_of_the_list(job: Job, sluice: Sluice) -> None:
    trigger_one(job)
    cause = "stage 'bids' failed: " + "a long [reason] " * 30
    fail_checkpoint(job, ONE, CheckpointFailureReason.CHECKPOINT_EXPIRED, cause)
    restore(job, Latest())
    take_checkpoint(job)

    lines = sluice("checkpoints", "list", "auctions").out.splitlines()

    assert [line.split()[0] for line in lines[1:]] == ["id", "1", "2"]
    assert max(map(len, lines[1:])) <= 80
    assert "CHECKPOINT_EXP" in lines[2]


def test_a_refused_trigger_is_a_line_of_the_list_at_its_time(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    broken = set[int]()

    def refuses(checkpoint_id: int, timestamp_ms: int) -> None:
        if checkpoint_id in broken:
            raise LookupError("no flags")

    pipeline = a_pipeline()
    pipeline.hook("flags", trigger=refuses, restore=lambda checkpoint_id, state: None)
    job = a_running_job(pipeline, clock=clock)
    monkeypatch.setenv("SLUICE_ROOT", job.store.root)
    for is_refused in (False, True, False):
        broken = {2} if is_refused else set()
        clock.advance(1_000)
        trigger(job) if is_refused else take_checkpoint(job)

    listed = sluice("checkpoints", "list", "auctions")
    failed = sluice("checkpoints", "list", "auctions", "--status", "FAILED", "--json").json

    lines = listed.out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["id", "1", "-", "2"]
    assert "TRIGGER_CHECK" in lines[3]
    assert "what the reasons mean" in listed.err
    assert [(one["id"], one["reason"], one["message"]) for one in failed] == [
        (-1, "TRIGGER_CHECKPOINT_FAILURE", "master hook 'flags' failed: no flags")
    ]


def test_a_list_with_a_failure_names_the_page_about_failures(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    before = sluice("checkpoints", "list", "auctions").err
    trigger_one(job)
    fail_checkpoint(job, TWO, CheckpointFailureReason.CHECKPOINT_EXPIRED, "late")

    after = sluice("checkpoints", "list", "auctions").err

    assert (before, after) == ("", f"what the reasons mean: {FAILURE_REASONS}\n")


def test_a_savepoint_that_cannot_be_taken_is_refused_before_the_run(
    job: Job, sluice: Sluice
) -> None:
    a_savepoint(job)
    before = job.state()

    taken = sluice("run", "auctions", "--savepoint", "mine").error
    drained = sluice("run", "auctions", "--savepoint", "last", "--drain").error
    named = sluice("run", "auctions", "--savepoint", "a/b").error

    assert "savepoint 'mine' exists" in taken
    assert "--drain ends the job and --savepoint suspends it; give one of the two" in drained
    assert "use up to 128 of A-Z a-z 0-9 _ . -" in named
    assert job.state() == before
