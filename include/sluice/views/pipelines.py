"""A pipeline at a glance, and its declared graph with what is known of each node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from sluice.core.completed import CompletedCheckpoint
from sluice.core.properties import JobStatus
from sluice.core.state import CoordinatorState
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job
from sluice.statistics.history import CheckpointStatistics
from sluice.statistics.lag import SourceLag, lag_behind, least_watermark
from sluice.storage.statistics import StatisticsStore
from sluice.views.graph import (
    Edge,
    Node,
    NodeKind,
    edges_of,
    known_of,
    known_watermark,
    metadata_of,
    nodes_of,
)
from sluice.views.lag import lags, newest_of


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
    have completed.
    """

    rates_window: int | None
    rates_checkpoints: int | None
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def unread_line(pipeline: Pipeline, error: str) -> PipelineLine:
    """The line of a pipeline whose job cannot be read."""
    return PipelineLine(**_declared(pipeline), error=error)


def pipeline_line(job: Job) -> PipelineLine:
    """A LIST and two GETs; one more for each checkpoint that is pending, or failed since."""
    state = job.state()
    done = newest_of(state)
    kept = None if done is None else StatisticsStore(job.store, job.paths).read(done.checkpoint_id)
    watermark = None if done is None else _watermark(job, done, kept)
    lag = lags(job, state, done, kept)
    return PipelineLine(**_line(job, state, done, watermark), lag=lag)


def pipeline_details(job: Job) -> PipelineDetails:
    """A LIST and three GETs; more as of a ``pipeline_line``."""
    state = job.state()
    done = newest_of(state)
    known = None if done is None else known_of(job, state, done)
    nodes = nodes_of(job, state, known)
    watermark = _least(node.watermark for node in nodes if node.kind is NodeKind.STAGE)
    found = None if known is None else known.rates
    return PipelineDetails(
        **_line(job, state, done, watermark),
        lag=lags(job, state, None, None) if known is None else tuple(known.lags.values()),
        rates_window=None if found is None else found.window,
        rates_checkpoints=None if found is None else found.checkpoints,
        nodes=nodes,
        edges=edges_of(job.pipeline),
    )


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
        "generation": state.generation,
        "failing": problem is not None,
        "problem": problem,
        "paused": state.timing.is_paused,
        "in_progress": len(state.pending),
        "last_completed": None if done is None else _last_completed(done, job.clock()),
        "watermark": watermark,
        "watermark_lag": None if done is None else lag_behind(done.triggered_at_ms, watermark),
    }


def _problem(state: CoordinatorState, done: CompletedCheckpoint | None) -> str | None:
    """Why the job does not get on; None when it does."""
    failed = state.failed[-1] if state.failed else None
    newest = 0 if done is None else done.checkpoint_id
    is_behind = failed is not None and failed.checkpoint_id > newest
    is_ill = state.status in (JobStatus.FAILING, JobStatus.RESTARTING, JobStatus.FAILED)
    if not is_ill and (state.status.is_terminal or not is_behind):
        return None
    said = state.stopped_because or (str(failed) if failed is not None and is_behind else "")
    return said or f"the job is {state.status.value}"


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
    kept = metadata.stages if metadata is not None else ()
    return _least(known_watermark(one.watermark_ms) for one in kept)


def _least(watermarks: Iterable[int | None]) -> int | None:
    """None while that of a stage is not known."""
    all_of_them = [*watermarks]
    known = [one for one in all_of_them if one is not None]
    return min(known, default=None) if len(known) == len(all_of_them) else None
