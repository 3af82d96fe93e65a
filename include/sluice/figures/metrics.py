"""The metrics of a job: what a monitoring system reads, under Flink's names where Flink has them.

``METRICS`` lists them; ``samples`` takes their values from the journal's state and the statistics
of checkpoints, so nothing is counted a second time.  A figure that was not measured has no sample,
and never a zero.

And the spans of a checkpoint that has ended.  They are made of its statistics, so their times are
the measured ones.  Ids are derived from the job and the checkpoint, so the same trace and the same
spans are made each time.

    checkpoint -+- trigger
                +- stage -- subtask -- upload
                +- finalize
                +- commit
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from sluice.core.answers import StoreRequests
from sluice.core.configuration import JobStatus
from sluice.core.state import CoordinatorState
from sluice.figures.overview import Counts, Latest
from sluice.figures.rates import EPOCHS, NodeRates, Rates, SourceLag, moment_of
from sluice.figures.record import (
    CheckpointStats,
    CheckpointStatus,
    Figure,
    Scope,
    StageStats,
    SubtaskStats,
    Unit,
    figures_of,
)

T = TypeVar("T")
Value: TypeAlias = float | None
Values: TypeAlias = Value | Mapping[str, Value]  # By the value of the metric's own label.


@dataclass(frozen=True, slots=True)
class Metric(Generic[T]):
    """A figure's name, unit and scope, and how it is taken *of* what has it; None: not measured.

    ``help`` is one clause, for people.
    """

    name: str
    unit: Unit
    of: Callable[[T], Values]
    help: str
    label: str | None = None
    is_flinks: bool = True
    scope: Scope = Scope.JOB

    @property
    def labels(self) -> tuple[str, ...]:
        of_node = () if self.scope is Scope.JOB else (self.scope.value,)
        own = (self.label,) if self.label is not None else ()
        return ("pipeline", *of_node, *own)

    @property
    def key(self) -> str:
        """Sources and stages have metrics of one name."""
        return f"{self.scope}.{self.name}" if self.scope is Scope.SOURCE else self.name

    @property
    def documentation(self) -> str:
        return f"{self.help} ({self.unit})"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A metric's value; ``labels`` are in the order of the metric's."""

    metric: Metric[Any]
    labels: tuple[str, ...]
    value: float


def newest_completed(latest: Latest) -> CheckpointStats | None:
    """The newest that completed, checkpoint or savepoint."""
    known = [done for done in (latest.completed, latest.savepoint) if done is not None]
    return max(known, key=lambda done: done.id, default=None)


class JobFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures from which the metrics of a job are taken.

    ``stages`` and ``rates`` are those of the newest completed checkpoint, ``lags`` what its sources
    have that it has not; ``orphans`` and ``orphaned_bytes`` are None unless orphans are looked for.
    """

    pipeline: str
    state: CoordinatorState
    counts: Counts
    latest: Latest
    external_path: str | None = None
    stages: Sequence[StageStats] = ()
    lags: Sequence[SourceLag] = ()
    rates: Rates | None = None
    interval_ms: int | None = None
    orphans: int | None = None
    orphaned_bytes: int | None = None

    def of_newest(self, figure: Callable[[CheckpointStats], Value]) -> Value:
        """A figure of the newest completed checkpoint."""
        done = newest_completed(self.latest)
        return None if done is None else figure(done)

    def rates_of(self, uid: str) -> NodeRates:
        return NodeRates() if self.rates is None else self.rates.nodes.get(uid, NodeRates())


class _Source(NamedTuple):
    lag: SourceLag
    rates: NodeRates


class _Stage(NamedTuple):
    stats: StageStats
    rates: NodeRates

    def requests(self, figures: Callable[[StoreRequests], Mapping[str, Value]]) -> Values:
        return None if self.stats.requests is None else figures(self.stats.requests)


def _stage_figure(figure: Figure, stage: _Stage) -> Value:
    return figure.of(stage.stats)


def _nanos(milliseconds: Value) -> Value:
    return None if milliseconds is None else milliseconds * 1_000_000


_IN_NANOSECONDS = frozenset({"checkpointAlignmentTime", "checkpointStartDelayNanos"})  # In Flink.
_LATEST = ", of the newest completed checkpoint"
_RECENT = f" per second, over the last {EPOCHS} completed checkpoints"
_NOT_YET = "that were there at the newest trigger, and are in no completed checkpoint"

_N, _B, _MS, _AT, _FLAG = Unit.NUMBER, Unit.BYTES, Unit.MILLISECONDS, Unit.MOMENT, Unit.FLAG
_PER_S, _BYTES_PER_S = Unit.PER_SECOND, Unit.BYTES_PER_SECOND


def _newest(figure: Callable[[CheckpointStats], Value]) -> Callable[[JobFigures], Value]:
    return lambda job: job.of_newest(figure)


def _metric(figure: Figure, of: Callable[[T], Value]) -> Metric[T]:
    """The metric of the newest completed checkpoint's *figure*."""
    unit, value = figure.unit, of
    if figure.metric in _IN_NANOSECONDS:
        unit, value = Unit.NANOSECONDS, lambda thing: _nanos(of(thing))
    says = f"{figure.says}{_LATEST}"
    return Metric(figure.metric, unit, value, says, is_flinks=figure.is_flinks)


# fmt: off
_OF_JOBS: tuple[Metric[JobFigures], ...] = (
    Metric("jobStatus", _FLAG,
           lambda job: {one.value: one is job.state.status for one in JobStatus},
           "1 for the status that the job has", label="status", is_flinks=False),
    Metric("isReadable", _FLAG, lambda _: 1,
           "0 where the job's journal could not be read, and nothing else is known",
           is_flinks=False),
    Metric("numRestarts", _N, lambda job: job.state.num_restarts,
           "restarts after a failure since the job was submitted"),
    Metric("totalNumberOfCheckpoints", _N, lambda job: job.counts.total,
           "checkpoints since the first"),
    Metric("numberOfInProgressCheckpoints", _N, lambda job: job.counts.in_progress,
           "checkpoints that are pending"),
    Metric("numberOfCompletedCheckpoints", _N, lambda job: job.counts.completed,
           "checkpoints that completed since the first"),
    Metric("numberOfFailedCheckpoints", _N, lambda job: job.counts.failed,
           "checkpoints that failed since the first"),
    Metric("numberOfUnsuccessfulTriggers", _N, lambda job: job.counts.unsuccessful_triggers,
           "triggers that were refused in a row, since the last one that succeeded",
           is_flinks=False),
    Metric("lastCompletedCheckpointId", _N, _newest(lambda done: done.id),
           "the id of the newest completed checkpoint"),
    Metric("lastCheckpointCompletedTimestamp", _AT, _newest(lambda done: done.completed_timestamp),
           "when the newest completed checkpoint was completed"),
    *(_metric(one, _newest(one.of)) for one in figures_of(Scope.CHECKPOINT) if one.metric),
    Metric("lastCheckpointExternalPath", _FLAG,
           lambda job: None if job.external_path is None else {job.external_path: 1},
           "1 for the folder of the newest retained checkpoint", label="path"),
    Metric("lastCheckpointRestoreTimestamp", _AT,
           lambda job: None if (done := job.latest.restored) is None else done.restore_timestamp,
           "when the job was restored the last time"),
    Metric("isProcessingBacklog", _FLAG, lambda job: job.state.is_backlog,
           "1 while more records wait behind the newest barrier than an epoch takes"),
    Metric("checkpointInterval", _MS, lambda job: job.interval_ms,
           "the interval between two checkpoints that is in force, unless it is paused",
           is_flinks=False),
    Metric("numberOfOwedCommits", _N, lambda job: job.state.owed is not None,
           "completed checkpoints that the sinks have not published", is_flinks=False),
    Metric("numberOfOrphans", _N, lambda job: job.orphans,
           "files that nothing names; only where orphans are looked for", is_flinks=False),
    Metric("orphansSize", _B, lambda job: job.orphaned_bytes,
           "the size of the files that nothing names", is_flinks=False),
)
_OF_SOURCES: tuple[Metric[_Source], ...] = (
    Metric("pendingRecords", _N, lambda source: source.lag.pending_records, f"records {_NOT_YET}"),
    Metric("pendingBytes", _B, lambda source: source.lag.pending_bytes,
           f"bytes of files {_NOT_YET}"),
    Metric("pendingTimestamp", _AT, lambda source: source.lag.as_of,
           "the newest trigger, when it was seen what is pending", is_flinks=False),
    Metric("watermarkLag", _MS, lambda source: source.lag.watermark_lag,
           f"from the source's watermark to the trigger{_LATEST}"),
    Metric("currentEmitEventTimeLag", _MS, lambda source: source.lag.emit_event_time_lag,
           f"from the latest event time until it had been read{_LATEST}"),
    Metric("numRecordsIn", _N, lambda source: source.lag.records, f"records read{_LATEST}"),
    Metric("numRecordsInPerSecond", _PER_S, lambda source: source.rates.rows_out_per_second,
           f"records read{_RECENT}"),
    Metric("numBytesInPerSecond", _BYTES_PER_S, lambda source: source.rates.bytes_out_per_second,
           f"bytes read{_RECENT}, where offsets are bytes"),
)
_OF_STAGES: tuple[Metric[_Stage], ...] = (
    # An epoch is consumed whole: the watermark of its input is the output's.
    Metric("currentInputWatermark", _AT, lambda stage: moment_of(stage.stats.watermark),
           f"the watermark of the input that was consumed{_LATEST}"),
    Metric("currentOutputWatermark", _AT, lambda stage: moment_of(stage.stats.watermark),
           f"the watermark of the output{_LATEST}"),
    Metric("numRecordsInPerSecond", _PER_S, lambda stage: stage.rates.rows_in_per_second,
           f"records read{_RECENT}"),
    Metric("numRecordsOutPerSecond", _PER_S, lambda stage: stage.rates.rows_out_per_second,
           f"records emitted{_RECENT}"),
    Metric("numBytesOutPerSecond", _BYTES_PER_S, lambda stage: stage.rates.bytes_out_per_second,
           f"bytes emitted{_RECENT}"),
    *(_metric(one, partial(_stage_figure, one)) for one in figures_of(Scope.STAGE) if one.metric),
    Metric("numStoreRequests", _N,
           lambda stage: stage.requests(
               lambda n: {"GET": n.gets, "PUT": n.puts, "LIST": n.lists, "DELETE": n.deletes}
           ),
           f"requests of its subtasks to stores, GET, PUT, LIST or DELETE{_LATEST}",
           label="kind", is_flinks=False),
    Metric("numStoreBytes", _B,
           lambda stage: stage.requests(lambda n: {"GET": n.bytes_read, "PUT": n.bytes_written}),
           f"bytes that these requests read, GET, or wrote, PUT{_LATEST}",
           label="kind", is_flinks=False),
)
# fmt: on
_SOURCES = tuple(replace(metric, scope=Scope.SOURCE) for metric in _OF_SOURCES)
_STAGES = tuple(replace(metric, scope=Scope.STAGE) for metric in _OF_STAGES)
_ALL: tuple[Metric[Any], ...] = (*_OF_JOBS, *_SOURCES, *_STAGES)
METRICS = {metric.key: metric for metric in _ALL}


def unreadable(pipeline: str) -> Sample:
    """The only sample of a job whose journal could not be read."""
    return Sample(metric=METRICS["isReadable"], labels=(pipeline,), value=0.0)


def samples(figures: JobFigures) -> tuple[Sample, ...]:
    """The value of every metric of the job that is known."""
    uid = figures.pipeline
    found = [*_samples(_OF_JOBS, figures, uid)]
    for lag in figures.lags:
        found += _samples(_SOURCES, _Source(lag, figures.rates_of(lag.id)), uid, lag.id)
    for stats in figures.stages:
        found += _samples(_STAGES, _Stage(stats, figures.rates_of(stats.id)), uid, stats.id)
    return tuple(found)


def _samples(metrics: Iterable[Metric[T]], thing: T, *labels: str) -> Iterator[Sample]:
    for metric in metrics:
        found = metric.of(thing)
        by_label = found if isinstance(found, Mapping) else {"": found}
        for label, value in by_label.items():
            if value is not None:
                of_it = (*labels, label) if metric.label is not None else labels
                yield Sample(metric=metric, labels=of_it, value=float(value))


Attribute = str | int | bool


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """``error`` is why it failed, None if it did not."""

    name: str
    span_id: int
    parent_id: int | None
    start_ms: int
    end_ms: int
    attributes: Mapping[str, Attribute]
    error: str | None = None


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The first of the ``spans`` is the checkpoint's."""

    trace_id: int
    spans: tuple[Span, ...]


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a checkpoint: its pipeline, and the life in which the id was given."""

    pipeline: str
    life: str


def trace_of(
    origin: Origin,
    checkpoint: CheckpointStats,
    stages: Sequence[StageStats],
    committed_at_ms: int | None = None,
) -> Trace | None:
    """The trace of a checkpoint; None while it is pending."""
    ended = checkpoint.completed_timestamp or checkpoint.failure_timestamp
    if ended is None:
        return None
    seed = f"{origin.pipeline}/{origin.life}/{checkpoint.id}"
    root = Span(
        name=f"checkpoint {origin.pipeline}",
        span_id=_id(f"{seed}/span", 8),
        parent_id=None,
        start_ms=checkpoint.trigger_timestamp,
        end_ms=max(ended, committed_at_ms or 0),
        attributes=_of_checkpoint(origin, checkpoint),
        error=_error(checkpoint),
    )
    parts = [
        *_trigger(seed, root, stages),
        *(span for stage in stages for span in _stage(seed, root, stage)),
        *_finalize(seed, root, checkpoint),
        *_commit(seed, root, checkpoint, committed_at_ms),
    ]
    return Trace(trace_id=_id(seed, 16), spans=(root, *parts))


def _error(checkpoint: CheckpointStats) -> str | None:
    if checkpoint.status is not CheckpointStatus.FAILED:
        return None
    return ": ".join(filter(None, (checkpoint.failure_reason, checkpoint.failure_message)))


def _of_checkpoint(origin: Origin, checkpoint: CheckpointStats) -> dict[str, Attribute]:
    """The names are those of Flink's checkpoint spans, where it has them."""
    return _known(
        Scope.CHECKPOINT,
        checkpoint,
        pipeline=origin.pipeline,
        checkpointId=checkpoint.id,
        checkpointStatus=checkpoint.status.value,
        checkpointType=checkpoint.checkpoint_type,
        isUnaligned=checkpoint.unaligned_checkpoint,
        cause=checkpoint.cause or None,
    )


def _of_stage(stage: StageStats) -> dict[str, Attribute]:
    return _known(
        Scope.STAGE,
        stage,
        stage=stage.id,
        numSubtasks=stage.num_subtasks,
        numAcknowledgedSubtasks=stage.num_acknowledged_subtasks,
    )


def _known(scope: Scope, record: object, **attributes: Attribute | None) -> dict[str, Attribute]:
    """*attributes*, and the figures of *record* that spans have."""
    figures = {one.span: one.of(record) for one in figures_of(scope) if one.span}
    known = (attributes | figures).items()
    return {f"sluice.{name}": value for name, value in known if value is not None}


def _id(seed: str, size_bytes: int) -> int:
    """Never 0, which stands for no id."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:size_bytes], "big") or 1


def _part(
    seed: str,
    parent: Span,
    name: str,
    start_ms: int,
    end_ms: int,
    attributes: Mapping[str, Attribute] | None = None,
) -> Span:
    """A span that never ends before it begins: its moments may be those of two machines."""
    return Span(
        name=name,
        span_id=_id(f"{seed}/{parent.span_id}/{name}", 8),
        parent_id=parent.span_id,
        start_ms=start_ms,
        end_ms=max(start_ms, end_ms),
        attributes=attributes or {},
    )


def _trigger(seed: str, root: Span, stages: Sequence[StageStats]) -> Iterator[Span]:
    """The span from the trigger until the first subtask started."""
    started = [s.start_timestamp for stage in stages for s in stage.subtasks if s.start_timestamp]
    if started:
        yield _part(seed, root, "trigger", root.start_ms, min(started))


def _stage(seed: str, root: Span, stage: StageStats) -> Iterator[Span]:
    """The spans from the stage's first start until its last ack; none if it did not start."""
    started = [s.start_timestamp for s in stage.subtasks if s.start_timestamp is not None]
    if not started:
        return
    ended = stage.latest_ack_timestamp or min(started)
    span = _part(seed, root, f"stage {stage.id}", min(started), ended, _of_stage(stage))
    yield span
    for subtask in stage.subtasks:
        yield from _subtask(seed, span, subtask)


def _subtask(seed: str, stage: Span, subtask: SubtaskStats) -> Iterator[Span]:
    """The subtask and its upload, of which only the duration is measured: it is the last part."""
    started, ended = subtask.start_timestamp, subtask.ack_timestamp
    if started is None or ended is None:
        return
    about = _known(Scope.SUBTASK, subtask, subtask=subtask.index)
    span = _part(seed, stage, f"subtask {subtask.index}", started, ended, about)
    yield span
    if subtask.checkpoint is not None:
        began = max(span.start_ms, span.end_ms - subtask.checkpoint.async_)
        yield _part(seed, span, "upload", began, span.end_ms)


def _finalize(seed: str, root: Span, checkpoint: CheckpointStats) -> Iterator[Span]:
    acknowledged, completed = checkpoint.latest_ack_timestamp, checkpoint.completed_timestamp
    if acknowledged is not None and completed is not None:
        yield _part(seed, root, "finalize", acknowledged, completed)


def _commit(
    seed: str, root: Span, checkpoint: CheckpointStats, committed_at_ms: int | None
) -> Iterator[Span]:
    completed = checkpoint.completed_timestamp
    if completed is not None and committed_at_ms is not None:
        yield _part(seed, root, "commit", completed, committed_at_ms)
