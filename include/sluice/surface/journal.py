"""The entries of a job's journal, and what became of a request, as people read them.

A request that a person made is waiting, pending, completed, failed or dropped; one for a savepoint
is also known by the ``cause`` under which it was triggered.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from sluice.core.events import (
    AcksReceived,
    AlignmentTimedOut,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointRequested,
    CheckpointTriggered,
    DeclineReceived,
    Event,
    HooksRestored,
    JobFailed,
    JobRestored,
    JobStopped,
    SavepointsReleased,
    SnapshotsDiscarded,
    TablesRecovered,
    TriggerFailed,
)
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.figures.record import CheckpointStatus
from sluice.job.job import Job
from sluice.protocol.records import JournalEntry
from sluice.surface.checkpoints import details, overview

MAX_JOURNAL_ENTRIES = 60  # In which a request is searched for: about 15 checkpoints.


class JournalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One entry.  ``generation`` and ``status`` are the job's after it; ``at_ms`` is None for an
    event that does not say when it happened; ``cause``: who asked for it.
    """

    seq: int
    event: str
    generation: int
    status: str
    checkpoint: int | None
    at_ms: int | None
    cause: str | None = None
    reason: str | None = None
    message: str | None = None


class JournalPage(msgspec.Struct, frozen=True, kw_only=True):
    """From the newest entry to the oldest.  ``next``: the older page is that *before* this one."""

    entries: tuple[JournalRecord, ...]
    next: int | None


class RequestStatus(Enum):
    WAITING = "WAITING"  # For a host, or behind another request.
    IN_PROGRESS = "IN_PROGRESS"  # Its checkpoint is pending, or not committed yet.
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"  # Its checkpoint was aborted.
    REJECTED = "REJECTED"  # It was dropped before there was a checkpoint.
    UNKNOWN = "UNKNOWN"  # So long ago that the journal does not tell.


class RequestProgress(msgspec.Struct, frozen=True, kw_only=True):
    """``checkpoint`` is the one that it became; ``reason`` says why it failed or was dropped."""

    request: str
    status: RequestStatus
    checkpoint: int | None = None
    savepoint: str | None = None
    reason: str | None = None
    message: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.status not in (RequestStatus.WAITING, RequestStatus.IN_PROGRESS)


class LastHost(msgspec.Struct, frozen=True, kw_only=True):
    """What drove the job's newest checkpoint: ``airflow:dag/run``, or ``sluice run``."""

    cause: str
    checkpoint: int
    triggered_at_ms: int


class SavepointOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """``location`` of one that completed, ``failure`` of one that was aborted, else neither."""

    checkpoint_id: int
    location: str | None = None
    failure: str | None = None


def journal_records(job: Job, last: int) -> list[JournalRecord]:
    """The newest *last* entries, oldest first."""
    return [_record(seq, entry) for seq, entry in job.journal.numbered(last)]


def journal_page(job: Job, *, limit: int, before: int | None = None) -> JournalPage:
    """The newest *limit* entries with a number below *before*; a LIST, and a GET for each."""
    found = job.journal.numbered(limit + 1, before=before)
    shown = found[::-1][:limit]
    return JournalPage(
        entries=tuple(_record(seq, entry) for seq, entry in shown),
        next=shown[-1][0] if len(found) > limit else None,
    )


def request_progress(
    job: Job, request_id: str, *, checkpoint: int | None = None
) -> RequestProgress:
    """How far the request is.  *checkpoint* is the one that it became, if that is known already."""
    state = job.state()
    queued = _waiting(state, request_id, job.clock())
    if queued is not None:
        return queued
    reason = state.rejection(request_id)
    if reason is not None:
        status = RequestStatus.REJECTED
        return RequestProgress(request=request_id, status=status, reason=reason.value)
    pending = next((one for one in state.pending if one.request_id == request_id), None)
    if pending is not None:
        checkpoint = pending.checkpoint_id
    elif checkpoint is None:
        checkpoint = _triggered(job, request_id)
    if checkpoint is None:
        return RequestProgress(request=request_id, status=RequestStatus.UNKNOWN)
    return _of_checkpoint(job, request_id, CheckpointId(checkpoint))


def savepoint_outcome(job: Job, cause: str) -> SavepointOutcome | None:
    """The outcome of the newest checkpoint of that *cause*; None if none is in the history."""
    newest = next((stats for stats in overview(job).history if stats.cause == cause), None)
    if newest is None:
        return None
    if newest.status is CheckpointStatus.FAILED:
        failure = ": ".join(filter(None, (newest.failure_reason, newest.failure_message)))
        return SavepointOutcome(checkpoint_id=newest.id, failure=failure)
    if newest.status is CheckpointStatus.COMPLETED and newest.savepoint is not None:
        location = f"{job.store.root}/{job.paths.savepoint(newest.savepoint)}"
        return SavepointOutcome(checkpoint_id=newest.id, location=location)
    return SavepointOutcome(checkpoint_id=newest.id)


def last_host(state: CoordinatorState) -> LastHost | None:
    """The host that triggered the newest checkpoint that the state knows."""
    known = [(one.checkpoint_id, one.triggered_at_ms, one.cause) for one in state.failed]
    known += [(one.checkpoint_id, one.triggered_at_ms, one.cause) for one in state.completed]
    known += [(one.checkpoint_id, one.triggered_at_ms, one.cause) for one in state.pending]
    if not known:
        return None
    checkpoint_id, triggered_at_ms, cause = max(known)
    return LastHost(cause=cause, checkpoint=checkpoint_id, triggered_at_ms=triggered_at_ms)


def _record(seq: int, entry: JournalEntry) -> JournalRecord:
    event = entry.event
    return JournalRecord(
        seq=seq,
        event=type(event).__name__,
        generation=entry.state.generation,
        status=entry.state.status.value,
        checkpoint=_checkpoint_of(event),
        at_ms=_time_of(event),
        cause=_cause_of(event),
        reason=event.reason.value if isinstance(event, CheckpointFailed | TriggerFailed) else None,
        message=_message_of(event),
    )


def _checkpoint_of(event: Event) -> int | None:
    match event:
        case CheckpointTriggered():
            return event.plan.checkpoint_id
        case DeclineReceived():
            return event.decline.checkpoint_id
        case (
            AttemptStarted() | AlignmentTimedOut() | CheckpointCompleted() | CheckpointCommitted()
            | CheckpointFailed() | JobRestored()
        ):  # fmt: skip
            return event.checkpoint_id
        case _:
            return None


def _time_of(event: Event) -> int | None:
    match event:
        case CheckpointTriggered():
            return event.plan.triggered_at_ms
        case (
            AttemptStarted() | AcksReceived() | SavepointsReleased() | SnapshotsDiscarded()
            | HooksRestored() | TablesRecovered()
        ):  # fmt: skip
            return None
        case _:
            return event.at_ms


def _cause_of(event: Event) -> str | None:
    match event:
        case CheckpointTriggered() | CheckpointRequested() | TriggerFailed():
            return event.request.cause or None
        case JobRestored():
            return event.cause or None
        case _:
            return None


def _message_of(event: Event) -> str | None:
    match event:
        case DeclineReceived():
            return event.decline.message
        case CheckpointFailed() | TriggerFailed() | JobFailed() | JobRestored() | JobStopped():
            return event.message or None
        case AlignmentTimedOut():
            return f"overtaken: {', '.join(event.stages)}"
        case AttemptStarted():
            return f"stage {event.stage} runs again, attempt {event.attempt}"
        case _:
            return None


def _waiting(state: CoordinatorState, request_id: str, now_ms: int) -> RequestProgress | None:
    request = next((one for one in state.queue if one.request_id == request_id), None)
    if request is None:
        return None
    if request.has_expired(now_ms):
        return RequestProgress(
            request=request_id,
            status=RequestStatus.REJECTED,
            savepoint=request.savepoint_name,
            reason="CHECKPOINT_EXPIRED",
            message="nothing that drives the job took it up in time",
        )
    return RequestProgress(
        request=request_id, status=RequestStatus.WAITING, savepoint=request.savepoint_name
    )


def _triggered(job: Job, request_id: str) -> int | None:
    for _, entry in reversed([*job.journal.numbered(MAX_JOURNAL_ENTRIES)]):
        event = entry.event
        if isinstance(event, CheckpointTriggered) and event.request.request_id == request_id:
            return event.plan.checkpoint_id
    return None


def _of_checkpoint(job: Job, request_id: str, checkpoint_id: CheckpointId) -> RequestProgress:
    stats = details(job, checkpoint_id).checkpoint
    # Loaded later than the statistics: a checkpoint that is completed there is so here, too.
    retained = job.state().completed_checkpoint(checkpoint_id)
    is_published = retained is None or retained.is_committed
    status = {
        CheckpointStatus.IN_PROGRESS: RequestStatus.IN_PROGRESS,
        CheckpointStatus.FAILED: RequestStatus.FAILED,
        CheckpointStatus.COMPLETED: (
            RequestStatus.COMPLETED if is_published else RequestStatus.IN_PROGRESS
        ),
    }[stats.status]
    return RequestProgress(
        request=request_id,
        status=status,
        checkpoint=checkpoint_id,
        savepoint=None if retained is None else retained.savepoint_name,
        reason=stats.failure_reason,
        message=stats.failure_message,
    )
