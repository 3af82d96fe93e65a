"""Merged state in the bucket: kept as long as it can be taken over or is named, swept after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.jobs import STAGES, a_pipeline, a_running_job, keys_of, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.garbage import Orphans, Reason, collect_garbage, find_orphans
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.core.compaction import Compaction, MergedRuns, replaced_segment
from sluice.core.configuration import CheckpointType
from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import SegmentHandle, StateHandle, checksum
from sluice.core.ids import CheckpointId
from sluice.core.restoring import FromCheckpoint
from sluice.errors import ProtocolViolation
from sluice.job.job import Job
from sluice.job.lineage import compactions_of, record_compaction
from sluice.state.segments import encode_segment
from sluice.store.object_store import CreateResult, ObjectStore
from tests.subtasks import acknowledge, handle_records, state_records, table_of, take_checkpoint

STAGE = STAGES[0]
SAVEPOINT = CheckpointType.SAVEPOINT
NOTHING = Orphans()


def state_of(job: Job, checkpoint_id: CheckpointId) -> tuple[StateHandle, ...]:
    stage = job.metadata(checkpoint_id).stage(STAGE)
    assert stage is not None
    return stage.subtasks[0].state


def a_compaction_behind(job: Job, checkpoint_id: CheckpointId, name: str = "merged") -> Compaction:
    """Of all that subtask 0 has there; its file and its record are in the bucket."""
    handles = state_of(job, checkpoint_id)
    key = job.paths.compacted_segment(STAGE, checkpoint_id, name)
    job.store.put(key, b"rows")
    merged = StateHandle(segment=SegmentHandle(key=key, size_bytes=4, rows=1, checksum="c"))
    compaction = Compaction(
        stage=STAGE,
        checkpoint_id=checkpoint_id,
        merged=(MergedRuns(replaced=tuple(map(replaced_segment, handles)), merged=(merged,)),),
    )
    record_compaction(job, compaction)
    return compaction


def merge_for_real(job: Job, checkpoint_id: CheckpointId) -> None:
    """All runs of every subtask as one, as the Spark job behind the acks would."""
    stage = job.metadata(checkpoint_id).stage(STAGE)
    assert stage is not None
    merged = []
    for subtask in stage.subtasks:
        rows = [row for handle in subtask.state for row in handle_records(job, handle)]
        body = encode_segment(table_of(rows))
        key = job.paths.compacted_segment(STAGE, checkpoint_id, checksum(body))
        job.store.put(key, body)
        segment = SegmentHandle(
            key=key, size_bytes=len(body), rows=len(rows), checksum=checksum(body)
        )
        whole = replace(subtask.state[-1], segment=segment)
        replaced = tuple(map(replaced_segment, subtask.state))
        merged.append(MergedRuns(replaced=replaced, merged=(whole,)))
    compaction = Compaction(stage=STAGE, checkpoint_id=checkpoint_id, merged=tuple(merged))
    assert record_compaction(job, compaction)


def savepoint(job: Job, name: str, **behaviour: Any) -> CheckpointId:
    plan = trigger_one(job, type=SAVEPOINT, savepoint_name=name, is_periodic=False)
    acknowledge(job, plan, **behaviour)
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)
    return plan.checkpoint_id


def test_records_are_found_oldest_first_and_only_the_first_of_a_checkpoint_counts() -> None:
    job = a_running_job()
    one = a_compaction_behind(job, take_checkpoint(job))
    two = a_compaction_behind(job, take_checkpoint(job))

    is_ours = record_compaction(
        job, Compaction(stage=STAGE, checkpoint_id=CheckpointId(1), merged=())
    )

    assert not is_ours
    assert compactions_of(job, STAGE) == [one, two]
    assert compactions_of(job, STAGES[1]) == []


def test_what_can_still_be_taken_over_is_no_garbage() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    a_compaction_behind(job, take_checkpoint(job))
    take_checkpoint(job)  # It inherits what the compaction replaces; its own parent is gone.

    assert find_orphans(job, grace_ms=0) == NOTHING


def test_what_nobody_can_take_over_any_more_is_swept_with_its_record() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    a_compaction_behind(job, take_checkpoint(job))
    plan = trigger_one(job)
    for stage in STAGES:
        acknowledge(job, plan, stage, compacts=True)  # In the epoch itself, so it was faster.
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)

    swept = collect_garbage(job, grace_ms=0)

    assert {orphan.reason for orphan in swept.files} == {Reason.COMPACTION}
    assert len(swept.files) == 2
    assert keys_of(job, job.paths.all_compactions()) == []


def test_what_a_pending_checkpoint_may_bring_back_is_no_garbage() -> None:
    """Its stage runs again, and writes the same under the same name: that was merged behind 3."""
    job = a_running_job(a_pipeline(max_concurrent_checkpoints=2, tolerable_failed_checkpoints=9))
    take_checkpoint(job)
    pending, later = trigger_one(job), trigger_one(job)
    acknowledge(job, pending, STAGE)
    acknowledge(job, later, STAGE)
    acks = job.answers.acks(later.checkpoint_id, STAGE, attempt=1, parallelism=2)
    runs = tuple(replaced_segment(handle) for handle in next(iter(acks)).state)
    key = job.paths.compacted_segment(STAGE, later.checkpoint_id, "merged")
    job.store.put(key, b"rows")
    merged = StateHandle(segment=SegmentHandle(key=key, size_bytes=4, rows=1, checksum="c"))
    merges = (MergedRuns(replaced=runs, merged=(merged,)),)
    record_compaction(
        job, Compaction(stage=STAGE, checkpoint_id=later.checkpoint_id, merged=merges)
    )
    fail_checkpoint(job, later.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "slow")

    assert collect_garbage(job, grace_ms=0) == NOTHING
    assert job.store.get(key) == b"rows"

    fail_checkpoint(job, pending.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "slow")
    assert key in [orphan.key for orphan in collect_garbage(job, grace_ms=0).files]


def test_merged_state_that_was_swept_before_its_record_came_is_never_handed_out() -> None:
    """The compaction slept between the upload and the record."""
    job = a_running_job()
    checkpoint_id = take_checkpoint(job)
    elsewhere = a_running_job()
    late = a_compaction_behind(elsewhere, take_checkpoint(elsewhere))
    job.store.put(late.files[0].key, b"rows")

    swept = collect_garbage(job, grace_ms=0)

    assert [orphan.key for orphan in swept.files] == [late.files[0].key]
    assert not record_compaction(job, late)
    assert compactions_of(job, STAGE) == [
        Compaction(stage=STAGE, checkpoint_id=checkpoint_id, merged=())
    ]
    assert collect_garbage(job, grace_ms=0) == NOTHING
    take_checkpoint(job)


def test_merged_state_whose_record_comes_between_look_and_sweep_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job()
    checkpoint_id = take_checkpoint(job)
    twin = job.paths.compacted_segment(STAGE, checkpoint_id, "of-a-slower-attempt")
    job.store.put(twin, b"rows")
    create = type(job.store).create

    def late(self: ObjectStore, key: str, body: bytes) -> CreateResult:
        monkeypatch.undo()
        a_compaction_behind(job, checkpoint_id)
        return create(self, key, body)

    monkeypatch.setattr(type(job.store), "create", late)
    key = job.paths.compacted_segment(STAGE, checkpoint_id, "merged")
    job.store.put(key, b"rows")
    swept = collect_garbage(job, grace_ms=0)

    assert [orphan.key for orphan in swept.files] == [twin]
    assert job.store.get(key) == b"rows"
    assert collect_garbage(job, grace_ms=0) == NOTHING


def test_the_abort_of_the_checkpoint_behind_which_it_ran_takes_nothing_away() -> None:
    job = a_running_job()
    compacted = take_checkpoint(job)
    compaction = a_compaction_behind(job, compacted)
    plan = trigger_one(job)

    fail_checkpoint(job, plan.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "late")

    assert compactions_of(job, STAGE) == [compaction]
    assert all(job.store.get(segment.key) for segment in compaction.files)


@pytest.mark.parametrize("merged_again", [False, True])
def test_subsuming_leaves_what_a_retained_checkpoint_can_still_take_over(
    merged_again: bool,
) -> None:
    """Savepoints leave the store before the checkpoint that they continue, with what they took
    over; who is restored to that checkpoint takes it over again.
    """
    job = a_running_job(a_pipeline(max_records_per_epoch=10, num_retained=1, stages=(STAGE,)))
    take_checkpoint(job)
    real = take_checkpoint(job)
    merge_for_real(job, real)
    subsumed = savepoint(job, "merged", takes_over=True, writes_state=not merged_again)
    if merged_again:  # The merged run itself: that is taken over in two steps.
        merge_for_real(job, subsumed)
        savepoint(job, "twice", takes_over=True, writes_state=False)
    savepoint(job, "canonical", compacts=True)
    restore(job, FromCheckpoint(real))

    collect_garbage(job, grace_ms=0)
    plan = trigger_one(job)
    acknowledge(job, plan, takes_over=True)
    after = finalize(job, plan.checkpoint_id).checkpoint_id

    assert state_records(job, job.metadata(after), STAGE) == list(range(30))


def test_a_record_that_cannot_be_read_stops_the_collector() -> None:
    job = a_running_job()
    compacted = take_checkpoint(job)
    job.store.put(job.paths.compaction(STAGE, compacted), b"not a record")

    with pytest.raises(ProtocolViolation, match="no garbage was collected"):
        collect_garbage(job, grace_ms=0)
