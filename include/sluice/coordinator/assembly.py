"""A checkpoint's ``_metadata``: what a restore will need, assembled once and written once."""

from __future__ import annotations

from dataclasses import replace

from sluice.core.completed import CheckpointMetadata
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.core.state import CoordinatorState
from sluice.epoch.lineage import finished_stage, lineage_of, stage_state, tables_of
from sluice.errors import ProtocolViolation
from sluice.job.collector import uncollected
from sluice.job.job import Job
from sluice.protocol.records import decode_metadata, encode_metadata
from sluice.storage.object_store import AlreadyExists


@uncollected
def assemble(
    job: Job, state: CoordinatorState, plan: CheckpointPlan, pending: PendingCheckpoint
) -> CheckpointMetadata:
    """What a restore will need, from the plan and its acks; equal acks give equal bytes."""
    lineage = lineage_of(job, state, plan)
    known = {
        task.uid: [pending.acks[str(subtask)] for subtask in task.subtasks]
        for task in plan.tasks
        if task.uid not in pending.overtaken
    }
    running = {
        task.uid: stage_state(job, plan, pending, task.uid, lineage, known.__getitem__)
        for task in plan.tasks
    }
    finished = {
        uid: finished_stage(before)
        for uid in plan.finished
        if (before := lineage.stage(uid)) is not None
    }
    committables = tuple(
        committable
        for key in sorted(pending.acks)
        for committable in pending.acks[key].committables
    )
    staged = {committable.sink for committable in committables}
    return CheckpointMetadata(
        pipeline=job.pipeline.uid,
        life=state.life,
        checkpoint_id=plan.checkpoint_id,
        parent=plan.parent,
        origin=plan.origin,
        generation=plan.generation,
        type=plan.type,
        triggered_at_ms=plan.triggered_at_ms,
        drains=plan.drains,
        # What lies behind the barriers is for people, and in the statistics.
        sources=tuple(replace(cut, unread=None, size_bytes=None) for cut in plan.sources),
        stages=tuple(
            (running | finished)[uid] for uid in job.pipeline.stages if uid in running | finished
        ),
        committables=committables,
        previous_tables=lineage.tables,
        tables=tables_of(job, plan, lineage) | dict.fromkeys(sorted(staged), plan.checkpoint_id),
        master_states=plan.master_states,
    )


def write_metadata(job: Job, metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Write it once.  An existing one was written by a coordinator that died before it journaled:
    it was assembled from a complete set of acks, too, and it stays.
    """
    key = job.paths.metadata(metadata.checkpoint_id)
    result = job.store.create(key, encode_metadata(metadata))
    if not isinstance(result, AlreadyExists):
        return metadata
    existing = decode_metadata(result.body, key)
    if (existing.generation, existing.parent) != (metadata.generation, metadata.parent):
        raise ProtocolViolation(f"{key} is of generation {existing.generation}; ids are not reused")
    return existing
