"""``sluice tables``: versions shown, files merged, and what checkpoints pin never deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.jobs import SINK, a_pipeline, a_running_job, published_records, results
from harness.noted_target import NotedTable
from sluice.coordinator.restore import stop
from sluice.core.configuration import JobStatus
from sluice.errors import TableMismatch
from sluice.job.job import Job
from sluice.sinks import FilesTable
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


def test_a_table_is_taken_over_after_a_preview_which_changes_nothing(
    job: Job, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = FilesTable(f"memory://{job.state().life}", changelog=True)
    declared = a_pipeline(sink=table)
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": declared}.__getitem__)
    mine, other = replace(job, pipeline=declared), a_running_job(declared)
    take_checkpoint(other)
    life = other.state().life

    preview = sluice("tables", "take-over", "auctions", SINK)
    before = mine.state()
    done = sluice("tables", "take-over", "auctions", SINK, "--yes", "--json").json

    assert preview.out.splitlines()[0].startswith(f"table {SINK!r} shows checkpoint 1, which life ")
    assert preview.out.splitlines()[1:] == [
        f"nothing is changed yet: 'sluice tables take-over auctions {SINK} --yes'"
    ]
    assert (before.generation, mine.state().generation) == (1, 2)
    assert (done["taken_over"], done["status"]) == (True, "RUNNING")
    told = [one["message"] for one in sluice("journal", "auctions", "--json").json]
    assert f"table {SINK!r} was that of life {life!r} before" in told
    take_checkpoint(mine)
    with pytest.raises(TableMismatch, match="see 'sluice tables take-over'"):
        take_checkpoint(other)


def test_a_suspended_job_takes_a_table_over_and_stays_suspended(
    job: Job, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = NotedTable()
    declared = a_pipeline(sink=table)
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": declared}.__getitem__)
    take_checkpoint(a_running_job(declared))
    stop(job, JobStatus.SUSPENDED)

    done = sluice("tables", "take-over", "auctions", SINK, "--yes")
    own = sluice("tables", "take-over", "auctions", SINK, "--yes").error

    assert done.out.splitlines()[-1] == (
        "auctions has the table, and is SUSPENDED from the empty state, generation 2"
    )
    assert own == (
        f"error: table {SINK!r} cannot be taken over: table {SINK!r} shows no rows of another "
        "job, so there is nothing to take over; leave it out"
    )
    assert table.place.records == list(range(10))


def test_a_job_that_never_began_takes_a_table_over_as_it_begins(
    job: Job, sluice: Sluice, tmp_path: Path
) -> None:
    root = f"file://{tmp_path}"

    assert sluice("tables", "take-over", "auctions", SINK, "--root", root).error == (
        f"error: job 'auctions' was never submitted in {root}; start it with 'sluice run auctions "
        f"--take-over {SINK}', which takes the table over, or name another --root"
    )


def test_mistakes_are_named_with_the_fix(job: Job, sluice: Sluice) -> None:
    unknown = sluice("tables", "show", "auctions", "nothing").error
    empty = sluice(*VACUUM).error

    assert unknown.startswith("error: pipeline 'auctions' has no sink 'nothing'; it has results")
    assert empty == "error: the table of sink 'results' has no version yet"
