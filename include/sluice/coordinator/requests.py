"""The acts of a person on a running job, where no stage can run: on the command line, on a page.

A request for a checkpoint, a savepoint or a stop is journaled, and awaits a host: ``sluice run``,
or a run of the pipeline's DAGs, starts it when it asks for its own next checkpoint.  One that no
host takes up expires.  Checkpointing is paused, resumed, or given other times.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any

from sluice.coordinator.record import record
from sluice.coordinator.savepoints import require_free_name
from sluice.core.configuration import CheckpointType, JobStatus, Timing
from sluice.core.decider import CheckpointRequest
from sluice.core.events import CheckpointingChanged, CheckpointRequested, Verdict
from sluice.core.ids import NO_GENERATION
from sluice.core.requests import Admission, examine
from sluice.core.state import CoordinatorState
from sluice.declaration.arguments import checked_initializer
from sluice.declaration.checkpointing import CHANGEABLE, Checkpointing, kept
from sluice.declaration.durations import LEAST_WAIT, DurationLimits, milliseconds
from sluice.errors import ConfigurationError, FencedError, fresh_run
from sluice.job.job import Job, never_submitted_message

log = logging.getLogger(__name__)


@checked_initializer
@dataclass(frozen=True, slots=True, kw_only=True)
class UserRequest:
    """``name`` is the savepoint's; a savepoint that ends the job has one, too.

    ``is_full`` is Flink's CheckpointType FULL.  A request that ``is_forced`` ignores the limit of
    concurrent checkpoints, unless the job's are unaligned, which may not overlap.  ``waits`` is how
    long it awaits a host; by default as long as a checkpoint may take.  ``again`` is what a
    backfill reads.
    """

    by: str
    type: CheckpointType = CheckpointType.CHECKPOINT
    name: str | None = None
    is_canonical: bool = False
    is_full: bool = False
    is_forced: bool = False
    waits: Annotated[timedelta, DurationLimits(LEAST_WAIT)] | None = None
    again: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.type.is_savepoint != (self.name is not None):
            raise ConfigurationError("a savepoint needs a name, and a checkpoint takes none")
        if self.is_canonical and not self.type.is_savepoint:
            raise ConfigurationError(
                "a checkpoint has no format; ask for a savepoint, or leave out canonical"
            )
        if self.is_full and self.type.is_savepoint:
            raise ConfigurationError(
                "a savepoint is always full; ask for a checkpoint, or leave out full"
            )


def request_checkpoint(job: Job, request: UserRequest) -> CheckpointRequest:
    """Queue *request*, and return it as it is queued.

    Raises:
        ConfigurationError: the job is not RUNNING, or the savepoint's name is taken or invalid.
        FencedError: the job was restored at this moment.
    """
    state = job.state()
    require_running(job, state)
    queued = _queued(job, state, request)
    if queued.savepoint_name is not None:
        require_free_name(job, queued.savepoint_name, state, request_id=queued.request_id)
    transition = record(
        job,
        lambda _: CheckpointRequested(
            generation=state.generation, at_ms=queued.requested_at_ms, request=queued
        ),
    )
    after = transition.state
    if queued not in after.queue:
        require_running(job, after)
        examined = examine(after, queued, queued.requested_at_ms)
        if examined.admission is Admission.REJECTED and examined.reason is not None:
            raise ConfigurationError(f"{examined.reason.value}: {examined.message}")
        raise FencedError(f"job {job.pipeline.uid!r} was restored at this moment; ask again")
    log.info(
        "request queued request_id=%s type=%s by=%s",
        queued.request_id,
        queued.type.value,
        request.by,
    )
    return queued


def timeout_ms(job: Job, state: CoordinatorState) -> int:
    """The time that a checkpoint may take that is triggered now."""
    return state.timing.timeout_ms or milliseconds(job.pipeline.checkpointing.timeout)


def _queued(job: Job, state: CoordinatorState, request: UserRequest) -> CheckpointRequest:
    now_ms = job.now_ms()
    waits_ms = timeout_ms(job, state) if request.waits is None else milliseconds(request.waits)
    return CheckpointRequest(
        request_id=uuid.uuid4().hex,
        type=request.type,
        is_periodic=False,
        is_forced=request.is_forced and not state.configuration.unaligned,
        is_full=request.is_full,
        requested_at_ms=now_ms,
        expires_at_ms=now_ms + waits_ms,
        savepoint_name=request.name,
        is_canonical=request.is_canonical,
        cause=f"asked for by {request.by}",
        awaits_a_host=True,
        again=request.again,
    )


def require_running(job: Job, state: CoordinatorState) -> None:
    if state.generation == NO_GENERATION:
        raise ConfigurationError(never_submitted_message(job))
    if state.status is JobStatus.RUNNING:
        return
    uid = job.pipeline.uid
    because = f": {state.stopped_because}" if state.stopped_because else ""
    fix = (
        "it restarts by itself; ask again then"
        if state.status is JobStatus.RESTARTING
        else f"'sluice restore {uid}' lets it go on"
        if state.completed
        else f"'{fresh_run(uid)}' begins anew"
    )
    raise ConfigurationError(f"job {uid!r} is {state.status.value}{because}; {fix}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTimes:
    """The times to change; None stays as it is, and ``resets`` takes back the changes made before.

    Raises:
        ConfigurationError: a value is out of the limits that a declaration has.
    """

    interval: timedelta | None = None
    min_pause: timedelta | None = None
    timeout: timedelta | None = None
    tolerable_failed_checkpoints: int | None = None
    resets: bool = False

    def __post_init__(self) -> None:
        Checkpointing(**{"interval": None} | self._given())  # It checks the limits.

    def applied_to(self, timing: Timing) -> Timing:
        before = Timing(is_paused=timing.is_paused) if self.resets else timing
        given = {CHANGEABLE[name]: kept(value) for name, value in self._given().items()}
        return replace(before, **given)

    def _given(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CHANGEABLE if getattr(self, name) is not None}


def pause(job: Job, *, by: str) -> CoordinatorState:
    """No periodic checkpoint from now on, until a person resumes; what is pending completes.

    A checkpoint that a person asks for is taken all the same.  Raises ConfigurationError for a job
    that has ended.
    """
    return _change(job, lambda timing: replace(timing, is_paused=True), by)


def resume(job: Job, *, by: str) -> CoordinatorState:
    """Periodic checkpoints again.  Raises ConfigurationError for a job that has ended."""
    return _change(job, lambda timing: replace(timing, is_paused=False), by)


def retime(job: Job, times: NewTimes, *, by: str) -> CoordinatorState:
    """Change the times from the next checkpoint on; a pending one keeps its own.

    Raises ConfigurationError for a job that has ended.
    """
    return _change(job, times.applied_to, by)


def _change(job: Job, change: Callable[[Timing], Timing], by: str) -> CoordinatorState:
    """Journal *change*, unless it changes nothing: then who made the last change stays, too."""

    def decide(state: CoordinatorState) -> CheckpointingChanged:
        now_ms, timing = job.now_ms(), change(state.timing)
        if timing != state.timing:
            timing = replace(timing, changed_at_ms=now_ms, changed_by=by)
        return CheckpointingChanged(generation=state.generation, at_ms=now_ms, timing=timing)

    transition = record(job, decide)
    state = transition.state
    if transition.verdict is Verdict.REFUSED:
        if state.generation == NO_GENERATION:
            raise ConfigurationError(never_submitted_message(job))
        raise ConfigurationError(
            f"job {job.pipeline.uid!r} is {state.status.value}: it takes no checkpoints any more"
        )
    log.warning("checkpointing changed by=%s timing=%s", by, state.timing)
    return state
