"""Collecting garbage works alike on memory, on a folder, and on a real S3 server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.jobs import STAGES, ManualClock, a_pipeline, keys_of, published_records, results
from sluice.coordinator.garbage import Orphans, Reason, collect_garbage, find_orphans
from sluice.coordinator.restore import savepoint_target
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.submission import configure, submit
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Choice, RestoreApproval, RestoreTarget
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from tests.subtasks import a_savepoint, acknowledge, take_checkpoint

MORE_THAN_A_BATCH = 1_050  # S3 lists, and deletes, at most 1,000 keys per request.
ONE = CheckpointId(1)


@pytest.fixture
def job(location: StoreLocation) -> Job:
    """Three retained checkpoints and a savepoint."""
    job = open_job(a_pipeline(), location, clock=ManualClock())
    submit(job, configure(job.pipeline, {}))
    for _ in range(3):
        take_checkpoint(job)
    a_savepoint(job)
    return job


def put_all(job: Job, keys: list[str]) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: job.store.put(key, b"orphaned"), keys))


def test_more_orphans_than_a_batch_go_and_everything_else_stays(job: Job) -> None:
    before = keys_of(job)
    orphans = [
        job.paths.shared_segment(STAGES[0], ONE, f"{number:05d}-fenced")
        for number in range(MORE_THAN_A_BATCH)
    ]
    put_all(job, orphans)

    collected = collect_garbage(job, grace_ms=0)

    assert [orphan.key for orphan in collected.files] == orphans
    assert collected.total_bytes == 8 * MORE_THAN_A_BATCH
    assert keys_of(job) == before
    assert find_orphans(job, grace_ms=0) == Orphans()
    targets: list[RestoreTarget] = [Choice(c.checkpoint_id) for c in job.state().completed]
    for target in (*targets, savepoint_target(job, "mine")):
        assert isinstance(plan_restore(job, target), RestoreApproval)


def test_what_was_staged_and_never_committed_goes_from_the_table(job: Job) -> None:
    plan = job.plan(job.state().completed[-1].checkpoint_id)
    assert plan is not None
    acknowledge(job, plan, STAGES[1], attempt=2)
    staged = [one.file for one in results(job).unpublished().staged]

    collected = collect_garbage(job, grace_ms=0)

    assert staged
    assert [one.key for one in collected.files if one.reason is Reason.STAGED] == staged
    assert results(job).unpublished().staged == ()
    assert published_records(job) == list(range(40))


def test_the_store_tells_the_age_of_what_it_lists(job: Job) -> None:
    put_all(job, [job.paths.shared_segment(STAGES[0], ONE, "just-now")])

    assert collect_garbage(job).files == ()
    assert len(find_orphans(job).too_young) == 1
