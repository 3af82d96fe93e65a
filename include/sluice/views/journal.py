"""What a job's coordinator did: the entries of its journal, as people read them."""

from __future__ import annotations

import msgspec

from sluice.core.messages import (
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
from sluice.job.job import Job
from sluice.protocol.records import JournalEntry


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
