"""Finalize: a checkpoint with all its acks is completed.

``_metadata``, which holds what a restore needs, is assembled from the acks and written once.  Then
*completed* is journaled; from that entry on a restart may begin from the checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from sluice.coordinator.compatibility import require_planned
from sluice.coordinator.history import keep_completed
from sluice.coordinator.publication import commit_owed
from sluice.coordinator.record import record
from sluice.coordinator.savepoints import reserve_and_copy
from sluice.coordinator.staged import check_sinks, require_shown
from sluice.core.answers import StageAnswer, mixture_of_drivers
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.configuration import CheckpointingMode
from sluice.core.events import CheckpointCompleted, Verdict
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.core.state import CoordinatorState
from sluice.errors import (
    ConfigurationError,
    FencedError,
    NotYetAcknowledged,
    ProtocolViolation,
    StageFailed,
)
from sluice.job.answers import answers_to, plan_of, still_pending, why_gone, with_acks
from sluice.job.job import Job, uncollected
from sluice.job.lineage import finished_stage, lineage_of, stage_state, tables_of
from sluice.protocol.records import decode_metadata, encode_metadata
from sluice.store.journal import Head
from sluice.store.object_store import AlreadyExists

log = logging.getLogger(__name__)


def finalize(job: Job, checkpoint_id: CheckpointId) -> CompletedCheckpoint:
    """Fold the acks, write ``_metadata``, journal *completed*.  Idempotent.

    With several concurrent checkpoints the parent is completed and committed before.

    Raises:
        NotYetAcknowledged: a planned ack is missing; the message names the subtasks.
        StageFailed: AT_LEAST_ONCE, and readers may see the rows of another attempt; or a stage has
            run again since another coordinator made ``_metadata``, or was run by two drivers.
        CorruptSegment, RestoreError: a file of a savepoint is damaged, or is gone.
        ConfigurationError: a sink's place cannot take what was staged for it, or another savepoint
            has taken the name.
        ProtocolViolation: what was staged is gone, or is damaged.
        FencedError: the checkpoint was aborted, or a newer generation owns the job.
    """
    plan = job.plan(checkpoint_id)
    head = job.journal.load(after=plan.journal_seq if plan is not None else 0)
    if head.state.pending_checkpoint(checkpoint_id) is None:
        head = job.journal.load()  # It seems to have ended: only the whole journal is certain.
    done = head.state.completed_checkpoint(checkpoint_id)
    if done is not None:
        return done
    pending = still_pending(head.state, checkpoint_id)
    plan = plan or plan_of(job, checkpoint_id)
    require_planned(job.pipeline, plan)
    head = _after_parent(job, head, pending)
    answers = answers_to(job, head.state, checkpoint_id)
    pending = _fully_acknowledged(head.state, checkpoint_id, answers)
    drivers = {stage: answer.driver for stage, answer in answers.items()}
    assembled = assemble(job, head.state, plan, pending, drivers)
    try:
        check_sinks(job, head.state, assembled, pending)
    except (ConfigurationError, ProtocolViolation):
        # Another coordinator, if it ended it meanwhile, has published the rows or deleted them.
        now = job.state()
        if now.pending_checkpoint(checkpoint_id) is not None:
            raise
        if (done := now.completed_checkpoint(checkpoint_id)) is not None:
            return done
        raise FencedError(why_gone(now, checkpoint_id)) from None
    if pending.savepoint is not None:
        reserve_and_copy(job, assembled, pending.savepoint)
    metadata = write_metadata(job, assembled)
    if head.state.configuration.mode is CheckpointingMode.AT_LEAST_ONCE:
        require_shown(job, metadata)
    acks = pending.acks.values()
    transition = record(
        job,
        lambda _: CheckpointCompleted(
            generation=metadata.generation,
            at_ms=job.now_ms(),
            checkpoint_id=checkpoint_id,
            attempts=metadata.attempts,
            checkpointed_bytes=sum(ack.metrics.checkpointed_bytes for ack in acks),
            full_bytes=sum(ack.metrics.full_bytes for ack in acks),
        ),
        head=head,
    )
    completed = transition.state.completed_checkpoint(checkpoint_id)
    if completed is None:
        still = transition.state.pending_checkpoint(checkpoint_id)
        if still is not None and still.current_attempts != metadata.attempts:
            raise _ran_again(checkpoint_id, metadata.attempts, still.current_attempts)
        raise FencedError(why_gone(transition.state, checkpoint_id))
    if transition.verdict is Verdict.APPLIED:
        log.info(
            "checkpoint completed checkpoint_id=%d duration_ms=%d bytes=%d",
            checkpoint_id,
            completed.completed_at_ms - completed.triggered_at_ms,
            completed.checkpointed_bytes,
        )
        keep_completed(job, transition.state, completed, plan, acks, metadata)
    return completed


def _after_parent(job: Job, head: Head, pending: PendingCheckpoint) -> Head:
    """The head once the checkpoint that *pending* continues is completed and published."""
    if pending is not head.state.pending[0]:
        raise NotYetAcknowledged(
            f"checkpoint {pending.checkpoint_id} continues checkpoint {pending.parent}, which is "
            "still pending"
        )
    return commit_owed(job, head)


def _fully_acknowledged(
    state: CoordinatorState, checkpoint_id: CheckpointId, answers: Mapping[str, StageAnswer]
) -> PendingCheckpoint:
    """Raises StageFailed, too, if a stage read rows of a driver whose answer does not count."""
    pending = with_acks(state, checkpoint_id, answers.values())
    if not pending.is_fully_acknowledged:
        missing = ", ".join(str(subtask) for subtask in pending.not_yet_acknowledged)
        raise NotYetAcknowledged(f"checkpoint {checkpoint_id} lacks the acks of {missing}")
    mixture = mixture_of_drivers(answers.values())
    if mixture is not None:
        raise StageFailed(
            f"stage {mixture.reader!r} of checkpoint {checkpoint_id} has read what one driver of "
            f"stage {mixture.producer!r} computed, and another driver has answered for that stage; "
            "the next checkpoint reads the same records again",
            stage=mixture.producer,
            cause="two drivers ran the same attempt",
            is_transient=True,
        )
    return pending


def _ran_again(
    checkpoint_id: CheckpointId, made_of: Mapping[str, int], now: Mapping[str, int]
) -> StageFailed:
    """The error for a ``_metadata`` that is not made of the attempts that count *now*."""
    stage = next(s for s in (*made_of, *now) if made_of.get(s) != now.get(s))
    return StageFailed(
        f"stage {stage!r} of checkpoint {checkpoint_id} ran again, or was overtaken, when its "
        f"attempt {made_of.get(stage)} was being completed; the next checkpoint reads the same "
        "records again",
        stage=stage,
        cause="it ran again when its checkpoint was being completed",
        is_transient=True,
    )


@uncollected
def assemble(
    job: Job,
    state: CoordinatorState,
    plan: CheckpointPlan,
    pending: PendingCheckpoint,
    drivers: Mapping[str, str],
) -> CheckpointMetadata:
    """The metadata that a restore needs, from plan and answers; equal ones give equal bytes."""
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
        sources=tuple(
            replace(cut, unread=None, size_bytes=None, taken_back={}) for cut in plan.sources
        ),
        stages=tuple(
            (running | finished)[uid] for uid in job.pipeline.stages if uid in running | finished
        ),
        committables=committables,
        attempts=pending.current_attempts,
        drivers=dict(drivers),
        processing_time_ms=plan.processing_time_ms,
        previous_tables=lineage.tables,
        tables=tables_of(job, plan, lineage) | dict.fromkeys(sorted(staged), plan.checkpoint_id),
        master_states=plan.master_states,
        fingerprints=plan.fingerprints,
    )


def write_metadata(job: Job, metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Write it once, and return what is there.

    A ``_metadata`` that is already there was written by a coordinator that died before it journaled
    *completed*.  It is never replaced, and is used if it was made of the same answers.

    Raises:
        StageFailed: it was made of the answers of other attempts.
    """
    key = job.paths.metadata(metadata.checkpoint_id)
    result = job.store.create(key, encode_metadata(metadata))
    if not isinstance(result, AlreadyExists):
        return metadata
    existing = decode_metadata(result.body, key)
    if (existing.generation, existing.parent) != (metadata.generation, metadata.parent):
        raise ProtocolViolation(f"{key} is of generation {existing.generation}; ids are not reused")
    if existing.attempts != metadata.attempts:
        raise _ran_again(metadata.checkpoint_id, existing.attempts, metadata.attempts)
    if existing.drivers != metadata.drivers:
        raise ProtocolViolation(
            f"{key} was made of other answers than there are now; abort the checkpoint, and find "
            "out who else writes in that bucket"
        )
    return existing
