"""Commit: the sinks publish a completed checkpoint; with AT_LEAST_ONCE, before it completes.

Anybody may commit what is owed, and a commit may last: a place fences whoever began before, and
that one fences back.  So the owner of one that lasts keeps it alive by an object, ``kept_alive``,
and the others leave it alone as long as that is fresh on the store's clock, ``is_kept_alive``.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Thread

from sluice.coordinator.compatibility import require_sinks
from sluice.coordinator.notifications import (
    hold,
    hold_of,
    notify_checkpoint_complete,
    notify_checkpoint_subsumed,
    notify_complete,
)
from sluice.coordinator.record import discard_claimed, discard_subsumed, record
from sluice.coordinator.savepoints import export_savepoint
from sluice.coordinator.staged import (
    check_staged_rows,
    forget_early_publishes,
    note_early_publish,
    of_sink,
)
from sluice.coordinator.tables import recover_tables, writer_of
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import CheckpointingMode
from sluice.core.events import CheckpointCommitted, Verdict
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import CoordinatorState
from sluice.declaration.places import Sink
from sluice.errors import (
    ConfigurationError,
    FencedError,
    ProtocolViolation,
    RestoreError,
    SluiceError,
)
from sluice.job.answers import acks_of, plan_of, still_owed, still_pending, why_gone
from sluice.job.job import Job, require_at_home
from sluice.job.lineage import lineage_of
from sluice.job.places import Sources, open_sinks
from sluice.store.journal import Head
from sluice.store.open import now_ms

log = logging.getLogger(__name__)

BEAT_S = 20.0  # A commit takes milliseconds, or lasts.
MOST_BEATS = 180  # An hour: longer than any place's transaction may be open by default.
ALIVE_MS = 60_000  # Two beats may be lost.
AWAIT_S = 2.0


@contextmanager
def kept_alive(job: Job, checkpoint_id: CheckpointId) -> Iterator[None]:
    """A block in which a commit is under way: it shows that its owner is alive.

    No request for a commit that takes less than ``BEAT_S``.  After ``MOST_BEATS`` it counts as
    hung, and whoever comes next takes over.
    """
    key = f"{job.paths.committing(checkpoint_id)}{uuid.uuid4().hex[:16]}"
    is_over, beats = Event(), 0

    def beat() -> None:
        nonlocal beats
        while beats < MOST_BEATS and not is_over.wait(BEAT_S):
            beats += 1
            with suppress(SluiceError):  # The next one may come through.
                job.store.put(key, b"")

    heart = Thread(target=beat, name="commit-heartbeat", daemon=True)
    heart.start()
    try:
        yield
    finally:
        is_over.set()
        heart.join(BEAT_S)  # It may hang in a request of its own.
        if beats:
            with suppress(SluiceError):  # It goes with its checkpoint.
                job.store.delete([key])


def is_kept_alive(job: Job, checkpoint_id: CheckpointId) -> bool:
    """Whether somebody is committing the checkpoint, and lives.  One LIST."""
    beats = [beat.modified_ms for beat in job.store.list(job.paths.committing(checkpoint_id))]
    return bool(beats) and now_ms(job.store) - max(beats) < ALIVE_MS


def _await_owner(job: Job, checkpoint_id: CheckpointId) -> None:
    """Wait while another commits the checkpoint, and lives."""
    while is_kept_alive(job, checkpoint_id):
        if still_owed(job.state(), checkpoint_id).is_committed:
            break
        log.info("commit is waited for, its owner is alive checkpoint_id=%d", checkpoint_id)
        time.sleep(AWAIT_S)


def commit_owed(job: Job, head: Head) -> Head:
    """The head once the latest completed checkpoint is published; who is at it is waited for."""
    owed = head.state.owed
    if owed is None:
        return head
    commit(job, owed.checkpoint_id, awaits_owner=True)
    return job.journal.load()


def commit(
    job: Job,
    checkpoint_id: CheckpointId,
    *,
    known: CheckpointMetadata | None = None,
    awaits_owner: bool = False,
) -> CoordinatorState:
    """Have every sink publish the completed checkpoint, delete what it subsumed, then journal
    *committed*, and delete what sinks have copied.  Idempotent.  Its ``_metadata`` is not read
    again if it is *known*.

    Who commits what another was to commit *awaits_owner*: waits for that one while it is alive.

    It is journaled for the generation that was loaded, so one who sleeps through a restore is
    fenced.

    Raises:
        FencedError: the checkpoint is not what the job continues: a restore left it behind, or a
            newer generation owns the job.
        ConfigurationError: another savepoint has the name of the one that the checkpoint is, or the
            root is a copy of the job's.
        TableMismatch: a table does not show what the checkpoint continues; a person decides.
    """
    if awaits_owner:
        _await_owner(job, checkpoint_id)
    head = _owing_head(job, checkpoint_id)
    require_at_home(job, head.state)
    completed = still_owed(head.state, checkpoint_id)
    if completed.is_committed:
        return head.state
    head = recover_tables(job, head)
    state = head.state
    metadata = known or _metadata(job, checkpoint_id)
    require_sinks(job.pipeline, metadata, state)
    opened = open_sinks(job, state.configuration.params)
    publishing = [uid for uid, version in metadata.tables.items() if version == checkpoint_id]
    sinks = {uid: sink for uid, sink in opened.items() if uid in publishing}
    try:
        with kept_alive(job, checkpoint_id):
            _publish(state, metadata, sinks)
        if completed.savepoint is not None:
            hold(job, state, metadata.sources, hold_of(completed.savepoint))
            export_savepoint(job, metadata, completed.savepoint)
    except (ProtocolViolation, ConfigurationError):
        # The staged rows are gone, or the savepoint is and its name was taken anew: perhaps as
        # another has committed meanwhile.
        now = job.state()
        if still_owed(now, checkpoint_id).is_committed:
            return now
        raise
    sources = Sources(job, state.configuration.params)
    notify_complete(job, state, metadata.sources, sources)
    notify_checkpoint_complete(job, checkpoint_id, sources, opened)
    if state.configuration.mode is CheckpointingMode.AT_LEAST_ONCE:
        forget_early_publishes(job, checkpoint_id, job.pipeline.sinks)
    discarded = discard_subsumed(job, state, known=metadata, sources=sources)
    _notify_subsumed(job, state, discarded, sources, opened)
    done = CheckpointCommitted(
        generation=state.generation,
        at_ms=job.now_ms(),
        checkpoint_id=checkpoint_id,
        sinks=tuple(publishing),
        discarded=discarded,
    )
    transition = record(job, lambda _: done, head)
    if transition.verdict is Verdict.FENCED:  # Who restored the job commits what it continues.
        raise FencedError(
            f"job {job.pipeline.uid!r} was restored while checkpoint {checkpoint_id} was published "
            f"for generation {state.generation}"
        )
    # Only once the commit is journaled: as long as it is owed, a place that was put back to an
    # earlier state needs the staged files to publish them again.
    if transition.verdict is Verdict.APPLIED:
        for uid, sink in sinks.items():
            sink.discard_copied(of_sink(uid, metadata.committables))
    if transition.state.claimed_savepoints:
        discard_claimed(job)
    log.info("checkpoint committed checkpoint_id=%d", checkpoint_id)
    return transition.state


def _owing_head(job: Job, checkpoint_id: CheckpointId) -> Head:
    """The head, up to date as far as the checkpoint is owed: only the whole journal is certain that
    there is nothing to do.
    """
    head = job.journal.load_on()
    owed = head.state.completed_checkpoint(checkpoint_id)
    return job.journal.load() if owed is None or owed.is_committed else head


def _metadata(job: Job, checkpoint_id: CheckpointId) -> CheckpointMetadata:
    """Raises FencedError, not RestoreError, where the checkpoint is not owed any more."""
    try:
        return job.metadata(checkpoint_id)
    except RestoreError:
        still_owed(job.state(), checkpoint_id)
        raise


def _notify_subsumed(
    job: Job,
    state: CoordinatorState,
    discarded: Collection[CheckpointId],
    sources: Sources,
    sinks: Mapping[str, Sink],
) -> None:
    for subsumed in state.discarding:
        if not subsumed.type.is_savepoint and subsumed.checkpoint_id in discarded:
            notify_checkpoint_subsumed(job, subsumed.checkpoint_id, sources, sinks)


def _publish(
    state: CoordinatorState, metadata: CheckpointMetadata, sinks: Mapping[str, Sink]
) -> None:
    """Have each of *sinks* publish what it staged, unless its table shows that already."""
    checkpoint_id = metadata.checkpoint_id
    was_early = state.configuration.mode is CheckpointingMode.AT_LEAST_ONCE
    before = metadata.previous_tables if state.tables is None else state.tables
    for uid, sink in sinks.items():
        if before.get(uid) == checkpoint_id:
            continue  # The restore found that the table shows it.
        if was_early and sink.is_published(checkpoint_id):
            continue
        staged = of_sink(uid, metadata.committables)
        sink.commit(writer_of(state), checkpoint_id, before.get(uid), staged)


def publish_early(job: Job, checkpoint_id: CheckpointId, stage: str) -> None:
    """AT_LEAST_ONCE: show what the sinks of an acknowledged *stage* staged, before the checkpoint
    completes.  Idempotent.

    Raises:
        NotYetAcknowledged: a planned ack of the stage is missing.
        StageFailed: an earlier attempt has shown its rows.
        FencedError: the checkpoint was aborted, or the attempt was overtaken.
    """
    state = job.state()
    still_pending(state, checkpoint_id)
    if state.owed is not None:
        commit(job, state.owed.checkpoint_id, awaits_owner=True)
    for pending in state.pending:  # In their order: a version continues the one before.
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
            staged = of_sink(uid, committables)
            if staged:
                check_staged_rows(job, uid, sinks[uid], tables.get(uid), acks, staged)
            note_early_publish(job, checkpoint_id, uid, staged)
            if not _is_current(job, pending, stage):
                return
            sinks[uid].commit(writer_of(state), checkpoint_id, tables.get(uid), staged)


def _is_current(job: Job, pending: PendingCheckpoint, stage: str) -> bool:
    """Whether the checkpoint is still pending, and the attempt of *stage* still counts.  False once
    it is completed: then its commit publishes the rows.

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
