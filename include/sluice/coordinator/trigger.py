"""Trigger: decide, resolve the barrier, write the plan, journal it.  The checkpoint is pending."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from typing import TypeAlias

from sluice.coordinator.duties import resume
from sluice.coordinator.planning import (
    Barriers,
    NoPlan,
    call_pre_barrier_hooks,
    make_plan,
    pin_outside,
)
from sluice.coordinator.record import record
from sluice.coordinator.requests import timeout_ms
from sluice.coordinator.restore_plan import fail_over_if_damaged
from sluice.coordinator.savepoints import require_free_name
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.decider import CheckpointRequest
from sluice.core.events import CheckpointRequested, CheckpointTriggered, TriggerFailed, Verdict
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan, journaled
from sluice.core.requests import Admission, Examination, adopted, examine
from sluice.core.state import CoordinatorState
from sluice.errors import ProtocolViolation, RestoreError, SluiceError, StoreUnavailable
from sluice.job.job import Job
from sluice.protocol.records import encode_plan
from sluice.store.journal import Head
from sluice.store.object_store import Created

log = logging.getLogger(__name__)

MAX_ORPHANED_PLANS = 1_000  # Plans of coordinators that died before they journaled them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Triggered:
    """``is_adopted``: the checkpoint is that of a queued request, which awaited a host."""

    plan: CheckpointPlan
    is_adopted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The request waits; ask again with the same ``request_id``."""

    request_id: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTriggered:
    """The request was dropped; ``reason`` is None when there was nothing to do.

    ``retry_in_ms`` says when a periodic one may be repeated.
    """

    reason: CheckpointFailureReason | None
    message: str
    retry_in_ms: int | None = None


TriggerOutcome: TypeAlias = Triggered | Queued | NotTriggered


def trigger(
    job: Job,
    *,
    type: CheckpointType = CheckpointType.CHECKPOINT,  # noqa: A002 - Flink's word
    cause: str = "periodic",
    savepoint_name: str | None = None,
    is_canonical: bool = False,
    is_periodic: bool = True,
    is_forced: bool = False,
    is_full: bool = False,
    request_id: str | None = None,
    barriers: Barriers | None = None,
) -> TriggerOutcome:
    """Start a checkpoint, or return why not: what can normally happen is no error.

    A request keeps its *request_id*: asking again keeps it in the queue, and finds the checkpoint
    that it became.  A queued request that is not asked for again before the checkpoint timeout is
    dropped.  *barriers* are those that were decided elsewhere.

    A caller that asks for a checkpoint can also run one: a queued request that awaits a host, and
    is due, is taken up instead of this one.

    Raises:
        ConfigurationError: a source cannot be read as declared, or the savepoint exists.
        RestoreError: the checkpoint that the epoch continues is gone.
    """
    now_ms, head = job.clock(), job.journal.load()
    request = CheckpointRequest(
        request_id=request_id or uuid.uuid4().hex,
        type=type,
        is_periodic=is_periodic,
        is_forced=is_forced,
        is_full=is_full,
        requested_at_ms=now_ms,
        expires_at_ms=now_ms + timeout_ms(job, head.state),
        savepoint_name=savepoint_name,
        is_canonical=is_canonical,
        cause=cause,
    )
    barriers = barriers or {}
    if not type.is_savepoint and any(queued.awaits_a_host for queued in head.state.queue):
        taken_up = _adopt(job, head, request, barriers)
        if taken_up is not None:
            return taken_up
        head = job.journal.load()
    return _ask(job, head, request, barriers)


def take_up(job: Job, *, cause: str) -> Triggered | None:
    """Start the checkpoint of a queued request that awaits a host, and ask for no other one.

    None if none is due.  The errors are those of ``trigger``.
    """
    own = CheckpointRequest(request_id=cause, requested_at_ms=job.clock(), cause=cause)
    return _adopt(job, job.journal.load(), own, {})


def _adopt(job: Job, head: Head, own: CheckpointRequest, barriers: Barriers) -> Triggered | None:
    """Start the checkpoint of the queued request that awaits a host, under the cause of the host's
    *own* request, and withdraw that if it was queued.

    None if no request is due, if it comes to no checkpoint, or if another host was faster.
    """
    queued = adopted(head.state, own.requested_at_ms, cause=own.cause)
    if queued is None or _already_pending(job, head.state, own) is not None:
        return None
    try:
        outcome = _ask(job, head, queued, barriers)
    except StoreUnavailable:
        raise
    except SluiceError as error:  # It is withdrawn, and the host goes on with its own request.
        log.warning("a queued request came to nothing: %s", error)
        return None
    if not isinstance(outcome, Triggered) or outcome.plan.cause != own.cause:
        return None
    log.info("request adopted request_id=%s cause=%s", queued.request_id, own.cause)
    _withdraw(job, job.journal.load(), own, None)
    return replace(outcome, is_adopted=True)


def _ask(job: Job, head: Head, request: CheckpointRequest, barriers: Barriers) -> TriggerOutcome:
    known = _already_pending(job, head.state, request)
    if known is not None:
        return known
    try:
        head = resume(job, head)
    except (RestoreError, ProtocolViolation):
        if head.state.status is not JobStatus.FAILED:  # A FAILED job's journal names the damage.
            raise
    examined = examine(head.state, request, request.requested_at_ms)
    try:
        name = request.savepoint_name
        if name is not None:
            require_free_name(job, name, head.state, request_id=request.request_id)
        runs_now = examined.admission is Admission.RUNS
        plan = write_plan(job, head, request, barriers) if runs_now else None
    except SluiceError as error:
        _withdraw(job, head, request, error)
        if isinstance(error, (RestoreError, ProtocolViolation)):
            fail_over_if_damaged(job, head.state)
        raise
    if plan is None:
        return _not_now(job, head, request, examined)
    if isinstance(plan, NoPlan):
        _withdraw(job, head, request, None)
        return NotTriggered(reason=plan.reason, message=plan.message)
    return _journal(job, head, plan, request)


def _already_pending(
    job: Job, state: CoordinatorState, request: CheckpointRequest
) -> Triggered | None:
    """The checkpoint that an earlier call journaled, before it died or lost the store's answer."""
    for pending in state.pending:
        if pending.request_id == request.request_id:
            plan = job.plan(pending.checkpoint_id)
            return None if plan is None else Triggered(plan=plan)
    return None


def _not_now(
    job: Job, head: Head, request: CheckpointRequest, examined: Examination
) -> TriggerOutcome:
    if examined.after != head.state:
        transition = record(
            job,
            lambda state: CheckpointRequested(
                generation=state.generation, at_ms=request.requested_at_ms, request=request
            ),
            head=head,
        )
        examined = examine(transition.state, request, request.requested_at_ms)
    return _not_triggered(request, examined, examined.message)


def _withdraw(job: Job, head: Head, request: CheckpointRequest, error: SluiceError | None) -> None:
    """Journal that no plan came of the request: it leaves the queue, and a failed store counts."""
    is_io = isinstance(error, StoreUnavailable)
    is_queued = any(r.request_id == request.request_id for r in head.state.queue)
    if not (is_io or is_queued):
        return
    reason = (
        CheckpointFailureReason.IO_EXCEPTION
        if is_io
        else CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
    )
    record(
        job,
        lambda _: TriggerFailed(
            generation=head.state.generation,
            at_ms=job.clock(),
            request=request,
            reason=reason,
            message=str(error or "there was nothing to do"),
        ),
    )


def write_plan(
    job: Job, head: Head, request: CheckpointRequest, barriers: Barriers
) -> CheckpointPlan | NoPlan:
    """The plan, durable under the first free id."""
    refused = call_pre_barrier_hooks(job, head.state)
    if refused is not None:
        return refused
    plan = make_plan(job, head, request, barriers)
    for _ in range(MAX_ORPHANED_PLANS):
        if isinstance(plan, NoPlan):
            return plan
        pinned = pin_outside(job, head.state, plan)  # Under the plan's id: an abort finds it.
        if isinstance(pinned, NoPlan):
            return pinned
        raw = encode_plan(pinned)
        result = job.store.create(job.paths.plan(plan.checkpoint_id), raw)
        if isinstance(result, Created) or result.body == raw:
            return pinned
        plan = replace(plan, checkpoint_id=CheckpointId(plan.checkpoint_id + 1))
    raise StoreUnavailable(
        f"{MAX_ORPHANED_PLANS} checkpoint ids in a row are taken in {job.store.root}"
    )


def _journal(
    job: Job, head: Head, plan: CheckpointPlan, request: CheckpointRequest
) -> TriggerOutcome:
    """Journal the plan; to lose the race for the journal is an outcome, not an error."""
    transition = record(
        job,
        lambda _: CheckpointTriggered(
            generation=plan.generation, plan=journaled(plan), request=request
        ),
        head=head,
    )
    if transition.verdict is Verdict.APPLIED:
        log.info(
            "checkpoint triggered checkpoint_id=%d parent=%s records=%d type=%s",
            plan.checkpoint_id, plan.parent, plan.records, plan.type.value,
        )  # fmt: skip
        return Triggered(plan=plan)
    known = _already_pending(job, transition.state, request)
    if known is not None:
        return known
    examined = examine(transition.state, request, request.requested_at_ms)
    return _not_triggered(request, examined, "another coordinator was faster")


def _not_triggered(
    request: CheckpointRequest, examined: Examination, queued_because: str
) -> Queued | NotTriggered:
    if examined.admission is not Admission.REJECTED:
        return Queued(request_id=request.request_id, message=queued_because)
    return NotTriggered(
        reason=examined.reason, message=examined.message, retry_in_ms=examined.retry_in_ms
    )
