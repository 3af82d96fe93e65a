"""Metrics: the figures of a job that a monitoring system reads, under Flink's names where Flink has
them.

``METRICS`` says which there are; ``samples.py`` takes their values from the journal's state and the
statistics of checkpoints, so nothing is counted a second time.
"""

from __future__ import annotations

from sluice.statistics.flow import EPOCHS
from sluice.statistics.metric import Metric, Scope, Unit

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
