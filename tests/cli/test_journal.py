"""``sluice journal``: the newest entries, and what a repair of a damaged one says and does."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.jobs import ManualClock, a_job, a_pipeline, trigger_one
from sluice.coordinator.submission import configure, submit
from sluice.job.job import Job
from sluice.store.object_store import machine_clock_ms
from tests.cli.conftest import Sluice
from tests.planted import Caught, assert_is_caught
from tests.subtasks import a_savepoint, complete_one, take_checkpoints


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
