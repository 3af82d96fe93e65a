"""Whether a checkpoint request runs now, waits or is dropped (Flink's CheckpointRequestDecider).

Pure: the queue goes in and comes out.  A request leaves the queue exactly once, to run or rejected
with a reason for its owner.  One rule is not Flink's: the owner of a queued request may be dead, so
a request that has waited past its ``expires_at_ms`` is rejected at the next decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sluice.core.configuration import MAX_QUEUED_REQUESTS, CheckpointType
from sluice.core.failures import CheckpointFailureReason
from sluice.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """A request for a checkpoint or a savepoint (Flink's CheckpointTriggerRequest).

    A forced one ignores the limit of concurrent checkpoints and the pause between them.  A full
    one shares no file with those before it.  An ``is_canonical`` savepoint has each subtask's state
    merged to one sorted run; a native one has the files as they are.

    A request that ``awaits_a_host`` came from a command, a page or REST, where no stage can run.
    The next host of the job that asks for a checkpoint takes it up instead of its own.  Its
    checkpoint reads ``again`` what these words choose of replaceable input, and nothing else.
    """

    request_id: str
    type: CheckpointType = CheckpointType.CHECKPOINT
    is_periodic: bool = True
    is_forced: bool = False
    is_full: bool = False
    requested_at_ms: int
    expires_at_ms: int | None = None  # None waits for ever.
    savepoint_name: str | None = None
    is_canonical: bool = False
    cause: str = ""
    awaits_a_host: bool = False
    again: tuple[str, ...] = ()

    def has_expired(self, now_ms: int) -> bool:
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_concurrent: int = 1
    min_pause_ms: int = 0
    max_queued: int = MAX_QUEUED_REQUESTS

    def __post_init__(self) -> None:
        require(self.max_concurrent >= 1, "one checkpoint or more is pending at once")
        require(self.max_queued >= 1, "one request or more may wait")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The coordinator's load: ``pending`` checkpoints, snapshots that it is ``cleaning`` up."""

    is_triggering: bool = False
    pending: int = 0
    cleaning: int = 0
    last_completed_at_ms: int | None = None
    now_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    request: CheckpointRequest
    reason: CheckpointFailureReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``queue`` is in rank order; ``reschedule_in_ms`` re-arms the periodic timer after a pause."""

    queue: tuple[CheckpointRequest, ...]
    run: CheckpointRequest | None = None
    rejected: tuple[Rejection, ...] = ()
    reschedule_in_ms: int | None = None


def decide(
    queue: Sequence[CheckpointRequest],
    limits: Limits,
    situation: Situation,
    submitted: CheckpointRequest | None = None,
) -> Decision:
    """Take *submitted* into the queue, if any, and choose the request to run now, if any.

    *queue* is that of the previous decision.  A request that it holds already is not queued twice:
    to submit it again is to ask again.
    """
    ranked = sorted(queue, key=_rank)
    now_ms = situation.now_ms
    waiting = tuple(request for request in ranked if not request.has_expired(now_ms))
    expired = tuple(_expired(request) for request in ranked if request.has_expired(now_ms))
    if submitted is None or any(known.request_id == submitted.request_id for known in queue):
        return _after(expired, _choose(waiting, limits, situation))
    with_newcomer = tuple(sorted((*waiting, submitted), key=_rank))
    if len(waiting) < limits.max_queued:
        return _after(expired, _choose(with_newcomer, limits, situation))
    if not waiting[-1].is_periodic:
        # The lowest ranked is a person's: the newcomer goes, whatever its rank, and none is chosen.
        return _after((*expired, _too_many(submitted)), Decision(queue=waiting))
    *kept, lowest = with_newcomer
    return _after((*expired, _too_many(lowest)), _choose(tuple(kept), limits, situation))


def _rank(request: CheckpointRequest) -> tuple[bool, bool, bool, int]:
    """Savepoints, then forced, then people's, then older ones go first.

    Sorting is stable: of equals, the first to arrive goes first.
    """
    return (
        not request.type.is_savepoint,
        not request.is_forced,
        request.is_periodic,
        request.requested_at_ms,
    )


def _expired(request: CheckpointRequest) -> Rejection:
    return Rejection(request=request, reason=CheckpointFailureReason.CHECKPOINT_EXPIRED)


def _too_many(request: CheckpointRequest) -> Rejection:
    return Rejection(request=request, reason=CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS)


def _after(earlier: tuple[Rejection, ...], decision: Decision) -> Decision:
    return replace(decision, rejected=(*earlier, *decision.rejected))


def _choose(queue: tuple[CheckpointRequest, ...], limits: Limits, situation: Situation) -> Decision:
    is_held_back = situation.is_triggering or situation.cleaning > limits.max_concurrent
    if is_held_back or not queue:
        return Decision(queue=queue)
    first, rest = queue[0], queue[1:]
    if first.is_forced:
        return Decision(queue=rest, run=first)
    if situation.pending >= limits.max_concurrent:
        return Decision(queue=queue)
    last_ms = situation.last_completed_at_ms
    pause_ms = 0 if last_ms is None else last_ms + limits.min_pause_ms - situation.now_ms
    if first.is_periodic and pause_ms > 0:
        dropped = Rejection(
            request=first, reason=CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
        )
        return Decision(queue=rest, rejected=(dropped,), reschedule_in_ms=pause_ms)
    return Decision(queue=rest, run=first)
