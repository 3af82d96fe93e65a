"""The decider by example, as Flink's tests have it, and against a queue that a person would keep.

The queue is one list, searched by hand, and any history is played against it.

``Model`` repeats Flink's rules as they read in CheckpointRequestDecider, one comparison at a time
and with everything mutable, so that it shares no idea with the code it judges.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sluice.core.configuration import CheckpointType
from sluice.core.decider import CheckpointRequest, Decision, Limits, Rejection, Situation, decide
from sluice.core.failures import CheckpointFailureReason as Reason
from tests.examples import examples

NOW_MS = 1_000_000
IDLE = Situation(now_ms=NOW_MS)
BUSY = Situation(now_ms=NOW_MS, is_triggering=True)


def a_checkpoint(request_id: str = "c", **given: Any) -> CheckpointRequest:
    """Periodic."""
    return replace(CheckpointRequest(request_id=request_id, requested_at_ms=0), **given)


def a_savepoint(request_id: str = "s", **given: Any) -> CheckpointRequest:
    """A person's, not forced."""
    made = a_checkpoint(request_id, type=CheckpointType.SAVEPOINT, is_periodic=False)
    return replace(made, **given)


def decide_all(
    *submitted: CheckpointRequest, limits: Limits | None = None, situation: Situation = BUSY
) -> tuple[tuple[CheckpointRequest, ...], list[Rejection]]:
    """The queue after these were submitted while the coordinator was triggering."""
    queue: tuple[CheckpointRequest, ...] = ()
    rejected: list[Rejection] = []
    for request in submitted:
        decision = decide(queue, limits or Limits(), situation, request)
        assert decision.run is None
        queue = decision.queue
        rejected += decision.rejected
    return queue, rejected


def order_of(*submitted: CheckpointRequest) -> list[str]:
    """The order in which requests run that were submitted in this one."""
    queue, _ = decide_all(*submitted)
    ran: list[str] = []
    while queue:
        decision = decide(queue, Limits(), IDLE)
        assert decision.run is not None
        ran.append(decision.run.request_id)
        queue = decision.queue
    return ran


def test_a_request_of_an_idle_job_runs_at_once() -> None:
    assert decide((), Limits(), IDLE, a_checkpoint()) == Decision(queue=(), run=a_checkpoint())


def test_without_a_request_nothing_runs() -> None:
    assert decide((), Limits(), IDLE) == Decision(queue=())


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (a_savepoint("a"), a_checkpoint("b", is_forced=True)),
        (a_savepoint("a", is_periodic=True, is_forced=True), a_savepoint("b")),
        (a_savepoint("a"), a_savepoint("b", is_periodic=True)),
        (a_checkpoint("a", is_periodic=False, requested_at_ms=9), a_checkpoint("b")),
        (a_checkpoint("a", requested_at_ms=1), a_checkpoint("b", requested_at_ms=2)),
        (a_savepoint("a", type=CheckpointType.SAVEPOINT_TERMINATE), a_checkpoint("b")),
    ],
)
def test_savepoints_forced_ones_people_and_age_overtake_in_this_order(
    first: CheckpointRequest, then: CheckpointRequest
) -> None:
    assert order_of(then, first) == ["a", "b"]
    assert order_of(first, then) == ["a", "b"]


def test_equals_run_in_the_order_of_their_arrival() -> None:
    assert order_of(a_checkpoint("z"), a_checkpoint("a"), a_checkpoint("k")) == ["z", "a", "k"]


@pytest.mark.parametrize("request_", [a_checkpoint(), a_savepoint(), a_checkpoint(is_forced=True)])
def test_only_a_forced_request_ignores_the_limit_of_concurrent_checkpoints(
    request_: CheckpointRequest,
) -> None:
    full = replace(IDLE, pending=2)

    decision = decide((), Limits(max_concurrent=2), full, request_)

    expected = (
        Decision(queue=(), run=request_) if request_.is_forced else Decision(queue=(request_,))
    )
    assert decision == expected
    assert decide((), Limits(max_concurrent=3), full, request_).run == request_


@pytest.mark.parametrize("is_forced", [False, True])
def test_too_many_deletions_hold_back_everything(is_forced: bool) -> None:
    request = a_savepoint(is_forced=is_forced)

    assert decide((), Limits(), replace(IDLE, cleaning=2), request) == Decision(queue=(request,))
    assert decide((request,), Limits(), replace(IDLE, cleaning=1)).run == request


def test_the_pause_drops_a_periodic_checkpoint_and_rearms_the_timer_for_the_rest() -> None:
    limits = Limits(min_pause_ms=10)
    soon = replace(IDLE, last_completed_at_ms=NOW_MS - 4)

    decision = decide((), limits, soon, a_checkpoint())

    dropped = Rejection(request=a_checkpoint(), reason=Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS)
    assert decision == Decision(queue=(), rejected=(dropped,), reschedule_in_ms=6)
    elapsed = replace(IDLE, last_completed_at_ms=NOW_MS - 10)
    assert decide((), limits, elapsed, a_checkpoint()).run == a_checkpoint()
    assert decide((), limits, IDLE, a_checkpoint()).run == a_checkpoint()


@pytest.mark.parametrize(
    "request_",
    [
        a_checkpoint(is_periodic=False),
        a_checkpoint(is_forced=True),
        a_savepoint(),
        a_savepoint(is_forced=True),
        a_savepoint(is_forced=True, is_periodic=True),
    ],
)
def test_people_and_force_ignore_the_pause(request_: CheckpointRequest) -> None:
    situation = replace(IDLE, last_completed_at_ms=NOW_MS)

    assert decide((), Limits(min_pause_ms=10), situation, request_).run == request_


def test_a_full_queue_drops_the_lowest_ranked() -> None:
    limits = Limits(max_queued=2)

    queue, rejected = decide_all(
        a_checkpoint("p"), a_savepoint("s"), a_savepoint("t"), limits=limits
    )

    assert [request.request_id for request in queue] == ["s", "t"]
    assert rejected == [
        Rejection(request=a_checkpoint("p"), reason=Reason.TOO_MANY_CHECKPOINT_REQUESTS)
    ]


def test_a_full_queue_may_drop_the_newcomer_as_the_lowest_ranked() -> None:
    queue, rejected = decide_all(a_checkpoint("p"), a_checkpoint("q"), limits=Limits(max_queued=1))

    assert [request.request_id for request in queue] == ["p"]
    assert [gone.request.request_id for gone in rejected] == ["q"]


def test_a_queue_full_of_peoples_requests_drops_the_newcomer_and_runs_nothing() -> None:
    mine = a_checkpoint("mine", is_periodic=False)
    newcomer = a_savepoint(is_forced=True)

    decision = decide((mine,), Limits(max_queued=1), IDLE, newcomer)

    refused = Rejection(request=newcomer, reason=Reason.TOO_MANY_CHECKPOINT_REQUESTS)
    assert decision == Decision(queue=(mine,), rejected=(refused,))


def test_submitting_a_queued_request_again_merely_asks_again() -> None:
    queue, _ = decide_all(a_savepoint("s"), a_checkpoint("c"))

    assert decide(queue, Limits(), BUSY, a_checkpoint("c")) == Decision(queue=queue)
    decision = decide(queue, Limits(), IDLE, a_checkpoint("c", requested_at_ms=7))
    assert decision == Decision(queue=(a_checkpoint("c"),), run=a_savepoint("s"))


def test_a_queued_request_whose_owner_may_be_dead_expires() -> None:
    mortal = a_savepoint("mortal", expires_at_ms=NOW_MS)
    patient = a_savepoint("patient", expires_at_ms=NOW_MS + 1)

    decision = decide((mortal, patient), Limits(), BUSY)

    expired = Rejection(request=mortal, reason=Reason.CHECKPOINT_EXPIRED)
    assert decision == Decision(queue=(patient,), rejected=(expired,))
    assert decide((mortal,), Limits(), IDLE, mortal) == Decision(queue=(), rejected=(expired,))


def test_an_expired_request_makes_room_for_a_new_one() -> None:
    mortal = a_savepoint("mortal", expires_at_ms=NOW_MS)

    decision = decide((mortal,), Limits(max_queued=1), BUSY, a_savepoint("new"))

    assert decision.queue == (a_savepoint("new"),)
    assert [gone.request for gone in decision.rejected] == [mortal]


class Model:
    """Flink's rules, by hand."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.queue: list[CheckpointRequest] = []  # In order of arrival.
        self.events: list[tuple[str, object]] = []

    def goes_before(self, one: CheckpointRequest, other: CheckpointRequest) -> bool:
        if one.type.is_savepoint != other.type.is_savepoint:
            return one.type.is_savepoint
        if one.is_forced != other.is_forced:
            return one.is_forced
        if one.is_periodic != other.is_periodic:
            return not one.is_periodic
        if one.requested_at_ms != other.requested_at_ms:
            return one.requested_at_ms < other.requested_at_ms
        return self.queue.index(one) < self.queue.index(other)

    def place(self, request: CheckpointRequest) -> int:
        return sum(self.goes_before(other, request) for other in self.queue if other != request)

    def at(self, place: int) -> CheckpointRequest:
        (found,) = [request for request in self.queue if self.place(request) == place]
        return found

    def fail(self, request: CheckpointRequest, reason: Reason) -> None:
        self.queue.remove(request)
        self.events.append((reason.value, request.request_id))

    def look(self, now_ms: int) -> None:
        for place in range(len(self.queue) - 1, -1, -1):
            request = self.at(place)
            if request.expires_at_ms is not None and now_ms >= request.expires_at_ms:
                self.fail(request, Reason.CHECKPOINT_EXPIRED)
        self.events.reverse()

    def submit(self, request: CheckpointRequest, situation: Situation) -> None:
        self.events = []
        is_known = request.request_id in {other.request_id for other in self.queue}
        self.look(situation.now_ms)
        if is_known:
            self.choose(situation)
            return
        is_full = len(self.queue) >= self.limits.max_queued
        self.queue.append(request)
        if is_full and not self.lowest_before(request).is_periodic:
            self.fail(request, Reason.TOO_MANY_CHECKPOINT_REQUESTS)
            return
        if is_full:
            self.fail(self.at(len(self.queue) - 1), Reason.TOO_MANY_CHECKPOINT_REQUESTS)
        self.choose(situation)

    def lowest_before(self, newcomer: CheckpointRequest) -> CheckpointRequest:
        others = [request for request in self.queue if request != newcomer]
        (lowest,) = [r for r in others if all(self.goes_before(o, r) for o in others if o != r)]
        return lowest

    def ask(self, situation: Situation) -> None:
        self.events = []
        self.look(situation.now_ms)
        self.choose(situation)

    def choose(self, situation: Situation) -> None:
        if not self.queue or situation.is_triggering:
            return
        if situation.cleaning > self.limits.max_concurrent:
            return
        first = self.at(0)
        if situation.pending >= self.limits.max_concurrent and not first.is_forced:
            return
        if first.is_periodic and not first.is_forced and situation.last_completed_at_ms is not None:
            due_ms = situation.last_completed_at_ms + self.limits.min_pause_ms
            if due_ms > situation.now_ms:
                self.fail(first, Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS)
                self.events.append(("reschedule", due_ms - situation.now_ms))
                return
        self.queue.remove(first)
        self.events.append(("run", first.request_id))


def events_of(decision: Decision) -> list[tuple[str, object]]:
    events: list[tuple[str, object]] = [
        (gone.reason.value, gone.request.request_id) for gone in decision.rejected
    ]
    if decision.reschedule_in_ms is not None:
        events.append(("reschedule", decision.reschedule_in_ms))
    if decision.run is not None:
        events.append(("run", decision.run.request_id))
    return events


counts = st.integers(0, 3)
situations = st.fixed_dictionaries(
    {
        "is_triggering": st.sampled_from([True, False, False]),
        "pending": counts,
        "cleaning": counts,
    }
)


class Decider(RuleBasedStateMachine):
    @initialize(
        max_concurrent=st.integers(1, 2), min_pause_ms=st.sampled_from([0, 3]), max_queued=counts
    )
    def start(self, max_concurrent: int, min_pause_ms: int, max_queued: int) -> None:
        self.limits = Limits(
            max_concurrent=max_concurrent, min_pause_ms=min_pause_ms, max_queued=max_queued + 1
        )
        self.model = Model(self.limits)
        self.queue: tuple[CheckpointRequest, ...] = ()
        self.now_ms = 0
        self.last_completed_at_ms: int | None = None
        self.submitted = 0
        self.gone: list[str] = []

    @rule(ms=st.integers(0, 4))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def a_checkpoint_completes(self) -> None:
        self.last_completed_at_ms = self.now_ms

    @rule(
        type_=st.sampled_from(CheckpointType),
        is_periodic=st.booleans(),
        is_forced=st.booleans(),
        ago_ms=st.integers(0, 2),
        patience_ms=st.none() | st.integers(0, 5),
        situation=situations,
    )
    def submit(
        self,
        type_: CheckpointType,
        is_periodic: bool,
        is_forced: bool,
        ago_ms: int,
        patience_ms: int | None,
        situation: dict[str, Any],
    ) -> None:
        self.submitted += 1
        request = CheckpointRequest(
            request_id=f"request-{self.submitted}",
            type=type_,
            is_periodic=is_periodic,
            is_forced=is_forced,
            requested_at_ms=self.now_ms - ago_ms,
            expires_at_ms=None if patience_ms is None else self.now_ms + patience_ms,
        )
        self.hand_over(request, situation)

    @precondition(lambda self: self.queue)
    @rule(data=st.data(), situation=situations)
    def submit_again(self, data: st.DataObject, situation: dict[str, Any]) -> None:
        self.hand_over(data.draw(st.sampled_from(self.queue)), situation)

    @rule(situation=situations)
    def ask(self, situation: dict[str, Any]) -> None:
        self.hand_over(None, situation)

    def hand_over(self, request: CheckpointRequest | None, drawn: dict[str, Any]) -> None:
        situation = Situation(
            now_ms=self.now_ms, last_completed_at_ms=self.last_completed_at_ms, **drawn
        )
        decision = decide(self.queue, self.limits, situation, request)
        if request is None:
            self.model.ask(situation)
        else:
            self.model.submit(request, situation)
        assert events_of(decision) == self.model.events
        self.queue = decision.queue
        self.gone += [gone.request.request_id for gone in decision.rejected]
        self.gone += [decision.run.request_id] if decision.run else []

    @invariant()
    def the_queue_is_the_models_in_rank_order(self) -> None:
        queued = self.queue
        assert queued == tuple(self.model.at(place) for place in range(len(queued)))
        assert len(queued) <= self.limits.max_queued

    @invariant()
    def every_request_waits_or_has_left_once(self) -> None:
        everybody = [*self.gone, *(request.request_id for request in self.queue)]
        assert len(everybody) == len(set(everybody)) == self.submitted


Decider.TestCase.settings = settings(examples(40), stateful_step_count=40)
TestDecider = Decider.TestCase
