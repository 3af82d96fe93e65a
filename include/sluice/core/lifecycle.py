"""The job's own life: submitted, failed over, restored, stopped, ended (Flink's JobStatus).

Whatever ends or interrupts the job aborts what is pending and rejects what is queued.  Pending
checkpoints are a chain, so an aborted one takes along those that continue it.  Flink's
ExecutionFailureHandler decides of a restart, the discard matrix of CheckpointProperties what goes
with the job's end, if that is final: ``end`` is the one place where anything goes.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import ClaimMode, JobStatus, is_discarded
from sluice.core.decider import CheckpointRequest
from sluice.core.events import (
    CheckpointingChanged,
    DiscardCompleted,
    DiscardPending,
    HooksRestored,
    JobFailed,
    JobRestored,
    JobStopped,
    JobSubmitted,
    JournalRepaired,
    RootAdopted,
    SavepointsReleased,
    SnapshotsDiscarded,
    TablesRecovered,
    Transition,
    ignored,
    refused,
)
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import Generation, SavepointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.restart import next_restart
from sluice.core.state import (
    REMEMBERED_FAILURES,
    REMEMBERED_LIVES,
    REMEMBERED_REJECTIONS,
    REMEMBERED_RESTORES,
    CoordinatorState,
    FailedCheckpoint,
    RejectedRequest,
    RestoredCheckpoint,
    ServedRestore,
)
from sluice.core.tables import owed_recovery
from sluice.errors import require


def next_generation(state: CoordinatorState) -> Generation:
    """The generation that fences every coordinator and stage of the state's own."""
    return Generation(state.generation + 1)


def on_submitted(state: CoordinatorState, event: JobSubmitted) -> Transition:
    if state.is_alive or event.life in ("", state.life, *state.earlier_lives):
        return refused(state)
    lives = (*state.earlier_lives, state.life) if state.life else ()
    ids = state.ids.at_least(event.tables.newest + 1)
    fresh = CoordinatorState(
        status=JobStatus.RUNNING,
        life=event.life,
        place=event.place,
        earlier_lives=lives[-REMEMBERED_LIVES:],
        generation=event.generation,
        configuration=event.configuration,
        ids=ids,
        tables=event.tables.versions,
        table_recovery=owed_recovery(event.tables, ids),
        rejected=state.rejected,
        completed=state.completed,
        discarding=state.discarding,
        claimed_savepoints=state.claimed_savepoints,
        releasing_savepoints=state.releasing_savepoints,
        num_releases=state.num_releases,
        failed=state.failed,
        unsuccessful_triggers=state.unsuccessful_triggers,
        num_restored=state.num_restored,
        restored=state.restored,
        served=state.served,
    )
    return Transition(state=fresh)


def on_restored(state: CoordinatorState, event: JobRestored) -> Transition:
    if state.served_restore(event.cause) is not None:
        return ignored(state)
    if not (_can_be_restored(state, event) and _are_tables_unchanged(state, event)):
        return refused(state)
    origin, checkpoint_id = event.origin, event.checkpoint_id
    restored_from = "the empty state"
    if checkpoint_id is not None:
        restored_from = str(origin or f"checkpoint {checkpoint_id}")
    aborted = _abort_all(
        state,
        event.at_ms,
        CheckpointFailureReason.JOB_FAILOVER_REGION,
        f"the job was restored from {restored_from}",
    )
    newest = event.tables.newest if event.tables is not None else 0
    known = state.ids.at_least(newest + 1)
    is_base = (checkpoint_id, origin) == (state.base, state.origin)
    claimed = state.claimed_savepoints
    if origin and origin.incarnation and event.claim_mode is ClaimMode.CLAIM:
        claimed = tuple(dict.fromkeys((*claimed, origin.incarnation)))
    restored = replace(
        aborted.state,
        status=JobStatus.RUNNING,
        life=state.life or event.life,
        place=state.place if state.life else event.place,
        generation=event.generation,
        ids=known.at_least((checkpoint_id or 0) + 1),
        base=checkpoint_id,
        origin=origin,
        claim_mode=event.claim_mode,
        ignores_in_flight=event.ignores_in_flight,
        dropped_stages=event.dropped_stages,
        consent=event.consent,
        must_restore_hooks=event.has_hooks,
        tables=state.tables if event.tables is None else event.tables.versions,
        table_recovery=(
            state.table_recovery if event.tables is None else owed_recovery(event.tables, known)
        ),
        claimed_savepoints=claimed,
        configuration=event.configuration or state.configuration,
        is_backlog=False,
        processing_time_ms=event.processing_time_ms,
        restart_at_ms=None,
        num_restarts=state.num_restarts + (state.status is JobStatus.RESTARTING),
        num_restored=state.num_restored + (checkpoint_id is not None),
        restored=_restored(state, event) or state.restored,
        served=_served(state, event),
        restores_of_base=state.restores_of_base + 1 if is_base else 0,
        stopped_because="",
        is_repaired=False,
    )
    return replace(aborted, state=restored)


def _can_be_restored(state: CoordinatorState, event: JobRestored) -> bool:
    """Whether the chosen checkpoint is still there, and still the right choice."""
    origin, checkpoint_id = event.origin, event.checkpoint_id
    if checkpoint_id is None and state.last_completed_at_ms is not None:
        return False  # The empty state was chosen before any checkpoint; one completed since.
    if event.is_latest and (checkpoint_id, origin) != (state.base, state.origin):
        return False
    if origin is None:
        return checkpoint_id is None or state.completed_checkpoint(checkpoint_id) is not None
    savepoint = origin.own_savepoint
    if savepoint is None or (checkpoint_id, origin) == (state.base, state.origin):
        return True  # What the job continues is not released.
    return event.releases == state.num_releases and savepoint not in state.releasing_savepoints


def _are_tables_unchanged(state: CoordinatorState, event: JobRestored) -> bool:
    """Whether the decision about the tables still holds: since it was made no checkpoint was
    completed, and none was committed.
    """
    if not (state.life or event.life):
        return False
    if event.tables is None:
        return state.continues(event.checkpoint_id, event.origin)
    published = event.tables.continues
    if published is None:
        return True
    completed = state.completed_checkpoint(published)
    return completed is not None and not completed.is_committed


def _restored(state: CoordinatorState, event: JobRestored) -> RestoredCheckpoint | None:
    if event.checkpoint_id is None:
        return None
    own = state.completed_checkpoint(event.checkpoint_id)
    if event.origin is not None:
        is_savepoint = event.origin.savepoint is not None
    else:
        is_savepoint = own is not None and own.type.is_savepoint
    return RestoredCheckpoint(
        checkpoint_id=event.checkpoint_id,
        restored_at_ms=event.at_ms,
        is_savepoint=is_savepoint,
        origin=event.origin,
    )


def on_adopted(state: CoordinatorState, event: RootAdopted) -> Transition:
    """The next generation, at another place: what is pending belongs to the one before."""
    if not state.life:
        return refused(state)
    because = f"the job's root is {event.place} now"
    aborted = _abort_all(state, event.at_ms, CheckpointFailureReason.JOB_FAILOVER_REGION, because)
    adopted = replace(aborted.state, generation=event.generation, place=event.place)
    return replace(aborted, state=adopted)


def _served(state: CoordinatorState, event: JobRestored) -> tuple[ServedRestore, ...]:
    if not event.cause:
        return state.served
    served = ServedRestore(
        cause=event.cause,
        generation=event.generation,
        checkpoint_id=event.checkpoint_id,
        origin=event.origin,
    )
    return (*state.served, served)[-REMEMBERED_RESTORES:]


def on_tables_recovered(state: CoordinatorState, event: TablesRecovered) -> Transition:
    if state.table_recovery is None:
        return ignored(state)
    after = replace(state, table_recovery=None, tables_recovered_by=event.generation)
    return Transition(state=after)


def on_repaired(state: CoordinatorState, event: JournalRepaired) -> Transition:
    """Begin again from *state*, that of the last entry that can be read, under a generation that
    fences whoever wrote the lost entries, or read them while they were whole.

    What is pending may have ended in them, so it ends; a running job restarts at once.
    """
    because = f"the journal was repaired: {event.message}"
    aborted = _abort_all(state, event.at_ms, CheckpointFailureReason.JOB_FAILOVER_REGION, because)
    is_running = state.status is JobStatus.RUNNING
    after = replace(
        aborted.state,
        status=JobStatus.RESTARTING if is_running else state.status,
        restart_at_ms=event.at_ms if is_running else state.restart_at_ms,
        generation=event.generation,
        ids=state.ids.at_least(event.next_checkpoint_id),
        is_repaired=True,
    )
    return replace(aborted, state=after)


def on_hooks_restored(state: CoordinatorState, _: HooksRestored) -> Transition:
    if not state.must_restore_hooks:
        return ignored(state)
    return Transition(state=replace(state, must_restore_hooks=False))


def on_stopped(state: CoordinatorState, event: JobStopped) -> Transition:
    require(
        event.status in (JobStatus.SUSPENDED, JobStatus.CANCELED, JobStatus.FAILED),
        "a job is stopped as SUSPENDED, CANCELED or FAILED",
    )
    if state.status.is_globally_terminal or state.status is event.status:
        return ignored(state)
    because = event.message or f"the job was stopped and is {event.status.value}"
    ended = end(state, event.status, event.at_ms, because, is_final=event.is_final)
    return replace(ended, state=replace(ended.state, stopped_because=event.message))


def on_checkpointing_changed(state: CoordinatorState, event: CheckpointingChanged) -> Transition:
    """Take the new times: every host of the job reads them with the state.

    Refused where the job has ended: a new submission begins without any.
    """
    if not (state.is_alive or state.status is JobStatus.SUSPENDED):
        return refused(state)
    if event.timing == state.timing:
        return ignored(state)
    return Transition(state=replace(state, timing=event.timing))


def on_job_failed(state: CoordinatorState, event: JobFailed) -> Transition:
    if state.status is not JobStatus.RUNNING:
        return ignored(state)
    return fail_over(state, event.at_ms, event.message)


def on_released(state: CoordinatorState, event: SavepointsReleased) -> Transition:
    """Mark savepoints as released: journaled before their files go, so none is restored.

    A savepoint that its owner disposes of is the job's from then on, which deletes it.  A savepoint
    that is still being written cannot be released.  Releases are counted, as the state forgets
    those that are over: a restore that was verified before one is refused.
    """
    released = tuple(
        savepoint
        for savepoint in dict.fromkeys(event.savepoints)
        if _can_be_released(state, savepoint, is_disposal=event.is_disposal)
    )
    if not released:
        return ignored(state)
    after = replace(
        state,
        claimed_savepoints=tuple(dict.fromkeys((*state.claimed_savepoints, *released))),
        releasing_savepoints=(*state.releasing_savepoints, *released),
        num_releases=state.num_releases + 1,
    )
    return Transition(state=after)


def _can_be_released(state: CoordinatorState, savepoint: SavepointId, *, is_disposal: bool) -> bool:
    in_use = state.origin.own_savepoint if state.origin is not None else None
    if savepoint in (in_use, *state.releasing_savepoints):
        return False
    return state.is_free(savepoint) if is_disposal else savepoint in state.claimed_savepoints


def on_discarded(state: CoordinatorState, event: SnapshotsDiscarded) -> Transition:
    after = replace(
        state,
        discarding=tuple(c for c in state.discarding if c.checkpoint_id not in event.checkpoints),
        claimed_savepoints=tuple(
            one for one in state.claimed_savepoints if one not in event.savepoints
        ),
        releasing_savepoints=tuple(
            one for one in state.releasing_savepoints if one not in event.savepoints
        ),
    )
    return ignored(state) if after == state else Transition(state=after)


def fail_over(state: CoordinatorState, at_ms: int, because: str) -> Transition:
    """Restart the job by its strategy, or fail it for good; *because* is recorded with every
    checkpoint that is aborted.

    What is completed is true, so it is FAILING until the last completed checkpoint is committed.
    """
    reason = CheckpointFailureReason.JOB_FAILOVER_REGION
    aborted = _abort_all(state, at_ms, reason, f"the job failed over: {because}")
    history, restart_at_ms = next_restart(state.configuration.restart, state.restarts, at_ms)
    after = replace(aborted.state, restarts=history)
    if restart_at_ms is not None:
        after = replace(after, status=JobStatus.RESTARTING, restart_at_ms=restart_at_ms)
        return replace(aborted, state=after)
    if after.owed is not None:
        return replace(aborted, state=replace(after, status=JobStatus.FAILING))
    ended = end(after, JobStatus.FAILED, at_ms, because, is_final=True)
    return replace(ended, commands=(*aborted.commands, *ended.commands))


def end(
    state: CoordinatorState, status: JobStatus, at_ms: int, because: str, *, is_final: bool
) -> Transition:
    """Abort what is pending; at a final end apply the discard matrix, too.

    What can be resumed keeps what it resumes from, whatever its retention (Flink's
    DefaultCompletedCheckpointStore#shutdown discards at a globally terminal status alone).
    Savepoints are the user's.
    """
    aborted = _abort_all(
        state, at_ms, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND, because
    )
    gone = discarded_at_the_end(state, status) if is_final else ()
    has_lost_base = state.origin is None and any(c.checkpoint_id == state.base for c in gone)
    ended = replace(
        aborted.state,
        status=status,
        restart_at_ms=None,
        base=None if has_lost_base else state.base,
        completed=tuple(c for c in state.completed if c not in gone),
        discarding=(*state.discarding, *gone),
    )
    discards = (DiscardCompleted(checkpoint=c) for c in gone)
    return Transition(state=ended, commands=(*aborted.commands, *discards))


def discarded_at_the_end(
    state: CoordinatorState, status: JobStatus
) -> tuple[CompletedCheckpoint, ...]:
    """The retained checkpoints that go with a final end of that *status*."""
    retention = state.configuration.retention
    return tuple(c for c in state.completed if is_discarded(c.type, retention, status))


_AS_A_CHILD = CheckpointFailureReason.JOB_FAILOVER_REGION  # Not counted: its parent's failure is.


def abort_with_successors(
    state: CoordinatorState,
    pending: PendingCheckpoint,
    at_ms: int,
    reason: CheckpointFailureReason,
    message: str,
) -> Transition:
    """End *pending* for *reason*, and every checkpoint that continues it."""
    place = state.pending.index(pending)
    doomed = state.pending[place:]
    because = f"checkpoint {pending.checkpoint_id}, which it continues, was aborted"
    ended = [_failed(pending, at_ms, reason, message)]
    ended += [_failed(child, at_ms, _AS_A_CHILD, because) for child in doomed[1:]]
    return _without_pending(state, place, ended)


def abort_children(state: CoordinatorState, pending: PendingCheckpoint, message: str) -> Transition:
    """End every checkpoint that continues *pending*, which itself goes on.

    The event has no time, so they are recorded as ended when they began.
    """
    place = state.pending.index(pending) + 1
    children = state.pending[place:]
    ended = [_failed(child, child.triggered_at_ms, _AS_A_CHILD, message) for child in children]
    return _without_pending(state, place, ended)


def _abort_all(
    state: CoordinatorState, at_ms: int, reason: CheckpointFailureReason, message: str
) -> Transition:
    """End everything pending and reject everything queued: periodic scheduling is off.

    CheckpointCoordinatorDeActivator: on when the job is RUNNING, off in any other status.
    """
    ended = [_failed(pending, at_ms, reason, message) for pending in state.pending]
    return _without_pending(reject(state, state.queue, reason), 0, ended)


def reject(
    state: CoordinatorState,
    requests: tuple[CheckpointRequest, ...],
    reason: CheckpointFailureReason,
    message: str = "",
) -> CoordinatorState:
    """Take *requests* from the queue, and keep the reason for owners that ask again."""
    gone = {request.request_id for request in requests}
    rejected = tuple(
        RejectedRequest(request_id=r.request_id, reason=reason, message=message) for r in requests
    )
    return replace(
        state,
        queue=tuple(request for request in state.queue if request.request_id not in gone),
        rejected=(*state.rejected, *rejected)[-REMEMBERED_REJECTIONS:],
    )


def _without_pending(
    state: CoordinatorState, place: int, ended: list[FailedCheckpoint]
) -> Transition:
    """The state without the pending checkpoints from *place* on, which have *ended*."""
    after = replace(
        state,
        pending=state.pending[:place],
        failed=(*state.failed, *ended)[-REMEMBERED_FAILURES:],
    )
    discards = tuple(
        DiscardPending(
            checkpoint_id=pending.checkpoint_id, plan=pending.token, savepoint=pending.savepoint
        )
        for pending in state.pending[place:]
    )
    return Transition(state=after, commands=discards)


def _failed(
    pending: PendingCheckpoint, at_ms: int, reason: CheckpointFailureReason, message: str
) -> FailedCheckpoint:
    return FailedCheckpoint(
        checkpoint_id=pending.checkpoint_id,
        type=pending.type,
        triggered_at_ms=pending.triggered_at_ms,
        failed_at_ms=at_ms,
        reason=reason,
        message=message,
        cause=pending.cause,
        queued_ms=pending.queued_ms,
    )
