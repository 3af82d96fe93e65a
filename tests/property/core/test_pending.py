"""A PendingCheckpoint against a checklist that a person would keep: who has to answer, and who did.

``Checklist`` is mutable and knows only names, so that it shares no idea with the code it judges.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluice.core.answers import Ack
from sluice.core.coordinator import step
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.pending import AckResult, PendingCheckpoint
from sluice.core.plan import TaskPlan
from tests.builders import SUBTASKS, a_plan, a_submitted, after, triggered
from tests.builders import acked as acknowledged
from tests.examples import examples

STAGES = ("a", "b", "c")

stages = st.sampled_from([*STAGES, "elsewhere"])
indices = st.integers(-1, 3)
attempts = st.integers(0, 3)


@st.composite
def plans(draw: st.DrawFn) -> list[TaskPlan]:
    """In topological order, each reading a source or a stage before it."""
    stages_ = draw(st.lists(st.sampled_from(STAGES), min_size=1, unique=True))
    return [
        TaskPlan(
            uid=uid,
            parallelism=draw(st.integers(1, 3)),
            max_parallelism=128,
            is_unaligned=draw(st.booleans()),
            may_be_overtaken=draw(st.booleans()),
            reads=tuple(draw(st.sets(st.sampled_from(stages_[:place]), max_size=2)))
            if place
            else (),
        )
        for place, uid in enumerate(stages_)
    ]


def a_segment(key: str) -> SegmentHandle:
    return SegmentHandle(key=key, size_bytes=1, rows=1, checksum="c")


def an_ack(stage: str, index: int, attempt: int, file: str) -> Ack:
    return Ack(
        checkpoint_id=CheckpointId(1),
        subtask=SubtaskId(stage, index),
        attempt=attempt,
        state=(StateHandle(segment=a_segment(file)),),
    )


class Checklist:
    """Who has to answer, who has, and with which file."""

    def __init__(self, plan: list[TaskPlan]) -> None:
        self.parallelism = {task.uid: task.parallelism for task in plan}
        self.lax = {task.uid for task in plan if task.may_be_overtaken}
        self.readers = [(r, t.uid) for t in plan for r in t.reads if not t.is_unaligned]
        self.attempt = dict.fromkeys([*STAGES, "elsewhere"], 1)
        self.overtaken: set[str] = set()
        self.answered: list[tuple[str, int, str]] = []

    def acknowledge(self, ack: Ack) -> AckResult:
        stage, index = ack.subtask.stage, ack.subtask.index
        if stage not in self.parallelism or stage in self.overtaken:
            return AckResult.UNKNOWN
        if index not in range(self.parallelism[stage]) or ack.attempt != self.attempt[stage]:
            return AckResult.UNKNOWN
        if (stage, index) in [(s, i) for s, i, _ in self.answered]:
            return AckResult.DUPLICATE
        self.answered.append((stage, index, ack.state[0].segment.key))
        return AckResult.SUCCESS

    def forget(self, stage: str) -> None:
        self.answered = [answer for answer in self.answered if answer[0] != stage]

    def overtake(self, stage: str) -> None:
        """With everybody who reads it, directly or not."""
        self.overtaken.add(stage)
        self.forget(stage)
        for reader in [reader for read, reader in self.readers if read == stage]:
            self.overtake(reader)

    def start(self, stage: str, attempt: int) -> None:
        """With everybody behind it, each once, whichever way it is reached."""
        behind, reached = {stage}, [stage]
        while reached:
            reached = [r for read, r in self.readers if read in reached and r not in behind]
            behind.update(reached)
        for one in behind:
            self.attempt[one] += 1
            self.forget(one)
        self.attempt[stage] = attempt

    @property
    def missing(self) -> list[tuple[str, int]]:
        crossed_off = {(stage, index) for stage, index, _ in self.answered}
        return [
            (stage, index)
            for stage, parallelism in self.parallelism.items()
            if stage not in self.overtaken
            for index in range(parallelism)
            if (stage, index) not in crossed_off
        ]


class Pending(RuleBasedStateMachine):
    @initialize(plan=plans())
    def start(self, plan: list[TaskPlan]) -> None:
        self.pending = PendingCheckpoint.of(a_plan(sources=(), tasks=tuple(plan)))
        self.checklist = Checklist(plan)
        self.files = 0

    def a_file(self) -> str:
        self.files += 1
        return f"file-{self.files}"

    @rule(stage=stages, index=indices, attempt=attempts)
    def acknowledge(self, stage: str, index: int, attempt: int) -> None:
        ack = an_ack(stage, index, attempt, self.a_file())

        before = self.pending
        self.pending, results = before.acknowledge([ack])

        assert results == (self.checklist.acknowledge(ack),)
        assert (self.pending == before) == (results != (AckResult.SUCCESS,))

    @rule(data=st.data())
    def acknowledge_a_missing_one(self, data: st.DataObject) -> None:
        stage, index = data.draw(st.sampled_from([*self.checklist.missing, ("elsewhere", 0)]))
        self.acknowledge(stage, index, self.checklist.attempt[stage])

    @rule(answers=st.lists(st.tuples(stages, indices, st.integers(0, 1)), max_size=8))
    def acknowledge_many(self, answers: list[tuple[str, int, int]]) -> None:
        """Of the current attempt, or the one before."""
        acks = [
            an_ack(stage, index, self.checklist.attempt[stage] - ago, self.a_file())
            for stage, index, ago in answers
        ]

        self.pending, results = self.pending.acknowledge(acks)

        assert results == tuple(map(self.checklist.acknowledge, acks))

    @rule(stage=stages, more=st.integers(1, 2))
    def start_attempt(self, stage: str, more: int) -> None:
        attempt = self.checklist.attempt[stage] + more

        self.pending = self.pending.start_attempt(stage, attempt)

        self.checklist.start(stage, attempt)

    @rule(behind=st.sets(stages))
    def overtake(self, behind: set[str]) -> None:
        self.pending = self.pending.overtake(behind)

        for stage in behind & self.checklist.lax:
            self.checklist.overtake(stage)

    @invariant()
    def it_waits_for_whom_the_checklist_misses(self) -> None:
        waiting = [(subtask.stage, subtask.index) for subtask in self.pending.not_yet_acknowledged]
        assert waiting == self.checklist.missing
        assert self.pending.is_fully_acknowledged == (not waiting)

    @invariant()
    def it_holds_the_files_of_those_who_count_and_no_others(self) -> None:
        files = [file for _, _, file in self.checklist.answered]
        acks = self.pending.acks.values()
        assert [handle.segment.key for ack in acks for handle in ack.state] == files

    @invariant()
    def it_knows_who_was_overtaken_and_who_runs(self) -> None:
        assert set(self.pending.overtaken) == self.checklist.overtaken
        assert len(self.pending.overtaken) == len(self.checklist.overtaken)
        for stage, attempt in self.checklist.attempt.items():
            assert self.pending.attempt_of(stage) == attempt


Pending.TestCase.settings = settings(examples(40), stateful_step_count=40)
TestPending = Pending.TestCase


@given(st.permutations(SUBTASKS), st.lists(st.sampled_from(SUBTASKS), max_size=6))
def test_a_checkpoint_is_fully_acknowledged_with_every_ack_and_no_sooner(
    order: list[SubtaskId], repeated: list[SubtaskId]
) -> None:
    state = after(a_submitted(), triggered())
    seen: set[SubtaskId] = set()

    for subtask in [*order[:-1], *repeated, order[-1], *repeated]:
        state = step(state, acknowledged(subtask)).state
        seen.add(subtask)
        assert state.pending[0].is_fully_acknowledged == (len(seen) == len(SUBTASKS))
