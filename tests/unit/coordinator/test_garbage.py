"""Garbage is known by the ids of checkpoints, and by the records that name a file."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from harness.jobs import (
    STAGES,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    results,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.garbage import Orphans, Reason, collect_garbage, find_orphans
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, stop
from sluice.core.completed import CheckpointMetadata, InFlightData
from sluice.core.configuration import JobStatus, Retention
from sluice.core.events import CheckpointFailed
from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.core.restoring import FromCheckpoint
from sluice.job.job import Job
from sluice.job.places import open_side_table
from sluice.protocol.records import encode_metadata, encode_plan
from tests.hooked import hooked
from tests.subtasks import acknowledge, state_records, take_checkpoint

ONE, TWO, THREE = CheckpointId(1), CheckpointId(2), CheckpointId(3)
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


def test_a_job_that_ended_everything_it_began_has_none() -> None:
    job = a_running_job(a_pipeline(num_retained=2))
    for _ in range(4):
        take_checkpoint(job)
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
        "auctions/shared/allowlist/0000000001-a-pinned-table.arrow",
        "auctions/checkpoints/0000000001/plan",
    ]


def test_fenced_attempts_of_a_retained_checkpoint_left_garbage() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, ONE)
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
    for _ in range(4):
        take_checkpoint(job)

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
    acknowledge(job, trigger_one(job))
    finalize(job, ONE)

    assert collect_garbage(job, grace_ms=0) == NOTHING
    commit(job, ONE)
    assert published_records(job) == list(range(10))


def test_what_a_restore_rolled_back_was_published_and_stays() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    restored_from = take_checkpoint(job)
    restore(job, FromCheckpoint(restored_from))
    take_checkpoint(job)
    take_checkpoint(job)

    assert collect_garbage(job, grace_ms=0) == NOTHING
    assert [published_records(job, version) for version in results(job).versions()] == [
        list(range(10)), list(range(20)), list(range(30))
    ]  # fmt: skip


def test_staged_side_output_of_a_dead_checkpoint_is_garbage() -> None:
    job = a_running_job()
    trigger_one(job)
    uid = f"{STAGES[0]}.malformed"
    staged = open_side_table(job, uid).stage(
        pa.table({"n": [1]}), checkpoint_id=ONE, subtask=0, attempt_token=FIRST
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
