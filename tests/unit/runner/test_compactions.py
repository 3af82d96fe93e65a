"""Merged state in the bucket: kept as long as it can be taken over or is named, swept after."""

from __future__ import annotations

import pytest

from sluice.core.compaction import Compaction, MergedRuns, replaced_segment
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId
from sluice.core.reasons import CheckpointFailureReason
from sluice.errors import ProtocolViolation
from sluice.runner.compactions import compactions_of, record_compaction
from sluice.runner.garbage import Orphans, Reason, collect_garbage, find_orphans
from sluice.runner.job import Job
from sluice.runner.recovery import fail_checkpoint
from tests.builders import STAGES, a_pipeline, a_running_job, keys_of, trigger_one
from tests.subtasks import acknowledge, take_checkpoint

STAGE = STAGES[0]
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
    from sluice.runner.completion import commit, finalize

    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)

    swept = collect_garbage(job, grace_ms=0)

    assert {orphan.reason for orphan in swept.files} == {Reason.COMPACTION}
    assert len(swept.files) == 2
    assert keys_of(job, job.paths.all_compactions()) == []


def test_the_abort_of_the_checkpoint_behind_which_it_ran_takes_nothing_away() -> None:
    job = a_running_job()
    compacted = take_checkpoint(job)
    compaction = a_compaction_behind(job, compacted)
    plan = trigger_one(job)

    fail_checkpoint(job, plan.checkpoint_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, "late")

    assert compactions_of(job, STAGE) == [compaction]
    assert all(job.store.get(segment.key) for segment in compaction.files)


def test_a_record_that_cannot_be_read_stops_the_collector() -> None:
    job = a_running_job()
    compacted = take_checkpoint(job)
    job.store.put(job.paths.compaction(STAGE, compacted), b"not a record")

    with pytest.raises(ProtocolViolation, match="no garbage was collected"):
        collect_garbage(job, grace_ms=0)
