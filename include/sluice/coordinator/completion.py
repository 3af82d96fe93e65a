"""Finalize and commit: the checkpoint becomes true, then its sinks publish it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from sluice.connectors.contracts.sink import Sink
from sluice.coordinator.assembly import assemble, write_metadata
from sluice.coordinator.commands import discard_claimed, discard_subsumed, record
from sluice.coordinator.compatibility import require_planned, require_sinks
from sluice.coordinator.early_publication import (
    forget_early_publishes,
    note_early_publish,
    require_shown,
)
from sluice.coordinator.holds import SAVEPOINT, hold, notify_complete
from sluice.coordinator.notifications import notify_checkpoint_complete
from sluice.coordinator.savepoints import copy_files, export_savepoint
from sluice.coordinator.sink_checks import check_sink, check_sinks, of_sink
from sluice.coordinator.statistics import keep_completed
from sluice.coordinator.table_recovery import recover_tables, writer_of
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.ids import CheckpointId
from sluice.core.messages import CheckpointCommitted, CheckpointCompleted
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.core.properties import CheckpointingMode
from sluice.core.state import CoordinatorState
from sluice.core.transition import Verdict
from sluice.epoch.acks import acknowledged, acks_of
from sluice.epoch.lineage import lineage_of
from sluice.errors import ConfigurationError, FencedError, NotYetAcknowledged, ProtocolViolation
from sluice.job.job import Job
from sluice.job.owed_work import plan_of, still_owed, why_gone
from sluice.job.places import Sources, open_sinks
from sluice.storage.journal import Head

log = logging.getLogger(__name__)


def finalize(job: Job, checkpoint_id: CheckpointId) -> CompletedCheckpoint:
    """Fold the acks, write ``_metadata``, journal *completed*.  Idempotent.

    With several concurrent checkpoints the parent has to be completed and committed first.

    Raises:
        NotYetAcknowledged: a planned ack is missing; the message names the subtasks.
        StageFailed: AT_LEAST_ONCE, and readers may see the rows of another attempt.
        CorruptSegment, RestoreError: a file of a savepoint is damaged, or is gone.
        ConfigurationError: a sink's place cannot take what was staged for it.
        ProtocolViolation: what was staged is gone, or is damaged.
        FencedError: the checkpoint was aborted, or a newer generation owns the job.
    """
    plan = job.plan(checkpoint_id)
    head = job.journal.load(after=plan.journal_seq if plan is not None else 0)
    if head.state.pending_checkpoint(checkpoint_id) is None:
        head = job.journal.load()  # It ended, or so it seems: that needs certainty.
    done = head.state.completed_checkpoint(checkpoint_id)
    if done is not None:
        return done
    pending = head.state.pending_checkpoint(checkpoint_id)
    if pending is None:
        raise FencedError(why_gone(head.state, checkpoint_id))
    plan = plan or plan_of(job, checkpoint_id)
    require_planned(job.pipeline, plan)
    head = _after_parent(job, head, pending)
    pending = _fully_acknowledged(job, head.state, checkpoint_id)
    assembled = assemble(job, head.state, plan, pending)
    try:
        check_sinks(job, head.state, assembled, pending)
    except (ConfigurationError, ProtocolViolation):
        # Who ended it meanwhile has published its rows, or deleted them.
        now = job.state()
        if now.pending_checkpoint(checkpoint_id) is not None:
            raise
        if (done := now.completed_checkpoint(checkpoint_id)) is not None:
            return done
        raise FencedError(why_gone(now, checkpoint_id)) from None
    if pending.savepoint_name is not None:
        copy_files(job, assembled, pending.savepoint_name)
    metadata = write_metadata(job, assembled)
    if head.state.configuration.mode is CheckpointingMode.AT_LEAST_ONCE:
        require_shown(job, metadata)
    return _complete(job, head, metadata, plan, pending)


def _complete(
    job: Job,
    head: Head,
    metadata: CheckpointMetadata,
    plan: CheckpointPlan,
    pending: PendingCheckpoint,
) -> CompletedCheckpoint:
    """Journal that it is true: from now on a restart may begin from it."""
    checkpoint_id = pending.checkpoint_id
    acks = pending.acks.values()
    transition = record(
        job,
        lambda _: CheckpointCompleted(
            generation=metadata.generation,
            at_ms=job.clock(),
            checkpoint_id=checkpoint_id,
            checkpointed_bytes=sum(ack.metrics.checkpointed_bytes for ack in acks),
            full_bytes=sum(ack.metrics.full_bytes for ack in acks),
        ),
        head=head,
    )
    completed = transition.state.completed_checkpoint(checkpoint_id)
    if completed is None:
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


def commit(job: Job, checkpoint_id: CheckpointId) -> CoordinatorState:
    """Have every sink publish the completed checkpoint, delete what it subsumed, then journal
    *committed*, and delete what sinks have copied.  Idempotent.

    Raises:
        FencedError: the checkpoint is not what the job continues: a restore left it behind, or a
            newer generation owns the job.
        TableMismatch: a table does not show what the checkpoint continues; a person decides.
    """
    head = job.journal.load()
    completed = still_owed(head.state, checkpoint_id)
    if completed.is_committed:
        return head.state
    head = recover_tables(job, head)
    state = head.state
    metadata = job.metadata(checkpoint_id)
    require_sinks(job.pipeline, metadata, state)
    opened = open_sinks(job, state.configuration.params)
    publishing = [uid for uid, version in metadata.tables.items() if version == checkpoint_id]
    sinks = {uid: sink for uid, sink in opened.items() if uid in publishing}
    try:
        _publish(state, metadata, sinks)
    except ProtocolViolation:  # What was staged is gone, since it was not needed any more?
        now = job.state()
        if still_owed(now, checkpoint_id).is_committed:
            return now
        raise
    if completed.savepoint_name is not None:
        hold(job, state, metadata.sources, SAVEPOINT + completed.savepoint_name)
        export_savepoint(job, metadata, completed.savepoint_name)
    sources = Sources(job, state.configuration.params)
    _notify(job, state, metadata, sources, opened)
    if state.configuration.mode is CheckpointingMode.AT_LEAST_ONCE:
        forget_early_publishes(job, checkpoint_id, job.pipeline.sinks)
    done = CheckpointCommitted(
        generation=state.generation,
        at_ms=job.clock(),
        checkpoint_id=checkpoint_id,
        sinks=tuple(publishing),
        discarded=discard_subsumed(job, state, known=metadata, sources=sources),
    )
    transition = record(job, lambda current: replace(done, generation=current.generation), head)
    # Not before, nor if it is still owed: a place that was put back until then is told again.
    if transition.verdict is Verdict.APPLIED:
        for uid, sink in sinks.items():
            sink.discard_copied(of_sink(uid, metadata.committables))
    if transition.state.claimed_savepoints:
        discard_claimed(job)
    log.info("checkpoint committed checkpoint_id=%d", checkpoint_id)
    return transition.state


def _notify(
    job: Job,
    state: CoordinatorState,
    metadata: CheckpointMetadata,
    sources: Sources,
    sinks: Mapping[str, Sink],
) -> None:
    notify_complete(job, state, metadata.sources, sources)
    notify_checkpoint_complete(job, metadata.checkpoint_id, sources, sinks)


def publish_early(job: Job, checkpoint_id: CheckpointId, stage: str) -> None:
    """AT_LEAST_ONCE: show what the sinks of an acknowledged *stage* staged, before the checkpoint
    completes.  Idempotent.

    Raises:
        NotYetAcknowledged: a planned ack of the stage is missing.
        StageFailed: an earlier attempt has shown its rows.
        FencedError: the checkpoint was aborted, or the attempt was overtaken.
    """
    state = job.state()
    if state.pending_checkpoint(checkpoint_id) is None:
        raise FencedError(why_gone(state, checkpoint_id))
    parent = state.latest_completed
    if parent is not None and not parent.is_committed:
        commit(job, parent.checkpoint_id)
    for pending in state.pending:  # Those before it first: their versions are what it continues.
        if pending.checkpoint_id <= checkpoint_id:
            _publish_early(job, state, pending, stage)


def _publish_early(
    job: Job, state: CoordinatorState, pending: PendingCheckpoint, stage: str
) -> None:
    checkpoint_id = pending.checkpoint_id
    plan = plan_of(job, checkpoint_id)
    if stage in plan.finished:
        return
    tables = lineage_of(job, state, plan).tables
    sinks = open_sinks(job, state.configuration.params)
    acks = acks_of(job, state, checkpoint_id)(stage)
    committables = [c for ack in acks for c in ack.committables]
    for uid in (node.uid for node in job.pipeline.sinks_of(stage)):
        if not sinks[uid].is_published(checkpoint_id):
            mine = of_sink(uid, committables)
            if mine:
                check_sink(job, uid, sinks[uid], tables.get(uid), acks, mine)
            note_early_publish(job, checkpoint_id, uid, mine)
            if not _is_still(job, pending, stage):
                return
            sinks[uid].commit(writer_of(state), checkpoint_id, tables.get(uid), mine)


def _is_still(job: Job, pending: PendingCheckpoint, stage: str) -> bool:
    """Whether the checkpoint is pending, and the attempt of *stage* counts; once it is completed
    its commit shows the rows.

    Raises:
        FencedError: it was aborted, or the attempt was overtaken.
    """
    state = job.state()
    now = state.pending_checkpoint(pending.checkpoint_id)
    if now is None:
        if state.completed_checkpoint(pending.checkpoint_id) is not None:
            return False
        raise FencedError(why_gone(state, pending.checkpoint_id))
    if now.attempt_of(stage) != pending.attempt_of(stage):
        raise FencedError(f"stage {stage!r} runs again in checkpoint {pending.checkpoint_id}")
    return True


def _after_parent(job: Job, head: Head, pending: PendingCheckpoint) -> Head:
    """Nothing is completed before what it continues is, and is published; *head* once it is."""
    if pending is not head.state.pending[0]:
        raise NotYetAcknowledged(
            f"checkpoint {pending.checkpoint_id} continues checkpoint {pending.parent}, which is "
            "still pending"
        )
    parent = head.state.latest_completed
    if parent is None or parent.is_committed:
        return head
    commit(job, parent.checkpoint_id)
    return job.journal.load()


def _publish(
    state: CoordinatorState, metadata: CheckpointMetadata, sinks: Mapping[str, Sink]
) -> None:
    """Have each of *sinks* publish what it staged, but those whose table shows it already."""
    checkpoint_id = metadata.checkpoint_id
    was_early = state.configuration.mode is CheckpointingMode.AT_LEAST_ONCE
    before = metadata.previous_tables if state.tables is None else state.tables
    for uid, sink in sinks.items():
        if before.get(uid) == checkpoint_id:
            continue  # It was found to show it when the job was restored.
        if was_early and sink.is_published(checkpoint_id):
            continue
        mine = of_sink(uid, metadata.committables)
        sink.commit(writer_of(state), checkpoint_id, before.get(uid), mine)


def _fully_acknowledged(
    job: Job, state: CoordinatorState, checkpoint_id: CheckpointId
) -> PendingCheckpoint:
    pending = acknowledged(job, state, checkpoint_id)
    if not pending.is_fully_acknowledged:
        missing = ", ".join(str(subtask) for subtask in pending.not_yet_acknowledged)
        raise NotYetAcknowledged(f"checkpoint {checkpoint_id} lacks the acks of {missing}")
    return pending
