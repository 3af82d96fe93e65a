"""The coordinator under any history: events of any kind, in any order, from anybody.

Histories are drawn with small ids and generations, so that events meet each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.acks import Ack, Decline
from sluice.core.coordinator import Transition, Verdict, step
from sluice.core.ids import SubtaskId
from sluice.core.messages import (
    AckReceived,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    DeclineReceived,
    DiscardCompleted,
    DiscardPending,
    Event,
    FinalizeCheckpoint,
    JobConfiguration,
    JobRestored,
    JobStopped,
    JobSubmitted,
)
from sluice.core.properties import CheckpointType, JobStatus, Retention
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.state import CoordinatorState
from tests.builders import STAGES, SUBTASKS, a_plan

ids = st.integers(1, 9)
generations = st.integers(0, 4)
times = st.integers(0, 10**7)
attempts = st.integers(0, 3)
savepoints = st.none() | st.just("mine")
subtasks = st.sampled_from([*SUBTASKS, SubtaskId("elsewhere", 0), SubtaskId(STAGES[0], 9)])
configurations = st.builds(
    JobConfiguration,
    num_retained=st.integers(1, 3),
    tolerable_failed_checkpoints=st.integers(0, 2),
    retention=st.sampled_from(Retention),
    restart=st.builds(
        RestartStrategy, type=st.sampled_from(RestartType), attempts=st.none() | st.integers(0, 2)
    ),
)


@st.composite
def triggers(draw: st.DrawFn) -> CheckpointTriggered:
    checkpoint_id, generation = draw(ids), draw(generations)
    parent = draw(st.none() | st.integers(1, checkpoint_id - 1)) if checkpoint_id > 1 else None
    plan = a_plan(
        checkpoint_id,
        generation=generation if draw(st.booleans()) else draw(generations),
        parent=parent,
        type=draw(st.sampled_from(CheckpointType)),
        drains=draw(st.booleans()),
    )
    return CheckpointTriggered(generation=generation, plan=plan, savepoint_name=draw(savepoints))


events: st.SearchStrategy[Event] = st.one_of(
    st.builds(JobSubmitted, at_ms=times, generation=generations, configuration=configurations),
    triggers(),
    st.builds(
        AttemptStarted,
        generation=generations,
        checkpoint_id=ids,
        stage=st.sampled_from([*STAGES, "elsewhere"]),
        attempt=attempts,
    ),
    st.builds(
        AckReceived,
        ack=st.builds(Ack, checkpoint_id=ids, subtask=subtasks, attempt=attempts),
    ),
    st.builds(
        DeclineReceived,
        generation=generations,
        at_ms=times,
        decline=st.builds(
            Decline, checkpoint_id=ids, subtask=subtasks, attempt=attempts, message=st.just("no")
        ),
    ),
    st.builds(
        CheckpointCompleted,
        generation=generations,
        at_ms=times,
        checkpoint_id=ids,
        checkpointed_bytes=st.just(1),
        full_bytes=st.just(1),
    ),
    st.builds(CheckpointCommitted, generation=generations, at_ms=times, checkpoint_id=ids),
    st.builds(
        CheckpointFailed,
        generation=generations,
        at_ms=times,
        checkpoint_id=ids,
        reason=st.sampled_from(CheckpointFailureReason),
        is_task_failure=st.booleans(),
    ),
    st.builds(
        JobRestored,
        at_ms=times,
        generation=generations,
        checkpoint_id=st.none() | ids,
        savepoint=savepoints,
        configuration=st.none() | configurations,
    ),
    st.builds(
        JobStopped,
        at_ms=times,
        generation=generations,
        status=st.sampled_from([JobStatus.SUSPENDED, JobStatus.CANCELED, JobStatus.FAILED]),
    ),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Mostly what a live coordinator would say next, now and then anything at all."""
    state, history = CoordinatorState(), list[Event]()
    for _ in range(draw(st.integers(0, 40))):
        event = draw(events) if draw(st.integers(0, 3)) == 0 else draw(likely(state))
        history.append(event)
        state = step(state, event).state
    return history


def likely(state: CoordinatorState) -> st.SearchStrategy[Event]:
    """Events of the current generation about checkpoints that exist."""
    now = state.generation
    plan = a_plan(
        state.next_checkpoint_id,
        generation=now,
        parent=state.base,
    )
    found: list[st.SearchStrategy[Event]] = [
        st.builds(
            JobSubmitted, at_ms=times, generation=st.just(now + 1), configuration=configurations
        )
        if state.status not in (JobStatus.RUNNING, JobStatus.RESTARTING)
        else st.sampled_from(CheckpointType).map(
            lambda type_: CheckpointTriggered(
                generation=now,
                plan=a_plan(plan.checkpoint_id, generation=now, parent=plan.parent, type=type_),
            )
        ),
        st.builds(
            JobRestored,
            at_ms=times,
            generation=st.just(now + 1),
            checkpoint_id=st.sampled_from([None, *(c.checkpoint_id for c in state.completed)]),
        ),
    ]
    for pending in state.pending:
        found += [
            st.just(
                AckReceived(
                    ack=Ack(
                        checkpoint_id=pending.checkpoint_id,
                        subtask=subtask,
                        attempt=pending.attempt_of(subtask.stage),
                    )
                )
            )
            for subtask in pending.not_yet_acknowledged
        ]
        found.append(
            st.builds(
                CheckpointFailed,
                generation=st.just(now),
                at_ms=times,
                checkpoint_id=st.just(pending.checkpoint_id),
                reason=st.sampled_from(CheckpointFailureReason),
                is_task_failure=st.booleans(),
            )
        )
        if pending.is_fully_acknowledged or pending.type.is_savepoint:
            found.append(
                st.builds(
                    CheckpointCompleted,
                    generation=st.just(now),
                    at_ms=times,
                    checkpoint_id=st.just(pending.checkpoint_id),
                    checkpointed_bytes=st.just(1),
                    full_bytes=st.just(1),
                )
            )
    found += [
        st.builds(
            CheckpointCommitted,
            generation=st.just(now),
            at_ms=times,
            checkpoint_id=st.just(done.checkpoint_id),
        )
        for done in state.completed
    ]
    return st.one_of(found)


@dataclass
class Life:
    """What became of each checkpoint in a history."""

    begun: list[int] = field(default_factory=list)
    completed: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)


def play(history: list[Event]) -> Life:
    """Step through the history, checking what has to hold after every single event."""
    state, life = CoordinatorState(), Life()
    for event in history:
        transition = step(state, event)
        check_step(state, event, transition)
        note(life, event, transition)
        state = transition.state
    return life


def check_step(before: CoordinatorState, event: Event, transition: Transition) -> None:
    after, applied = transition.state, transition.verdict is Verdict.APPLIED
    if not applied:
        assert after == before
        assert transition.commands == ()
    assert after.generation >= before.generation
    assert after.next_checkpoint_id >= before.next_checkpoint_id
    assert (transition.ack_result is not None) == isinstance(event, AckReceived)
    is_takeover = isinstance(event, JobSubmitted | JobRestored)
    if not isinstance(event, AckReceived) and event.generation < before.generation:
        assert transition.verdict is Verdict.FENCED
    assert is_takeover == (after.generation > before.generation) or not applied
    check_base(before, after)
    check_ends(before, transition)
    assert not after.pending or after.status is JobStatus.RUNNING
    if before.status.is_globally_terminal and after.status is not before.status:
        assert is_takeover


def check_base(before: CoordinatorState, after: CoordinatorState) -> None:
    """The base is a completed checkpoint or a savepoint, as long as the job runs."""
    assert after.base is None or after.base < after.next_checkpoint_id
    if after.status in (JobStatus.RUNNING, JobStatus.RESTARTING) and after.base is not None:
        assert after.base_savepoint is not None or after.latest_completed is not None
    ids_ = [c.checkpoint_id for c in after.completed]
    assert ids_ == sorted(set(ids_))
    assert not set(ids_) & {p.checkpoint_id for p in after.pending}
    assert (after.restart_at_ms is not None) == (after.status is JobStatus.RESTARTING)


def check_ends(before: CoordinatorState, transition: Transition) -> None:
    """Whatever leaves is discarded, and nothing else is."""
    after = transition.state
    now_completed = {c.checkpoint_id for c in after.completed}
    left = {p.checkpoint_id for p in before.pending} - {p.checkpoint_id for p in after.pending}
    discarded = {c.checkpoint_id for c in transition.commands if isinstance(c, DiscardPending)}
    assert discarded == left - now_completed
    subsumed = {
        c.checkpoint.checkpoint_id for c in transition.commands if isinstance(c, DiscardCompleted)
    }
    assert not subsumed & now_completed
    for checkpoint in before.completed:
        if checkpoint.checkpoint_id not in now_completed:
            assert checkpoint.checkpoint_id in subsumed


def note(life: Life, event: Event, transition: Transition) -> None:
    if transition.verdict is not Verdict.APPLIED:
        return
    if isinstance(event, CheckpointTriggered):
        life.begun.append(event.plan.checkpoint_id)
    if isinstance(event, CheckpointCompleted):
        life.completed.append(event.checkpoint_id)
    if isinstance(event, JobSubmitted | JobRestored):
        life.generations.append(event.generation)
    for command in transition.commands:
        if isinstance(command, DiscardPending):
            life.aborted.append(command.checkpoint_id)
        if isinstance(command, FinalizeCheckpoint):
            assert command.pending.not_yet_acknowledged == ()


@settings(deadline=None)
@given(histories() | st.lists(events, max_size=40))
def test_whatever_arrives_every_checkpoint_ends_at_most_once_and_ids_only_grow(
    history: list[Event],
) -> None:
    life = play(history)

    assert life.begun == sorted(set(life.begun))
    ended = life.completed + life.aborted
    assert len(ended) == len(set(ended))
    assert set(ended) <= set(life.begun)
    assert life.generations == sorted(set(life.generations))


@settings(deadline=None)
@given(histories(), st.lists(events, max_size=10))
def test_a_fenced_generation_changes_nothing(history: list[Event], late: list[Event]) -> None:
    state = CoordinatorState()
    for event in history:
        state = step(state, event).state
    overtaken = [
        event
        for event in late
        if not isinstance(event, AckReceived) and event.generation < state.generation
    ]

    for event in overtaken:
        transition = step(state, event)
        assert transition == Transition(state=state, verdict=Verdict.FENCED)


@settings(deadline=None)
@given(st.permutations(SUBTASKS), st.lists(st.sampled_from(SUBTASKS), max_size=6))
def test_a_checkpoint_asks_to_be_finalized_once_and_only_with_every_ack(
    order: list[SubtaskId], repeated: list[SubtaskId]
) -> None:
    state = step(
        CoordinatorState(),
        JobSubmitted(at_ms=0, generation=1, configuration=JobConfiguration()),
    ).state
    state = step(state, CheckpointTriggered(generation=1, plan=a_plan())).state
    seen: set[SubtaskId] = set()

    for subtask in [*order[:-1], *repeated, order[-1], *repeated]:
        ack = Ack(checkpoint_id=1, subtask=subtask, attempt=1)
        transition = step(state, AckReceived(ack=ack))
        state = transition.state
        is_last = len(seen | {subtask}) == len(SUBTASKS) and subtask not in seen
        seen.add(subtask)
        assert bool(transition.commands) == is_last
