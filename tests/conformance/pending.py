"""The area pending-ack: what acknowledgements, hooks and an abort do to a PendingCheckpoint.

Tasks acknowledge, and the checkpoint ends, by events of the coordinator.  In the product sources
and hooks have answered before there is a PendingCheckpoint: here they are a list beside it.  The
adapter is also the caller who deletes: the states of what was aborted, and that of an ack that is
UNKNOWN or DISCARDED.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sluice.core.answers import Ack
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.coordinator import step
from sluice.core.events import (
    AcksReceived,
    CheckpointCompleted,
    CheckpointFailed,
    DiscardPending,
    Event,
    Transition,
    Verdict,
)
from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, CheckpointIdCounter, Generation, SubtaskId
from sluice.core.pending import FIRST_ATTEMPT, AckResult, PendingCheckpoint
from sluice.core.plan import TaskPlan
from sluice.core.state import CoordinatorState
from tests.conformance.reasons import reason_named

ID, GENERATION = CheckpointId(1), Generation(1)
ILLEGAL_STATE = "IllegalState"


def pending_ack(case: dict[str, Any]) -> object:
    given = case["given"]
    pending = PendingCheckpoint(
        checkpoint_id=ID,
        parent=None,
        type=CheckpointType.SAVEPOINT if given.get("savepoint") else CheckpointType.CHECKPOINT,
        triggered_at_ms=0,
        expires_at_ms=1,
        drains=False,
        records=0,
        tasks=tuple(
            TaskPlan(uid=uid, parallelism=1, max_parallelism=1) for uid in given.get("tasks", [])
        ),
    )
    play = _Play(
        triggered=pending,
        silent_coordinators=set(given.get("coords", [])),
        silent_masters=set(given.get("masters", [])),
        state=CoordinatorState(
            status=JobStatus.RUNNING,
            generation=GENERATION,
            ids=CheckpointIdCounter().at_least(ID + 1),
            pending=(pending,),
        ),
    )
    return [play.answer(*step) for step in case["when"]]


@dataclass
class _Play:
    """One checkpoint, and the states that were deleted so far, in that order.

    ``in_use`` are those that it holds, pending or completed.
    """

    triggered: PendingCheckpoint
    state: CoordinatorState
    silent_coordinators: set[str]
    silent_masters: set[str]
    coordinator_states: dict[str, str] = field(default_factory=dict[str, str])
    in_use: frozenset[str] = frozenset()
    deleted: list[str] = field(default_factory=list)

    @property
    def pending(self) -> PendingCheckpoint | None:
        return self.state.pending_checkpoint(ID)

    @property
    def is_fully_acknowledged(self) -> bool:
        is_silent = self.silent_coordinators or self.silent_masters
        return self.pending is not None and self.pending.is_fully_acknowledged and not is_silent

    @property
    def states(self) -> list[str]:
        """All that were acknowledged to the pending checkpoint, the subtasks' first."""
        acks = self.pending.acks.values() if self.pending is not None else ()
        acked = [handle.segment.key for ack in acks for handle in ack.state]
        return [*acked, *self.coordinator_states.values()]

    def answer(self, kind: str, name: str = "", state: str | None = None) -> object:
        match kind:
            case "task":
                return self.acknowledge_task(name, state)
            case "coord":
                return self.acknowledge_coordinator(name, state)
            case "master":
                self.silent_masters.discard(name)
                return None
            case "full":
                return self.is_fully_acknowledged
            case "sub":
                return (self.pending or self.triggered).can_be_subsumed
            case "finalize":
                return self.finalize()
            case "abort":
                return self.abort(reason_named(name))
            case "deleted":
                return list(self.deleted)
            case _:
                raise NotImplementedError(f"pending-ack: {kind!r}")

    def acknowledge_task(self, name: str, state: str | None) -> str:
        ack = Ack(
            checkpoint_id=ID,
            subtask=SubtaskId(name, 0),
            attempt=FIRST_ATTEMPT,
            state=() if state is None else (StateHandle(segment=_segment(state)),),
        )
        (result,) = self.step(AcksReceived(checkpoint_id=ID, acks=(ack,))).ack_results
        return self.settle(result, state)

    def acknowledge_coordinator(self, name: str, state: str | None) -> str:
        """Flink remembers only a state, so one without it is UNKNOWN the second time."""
        if self.pending is None:
            return self.settle(AckResult.DISCARDED, state)
        if name not in self.silent_coordinators:
            is_known = name in self.coordinator_states
            return self.settle(AckResult.DUPLICATE if is_known else AckResult.UNKNOWN, state)
        self.silent_coordinators.remove(name)
        if state is not None:
            self.coordinator_states[name] = state
        return self.settle(AckResult.SUCCESS, state)

    def finalize(self) -> str:
        if not self.is_fully_acknowledged:
            return ILLEGAL_STATE
        completed = CheckpointCompleted(
            generation=GENERATION,
            at_ms=1,
            checkpoint_id=ID,
            attempts=self.triggered.current_attempts,
            checkpointed_bytes=0,
            full_bytes=0,
        )
        transition = self.step(completed)
        assert transition.verdict is Verdict.APPLIED
        return "completed"

    def abort(self, reason: CheckpointFailureReason) -> str:
        aborted, states = self.pending, self.states
        failed = CheckpointFailed(generation=GENERATION, at_ms=1, checkpoint_id=ID, reason=reason)
        transition = self.step(failed)
        if transition.verdict is Verdict.REFUSED:
            return ILLEGAL_STATE
        if aborted is not None:
            assert DiscardPending(checkpoint_id=ID, plan="") in transition.commands
            self.in_use = frozenset()
            self.delete(*states)
        return "completed" if self.state.completed_checkpoint(ID) else "aborted"

    def step(self, event: Event) -> Transition:
        transition = step(self.state, event)
        self.state = transition.state
        return transition

    def settle(self, result: AckResult, state: str | None) -> str:
        if self.pending is not None:
            self.in_use = frozenset(self.states)
        if state is not None and result in (AckResult.UNKNOWN, AckResult.DISCARDED):
            self.delete(state)
        return result.name

    def delete(self, *states: str) -> None:
        """Deleting is idempotent: a state is deleted once, and not while it is in use."""
        gone = (state for state in states if state not in self.in_use)
        self.deleted = [*dict.fromkeys((*self.deleted, *gone))]


def _segment(name: str) -> SegmentHandle:
    return SegmentHandle(key=name, size_bytes=1, rows=1, checksum=name)
