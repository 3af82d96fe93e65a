"""Which subtasks a checkpoint triggers, and which it waits for (DefaultCheckpointPlanCalculator).

Flink's rule, once tasks may finish: a running subtask is triggered when none of the subtasks it
reads from runs any more, which is every source subtask while nothing has finished.  Every running
subtask must acknowledge, and hears of the completion.  Union list state, which Flink refuses beside
partly finished vertices, does not exist here.

A source here is finished as a whole, and every stage hears of the barrier through the plan: a
trigger reads ``to_wait_for`` and ``fully_finished`` alone.  The rest of the plan, and pointwise
edges, are asked for by the conformance area checkpoint-plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias

from sluice.core.ids import SubtaskId
from sluice.core.invariants import require
from sluice.core.reasons import CheckpointFailureReason

Subtasks: TypeAlias = Mapping[str, tuple[int, ...]]
"""Subtask indices by vertex, in ascending order; a vertex without any is absent."""


class DistributionPattern(Enum):
    """How the subtasks at the two ends of an edge are connected."""

    ALL_TO_ALL = "ALL_TO_ALL"
    POINTWISE = "POINTWISE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """Flink's ExecutionJobVertex: ``not_running`` are deploying, canceled or failed subtasks."""

    uid: str
    parallelism: int
    finished: frozenset[int] = frozenset()
    not_running: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        require(self.parallelism >= 1, "a vertex has a subtask")
        require(
            self.finished | self.not_running <= frozenset(range(self.parallelism)),
            "what finished or does not run are subtasks of the vertex",
        )
        require(not self.finished & self.not_running, "what finished does run no more")

    @property
    def unfinished(self) -> tuple[int, ...]:
        return tuple(index for index in range(self.parallelism) if index not in self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    source: str
    target: str
    pattern: DistributionPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculatedPlan:
    """Flink's DefaultCheckpointPlan.  ``fully_finished`` vertices have no running subtask left."""

    to_trigger: Subtasks
    to_wait_for: Subtasks
    to_commit_to: Subtasks
    finished_subtasks: Subtasks
    fully_finished: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAllRequiredTasksRunning:
    """There is no plan: these subtasks would have to answer, and cannot."""

    reason: ClassVar[CheckpointFailureReason] = (
        CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    )
    subtasks: tuple[SubtaskId, ...]


def calculate(
    vertices: Sequence[Vertex], edges: Collection[Edge]
) -> CalculatedPlan | NotAllRequiredTasksRunning:
    """Plan a checkpoint of *vertices*, which are in topological order, as is every result."""
    by_uid = {vertex.uid: vertex for vertex in vertices}
    require(len(by_uid) == len(vertices), "the uid of a vertex is unique")
    missing = tuple(
        SubtaskId(vertex.uid, index) for vertex in vertices for index in sorted(vertex.not_running)
    )
    if missing:
        return NotAllRequiredTasksRunning(subtasks=missing)
    inputs = {
        vertex.uid: [(by_uid[edge.source], edge.pattern) for edge in edges if edge.target == uid]
        for uid, vertex in by_uid.items()
    }
    unfinished = _subtasks((vertex.uid, vertex.unfinished) for vertex in vertices)
    return CalculatedPlan(
        to_trigger=_subtasks(
            (vertex.uid, _without_running_input(vertex, inputs[vertex.uid])) for vertex in vertices
        ),
        to_wait_for=unfinished,
        to_commit_to=unfinished,
        finished_subtasks=_subtasks((vertex.uid, sorted(vertex.finished)) for vertex in vertices),
        fully_finished=tuple(vertex.uid for vertex in vertices if not vertex.unfinished),
    )


def pointwise_inputs(sources: int, targets: int, index: int) -> range:
    """The subtasks of the source that subtask *index* of the target reads (EdgeManagerBuildUtil).

    Several consecutive ones each where the source has more subtasks, else the one whose output a
    run of consecutive targets shares.
    """
    require(0 <= index < targets, "a target is one of the targets")
    first = index * sources // targets
    return range(first, max(first + 1, (index + 1) * sources // targets))


def _without_running_input(
    vertex: Vertex, inputs: Iterable[tuple[Vertex, DistributionPattern]]
) -> tuple[int, ...]:
    waiting = vertex.unfinished
    for source, pattern in inputs:
        if pattern is DistributionPattern.ALL_TO_ALL:
            waiting = () if source.unfinished else waiting
        else:
            waiting = tuple(
                index
                for index in waiting
                if source.finished.issuperset(
                    pointwise_inputs(source.parallelism, vertex.parallelism, index)
                )
            )
    return waiting


def _subtasks(by_vertex: Iterable[tuple[str, Iterable[int]]]) -> Subtasks:
    return {uid: indices for uid, given in by_vertex if (indices := tuple(given))}
