"""Planted faults: what a person asked of a running job is forgotten, or done to another one."""

# ruff: noqa: SLF001 - faults are planted inside

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sluice.coordinator import failure
from sluice.coordinator import requests as timing_calls
from sluice.coordinator.record import record
from sluice.coordinator.requests import timeout_ms
from sluice.core import requests
from sluice.core.configuration import Timing
from sluice.core.coordinator import step
from sluice.core.decider import CheckpointRequest
from sluice.core.events import CheckpointFailed, Event, JobRestored, Transition, Verdict
from sluice.core.failures import CheckpointFailureReason
from sluice.core.requests import Admission, Examination, examine
from sluice.core.state import CoordinatorState
from sluice.declaration.checkpointing import milliseconds
from sluice.job.job import Job
from tests.simulation.planting import mutation
from tests.simulation.play import replace_everywhere

BY_USER = CheckpointFailureReason.CHECKPOINT_ABORTED_BY_USER


@mutation(13)
def forget_the_times_at_a_restore(patch: pytest.MonkeyPatch) -> None:
    """A restore begins with the times, and without the pause, that were declared."""

    def forgetting(state: CoordinatorState, event: Event) -> Transition:
        transition = step(state, event)
        if not isinstance(event, JobRestored) or transition.verdict is not Verdict.APPLIED:
            return transition
        return replace(transition, state=replace(transition.state, timing=Timing()))

    replace_everywhere(patch, step, forgetting)


def _held_back_by(patch: pytest.MonkeyPatch, other: Callable[[Timing], dict[str, object]]) -> None:
    """Whether a periodic request is due is asked of *other* times."""
    held_back = requests._held_back

    def held_back_otherwise(state: CoordinatorState, now_ms: int) -> Examination | None:
        timing = replace(state.timing, **other(state.timing))  # type: ignore[arg-type]
        found = held_back(replace(state, timing=timing), now_ms)
        return None if found is None else replace(found, after=state)

    patch.setattr(requests, "_held_back", held_back_otherwise)


@mutation(0, 13)
def trigger_while_it_is_paused(patch: pytest.MonkeyPatch) -> None:
    """A periodic checkpoint is taken although a person paused the job."""
    _held_back_by(patch, lambda _: {"is_paused": False})


@mutation(13)
def ignore_the_changed_interval(patch: pytest.MonkeyPatch) -> None:
    """A periodic checkpoint comes when the declared interval is over."""
    _held_back_by(patch, lambda _: {"interval_ms": None})


@mutation(0)
def refuse_everything_while_it_is_paused(patch: pytest.MonkeyPatch) -> None:
    """A paused job takes no checkpoint at all, also none that a person asks for."""

    def examining(state: CoordinatorState, request: CheckpointRequest, now_ms: int) -> Examination:
        if not state.timing.is_paused:
            return examine(state, request, now_ms)
        reason = CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN
        return Examination(standing=Admission.REJECTED, after=state, reason=reason)

    replace_everywhere(patch, examine, examining)


@mutation(13)
def change_what_was_read_before(patch: pytest.MonkeyPatch) -> None:
    """A change writes all of the times as they were read before, over the change of another one."""
    change = timing_calls._change

    def changing(job: Job, wish: Callable[[Timing], Timing], by: str) -> CoordinatorState:
        seen = job.state().timing
        return change(job, lambda _: wish(seen), by)

    patch.setattr(timing_calls, "_change", changing)


@mutation(13)
def keep_the_declared_timeout(patch: pytest.MonkeyPatch) -> None:
    """A plan has the declared timeout, whatever a person changed it to."""

    def declared(job: Job, _: CoordinatorState) -> int:
        return milliseconds(job.pipeline.checkpointing.timeout)

    replace_everywhere(patch, timeout_ms, declared)


@mutation(13)
def remember_the_timeout(patch: pytest.MonkeyPatch) -> None:
    """A coordinator goes on with the timeout that it saw first."""
    seen: dict[int, tuple[Job, int]] = {}

    def first(job: Job, state: CoordinatorState) -> int:
        return seen.setdefault(id(job), (job, timeout_ms(job, state)))[1]

    replace_everywhere(patch, timeout_ms, first)


@mutation(13)
def abort_the_oldest(patch: pytest.MonkeyPatch) -> None:
    """A person who aborts a checkpoint ends the oldest that is pending by then."""

    def recording(job: Job, decide: Callable[[CoordinatorState], Event]) -> Transition:
        def oldest(state: CoordinatorState) -> Event:
            event = decide(state)
            if not isinstance(event, CheckpointFailed) or not state.pending:
                return event
            return replace(event, checkpoint_id=state.pending[0].checkpoint_id)

        return record(job, oldest)

    patch.setattr(failure, "record", recording)


@mutation(13)
def fail_over_for_an_abort(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that a person aborts counts as a failure of the job."""

    def counting(state: CoordinatorState, event: Any) -> Transition:
        if isinstance(event, CheckpointFailed) and event.reason is BY_USER:
            event = replace(event, reason=CheckpointFailureReason.CHECKPOINT_EXPIRED)
        return step(state, event)

    replace_everywhere(patch, step, counting)
