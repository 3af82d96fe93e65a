"""What the metrics of a job are, out of its state and its statistics."""

from __future__ import annotations

from typing import Any

from sluice.core.answers import StoreRequests
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus
from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.state import CoordinatorState
from sluice.figures.metrics import METRICS, JobFigures, samples, unreadable
from sluice.figures.overview import Counts, Latest, Restored
from sluice.figures.rates import NodeRates, Rates, SourceLag
from sluice.figures.record import CheckpointAlignment, CheckpointDuration, SubtaskStats
from tests.property.core.completed_checkpoints import a_completed
from tests.unit.figures.lines import a_line, a_stage

NONE = Latest(completed=None, savepoint=None, failed=None, restored=None)
COUNTS = Counts(restored=1, total=9, in_progress=1, completed=6, failed=2)


def values(**given: Any) -> dict[tuple[str, ...], float]:
    """By the metric's name, and its labels behind the pipeline's."""
    usual: dict[str, Any] = {
        "pipeline": "auctions",
        "state": CoordinatorState(),
        "counts": COUNTS,
        "latest": NONE,
    }
    found = samples(JobFigures(**usual | given))
    assert all(sample.labels[0] == "auctions" for sample in found)
    assert all(len(sample.labels) == len(sample.metric.labels) for sample in found)
    return {(sample.metric.key, *sample.labels[1:]): sample.value for sample in found}


def test_before_the_first_checkpoint_there_are_counts_and_a_status_and_no_zero_besides() -> None:
    found = values(counts=Counts(restored=0, total=0, in_progress=0, completed=0, failed=0))

    assert {name for name, *_ in found} == {
        "isReadable",
        "isProcessingBacklog",
        "jobStatus",
        "numRestarts",
        "numberOfCompletedCheckpoints",
        "numberOfFailedCheckpoints",
        "numberOfUnsuccessfulTriggers",
        "numberOfInProgressCheckpoints",
        "numberOfOwedCommits",
        "totalNumberOfCheckpoints",
    }
    assert [
        status for (name, *status), value in found.items() if name == "jobStatus" and value
    ] == [[JobStatus.CREATED.value]]


def test_the_newest_that_completed_counts_be_it_a_checkpoint_or_a_savepoint() -> None:
    figures: dict[str, Any] = {
        "checkpointed_size": 10,
        "state_size": 70,
        "end_to_end_duration": 800,
    }
    latest = Latest(
        completed=a_line(4, checkpointed_size=1),
        savepoint=a_line(5, **figures, completed_timestamp=6_000, records=12),
        failed=a_line(6),
        restored=Restored(id=2, restore_timestamp=77, is_savepoint=False, external_path="here"),
    )

    found = values(latest=latest, external_path="s3://bucket/auctions/checkpoints/5")

    assert found["lastCompletedCheckpointId",] == 5
    assert found["lastCheckpointCompletedTimestamp",] == 6_000
    assert found["lastCheckpointSize",] == 10
    assert found["lastCheckpointFullSize",] == 70
    assert found["lastCheckpointDuration",] == 800
    assert found["numRecords",] == 12
    assert found["lastCheckpointRestoreTimestamp",] == 77
    assert found["lastCheckpointExternalPath", "s3://bucket/auctions/checkpoints/5"] == 1
    assert ("lastCheckpointPersistedData",) not in found


def test_figures_of_stages_have_a_label_each_and_zero_is_a_figure() -> None:
    stages = [a_stage(watermark=5, rows_in=7, late_rows=0), a_stage(id="rank", state_size=3)]

    found = values(stages=stages)

    assert found["currentInputWatermark", "count"] == found["currentOutputWatermark", "count"] == 5
    assert found["numRecordsIn", "count"] == 7
    assert found["numLateRecordsDropped", "count"] == 0
    assert found["stateSize", "rank"] == 3
    assert ("numRecordsIn", "rank") not in found


def test_a_stage_has_the_phases_of_its_slowest_subtask_and_its_requests_by_kind() -> None:
    subtasks = tuple(
        SubtaskStats(index=index, checkpoint=CheckpointDuration(sync=sync, async_=60 - sync))
        for index, sync in enumerate((20, 50))
    )
    asked = StoreRequests(gets=3, puts=2, bytes_read=70, bytes_written=40)

    found = values(stages=[a_stage(subtasks=subtasks, requests=asked), a_stage(id="rank")])

    assert (found["syncDuration", "count"], found["asyncDuration", "count"]) == (50, 40)
    by_kind = {of[1]: value for (name, *of), value in found.items() if name == "numStoreRequests"}
    assert by_kind == {"GET": 3, "PUT": 2, "LIST": 0, "DELETE": 0}
    assert found["numStoreBytes", "count", "GET"] == 70
    assert found["numStoreBytes", "count", "PUT"] == 40
    assert not [name for name, *of in found if of[:1] == ["rank"]]


def test_a_stage_has_flinks_alignment_and_start_delay_in_nanoseconds() -> None:
    subtasks = tuple(
        SubtaskStats(
            index=index,
            start_delay=delay,
            checkpoint=CheckpointDuration(sync=1, async_=2, async_start_delay=delay or 0),
        )
        for index, delay in enumerate((20, 50, None))
    )
    aligned = a_stage(subtasks=subtasks, alignment=CheckpointAlignment(duration=3))
    unaligned = a_stage(id="rank", alignment=CheckpointAlignment())

    found = values(stages=[aligned, unaligned])

    assert found["checkpointAlignmentTime", "count"] == 3_000_000
    assert found["checkpointStartDelayNanos", "count"] == 50_000_000
    assert found["asyncStartDelay", "count"] == 50
    assert ("checkpointAlignmentTime", "rank") not in found


def test_the_newest_checkpoint_has_its_time_in_the_queue_and_the_coordinators_bytes() -> None:
    line = a_line(4, queue_duration=900, coordinator_state_size=70)
    latest = Latest(completed=line, savepoint=None, failed=None, restored=None)

    found = values(latest=latest)

    assert found["lastCheckpointQueueDuration",] == 900
    assert found["lastCheckpointCoordinatorStateSize",] == 70


def test_sources_have_a_lag_and_sources_and_stages_a_rate() -> None:
    lag = SourceLag(id="events", as_of=9_000, pending_records=0, watermark_lag=4, records=70)
    rates = Rates(
        window=10,
        checkpoints=1,
        nodes={
            "events": NodeRates(rows_out_per_second=2.5),
            "count": NodeRates(rows_in_per_second=2.5, bytes_out_per_second=9.0),
        },
    )

    found = values(lags=[lag], rates=rates, stages=[a_stage(bytes_out=90)])

    assert {name: value for (name, *of), value in found.items() if of == ["events"]} == {
        "source.pendingRecords": 0,
        "source.pendingTimestamp": 9_000,
        "source.watermarkLag": 4,
        "source.numRecordsIn": 70,
        "source.numRecordsInPerSecond": 2.5,
    }
    assert {name: value for (name, *of), value in found.items() if of == ["count"]} == {
        "numBytesOut": 90,
        "numRecordsInPerSecond": 2.5,
        "numBytesOutPerSecond": 9,
    }


def test_a_watermark_that_is_no_moment_is_left_out() -> None:
    found = values(stages=[a_stage(watermark=MIN_WATERMARK), a_stage(watermark=MAX_WATERMARK)])

    assert found.keys().isdisjoint({("currentOutputWatermark", "count")})


def test_a_commit_is_owed_until_the_newest_checkpoint_is_published() -> None:
    def owed(*done: CompletedCheckpoint) -> float:
        state = CoordinatorState(base=done[-1].checkpoint_id, completed=done)
        return values(state=state)["numberOfOwedCommits",]

    left_behind = a_completed(1)
    assert owed(left_behind, a_completed(2)) == 1
    assert owed(left_behind, a_completed(2, is_committed=True)) == 0


def test_orphans_and_the_interval_are_said_where_they_are_known() -> None:
    found = values(orphans=0, orphaned_bytes=0, interval_ms=60_000)

    assert found["numberOfOrphans",] == found["orphansSize",] == 0
    assert found["checkpointInterval",] == 60_000
    assert ("numberOfOrphans",) not in values()


def test_a_job_that_cannot_be_read_says_only_that() -> None:
    sample = unreadable("auctions")

    assert (sample.metric.name, sample.labels, sample.value) == ("isReadable", ("auctions",), 0)


def test_every_metric_has_a_name_of_its_own_and_one_clause_of_help() -> None:
    assert all(name == metric.key for name, metric in METRICS.items())
    assert [m.name for m in METRICS.values() if m.help.endswith(".") or not m.help] == []
    assert METRICS["stateSize"].documentation.endswith("(bytes)")
