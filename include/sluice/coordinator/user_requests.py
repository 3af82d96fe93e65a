"""A person asks for a checkpoint, a savepoint or a stop where no stage can run: a command, a page.

The request is journaled, and awaits a host: ``sluice run``, or a run of the pipeline's DAGs, takes
it up with the next checkpoint that it asks for.  One that no host takes up expires.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from datetime import timedelta

from sluice.coordinator.commands import record
from sluice.coordinator.savepoints import require_free_name
from sluice.coordinator.timing import timeout_ms
from sluice.core.decider import CheckpointRequest
from sluice.core.ids import NO_GENERATION
from sluice.core.messages import CheckpointRequested
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.requests import Standing, examine
from sluice.core.state import CoordinatorState
from sluice.declaration.job_configuration import milliseconds
from sluice.errors import ConfigurationError, FencedError
from sluice.job.job import Job
from sluice.job.never_submitted import never_submitted

log = logging.getLogger(__name__)

LEAST_WAIT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRequest:
    """``name`` is the savepoint's; a savepoint that ends the job has one, too.

    ``is_full`` is Flink's CheckpointType FULL.  One that ``is_forced`` ignores the limit of
    concurrent checkpoints, unless the job's are unaligned, which may not overlap.

    ``waits`` is how long it awaits a host; by default as long as a checkpoint may take.
    """

    by: str
    type: CheckpointType = CheckpointType.CHECKPOINT
    name: str | None = None
    is_canonical: bool = False
    is_full: bool = False
    is_forced: bool = False
    waits: timedelta | None = None

    def __post_init__(self) -> None:
        if self.type.is_savepoint != (self.name is not None):
            raise ConfigurationError("a savepoint has a name, and a checkpoint has none")
        if self.is_canonical and not self.type.is_savepoint:
            raise ConfigurationError("only a savepoint is canonical; a checkpoint is as it is")
        if self.is_full and self.type.is_savepoint:
            raise ConfigurationError("only a checkpoint is full or not; a savepoint always is")
        if self.waits is not None and self.waits < LEAST_WAIT:
            raise ConfigurationError(f"a request waits {self.waits}; let it wait 1 s or more")


def request_checkpoint(job: Job, request: UserRequest) -> CheckpointRequest:
    """Queue *request*, and return it as it is queued.

    Raises:
        ConfigurationError: the job is not RUNNING, or the savepoint's name is taken or bad.
        FencedError: the job was restored at this moment.
    """
    state = job.state()
    _require_running(job, state)
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
        _require_running(job, after)
        examined = examine(after, queued, queued.requested_at_ms)
        if examined.standing is Standing.REJECTED and examined.reason is not None:
            raise ConfigurationError(f"{examined.reason.value}: {examined.message}")
        raise FencedError(f"job {job.pipeline.uid!r} was restored at this moment; ask again")
    log.info(
        "request queued request_id=%s type=%s by=%s",
        queued.request_id,
        queued.type.value,
        request.by,
    )
    return queued


def _queued(job: Job, state: CoordinatorState, request: UserRequest) -> CheckpointRequest:
    now_ms = job.clock()
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
    )


def _require_running(job: Job, state: CoordinatorState) -> None:
    if state.generation == NO_GENERATION:
        raise ConfigurationError(never_submitted(job))
    if state.status is JobStatus.RUNNING:
        return
    uid = job.pipeline.uid
    because = f": {state.stopped_because}" if state.stopped_because else ""
    fix = (
        "it restarts by itself; ask again then"
        if state.status is JobStatus.RESTARTING
        else f"'sluice restore {uid}' lets it go on"
        if state.completed
        else f"'sluice run {uid}' begins anew"
    )
    raise ConfigurationError(f"job {uid!r} is {state.status.value}{because}; {fix}")
