"""``RestoreRequest``: the same for all callers, parsed where it enters and resolved once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.jobs import a_job, a_pipeline, a_running_job
from sluice.coordinator.requests import NewTimes, retime
from sluice.coordinator.restore import RestoreRequest, plan, pointed_at, resolve, restore
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import CheckpointingMode, ClaimMode, Retention
from sluice.core.ids import CheckpointId
from sluice.core.plan import SnapshotOrigin
from sluice.core.restoring import FromCheckpoint, FromOrigin, Latest, RestoreOptions, RestoreTarget
from sluice.declaration.checkpointing import fixed_delay
from sluice.errors import ConfigurationError, FencedError
from sluice.job.job import open_job
from sluice.store.memory import InMemoryStore
from sluice.store.open import StoreLocation
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
        (
            {"pointer": "auctions/checkpoints/1", "savepoint": "mine"},
            "'auctions/checkpoints/1' says which snapshot is restored, and savepoint 'mine' says",
        ),
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
        ({"pointer": "auctions/checkpoints/1"}, FromCheckpoint(ONE)),
        (
            {"pointer": "auctions/savepoints/mine/_metadata"},
            FromOrigin(SnapshotOrigin(checkpoint_id=ONE, savepoint="mine")),
        ),
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


CHECKPOINT = FromOrigin(SnapshotOrigin(checkpoint_id=ONE, pipeline="auctions"))
SAVEPOINT = FromOrigin(SnapshotOrigin(checkpoint_id=ONE, savepoint="mine", pipeline="auctions"))


@pytest.mark.parametrize("end", ["", "/", "/_metadata"])
@pytest.mark.parametrize(
    ("path", "target"),
    [("checkpoints/0000000001", CHECKPOINT), ("savepoints/mine", SAVEPOINT)],
)
def test_a_path_names_a_snapshot_of_any_root_by_its_folder_or_its_metadata(
    tmp_path: Path, path: str, target: FromOrigin, end: str
) -> None:
    """Flink's resolveCheckpoint: with a scheme, absolute without one, or below the job's root."""
    job = a_job(root=f"file://{tmp_path}/backup")
    submit(job, configure(job.pipeline, {}))
    a_savepoint(job, "mine")
    other = a_job(root=f"file://{tmp_path}")
    there = replace(target.origin, root=f"file://{tmp_path}/backup")
    submit(other, configure(other.pipeline, {}))

    for begin in (f"file://{tmp_path}/backup/", f"{tmp_path}/backup/", "backup/"):
        request = RestoreRequest(pointer=f"{begin}auctions/{path}{end}")
        assert resolve(other, other.state(), request).target == FromOrigin(there)
    restored = restore(other, FromOrigin(there), RestoreOptions(accept_tables=True))
    assert restored.origin == there


def test_a_path_in_a_bucket_or_at_the_top_of_a_file_system_has_its_root() -> None:
    job = a_job()
    found = {
        path: pointed_at(job, path).root
        for path in (
            "s3://bucket/auctions/checkpoints/0000000007/_metadata",
            "s3://bucket/a/b/auctions/savepoints/before-2.0",
            "/auctions/checkpoints/7",
            "file:///auctions/checkpoints/7",
            "auctions_of_old/checkpoints/7",
        )
    }

    assert [*found.values()] == [
        "s3://bucket", "s3://bucket/a/b", "file:///", "file:///", job.store.root
    ]  # fmt: skip
    assert pointed_at(job, "auctions_of_old/checkpoints/7").pipeline == "auctions_of_old"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "mine",
        "s3://bucket/auctions",
        "s3://bucket/auctions/checkpoints",
        "s3://bucket/auctions/checkpoints/0",
        "s3://bucket/auctions/checkpoints/latest",
        "s3://bucket/auctions/checkpoints/7/plan",
        "s3://bucket/auctions/savepoints/mine/_metadata/",
        "s3://bucket/Auctions/savepoints/mine",
        "s3://bucket/savepoint-1a2b/_metadata",
    ],
)
def test_another_path_is_refused_with_the_form_it_has_to_have(path: str) -> None:
    with pytest.raises(ConfigurationError, match="ROOT/PIPELINE/checkpoints/ID or ROOT/PIPELINE/s"):
        pointed_at(a_job(), path)


def test_a_savepoint_that_a_path_names_can_be_claimed_and_a_checkpoint_cannot() -> None:
    job = a_running_job()
    a_savepoint(job, "mine")
    own = f"{job.store.root}/auctions"

    claimed = resolve(
        job, job.state(), RestoreRequest(pointer=f"{own}/savepoints/mine", options=CLAIM)
    )
    restore(job, claimed.target, claimed.options)

    assert job.state().claimed_savepoints == ("mine",)
    with pytest.raises(ConfigurationError, match="CLAIM is given with checkpoint 1"):
        resolve(job, job.state(), RestoreRequest(pointer=f"{own}/checkpoints/1", options=CLAIM))
