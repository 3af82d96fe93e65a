"""``RestoreRequest``: the same for all callers, parsed where it enters and resolved once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from harness.jobs import a_job, a_pipeline, a_running_job
from sluice.coordinator.recovery import restore
from sluice.coordinator.restore_request import RestoreRequest, plan, resolve
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.timing import NewTimes, retime
from sluice.core.ids import CheckpointId
from sluice.core.plan import SnapshotOrigin
from sluice.core.properties import CheckpointingMode, ClaimMode, Retention
from sluice.core.restoring import FromCheckpoint, FromOrigin, Latest, RestoreOptions, RestoreTarget
from sluice.declaration.config import fixed_delay
from sluice.errors import ConfigurationError, FencedError
from sluice.job.job import open_job
from sluice.storage.memory import InMemoryStore
from sluice.storage.open import StoreLocation
from tests.subtasks import a_savepoint, take_checkpoint

ONE = CheckpointId(1)
CLAIM = RestoreOptions(claim_mode=ClaimMode.CLAIM)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"checkpoint": ONE, "savepoint": "mine"},
            "checkpoint 1 and savepoint 'mine' exclude one another; give one",
        ),
        ({"pipeline": "bids"}, "pipeline 'bids' needs the root where its checkpoints are"),
        ({"options": CLAIM}, "CLAIM is given with the latest one, but only a savepoint"),
        ({"options": CLAIM, "checkpoint": ONE}, "CLAIM is given with checkpoint 1, but only"),
    ],
)
def test_a_request_that_contradicts_itself_is_refused_where_it_enters(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        RestoreRequest(**fields)


@pytest.mark.parametrize(
    ("fields", "target"),
    [
        ({}, Latest()),
        ({"checkpoint": ONE}, FromCheckpoint(ONE)),
        ({"savepoint": "mine"}, FromOrigin(SnapshotOrigin(checkpoint_id=ONE, savepoint="mine"))),
        ({"root": "own"}, Latest()),
        ({"root": "own", "pipeline": "auctions", "checkpoint": ONE}, FromCheckpoint(ONE)),
    ],
)
def test_a_request_names_what_it_says_and_the_jobs_own_root_is_not_another_one(
    fields: dict[str, Any], target: RestoreTarget
) -> None:
    job = a_running_job()
    a_savepoint(job, "mine")
    if "root" in fields:
        fields = fields | {"root": job.store.root}

    resolved = resolve(job, job.state(), RestoreRequest(**fields))

    assert (resolved.target, resolved.configuration) == (target, None)


def test_parallelism_replaces_the_jobs() -> None:
    job = a_running_job()
    request = RestoreRequest(parallelism=("4", "rank_bids=8"))

    configuration = resolve(job, job.state(), request).configuration

    assert configuration is not None
    assert (configuration.parallelism, configuration.stage_parallelism) == (4, {"rank_bids": 8})


def test_a_job_that_was_never_submitted_begins_by_a_form_alone() -> None:
    location = StoreLocation(root="memory://never-submitted")
    job = open_job(a_pipeline(), location, store=InMemoryStore("never-submitted"))

    with pytest.raises(ConfigurationError, match="was never submitted in memory://never-submitted"):
        resolve(job, job.state(), RestoreRequest())
    assert resolve(job, job.state(), RestoreRequest(may_submit=True)).configuration is not None


def test_a_restart_for_a_generation_that_is_over_plans_nothing() -> None:
    job = a_running_job()
    take_checkpoint(job)
    resolved = resolve(job, job.state(), RestoreRequest(only_generation=7))

    with pytest.raises(FencedError, match=r"is of generation 1 already; .* was for generation 7"):
        plan(job, job.state(), resolved)


EVERY_OPTION: dict[str, Any] = {
    "num_retained": 9,
    "mode": CheckpointingMode.AT_LEAST_ONCE,
    "externalized_checkpoint_retention": Retention.RETAIN_ON_FAILURE,
    "min_pause": timedelta(seconds=5),
    "tolerable_failed_checkpoints": 2,
    "max_records_per_epoch": 20,
    "restart_strategy": fixed_delay(attempts=7),
}


def test_a_persons_restore_takes_the_options_that_are_declared_now() -> None:
    job = a_running_job()
    take_checkpoint(job)
    changed = replace(job, pipeline=a_pipeline(**EVERY_OPTION))

    resolved = resolve(changed, job.state(), RestoreRequest())
    restore(changed, resolved.target, configuration=resolved.configuration)

    assert resolved.configuration == configure(changed.pipeline, {})
    assert job.state().configuration == configure(changed.pipeline, {})
    assert job.state().configuration.num_retained == 9
    assert job.state().configuration.restart.attempts == 7
    assert resolve(changed, job.state(), RestoreRequest()).configuration is None


def test_a_failures_own_restart_goes_on_with_the_options_that_failed() -> None:
    job = a_running_job()
    changed = replace(job, pipeline=a_pipeline(**EVERY_OPTION))

    restart = RestoreRequest(only_generation=1)

    assert resolve(changed, job.state(), restart).configuration is None


def test_what_a_person_gave_or_changed_is_not_replaced_by_what_is_declared() -> None:
    job = a_job()
    submit(job, configure(job.pipeline, {}, parallelism=3, max_records_per_epoch=7))
    retime(job, NewTimes(min_pause=timedelta(seconds=1)), by="ada")
    changed = replace(job, pipeline=a_pipeline(**EVERY_OPTION))

    resolved = resolve(changed, job.state(), RestoreRequest(parallelism=("rank_bids=8",)))
    restore(changed, resolved.target, configuration=resolved.configuration)

    after = job.state()
    given = after.configuration
    assert (given.parallelism, given.stage_parallelism) == (3, {"rank_bids": 8})
    assert (given.max_records_per_epoch, given.num_retained) == (7, 9)
    assert (given.min_pause_ms, after.min_pause_ms) == (5_000, 1_000)
