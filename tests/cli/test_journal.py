"""``sluice journal`` and ``sluice checkpoints show``: the bucket, as people and programs see it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from harness.jobs import STAGES, ManualClock, a_job, a_pipeline, a_running_job, keys_of, trigger_one
from sluice.cli.options import moment, watermark
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, overtake
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.submission import configure, submit
from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from sluice.store.object_store import machine_clock_ms
from tests.builders import SUBTASKS
from tests.cli.conftest import Sluice
from tests.planted import Caught, assert_is_caught
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    complete_one,
    decline,
    take_checkpoint,
    take_checkpoints,
)


def damage(job: Job, seq: int | None = None) -> int:
    """The newest, or the one with that number."""
    keys = [listed.key for listed in job.store.list(job.paths.journal())]
    key = keys[-1] if seq is None else job.paths.journal_entry(seq)
    job.store.put(key, (job.store.get(key) or b"")[:50])
    return job.paths.journal_seq(key)


def test_the_word_show_may_be_left_out(sluice: Sluice, job: Job) -> None:
    take_checkpoints(job, 1)

    told = sluice("journal", "auctions", "--last", 2, "--json")

    assert (told.code, [one["event"] for one in told.json]) == (
        0,
        ["CheckpointCompleted", "CheckpointCommitted"],
    )
    for other in (("show", "auctions", "--last", 2), ("--last", 2, "auctions")):
        assert sluice("journal", *other, "--json").out == told.out
    assert "repair" in sluice("journal", "--help").out


def test_a_damaged_entry_is_found_previewed_and_passed(sluice: Sluice, job: Job) -> None:
    take_checkpoints(job, 2)
    complete_one(job)
    seq = damage(job)

    refused = sluice("checkpoints", "list", "auctions")
    preview = sluice("journal", "repair", "auctions")
    again = sluice("journal", "repair", "auctions")
    done = sluice("journal", "repair", "auctions", "--yes")

    assert "'sluice journal repair auctions'" in refused.error
    assert (preview.code, again.out) == (0, preview.out)
    assert f"entry {seq} recorded" in preview.out.replace("\n", " ")
    assert "checkpoint 3 was completed by it, and is again" in preview.out
    assert "the job restarts from checkpoint 3" in preview.out
    assert preview.out.splitlines()[-1] == (
        "nothing was changed; 'sluice journal repair auctions --yes' does it"
    )
    assert done.code == 0
    assert "the journal is repaired; the watchdog restarts the job" in done.out
    listed = sluice("journal", "auctions", "--last", 1, "--json").json
    assert [(one["event"], one["status"]) for one in listed] == [("JournalRepaired", "RESTARTING")]
    assert f"entry {seq} could not be read" in listed[0]["message"]
    assert sluice("journal", "repair", "auctions").out.startswith(
        f"{job.paths.journal_entry(seq)} cannot be read"
    )


def test_a_checkpoint_of_which_only_the_metadata_is_there_is_told(sluice: Sluice, job: Job) -> None:
    take_checkpoints(job, 1)
    plan = complete_one(job)
    trigger_seq = next(seq for seq, _ in job.journal.numbered(2))
    job.store.delete([job.paths.statistics(plan.checkpoint_id)])
    damage(job)

    preview = sluice("journal", "repair", "auctions", "--json").json

    assert (preview["repaired"], preview["continues"]) == (False, trigger_seq)
    assert (preview["base"], preview["completed"], preview["aborted"]) == (1, None, [2])
    assert "which may have been completed" in sluice("journal", "repair", "auctions").out


def test_a_lost_trigger_is_told(sluice: Sluice, job: Job) -> None:
    plan = trigger_one(job)
    damage(job)

    told = sluice("journal", "repair", "auctions").out

    assert f"checkpoint {plan.checkpoint_id} was triggered by it, and is given up" in told
    assert "the job restarts from the empty state" in told


def test_of_a_whole_journal_nothing_is_repaired(sluice: Sluice, job: Job) -> None:
    take_checkpoints(job, 1)

    assert sluice("journal", "repair", "auctions", "--yes").out == (
        "the journal of auctions is whole\n"
    )
    damage(job, 2)
    job.store.delete([job.paths.journal_entry(3)])
    told = sluice("journal", "repair", "auctions").out
    assert "nothing is lost but this line of the history" in told
    assert "entry 3 is missing between others" in told


def test_the_doctor_reads_every_entry(
    sluice: Sluice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.cli.doctor.load_pipeline", {"auctions": a_pipeline()}.__getitem__)
    root = f"file://{tmp_path}/root"
    job = a_job(root=root, clock=ManualClock(machine_clock_ms()))
    submit(job, configure(job.pipeline, {}))
    take_checkpoints(job, 2)

    def found() -> tuple[str, str]:
        last = sluice("doctor", "auctions", "--root", root, "--json").json["findings"][-1]
        return last["status"], last["message"]

    assert found()[0] == "ok"
    damage(job, 3)
    status, message = found()
    assert status == "warning"
    assert "journal/000000000003" in message
    damage(job)
    status, message = found()
    assert status == "problem"
    assert "'sluice journal repair auctions'" in message
    assert sluice("journal", "repair", "auctions", "--root", root, "--yes").code == 0
    assert found()[0] == "warning"


FAULTS = [
    Caught(
        "the doctor passes over damaged entries", "store.journal:Journal.inspect",
        "damaged=tuple(one for one in found if isinstance(one, DamagedEntry)),", "damaged=(),",
        test_the_doctor_reads_every_entry,
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)


def test_what_changed_is_listed_the_newest_last(job: Job, sluice: Sluice) -> None:
    a_savepoint(job, cause="ann")

    printed = sluice("journal", "changes", "auctions").out.splitlines()
    as_json = sluice("journal", "changes", "auctions", "--json").json

    assert "it was submitted" in printed[0]
    assert printed[-1].endswith("savepoint  savepoint mine was taken, by ann")
    assert len(as_json["changes"]) == len(printed)


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
