"""A request for a checkpoint: may it start now, does it wait, or will it never run?

Flink's CheckpointCoordinator#triggerCheckpoint up to the PendingCheckpoint.  Its ``isTriggering``
guards a procedure of many steps; here a trigger is one journal entry, so only a checkpoint that
ends the job holds back everything behind it.

``records_of_next_epoch`` sizes the epoch of a request that starts, so that its checkpoint lasts
about as long as a target (ADR 9).  Flink's BufferDebloater sizes buffers by what is
consumed in a target time; here the epoch is what is in flight.  The measure is the retained
checkpoints themselves: the records of each, and its time from trigger to completion.  So every
coordinator comes to the same size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus
from sluice.core.decider import (
    CheckpointRequest,
    Decision,
    Limits,
    Rejection,
    Situation,
    decide,
)
from sluice.core.events import (
    CheckpointRequested,
    CheckpointTriggered,
    RequestWithdrawn,
    Transition,
    TriggerFailed,
    ignored,
    refused,
)
from sluice.core.failures import UNKNOWN_CHECKPOINT_ID, CheckpointFailureReason
from sluice.core.lifecycle import fail_over, reject
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import (
    REMEMBERED_REJECTIONS,
    REMEMBERED_TRIGGERS,
    CoordinatorState,
    FailedCheckpoint,
    RejectedRequest,
    UnsuccessfulTrigger,
)
from sluice.core.units import period

PAUSED_POLL_MS = 1_000  # When a host that can wait asks again whether checkpointing is resumed.
EARLY_PART = 10  # A periodic run that comes a tenth of the interval early comes in time.

FIRST_RECORDS = 10_000  # Nothing is measured yet: seconds, whatever the stages do.
LEAST_RECORDS = 1_000  # Below it an epoch is all overhead, and a backlog is never worked off.
MOST_RECORDS = 10**12
MOST_GROWTH = 10  # From one epoch to the next: a small one is mostly overhead.
MOST_SHRINKING = 4  # A pause of the machine must not cut an epoch into many small ones.
MEASURABLE_PART = 2  # The rate is that of an epoch with half of what it might take, or the largest.


class Admission(Enum):
    RUNS = auto()
    WAITS = auto()
    REJECTED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """A request's ``admission``.

    ``after`` is the state with the queue reviewed, ``head`` the request that may start now, and
    ``retry_in_ms`` when the periodic timer is to fire again.
    """

    admission: Admission
    after: CoordinatorState
    head: CheckpointRequest | None = None
    reason: CheckpointFailureReason | None = None
    message: str = ""
    retry_in_ms: int | None = None


def examine(state: CoordinatorState, request: CheckpointRequest, now_ms: int) -> Examination:
    """Ask the CheckpointRequestDecider about *request*, queued or new, at *now_ms*."""
    if state.configuration.unaligned:
        request = replace(request, is_forced=False)  # Unaligned checkpoints may not overlap.
    known = state.rejected_request(request.request_id)
    if known is not None:
        return _rejected(state, known.reason, known.message or "it was rejected while it waited")
    if state.status is not JobStatus.RUNNING:
        is_off = CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN
        not_running = CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
        reason = is_off if request.is_periodic else not_running
        because = f": {state.stopped_because}" if state.stopped_because else ""
        return _rejected(state, reason, f"the job is {state.status.value}{because}")
    held_back = _held_back(state, now_ms) if request.is_periodic and not request.is_forced else None
    if held_back is not None and held_back.reason is not None:
        queued = tuple(r for r in state.queue if r.request_id == request.request_id)
        return replace(held_back, after=reject(state, queued, held_back.reason))
    return _decide(state, request, now_ms)


def on_requested(state: CoordinatorState, event: CheckpointRequested) -> Transition:
    """Review the queue; a request keeps its place in it until its plan is journaled.

    A request that awaits a host is queued even if it could start at once.
    """
    if _is_pending(state, event.request):
        return ignored(state)
    examined = examine(state, event.request, event.at_ms)
    head, after = examined.head, examined.after
    is_kept = head is not None and (head in state.queue or head.awaits_a_host)
    if head is not None and is_kept and head not in after.queue:
        after = replace(after, queue=(head, *after.queue))
    return ignored(state) if after == state else Transition(state=after)


def adopted(state: CoordinatorState, now_ms: int, *, cause: str) -> CheckpointRequest | None:
    """The queued request that a host is to take up at *now_ms*, as its own.

    None where nothing may start, or where the request that may has an owner of its own.
    """
    head = decide(state.queue, _limits(state), _situation(state, now_ms)).run
    return replace(head, cause=cause) if head is not None and head.awaits_a_host else None


def on_triggered(state: CoordinatorState, event: CheckpointTriggered) -> Transition:
    plan, request = event.plan, event.request
    if _is_pending(state, request):
        return ignored(state)
    is_stale = (
        plan.generation != state.generation
        or plan.parent != state.tip
        or plan.origin != (None if state.pending else state.origin)
        or plan.checkpoint_id < state.next_checkpoint_id
        or state.owes_a_restore
    )
    examined = examine(state, request, plan.triggered_at_ms)
    if is_stale or examined.admission is not Admission.RUNS:
        return refused(state)
    queued = next((r for r in state.queue if r.request_id == request.request_id), None)
    since_ms = plan.triggered_at_ms if queued is None else queued.requested_at_ms
    pending = PendingCheckpoint.of(
        plan,
        savepoint_name=request.savepoint_name,
        request_id=request.request_id,
        queued_ms=max(0, plan.triggered_at_ms - since_ms),
    )
    after = replace(
        examined.after,
        pending=(*state.pending, pending),
        ids=state.ids.at_least(plan.checkpoint_id + 1),
        last_triggered_at_ms=plan.triggered_at_ms,
        is_backlog=plan.is_backlog,
        num_unsuccessful_triggers=0,
    )
    return Transition(state=after)


def on_trigger_failed(state: CoordinatorState, event: TriggerFailed) -> Transition:
    """Reject the request, and remember it; an I/O failure counts towards the tolerable ones,
    without an id (CheckpointFailureManager).
    """
    queued = tuple(r for r in state.queue if r.request_id == event.request.request_id)
    count, is_over = state.failure_count.fail(
        UNKNOWN_CHECKPOINT_ID,
        event.reason,
        tolerable=state.tolerable_failed_checkpoints,
        type=event.request.type,
    )
    rejected = reject(state, queued, event.reason, event.message)
    after = replace(
        _refused(rejected, event.request, event.reason, event.message, event.at_ms),
        failure_count=count,
    )
    if is_over and state.status is JobStatus.RUNNING:
        return fail_over(after, event.at_ms, event.message)
    return Transition(state=after)


def on_withdrawn(state: CoordinatorState, event: RequestWithdrawn) -> Transition:
    """Take the request from the queue; who asks again asks anew."""
    left = tuple(r for r in state.queue if r.request_id != event.request.request_id)
    return ignored(state) if left == state.queue else Transition(state=replace(state, queue=left))


def _refused(
    state: CoordinatorState,
    request: CheckpointRequest,
    reason: CheckpointFailureReason,
    message: str,
    at_ms: int,
) -> CoordinatorState:
    trigger = UnsuccessfulTrigger(
        failed_at_ms=at_ms, type=request.type, reason=reason, message=message, cause=request.cause
    )
    return replace(
        state,
        unsuccessful_triggers=(*state.unsuccessful_triggers, trigger)[-REMEMBERED_TRIGGERS:],
        num_unsuccessful_triggers=state.num_unsuccessful_triggers + 1,
    )


def _held_back(state: CoordinatorState, now_ms: int) -> Examination | None:
    """The reason why no periodic checkpoint is due, whatever the queue; None if one may be due."""
    timing = state.timing
    if timing.is_paused:
        by = f" by {timing.changed_by}" if timing.changed_by else ""
        off = CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN
        return replace(
            _rejected(state, off, f"checkpointing is paused{by}; resume it to go on"),
            retry_in_ms=PAUSED_POLL_MS,
        )
    too_soon = CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS
    backlog_ms = state.configuration.interval_during_backlog_ms if state.is_backlog else None
    rest_ms = rest_of_interval_ms(state, backlog_ms, now_ms)
    if rest_ms > 0:
        message = f"a source processes its backlog; its interval lasts {period(rest_ms)} more"
        return replace(_rejected(state, too_soon, message), retry_in_ms=rest_ms)
    interval_ms = timing.interval_ms or 0
    rest_ms = rest_of_interval_ms(state, interval_ms, now_ms)
    if rest_ms > interval_ms // EARLY_PART:
        message = (
            f"the interval was changed to {period(interval_ms)}, and lasts {period(rest_ms)} more"
        )
        return replace(_rejected(state, too_soon, message), retry_in_ms=rest_ms)
    return None


def _decide(state: CoordinatorState, request: CheckpointRequest, now_ms: int) -> Examination:
    decision = decide(state.queue, _limits(state), _situation(state, now_ms), submitted=request)
    head = decision.run
    is_head = head is not None and head.request_id == request.request_id
    queue = decision.queue if head is None or is_head else (head, *decision.queue)
    queued = {r.request_id for r in state.queue}
    after = replace(state, queue=queue)
    for rejection in decision.rejected:
        if rejection.request.request_id in queued:
            after = _rejected_in_the_queue(after, rejection, state, now_ms)
    for rejection in decision.rejected:
        if rejection.request.request_id == request.request_id:
            return _dropped(state, after, rejection.reason, decision)
    admission = Admission.RUNS if is_head else Admission.WAITS
    return Examination(admission=admission, after=after, head=head, message=_why_it_waits(state))


def _rejected_in_the_queue(
    after: CoordinatorState, rejection: Rejection, before: CoordinatorState, now_ms: int
) -> CoordinatorState:
    """Remember it for its owner, who is not here; and for people, if the trigger was refused."""
    request, reason = rejection.request, rejection.reason
    rejected = RejectedRequest(request_id=request.request_id, reason=reason)
    after = replace(after, rejected=(*after.rejected, rejected)[-REMEMBERED_REJECTIONS:])
    if reason is CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS:
        return after
    return _refused(after, request, reason, _why_dropped(before, reason), now_ms)


def _limits(state: CoordinatorState) -> Limits:
    configuration = state.configuration
    return Limits(
        max_concurrent=configuration.max_concurrent,
        min_pause_ms=state.min_pause_ms,
        max_queued=configuration.max_queued,
    )


def _situation(state: CoordinatorState, now_ms: int) -> Situation:
    return Situation(
        is_triggering=bool(state.pending) and state.pending[-1].ends_the_job,
        pending=len(state.pending),
        cleaning=len(state.discarding),
        last_completed_at_ms=_past(state.last_completed_at_ms, now_ms),
        now_ms=now_ms,
    )


def _dropped(
    state: CoordinatorState,
    after: CoordinatorState,
    reason: CheckpointFailureReason,
    decision: Decision,
) -> Examination:
    retry_in_ms, message = None, _why_dropped(state, reason)
    if reason is CheckpointFailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS:
        retry_in_ms = decision.reschedule_in_ms
        message = f"min_pause lasts {period(retry_in_ms or 0)} more"
    dropped = _rejected(after, reason, message)
    return replace(dropped, head=decision.run, retry_in_ms=retry_in_ms)


def _why_dropped(state: CoordinatorState, reason: CheckpointFailureReason) -> str:
    if reason is CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS:
        return f"{len(state.queue)} requests are queued"
    return "it waited too long"


def _why_it_waits(state: CoordinatorState) -> str:
    if state.pending:
        return f"checkpoint {state.pending[-1].checkpoint_id} is still pending"
    if state.discarding:
        return f"{len(state.discarding)} subsumed checkpoints are still being deleted"
    return "another request is before it"


def _rejected(
    state: CoordinatorState, reason: CheckpointFailureReason, message: str
) -> Examination:
    return Examination(admission=Admission.REJECTED, after=state, reason=reason, message=message)


def _is_pending(state: CoordinatorState, request: CheckpointRequest) -> bool:
    """Whether the request is a pending checkpoint already, which its owner does not know yet."""
    return any(pending.request_id == request.request_id for pending in state.pending)


def rest_of_interval_ms(state: CoordinatorState, interval_ms: int | None, now_ms: int) -> int:
    """The rest of an interval since the last trigger; 0 if it is over, or there is none."""
    last_ms = _past(state.last_triggered_at_ms, now_ms)
    return 0 if interval_ms is None or last_ms is None else max(0, last_ms + interval_ms - now_ms)


def _past(at_ms: int | None, now_ms: int) -> int | None:
    """A moment of another coordinator's clock; None in our future, which must not hold us back."""
    return at_ms if at_ms is not None and at_ms <= now_ms else None


def records_of_next_epoch(state: CoordinatorState) -> int | None:
    """The most that the next epoch takes from all sources together; None if it takes all there is.

    It follows the last epochs in their order: each that had enough to do tells the size of the
    next, and each that expired had too many, which halves it.  What earlier ones told is over then.
    As long as the job knows of any that expired, half of the time that it had is the target where
    none is declared: all that is left would expire again.
    """
    expired = [
        failed
        for failed in state.failed
        if failed.reason is CheckpointFailureReason.CHECKPOINT_EXPIRED
    ]
    target_ms = state.configuration.target_epoch_ms
    if target_ms is None:
        if not expired:
            return None
        target_ms = min(failed.failed_at_ms - failed.triggered_at_ms for failed in expired) // 2
    records, most = FIRST_RECORDS, 0
    epochs: list[CompletedCheckpoint | FailedCheckpoint] = [*state.completed, *expired]
    for epoch in sorted(epochs, key=lambda epoch: epoch.checkpoint_id):
        if isinstance(epoch, FailedCheckpoint):
            records = _bounded(records // 2)
        elif _is_measurable(epoch, min(most, records)):
            records = _bounded(_sized(epoch, target_ms))
            most = max(most, epoch.records)
    return records


def _is_measurable(epoch: CompletedCheckpoint, enough: int) -> bool:
    """Whether it had *enough* to do; a savepoint copies files, and few records are all overhead."""
    return (
        epoch.records > 0
        and not epoch.type.is_savepoint
        and epoch.records * MEASURABLE_PART >= enough
    )


def _bounded(records: int) -> int:
    return min(max(records, LEAST_RECORDS), MOST_RECORDS)


def _sized(epoch: CompletedCheckpoint, target_ms: int) -> int:
    duration_ms = max(1, epoch.completed_at_ms - epoch.triggered_at_ms)
    sized = epoch.records * target_ms // duration_ms
    return min(max(sized, epoch.records // MOST_SHRINKING), epoch.records * MOST_GROWTH)
