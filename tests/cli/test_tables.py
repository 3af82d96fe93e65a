"""``sluice tables``: versions shown, files merged, and what checkpoints pin never deleted."""

from __future__ import annotations

from harness.jobs import SINK, published_records, results
from sluice.job.job import Job
from tests.cli.conftest import Sluice
from tests.subtasks import a_savepoint, take_checkpoint

VACUUM = ("tables", "vacuum", "auctions", SINK, "--keep-versions", 1, "--grace", "0s")


def test_show_tells_versions_and_what_is_read(job: Job, sluice: Sluice) -> None:
    for _ in range(3):
        take_checkpoint(job)

    printed = sluice("tables", "show", "auctions", SINK)
    shown = sluice("tables", "show", "auctions", SINK, "--json").json

    assert printed.code == 0
    assert "as of 3" in printed.out
    assert [one["version"] for one in shown["versions"]] == [1, 2, 3]
    assert (shown["version"], shown["rows"]) == (3, results(job).row_count())
    assert shown["files"] == sum(one["files"] for one in shown["versions"])
    assert all(one["in_table"] and not one["compacted"] for one in shown["versions"])


def test_compacting_changes_files_and_no_rows(job: Job, sluice: Sluice) -> None:
    for _ in range(3):
        take_checkpoint(job)

    first = sluice("tables", "compact", "auctions", SINK, "--json").json
    again = sluice("tables", "compact", "auctions", SINK)

    assert (first["version"], first["files"]) == (3, 1)
    assert first["files_before"] > 1
    assert "nothing to do" in again.out
    assert published_records(job) == list(range(30))


def test_a_vacuum_keeps_what_checkpoints_and_savepoints_pin(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    a_savepoint(job)
    pinned = job.savepoint_metadata("mine").tables[SINK]
    for _ in range(4):
        take_checkpoint(job)
    before = published_records(job, pinned)

    record = sluice(*VACUUM, "--json").json

    assert record["before_version"] <= pinned
    assert published_records(job, pinned) == before
    assert published_records(job) == list(range(10 * len(results(job).compare("", None).ahead)))


def test_a_vacuum_deletes_what_nothing_pins(job: Job, sluice: Sluice) -> None:
    newest = [take_checkpoint(job) for _ in range(6)][-1]
    retained = min(one.checkpoint_id for one in job.state().completed)
    floor = job.metadata(retained).previous_tables[SINK]

    sluice(*VACUUM)

    assert results(job).versions() == tuple(range(floor, newest + 1))
    assert published_records(job) == list(range(60))
    assert floor > 1


def test_mistakes_are_named_with_the_fix(job: Job, sluice: Sluice) -> None:
    unknown = sluice("tables", "show", "auctions", "nothing").error
    empty = sluice(*VACUUM).error

    assert unknown.startswith("error: pipeline 'auctions' has no sink 'nothing'; it has results")
    assert empty == "error: the table of sink 'results' has no version yet"
