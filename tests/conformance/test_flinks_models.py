"""The models of Flink's rules, and the product's simpler rules beside them.

In ``flink_plan`` the plan is judged by a graph whose every connection is drawn, and the registry by
Flink's own table of last users.  Then the product: who takes part in a checkpoint is whom the plan
waits for, where a stage finishes as a whole; what a subsumed checkpoint takes with it, and which
claimed savepoint stays, is what the registry says of the same history.
"""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from harness.jobs import STAGES, a_job, a_pipeline, keys_of
from sluice.coordinator.planning import running_and_finished
from sluice.coordinator.record import discard_completed, savepoints_in_use
from sluice.core.completed import CheckpointMetadata, StageState, SubtaskState
from sluice.core.event_time import MAX_WATERMARK
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import SavepointId, SubtaskId
from sluice.core.plan import SourceCut
from sluice.declaration.pipeline import Pipeline
from sluice.job.lineage import CompletedParent
from sluice.protocol.records import encode_metadata
from sluice.sources import Nexmark
from tests.conformance.flink_plan import (
    Edge,
    Plan,
    Registry,
    SnapshotKind,
    Subtasks,
    Vertex,
    plan,
    pointwise_inputs,
)
from tests.property.core.completed_checkpoints import a_completed, a_metadata

parallelisms = st.integers(1, 9)


def pointwise(sources: int, targets: int) -> set[tuple[int, int]]:
    """From the producing side: each source has a run of targets, or shares one with others."""
    if sources >= targets:
        bounds = [target * sources // targets for target in range(targets + 1)]
        return {(s, t) for t in range(targets) for s in range(bounds[t], bounds[t + 1])}
    bounds = [-(-source * targets // sources) for source in range(sources + 1)]
    return {(s, t) for s in range(sources) for t in range(bounds[s], bounds[s + 1])}


@given(parallelisms, parallelisms)
def test_a_pointwise_edge_connects_both_ends_completely(sources: int, targets: int) -> None:
    read = {(s, t) for t in range(targets) for s in pointwise_inputs(sources, targets, t)}

    assert read == pointwise(sources, targets)
    assert {source for source, _ in read} == set(range(sources))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Vertex], list[Edge]]:
    vertices = [
        Vertex(
            uid=str(place),
            parallelism=parallelism,
            finished=frozenset(draw(st.sets(st.integers(0, parallelism - 1)))),
        )
        for place, parallelism in enumerate(draw(st.lists(parallelisms, min_size=1, max_size=5)))
    ]
    possible = [(s, t) for s, t in product(range(len(vertices)), repeat=2) if s < t]
    chosen = draw(st.lists(st.sampled_from(possible), max_size=6)) if possible else []
    return vertices, [
        Edge(source=str(s), target=str(t), is_pointwise=draw(st.booleans())) for s, t in chosen
    ]


def connections_of(vertices: list[Vertex], edges: list[Edge]) -> set[tuple[SubtaskId, SubtaskId]]:
    many = {vertex.uid: vertex.parallelism for vertex in vertices}
    found: set[tuple[SubtaskId, SubtaskId]] = set()
    for edge in edges:
        sources, targets = many[edge.source], many[edge.target]
        everything = set(product(range(sources), range(targets)))
        pairs = pointwise(sources, targets) if edge.is_pointwise else everything
        found |= {(SubtaskId(edge.source, s), SubtaskId(edge.target, t)) for s, t in pairs}
    return found


def subtasks_of(listed: Subtasks) -> set[SubtaskId]:
    assert all(list(indices) == sorted(set(indices)) for indices in listed.values())
    return {SubtaskId(uid, index) for uid, indices in listed.items() for index in indices}


@given(graphs())
def test_who_reads_from_nobody_that_runs_is_triggered(
    graph: tuple[list[Vertex], list[Edge]],
) -> None:
    found = plan(*graph)

    assert isinstance(found, Plan)
    finished = {SubtaskId(v.uid, i) for v in graph[0] for i in v.finished}
    running = {SubtaskId(v.uid, i) for v in graph[0] for i in range(v.parallelism)} - finished
    fed = {target for source, target in connections_of(*graph) if source in running}
    assert subtasks_of(found.to_trigger) == running - fed
    assert subtasks_of(found.to_wait_for) == running
    assert subtasks_of(found.finished) == finished
    assert set(found.fully_finished) == {v.uid for v in graph[0]} - {s.stage for s in running}


steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5)) | st.tuples(st.none(), st.integers(0, 6)),
    max_size=30,
)


@given(steps)
def test_unregistering_is_flinks_last_use_rule(history: list[tuple[str | None, int]]) -> None:
    """SharedStateRegistryImpl remembers only the newest user of a file."""
    registry, last_use = Registry(), dict[str, int]()
    deleted, by_flink = list[str](), list[str]()

    for key, number in history:
        if key is not None:
            registry.register(key, number)
            last_use[key] = max(number, last_use.get(key, number))
            continue
        deleted += registry.unregister_unused(number).to_delete
        by_flink += [file for file, last in last_use.items() if last < number]
        last_use = {file: last for file, last in last_use.items() if last >= number}

    assert deleted == by_flink
    assert list(registry.entries) == list(last_use)


def metadata_of(
    number: int,
    *,
    files: dict[str, list[str]] | None = None,
    ended: frozenset[str] = frozenset(),
    sources: tuple[SourceCut, ...] = (),
) -> CheckpointMetadata:
    """Each stage with the keys of its *files*; the *ended* ones have seen the end."""
    return a_metadata(
        number,
        *(
            StageState(
                uid=uid,
                parallelism=1,
                max_parallelism=1,
                watermark_ms=MAX_WATERMARK if uid in ended else 0,
                subtasks=(
                    SubtaskState(
                        subtask=SubtaskId(uid, 0),
                        state=tuple(StateHandle(segment=segment(key)) for key in keys),
                        output=(),
                    ),
                ),
            )
            for uid, keys in (files or {}).items()
        ),
        sources=sources,
    )


def segment(key: str) -> SegmentHandle:
    return SegmentHandle(key=key, size_bytes=1, rows=1, checksum="c")


@st.composite
def chains(draw: st.DrawFn) -> dict[str, list[str]]:
    """Of each stage what it reads: sources, and stages before it."""
    streams, reads = ["events", "clicks"], dict[str, list[str]]()
    for place in range(draw(st.integers(1, 5))):
        reads[f"s{place}"] = draw(
            st.lists(st.sampled_from(streams), min_size=1, max_size=3, unique=True)
        )
        streams.append(f"s{place}")
    return reads


def a_chain(reads: dict[str, list[str]]) -> Pipeline:
    pipeline = Pipeline("auctions")
    streams = {uid: pipeline.source(uid, Nexmark(10)) for uid in ("events", "clicks")}
    for uid, inputs in reads.items():
        first, *others = (streams[name] for name in inputs)
        streams[uid] = (
            first.union(uid, *others) if others else first.transform(uid, lambda rows: rows)
        )
    return pipeline


@given(chains(), st.data())
def test_who_takes_part_is_whom_flinks_plan_waits_for(
    reads: dict[str, list[str]], data: st.DataObject
) -> None:
    job = a_job(a_chain(reads))
    streams = ["events", "clicks", *reads]
    ended = frozenset(data.draw(st.sets(st.sampled_from(streams))))
    cuts = {
        uid: SourceCut(uid=uid, position=(), exhausted=uid in ended) for uid in ("events", "clicks")
    }
    parent = metadata_of(
        1, files={uid: [] for uid in reads}, ended=ended, sources=tuple(cuts.values())
    )

    running, finished = running_and_finished(job, CompletedParent(parent), cuts)

    done = set(ended - reads.keys())
    for uid, inputs in reads.items():  # A subtask ends with its inputs: all of a stage at once.
        done |= {uid} if uid in ended and done.issuperset(inputs) else set()
    many = data.draw(parallelisms)
    flinks = plan(
        [
            Vertex(uid=uid, parallelism=many, finished=frozenset(range(many if uid in done else 0)))
            for uid in reads
        ],
        [Edge(source=one, target=uid) for uid in reads for one in reads[uid] if one in reads],
    )
    assert isinstance(flinks, Plan)
    waited_for = tuple(flinks.to_wait_for)
    if waited_for:
        assert (running, finished) == (waited_for, flinks.fully_finished)
    else:  # The job is about to end: Flink's would have ended.
        assert (running, finished) == (tuple(reads), ())


FILES = ("a", "b", "c", "d")
checkpoints = st.lists(st.sets(st.sampled_from(FILES)), min_size=1, max_size=5)


@given(checkpoints, st.data())
def test_a_subsumed_checkpoint_takes_with_it_what_flinks_registry_lets_go(
    named: list[set[str]], data: st.DataObject
) -> None:
    job = a_job(a_pipeline())
    registry, all_of_them = Registry(), list[CheckpointMetadata]()
    for number, names in enumerate(named, start=1):
        keys = [job.paths.shared_segment(STAGES[0], 1, name) for name in sorted(names)]
        all_of_them.append(metadata_of(number, files={STAGES[0]: keys}))
        for key in keys:
            job.store.create(key, b"x")
            registry.register(key, number)
        job.store.create(job.paths.metadata(number), encode_metadata(all_of_them[-1]))

    gone = data.draw(st.permutations(range(1, len(named) + 1)))
    for number in gone:
        before = set(keys_of(job, job.paths.all_shared()))
        all_of_them = [one for one in all_of_them if one.checkpoint_id != number]
        discard_completed(job, a_completed(number), all_of_them)

        deleted = before - set(keys_of(job, job.paths.all_shared()))
        assert deleted == set(registry.release([number]).to_delete)
        assert set(keys_of(job, job.paths.all_shared())) == registry.entries.keys()


@given(checkpoints, st.lists(st.sampled_from(FILES), max_size=4))
def test_a_claimed_savepoint_stays_while_flinks_registry_says_it_is_in_use(
    retained: list[set[str]], restored: list[str]
) -> None:
    """Savepoint "s0" has file a, "s1" b, and so on, and a job was restored from each in turn."""
    job = a_job(a_pipeline())
    owner = {name: SavepointId(f"s{place}", "a1b2") for place, name in enumerate(FILES)}
    keys = {name: job.paths.savepoint_file(owner[name], name) for name in FILES}
    claimed = [owner[name] for name in dict.fromkeys(restored)]
    registry = Registry()
    for place, name in enumerate(dict.fromkeys(restored)):
        registry.restore([keys[name]], -1 - place, SnapshotKind.NATIVE_SAVEPOINT, claimed=True)
    kept = list[CheckpointMetadata]()
    for number, names in enumerate(retained, start=1):
        files = [keys[name] for name in sorted(names)]
        kept.append(metadata_of(number, files={STAGES[0]: files}))
        for key in files:
            registry.register(key, number)

    in_use = savepoints_in_use(job, claimed, kept)

    still = registry.unregister_unused(1).still_in_use
    assert in_use == {name for place, name in enumerate(claimed) if -1 - place in still}
