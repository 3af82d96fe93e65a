"""``sluice checkpoints stats``, and ``list`` beyond what is retained."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from harness.jobs import STAGES, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.failure import fail_checkpoint
from sluice.core.answers import LateRows, SubtaskMetrics, TaskFailure
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from sluice.surface.checkpoints import details, overview
from sluice.surface.exceptions import exception_history
from tests.cli.conftest import Sluice
from tests.patching import replace_in
from tests.subtasks import acknowledge, measure, take_checkpoint


@pytest.fixture
def job() -> Job:
    """Two completed checkpoints, the first one subsumed; a failed one, and a pending one."""
    job = a_running_job(a_pipeline(num_retained=1, tolerable_failed_checkpoints=9))
    take_checkpoint(job)
    take_checkpoint(job)
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    fail_checkpoint(job, trigger_one(job).checkpoint_id, reason, "too slow")
    acknowledge(job, trigger_one(job), STAGES[0])
    return job


def test_the_json_is_the_model(job: Job, sluice: Sluice) -> None:
    told = sluice("checkpoints", "stats", "auctions", "--json").json
    of_one = sluice("checkpoints", "stats", "auctions", 1, "--json").json

    assert told == msgspec.json.decode(msgspec.json.encode(overview(job)))
    counts = {"restored": 0, "total": 4, "in_progress": 1, "completed": 2, "failed": 1}
    assert told["counts"] == counts | {"unsuccessful_triggers": 0}
    assert of_one == msgspec.json.decode(msgspec.json.encode(details(job, CheckpointId(1))))
    times = {"sync": 0, "async": 0, "async_start_delay": 0}  # Measured, and none.
    assert of_one["stages"][0]["subtasks"][0]["checkpoint"] == times


def test_people_see_counts_percentiles_and_reasons(sluice: Sluice) -> None:
    printed = sluice("checkpoints", "stats", "auctions").out

    assert "4 checkpoints: 2 completed, 1 failed, 1 in progress; 0 restores" in printed
    assert "checkpointed_size" in printed
    assert "latest failed: 3, CHECKPOINT_EXPIRED: too slow" in printed


def test_people_see_which_stage_is_waited_for(sluice: Sluice) -> None:
    printed = sluice("checkpoints", "stats", "auctions", 4).out

    assert "checkpoint 4: CHECKPOINT, IN_PROGRESS" in printed
    assert f"{STAGES[0]} has not acknowledged" not in printed
    assert f"{STAGES[1]} has not acknowledged; its 2 subtasks do so at once" in printed


def test_people_see_how_late_the_rows_of_a_source_were(job: Job, sluice: Sluice) -> None:
    fail_checkpoint(job, CheckpointId(4), CheckpointFailureReason.CHECKPOINT_EXPIRED, "too slow")
    late = SubtaskMetrics(late={"bids": LateRows(rows=1_000, most_ms=90_000)})
    checkpoint_id = measure(job, late, late)

    printed = sluice("checkpoints", "stats", "auctions", checkpoint_id).out

    told = "2,000 late rows of bids, the farthest 90.0 s behind the watermark"
    assert f"{STAGES[0]}: {told}" in printed


def test_an_unknown_checkpoint_is_named(sluice: Sluice) -> None:
    assert "checkpoint 9 is not retained" in sluice("checkpoints", "stats", "auctions", 9).error


def test_the_list_goes_beyond_what_is_retained_and_is_filtered(sluice: Sluice) -> None:
    def ids(*options: object) -> list[int]:
        listed = sluice("checkpoints", "list", "auctions", "--json", *options).json
        return [checkpoint["id"] for checkpoint in listed]

    assert ids() == [1, 2, 3, 4]
    assert ids("--limit", 2) == [3, 4]
    assert ids("--limit", 2, "--all") == [1, 2, 3, 4]
    assert ids("--status", "FAILED") == [3]
    assert ids("--status", "FAILED", "--status", "IN_PROGRESS") == [3, 4]


def test_what_completed_and_is_deleted_is_told_as_discarded(sluice: Sluice) -> None:
    listed = sluice("checkpoints", "list", "auctions", "--all")
    records = sluice("checkpoints", "list", "auctions", "--all", "--json").json

    lines = {
        line.split()[0]: line.split()[2]
        for line in listed.out.splitlines()
        if line[:4].strip().isdecimal()
    }
    assert lines == {"1": "discarded", "2": "COMPLETED", "3": "FAILED", "4": "IN_PROGRESS"}
    told = [(one["status"], one["discarded"]) for one in records[:2]]
    assert told == [("COMPLETED", True), ("COMPLETED", False)]


@pytest.mark.parametrize(
    "command",
    [
        ("checkpoints", "stats", "auctions"),
        ("checkpoints", "stats", "auctions", "2"),
        ("checkpoints", "show", "auctions", "latest"),
        ("checkpoints", "config", "auctions"),
        ("snapshots", "auctions"),
        ("journal", "auctions"),
        ("lag", "auctions"),
    ],
)
@pytest.mark.parametrize("columns", [64, 80])
def test_no_word_of_a_table_is_cut_however_narrow_the_terminal(
    command: tuple[str, ...], columns: int, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A job's age is told in milliseconds, so time has to stand still.
    replace_in(monkeypatch, "sluice.store.object_store", "time", monotonic_ns=lambda: 0)
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = sluice(*command).out
    monkeypatch.setenv("COLUMNS", "300")
    wide = sluice(*command).out

    assert "\u2026" not in narrow
    letters = [Counter(filter(str.isalnum, shown)) for shown in (wide, narrow)]
    assert letters[0] <= letters[1]


def test_people_see_what_failed_by_root_cause_and_on_demand_the_stack(
    job: Job, sluice: Sluice
) -> None:
    pending = CheckpointId(4)
    job.answers.keep_failure(
        TaskFailure(
            checkpoint_id=pending,
            task=f"{STAGES[0]}.snapshot",
            attempt=1,
            message="KeyError: 'price'",
            stack="KeyError: 'price'\n  File \"bids.py\", line 7, in price",
        )
    )
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    fail_checkpoint(job, pending, reason, "nobody came")

    printed = sluice("checkpoints", "exceptions", "auctions").out
    stacks = sluice("checkpoints", "exceptions", "auctions", "--stacks").out
    as_json = sluice("checkpoints", "exceptions", "auctions", "--json").json

    assert f"{STAGES[0]}, attempt 1: KeyError: 'price'" in printed
    assert "CHECKPOINT_EXPIRED, checkpoint 4" in printed
    assert "too slow" in printed
    assert "in price" not in printed
    assert 'File "bids.py", line 7, in price' in stacks
    assert as_json == msgspec.json.decode(msgspec.json.encode(exception_history(job)))
