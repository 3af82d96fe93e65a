"""Events of the pure core that only the core's own tests need; the others are in ``builders``."""

from __future__ import annotations

from dataclasses import replace

from sluice.core.configuration import Timing
from sluice.core.decider import CheckpointRequest
from sluice.core.events import (
    AlignmentTimedOut,
    CheckpointCompleted,
    CheckpointingChanged,
    CheckpointRequested,
    CheckpointTriggered,
    DiscardPending,
    Event,
    HooksRestored,
    JobFailed,
    JournalRepaired,
    RequestWithdrawn,
    SavepointsReleased,
    SnapshotsDiscarded,
    TablesRecovered,
    TriggerFailed,
)
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, Generation, SavepointId
from sluice.core.plan import CheckpointPlan, SourceCut
from tests.builders import a_plan, a_request


def a_periodic(request_id: str = "p", **given: object) -> CheckpointRequest:
    return a_request(request_id, is_periodic=True, **given)


def requested(request: CheckpointRequest, *, at_ms: int = 1_000, generation: int = 1) -> Event:
    return CheckpointRequested(generation=Generation(generation), at_ms=at_ms, request=request)


def triggered_by(request: CheckpointRequest, plan: CheckpointPlan) -> Event:
    return CheckpointTriggered(generation=plan.generation, plan=plan, request=request)


def trigger_failed(
    request: CheckpointRequest,
    reason: CheckpointFailureReason = CheckpointFailureReason.IO_EXCEPTION,
    *,
    at_ms: int = 2_000,
    generation: int = 1,
) -> Event:
    return TriggerFailed(
        generation=Generation(generation), at_ms=at_ms, request=request, reason=reason, message="no"
    )


def withdrawn(request: CheckpointRequest, *, generation: int = 1) -> Event:
    return RequestWithdrawn(generation=Generation(generation), at_ms=2_000, request=request)


def timed_out(*stages: str, checkpoint_id: int = 1, generation: int = 1) -> Event:
    return AlignmentTimedOut(
        generation=Generation(generation),
        at_ms=2_000,
        checkpoint_id=CheckpointId(checkpoint_id),
        stages=stages,
    )


def retimed(**timing: object) -> Event:
    given = Timing(**timing)  # type: ignore[arg-type]
    return CheckpointingChanged(at_ms=2_000, generation=Generation(1), timing=given)


def job_failed(*, at_ms: int = 5_000, generation: int = 1) -> Event:
    return JobFailed(generation=Generation(generation), at_ms=at_ms, message="a hook failed")


def hooks_restored(*, generation: int = 2) -> Event:
    return HooksRestored(generation=Generation(generation))


def tables_recovered(*, generation: int = 2) -> Event:
    return TablesRecovered(generation=Generation(generation))


def incarnations(*names: str) -> tuple[SavepointId, ...]:
    """Of events whose tokens do not matter."""
    return tuple(SavepointId(name, "") for name in names)


def released(*savepoints: str, generation: int = 1, is_disposal: bool = False) -> Event:
    return SavepointsReleased(
        generation=Generation(generation),
        savepoints=incarnations(*savepoints),
        is_disposal=is_disposal,
    )


def discarded(*checkpoints: int, savepoints: tuple[str, ...] = (), generation: int = 1) -> Event:
    return SnapshotsDiscarded(
        generation=Generation(generation),
        checkpoints=tuple(map(CheckpointId, checkpoints)),
        savepoints=incarnations(*savepoints),
    )


def pending_discarded(*checkpoints: int) -> tuple[DiscardPending, ...]:
    """Of plans whose tokens do not matter."""
    return tuple(DiscardPending(checkpoint_id=CheckpointId(one), plan="") for one in checkpoints)


def with_backlog(plan: CheckpointPlan | None = None) -> tuple[SourceCut, ...]:
    """The sources of a plan that leaves records waiting behind its barrier."""
    return tuple(replace(cut, is_backlog=True) for cut in (plan or a_plan()).sources)


def repaired(completed: CheckpointCompleted | None = None) -> Event:
    """Entries 8 and 9 were lost; checkpoint 11 may have been triggered in them."""
    return JournalRepaired(
        at_ms=6_000,
        generation=Generation(4),
        first=8,
        last=9,
        next_checkpoint_id=CheckpointId(12),
        completed=completed,
    )
