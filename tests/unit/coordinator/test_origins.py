"""Restored from elsewhere: a savepoint, or a checkpoint or savepoint of another root."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest

from harness.jobs import (
    STAGES,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    trigger_one,
)
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.restore import foreign_target, restore, savepoint_target, stop
from sluice.coordinator.submission import configure
from sluice.core.configuration import ClaimMode, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import SnapshotOrigin
from sluice.core.restoring import Latest, RestoreOptions
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.errors import RestoreError, TableMismatch
from sluice.job.job import Job
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.subtasks import a_savepoint, acknowledge, state_records, take_checkpoint

ONE, TWO = CheckpointId(1), CheckpointId(2)
NO_OPTIONS = RestoreOptions()
CLAIM = RestoreOptions(claim_mode=ClaimMode.CLAIM)
ACCEPT = RestoreOptions(accept_tables=True)


@pytest.fixture(params=["memory", "file"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    """A cancelled job of another root: checkpoints 1 and 3, and savepoint "mine", which is 2."""
    root = None if request.param == "memory" else f"file://{tmp_path}/elsewhere"
    job = a_job(root=root)
    restore(job, Latest(), configuration=configure(job.pipeline, {}))
    take_checkpoint(job)
    a_savepoint(job)
    take_checkpoint(job)
    stop(job, JobStatus.CANCELED)
    return job


def moved(job: Job, elsewhere: Job, *, options: RestoreOptions = NO_OPTIONS, **target: Any) -> Job:
    """*job* restored from the root of the other."""
    found = foreign_target(job, elsewhere.location.root, **target)
    restore(job, found, options, configuration=configure(job.pipeline, {}))
    return job


def absorbed(job: Job, checkpoint_id: CheckpointId) -> list[list[int]]:
    return [state_records(job, job.metadata(checkpoint_id), stage) for stage in STAGES]


@pytest.mark.parametrize(
    ("target", "continued"),
    [({}, 3), ({"checkpoint_id": ONE}, 1), ({"savepoint": "mine"}, 2)],
    ids=["latest", "numbered", "savepoint"],
)
def test_a_job_goes_on_in_another_root(
    elsewhere: Job, target: dict[str, Any], continued: int
) -> None:
    bytes_before = {key: elsewhere.store.get(key) for key in keys_of(elsewhere)}

    job = moved(a_job(), elsewhere, **target)
    first = take_checkpoint(job)
    second = take_checkpoint(job)

    assert (first, job.metadata(first).parent) == (continued + 1, continued)
    assert job.metadata(first).origin == SnapshotOrigin(
        checkpoint_id=CheckpointId(continued),
        savepoint=target.get("savepoint"),
        root=elsewhere.location.root,
        pipeline="auctions",
    )
    assert all(handle.root == "" for handle in job.metadata(first).files)
    assert job.metadata(second).origin is None
    assert absorbed(job, second) == [list(range(10 * continued + 20))] * 2
    # The rows before are in the other root's table; this one's begins with the restore.
    assert published_records(job) == list(range(10 * continued, 10 * continued + 20))
    assert {key: elsewhere.store.get(key) for key in keys_of(elsewhere)} == bytes_before


def test_the_other_root_is_not_needed_after_the_first_checkpoint(elsewhere: Job) -> None:
    job = moved(a_job(), elsewhere)
    take_checkpoint(job)
    elsewhere.store.delete(keys_of(elsewhere))

    restore(job, Latest())

    assert absorbed(job, take_checkpoint(job)) == [list(range(50))] * 2
    assert published_records(job) == list(range(30, 50))


def test_until_then_a_failure_starts_from_the_other_root_again(elsewhere: Job) -> None:
    job = moved(a_job(), elsewhere)
    acknowledge(job, trigger_one(job))
    fail_checkpoint(job, CheckpointId(4), Reason.TASK_FAILURE, "lost", is_task_failure=True)

    restored = restore(job, Latest())

    assert restored.origin is not None
    assert restored.origin.root == elsewhere.location.root
    assert absorbed(job, take_checkpoint(job)) == [list(range(40))] * 2


def test_a_savepoint_taken_first_after_the_move_is_self_contained(elsewhere: Job) -> None:
    job = moved(a_job(), elsewhere)

    a_savepoint(job, "here")

    files = job.savepoint_metadata("here").files
    assert files
    assert {handle.root for handle in files} == {""}
    assert all(handle.key.startswith("auctions/savepoints/here/") for handle in files)


def test_a_table_that_is_kept_outside_of_both_roots_goes_on(elsewhere: Job) -> None:
    outside = a_pipeline(location=f"memory://{secrets.token_hex(6)}")
    there = moved(a_job(outside), elsewhere, checkpoint_id=ONE)
    take_checkpoint(there)
    stop(there, JobStatus.CANCELED)

    with pytest.raises(RestoreError, match=r"'results' shows checkpoint 2, which life '"):
        moved(a_job(outside), there)
    here = moved(a_job(outside), there, options=ACCEPT)
    take_checkpoint(here)

    assert published_records(here) == list(range(10, 30))
    there_again = restore(there, Latest()).state
    with pytest.raises(TableMismatch, match=f"belongs to life {here.state().life!r}"):
        take_checkpoint(there)
    assert there_again.base == 2


def test_a_pipeline_may_go_on_under_another_name(elsewhere: Job) -> None:
    renamed = a_pipeline()
    renamed.uid = "auctions_two"

    job = moved(a_job(renamed), elsewhere, pipeline="auctions")

    assert absorbed(job, take_checkpoint(job)) == [list(range(40))] * 2


def test_all_tables_begin_anew_whatever_generation_the_other_job_had(elsewhere: Job) -> None:
    """Both are of generation 1: it says nothing about whose lineage this is."""
    job = moved(a_job(), elsewhere)

    first = job.metadata(take_checkpoint(job))

    assert first.generation == elsewhere.metadata(CheckpointId(3)).generation
    assert set(first.tables.values()) == {4}


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ({"savepoint": "nobodys"}, r"savepoints/nobodys/_metadata does not exist"),
        ({"checkpoint_id": CheckpointId(7)}, r"0000000007/_metadata does not exist"),
        ({"pipeline": "bids"}, r"job 'bids' has no completed checkpoint in "),
    ],
)
def test_what_is_not_there_is_named(elsewhere: Job, target: dict[str, Any], problem: str) -> None:
    job = a_job()

    with pytest.raises(RestoreError, match=problem):
        moved(job, elsewhere, **target)
    assert keys_of(job) == []


def test_a_file_that_is_missing_there_is_named(elsewhere: Job) -> None:
    lost = elsewhere.metadata(ONE).files[0].key
    elsewhere.store.delete([lost])

    with pytest.raises(RestoreError, match=f"{lost} is missing"):
        moved(a_job(), elsewhere)


def test_what_lies_in_another_root_cannot_be_claimed(elsewhere: Job) -> None:
    job = a_job()
    target = foreign_target(job, elsewhere.location.root)

    with pytest.raises(RestoreError, match=r"checkpoint 3 of .* cannot be claimed; restore it w"):
        restore(job, target, CLAIM, configuration=configure(job.pipeline, {}))


def test_several_jobs_go_on_from_one_savepoint() -> None:
    first = a_running_job()
    take_checkpoint(first)
    a_savepoint(first)
    before = {key: first.store.get(key) for key in keys_of(first, "auctions/savepoints/")}

    others = [moved(a_job(), first, savepoint="mine") for _ in range(2)]
    for job in (first, *others):
        if job is first:
            restore(job, savepoint_target(job, "mine"))
        take_checkpoint(job)
        assert absorbed(job, take_checkpoint(job)) == [list(range(40))] * 2
        assert not [
            handle
            for completed in job.state().completed[-2:]
            for handle in job.metadata(completed.checkpoint_id).files
            if "/savepoints/" in handle.key or handle.root
        ]

    assert {key: first.store.get(key) for key in keys_of(first, "auctions/savepoints/")} == before


def test_the_first_checkpoint_is_taken_even_without_new_records(tmp_path: Path) -> None:
    """Only then can the owner of the savepoint delete it."""
    (tmp_path / "names.txt").write_text("ann\nbob\n")
    pipeline = Pipeline("auctions")
    lines = pipeline.source("lines", Files(str(tmp_path / "names.txt"), bounded=False))
    lines.key_by("line").aggregate("count_bids", n=agg.count()).sink(
        "results", FilesTable(changelog=True)
    )
    job = a_running_job(pipeline)
    a_savepoint(job)
    restore(job, savepoint_target(job, "mine"))

    first = trigger_one(job)

    assert (first.records, first.is_full) == (0, True)


def test_a_claimed_savepoint_is_shared_in_place() -> None:
    job = a_running_job()
    a_savepoint(job)

    restore(job, savepoint_target(job, "mine"), CLAIM)
    plan = trigger_one(job)
    acknowledge(job, plan)
    restore(job, Latest())  # Nothing has completed: it is still claimed.
    taken = take_checkpoint(job)

    assert not plan.is_full
    assert job.state().claimed_savepoints == ("mine",)
    assert [h for h in job.metadata(taken).files if h.key.startswith("auctions/savepoints/mine/")]
    assert absorbed(job, taken) == [list(range(20))] * 2


def a_table(job: Job, checkpoint_id: CheckpointId) -> Any:
    cut = job.metadata(checkpoint_id).source("names")
    assert cut is not None
    return cut.table


@pytest.fixture
def pinning_job(tmp_path: Path) -> Job:
    (tmp_path / "names.txt").write_text("ann\nbob\n")
    pipeline = a_pipeline()
    pipeline.source("names", Files(str(tmp_path / "names.txt")), table=True)
    return a_running_job(pipeline)


def append_to(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ann\nbob\ncid\n")


def test_a_table_source_is_pinned_at_every_barrier_and_kept_while_it_does_not_change(
    pinning_job: Job, tmp_path: Path
) -> None:
    one, two = take_checkpoint(pinning_job), take_checkpoint(pinning_job)
    append_to(tmp_path)
    three = take_checkpoint(pinning_job)

    tables = [a_table(pinning_job, taken) for taken in (one, two, three)]
    assert tables[0] == tables[1]
    assert [table.rows for table in tables] == [2, 2, 3]


@pytest.mark.parametrize("options", [RestoreOptions(), CLAIM], ids=["NO_CLAIM", "CLAIM"])
def test_a_pinned_table_is_written_anew_unless_the_savepoint_is_claimed(
    pinning_job: Job, options: RestoreOptions
) -> None:
    a_savepoint(pinning_job)
    restore(pinning_job, savepoint_target(pinning_job, "mine"), options)

    table = a_table(pinning_job, take_checkpoint(pinning_job))

    is_claimed = options.claim_mode is ClaimMode.CLAIM
    assert table.key.startswith("auctions/savepoints/") == is_claimed
    assert table.rows == 2
