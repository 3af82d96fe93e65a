"""A pipeline's declared graph, with what the last completed checkpoint tells of each node."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint, StageState
from sluice.core.state import CoordinatorState
from sluice.core.watermarks import MIN_WATERMARK
from sluice.declaration.operations import Lookup
from sluice.declaration.pipeline import Pipeline
from sluice.errors import RestoreError
from sluice.job.job import Job
from sluice.statistics.checkpoints import StageStats
from sluice.storage.statistics import StatisticsStore


class NodeKind(StrEnum):
    SOURCE = "source"
    STAGE = "stage"
    SINK = "sink"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the graph; its figures are those of ``epoch``, and None where there are none.

    ``epoch`` is the last completed checkpoint that it took part in; of a sink the one whose rows
    readers see.
    """

    uid: str
    kind: NodeKind
    operation: str
    parallelism: int | None = None
    epoch: int | None = None
    watermark: int | None = None
    state_size: int | None = None
    rows_in: int | None = None
    rows_out: int | None = None
    late_rows: int | None = None
    is_finished: bool = False


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    producer: str
    consumer: str


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the bucket says of the last completed checkpoint; ``records`` are by source."""

    done: CompletedCheckpoint
    stages: dict[str, StageStats]
    metadata: CheckpointMetadata | None
    records: dict[str, int]


def edges_of(pipeline: Pipeline) -> tuple[Edge, ...]:
    """Who reads whom, each pair once."""
    pairs = [
        (producer, stage.uid)
        for stage in pipeline.stages.values()
        for producer in (*stage.producers, *_looked_up(stage.operation))
    ]
    pairs += [(sink.input, sink.uid) for sink in pipeline.sinks.values()]
    return tuple(Edge(producer=one, consumer=other) for one, other in dict.fromkeys(pairs))


def nodes_of(job: Job, state: CoordinatorState, known: Known | None) -> tuple[Node, ...]:
    """The sources, the stages and the sinks, in the order of their declaration."""
    stages = tuple(_stage_node(job, state, uid, known) for uid in job.pipeline.stages)
    rows = {node.uid: node.rows_out for node in stages}
    return (*_source_nodes(job.pipeline, known), *stages, *_sink_nodes(job.pipeline, known, rows))


def known_of(job: Job, done: CompletedCheckpoint) -> Known:
    """Three GETs."""
    plan = job.plan(done.checkpoint_id)
    return Known(
        done=done,
        stages=stages_of(job, done),
        metadata=metadata_of(job, done),
        records={cut.uid: cut.records for cut in plan.sources} if plan is not None else {},
    )


def stages_of(job: Job, done: CompletedCheckpoint) -> dict[str, StageStats]:
    """The figures of its stages; empty where none were kept."""
    kept = StatisticsStore(job.store, job.paths).read(done.checkpoint_id)
    return {} if kept is None else {stage.id: stage for stage in kept.stages}


def metadata_of(job: Job, done: CompletedCheckpoint) -> CheckpointMetadata | None:
    """None when it was subsumed since the journal was read."""
    try:
        return job.metadata(done.checkpoint_id)
    except RestoreError:
        return None


def known_watermark(watermark: int | None) -> int | None:
    """None where no event time is known yet."""
    return None if watermark == MIN_WATERMARK else watermark


def _source_nodes(pipeline: Pipeline, known: Known | None) -> tuple[Node, ...]:
    return tuple(
        Node(
            uid=uid,
            kind=NodeKind.SOURCE,
            operation=_name(node.spec),
            epoch=None if known is None else known.done.checkpoint_id,
            rows_out=None if known is None else known.records.get(uid),
        )
        for uid, node in pipeline.sources.items()
    )


def _sink_nodes(
    pipeline: Pipeline, known: Known | None, rows: Mapping[str, int | None]
) -> tuple[Node, ...]:
    tables = known.metadata.tables if known is not None and known.metadata is not None else {}
    return tuple(
        Node(
            uid=uid,
            kind=NodeKind.SINK,
            operation=_name(node.spec),
            epoch=tables.get(uid),
            rows_in=rows.get(node.input),
        )
        for uid, node in pipeline.sinks.items()
    )


def _stage_node(job: Job, state: CoordinatorState, uid: str, known: Known | None) -> Node:
    node = Node(
        uid=uid,
        kind=NodeKind.STAGE,
        operation=_name(job.pipeline.stages[uid].operation),
        parallelism=job.parallelism_of(uid, state.configuration),
    )
    if known is None:
        return node
    if uid in known.stages:
        figures, epoch = known.stages[uid], known.done.checkpoint_id
        node = msgspec.structs.replace(
            node,
            epoch=epoch,
            watermark=known_watermark(figures.watermark),
            state_size=figures.state_size,
            rows_in=figures.rows_in,
            rows_out=figures.rows_out,
            late_rows=figures.late_rows,
        )
    kept = known.metadata.stage(uid) if known.metadata is not None else None
    return node if kept is None else _with_state(node, known.done.checkpoint_id, kept)


def _with_state(node: Node, epoch: int, kept: StageState) -> Node:
    """A segment that several subtasks share counts once."""
    handles = {handle.segment for subtask in kept.subtasks for handle in subtask.state}
    return msgspec.structs.replace(
        node,
        epoch=epoch,
        watermark=known_watermark(kept.watermark_ms),
        state_size=sum(handle.size_bytes for handle in handles),
        is_finished=kept.is_finished,
    )


def _looked_up(operation: object) -> tuple[str, ...]:
    return (operation.table,) if isinstance(operation, Lookup) else ()


def _name(spec: object) -> str:
    return type(spec).__name__
