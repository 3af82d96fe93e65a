"""The store against CheckpointSubsumeHelper, written again: a deque, an iterator, three questions.

``Helper`` repeats the Java class as it reads, one removal at a time, so that it shares no idea
with the code it judges.
"""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from sluice.core.completed import CompletedCheckpoint, subsumed
from sluice.core.configuration import CheckpointType
from tests.examples import examples
from tests.property.core.completed_checkpoints import a_completed

types = st.sampled_from(CheckpointType)


class Helper:
    """Flink's rules, by hand."""

    def __init__(self, checkpoints: deque[CompletedCheckpoint]) -> None:
        self.checkpoints = checkpoints

    def subsume(self, retain: int) -> list[CompletedCheckpoint]:
        gone: list[CompletedCheckpoint] = []
        if len(self.checkpoints) <= retain:
            return gone
        latest = self.checkpoints[-1]
        not_savepoint = self.latest_that_is_no_savepoint()
        for candidate in list(self.checkpoints):
            if len(self.checkpoints) <= retain:
                return gone
            if self.can_subsume(candidate, latest, not_savepoint):
                self.checkpoints.remove(candidate)
                gone.append(candidate)
        return gone

    def latest_that_is_no_savepoint(self) -> CompletedCheckpoint | None:
        for checkpoint in reversed(self.checkpoints):
            if checkpoint.type is CheckpointType.CHECKPOINT:
                return checkpoint
        return None

    def can_subsume(
        self,
        candidate: CompletedCheckpoint,
        latest: CompletedCheckpoint,
        not_savepoint: CompletedCheckpoint | None,
    ) -> bool:
        if candidate is latest:
            return False
        if candidate.type is not CheckpointType.CHECKPOINT:
            return True
        if latest.type in (CheckpointType.SAVEPOINT_SUSPEND, CheckpointType.SAVEPOINT_TERMINATE):
            return True
        return not_savepoint is not None and candidate is not not_savepoint


def a_store(kinds: list[CheckpointType]) -> tuple[CompletedCheckpoint, ...]:
    return tuple(a_completed(number, kind) for number, kind in enumerate(kinds, start=1))


@given(st.lists(types, max_size=8), st.integers(1, 4))
def test_any_store_is_subsumed_as_flinks(kinds: list[CheckpointType], num_retained: int) -> None:
    store = a_store(kinds)
    helper = Helper(deque(store))

    gone = helper.subsume(num_retained)

    assert subsumed(store, num_retained) == tuple(gone)
    assert tuple(c for c in store if c not in gone) == tuple(helper.checkpoints)


@given(st.lists(types, min_size=1, max_size=8), st.integers(1, 4))
def test_the_newest_never_leaves_nor_does_what_the_next_one_builds_on(
    kinds: list[CheckpointType], num_retained: int
) -> None:
    store = a_store(kinds)

    kept = [checkpoint for checkpoint in store if checkpoint not in subsumed(store, num_retained)]

    real = [c for c in store if not c.type.is_savepoint]
    assert kept[-1] == store[-1]
    assert min(num_retained, len(store)) <= len(kept) <= num_retained + 1
    assert not real or store[-1].type.stops_the_job or real[-1] in kept


@given(
    st.lists(st.tuples(types, st.integers(0, 50)), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(1, 60),
)
def test_what_goes_by_age_is_what_the_number_lets_go_and_is_old_enough(
    drawn: list[tuple[CheckpointType, int]], num_retained: int, retain_ms: int
) -> None:
    """Whatever the clocks are: only what is old goes, and never below the number."""
    store = tuple(
        a_completed(number, kind, completed_at_ms=at)
        for number, (kind, at) in enumerate(drawn, start=1)
    )

    gone = subsumed(store, num_retained, retain_ms=retain_ms)

    by_number = subsumed(store, num_retained)
    assert all(store[-1].completed_at_ms - one.completed_at_ms >= retain_ms for one in gone)
    assert len(store) - len(gone) >= min(num_retained, len(store))
    assert len(gone) <= len(by_number)
    assert subsumed(store, num_retained, retain_ms=1_000) == ()
    real = [c for c in store if not c.type.is_savepoint]
    assert not real or store[-1].type.stops_the_job or real[-1] not in gone


class Store(RuleBasedStateMachine):
    """Checkpoints are added one by one, as jobs do, and what is retained changes on the way."""

    @initialize(num_retained=st.integers(1, 4))
    def start(self, num_retained: int) -> None:
        self.num_retained = num_retained
        self.completed: tuple[CompletedCheckpoint, ...] = ()
        self.helper = Helper(deque())
        self.added = 0

    @rule(num_retained=st.integers(1, 4))
    def restore_with_another_limit(self, num_retained: int) -> None:
        self.num_retained = num_retained

    @rule(kind=types)
    def add(self, kind: CheckpointType) -> None:
        self.added += 1
        newest = a_completed(self.added, kind)
        store = (*self.completed, newest)
        gone = subsumed(store, self.num_retained)
        self.completed = tuple(c for c in store if c not in gone)
        self.helper.checkpoints.append(newest)
        self.helper.subsume(self.num_retained)

        assert self.completed == tuple(self.helper.checkpoints)
        assert len(self.completed) <= self.num_retained + 1  # FLINK-21351.


Store.TestCase.settings = settings(examples(30), stateful_step_count=30)
TestStore = Store.TestCase
