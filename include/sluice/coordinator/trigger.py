"""Trigger: decide, resolve the barrier, write the plan, journal it.  The checkpoint is pending.

The answer is one of six, and callers tell them apart: nothing was read because nothing is there, or
because it is too early, or because the job does not run, or because somebody refused.  A refused
trigger is journaled with its cause, whether it is answered or raised.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from sluice.coordinator.duties import resume_duties
from sluice.coordinator.failure import cause_of
from sluice.coordinator.planning import (
    Barriers,
    HookFailed,
    NothingToDo,
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
from sluice.core.events import (
    CheckpointRequested,
    CheckpointTriggered,
    RequestWithdrawn,
    TriggerFailed,
    Verdict,
)
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan, journaled
from sluice.core.requests import Admission, Examination, adopted, examine
from sluice.core.state import CoordinatorState
from sluice.errors import (
    ConfigurationError,
    FencedError,
    ProtocolViolation,
    RestoreError,
    SluiceError,
    SourceUnreadable,
    StoreUnavailable,
)
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
class NotDue:
    """A periodic request that came too early, or while checkpointing is paused.

    It may be repeated after ``retry_in_ms``.
    """

    reason: Reason
    message: str
    retry_in_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRunning:
    """The job is not RUNNING, or was not for a while as the request waited."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Somebody refused: a hook, or the request decider.  It is journaled, and counted."""

    reason: Reason
    message: str


NotTriggered: TypeAlias = NothingToDo | NotDue | NotRunning | Refused
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

    What is raised while the job is RUNNING is journaled first, as a refused trigger; not what is
    wrong with the request itself, or with the caller's declaration.

    Raises:
        SourceUnreadable: a source cannot be read as declared.
        ConfigurationError: the declaration is not that of the job, or the savepoint exists.
        RestoreError: the checkpoint that the epoch continues is gone.
        TableMismatch: a table does not show what the job continues; a person decides.
        StoreUnavailable: a store did not answer; it counts towards the tolerable failures.
    """
    request_id = request_id or uuid.uuid4().hex

    def as_of(head: Head) -> CheckpointRequest:
        # A job that was submitted anew has another clock, and other times.
        now_ms = job.now_ms()
        return CheckpointRequest(
            request_id=request_id,
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

    head = job.journal.load_on()
    request = as_of(head)
    if examine(head.state, request, request.requested_at_ms).admission is not Admission.RUNS:
        head = job.journal.load()  # Only the whole journal is certain that it may not.
        request = as_of(head)
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
    head = job.journal.load()
    own = CheckpointRequest(request_id=cause, requested_at_ms=job.now_ms(), cause=cause)
    return _adopt(job, head, own, {})


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
    except Exception as error:  # noqa: BLE001 - journaled; the host goes on with its own request
        log.warning("a queued request came to nothing: %s", error)
        return None
    if not isinstance(outcome, Triggered) or outcome.plan.cause != own.cause:
        return None
    log.info("request adopted request_id=%s cause=%s", queued.request_id, own.cause)
    _withdraw(job, job.journal.load(), own)
    return replace(outcome, is_adopted=True)


def _ask(job: Job, head: Head, request: CheckpointRequest, barriers: Barriers) -> TriggerOutcome:
    known = _already_pending(job, head.state, request)
    if known is not None:
        return known
    is_owed = True
    try:
        head = _resumed(job, head)
        is_owed = False
        examined, plan = _planned(job, head, request, barriers)
    except FencedError:
        raise  # Another coordinator has the job, and its triggers.
    except Exception as error:
        _journal_error(job, head, request, error, is_owed=is_owed)
        if isinstance(error, (RestoreError, ProtocolViolation)):
            fail_over_if_damaged(job, head.state)
        raise
    match plan:
        case CheckpointPlan():
            return _journal(job, head, plan, request)
        case NothingToDo():
            _withdraw(job, head, request)
            return plan
        case HookFailed(message=message):
            return _refuse(job, head, request, Reason.TRIGGER_CHECKPOINT_FAILURE, message)
        case None:
            return _not_now(job, head, request, examined)
        case _:
            assert_never(plan)


def _resumed(job: Job, head: Head) -> Head:
    """The head once what the job owes from before is done."""
    try:
        return resume_duties(job, head)
    except (RestoreError, ProtocolViolation):
        if head.state.status is not JobStatus.FAILED:  # A FAILED job's journal names the damage.
            raise
        return head


def _planned(
    job: Job, head: Head, request: CheckpointRequest, barriers: Barriers
) -> tuple[Examination, CheckpointPlan | NothingToDo | HookFailed | None]:
    """The plan; None for a request that may not run now."""
    examined = examine(head.state, request, request.requested_at_ms)
    name = request.savepoint_name
    if name is not None and examined.admission is not Admission.REJECTED:
        require_free_name(job, name, head.state, request_id=request.request_id)
    if examined.admission is not Admission.RUNS:
        return examined, None
    return examined, write_plan(job, head, request, barriers)


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
        # What the job owed came first, and read further: of a job that was submitted anew.
        late_ms = job.now_ms() - request.requested_at_ms
        expires_at_ms = request.expires_at_ms
        request = replace(
            request,
            requested_at_ms=request.requested_at_ms + late_ms,
            expires_at_ms=None if expires_at_ms is None else expires_at_ms + late_ms,
        )
        transition = record(
            job,
            lambda state: CheckpointRequested(
                generation=state.generation, at_ms=request.requested_at_ms, request=request
            ),
            head=head,
        )
        examined = examine(transition.state, request, request.requested_at_ms)
    outcome = _outcome_of(request, examined, examined.message)
    is_journaled = examined.after.rejection(request.request_id) is not None
    if isinstance(outcome, Refused) and not is_journaled:
        return _refuse(job, head, request, outcome.reason, outcome.message)
    return outcome


def _withdraw(job: Job, head: Head, request: CheckpointRequest) -> None:
    """Journal that a queued request needs no checkpoint."""
    if any(queued.request_id == request.request_id for queued in head.state.queue):
        record(
            job,
            lambda _: RequestWithdrawn(
                generation=head.state.generation, at_ms=job.now_ms(), request=request
            ),
        )


def _journal_error(
    job: Job, head: Head, request: CheckpointRequest, error: Exception, *, is_owed: bool
) -> None:
    """Journal that *error* refused the request; a store that does not answer counts, unless the
    job *is_owed* something by it from before: then no checkpoint has failed.

    Of a job that does not run nothing is journaled: a trigger only tried to do what it owes.
    """
    is_queued = any(queued.request_id == request.request_id for queued in head.state.queue)
    is_the_callers = isinstance(error, ConfigurationError) and not (
        is_owed or is_queued or isinstance(error, SourceUnreadable)
    )
    if head.state.status is not JobStatus.RUNNING or is_the_callers:
        return
    is_io = isinstance(error, StoreUnavailable) and not is_owed
    reason = Reason.IO_EXCEPTION if is_io else Reason.TRIGGER_CHECKPOINT_FAILURE
    try:
        _refuse(job, head, request, reason, str(cause_of(error)))
    except SluiceError as second:  # The first one is what the caller has to know.
        log.warning("a refused trigger was not journaled: %s", second)


def _refuse(
    job: Job, head: Head, request: CheckpointRequest, reason: Reason, message: str
) -> Refused:
    transition = record(
        job,
        lambda _: TriggerFailed(  # Stamped behind the look at the journal.
            generation=head.state.generation,
            at_ms=job.now_ms(),
            request=request,
            reason=reason,
            message=message,
        ),
    )
    log.warning(
        "checkpoint refused reason=%s in_a_row=%d message=%s",
        reason.value, transition.state.num_unsuccessful_triggers, message,
    )  # fmt: skip
    return Refused(reason=reason, message=message)


def write_plan(
    job: Job, head: Head, request: CheckpointRequest, barriers: Barriers
) -> CheckpointPlan | NothingToDo | HookFailed:
    """The plan, durable under the first free id."""
    refused = call_pre_barrier_hooks(job, head.state)
    if refused is not None:
        return refused
    plan = make_plan(job, head, request, barriers)
    if isinstance(plan, NothingToDo):
        return plan
    for _ in range(MAX_ORPHANED_PLANS):
        pinned = pin_outside(job, head.state, plan)  # Under the plan's id: an abort finds it.
        if isinstance(pinned, HookFailed):
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
    return _outcome_of(request, examined, "another coordinator was faster")


def _outcome_of(
    request: CheckpointRequest, examined: Examination, queued_because: str
) -> Queued | NotDue | NotRunning | Refused:
    """The answer to a request that does not run now."""
    reason, message = examined.reason, examined.message
    if examined.admission is not Admission.REJECTED or reason is None:
        return Queued(request_id=request.request_id, message=queued_because)
    is_running = examined.after.status is JobStatus.RUNNING
    match reason:
        case Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS:
            return NotDue(reason=reason, message=message, retry_in_ms=examined.retry_in_ms)
        case Reason.PERIODIC_SCHEDULER_SHUTDOWN if is_running:
            return NotDue(reason=reason, message=message, retry_in_ms=examined.retry_in_ms)
        case (
            Reason.PERIODIC_SCHEDULER_SHUTDOWN
            | Reason.NOT_ALL_REQUIRED_TASKS_RUNNING
            | Reason.JOB_FAILOVER_REGION
            | Reason.CHECKPOINT_COORDINATOR_SUSPEND
        ):
            return NotRunning(reason=reason, message=message)
        case _:
            return Refused(reason=reason, message=message)
