"""``sluice snapshots``: what a job can be restored from, and what stands against it."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.counting_store import CountingStore
from harness.jobs import a_job, a_pipeline, a_running_job, keys_of, trigger_one
from sluice.coordinator.restore import plan, resolve, stop
from sluice.coordinator.savepoints import savepoint_names
from sluice.core.configuration import JobStatus
from sluice.core.ids import CheckpointId
from sluice.core.restoring import RestoreApproval
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
