"""What became of a request that a person made: waiting, pending, completed, failed or dropped."""

from __future__ import annotations

from enum import Enum

import msgspec

from sluice.core.ids import CheckpointId
from sluice.core.messages import CheckpointTriggered
from sluice.core.state import CoordinatorState
from sluice.job.job import Job
from sluice.statistics.checkpoints import CheckpointStatus
from sluice.views.statistics import details

LOOKS_BACK = 60  # Journal entries: about 15 checkpoints since it was made.


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


def request_progress(
    job: Job, request_id: str, *, checkpoint: int | None = None
) -> RequestProgress:
    """How far the request is.  *checkpoint* is what it became, where that is known already."""
    state = job.state()
    queued = _waiting(state, request_id, job.clock())
    if queued is not None:
        return queued
    reason = state.rejection(request_id)
    if reason is not None:
        status = RequestStatus.REJECTED
        return RequestProgress(request=request_id, status=status, reason=reason.value)
    pending = next((one for one in state.pending if one.request_id == request_id), None)
    found = pending.checkpoint_id if pending is not None else checkpoint
    became = _triggered(job, request_id) if found is None else found
    if became is None:
        return RequestProgress(request=request_id, status=RequestStatus.UNKNOWN)
    return _of_checkpoint(job, request_id, CheckpointId(became))


def last_host(state: CoordinatorState) -> LastHost | None:
    """What drove the newest checkpoint that the state knows."""
    known = [(one.checkpoint_id, one.triggered_at_ms, one.cause) for one in state.failed]
    known += [(one.checkpoint_id, one.triggered_at_ms, one.cause) for one in state.completed]
    known += [(one.checkpoint_id, one.triggered_at_ms, one.cause) for one in state.pending]
    if not known:
        return None
    checkpoint_id, triggered_at_ms, cause = max(known)
    return LastHost(cause=cause, checkpoint=checkpoint_id, triggered_at_ms=triggered_at_ms)


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
    for _, entry in reversed([*job.journal.numbered(LOOKS_BACK)]):
        event = entry.event
        if isinstance(event, CheckpointTriggered) and event.request.request_id == request_id:
            return event.plan.checkpoint_id
    return None


def _of_checkpoint(job: Job, request_id: str, checkpoint_id: CheckpointId) -> RequestProgress:
    told = details(job, checkpoint_id).checkpoint
    # Read later: what the statistics take for completed has completed in this state, too.
    retained = job.state().completed_checkpoint(checkpoint_id)
    is_published = retained is None or retained.is_committed
    status = {
        CheckpointStatus.IN_PROGRESS: RequestStatus.IN_PROGRESS,
        CheckpointStatus.FAILED: RequestStatus.FAILED,
        CheckpointStatus.COMPLETED: (
            RequestStatus.COMPLETED if is_published else RequestStatus.IN_PROGRESS
        ),
    }[told.status]
    return RequestProgress(
        request=request_id,
        status=status,
        checkpoint=checkpoint_id,
        savepoint=None if retained is None else retained.savepoint_name,
        reason=told.failure_reason,
        message=told.failure_message,
    )
