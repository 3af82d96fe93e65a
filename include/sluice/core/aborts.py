"""How checkpoints and requests end without completing.

The pending checkpoints are a chain, so an aborted one takes along those that continue it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from sluice.core.decider import CheckpointRequest
from sluice.core.messages import Command, DiscardPending
from sluice.core.pending import PendingCheckpoint
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import (
    REMEMBERED_FAILURES,
    REMEMBERED_REJECTIONS,
    CoordinatorState,
    FailedCheckpoint,
    RejectedRequest,
)

Aborted: TypeAlias = tuple[CoordinatorState, tuple[Command, ...]]
_AS_A_CHILD = CheckpointFailureReason.JOB_FAILOVER_REGION  # Not counted: its parent's failure is.


def abort(
    state: CoordinatorState,
    pending: PendingCheckpoint,
    at_ms: int,
    reason: CheckpointFailureReason,
    message: str,
) -> Aborted:
    """End *pending* for *reason*, and every checkpoint that continues it."""
    place = state.pending.index(pending)
    doomed = state.pending[place:]
    because = f"checkpoint {pending.checkpoint_id}, which it continues, was aborted"
    ended = [_failed(pending, at_ms, reason, message)]
    ended += [_failed(child, at_ms, _AS_A_CHILD, because) for child in doomed[1:]]
    return _end(state, place, ended)


def abort_children(state: CoordinatorState, pending: PendingCheckpoint, message: str) -> Aborted:
    """End every checkpoint that continues *pending*, which itself goes on.

    The event has no time, so they are recorded as ended when they began.
    """
    place = state.pending.index(pending) + 1
    children = state.pending[place:]
    ended = [_failed(child, child.triggered_at_ms, _AS_A_CHILD, message) for child in children]
    return _end(state, place, ended)


def abort_all(
    state: CoordinatorState, at_ms: int, reason: CheckpointFailureReason, message: str
) -> Aborted:
    """End everything pending and reject everything queued: periodic scheduling is off.

    CheckpointCoordinatorDeActivator: on when the job is RUNNING, off in any other status.
    """
    ended = [_failed(pending, at_ms, reason, message) for pending in state.pending]
    return _end(reject(state, state.queue, reason), 0, ended)


def reject(
    state: CoordinatorState,
    requests: tuple[CheckpointRequest, ...],
    reason: CheckpointFailureReason,
) -> CoordinatorState:
    """Take *requests* from the queue, and keep the reason for owners that ask again."""
    gone = {request.request_id for request in requests}
    rejected = tuple(RejectedRequest(request_id=r.request_id, reason=reason) for r in requests)
    return replace(
        state,
        queue=tuple(request for request in state.queue if request.request_id not in gone),
        rejected=(*state.rejected, *rejected)[-REMEMBERED_REJECTIONS:],
    )


def _end(state: CoordinatorState, place: int, ended: list[FailedCheckpoint]) -> Aborted:
    after = replace(
        state,
        pending=state.pending[:place],
        failed=(*state.failed, *ended)[-REMEMBERED_FAILURES:],
    )
    return after, tuple(DiscardPending(checkpoint_id=one.checkpoint_id) for one in ended)


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
    )
