"""``sluice snapshots``, and checkpoints by name: what a job can be restored from."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.counting_store import CountingStore
from harness.jobs import ManualClock, a_job, a_pipeline, a_running_job, keys_of, trigger_one
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.restore import plan, resolve, restore, stop
from sluice.coordinator.savepoints import savepoint_names
from sluice.coordinator.trigger import trigger
from sluice.core.configuration import JobStatus, Retention
from sluice.core.failures import FAILURE_REASONS, CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest, RestoreApproval
from sluice.job.job import Job
from sluice.protocol.records import FORMAT_VERSION
from sluice.store.memory import named_store
from sluice.surface.snapshots import restore_request_of, snapshots
from tests.cli.conftest import Sluice
from tests.subtasks import a_savepoint, take_checkpoint

ONE, TWO = CheckpointId(1), CheckpointId(2)


def test_every_snapshot_is_listed_with_what_it_pins(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    a_savepoint(job)
    take_checkpoint(job)
    trigger_one(job)  # What is pending is no snapshot.

    found = sluice("snapshots", "auctions", "--json").json

    assert {(one["kind"], one["id"], one["savepoint"]) for one in found} == {
        ("checkpoint", 3, None),
        ("checkpoint", 2, None),
        ("savepoint", 2, "mine"),
        ("checkpoint", 1, None),
    }
    assert {(one["id"], one["tables"]["results"]) for one in found} == {(1, 1), (2, 2), (3, 3)}
    assert {one["format_version"] for one in found} == {FORMAT_VERSION}
    assert {(one["can_restore"], one["is_of_this_life"], one["generation"]) for one in found} == {
        (True, True, 1)
    }
    (of_two,) = {one["full_bytes"] for one in found if one["id"] == 2}
    assert of_two == sum(file.size_bytes for file in job.savepoint_metadata("mine").files)


def test_the_list_fits_a_narrow_terminal_and_tells_what_readers_see_beyond_it(
    job: Job, sluice: Sluice
) -> None:
    take_checkpoint(job)
    a_savepoint(job)

    lines = sluice("snapshots", "auctions").out.splitlines()

    assert max(len(line) for line in lines[1:-3]) <= 80
    assert [line.split()[1] for line in lines[1:5]].count("mine") == 1
    assert [line for line in lines if "checkpoint 1: table 'results' is ahead by 1" in line]


def test_each_can_be_restored_exactly_if_the_list_says_so(job: Job) -> None:
    take_checkpoint(job)
    a_savepoint(job)
    take_checkpoint(job)
    for lost in (job.paths.all_shared(), job.names.savepoints()):
        key = next(key for key in keys_of(job, lost) if "metadata" not in key)
        job.store.delete([key])

    found = snapshots(job)

    for one in found:
        request = restore_request_of(one)
        decision = plan(job, job.state(), resolve(job, job.state(), request))
        assert isinstance(decision, RestoreApproval) == one.can_restore
    damaged = next(one for one in found if one.savepoint == "mine")
    assert not damaged.can_restore
    assert "is missing" in damaged.problems[0]


def test_one_that_cannot_be_restored_is_said_in_words(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    take_checkpoint(job)
    files = job.metadata(TWO).files
    key = next(file.key for file in files if job.paths.checkpoint_of(file.key) == 2)
    job.store.delete([key])

    lines = sluice("snapshots", "auctions").out.splitlines()

    assert [line.split()[-1] for line in lines[2:4]] == ["no", "yes"]
    assert any(line.startswith(f"checkpoint 2 cannot be restored: {key}") for line in lines)


def test_snapshots_of_other_roots_are_listed_behind_and_of_its_own_once(sluice: Sluice) -> None:
    elsewhere = a_running_job()
    take_checkpoint(elsewhere)
    a_savepoint(elsewhere)
    stop(elsewhere, JobStatus.CANCELED)
    before = {key: elsewhere.store.get(key) for key in keys_of(elsewhere)}
    job = a_job()
    root = elsewhere.store.root

    twice = ("--in", root, "--in", job.store.root, "--in", root)
    found = sluice("snapshots", "auctions", "--root", job.store.root, *twice, "--json").json

    assert {(one["root"], one["id"], one["savepoint"]) for one in found} == {
        (root, 1, None),
        (root, 2, None),
        (root, 2, "mine"),
    }
    assert len(found) == 3
    assert not any(one["is_of_this_life"] for one in found)
    assert {key: elsewhere.store.get(key) for key in keys_of(elsewhere)} == before
    assert keys_of(job) == []


def test_a_snapshot_of_another_format_is_listed_with_its_version(job: Job) -> None:
    take_checkpoint(job)
    key = job.paths.metadata(ONE)
    raw = job.store.get(key) or b""
    old = raw.replace(b'"version":%d' % FORMAT_VERSION, b'"version":2')
    job.store.put(key, old)

    (found,) = snapshots(job, checks=False)

    assert (found.format_version, found.can_restore) == (2, False)
    assert "has format version 2; this version of sluice reads" in found.problems[0]


def test_without_checks_nothing_is_said_of_what_can_be_restored(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)

    (found,) = sluice("snapshots", "auctions", "--no-checks", "--json").json
    printed = sluice("snapshots", "auctions", "--no-checks").out

    assert (found["can_restore"], found["problems"]) == (None, [])
    assert printed.splitlines()[-1].split()[-1] == "?"


def test_a_job_without_a_snapshot_says_so(job: Job, sluice: Sluice) -> None:
    assert sluice("snapshots", "auctions").out.startswith("auctions has no snapshot in memory://")


def test_what_more_snapshots_share_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tables and the journal have a line of each checkpoint that there was."""
    asked: Counter[str] = Counter()
    monkeypatch.setattr(
        "sluice.store.open.named_store",
        lambda *place, **kind: CountingStore(named_store(*place, **kind), asked),
    )
    job = a_running_job(a_pipeline(num_retained=8))
    listings = []
    for _ in range(2):
        for _ in range(4):
            take_checkpoint(job)
        asked.clear()
        found = snapshots(job)
        listings.append(asked["list"])

    assert [one.can_restore for one in found] == [True] * 8
    assert listings[0] == listings[1]


def test_no_savepoint_is_disposed_of_by_an_empty_name(job: Job, sluice: Sluice) -> None:
    refused = sluice("dispose", "auctions", "")

    assert refused.error == "error: name is empty; give the savepoint's name"


def test_a_savepoint_is_disposed_of_unless_the_job_needs_it(job: Job, sluice: Sluice) -> None:
    a_savepoint(job)
    sluice("restore", "auctions", "--savepoint", "mine")

    refused = sluice("dispose", "auctions", "mine")
    take_checkpoint(job)
    disposed = sluice("dispose", "auctions", "mine").out
    again = sluice("dispose", "auctions", "mine")
    as_json = sluice("dispose", "auctions", "mine", "--json").json

    assert refused.code == 1
    assert "savepoint 'mine' cannot be disposed of: job 'auctions' was restored" in refused.error
    assert disposed == "savepoint mine is deleted\n"
    said = f"there is no savepoint mine in {job.store.root}; nothing was deleted\n"
    assert (again.code, again.out) == (0, said)
    assert as_json == {"savepoint": "mine", "disposed": False}
    assert savepoint_names(job) == []


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
