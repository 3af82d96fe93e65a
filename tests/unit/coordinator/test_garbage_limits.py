"""When the collector holds back: the grace period, savepoints, and what cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from harness.jobs import (
    SINK,
    STAGES,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    results,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import Watched, watch
from sluice.coordinator.garbage import (
    DELETE_BATCH,
    PROBE_GRACE_MS,
    IncompleteSavepoint,
    Orphan,
    Orphans,
    Reason,
    collect_garbage,
    find_orphans,
)
from sluice.core.configuration import CheckpointType
from sluice.core.ids import CheckpointId
from sluice.errors import ProtocolViolation
from sluice.job.job import Job
from sluice.store.memory import InMemoryStore, named_store
from tests.hooked import Crash, crashing
from tests.subtasks import a_savepoint, acknowledge, take_checkpoint

ONE = CheckpointId(1)
HOUR_MS = 3_600_000
NOTHING = Orphans()


def a_job_with_an_orphan(**pipeline: Any) -> tuple[Job, str]:
    """Three checkpoints, and a state segment of an attempt of the first that was fenced."""
    job = a_running_job(a_pipeline(**pipeline))
    for _ in range(3):
        take_checkpoint(job)
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
    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, ONE)
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
    for _ in range(3):
        take_checkpoint(job)
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
    for _ in range(3):
        take_checkpoint(job)
    job.journal.truncate(keep=4)

    assert find_orphans(job, grace_ms=0) == NOTHING


def test_a_savepoint_is_never_deleted_and_one_that_is_incomplete_is_reported() -> None:
    job = a_running_job()
    a_savepoint(job)
    a_savepoint(job, "torn")
    job.store.delete([job.paths.savepoint_metadata("torn")])
    before = keys_of(job, job.paths.savepoints())
    torn = list(job.store.list(job.paths.savepoint("torn")))

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
    job.store.put(job.paths.savepoint_file("mine", "c"), b"half")
    assert find_orphans(job, grace_ms=0) == NOTHING

    finalize(job, ONE)

    assert find_orphans(job, grace_ms=0) == NOTHING


def damaged(job: Job, what: str) -> str:
    a_savepoint(job)
    key = {
        "retained": job.paths.metadata(CheckpointId(2)),
        "savepoint": job.paths.savepoint_metadata("mine"),
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
        "auctions/checkpoints/7/plan",
        "auctions/shared/readme.txt",
        "auctions/streams/count_bids/0000000001-x",
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
