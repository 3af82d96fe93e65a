"""A copy of a root is another place: it may be read, and nothing of the original is the copy's."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.jobs import (
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    records_of,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, watch
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import foreign_target, restore, stop
from sluice.coordinator.submission import adopt, configure
from sluice.coordinator.trigger import trigger
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.store.open import StoreLocation
from sluice.surface.checkpoints import history
from tests.subtasks import acknowledge, finish, take_checkpoint, take_checkpoints

COPY = "is a copy: the journal of job 'auctions' in it is that of memory://"


def copy_of(job: Job) -> Job:
    """All of its objects in another root, as ``aws s3 sync`` leaves them."""
    copy = a_job(job.pipeline)
    for key in keys_of(job):
        body = job.store.get(key)
        assert body is not None
        copy.store.put(key, body)
    return copy


@pytest.fixture(name="original")
def _original() -> Job:
    job = a_running_job(a_pipeline(num_retained=3, tolerable_failed_checkpoints=9))
    take_checkpoints(job, 2)
    return job


def test_nothing_of_the_job_becomes_true_in_a_copy_and_it_can_be_read(original: Job) -> None:
    copy = copy_of(original)
    before = keys_of(copy)
    reason = CheckpointFailureReason.TASK_FAILURE

    for act in (
        lambda: trigger(copy),
        lambda: watch(copy),
        lambda: restore(copy, Latest()),
        lambda: stop(copy, JobStatus.CANCELED),
        lambda: commit(copy, CheckpointId(2)),
        lambda: fail_checkpoint(copy, CheckpointId(3), reason, "x", is_task_failure=True),
    ):
        with pytest.raises(ConfigurationError, match=COPY):
            act()

    assert keys_of(copy) == before
    assert [one.id for one in history(copy)] == [1, 2]
    assert published_records(copy) == [*range(20)]


def test_a_pending_checkpoint_of_the_original_completes_there_and_nowhere_else(
    original: Job,
) -> None:
    plan = trigger_one(original)
    acknowledge(original, plan)
    copy = copy_of(original)

    with pytest.raises(ConfigurationError, match=COPY):
        finalize(copy, plan.checkpoint_id)
    finish(original, plan.checkpoint_id)

    assert published_records(original) == [*range(30)]
    assert published_records(copy) == [*range(20)]


def test_a_copy_is_begun_from_in_a_root_of_its_own(original: Job) -> None:
    copy = copy_of(original)
    mine = a_job(original.pipeline)

    target = foreign_target(mine, copy.store.root, checkpoint_id=CheckpointId(2))
    restore(mine, target, configuration=configure(mine.pipeline, {}))
    plan = trigger_one(mine)

    assert records_of(plan) == [*range(20, 30)]
    assert mine.state().life not in ("", original.state().life)


def test_a_root_that_moved_is_adopted_and_goes_on_as_the_same_job(original: Job) -> None:
    trigger_one(original)
    moved = copy_of(original)
    generation = original.state().generation

    after = adopt(moved)
    take_checkpoint(moved)

    assert (after.life, after.place) == (original.state().life, moved.location.name)
    assert (after.generation, after.pending) == (generation + 1, ())
    assert published_records(moved) == [*range(30)]


def test_only_a_copy_can_be_adopted(original: Job) -> None:
    with pytest.raises(ConfigurationError, match="is no copy"):
        adopt(original)
    with pytest.raises(ConfigurationError, match="was never submitted"):
        adopt(a_job(original.pipeline))


def test_a_root_is_the_same_place_however_it_is_spelled(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "root")
    roots = [f"file://{tmp_path}/root", f"file://{tmp_path}/root/", f"file://{tmp_path}/link"]
    (tmp_path / "root").mkdir()

    assert len({StoreLocation(root).name for root in roots}) == 1
    assert StoreLocation("s3://bucket/a/").name == StoreLocation("s3://bucket/a").name
    assert StoreLocation("s3://bucket/a").name != StoreLocation("s3://bucket/b").name


def test_a_copy_has_the_journal_of_the_original_and_a_restore_from_it_has_its_own(
    original: Job,
) -> None:
    """The keys in every ``_metadata`` have the token, so a copy of them needs it."""
    copy, mine = copy_of(original), a_job(original.pipeline)
    target = foreign_target(mine, copy.store.root)
    restore(mine, target, configuration=configure(mine.pipeline, {}))

    assert copy.paths == original.paths
    assert mine.paths.token != original.paths.token
    assert target.origin is not None
    assert target.origin.token == original.paths.token
    assert mine.metadata(take_checkpoint(mine)).parent == 2
