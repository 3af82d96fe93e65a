"""Metrics: the figures of a job that a monitoring system reads, under Flink's names where Flink has
them.

``METRICS`` says which there are; ``samples.py`` takes their values from the journal's state and the
statistics of checkpoints, so nothing is counted a second time.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Scope(StrEnum):
    """What a metric is a figure of; its labels beside ``pipeline`` are in ``labels``."""

    JOB = "job"
    STAGE = "stage"


class Unit(StrEnum):
    NUMBER = "number"
    BYTES = "bytes"
    MILLISECONDS = "ms"
    MOMENT = "ms since 1970"
    FLAG = "0 or 1"


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """``help`` is one clause, for people."""

    name: str
    unit: Unit
    help: str
    scope: Scope = Scope.JOB
    label: str | None = None
    is_flinks: bool = True

    @property
    def labels(self) -> tuple[str, ...]:
        of_stage = ("stage",) if self.scope is Scope.STAGE else ()
        own = (self.label,) if self.label is not None else ()
        return ("pipeline", *of_stage, *own)

    @property
    def documentation(self) -> str:
        return f"{self.help} ({self.unit})"


_LATEST = ", of the newest completed checkpoint"

METRICS = {
    metric.name: metric
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
    )
}
