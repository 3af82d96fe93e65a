"""Savepoints: copies that a person owns, and what is restored from them."""

from __future__ import annotations

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
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.savepoints import savepoint_names
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import SnapshotOrigin
from sluice.core.restoring import Latest, RestoreOptions
from sluice.declaration import aggregates as agg
from sluice.declaration.params import param
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.protocol.keys import check_savepoint_name
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from tests.subtasks import a_savepoint, acknowledge, state_records, take_checkpoint

ONE, TWO = CheckpointId(1), CheckpointId(2)
EXPIRED, TASK_FAILURE = Reason.CHECKPOINT_EXPIRED, Reason.TASK_FAILURE
SAVEPOINT = CheckpointType.SAVEPOINT


def read_from(job: Job, checkpoint_id: CheckpointId) -> list[int]:
    return state_records(job, job.metadata(checkpoint_id), STAGES[0])


def test_a_savepoint_is_self_contained() -> None:
    root = "memory://a-savepoint-alone"
    outside = a_pipeline(location="memory://a-table-elsewhere")
    job = a_job(outside, root=root)
    submit(job, configure(outside, {}))
    take_checkpoint(job)
    taken = a_savepoint(job)
    job.store.delete([key for key in keys_of(job) if "/savepoints/" not in key])

    mine, accept = savepoint_target(job, "mine"), RestoreOptions(accept_tables=True)
    restored = restore(job, mine, accept, configuration=configure(outside, {}))

    assert (restored.checkpoint_id, restored.origin and restored.origin.savepoint) == (
        taken,
        "mine",
    )
    assert savepoint_names(job) == ["mine"]
    after = take_checkpoint(job)
    assert after == taken + 2  # One id is left out behind what another life knows.
    assert read_from(job, after) == list(range(30))
    assert published_records(job) == list(range(30))


def test_a_savepoint_shares_no_file_with_the_job() -> None:
    job = a_running_job()
    take_checkpoint(job)
    taken = a_savepoint(job)

    copied = {handle.key for handle in job.savepoint_metadata("mine").files}

    assert copied
    assert all(key.startswith("auctions/savepoints/mine/") for key in copied)
    assert not copied & {handle.key for handle in job.metadata(taken).files}
    assert job.savepoint_metadata("mine").checkpoint_id == taken


def test_a_subsumed_savepoint_and_one_restored_from_keep_every_byte() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    a_savepoint(job)
    before = {key: job.store.get(key) for key in keys_of(job, "auctions/savepoints/")}
    restore(job, savepoint_target(job, "mine"))
    take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)
    stop(job, JobStatus.CANCELED)

    assert {key: job.store.get(key) for key in keys_of(job, "auctions/savepoints/")} == before


def test_after_its_first_checkpoint_the_job_needs_the_savepoint_no_more() -> None:
    job = a_running_job()
    a_savepoint(job)
    restore(job, savepoint_target(job, "mine"))

    first = take_checkpoint(job)

    named = [handle.key for handle in job.metadata(first).files]
    assert not [key for key in named if "/savepoints/" in key]


def test_until_then_a_failure_recovers_from_the_savepoint_again() -> None:
    job = a_running_job()
    a_savepoint(job)
    restore(job, savepoint_target(job, "mine"))
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, TASK_FAILURE, "lost", is_task_failure=True)

    restored = restore(job, Latest())

    assert restored.origin == SnapshotOrigin(checkpoint_id=ONE, savepoint="mine")
    assert read_from(job, take_checkpoint(job)) == list(range(20))


def test_a_restore_elsewhere_is_verified_with_the_parameters_it_is_given() -> None:
    pipeline = Pipeline("auctions")
    events = pipeline.source("events", Nexmark(param("events")))
    stream = events.key_by("bid_auction").aggregate("count_bids", bids=agg.count())
    stream.sink("results", FilesTable("memory://results-of-a-moved-job", changelog=True))
    job = a_job(pipeline)
    submit(job, configure(pipeline, {"events": "30"}, max_records_per_epoch=10))
    a_savepoint(job)
    job.store.delete([key for key in keys_of(job) if "/savepoints/" not in key])

    restored = restore(
        job,
        savepoint_target(job, "mine"),
        RestoreOptions(accept_tables=True),  # They are of the life that is lost.
        configuration=configure(pipeline, {"events": "40"}),
    )

    assert restored.state.configuration.params == {"events": "40"}


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x" * 129])
def test_a_savepoint_name_that_is_no_key_is_refused(name: str) -> None:
    assert check_savepoint_name("2024-01-01_before.upgrade") == "2024-01-01_before.upgrade"

    with pytest.raises(ConfigurationError, match=r"savepoint name .* is not usable; use up to 128"):
        check_savepoint_name(name)


def test_stopping_with_a_savepoint_suspends_and_draining_finishes() -> None:
    suspended, drained = a_running_job(), a_running_job()

    a_savepoint(suspended, type=CheckpointType.SAVEPOINT_SUSPEND)
    a_savepoint(drained, type=CheckpointType.SAVEPOINT_TERMINATE)

    assert suspended.state().status is JobStatus.SUSPENDED
    assert drained.state().status is JobStatus.FINISHED
    assert drained.metadata(ONE).drains
    assert restore(suspended, Latest()).state.status is JobStatus.RUNNING


def test_restoring_a_suspending_savepoint_whose_commit_died_resumes_the_job() -> None:
    job = a_running_job()
    plan = trigger_one(job, type=CheckpointType.SAVEPOINT_SUSPEND, savepoint_name="mine")
    acknowledge(job, plan)
    finalize(job, ONE)

    assert restore(job, Latest()).state.status is JobStatus.RUNNING
