"""The metrics of a job: what a monitoring system reads, under Flink's names where Flink has them.

``METRICS`` lists them; ``samples`` takes their values from the journal's state and the statistics
of checkpoints, so nothing is counted a second time.  A figure that was not measured has no sample,
and never a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from sluice.core.answers import StoreRequests
from sluice.core.configuration import JobStatus
from sluice.core.state import CoordinatorState
from sluice.figures.overview import Counts, Latest
from sluice.figures.rates import EPOCHS, NodeRates, Rates, SourceLag, moment_of
from sluice.figures.record import CheckpointStats, StageStats


class Scope(StrEnum):
    """What a metric is a figure of."""

    JOB = "job"
    SOURCE = "source"
    STAGE = "stage"


class Unit(StrEnum):
    NUMBER = "number"
    BYTES = "bytes"
    MILLISECONDS = "ms"
    NANOSECONDS = "ns"
    MOMENT = "ms since 1970"
    PER_SECOND = "number/s"
    BYTES_PER_SECOND = "bytes/s"
    FLAG = "0 or 1"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A figure's name, unit and scope; ``help`` is one clause, for people."""

    name: str
    unit: Unit
    help: str
    scope: Scope = Scope.JOB
    label: str | None = None
    is_flinks: bool = True

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


NANOS = 1_000_000  # In a millisecond: Flink has two figures of a checkpoint in nanoseconds.
_LATEST = ", of the newest completed checkpoint"
_RECENT = f" per second, over the last {EPOCHS} completed checkpoints"
_NOT_YET = "that were there at the newest trigger, and are in no completed checkpoint"

METRICS = {
    metric.key: metric
    for metric in (
        Metric(
            name="jobStatus",
            unit=Unit.FLAG,
            help="1 for the status that the job has",
            label="status",
            is_flinks=False,
        ),
        Metric(
            name="isReadable",
            unit=Unit.FLAG,
            help="0 where the job's journal could not be read, and nothing else is known",
            is_flinks=False,
        ),
        Metric(
            name="numRestarts",
            unit=Unit.NUMBER,
            help="restarts after a failure since the job was submitted",
        ),
        Metric(
            name="totalNumberOfCheckpoints",
            unit=Unit.NUMBER,
            help="checkpoints since the first",
        ),
        Metric(
            name="numberOfInProgressCheckpoints",
            unit=Unit.NUMBER,
            help="checkpoints that are pending",
        ),
        Metric(
            name="numberOfCompletedCheckpoints",
            unit=Unit.NUMBER,
            help="checkpoints that completed since the first",
        ),
        Metric(
            name="numberOfFailedCheckpoints",
            unit=Unit.NUMBER,
            help="checkpoints that failed since the first",
        ),
        Metric(
            name="numberOfUnsuccessfulTriggers",
            unit=Unit.NUMBER,
            help="triggers that were refused in a row, since the last one that succeeded",
            is_flinks=False,
        ),
        Metric(
            name="lastCompletedCheckpointId",
            unit=Unit.NUMBER,
            help="the id of the newest completed checkpoint",
        ),
        Metric(
            name="lastCheckpointCompletedTimestamp",
            unit=Unit.MOMENT,
            help="when the newest completed checkpoint was completed",
        ),
        Metric(
            name="lastCheckpointDuration",
            unit=Unit.MILLISECONDS,
            help=f"from the trigger to the latest ack{_LATEST}",
        ),
        Metric(
            name="lastCheckpointSize",
            unit=Unit.BYTES,
            help=f"what was written for the state{_LATEST}",
        ),
        Metric(
            name="lastCheckpointFullSize",
            unit=Unit.BYTES,
            help=f"the whole state{_LATEST}",
        ),
        Metric(
            name="lastCheckpointPersistedData",
            unit=Unit.BYTES,
            help=f"what it left in flight{_LATEST}",
        ),
        Metric(
            name="lastCheckpointExternalPath",
            unit=Unit.FLAG,
            help="1 for the folder of the newest retained checkpoint",
            label="path",
        ),
        Metric(
            name="lastCheckpointRestoreTimestamp",
            unit=Unit.MOMENT,
            help="when the job was restored the last time",
        ),
        Metric(
            name="isProcessingBacklog",
            unit=Unit.FLAG,
            help="1 while more records wait behind the newest barrier than an epoch takes",
        ),
        Metric(
            name="lastCheckpointQueueDuration",
            unit=Unit.MILLISECONDS,
            help=f"how long its request had waited in the queue{_LATEST}",
            is_flinks=False,
        ),
        Metric(
            name="lastCheckpointCoordinatorStateSize",
            unit=Unit.BYTES,
            help=f"positions of sources and answers of hooks, the coordinator's own state{_LATEST}",
            is_flinks=False,
        ),
        Metric(
            name="finalizationDuration",
            unit=Unit.MILLISECONDS,
            help=f"from the latest ack to the completion{_LATEST}",
            is_flinks=False,
        ),
        Metric(
            name="numRecords",
            unit=Unit.NUMBER,
            help=f"records read from the sources{_LATEST}",
            is_flinks=False,
        ),
        Metric(
            name="checkpointInterval",
            unit=Unit.MILLISECONDS,
            help="the interval between two checkpoints that is in force, unless it is paused",
            is_flinks=False,
        ),
        Metric(
            name="numberOfOwedCommits",
            unit=Unit.NUMBER,
            help="completed checkpoints that the sinks have not published",
            is_flinks=False,
        ),
        Metric(
            name="numberOfOrphans",
            unit=Unit.NUMBER,
            help="files that nothing names; only where orphans are looked for",
            is_flinks=False,
        ),
        Metric(
            name="orphansSize",
            unit=Unit.BYTES,
            help="the size of the files that nothing names",
            is_flinks=False,
        ),
        Metric(
            name="pendingRecords",
            unit=Unit.NUMBER,
            help=f"records {_NOT_YET}",
            scope=Scope.SOURCE,
        ),
        Metric(
            name="pendingBytes",
            unit=Unit.BYTES,
            help=f"bytes of files {_NOT_YET}",
            scope=Scope.SOURCE,
        ),
        Metric(
            name="pendingTimestamp",
            unit=Unit.MOMENT,
            help="the newest trigger, when it was seen what is pending",
            scope=Scope.SOURCE,
            is_flinks=False,
        ),
        Metric(
            name="watermarkLag",
            unit=Unit.MILLISECONDS,
            help=f"from the source's watermark to the trigger{_LATEST}",
            scope=Scope.SOURCE,
        ),
        Metric(
            name="currentEmitEventTimeLag",
            unit=Unit.MILLISECONDS,
            help=f"from the latest event time until it had been read{_LATEST}",
            scope=Scope.SOURCE,
        ),
        Metric(
            name="numRecordsIn",
            unit=Unit.NUMBER,
            help=f"records read{_LATEST}",
            scope=Scope.SOURCE,
        ),
        Metric(
            name="numRecordsInPerSecond",
            unit=Unit.PER_SECOND,
            help=f"records read{_RECENT}",
            scope=Scope.SOURCE,
        ),
        Metric(
            name="numBytesInPerSecond",
            unit=Unit.BYTES_PER_SECOND,
            help=f"bytes read{_RECENT}, where offsets are bytes",
            scope=Scope.SOURCE,
        ),
        Metric(
            name="currentInputWatermark",
            unit=Unit.MOMENT,
            help=f"the watermark of the input that was consumed{_LATEST}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="currentOutputWatermark",
            unit=Unit.MOMENT,
            help=f"the watermark of the output{_LATEST}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="numRecordsIn",
            unit=Unit.NUMBER,
            help=f"records read{_LATEST}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="numRecordsOut",
            unit=Unit.NUMBER,
            help=f"records emitted{_LATEST}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="numBytesOut",
            unit=Unit.BYTES,
            help=f"bytes of the stream, and of what was staged for sinks{_LATEST}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="numRecordsInPerSecond",
            unit=Unit.PER_SECOND,
            help=f"records read{_RECENT}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="numRecordsOutPerSecond",
            unit=Unit.PER_SECOND,
            help=f"records emitted{_RECENT}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="numBytesOutPerSecond",
            unit=Unit.BYTES_PER_SECOND,
            help=f"bytes emitted{_RECENT}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="numLateRecordsDropped",
            unit=Unit.NUMBER,
            help=f"records behind the watermark{_LATEST}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="numMalformedRecords",
            unit=Unit.NUMBER,
            help=f"records that could not be decoded{_LATEST}",
            scope=Scope.STAGE,
            is_flinks=False,
        ),
        Metric(
            name="stateSize",
            unit=Unit.BYTES,
            help=f"the whole state{_LATEST}",
            scope=Scope.STAGE,
            is_flinks=False,
        ),
        Metric(
            name="checkpointedSize",
            unit=Unit.BYTES,
            help=f"what was written for the state{_LATEST}",
            scope=Scope.STAGE,
            is_flinks=False,
        ),
        Metric(
            name="syncDuration",
            unit=Unit.MILLISECONDS,
            help=f"the sync part of its slowest subtask{_LATEST}",
            scope=Scope.STAGE,
            is_flinks=False,
        ),
        Metric(
            name="asyncDuration",
            unit=Unit.MILLISECONDS,
            help=f"the async part of its slowest subtask{_LATEST}",
            scope=Scope.STAGE,
            is_flinks=False,
        ),
        Metric(
            name="asyncStartDelay",
            unit=Unit.MILLISECONDS,
            help=f"the longest that an upload waited to begin{_LATEST}",
            scope=Scope.STAGE,
            is_flinks=False,
        ),
        Metric(
            name="checkpointAlignmentTime",
            unit=Unit.NANOSECONDS,
            help=f"from its first input's barrier to its last input's{_LATEST}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="checkpointStartDelayNanos",
            unit=Unit.NANOSECONDS,
            help=f"from the trigger to the start of its latest subtask{_LATEST}",
            scope=Scope.STAGE,
        ),
        Metric(
            name="numStoreRequests",
            unit=Unit.NUMBER,
            help=f"requests of its subtasks to stores, GET, PUT, LIST or DELETE{_LATEST}",
            scope=Scope.STAGE,
            label="kind",
            is_flinks=False,
        ),
        Metric(
            name="numStoreBytes",
            unit=Unit.BYTES,
            help=f"bytes that these requests read, GET, or wrote, PUT{_LATEST}",
            scope=Scope.STAGE,
            label="kind",
            is_flinks=False,
        ),
    )
}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A metric's value; ``labels`` are in the order of the metric's."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


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


def newest_completed(latest: Latest) -> CheckpointStats | None:
    """The newest that completed, checkpoint or savepoint."""
    known = [done for done in (latest.completed, latest.savepoint) if done is not None]
    return max(known, key=lambda done: done.id, default=None)


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
    restored, latest = figures.latest.restored, state.latest_completed
    if figures.external_path is not None:
        yield "lastCheckpointExternalPath", (figures.external_path,), 1
    done = newest_completed(figures.latest)
    unlabelled = {
        "isReadable": 1,
        "numRestarts": state.num_restarts,
        "totalNumberOfCheckpoints": counts.total,
        "numberOfInProgressCheckpoints": counts.in_progress,
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
        "numberOfUnsuccessfulTriggers": counts.unsuccessful_triggers,
        "lastCheckpointRestoreTimestamp": None if restored is None else restored.restore_timestamp,
        "isProcessingBacklog": int(state.is_backlog),
        "checkpointInterval": figures.interval_ms,
        # At most the newest commit is owed: what a restore left behind is not owed any more.
        "numberOfOwedCommits": int(latest is not None and not latest.is_committed),
        "numberOfOrphans": figures.orphans,
        "orphansSize": figures.orphaned_bytes,
    }
    for name, value in (unlabelled | ({} if done is None else _of_newest(done))).items():
        yield name, (), value


def _of_newest(done: CheckpointStats) -> dict[str, int | None]:
    return {
        "lastCompletedCheckpointId": done.id,
        "lastCheckpointCompletedTimestamp": done.completed_timestamp,
        "lastCheckpointDuration": done.end_to_end_duration,
        "lastCheckpointSize": done.checkpointed_size,
        "lastCheckpointFullSize": done.state_size,
        "lastCheckpointPersistedData": done.persisted_data,
        "lastCheckpointQueueDuration": done.queue_duration,
        "lastCheckpointCoordinatorStateSize": done.coordinator_state_size,
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
        durations = [one.checkpoint for one in stage.subtasks if one.checkpoint is not None]
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
            "syncDuration": max((duration.sync for duration in durations), default=None),
            "asyncDuration": max((duration.async_ for duration in durations), default=None),
            "asyncStartDelay": _greatest(one.async_start_delay for one in durations),
            "checkpointAlignmentTime": _nanos(stage.alignment.duration),
            "checkpointStartDelayNanos": _nanos(_greatest(s.start_delay for s in stage.subtasks)),
        }.items():
            yield name, (stage.id,), value
        if stage.requests is not None:
            yield from _of_requests(stage.id, stage.requests)


def _greatest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _nanos(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * NANOS


def _of_requests(stage: str, requests: StoreRequests) -> Iterator[_Value]:
    for kind, number in {
        "GET": requests.gets,
        "PUT": requests.puts,
        "LIST": requests.lists,
        "DELETE": requests.deletes,
    }.items():
        yield "numStoreRequests", (stage, kind), number
    yield "numStoreBytes", (stage, "GET"), requests.bytes_read
    yield "numStoreBytes", (stage, "PUT"), requests.bytes_written


def _rates(figures: JobFigures, uid: str) -> NodeRates:
    known = {} if figures.rates is None else figures.rates.nodes
    return known.get(uid, NodeRates())
