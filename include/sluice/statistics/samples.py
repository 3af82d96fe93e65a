"""The values of a job's metrics.  A figure that was not measured has none, and never a zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from sluice.core.acks import StoreRequests
from sluice.core.properties import JobStatus
from sluice.core.state import CoordinatorState
from sluice.statistics.checkpoints import CheckpointStats, StageStats
from sluice.statistics.flow import NodeRates, Rates
from sluice.statistics.lag import SourceLag, moment_of
from sluice.statistics.metric import Metric
from sluice.statistics.metrics import METRICS
from sluice.statistics.overview import Counts, Latest


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A metric's value; ``labels`` are in the order of the metric's."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class JobFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the metrics of a job are made of.

    ``stages`` and ``rates`` are those of the newest completed checkpoint, ``lags`` what its sources
    have that it has not; ``orphans`` and ``orphaned_bytes`` what was looked for, if it was.
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


def newest_completed(latest: Latest) -> CheckpointStats | None:
    """The newest that completed, checkpoint or savepoint."""
    known = [one for one in (latest.completed, latest.savepoint) if one is not None]
    return max(known, key=lambda one: one.id, default=None)


def unreadable(pipeline: str) -> Sample:
    """The only sample of a job whose journal could not be read."""
    return Sample(metric=METRICS["isReadable"], labels=(pipeline,), value=0.0)


def samples(figures: JobFigures) -> tuple[Sample, ...]:
    """The value of every metric of the job that is known."""
    return tuple(
        Sample(metric=METRICS[name], labels=(figures.pipeline, *labels), value=float(value))
        for name, labels, value in (*_of_job(figures), *_of_sources(figures), *_of_stages(figures))
        if value is not None
    )


_Value = tuple[str, tuple[str, ...], float | None]


def _of_job(figures: JobFigures) -> Iterator[_Value]:
    state, counts = figures.state, figures.counts
    for status in JobStatus:
        yield "jobStatus", (status.value,), int(status is state.status)
    restored, path = figures.latest.restored, figures.external_path
    if path is not None:
        yield "lastCheckpointExternalPath", (path,), 1
    done = newest_completed(figures.latest)
    alone = {
        "isReadable": 1,
        "numRestarts": state.num_restarts,
        "totalNumberOfCheckpoints": counts.total,
        "numberOfInProgressCheckpoints": counts.in_progress,
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
        "lastCheckpointRestoreTimestamp": None if restored is None else restored.restore_timestamp,
        "isProcessingBacklog": int(state.is_backlog),
        "checkpointInterval": figures.interval_ms,
        "numberOfOwedCommits": _owed_commits(state),
        "numberOfOrphans": figures.orphans,
        "orphansSize": figures.orphaned_bytes,
    }
    for name, value in (alone | ({} if done is None else _of_newest(done))).items():
        yield name, (), value


def _of_newest(done: CheckpointStats) -> dict[str, int | None]:
    return {
        "lastCompletedCheckpointId": done.id,
        "lastCheckpointCompletedTimestamp": done.completed_timestamp,
        "lastCheckpointDuration": done.end_to_end_duration,
        "lastCheckpointSize": done.checkpointed_size,
        "lastCheckpointFullSize": done.state_size,
        "lastCheckpointPersistedData": done.persisted_data,
        "finalizationDuration": done.finalization_duration,
        "numRecords": done.records,
    }


def _of_sources(figures: JobFigures) -> Iterator[_Value]:
    for source in figures.lags:
        rates = _rates(figures, source.id)
        for name, value in {
            "pendingRecords": source.pending_records,
            "pendingBytes": source.pending_bytes,
            "pendingTimestamp": source.as_of,
            "watermarkLag": source.watermark_lag,
            "currentEmitEventTimeLag": source.emit_event_time_lag,
            "numRecordsIn": source.records,
            "numRecordsInPerSecond": rates.rows_out_per_second,
            "numBytesInPerSecond": rates.bytes_out_per_second,
        }.items():
            yield f"source.{name}", (source.id,), value


def _of_stages(figures: JobFigures) -> Iterator[_Value]:
    for stage in figures.stages:
        watermark, rates = moment_of(stage.watermark), _rates(figures, stage.id)
        parts = [one.checkpoint for one in stage.subtasks if one.checkpoint is not None]
        for name, value in {
            "currentInputWatermark": watermark,  # An epoch is consumed whole: it is the output's.
            "currentOutputWatermark": watermark,
            "numRecordsIn": stage.rows_in,
            "numRecordsOut": stage.rows_out,
            "numBytesOut": stage.bytes_out,
            "numRecordsInPerSecond": rates.rows_in_per_second,
            "numRecordsOutPerSecond": rates.rows_out_per_second,
            "numBytesOutPerSecond": rates.bytes_out_per_second,
            "numLateRecordsDropped": stage.late_rows,
            "numMalformedRecords": stage.malformed_rows,
            "stateSize": stage.state_size,
            "checkpointedSize": stage.checkpointed_size,
            "syncDuration": max((one.sync for one in parts), default=None),
            "asyncDuration": max((one.async_ for one in parts), default=None),
        }.items():
            yield name, (stage.id,), value
        if stage.requests is not None:
            yield from _of_requests(stage.id, stage.requests)


def _of_requests(stage: str, asked: StoreRequests) -> Iterator[_Value]:
    for kind, number in {
        "GET": asked.gets,
        "PUT": asked.puts,
        "LIST": asked.lists,
        "DELETE": asked.deletes,
    }.items():
        yield "numStoreRequests", (stage, kind), number
    yield "numStoreBytes", (stage, "GET"), asked.bytes_read
    yield "numStoreBytes", (stage, "PUT"), asked.bytes_written


def _rates(figures: JobFigures, uid: str) -> NodeRates:
    known = {} if figures.rates is None else figures.rates.nodes
    return known.get(uid, NodeRates())


def _owed_commits(state: CoordinatorState) -> int:
    """What a restore left behind is not owed any more: at most the newest is."""
    latest = state.latest_completed
    return int(latest is not None and not latest.is_committed)
