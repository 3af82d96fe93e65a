"""A person pauses the checkpointing of a running job, resumes it, or changes its times."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from sluice.coordinator.commands import record
from sluice.core.ids import NO_GENERATION
from sluice.core.messages import CheckpointingChanged
from sluice.core.state import CoordinatorState
from sluice.core.timing import Timing
from sluice.core.transition import Verdict
from sluice.declaration.config import Checkpointing
from sluice.declaration.job_configuration import milliseconds
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.never_submitted import never_submitted

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTimes:
    """What is to change; None stays as it is, and ``resets`` takes back what was changed before.

    Raises:
        ConfigurationError: a value is out of the limits that a declaration has.
    """

    interval: timedelta | None = None
    min_pause: timedelta | None = None
    timeout: timedelta | None = None
    tolerable_failed_checkpoints: int | None = None
    resets: bool = False

    def __post_init__(self) -> None:
        names = ("interval", "min_pause", "timeout", "tolerable_failed_checkpoints")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        Checkpointing(**{"interval": None} | given)  # Its limits.

    def applied_to(self, timing: Timing) -> Timing:
        before = Timing(is_paused=timing.is_paused) if self.resets else timing
        tolerable = self.tolerable_failed_checkpoints
        return replace(
            before,
            interval_ms=_changed(before.interval_ms, self.interval),
            min_pause_ms=_changed(before.min_pause_ms, self.min_pause),
            timeout_ms=_changed(before.timeout_ms, self.timeout),
            tolerable_failed_checkpoints=(
                before.tolerable_failed_checkpoints if tolerable is None else tolerable
            ),
        )


def pause(job: Job, *, by: str) -> CoordinatorState:
    """No periodic checkpoint from now on, until a person resumes; what is pending completes.

    What a person asks for is taken.  Raises ConfigurationError for a job that has ended.
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


def timeout_ms(job: Job, state: CoordinatorState) -> int:
    """How long a checkpoint of today may take, the one in force."""
    return state.timing.timeout_ms or milliseconds(job.pipeline.checkpointing.timeout)


def _changed(before_ms: int | None, given: timedelta | None) -> int | None:
    return before_ms if given is None else milliseconds(given)


def _change(job: Job, change: Callable[[Timing], Timing], by: str) -> CoordinatorState:
    """A change that changes nothing leaves the journal, and who made the last one, as they are."""

    def decide(state: CoordinatorState) -> CheckpointingChanged:
        now_ms, timing = job.clock(), change(state.timing)
        if timing != state.timing:
            timing = replace(timing, changed_at_ms=now_ms, changed_by=by)
        return CheckpointingChanged(generation=state.generation, at_ms=now_ms, timing=timing)

    transition = record(job, decide)
    state = transition.state
    if transition.verdict is Verdict.REFUSED:
        if state.generation == NO_GENERATION:
            raise ConfigurationError(never_submitted(job))
        raise ConfigurationError(
            f"job {job.pipeline.uid!r} is {state.status.value}: it takes no checkpoints any more"
        )
    log.warning("checkpointing changed by=%s timing=%s", by, state.timing)
    return state
