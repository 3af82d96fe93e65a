"""Garbage is known by the ids of checkpoints, and by the records that name a file.

The collector holds back within the grace period, from savepoints, and where something cannot be
read.  Temporary files of a killed writer are collected late, and by name.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.hooked import Crash, crashing, hooked
from harness.jobs import (
    ONE,
    SINK,
    STAGES,
    TWO,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    results,
    trigger_one,
)
from sluice.connectors.files_table.table import ManifestTable
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import Watched, fail_checkpoint, watch
from sluice.coordinator.garbage import (
    DELETE_BATCH,
    PROBE_GRACE_MS,
    TEMPORARY_GRACE_MS,
    IncompleteSavepoint,
    Orphan,
    Orphans,
    Reason,
    collect_garbage,
    find_orphans,
    of_earlier_journals,
)
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.submission import configure, submit
from sluice.core.answers import Attempt
from sluice.core.completed import CheckpointMetadata, InFlightData
from sluice.core.configuration import CheckpointType, JobStatus, Retention
from sluice.core.events import CheckpointFailed
from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId, SavepointId
from sluice.core.restoring import Choice, RestoreApproval
from sluice.declaration.places import Unpublished
from sluice.errors import ConfigurationError, FencedError, ProtocolViolation
from sluice.job.job import Job
from sluice.job.places import open_side_table
from sluice.protocol.keys import TEMPORARY_PREFIX
from sluice.protocol.records import encode_metadata, encode_plan
from sluice.store.folder import FileStore
from sluice.store.memory import InMemoryStore, named_store
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    complete_one,
    savepoint_key,
    state_records,
    take_checkpoint,
    take_checkpoints,
)

EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED
NEVER = Retention.NEVER_RETAIN_AFTER_TERMINATION
FIRST = "1"
NOTHING = Orphans()


def abort_without_discarding(job: Job, checkpoint_id: CheckpointId) -> None:
    """A coordinator that died as soon as the abort was journaled."""
    job.journal.append(
        lambda state: CheckpointFailed(
            generation=state.generation, at_ms=0, checkpoint_id=checkpoint_id, reason=EXPIRED
        )
    )


def rewrite(job: Job, metadata: CheckpointMetadata) -> None:
    job.store.put(job.paths.metadata(metadata.checkpoint_id), encode_metadata(metadata))


def reasons(orphans: Orphans) -> set[Reason]:
    return {orphan.reason for orphan in orphans.files}


def own_keys(job: Job) -> set[str]:
    """Every key but those of the journal."""
    return {key for key in keys_of(job) if not key.startswith(job.paths.journal())}


@pytest.mark.parametrize("takes_savepoint", [True, False])
def test_versions_go_but_for_the_newest_and_what_a_snapshot_shows(takes_savepoint: bool) -> None:
    """A side output has a version of a checkpoint that added to it; its newest one stays."""
    job = a_running_job(a_pipeline(num_retained=2, num_retained_versions=1))
    take_checkpoints(job, 3)
    if takes_savepoint:
        a_savepoint(job)  # Continues checkpoint 3, and is checkpoint 4.
    take_checkpoints(job, 5)
    oldest = 3 if takes_savepoint else job.state().completed[0].checkpoint_id - 1

    for _ in range(2):
        collect_garbage(job, grace_ms=0)

    assert results(job).versions()[0] == oldest
    assert open_side_table(job, f"{STAGES[0]}.late").lineage() == (1,)
    assert published_records(job) == list(range(10 * (9 if takes_savepoint else 8)))
    kept = [Choice(one.checkpoint_id) for one in job.state().completed]
    for target in [*kept, *([savepoint_target(job, "mine")] if takes_savepoint else [])]:
        assert isinstance(plan_restore(job, target), RestoreApproval)


def test_a_job_that_ended_everything_it_began_has_none() -> None:
    job = a_running_job(a_pipeline(num_retained=2))
    take_checkpoints(job, 4)
    fail_checkpoint(job, trigger_one(job).checkpoint_id, EXPIRED, "late")

    assert find_orphans(job, grace_ms=0) == NOTHING


def test_a_job_that_was_never_submitted_has_none() -> None:
    assert collect_garbage(a_job(), grace_ms=0) == NOTHING


def test_nothing_of_a_pending_checkpoint_is_garbage_not_even_of_a_fenced_attempt() -> None:
    job = a_running_job()
    take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan)
    acknowledge(job, plan, attempt=7)

    assert collect_garbage(job, grace_ms=0) == NOTHING
    assert finalize(job, TWO).checkpoint_id == TWO


def test_nothing_of_a_checkpoint_that_is_being_triggered_is_garbage() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    job.store.create(job.paths.plan(TWO), encode_plan(replace(plan, checkpoint_id=TWO)))
    job.store.put(job.paths.shared_segment("allowlist", TWO, "a-pinned-table"), b"table")

    assert collect_garbage(job, grace_ms=0) == NOTHING


def test_everything_of_an_abort_that_crashed_is_garbage() -> None:
    job = a_running_job()
    take_checkpoint(job)
    before = own_keys(job)
    acknowledge(job, trigger_one(job))
    abort_without_discarding(job, TWO)

    orphans = collect_garbage(job, grace_ms=0)

    assert reasons(orphans) == {Reason.STATE, Reason.STREAM, Reason.CHECKPOINT, Reason.STAGED}
    assert orphans.total_bytes == sum(orphan.size_bytes for orphan in orphans.files) > 0
    assert own_keys(job) == before
    assert published_records(job) == list(range(10))


def test_the_plan_and_the_table_of_a_trigger_that_lost_its_id_are_garbage() -> None:
    job = a_running_job()
    lost = trigger_one(a_running_job())
    job.store.create(job.paths.plan(ONE), encode_plan(replace(lost, cause="a dead coordinator")))
    job.store.put(job.paths.shared_segment("allowlist", ONE, "a-pinned-table"), b"table")
    assert find_orphans(job, grace_ms=0) == NOTHING

    assert trigger_one(job).checkpoint_id == TWO
    orphans = collect_garbage(job, grace_ms=0)

    assert [orphan.key for orphan in orphans.files] == [
        f"{job.paths.folder}shared/allowlist/0000000001-a-pinned-table.arrow",
        f"{job.paths.folder}checkpoints/0000000001/plan",
    ]


def test_fenced_attempts_of_a_retained_checkpoint_left_garbage() -> None:
    job = a_running_job()
    plan = complete_one(job)
    commit(job, ONE)
    before = own_keys(job)
    acknowledge(job, plan, attempt=2)

    orphans = collect_garbage(job, grace_ms=0)

    assert reasons(orphans) == {
        Reason.STREAM,
        Reason.STAGED,
    }  # Its state is the same, byte by byte.
    late = own_keys(job) - before
    assert late
    assert all(key.startswith(job.paths.checkpoint(ONE)) for key in late), "acks tell a story"
    assert published_records(job) == list(range(10))


def test_older_segments_stay_as_long_as_a_retained_checkpoint_names_them() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    take_checkpoints(job, 4)

    collect_garbage(job, grace_ms=0)

    assert keys_of(job, job.paths.shared_segments(STAGES[0], ONE))
    assert state_records(job, job.metadata(CheckpointId(4)), STAGES[0]) == list(range(40))


def test_what_is_in_flight_stays_though_no_output_names_it() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    take_checkpoint(job)
    key = job.paths.stream_segment(STAGES[0], 0, "sealed-long-ago")
    job.store.put(key, b"rows")
    segment = SegmentHandle(key=key, size_bytes=4, rows=1, checksum="c")
    before, behind = job.metadata(ONE), job.metadata(ONE).stages[1]
    data = InFlightData(producer=STAGES[0], segments=(segment,), schema=b"")
    rewrite(job, replace(before, stages=(before.stages[0], replace(behind, in_flight=(data,)))))

    assert find_orphans(job, grace_ms=0) == NOTHING


def test_the_output_that_a_retained_checkpoint_lists_stays() -> None:
    job = a_running_job()
    take_checkpoint(job)
    outputs = keys_of(job, job.paths.streams(STAGES[0], ONE))

    collect_garbage(job, grace_ms=0)

    assert outputs
    assert keys_of(job, job.paths.streams(STAGES[0], ONE)) == outputs


def test_what_is_completed_and_not_yet_committed_stays() -> None:
    job = a_running_job()
    complete_one(job)

    assert collect_garbage(job, grace_ms=0) == NOTHING
    commit(job, ONE)
    assert published_records(job) == list(range(10))


def test_what_a_restore_rolled_back_was_published_and_stays() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    restored_from = take_checkpoint(job)
    restore(job, Choice(restored_from))
    take_checkpoints(job, 2)

    assert collect_garbage(job, grace_ms=0) == NOTHING
    assert [published_records(job, version) for version in results(job).versions()] == [
        list(range(10)), list(range(20)), list(range(30))
    ]  # fmt: skip


def test_staged_side_output_of_a_dead_checkpoint_is_garbage() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    uid = f"{STAGES[0]}.malformed"
    staged = open_side_table(job, uid).stage(
        pa.table({"n": [1]}),
        Attempt(
            checkpoint_id=ONE,
            subtask=0,
            checkpoint_token=job.paths.checkpoint_token(plan.token),
            attempt_token=FIRST,
        ),
    )
    assert staged is not None
    assert collect_garbage(job, grace_ms=0) == NOTHING
    abort_without_discarding(job, ONE)

    orphans = collect_garbage(job, grace_ms=0)

    side = [orphan for orphan in orphans.files if orphan.sink == uid]
    assert [orphan.key for orphan in side] == [staged.file]
    assert keys_of(job, job.paths.side_output(uid)) == []


def test_what_leaves_the_store_is_left_to_who_discards_it_and_found_when_he_is_through() -> None:
    job = a_running_job(a_pipeline(externalized_checkpoint_retention=NEVER))
    take_checkpoint(job)
    extra = job.paths.shared_segment(STAGES[0], ONE, "of-a-fenced-attempt")

    def before(verb: str, key: str) -> None:
        if verb == "delete":
            assert find_orphans(job, grace_ms=0) == NOTHING

    assert stop(hooked(job, before), JobStatus.CANCELED).completed == ()
    assert not [key for key in own_keys(job) if "/shared/" in key or "/checkpoints/" in key]
    job.store.put(extra, b"late")
    assert [orphan.key for orphan in collect_garbage(job, grace_ms=0).files] == [extra]


def test_metadata_goes_first_and_the_plan_last() -> None:
    job = a_running_job()
    acknowledge(job, trigger_one(job))
    abort_without_discarding(job, ONE)
    job.store.put(job.paths.metadata(ONE), b"of who died before it journaled")
    deleted: list[str] = []

    collect_garbage(
        hooked(job, lambda verb, key: deleted.append(key) if verb == "delete" else None),
        grace_ms=0,
    )

    assert deleted[0] == job.paths.metadata(ONE)
    assert deleted[-1] == job.paths.plan(ONE)


def test_a_checkpoint_that_is_subsumed_during_the_look_is_no_violation() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    take_checkpoint(job)
    is_first = True

    def before(verb: str, key: str) -> None:
        nonlocal is_first
        if verb == "get" and key == job.paths.metadata(ONE) and is_first:
            is_first = False
            take_checkpoint(job)
            assert job.store.get(key) is None

    assert find_orphans(hooked(job, before), grace_ms=0) == NOTHING
    assert not is_first


def test_a_dry_run_deletes_nothing() -> None:
    job = a_running_job()
    acknowledge(job, trigger_one(job))
    abort_without_discarding(job, ONE)
    before = keys_of(job)

    would_go = collect_garbage(job, grace_ms=0, dry_run=True)

    assert keys_of(job) == before
    assert collect_garbage(job, grace_ms=0) == would_go != NOTHING


HOUR_MS = 3_600_000


def a_job_with_an_orphan(**pipeline: Any) -> tuple[Job, str]:
    """Three checkpoints, and a state segment of an attempt of the first that was fenced."""
    job = a_running_job(a_pipeline(**pipeline))
    take_checkpoints(job, 3)
    key = job.paths.shared_segment(STAGES[0], ONE, "of-a-fenced-attempt")
    job.store.put(key, b"orphaned")
    return job, key


def make_older(root: str, key: str, *, by_ms: int) -> None:
    objects = named_store(root.removeprefix("memory://").partition("/")[0])._objects  # noqa: SLF001 - an old write is not waited for
    for known, found in objects.written.items():
        if known.endswith(key):
            objects.written[known] = found._replace(modified_ms=found.modified_ms - by_ms)


def age_of(job: Job, key: str) -> int:
    listed = {one.key: one.modified_ms for one in job.store.list("")}
    return max(listed.values()) - listed[key]


def test_what_is_younger_than_the_grace_period_stays() -> None:
    job, key = a_job_with_an_orphan()
    make_older(job.store.root, key, by_ms=HOUR_MS - 60_000)
    orphan = Orphan(key=key, size_bytes=8, reason=Reason.STATE)

    assert collect_garbage(job) == Orphans(too_young=(orphan,))
    assert job.store.get(key) == b"orphaned"
    assert collect_garbage(job, grace_ms=age_of(job, key) + 1) == Orphans(too_young=(orphan,))
    assert collect_garbage(job, grace_ms=age_of(job, key)) == Orphans(files=(orphan,))
    assert job.store.get(key) is None


def test_time_is_told_by_the_newest_object_of_the_store_and_by_nothing_else() -> None:
    job, key = a_job_with_an_orphan()
    make_older(job.store.root, "", by_ms=100 * HOUR_MS)
    assert collect_garbage(job).files == ()

    take_checkpoint(job)

    assert [orphan.key for orphan in collect_garbage(job).files] == [key]


def test_a_table_elsewhere_is_on_the_clock_of_its_own_store() -> None:
    root = f"memory://table-{id(object())}"
    job = a_running_job(a_pipeline(location=root))
    plan = complete_one(job)
    take_checkpoint(job)
    acknowledge(job, plan, STAGES[1], attempt=2)
    make_older(root, "", by_ms=100 * HOUR_MS)
    late = {file.file for file in results(job).unpublished().staged}
    assert late

    assert collect_garbage(job).files == ()
    assert {orphan.key for orphan in collect_garbage(job, grace_ms=0).files if orphan.sink} == late
    assert published_records(job) == list(range(20))


def test_a_probe_is_left_alone_as_long_as_somebody_may_wait_for_it() -> None:
    job = a_running_job()
    probe = job.paths.probe("token")
    job.store.put(probe, b"t")
    assert collect_garbage(job, grace_ms=0).files == ()

    make_older(job.store.root, probe, by_ms=PROBE_GRACE_MS)
    take_checkpoint(job)

    orphan = Orphan(key=probe, size_bytes=1, reason=Reason.PROBE)
    assert collect_garbage(job, grace_ms=0).files == (orphan,)


def test_journal_entries_below_a_gap_are_garbage() -> None:
    job = a_running_job()
    take_checkpoints(job, 3)
    entries = keys_of(job, job.paths.journal())
    job.store.delete([entries[3]])
    state = job.state()

    orphans = collect_garbage(job, grace_ms=0)

    assert [(orphan.key, orphan.reason) for orphan in orphans.files] == [
        (key, Reason.JOURNAL) for key in entries[:3]
    ]
    assert keys_of(job, job.paths.journal()) == entries[4:]
    assert job.state() == state
    assert collect_garbage(job, grace_ms=0) == NOTHING


def test_a_journal_that_was_cut_short_has_no_strays() -> None:
    job = a_running_job()
    take_checkpoints(job, 3)
    job.journal.truncate(keep=4)

    assert find_orphans(job, grace_ms=0) == NOTHING


def test_a_savepoint_is_never_deleted_and_one_that_is_incomplete_is_reported() -> None:
    job = a_running_job()
    a_savepoint(job)
    a_savepoint(job, "torn")
    job.store.delete([savepoint_key(job, "torn")])
    before = keys_of(job, job.paths.savepoints())
    torn = [
        one for one in job.store.list(job.paths.savepoint("torn")) if "/pointers/" not in one.key
    ]

    orphans = collect_garbage(job, grace_ms=0)

    assert orphans == Orphans(
        incomplete_savepoints=(
            IncompleteSavepoint(
                name="torn", files=len(torn), size_bytes=sum(one.size_bytes for one in torn)
            ),
        )
    )
    assert keys_of(job, job.paths.savepoints()) == before
    assert find_orphans(job).incomplete_savepoints == (), "it may just be being written"


def test_a_savepoint_whose_export_will_be_repeated_is_not_reported() -> None:
    job = a_running_job()
    plan = trigger_one(job, type=CheckpointType.SAVEPOINT, savepoint_name="mine", is_periodic=False)
    acknowledge(job, plan)
    half = SavepointId("mine", plan.savepoint_token)
    job.savepoints.reserve(half, ONE, life=job.state().life)
    job.store.put(job.paths.savepoint_file(half, "c"), b"half")
    assert find_orphans(job, grace_ms=0) == NOTHING

    finalize(job, ONE)

    assert find_orphans(job, grace_ms=0) == NOTHING


def damaged(job: Job, what: str) -> str:
    a_savepoint(job)
    key = {
        "retained": job.paths.metadata(CheckpointId(2)),
        "savepoint": savepoint_key(job, "mine"),
        "journal": keys_of(job, job.paths.journal())[-1],
        "manifest": keys_of(job, f"{job.paths.table(SINK)}/_manifests/")[0],
    }[what]
    job.store.put(key, b"{}")
    return key


@pytest.mark.parametrize("what", ["retained", "savepoint", "journal", "manifest"])
def test_one_unreadable_object_stops_every_delete_and_is_named(what: str) -> None:
    job, _ = a_job_with_an_orphan()
    key = damaged(job, what)
    before = keys_of(job)

    with pytest.raises(ProtocolViolation, match=key):
        collect_garbage(job, grace_ms=0)

    assert keys_of(job) == before


def test_a_retained_checkpoint_without_metadata_stops_every_delete_and_is_named() -> None:
    job, _ = a_job_with_an_orphan()
    missing = job.paths.metadata(CheckpointId(2))
    job.store.delete([missing])
    before = keys_of(job)

    with pytest.raises(ProtocolViolation, match=f"no garbage was collected.*{missing}"):
        collect_garbage(job, grace_ms=0)

    assert keys_of(job) == before


def test_deletes_go_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = a_job_with_an_orphan()
    for number in range(2 * DELETE_BATCH):
        job.store.put(job.paths.shared_segment(STAGES[0], ONE, f"orphan-{number}"), b"")
    batches: list[int] = []
    delete = InMemoryStore.delete

    def count_and_delete(self: InMemoryStore, keys: list[str]) -> None:
        batches.append(len(keys))
        delete(self, keys)

    monkeypatch.setattr(InMemoryStore, "delete", count_and_delete)

    collect_garbage(job, grace_ms=0)

    assert [size for size in batches if size] == [DELETE_BATCH, DELETE_BATCH, 1]


def test_a_collection_that_died_is_completed_by_the_next() -> None:
    job, _ = a_job_with_an_orphan()
    for number in range(10):
        job.store.put(job.paths.shared_segment(STAGES[0], ONE, f"orphan-{number}"), b"")
    with pytest.raises(Crash):
        collect_garbage(crashing(job, writes=5), grace_ms=0)

    collect_garbage(job, grace_ms=0)

    assert find_orphans(job, grace_ms=0) == NOTHING


def test_the_watchdog_collects_whenever_it_shortened_the_journal() -> None:
    job, key = a_job_with_an_orphan()
    entries = len(keys_of(job, job.paths.journal()))

    assert watch(job, kept_entries=entries, garbage_grace_ms=0) == Watched(())
    assert watch(job, kept_entries=entries // 2, garbage_grace_ms=0) == Watched(
        ("collected 1 orphaned files of 8 bytes",)
    )
    assert key not in keys_of(job)


def test_the_watchdog_says_what_keeps_it_from_collecting() -> None:
    job, key = a_job_with_an_orphan()
    job.store.put(job.paths.metadata(CheckpointId(2)), b"{}")

    (action,) = watch(job, kept_entries=1, garbage_grace_ms=0).actions

    assert action.startswith("no garbage was collected")
    assert job.paths.metadata(CheckpointId(2)) in action
    assert key in keys_of(job)


def test_names_that_sluice_does_not_write_are_reported_and_stay() -> None:
    job = a_running_job()
    take_checkpoint(job)
    strange = [
        f"{job.paths.folder}checkpoints/7/plan",
        f"{job.paths.folder}shared/readme.txt",
        f"{job.paths.folder}streams/count_bids/0000000001-x",
    ]
    for key in strange:
        job.store.put(key, b"mine")
    results(job).store.put("data/notes.txt", b"mine")

    orphans = collect_garbage(job, grace_ms=0)

    assert (orphans.files, sorted(orphans.unknown)) == ((), strange)
    assert job.store.get(f"auctions/tables/{SINK}/data/notes.txt") == b"mine"


@pytest.mark.parametrize("uid", ["auctions2", "a"])
def test_another_pipeline_in_the_same_root_is_not_looked_at(uid: str) -> None:
    job = a_running_job()
    take_checkpoint(job)
    foreign = f"{uid}/shared/{STAGES[0]}/0000000001-x.arrow"
    job.store.put(foreign, b"theirs")

    assert collect_garbage(job, grace_ms=0) == NOTHING
    assert job.store.get(foreign) == b"theirs"


@pytest.fixture(name="anew")
def _anew() -> tuple[Job, Job]:
    """A job that began over an emptied root, and a handle that outlived the one before it."""
    old = a_running_job()
    take_checkpoint(old)
    old.store.delete(keys_of(old))
    new = old.anew()
    submit(new, configure(new.pipeline, {}))
    take_checkpoint(new)
    return old, new


def test_what_an_earlier_journal_left_is_garbage(anew: tuple[Job, Job]) -> None:
    old, new = anew
    before = keys_of(new)
    left = [old.paths.journal_entry(5), old.paths.shared_segment(STAGES[0], ONE, "late")]
    left += [old.paths.folder + "notes.txt", old.names.of_journal("j-zzz").plan(1)]
    for key in left:
        new.store.put(key, b"late")

    found = find_orphans(new, grace_ms=0)

    assert sorted(one.key for one in found.files) == sorted(left)
    assert {one.reason for one in found.files} == {Reason.EARLIER}
    assert collect_garbage(new, grace_ms=0) == found
    assert keys_of(new) == before


def test_what_an_earlier_journal_staged_below_the_root_is_garbage(anew: tuple[Job, Job]) -> None:
    old, new = anew
    acknowledge(new, trigger_one(new))
    before = keys_of(new)
    late = stage_late(old, new, TWO)

    found = collect_garbage(new, grace_ms=0)

    assert [(one.key, one.reason) for one in found.files] == [(late, Reason.STAGED)]
    assert keys_of(new) == before
    finalize(new, TWO)
    commit(new, TWO)
    assert published_records(new) == list(range(20))


def test_what_an_earlier_journal_staged_in_a_table_of_several_jobs_is_told_and_stays() -> None:
    root = f"memory://{secrets.token_hex(6)}"
    old = a_running_job(a_pipeline(location=root))
    old.store.delete(keys_of(old))
    new = old.anew()
    submit(new, configure(new.pipeline, {}))
    late = stage_late(old, new, ONE)
    take_checkpoints(new, 3)

    found = collect_garbage(new, grace_ms=0)

    assert found == Orphans(of_others=(f"{root}/{late}",))
    assert published_records(new) == list(range(30))
    assert [file.file for file in results(new).unpublished().staged] == [late]


def stage_late(old: Job, new: Job, checkpoint_id: CheckpointId) -> str:
    """A driver that outlived its root stages what nobody is going to commit."""
    staged = results(new).stage(
        pa.table({"record": [99]}),
        Attempt(
            checkpoint_id=checkpoint_id,
            subtask=0,
            checkpoint_token=old.paths.checkpoint_token("late"),
            attempt_token=FIRST,
        ),
    )
    assert staged is not None
    return staged.file


def test_who_overslept_an_emptied_root_collects_nothing_that_the_next_journal_staged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It sleeps until it has found that its own journal is the only one."""
    old = a_running_job()
    take_checkpoint(old)
    unpublished, begun = ManifestTable.unpublished, old.anew()

    def late(self: ManifestTable) -> Unpublished:
        monkeypatch.undo()
        old.store.delete(keys_of(old))
        submit(begun, configure(begun.pipeline, {}))
        acknowledge(begun, trigger_one(begun))
        return unpublished(self)

    monkeypatch.setattr(ManifestTable, "unpublished", late)
    with pytest.raises(FencedError):
        collect_garbage(old, grace_ms=0)

    finalize(begun, ONE)
    commit(begun, ONE)
    assert published_records(begun) == list(range(10))


def test_who_overslept_an_emptied_root_collects_nothing_of_the_next_journal(
    anew: tuple[Job, Job],
) -> None:
    old, new = anew
    before = keys_of(new)

    with pytest.raises(FencedError, match="was emptied while this process had journal"):
        of_earlier_journals(old)
    with pytest.raises(FencedError):
        collect_garbage(old, grace_ms=0)

    assert keys_of(new) == before


def test_a_journal_that_lacks_the_pointer_alone_is_no_garbage_and_none_begins_beside_it() -> None:
    """Somebody lost it, or is at deleting the root, which begins with it."""
    job = a_running_job()
    take_checkpoint(job)
    pointer = job.store.get(job.names.begun())
    assert pointer is not None
    job.store.delete([job.names.begun()])
    before, anew = keys_of(job), job.anew()

    for act in (
        anew.state,
        lambda: submit(anew, configure(anew.pipeline, {})),
        lambda: collect_garbage(anew, grace_ms=0),
    ):
        with pytest.raises(
            ConfigurationError, match=f"begun is gone, and journal {job.paths.token} "
        ):
            act()
    assert keys_of(job) == before
    job.store.put(job.names.begun(), pointer)
    assert anew.state() == job.state()


def test_a_journal_begins_beside_what_others_left() -> None:
    """An entry alone, as whoever slept leaves it; the one that is damaged may be whole."""
    job = a_running_job()
    take_checkpoint(job)
    entry = job.store.get(job.paths.journal_entry(4))
    assert entry is not None
    job.store.delete(keys_of(job))
    strays = ["auctions/j-README", job.paths.journal_entry(4), job.paths.plan(1)]
    for key in strays:
        job.store.put(key, entry)

    anew = job.anew()
    submit(anew, configure(anew.pipeline, {}))
    assert take_checkpoint(anew) == 1

    job.store.delete(keys_of(job))
    job.store.put(job.paths.journal_entry(4), entry[:-1])
    anew = job.anew()
    with pytest.raises(ConfigurationError, match="put it back from a copy, or delete auctions/j-"):
        submit(anew, configure(anew.pipeline, {}))


FOLDERS = ("auctions/{}/journal", "auctions/{}/shared/count_bids", "auctions/tables/results/data")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    job = a_job(root=f"file://{tmp_path}/root")
    submit(job, configure(job.pipeline, {}))
    take_checkpoint(job)
    return job


def leave_behind(root: Path, folder: str, *, age_ms: int) -> str:
    """A temporary file so much older than the newest object."""
    files = [path for path in root.rglob("*") if path.is_file()]
    newest_ns = max(path.stat().st_mtime_ns for path in files)
    path = root / folder / f"{TEMPORARY_PREFIX}{age_ms:024x}"
    path.write_bytes(b"half")
    # Whole milliseconds, as the listing rounds down.
    at_ns = (newest_ns // 1_000_000 - age_ms) * 1_000_000
    os.utime(path, ns=(at_ns, at_ns))
    return f"{folder}/{path.name}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_file_of_a_killed_writer_is_collected_after_a_day(
    job: Job, tmp_path: Path, folder: str
) -> None:
    root, folder = tmp_path / "root", folder.format(job.paths.token)
    old = leave_behind(root, folder, age_ms=TEMPORARY_GRACE_MS)
    young = leave_behind(root, folder, age_ms=TEMPORARY_GRACE_MS - 1)
    before = keys_of(job)

    found = find_orphans(job, grace_ms=0)
    collect_garbage(job, grace_ms=0)

    def an_orphan(key: str) -> Orphan:
        return Orphan(key=key, size_bytes=4, reason=Reason.TEMPORARY)

    assert found == Orphans(files=(an_orphan(old),), too_young=(an_orphan(young),))
    assert not (root / old).exists()
    assert (root / young).exists()
    assert keys_of(job) == before


def test_the_file_of_another_job_is_that_ones_to_collect(job: Job, tmp_path: Path) -> None:
    (tmp_path / "root/payroll/journal").mkdir(parents=True)
    theirs = leave_behind(tmp_path / "root", "payroll/journal", age_ms=9 * TEMPORARY_GRACE_MS)

    collect_garbage(job, grace_ms=0)

    assert (tmp_path / "root" / theirs).exists()


def test_nothing_but_a_temporary_file_goes_by_that_way(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "root")
    store.put("a/b", b"kept")
    (tmp_path / f"{TEMPORARY_PREFIX}outside").write_bytes(b"kept")

    store.discard_temporaries(["a/b", f"a/{TEMPORARY_PREFIX}gone"])
    with pytest.raises(ProtocolViolation, match="is no key"):
        store.discard_temporaries([f"../{TEMPORARY_PREFIX}outside"])

    assert store.get("a/b") == b"kept"
    assert (tmp_path / f"{TEMPORARY_PREFIX}outside").exists()
