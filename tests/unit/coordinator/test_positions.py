"""The position of a source of many files: its layers are files of the checkpoint like its state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.jobs import a_job, keys_of, trigger_one
from harness.many_files import Folder, a_files_job
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.garbage import Orphans, collect_garbage, find_orphans
from sluice.coordinator.restore import foreign_target, restore, savepoint_target
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.savepoints import savepoint_names
from sluice.coordinator.submission import configure
from sluice.core import position
from sluice.core.configuration import ClaimMode
from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.core.plan import SourceCut, Unread
from sluice.core.restoring import Choice, RestoreOptions, Stop
from sluice.errors import CorruptSegment, RestoreError
from sluice.job.job import Job
from sluice.job.lineage import position_of
from sluice.surface.snapshots import checkpoint_details
from tests.subtasks import a_savepoint, acknowledge, finish, take_checkpoint

FILES = 20


@pytest.fixture(autouse=True)
def few_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few files are enough for layers."""
    monkeypatch.setattr(position, "MAX_ABOVE", 2)


def cut_of(job: Job, checkpoint_id: CheckpointId) -> SourceCut:
    cut = job.metadata(checkpoint_id).source("events")
    assert cut is not None
    return cut


def layers_in(job: Job) -> str:
    """The folder of all layers."""
    return f"{job.paths.all_shared()}events/"


def layers_of(job: Job, checkpoint_id: CheckpointId) -> tuple[SegmentHandle, ...]:
    return cut_of(job, checkpoint_id).layers


def names_of(job: Job, checkpoint_id: CheckpointId) -> list[str]:
    return [one.partition for one in position_of(job, cut_of(job, checkpoint_id))]


def take(job: Job, folder: Folder) -> CheckpointId:
    """A checkpoint of one more file, and no other."""
    (name,) = folder.add()
    plan = trigger_one(job)
    assert [piece.partition for piece in plan.source("events").slices] == [name]
    acknowledge(job, plan)
    return finish(job, plan.checkpoint_id)


def a_layered_job(folder: Folder, **checkpointing: Any) -> tuple[Job, CheckpointId]:
    """The newest checkpoint has layers."""
    job = a_files_job(folder, **checkpointing)
    take_checkpoint(job)
    for _ in range(4):
        newest = take(job, folder)
    assert layers_of(job, newest)
    return job, newest


def test_every_file_is_known_and_none_is_read_twice() -> None:
    folder = Folder(FILES)
    job, newest = a_layered_job(folder)

    assert names_of(job, newest) == sorted(listed.key for listed in folder.store.list(""))
    (source,) = checkpoint_details(job, newest).sources
    assert [(one.offset, one.records) for one in source.partitions] == [(13, 1)] * (FILES + 4)


def test_what_a_checkpoint_writes_of_its_position_follows_the_change() -> None:
    folder = Folder(FILES)
    job, newest = a_layered_job(folder)
    plan = job.plan(newest)
    assert plan is not None

    assert len(plan.source("events").position) <= 1 + position.MAX_ABOVE
    assert plan.source("events").unread == Unread(records=0, size_bytes=0)
    assert replace(plan.source("events"), unread=None, size_bytes=None) == cut_of(job, newest)


def test_layers_that_no_checkpoint_names_go_and_the_others_stay() -> None:
    folder = Folder(FILES)
    job, newest = a_layered_job(folder, num_retained=1)
    for _ in range(12):
        newest = take(job, folder)

    assert keys_of(job, layers_in(job)) == sorted(layer.key for layer in layers_of(job, newest))
    assert find_orphans(job, grace_ms=0) == Orphans()


def test_an_abort_takes_the_layer_along_that_its_plan_added() -> None:
    folder = Folder(FILES)
    job, newest = a_layered_job(folder)
    while len(cut_of(job, newest).position) <= position.MAX_ABOVE:
        newest = take(job, folder)
    kept = keys_of(job, layers_in(job))
    folder.add()
    plan = trigger_one(job)
    added = {layer.key for layer in plan.source("events").layers} - {*kept}
    assert len(added) == 1
    assert {*keys_of(job, layers_in(job))} == {*kept} | added

    fail_checkpoint(job, plan.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "late")

    assert keys_of(job, layers_in(job)) == kept
    assert find_orphans(job, grace_ms=0) == Orphans()


def test_the_layer_of_a_plan_that_nobody_journaled_is_garbage() -> None:
    folder = Folder(FILES)
    job, newest = a_layered_job(folder)
    lost = job.paths.position_layer("events", newest, "0" * 32)
    job.store.put(lost, b"of a coordinator that lost the race")

    assert [orphan.key for orphan in collect_garbage(job, grace_ms=0).files] == [lost]


def test_an_older_checkpoint_is_restored_with_the_position_it_had() -> None:
    folder = Folder(FILES)
    job, newest = a_layered_job(folder)
    older = CheckpointId(newest - 2)
    known = names_of(job, older)

    restore(job, Choice(older))
    plan = trigger_one(job)

    read = {piece.partition for piece in plan.source("events").slices}
    assert sorted({*known, *read}) == names_of(job, newest)
    assert len(read) == 2


def test_a_savepoint_has_its_own_copies_and_is_restored_in_another_root() -> None:
    folder = Folder(FILES)
    job, _ = a_layered_job(folder)
    folder.add()
    taken = a_savepoint(job)
    copies = job.savepoint_metadata("mine").sources[0].layers
    elsewhere = a_job(job.pipeline)

    assert copies
    assert all(layer.key.startswith("auctions/savepoints/mine/") for layer in copies)
    restore(
        elsewhere,
        foreign_target(elsewhere, job.location.root, savepoint="mine"),
        configuration=configure(job.pipeline, {}),
    )
    first = take(elsewhere, folder)
    assert names_of(elsewhere, first) == [*names_of(job, taken), names_of(elsewhere, first)[-1]]
    assert not [layer for layer in layers_of(elsewhere, first) if layer.root]


@pytest.mark.parametrize("claim_mode", [ClaimMode.CLAIM, ClaimMode.NO_CLAIM])
def test_layers_of_a_savepoint_are_shared_only_if_it_is_claimed(claim_mode: ClaimMode) -> None:
    folder = Folder(FILES)
    job, _ = a_layered_job(folder)
    folder.add()
    a_savepoint(job)

    restore(job, savepoint_target(job, "mine"), RestoreOptions(claim_mode=claim_mode))
    first = take(job, folder)

    of_savepoint = [one for one in layers_of(job, first) if "/savepoints/" in one.key]
    assert bool(of_savepoint) == (claim_mode is ClaimMode.CLAIM)


def test_a_claimed_savepoint_goes_when_no_layer_of_it_is_read_any_more() -> None:
    folder = Folder(FILES)
    job, _ = a_layered_job(folder, num_retained=1)
    folder.add()
    a_savepoint(job)
    restore(job, savepoint_target(job, "mine"), RestoreOptions(claim_mode=ClaimMode.CLAIM))

    for _ in range(80):
        newest = take(job, folder)
        if not savepoint_names(job):
            break
        named = [one for one in layers_of(job, newest) if "/savepoints/" in one.key]
        assert named, "it is read no more, and still there"

    assert keys_of(job, "auctions/savepoints/") == [job.paths.savepoint_pointer("mine", 3)]
    assert find_orphans(job, grace_ms=0) == Orphans()


def test_a_layer_that_is_gone_or_corrupt_is_named_before_a_restore() -> None:
    folder = Folder(FILES)
    job, newest = a_layered_job(folder)
    layer = layers_of(job, newest)[0]
    body = job.store.get(layer.key)
    assert body is not None

    job.store.put(layer.key, bytes(len(body)))
    stopped = plan_restore(job, Choice(newest))
    assert isinstance(stopped, Stop)
    assert any(layer.key in problem for problem in stopped.problems)
    with pytest.raises(CorruptSegment, match=layer.key):
        trigger_one(job)

    job.store.delete([layer.key])
    stopped = plan_restore(job, Choice(newest))
    assert isinstance(stopped, Stop)
    assert any(layer.key in problem for problem in stopped.problems)
    with pytest.raises(RestoreError, match=layer.key):
        trigger_one(job)


def test_a_backlog_that_waits_is_in_layers_too() -> None:
    folder = Folder(FILES)
    job = a_files_job(folder, max_records_per_epoch=1)
    taken = [take_checkpoint(job) for _ in range(6)]

    cut = cut_of(job, taken[-1])
    assert (cut.has_waiting_below, cut.needs_layers, len(cut.waiting) < 5) == (True, True, True)
    for _ in range(FILES - 6):
        newest = take_checkpoint(job)
    assert [one.records for one in position_of(job, cut_of(job, newest))] == [1] * FILES
