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
from sluice.statistics.flow import NodeRates, Rates
from sluice.statistics.lag import SourceLag, lag_behind
from sluice.storage.statistics import StatisticsStore
from sluice.views.lag import lags, rates


class NodeKind(StrEnum):
    SOURCE = "source"
    STAGE = "stage"
    SINK = "sink"


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the graph; its figures are those of ``epoch``, and None where there are none.

    ``epoch`` is the last completed checkpoint that it took part in; of a sink the one whose rows
    readers see.  ``lag`` is that of a source; ``watermark_lag`` from the watermark to the epoch's
    trigger.  ``is_behind``: it is not as far as the last completed checkpoint, or more rows wait in
    the source than its epoch takes.
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
    watermark_lag: int | None = None
    lag: SourceLag | None = None
    rates: NodeRates | None = None
    is_behind: bool = False
    is_finished: bool = False


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    producer: str
    consumer: str


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the bucket says of the last completed checkpoint, and of what is not in it."""

    done: CompletedCheckpoint
    stages: dict[str, StageStats]
    metadata: CheckpointMetadata | None
    lags: dict[str, SourceLag]
    rates: Rates | None

    def rates_of(self, uid: str) -> NodeRates | None:
        return None if self.rates is None else self.rates.nodes.get(uid)

    def is_behind(self, epoch: int | None) -> bool:
        return epoch is not None and epoch < self.done.checkpoint_id


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
    written = {node.uid: node for node in stages}
    sinks = _sink_nodes(job.pipeline, known, written)
    return (*_source_nodes(job.pipeline, known), *stages, *sinks)


def known_of(job: Job, state: CoordinatorState, done: CompletedCheckpoint) -> Known:
    """Two GETs, and those of ``lags``."""
    kept = StatisticsStore(job.store, job.paths).read(done.checkpoint_id)
    return Known(
        done=done,
        stages={} if kept is None else {stage.id: stage for stage in kept.stages},
        metadata=metadata_of(job, done),
        lags={one.id: one for one in lags(job, state, done, kept)},
        rates=rates(job, kept),
    )


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
    nodes = (
        Node(uid=uid, kind=NodeKind.SOURCE, operation=_name(node.spec))
        for uid, node in pipeline.sources.items()
    )
    return tuple(node if known is None else _with_lag(node, known) for node in nodes)


def _with_lag(node: Node, known: Known) -> Node:
    node = msgspec.structs.replace(
        node, epoch=known.done.checkpoint_id, rates=known.rates_of(node.uid)
    )
    lag = known.lags.get(node.uid)
    if lag is None:
        return node
    return msgspec.structs.replace(
        node,
        watermark=lag.watermark,
        watermark_lag=lag.watermark_lag,
        rows_out=lag.records,
        lag=lag,
        is_behind=lag.is_behind,
        is_finished=lag.exhausted,
    )


def _sink_nodes(
    pipeline: Pipeline, known: Known | None, written: Mapping[str, Node]
) -> tuple[Node, ...]:
    tables = known.metadata.tables if known is not None and known.metadata is not None else {}
    return tuple(
        Node(
            uid=uid,
            kind=NodeKind.SINK,
            operation=_name(node.spec),
            epoch=tables.get(uid),
            rows_in=written[node.input].rows_out if node.input in written else None,
            is_behind=known is not None and known.is_behind(tables.get(uid)),
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
            rates=known.rates_of(uid),
        )
    kept = known.metadata.stage(uid) if known.metadata is not None else None
    if kept is not None:
        node = _with_state(node, known.done.checkpoint_id, kept)
    return msgspec.structs.replace(
        node,
        watermark_lag=lag_behind(known.done.triggered_at_ms, node.watermark),
        is_behind=known.is_behind(node.epoch),
    )


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
