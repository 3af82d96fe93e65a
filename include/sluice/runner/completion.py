"""Finalize and commit: the checkpoint becomes true, then its sinks publish it."""

from __future__ import annotations

import logging
from itertools import chain

from sluice.core.completed import CompletedCheckpoint
from sluice.core.ids import CheckpointId
from sluice.core.messages import CheckpointCommitted, CheckpointCompleted
from sluice.core.pending import PendingCheckpoint
from sluice.core.properties import CheckpointingMode
from sluice.core.state import CoordinatorState
from sluice.core.transition import Verdict
from sluice.errors import FencedError, NotYetAcknowledged, ProtocolViolation
from sluice.runner.assembly import assemble, write_metadata
from sluice.runner.commands import carry_out, discard_subsumed
from sluice.runner.early import forget_early_publishes, note_early_publish, require_shown
from sluice.runner.holds import SAVEPOINT, hold, notify_complete
from sluice.runner.job import Job
from sluice.runner.lineage import acks_of, lineage_of
from sluice.runner.plans import plan_of, still_owed, why_gone
from sluice.runner.savepoints import copy_files, discard_claimed, export_savepoint
from sluice.runner.sink_checks import check_sink, check_sinks, of_sink
from sluice.runner.table_recovery import recover_tables, writer_of
from sluice.runner.upgrades import require_planned, require_sinks
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
    pending = _acknowledged(job, pending)
    assembled = assemble(job, head.state, plan, pending)
    check_sinks(job, head.state, assembled, pending)
    if pending.savepoint_name is not None:
        copy_files(job, assembled, pending.savepoint_name)
    metadata = write_metadata(job, assembled)
    if head.state.configuration.mode is CheckpointingMode.AT_LEAST_ONCE:
        require_shown(job, metadata)
    acks = pending.acks.values()
    transition = job.journal.append(
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
    was_early = state.configuration.mode is CheckpointingMode.AT_LEAST_ONCE
    before = metadata.previous_tables if state.tables is None else state.tables
    publishing = [uid for uid, version in metadata.tables.items() if version == checkpoint_id]
    sinks = job.sinks(state.configuration.params)
    for uid, sink in sinks.items():
        if uid not in publishing or before.get(uid) == checkpoint_id:
            continue  # The latter was found to show it already when it was restored.
        if was_early and sink.is_published(checkpoint_id):
            continue
        mine = of_sink(uid, metadata.committables)
        try:
            sink.commit(writer_of(state), checkpoint_id, before.get(uid), mine)
        except ProtocolViolation:  # What was staged is gone, since it was not needed any more?
            now = job.state()
            if still_owed(now, checkpoint_id).is_committed:
                return now
            raise
    if completed.savepoint_name is not None:
        hold(job, state, metadata.sources, SAVEPOINT + completed.savepoint_name)
        export_savepoint(job, metadata, completed.savepoint_name)
    notify_complete(job, state, metadata.sources)
    if was_early:
        forget_early_publishes(job, checkpoint_id, job.pipeline.sinks)
    discarded = discard_subsumed(job, state, known=metadata)
    transition = job.journal.append(
        lambda current: CheckpointCommitted(
            generation=current.generation,
            at_ms=job.clock(),
            checkpoint_id=checkpoint_id,
            sinks=tuple(publishing),
            discarded=discarded,
        ),
        head=head,
    )
    carry_out(job, transition)
    # Not before, nor if it is still owed: a place that was put back until then is told again.
    if transition.verdict is Verdict.APPLIED:
        for uid in sinks.keys() & publishing:
            sinks[uid].discard_copied(of_sink(uid, metadata.committables))
    if transition.state.claimed_savepoints:
        discard_claimed(job)
    log.info("checkpoint committed checkpoint_id=%d", checkpoint_id)
    return transition.state


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
    sinks = job.sinks(state.configuration.params)
    acks = acks_of(job, pending)(stage)
    committables = [c for ack in acks for c in ack.committables]
    for uid in (node.uid for node in job.pipeline.sinks_of(stage)):
        if not sinks[uid].is_published(checkpoint_id):
            mine = of_sink(uid, committables)
            if mine:
                check_sink(job, uid, sinks[uid], tables.get(uid), acks)
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


def _acknowledged(job: Job, pending: PendingCheckpoint) -> PendingCheckpoint:
    """The checkpoint with the acks in the bucket folded in; one GET a stage at best."""
    read = (
        job.answers.acks(
            pending.checkpoint_id,
            task.uid,
            attempt=pending.attempt_of(task.uid),
            parallelism=task.parallelism,
        )
        for task in pending.tasks
        if task.uid not in pending.overtaken
    )
    after = pending.acknowledge_all(chain.from_iterable(read))
    if not after.is_fully_acknowledged:
        missing = ", ".join(str(subtask) for subtask in after.not_yet_acknowledged)
        raise NotYetAcknowledged(f"checkpoint {pending.checkpoint_id} lacks the acks of {missing}")
    return after
