"""A pipeline in a line, and its declared graph with the figures of each node.

The figures are those of the last completed checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any

import msgspec

from sluice.coordinator.planning import not_replaceable_message, replaceable_sources
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint, StageState
from sluice.core.configuration import JobStatus
from sluice.core.event_time import MIN_WATERMARK
from sluice.core.state import CoordinatorState
from sluice.declaration.operations import tables_of
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import SourceSpec
from sluice.errors import RestoreError, SluiceError
from sluice.figures.rates import NodeRates, Rates, SourceLag, lag_behind, least_watermark
from sluice.figures.record import CheckpointStatistics, StageStats
from sluice.job.job import Job
from sluice.store.checkpoints import StatisticsStore
from sluice.surface.acts import BACKFILL
from sluice.surface.checkpoints import lags, newest_measured, newest_of, rates
from sluice.surface.health import Health, health


class LastCompleted(msgspec.Struct, frozen=True, kw_only=True):
    """The newest completed checkpoint; sizes in bytes, its age since it completed."""

    id: int
    is_savepoint: bool
    completed_timestamp: int
    age_ms: int
    triggered_timestamp: int
    end_to_end_duration: int
    checkpointed_size: int
    state_size: int


class PipelineLine(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline in a line.  ``failing``: its job does not get on; ``problem`` is the last reason.

    While it is ``paused`` no periodic checkpoint is taken, and nothing is read.  ``watermark`` is
    the least of its stages in the last completed checkpoint; None: none yet; ``watermark_lag`` is
    from it to that checkpoint's trigger.  ``lag`` is that of each source.  Of a pipeline that could
    not be read there is only an ``error``.
    """

    uid: str
    description: str = ""
    sources: int = 0
    stages: int = 0
    sinks: int = 0
    status: str | None = None
    health: Health | None = None
    generation: int | None = None
    failing: bool | None = None
    problem: str | None = None
    paused: bool | None = None
    in_progress: int | None = None
    last_completed: LastCompleted | None = None
    watermark: int | None = None
    watermark_lag: int | None = None
    lag: tuple[SourceLag, ...] = ()
    error: str | None = None


class PipelineDetails(PipelineLine, frozen=True, kw_only=True):
    """A pipeline with its graph, in the order of its declaration.

    The rates of its nodes are over ``rates_window`` milliseconds, in which ``rates_checkpoints``
    have completed.  ``refused`` are the acts that are refused as the job is declared, and why.
    """

    refused: dict[str, str]
    rates_window: int | None
    rates_checkpoints: int | None
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


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


class CompletedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The last completed checkpoint with its figures, and the lags and rates of the job."""

    done: CompletedCheckpoint
    stages: dict[str, StageStats]
    metadata: CheckpointMetadata | None
    lags: dict[str, SourceLag]
    rates: Rates | None

    def rates_of(self, uid: str) -> NodeRates | None:
        return None if self.rates is None else self.rates.nodes.get(uid)

    def is_behind(self, epoch: int | None) -> bool:
        return epoch is not None and epoch < self.done.checkpoint_id


def unread_line(pipeline: Pipeline, error: str) -> PipelineLine:
    """The line of a pipeline whose job cannot be read."""
    return PipelineLine(**_declared(pipeline), error=error)


def pipeline_line(job: Job) -> PipelineLine:
    """A LIST and two GETs; one more for each checkpoint that is pending, or failed since."""
    state = job.state()
    done, kept = newest_measured(job, state)
    watermark = None if done is None else _watermark(job, done, kept)
    lag = lags(job, state, done, kept)
    return PipelineLine(**_line(job, state, done, watermark), lag=lag)


def pipeline_details(job: Job) -> PipelineDetails:
    """A LIST and three GETs; more as of a ``pipeline_line``."""
    state = job.state()
    done = newest_of(state)
    known = None if done is None else facts_of_completed(job, state, done)
    nodes = nodes_of(job, state, known)
    watermark = _least(node.watermark for node in nodes if node.kind is NodeKind.STAGE)
    measured = None if known is None else known.rates
    return PipelineDetails(
        **_line(job, state, done, watermark),
        lag=lags(job, state, None, None) if known is None else tuple(known.lags.values()),
        refused=_refused(job, state),
        rates_window=None if measured is None else measured.window,
        rates_checkpoints=None if measured is None else measured.checkpoints,
        nodes=nodes,
        edges=edges_of(job.pipeline),
    )


def _refused(job: Job, state: CoordinatorState) -> dict[str, str]:
    with suppress(SluiceError):  # A source that cannot be opened here says why when it is asked.
        if not replaceable_sources(job, state):
            return {BACKFILL.name: not_replaceable_message(job, "input")}
    return {}


def edges_of(pipeline: Pipeline) -> tuple[Edge, ...]:
    """The edges from each producer to each consumer, once."""
    pairs: list[tuple[str, str]] = []
    for stage in pipeline.stages.values():
        pairs += [(producer, stage.uid) for producer in stage.producers]
        pairs += [(table, stage.uid) for table in tables_of(stage.operation)]
    pairs += [(sink.input, sink.uid) for sink in pipeline.sinks.values()]
    return tuple(Edge(producer=one, consumer=other) for one, other in dict.fromkeys(pairs))


def nodes_of(job: Job, state: CoordinatorState, known: CompletedFacts | None) -> tuple[Node, ...]:
    """The sources, the stages and the sinks, in the order of their declaration."""
    stages = tuple(_stage_node(job, state, uid, known) for uid in job.pipeline.stages)
    written = {node.uid: node for node in stages}
    sinks = _sink_nodes(job.pipeline, known, written)
    return (*_source_nodes(job.pipeline, known), *stages, *sinks)


def facts_of_completed(
    job: Job, state: CoordinatorState, done: CompletedCheckpoint
) -> CompletedFacts:
    """The facts of *done*, for two GETs and those of ``lags``."""
    kept = StatisticsStore(job.store, job.paths).read(done.checkpoint_id)
    return CompletedFacts(
        done=done,
        stages={} if kept is None else {stage.id: stage for stage in kept.stages},
        metadata=metadata_of(job, done),
        lags={lag.id: lag for lag in lags(job, state, done, kept)},
        rates=rates(job, kept),
    )


def metadata_of(job: Job, done: CompletedCheckpoint) -> CheckpointMetadata | None:
    """The checkpoint's ``_metadata``; None if it was subsumed since the journal was read."""
    try:
        return job.metadata(done.checkpoint_id)
    except RestoreError:
        return None


def known_watermark(watermark: int | None) -> int | None:
    """The watermark; None where no event time is known yet."""
    return None if watermark == MIN_WATERMARK else watermark


def _declared(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "uid": pipeline.uid,
        "description": pipeline.description,
        "sources": len(pipeline.sources),
        "stages": len(pipeline.stages),
        "sinks": len(pipeline.sinks),
    }


def _line(
    job: Job, state: CoordinatorState, done: CompletedCheckpoint | None, watermark: int | None
) -> dict[str, Any]:
    problem = _problem(state, done)
    return {
        **_declared(job.pipeline),
        "status": state.status.value,
        "health": health(job, state, done),
        "generation": state.generation,
        "failing": problem is not None,
        "problem": problem,
        "paused": state.timing.is_paused,
        "in_progress": len(state.pending),
        "last_completed": None if done is None else _last_completed(done, job.now_ms()),
        "watermark": watermark,
        "watermark_lag": None if done is None else lag_behind(done.triggered_at_ms, watermark),
    }


def _problem(state: CoordinatorState, done: CompletedCheckpoint | None) -> str | None:
    """The reason why the job makes no progress; None if it does."""
    failed = state.failed[-1] if state.failed else None
    newest = 0 if done is None else done.checkpoint_id
    is_behind = failed is not None and failed.checkpoint_id > newest
    is_failing = state.status in (JobStatus.FAILING, JobStatus.RESTARTING, JobStatus.FAILED)
    if state.num_unsuccessful_triggers and state.status is JobStatus.RUNNING:
        in_a_row = f", {state.num_unsuccessful_triggers} times in a row"
        return f"{state.unsuccessful_triggers[-1]}{in_a_row}"
    if not is_failing and (state.status.is_terminal or not is_behind):
        return None
    reason = state.stopped_because or (str(failed) if failed is not None and is_behind else "")
    return reason or f"the job is {state.status.value}"


def _last_completed(done: CompletedCheckpoint, now_ms: int) -> LastCompleted:
    return LastCompleted(
        id=done.checkpoint_id,
        is_savepoint=done.type.is_savepoint,
        completed_timestamp=done.completed_at_ms,
        age_ms=max(0, now_ms - done.completed_at_ms),
        triggered_timestamp=done.triggered_at_ms,
        end_to_end_duration=done.completed_at_ms - done.triggered_at_ms,
        checkpointed_size=done.checkpointed_bytes,
        state_size=done.full_bytes,
    )


def _watermark(
    job: Job, done: CompletedCheckpoint, known: CheckpointStatistics | None
) -> int | None:
    if known is not None and known.stages:
        return least_watermark(known.stages)
    metadata = metadata_of(job, done)
    stages = metadata.stages if metadata is not None else ()
    return _least(known_watermark(stage.watermark_ms) for stage in stages)


def _least(watermarks: Iterable[int | None]) -> int | None:
    """The least of *watermarks*; None while one of them is not known."""
    least: int | None = None
    for watermark in watermarks:
        if watermark is None:
            return None
        least = watermark if least is None else min(least, watermark)
    return least


def _source_nodes(pipeline: Pipeline, known: CompletedFacts | None) -> tuple[Node, ...]:
    return tuple(_source_node(uid, node.spec, known) for uid, node in pipeline.sources.items())


def _source_node(uid: str, spec: SourceSpec, known: CompletedFacts | None) -> Node:
    node = Node(uid=uid, kind=NodeKind.SOURCE, operation=_name(spec))
    if known is None:
        return node
    node = msgspec.structs.replace(node, epoch=known.done.checkpoint_id, rates=known.rates_of(uid))
    lag = known.lags.get(uid)
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
    pipeline: Pipeline, known: CompletedFacts | None, written: Mapping[str, Node]
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


def _stage_node(job: Job, state: CoordinatorState, uid: str, known: CompletedFacts | None) -> Node:
    node = Node(
        uid=uid,
        kind=NodeKind.STAGE,
        operation=_name(job.pipeline.stages[uid].operation),
        parallelism=job.parallelism_of(uid, state.configuration),
    )
    if known is None:
        return node
    if uid in known.stages:
        figures = known.stages[uid]
        node = msgspec.structs.replace(
            node,
            epoch=known.done.checkpoint_id,
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
    """*node* with the stage's state; a segment that several subtasks share counts once."""
    handles = {handle.segment for subtask in kept.subtasks for handle in subtask.state}
    return msgspec.structs.replace(
        node,
        epoch=epoch,
        watermark=known_watermark(kept.watermark_ms),
        state_size=sum(handle.size_bytes for handle in handles),
        is_finished=kept.is_finished,
    )


def _name(spec: object) -> str:
    return type(spec).__name__
