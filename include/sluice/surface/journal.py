"""The entries of a job's journal, and what became of a request, as people read them.

A request that a person made is waiting, pending, completed, failed or dropped; one for a savepoint
is also known by the ``cause`` under which it was triggered.

``repair_lines`` say what is lost if damaged entries are dropped.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from sluice.coordinator.repair import RepairPlan
from sluice.core.configuration import JobStatus
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
    JobSubmitted,
    JournalRepaired,
    RequestWithdrawn,
    RootAdopted,
    SavepointsReleased,
    SnapshotsDiscarded,
    TablesRecovered,
    TriggerFailed,
)
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableDecision
from sluice.figures.record import CheckpointStatus
from sluice.job.job import Job
from sluice.protocol.records import JournalEntry
from sluice.store.journal import DamagedEntry, JournalInspection
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
    """Entries from the newest to the oldest; ``next``: the older page is that *before* this one."""

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
    """The host that drove the job's newest checkpoint: ``airflow:dag/run``, or ``sluice run``."""

    cause: str
    checkpoint: int
    triggered_at_ms: int


class SavepointOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """``location`` of one that completed, ``failure`` of one that was aborted, else neither."""

    checkpoint_id: int
    location: str | None = None
    failure: str | None = None


class DamagedEntryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``checksum`` is that of the bytes as they are."""

    seq: int
    size_bytes: int
    checksum: str
    message: str


class RepairRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The repair of the journal that is planned, or was done if it is ``repaired``.

    ``continues`` is the entry before the ``damaged`` ones, ``base`` the checkpoint from which the
    job goes on, under ``generation``.  The checkpoint ``completed`` is completed again.  Records of
    the ``aborted`` ones, and of ``untold`` ones, whose triggers are in the lost entries, are read
    again.  If the newest entry can be read, all fields are None or empty.
    """

    repaired: bool
    damaged: tuple[DamagedEntryRecord, ...] = ()
    continues: int | None = None
    generation: int | None = None
    base: int | None = None
    completed: int | None = None
    aborted: tuple[int, ...] = ()
    untold: tuple[int, ...] = ()
    older_damaged: tuple[DamagedEntryRecord, ...] = ()
    missing: tuple[int, ...] = ()


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
    """The progress of a request; *checkpoint* is the one that it became, if that is known."""
    state = job.state()
    queued = _waiting(state, request_id, job.now_ms())
    if queued is not None:
        return queued
    rejected = state.rejected_request(request_id)
    if rejected is not None:
        return RequestProgress(
            request=request_id,
            status=RequestStatus.REJECTED,
            reason=rejected.reason.value,
            message=rejected.message or None,
        )
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
        location = f"{job.store.root}/{job.names.savepoint(newest.savepoint)}"
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
        case CheckpointTriggered() | CheckpointRequested() | TriggerFailed() | RequestWithdrawn():
            return event.request.cause or None
        case JobRestored():
            return event.cause or None
        case _:
            return None


def _message_of(event: Event) -> str | None:
    match event:
        case DeclineReceived():
            return event.decline.message
        case (
            CheckpointFailed() | TriggerFailed() | JobFailed() | JobStopped() | JournalRepaired()
        ):  # fmt: skip
            return event.message or None
        case JobRestored():
            taken = () if event.tables is None else _taken_over(event.tables)
            return "; ".join(filter(None, (event.message, *taken))) or None
        case JobSubmitted():
            return "; ".join(_taken_over(event.tables)) or None
        case AlignmentTimedOut():
            return f"overtaken: {', '.join(event.stages)}"
        case RootAdopted():
            return f"the root is {event.place} now"
        case AttemptStarted():
            return f"stage {event.stage} runs again, attempt {event.attempt}"
        case _:
            return None


def _taken_over(tables: TableDecision) -> tuple[str, ...]:
    return tuple(
        f"table {sink!r} was that of life {', '.join(map(repr, lives))} before"
        for sink, lives in sorted(tables.replaces.items())
    )


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


def repair_record(job: Job, planned: RepairPlan | None, *, is_repaired: bool) -> RepairRecord:
    if planned is None:
        found = job.journal.inspect()
        older = tuple(_damaged_record(one) for one in found.damaged)
        return RepairRecord(repaired=False, older_damaged=older, missing=found.missing)
    return RepairRecord(
        repaired=is_repaired,
        damaged=tuple(_damaged_record(one) for one in planned.damage.entries),
        continues=planned.damage.before.seq,
        generation=planned.generation,
        base=planned.base,
        completed=None if planned.completed is None else planned.completed.checkpoint_id,
        aborted=planned.aborted,
        untold=planned.untold,
    )


def repair_lines(job: Job, planned: RepairPlan | None, *, is_repaired: bool) -> list[str]:
    """The damage, what is lost without it, and how the job goes on, a sentence a line."""
    uid = job.pipeline.uid
    if planned is None:
        return history_lines(job.journal.inspect()) or [f"the journal of {uid} is whole"]
    before = planned.damage.before
    lines = [one.why for one in planned.damage.entries]
    lines.append(
        f"the newest entry that can be read is {before.seq}, "
        f"{type(planned.damage.event).__name__}: {before.state.status.value}, "
        f"generation {before.state.generation}"
    )
    lines.append(
        f"lost: what {planned.damage.which} recorded, such as the begin or the end of a "
        "checkpoint, a restore, a stop, a request, changed times"
    )
    lines += _checkpoints_of(planned)
    lines.append(_continuation(planned))
    if is_repaired:
        lines.append(_afterwards(uid, before.state.status))
    else:
        lines.append(f"nothing was changed; 'sluice journal repair {uid} --yes' does it")
    return lines


def history_lines(found: JournalInspection) -> list[str]:
    """The damage of entries before the newest: the state does not depend on them."""
    lines = [
        f"{one.why}; nothing is lost but this line of the history, and it goes when the journal is "
        "truncated"
        for one in found.damaged
    ]
    if found.missing:
        numbers = ", ".join(map(str, found.missing))
        which = f"entry {numbers} is" if len(found.missing) == 1 else f"entries {numbers} are"
        lines.append(
            f"{which} missing between others: the history begins behind, and the job needs no more"
        )
    return lines


def _checkpoints_of(planned: RepairPlan) -> list[str]:
    lines: list[str] = []
    if planned.completed is not None:
        lines.append(
            f"checkpoint {planned.completed.checkpoint_id} was completed by it, and is again: "
            "nothing of it is lost"
        )
    for one in planned.aborted:
        may_be = (
            ", which may have been completed, as its _metadata is there, but nothing that follows "
            "a completion"
            if one in planned.unproven
            else ""
        )
        lines.append(f"checkpoint {one} is aborted{may_be}; its records are read again")
    lines += [
        f"checkpoint {one} was triggered by it, and is given up; its records are read again"
        for one in planned.untold
    ]
    if planned.completed is None and planned.owed is not None:
        lines.append(f"the commit of checkpoint {planned.owed.checkpoint_id} is repeated")
    return lines


def _continuation(planned: RepairPlan) -> str:
    base = "the empty state" if planned.base is None else f"checkpoint {planned.base}"
    status, generation = planned.state.status, planned.generation
    if planned.state.origin is not None and planned.completed is None:
        base = str(planned.state.origin)
    if status is JobStatus.RUNNING:
        return (
            f"the job restarts from {base} under generation {generation + 1}; tables that show "
            "more are rolled back"
        )
    return f"the job is {status.value} as before, under generation {generation}, at {base}"


def _afterwards(uid: str, status: JobStatus) -> str:
    if status in (JobStatus.RUNNING, JobStatus.RESTARTING):
        return f"the journal is repaired; the watchdog restarts the job, or 'sluice run {uid}'"
    return f"the journal is repaired; look at the job with 'sluice checkpoints list {uid}'"


def _damaged_record(entry: DamagedEntry) -> DamagedEntryRecord:
    return DamagedEntryRecord(
        seq=entry.seq, size_bytes=entry.size_bytes, checksum=entry.checksum, message=entry.why
    )
