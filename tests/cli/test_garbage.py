"""``sluice orphans`` reports, ``sluice gc`` deletes, and either says what it is about."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from harness.jobs import SINK, STAGES, a_pipeline, keys_of, results
from sluice.core.answers import Attempt
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from tests.builders import ATTEMPTED, PLANNED
from tests.cli.conftest import Sluice
from tests.subtasks import a_savepoint, acknowledge, savepoint_key, take_checkpoint

ONE = CheckpointId(1)


@pytest.fixture
def orphans(job: Job) -> list[str]:
    """Three kinds: state, stream segments, and staged files, of a fenced attempt."""
    plan_id = take_checkpoint(job)
    plan = job.plan(plan_id)
    assert plan is not None
    before = set(keys_of(job))
    acknowledge(job, plan, attempt=2)
    job.store.put(job.paths.shared_segment(STAGES[0], ONE, "late"), b"orphaned")
    return sorted(key for key in set(keys_of(job)) - before if "/checkpoints/" not in key)


def test_a_report_counts_by_kind_and_deletes_nothing(
    job: Job, orphans: list[str], sluice: Sluice
) -> None:
    before = keys_of(job)

    printed = sluice("orphans", "auctions", "--grace", "0s")
    report = sluice("orphans", "auctions", "--grace", "0s", "--json").json

    assert keys_of(job) == before
    assert printed.code == 0
    assert "state segments that no retained checkpoint names" in printed.out
    assert "would be deleted by 'sluice gc'" in printed.out
    assert {one["reason"]: one["files"] for one in report["reasons"]} == {
        "STATE": 1, "STREAM": 2, "STAGED": 2
    }  # fmt: skip
    assert report["reasons"][0]["size_bytes"] == len(b"orphaned")
    assert (report["total_files"], report["deleted"]) == (len(orphans), False)
    assert "files" not in report


def test_by_default_what_is_younger_than_an_hour_is_only_counted(
    orphans: list[str], sluice: Sluice
) -> None:
    answer = sluice("orphans", "auctions")

    assert answer.out.splitlines() == [
        "0 files, 0 B: would be deleted by 'sluice gc'",
        f"{len(orphans)} more are within the grace period",
    ]


def test_a_dry_run_lists_every_file_and_deletes_none(
    job: Job, orphans: list[str], sluice: Sluice
) -> None:
    before = keys_of(job)

    printed = sluice("gc", "auctions", "--grace", "0s", "--dry-run")
    report = sluice("gc", "auctions", "--grace", "0s", "--dry-run", "--json").json

    assert keys_of(job) == before
    places = [
        f"{job.paths.table(one['sink'])}/{one['key']}" if one["sink"] else one["key"]
        for one in report["files"]
    ]
    assert sorted(places) == orphans
    assert all(one["key"] in printed.out for one in report["files"])
    assert f"of sink {SINK}" in printed.out
    assert (report["deleted"], report["total_files"]) == (False, len(orphans))


def test_collecting_deletes_and_says_how_much(job: Job, orphans: list[str], sluice: Sluice) -> None:
    before = set(keys_of(job))

    answer = sluice("gc", "auctions", "--grace", "0s")

    assert answer.code == 0
    assert f"{len(orphans)} files" in answer.out
    assert answer.out.rstrip().endswith(": deleted")
    assert before - set(keys_of(job)) == set(orphans)
    assert results(job).read().num_rows == 10
    again = sluice("gc", "auctions", "--grace", "0s", "--json").json
    assert (again["total_files"], again["deleted"], again["files"]) == (0, True, [])


def test_what_is_not_deleted_is_told(job: Job, sluice: Sluice) -> None:
    a_savepoint(job)
    job.store.delete([savepoint_key(job, "mine")])
    readme = f"{job.paths.all_shared()}readme.txt"
    job.store.put(readme, b"mine")

    printed = sluice("orphans", "auctions", "--grace", "0s")
    report = sluice("gc", "auctions", "--grace", "0s", "--json").json

    assert "savepoint mine is incomplete" in printed.out
    assert f"{readme} has no name that sluice writes; it stays" in " ".join(printed.out.split())
    assert [one["name"] for one in report["incomplete_savepoints"]] == ["mine"]
    assert report["unknown"] == [readme]


def test_what_another_job_staged_in_the_same_place_is_told(
    job: Job, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "memory://of-several-jobs"
    pipeline = a_pipeline(location=place)
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)
    theirs = results(replace(job, pipeline=pipeline)).stage(
        pa.table({"record": [1]}),
        Attempt(checkpoint_id=1, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPTED),
    )
    assert theirs is not None

    printed = sluice("gc", "auctions", "--grace", "0s")
    report = sluice("orphans", "auctions", "--grace", "0s", "--json").json

    told = f"{place}/{theirs.file} was staged by another job, or before this root was emptied"
    assert f"{told}; it stays" in " ".join(printed.out.split())
    assert (report["total_files"], report["of_others"]) == (0, [f"{place}/{theirs.file}"])


def test_a_table_whose_versions_expire_is_told(
    job: Job, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = a_pipeline(num_retained_versions=1)
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)
    for _ in range(3):
        take_checkpoint(job)

    printed = sluice("gc", "auctions", "--dry-run")
    report = sluice("orphans", "auctions", "--json").json

    assert f"the table of sink {SINK} has more versions than" in " ".join(printed.out.split())
    assert report["expiring"] == [SINK]
    assert results(job).versions() == (1, 2, 3)


def test_one_unreadable_object_stops_both_and_is_named(
    job: Job, orphans: list[str], sluice: Sluice
) -> None:
    job.store.put(job.paths.metadata(ONE), b"{}")
    before = keys_of(job)

    for command in ("orphans", "gc"):
        error = sluice(command, "auctions", "--grace", "0s").error
        assert error.startswith("error: no garbage was collected")
        assert job.paths.metadata(ONE) in error
    assert keys_of(job) == before


@pytest.mark.parametrize("grace", ["soon", "1", "-1h", "1w", "", "1.5h"])
def test_a_period_in_another_form_is_refused_with_the_right_one(grace: str, sluice: Sluice) -> None:
    error = sluice("gc", "auctions", f"--grace={grace}").error

    assert error == f"error: --grace {grace!r} is not understood; write 90s, 30m, 1h or 2d"
