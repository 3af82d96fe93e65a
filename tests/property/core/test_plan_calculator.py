"""The plan against a graph whose every connection is drawn: no rule, only reachability.

Method: the edges of a random job are expanded to single connections between subtasks, from the
producing side, as Flink's EdgeManagerBuildUtil does; who must be triggered can then be read off.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ids import SubtaskId
from sluice.core.plan_calculator import (
    CalculatedPlan,
    DistributionPattern,
    Edge,
    NotAllRequiredTasksRunning,
    Vertex,
    calculate,
    pointwise_inputs,
)
from sluice.core.reasons import CheckpointFailureReason

ALL, POINTWISE = DistributionPattern.ALL_TO_ALL, DistributionPattern.POINTWISE


def vertices(*shapes: tuple[int, set[int]]) -> list[Vertex]:
    """Named "0", "1"...; of each its parallelism, and its finished subtasks."""
    return [
        Vertex(uid=str(index), parallelism=parallelism, finished=frozenset(finished))
        for index, (parallelism, finished) in enumerate(shapes)
    ]


def edges(*given_: tuple[int, int, DistributionPattern]) -> list[Edge]:
    return [
        Edge(source=str(source), target=str(target), pattern=pattern)
        for source, target, pattern in given_
    ]


def triggered(job: list[Vertex], connections: list[Edge]) -> dict[str, tuple[int, ...]]:
    plan = calculate(job, connections)
    assert isinstance(plan, CalculatedPlan)
    return dict(plan.to_trigger)


def test_while_everything_runs_the_sources_are_triggered_and_everybody_is_waited_for() -> None:
    job = vertices((3, set()), (4, set()), (5, set()), (6, set()))

    plan = calculate(job, edges((0, 2, ALL), (1, 2, POINTWISE), (2, 3, ALL)))

    everybody = {vertex.uid: tuple(range(vertex.parallelism)) for vertex in job}
    assert plan == CalculatedPlan(
        to_trigger={"0": (0, 1, 2), "1": (0, 1, 2, 3)},
        to_wait_for=everybody,
        to_commit_to=everybody,
        finished_subtasks={},
        fully_finished=(),
    )


def test_one_running_source_is_enough_for_all_targets_of_an_all_to_all_edge() -> None:
    job = vertices((3, {0, 1}), (4, set()))

    assert triggered(job, edges((0, 1, ALL))) == {"0": (2,)}


def test_the_target_of_a_finished_source_is_triggered_in_its_place() -> None:
    connection = edges((0, 1, POINTWISE))

    assert triggered(vertices((4, {0, 1}), (4, set())), connection) == {"0": (2, 3), "1": (0, 1)}
    assert triggered(vertices((4, {0, 1}), (4, {0})), connection) == {"0": (2, 3), "1": (1,)}


def test_every_input_of_a_subtask_counts() -> None:
    job = vertices((3, {0, 1, 2}), (5, {0, 2, 3}), (5, {2, 4}), (5, {2}))

    plan = calculate(job, edges((0, 3, ALL), (1, 3, POINTWISE), (2, 3, POINTWISE)))

    running = {"1": (1, 4), "2": (0, 1, 3), "3": (0, 1, 3, 4)}
    assert plan == CalculatedPlan(
        to_trigger={"1": (1, 4), "2": (0, 1, 3)},
        to_wait_for=running,
        to_commit_to=running,
        finished_subtasks={"0": (0, 1, 2), "1": (0, 2, 3), "2": (2, 4), "3": (2,)},
        fully_finished=("0",),
    )


def test_a_job_of_several_levels_is_triggered_wherever_its_input_has_ended() -> None:
    job = vertices(
        (16, set(range(4))), (16, set(range(16))), (16, {0, 1}), (16, set()), (16, set())
    )

    found = triggered(
        job,
        edges(
            (0, 2, POINTWISE),
            (0, 3, POINTWISE),
            (1, 2, ALL),
            (1, 3, POINTWISE),
            (2, 4, POINTWISE),
            (3, 4, ALL),
        ),
    )

    assert found == {"0": tuple(range(4, 16)), "2": (2, 3), "3": (0, 1, 2, 3)}


def test_a_finished_job_has_nothing_to_trigger() -> None:
    plan = calculate(vertices((1, {0}), (2, {0, 1})), edges((0, 1, ALL)))

    assert plan == CalculatedPlan(
        to_trigger={},
        to_wait_for={},
        to_commit_to={},
        finished_subtasks={"0": (0,), "1": (0, 1)},
        fully_finished=("0", "1"),
    )


@pytest.mark.parametrize(("source", "target"), [(True, False), (False, True), (True, True)])
def test_without_all_its_running_subtasks_there_is_no_plan(source: bool, target: bool) -> None:
    job = [
        Vertex(uid="source", parallelism=2, not_running=frozenset({1} if source else ())),
        Vertex(
            uid="target",
            parallelism=3,
            finished=frozenset({1}),
            not_running=frozenset({2, 0} if target else ()),
        ),
    ]

    result = calculate(job, [Edge(source="source", target="target", pattern=ALL)])

    missing = [SubtaskId("source", 1)] * source
    missing += [SubtaskId("target", 0), SubtaskId("target", 2)] * target
    assert result == NotAllRequiredTasksRunning(subtasks=tuple(missing))
    assert result.reason is CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING


@pytest.mark.parametrize(
    ("sources", "targets", "expected"),
    [
        (3, 3, [{0}, {1}, {2}]),
        (5, 2, [{0, 1}, {2, 3, 4}]),
        (2, 5, [{0}, {0}, {0}, {1}, {1}]),
        (2, 3, [{0}, {0}, {1}]),
        (4, 3, [{0}, {1}, {2, 3}]),
        (1, 3, [{0}, {0}, {0}]),
        (3, 1, [{0, 1, 2}]),
    ],
)
def test_pointwise_connections_are_those_of_flink(
    sources: int, targets: int, expected: list[set[int]]
) -> None:
    assert [set(pointwise_inputs(sources, targets, i)) for i in range(targets)] == expected


parallelisms = st.integers(1, 9)


@given(parallelisms, parallelisms)
def test_a_pointwise_edge_connects_both_ends_completely(sources: int, targets: int) -> None:
    connected = pointwise(sources, targets)

    assert {(s, t) for t in range(targets) for s in pointwise_inputs(sources, targets, t)} == (
        connected
    )
    assert {source for source, _ in connected} == set(range(sources))
    assert {target for _, target in connected} == set(range(targets))


def pointwise(sources: int, targets: int) -> set[tuple[int, int]]:
    """From the producing side: each source has a run of targets, or shares one with others."""
    if sources >= targets:
        bounds = [target * sources // targets for target in range(targets + 1)]
        return {(s, t) for t in range(targets) for s in range(bounds[t], bounds[t + 1])}
    bounds = [-(-source * targets // sources) for source in range(sources + 1)]
    return {(s, t) for s in range(sources) for t in range(bounds[s], bounds[s + 1])}


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Vertex], list[Edge]]:
    shapes = draw(
        st.lists(
            parallelisms.flatmap(
                lambda p: st.tuples(st.just(p), st.sets(st.integers(0, p - 1)) | st.just(set()))
            ),
            min_size=1,
            max_size=5,
        )
    )
    possible = [(s, t) for s, t in product(range(len(shapes)), repeat=2) if s < t]
    chosen = draw(st.lists(st.sampled_from(possible), max_size=6)) if possible else []
    patterns = st.sampled_from(DistributionPattern)
    return vertices(*shapes), edges(*((s, t, draw(patterns)) for s, t in chosen))


def connections_of(job: list[Vertex], given_: list[Edge]) -> set[tuple[SubtaskId, SubtaskId]]:
    by_uid = {vertex.uid: vertex.parallelism for vertex in job}
    found: set[tuple[SubtaskId, SubtaskId]] = set()
    for edge in given_:
        sources, targets = by_uid[edge.source], by_uid[edge.target]
        pairs = (
            set(product(range(sources), range(targets)))
            if edge.pattern is ALL
            else pointwise(sources, targets)
        )
        found |= {(SubtaskId(edge.source, s), SubtaskId(edge.target, t)) for s, t in pairs}
    return found


def subtasks_of(listed: dict[str, tuple[int, ...]]) -> set[SubtaskId]:
    assert all(list(indices) == sorted(set(indices)) for indices in listed.values())
    return {SubtaskId(uid, index) for uid, indices in listed.items() for index in indices}


@given(jobs())
def test_who_reads_from_nobody_that_runs_is_triggered(job: tuple[list[Vertex], list[Edge]]) -> None:
    plan = calculate(*job)

    assert isinstance(plan, CalculatedPlan)
    everybody = {SubtaskId(v.uid, i) for v in job[0] for i in range(v.parallelism)}
    finished = {SubtaskId(v.uid, i) for v in job[0] for i in v.finished}
    running = everybody - finished
    fed = {target for source, target in connections_of(*job) if source in running}
    assert subtasks_of(dict(plan.to_trigger)) == running - fed
    assert subtasks_of(dict(plan.to_wait_for)) == running
    assert subtasks_of(dict(plan.to_commit_to)) == running
    assert subtasks_of(dict(plan.finished_subtasks)) == finished
    assert set(plan.fully_finished) == {v.uid for v in job[0]} - {s.stage for s in running}


@given(jobs())
def test_barriers_reach_everybody_who_is_waited_for(job: tuple[list[Vertex], list[Edge]]) -> None:
    plan = calculate(*job)

    assert isinstance(plan, CalculatedPlan)
    running = subtasks_of(dict(plan.to_wait_for))
    connections = connections_of(*job)
    reached: set[SubtaskId] = set()
    spreading = subtasks_of(dict(plan.to_trigger))
    while spreading:
        reached |= spreading
        onward = {t for s, t in connections if s in spreading and t in running}
        spreading = onward - reached
    assert reached == running


@given(jobs(), st.data())
def test_one_subtask_that_does_not_run_is_enough_to_have_no_plan(
    job: tuple[list[Vertex], list[Edge]], data: st.DataObject
) -> None:
    unfinished = [SubtaskId(v.uid, i) for v in job[0] for i in v.unfinished]
    missing = data.draw(st.sets(st.sampled_from(unfinished))) if unfinished else set()
    stopped = [
        Vertex(
            uid=v.uid,
            parallelism=v.parallelism,
            finished=v.finished,
            not_running=frozenset(subtask.index for subtask in missing if subtask.stage == v.uid),
        )
        for v in job[0]
    ]

    result = calculate(stopped, job[1])

    if missing:
        assert result == NotAllRequiredTasksRunning(subtasks=tuple(sorted(missing)))
    else:
        assert result == calculate(*job)
