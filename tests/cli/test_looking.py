"""``sluice journal`` and ``sluice checkpoints show``: the bucket, as people and programs see it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harness.jobs import STAGES, a_pipeline, a_running_job, keys_of, trigger_one
from sluice.cli.options import moment, watermark
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, overtake
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from tests.builders import SUBTASKS
from tests.cli.conftest import Sluice
from tests.subtasks import a_savepoint, acknowledge, decline, take_checkpoint

ONE, TWO = CheckpointId(1), CheckpointId(2)


def test_the_journal_is_told_event_by_event(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    trigger_one(job)
    decline(job, 2, SUBTASKS[0])
    fail_checkpoint(job, TWO, CheckpointFailureReason.CHECKPOINT_DECLINED, "no")

    records = sluice("journal", "auctions", "--json").json

    assert [(one["seq"], one["event"], one["checkpoint"], one["status"]) for one in records] == [
        (1, "JobSubmitted", None, "RUNNING"),
        (2, "CheckpointTriggered", 1, "RUNNING"),
        (3, "CheckpointCompleted", 1, "RUNNING"),
        (4, "CheckpointCommitted", 1, "RUNNING"),
        (5, "CheckpointTriggered", 2, "RUNNING"),
        (6, "DeclineReceived", 2, "RESTARTING"),
    ]
    assert {one["generation"] for one in records} == {1}
    assert {one["at_ms"] for one in records} == {job.clock()}


def test_only_the_newest_entries_are_told_when_asked_so(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)

    printed = sluice("journal", "auctions", "--last", 2).out
    records = sluice("journal", "auctions", "--last", 2, "--json").json

    assert [one["seq"] for one in records] == [3, 4]
    assert [line.split()[:3] for line in printed.splitlines()[1:]] == [
        ["3", "CheckpointCompleted", "1"],
        ["4", "CheckpointCommitted", "1"],
    ]
    job.journal.truncate(keep=1)
    assert [one["seq"] for one in sluice("journal", "auctions", "--json").json] == [4]


def test_a_job_that_was_never_submitted_has_no_journal(new_job: Job, sluice: Sluice) -> None:
    answer = sluice("journal", "auctions", "--root", new_job.store.root, "--json")

    assert (answer.code, answer.json) == (0, [])
    assert keys_of(new_job) == []


def test_a_checkpoint_is_shown_stage_by_stage_and_file_by_file(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    take_checkpoint(job)
    files = job.metadata(TWO).files

    printed = sluice("checkpoints", "show", "auctions", 2)
    shown = sluice("checkpoints", "show", "auctions", 2, "--json").json

    assert printed.code == 0
    assert "checkpoint 2: CHECKPOINT of generation 1, committed" in printed.out
    assert "continues checkpoint 1; 10 records" in printed.out
    assert all(file.key in printed.out for file in files)
    assert (shown["id"], shown["parent"], shown["records"]) == (2, 1, 10)
    assert shown["tables"]["results"] == 2
    assert shown["published"] == {"results": f"_manifests/{2:020d}.json"}
    states = [(one["uid"], one["state"]["rows"], one["state"]["files"]) for one in shown["stages"]]
    assert states == [(stage, 20, 4) for stage in STAGES]
    partitions = [{"partition": "nexmark", "offset": 20, "records": 20}]
    assert shown["sources"] == [{"uid": "events", "partitions": partitions, "exhausted": False}]
    sizes = [(file.key, file.size_bytes) for file in files]
    assert [(file["key"], file["size_bytes"]) for file in shown["files"]] == sizes
    assert {file["written_by"] for file in shown["files"]} == {1, 2}


def test_an_overtaken_stage_is_shown_with_what_is_in_flight(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeout = timedelta(seconds=1)
    job = a_running_job(a_pipeline(unaligned=True, aligned_checkpoint_timeout=timeout))
    monkeypatch.setenv("SLUICE_ROOT", job.store.root)
    plan = trigger_one(job)
    acknowledge(job, plan, STAGES[0])
    overtake(job, ONE, [STAGES[1]])
    finalize(job, ONE)
    commit(job, ONE)

    shown = sluice("checkpoints", "show", "auctions", 1, "--json").json["stages"][1]
    printed = sluice("checkpoints", "show", "auctions", 1).out

    assert (shown["is_overtaken"], shown["in_flight"]["rows"]) == (True, 10)
    assert shown["state"] == {"files": 0, "inline": 0, "size_bytes": 0, "rows": 0}
    assert "overtaken" in printed


def test_state_in_the_metadata_itself_is_told_apart(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_running_job(a_pipeline(data_inline_threshold=100_000))
    monkeypatch.setenv("SLUICE_ROOT", job.store.root)
    take_checkpoint(job)

    shown = sluice("checkpoints", "show", "auctions", 1, "--json").json

    states = [one["state"] for one in shown["stages"]]
    assert [(state["files"], state["inline"]) for state in states] == [(0, 2)] * 2
    assert shown["files"] == []
    assert "2 inline" in sluice("checkpoints", "show", "auctions", 1).out


def test_a_savepoint_and_what_continues_one_say_so(job: Job, sluice: Sluice) -> None:
    a_savepoint(job)
    restore(job, savepoint_target(job, "mine"))
    take_checkpoint(job)

    assert sluice("checkpoints", "show", "auctions", 1, "--json").json["savepoint"] == "mine"
    assert "SAVEPOINT mine of generation 1" in sluice("checkpoints", "show", "auctions", 1).out
    assert "continues savepoint mine" in sluice("checkpoints", "show", "auctions", 2).out


def test_what_is_not_retained_is_not_shown_and_the_reason_is_told(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    trigger_one(job)

    def error(checkpoint_id: int) -> str:
        return sluice("checkpoints", "show", "auctions", checkpoint_id).error

    assert "checkpoint 9 is not retained; retained are: 1" in error(9)
    assert "checkpoint 2 is pending" in error(2)
    fail_checkpoint(job, TWO, CheckpointFailureReason.CHECKPOINT_EXPIRED, "too late")
    assert error(2) == "error: checkpoint 2 was aborted, CHECKPOINT_EXPIRED: too late"
    job.store.delete([job.paths.metadata(ONE)])
    assert f"{job.paths.metadata(ONE)} does not exist" in error(1)


def test_moments_are_told_in_utc() -> None:
    assert moment(1_436_961_600_007) == "2015-07-15 12:00:00.007"
    assert watermark(1_436_961_600_000) == "2015-07-15 12:00:00.000"
    assert (watermark(MIN_WATERMARK), watermark(MAX_WATERMARK)) == ("none", "end of input")
