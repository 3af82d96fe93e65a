"""What must hold of one step of the coordinator, and of its state, whatever arrives."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus
from sluice.core.events import (
    AcksReceived,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointRequested,
    CheckpointTriggered,
    DiscardCompleted,
    DiscardPending,
    Event,
    JobRestored,
    JobSubmitted,
    JournalRepaired,
    RootAdopted,
    SnapshotsDiscarded,
    Transition,
    Verdict,
)
from sluice.core.requests import examine
from sluice.core.state import REMEMBERED_FAILURES, REMEMBERED_REJECTIONS, CoordinatorState

ALIVE = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FAILING)


def ids_of(checkpoints: Iterable[CompletedCheckpoint]) -> list[int]:
    return [int(checkpoint.checkpoint_id) for checkpoint in checkpoints]


def check_state(state: CoordinatorState) -> None:
    retained, discarding = ids_of(state.completed), ids_of(state.discarding)
    pending = [pending.checkpoint_id for pending in state.pending]
    assert retained == sorted(set(retained))
    assert len(discarding) == len(set(discarding))
    assert not set(retained) & {*discarding, *pending}
    assert all(checkpoint_id < state.next_checkpoint_id for checkpoint_id in (*retained, *pending))
    assert not any(pending.ends_the_job for pending in state.pending[:-1])
    assert (state.restart_at_ms is not None) == (state.status is JobStatus.RESTARTING)
    if state.status in ALIVE and state.base is not None:
        assert state.origin is not None or state.latest_completed is not None
    assert {*state.releasing_savepoints} <= {*state.claimed_savepoints}
    if state.origin is not None and not state.origin.root:
        assert state.origin.incarnation not in state.releasing_savepoints
    if state.status is JobStatus.FAILING:
        assert state.latest_completed is not None
        assert not state.latest_completed.is_committed
    queued = [request.request_id for request in state.queue]
    assert len(queued) == len(set(queued)) <= state.configuration.max_queued
    assert not {*queued} & {pending.request_id for pending in state.pending}
    assert not any(state.rejection(request_id) for request_id in queued)
    assert len(state.rejected) <= REMEMBERED_REJECTIONS
    assert len(state.failed) <= REMEMBERED_FAILURES


def check_step(before: CoordinatorState, event: Event, transition: Transition) -> None:
    after = transition.state
    applied = transition.verdict is Verdict.APPLIED
    assert applied == (after != before)
    _check_fence(before, event, transition)
    assert after.next_checkpoint_id >= before.next_checkpoint_id
    answered = len(event.acks) if isinstance(event, AcksReceived) else 0
    assert len(transition.ack_results) == answered
    if before.status.is_globally_terminal and after.status is not before.status:
        assert isinstance(event, JobSubmitted | JobRestored)
    if isinstance(event, CheckpointTriggered) and applied:
        _check_trigger(before, event, after)
    if isinstance(event, CheckpointCompleted) and applied:
        _check_completion(before, after)
    _check_ends(before, event, transition)
    _check_commands(event, transition)


def _check_fence(before: CoordinatorState, event: Event, transition: Transition) -> None:
    after = transition.state
    is_takeover = isinstance(event, JobSubmitted | JobRestored | JournalRepaired | RootAdopted)
    if isinstance(event, AcksReceived):  # A subtask writes no journal, and has no generation.
        assert transition.verdict is not Verdict.FENCED
        assert after.generation == before.generation
        return
    if is_takeover:
        is_fenced = event.generation <= before.generation
    else:
        is_fenced = event.generation != before.generation
    assert is_fenced == (transition.verdict is Verdict.FENCED)
    if is_fenced:
        assert transition == Transition(state=before, verdict=Verdict.FENCED)
    took_over = is_takeover and transition.verdict is Verdict.APPLIED
    assert after.generation == (event.generation if took_over else before.generation)


def _check_trigger(
    before: CoordinatorState, event: CheckpointTriggered, after: CoordinatorState
) -> None:
    newest = after.pending[-1]
    configuration = after.configuration
    assert after.pending[:-1] == before.pending
    assert newest.checkpoint_id >= before.next_checkpoint_id
    assert (newest.parent, newest.request_id) == (before.tip, event.request.request_id)
    assert not before.owes_a_restore
    assert len(before.discarding) <= configuration.max_concurrent
    if not event.request.is_forced or configuration.unaligned:
        assert len(after.pending) <= configuration.max_concurrent


def _check_completion(before: CoordinatorState, after: CoordinatorState) -> None:
    """In order, one commit at a time; and at most one real checkpoint beyond the limit stays."""
    parent, newest = before.latest_completed, after.completed[-1]
    assert newest.checkpoint_id == before.pending[0].checkpoint_id == after.base
    assert newest.parent == before.base
    assert parent is None or parent.is_committed
    assert len(after.completed) <= after.configuration.num_retained + 1
    assert after.failure_count.continuous == 0


def _check_ends(before: CoordinatorState, event: Event, transition: Transition) -> None:
    """Whatever leaves is discarded, and nothing else is."""
    after = transition.state
    now_completed = {*ids_of(after.completed), *ids_of(after.discarding)}
    left = {p.checkpoint_id for p in before.pending} - {p.checkpoint_id for p in after.pending}
    aborted = [c.checkpoint_id for c in transition.commands if isinstance(c, DiscardPending)]
    assert sorted(aborted) == sorted(left - now_completed)
    failed = [f for f in after.failed if f not in before.failed]
    assert {f.checkpoint_id for f in failed} == {*aborted}
    assert all(f.checkpoint_id not in ids_of(after.completed) for f in failed)
    deleted: set[int] = set()
    if isinstance(event, CheckpointCommitted):
        deleted = {*event.discarded}
    if isinstance(event, SnapshotsDiscarded):
        deleted = {*event.checkpoints}
    for checkpoint in (*before.completed, *before.discarding):
        is_listed = checkpoint.checkpoint_id in now_completed
        assert is_listed or checkpoint.checkpoint_id in deleted
    gone = {c.checkpoint.checkpoint_id for c in transition.commands if type(c) is DiscardCompleted}
    assert gone <= {*ids_of(after.discarding)}


def _check_commands(event: Event, transition: Transition) -> None:
    if transition.commands:
        assert transition.verdict is Verdict.APPLIED
    after = transition.state
    assert (after.restart_at_ms is not None) == (after.status is JobStatus.RESTARTING)
    if isinstance(event, CheckpointRequested):
        examined = examine(after, event.request, event.at_ms)
        if examined.head is not None:
            is_mine = examined.head.request_id == event.request.request_id
            assert is_mine or examined.head in after.queue
