"""Which subtasks Flink triggers, and which it waits for (DefaultCheckpointPlanCalculator).

A model to judge by, no part of the product: there a stage finishes as a whole, at a barrier, and
every stage hears of the barrier through the plan.  Here any subtask may have finished.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sluice.core.failures import CheckpointFailureReason

Subtasks: TypeAlias = Mapping[str, tuple[int, ...]]
"""Subtask indices by vertex, in ascending order; a vertex without any is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """Flink's ExecutionJobVertex: ``not_running`` are deploying, canceled or failed subtasks."""

    uid: str
    parallelism: int
    finished: frozenset[int] = frozenset()
    not_running: frozenset[int] = frozenset()

    @property
    def unfinished(self) -> tuple[int, ...]:
        return tuple(index for index in range(self.parallelism) if index not in self.finished)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    source: str
    target: str
    is_pointwise: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``fully_finished`` vertices have no running subtask left.  A checkpoint is committed to those
    that it waits for.
    """

    to_trigger: Subtasks
    to_wait_for: Subtasks
    finished: Subtasks
    fully_finished: tuple[str, ...]


def plan(vertices: Sequence[Vertex], edges: Collection[Edge]) -> Plan | CheckpointFailureReason:
    """The plan of *vertices*, which are in topological order, or why there is none."""
    if any(vertex.not_running for vertex in vertices):
        return CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
    by_uid = {vertex.uid: vertex for vertex in vertices}
    assert len(by_uid) == len(vertices), "the uid of a vertex is unique"
    inputs = {
        uid: [(by_uid[edge.source], edge.is_pointwise) for edge in edges if edge.target == uid]
        for uid in by_uid
    }
    return Plan(
        to_trigger=_subtasks((v.uid, _without_running_input(v, inputs[v.uid])) for v in vertices),
        to_wait_for=_subtasks((v.uid, v.unfinished) for v in vertices),
        finished=_subtasks((v.uid, sorted(v.finished)) for v in vertices),
        fully_finished=tuple(v.uid for v in vertices if not v.unfinished),
    )


def pointwise_inputs(sources: int, targets: int, index: int) -> range:
    """The subtasks of the source that subtask *index* of the target reads (EdgeManagerBuildUtil).

    Several consecutive ones each where the source has more subtasks, else the one whose output a
    run of consecutive targets shares.
    """
    first = index * sources // targets
    return range(first, max(first + 1, (index + 1) * sources // targets))


def _without_running_input(
    vertex: Vertex, inputs: Iterable[tuple[Vertex, bool]]
) -> tuple[int, ...]:
    waiting = vertex.unfinished
    for source, is_pointwise in inputs:
        everybody = range(source.parallelism)
        waiting = tuple(
            index
            for index in waiting
            if source.finished.issuperset(
                pointwise_inputs(source.parallelism, vertex.parallelism, index)
                if is_pointwise
                else everybody
            )
        )
    return waiting


def _subtasks(by_vertex: Iterable[tuple[str, Iterable[int]]]) -> Subtasks:
    return {uid: indices for uid, given in by_vertex if (indices := tuple(given))}
