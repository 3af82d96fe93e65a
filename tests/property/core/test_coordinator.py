"""The coordinator under any history: what a live one would say next, and anything at all.

``coordinator_rules`` says what holds of every step; the machine follows each checkpoint and each
request from its beginning to its one end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from harness.jobs import STAGES
from sluice.core.configuration import ClaimMode, JobConfiguration, JobStatus
from sluice.core.coordinator import step
from sluice.core.decider import CheckpointRequest
from sluice.core.events import (
    AcksReceived,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointRequested,
    CheckpointTriggered,
    DiscardPending,
    Event,
    HooksRestored,
    JobRestored,
    JobStopped,
    JobSubmitted,
    RootAdopted,
    SnapshotsDiscarded,
    TablesRecovered,
    Transition,
    Verdict,
)
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, Generation, SubtaskId
from sluice.core.lifecycle import next_generation
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan, SnapshotOrigin
from sluice.core.requests import Admission, examine
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableDecision
from tests.builders import TASKS, a_plan, acked, an_attempt, declined
from tests.core_events import timed_out
from tests.examples import examples
from tests.property.core.any_event import (
    STOPS,
    configurations,
    events,
    reasons,
    reasons_to_decline,
    requests,
)
from tests.property.core.coordinator_rules import ALIVE, check_state, check_step

whims = st.sampled_from([False] * 9 + [True])
ELSEWHERE = SnapshotOrigin(checkpoint_id=CheckpointId(7), root="s3://other")
LAX = (TASKS[0], replace(TASKS[1], may_be_overtaken=True))


class Coordinator(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = CoordinatorState()
        self.now_ms = 1_000
        self.asked = 0
        self.begun: list[int] = []
        self.completed: list[int] = []
        self.aborted: list[int] = []
        self.generations: list[int] = []

    def say(self, event: Event) -> Transition:
        transition = step(self.state, event)
        check_step(self.state, event, transition)
        check_state(transition.state)
        if transition.verdict is Verdict.APPLIED:
            self.note(event, transition)
        self.state = transition.state
        return transition

    def note(self, event: Event, transition: Transition) -> None:
        if isinstance(event, CheckpointTriggered):
            self.begun.append(event.plan.checkpoint_id)
        if isinstance(event, CheckpointCompleted):
            self.completed.append(event.checkpoint_id)
        if isinstance(event, JobSubmitted | JobRestored | RootAdopted):
            self.generations.append(event.generation)
        self.aborted += [
            c.checkpoint_id for c in transition.commands if isinstance(c, DiscardPending)
        ]

    def teardown(self) -> None:
        ended = [*self.completed, *self.aborted]
        pending = [pending.checkpoint_id for pending in self.state.pending]
        assert self.begun == sorted(set(self.begun))
        assert sorted([*ended, *pending]) == self.begun
        assert self.completed == sorted(set(self.completed))
        assert self.generations == sorted(set(self.generations))

    def one_of_the_pending(self, data: st.DataObject) -> PendingCheckpoint:
        return data.draw(st.sampled_from(self.state.pending))

    @property
    def about(self) -> dict[str, Any]:
        return {"generation": self.state.generation, "at_ms": self.now_ms}

    @rule(event=events, is_current=st.booleans())
    def hear_anything(self, event: Event, is_current: bool) -> None:
        """Who takes over is rare, or nothing else would ever come far."""
        if is_current and not isinstance(
            event, AcksReceived | JobSubmitted | JobRestored | RootAdopted
        ):
            event = replace(event, generation=self.state.generation)
        self.say(event)

    @rule(ms=st.integers(-300, 900))
    def time_passes_or_the_clock_goes_back(self, ms: int) -> None:
        self.now_ms = max(0, self.now_ms + ms)

    @initialize(configuration=configurations)
    def begin(self, configuration: JobConfiguration) -> None:
        self.submit(configuration)

    @precondition(lambda self: self.state.status not in ALIVE)
    @rule(configuration=configurations)
    def submit(self, configuration: JobConfiguration) -> None:
        generation = next_generation(self.state)
        self.say(
            JobSubmitted(
                at_ms=self.now_ms,
                generation=generation,
                configuration=configuration,
                life=f"life-{generation}",
            )
        )

    @rule(data=st.data(), owes=whims, claim_mode=st.sampled_from(ClaimMode))
    def restore(self, data: st.DataObject, owes: bool, claim_mode: ClaimMode) -> None:
        if self.state.status is JobStatus.RUNNING and not data.draw(whims):
            return
        retained = [one.checkpoint_id for one in self.state.completed]
        own = data.draw(st.sampled_from([*retained, None]))
        theirs = (
            SnapshotOrigin(checkpoint_id=CheckpointId(7), savepoint="theirs")
            if own is None
            else None
        )
        origin = theirs if data.draw(st.booleans()) else None
        checkpoint_id = own if origin is None else origin.checkpoint_id
        is_asked = owes or not self.state.continues(checkpoint_id, origin)
        tables = TableDecision(newest=data.draw(st.integers(0, 12))) if is_asked else None
        self.say(
            JobRestored(
                at_ms=self.now_ms,
                generation=next_generation(self.state),
                checkpoint_id=checkpoint_id,
                origin=origin,
                claim_mode=claim_mode,
                has_hooks=owes and data.draw(st.booleans()),
                is_latest=data.draw(st.booleans()),
                tables=tables,
            )
        )

    @precondition(lambda self: self.state.must_restore_hooks)
    @rule()
    def restore_the_hooks(self) -> None:
        self.say(HooksRestored(generation=self.state.generation))
        assert not self.state.must_restore_hooks

    @precondition(lambda self: self.state.table_recovery)
    @rule()
    def recover_the_tables(self) -> None:
        self.say(TablesRecovered(generation=self.state.generation))
        assert self.state.table_recovery is None

    @rule(request=requests)
    def ask(self, request: CheckpointRequest) -> None:
        self.asked += 1
        self.look_after(replace(request, request_id=f"r-{self.asked}"))

    @precondition(lambda self: self.state.queue)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        self.look_after(data.draw(st.sampled_from(self.state.queue)))

    def look_after(self, request: CheckpointRequest) -> None:
        """As the owner of a request does: ask, and trigger when told to."""
        self.say(CheckpointRequested(**self.about, request=request))
        if examine(self.state, request, self.about["at_ms"]).admission is not Admission.RUNS:
            return
        plan = self.a_plan_for(request)
        stale = [
            replace(plan, parent=None if plan.parent else CheckpointId(plan.checkpoint_id - 1)),
            replace(plan, origin=None if plan.origin else ELSEWHERE),
            replace(plan, generation=Generation(plan.generation + 1)),
        ]
        for wrong in stale:
            assert self.trigger(wrong, request) is Verdict.REFUSED
        can = not self.state.owes_a_restore
        assert self.trigger(plan, request) is (Verdict.APPLIED if can else Verdict.REFUSED)
        assert self.trigger(plan, request) is (Verdict.IGNORED if can else Verdict.REFUSED)

    def trigger(self, plan: CheckpointPlan, request: CheckpointRequest) -> Verdict:
        generation = self.state.generation
        triggered = CheckpointTriggered(generation=generation, plan=plan, request=request)
        return self.say(triggered).verdict

    def a_plan_for(self, request: CheckpointRequest) -> CheckpointPlan:
        return a_plan(
            self.state.next_checkpoint_id,
            generation=self.state.generation,
            parent=self.state.tip,
            origin=None if self.state.pending else self.state.origin,
            type=request.type,
            triggered_at_ms=self.now_ms,
            tasks=LAX,
        )

    @precondition(lambda self: self.state.pending)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        pending = self.one_of_the_pending(data)
        for subtask in data.draw(st.permutations(pending.not_yet_acknowledged)):
            attempt = pending.attempt_of(subtask.stage)
            self.say(acked(subtask, checkpoint_id=pending.checkpoint_id, attempt=attempt))

    @precondition(lambda self: self.state.pending)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        pending = self.one_of_the_pending(data)
        parent = self.state.latest_completed
        is_next = pending is self.state.pending[0] and (parent is None or parent.is_committed)

        transition = self.finish(pending.checkpoint_id)

        assert transition.verdict is (Verdict.APPLIED if is_next else Verdict.REFUSED)

    def finish(self, checkpoint_id: CheckpointId) -> Transition:
        pending = self.state.pending_checkpoint(checkpoint_id)
        made: dict[str, Any] = {"checkpointed_bytes": 1, "full_bytes": 1}
        made["attempts"] = {} if pending is None else pending.current_attempts
        return self.say(CheckpointCompleted(**self.about, checkpoint_id=checkpoint_id, **made))

    @precondition(lambda self: self.state.status is JobStatus.RUNNING)
    @rule(asks=st.lists(requests, max_size=4), finishes=st.booleans(), does_clean_up=st.booleans())
    def run_epochs(
        self, asks: list[CheckpointRequest], finishes: bool, does_clean_up: bool
    ) -> None:
        """What happens most of the time: the oldest completes, is committed, another is asked."""
        for request in asks:
            if finishes and self.state.pending:
                self.finish(self.state.pending[0].checkpoint_id)
            if finishes and self.state.latest_completed is not None:
                self.commit(does_clean_up)
            self.ask(request)

    @precondition(lambda self: self.state.completed)
    @rule(does_clean_up=st.booleans())
    def commit(self, does_clean_up: bool) -> None:
        gone = tuple(c.checkpoint_id for c in self.state.discarding) if does_clean_up else ()
        latest = self.state.latest_completed or self.state.completed[-1]
        newest = latest.checkpoint_id
        self.say(CheckpointCommitted(**self.about, checkpoint_id=newest, discarded=gone))

    @precondition(lambda self: self.state.discarding)
    @rule()
    def clean_up(self) -> None:
        gone = tuple(c.checkpoint_id for c in self.state.discarding)
        self.say(SnapshotsDiscarded(generation=self.state.generation, checkpoints=gone))
        assert self.state.discarding == ()

    @precondition(lambda self: self.state.pending)
    @rule(data=st.data(), reason=reasons, is_task_failure=st.sampled_from([False, False, True]))
    def fail(
        self, data: st.DataObject, reason: CheckpointFailureReason, is_task_failure: bool
    ) -> None:
        doomed = self.one_of_the_pending(data).checkpoint_id
        self.say(
            CheckpointFailed(
                **self.about, checkpoint_id=doomed, reason=reason, is_task_failure=is_task_failure
            )
        )

    @precondition(lambda self: self.state.pending)
    @rule(data=st.data(), stage=st.sampled_from(STAGES), verb=st.sampled_from("dao"))
    def interrupt(self, data: st.DataObject, stage: str, verb: str) -> None:
        """Decline, start another attempt, overtake."""
        pending = self.one_of_the_pending(data)
        about = {"checkpoint_id": pending.checkpoint_id, "generation": self.state.generation}
        attempt = pending.attempt_of(stage)
        match verb:
            case "d":
                because = data.draw(reasons_to_decline)
                event = declined(
                    SubtaskId(stage, 0),
                    attempt=attempt,
                    reason=because,
                    checkpoint_id=pending.checkpoint_id,
                    generation=self.state.generation,
                )
                self.say(event)
            case "a":
                self.say(an_attempt(attempt + 1, stage=stage, **about))
                assert self.state.pending[-1].checkpoint_id == pending.checkpoint_id
            case _:
                self.say(timed_out(*STAGES, **about))

    @precondition(lambda self: self.state.status in ALIVE)
    @rule(status=st.sampled_from(STOPS), wants_to=whims)
    def stop(self, status: JobStatus, wants_to: bool) -> None:
        if wants_to:
            self.say(JobStopped(**self.about, status=status))


Coordinator.TestCase.settings = settings(examples(50), stateful_step_count=50)
TestCoordinator = Coordinator.TestCase


@given(st.lists(events, max_size=40))
def test_any_history_has_a_state_that_keeps_the_rules(history: list[Event]) -> None:
    state = CoordinatorState()
    for event in history:
        transition = step(state, event)
        check_step(state, event, transition)
        check_state(transition.state)
        state = transition.state
