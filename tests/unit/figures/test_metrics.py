"""What is derived of statistics: the metrics of a job, distributions, the trace of a checkpoint."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.answers import StoreRequests
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus
from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.state import CoordinatorState
from sluice.figures.metrics import METRICS, JobFigures, Origin, Trace, samples, trace_of, unreadable
from sluice.figures.overview import (
    Counts,
    Latest,
    Restored,
    StatsSummary,
    interpolated_percentile,
    summary_of,
)
from sluice.figures.rates import NodeRates, Rates, SourceLag
from sluice.figures.record import (
    CheckpointAlignment,
    CheckpointDuration,
    CheckpointStats,
    StageStats,
    SubtaskStats,
)
from tests.property.core.completed_checkpoints import a_completed
from tests.unit.figures.lines import FAILED, a_line, a_stage

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


durations = st.lists(st.integers(0, 2**53), min_size=1, max_size=200)
shares = st.floats(0.001, 0.999)


def test_percentiles_are_those_that_flink_computes() -> None:
    assert summary_of(range(1, 100)) == StatsSummary(
        min=1, max=99, avg=50, p50=50.0, p90=90.0, p95=95.0, p99=99.0, p999=99.0
    )
    assert summary_of([10, 20, 30, 40]) == StatsSummary(
        min=10, max=40, avg=25, p50=25.0, p90=40.0, p95=40.0, p99=40.0, p999=40.0
    )


def test_one_value_is_its_own_distribution() -> None:
    assert summary_of([7]) == StatsSummary(
        min=7, max=7, avg=7, p50=7.0, p90=7.0, p95=7.0, p99=7.0, p999=7.0
    )


def test_what_was_not_measured_is_no_zero() -> None:
    assert summary_of([None, 4, None]) == summary_of([4])
    assert summary_of([None]) is None
    assert summary_of([]) is None


@given(durations, shares, shares)
def test_a_percentile_lies_between_the_extremes_and_grows_with_the_share(
    given_values: list[int], one: float, other: float
) -> None:
    ordered = sorted(given_values)
    low, high = sorted((one, other))

    assert (
        ordered[0]
        <= interpolated_percentile(ordered, low)
        <= interpolated_percentile(ordered, high)
        <= ordered[-1]
    )


@given(durations, shares)
def test_the_order_of_the_values_does_not_matter(given_values: list[int], share: float) -> None:
    assert summary_of(given_values) == summary_of(reversed(given_values))


ORIGIN = Origin(pipeline="auctions", life="a")


def with_subtasks(*subtasks: SubtaskStats) -> StageStats:
    latest = max((s.ack_timestamp or 0 for s in subtasks), default=None)
    return a_stage(latest_ack_timestamp=latest, subtasks=subtasks)


def a_subtask(index: int, start: int | None, ack: int | None, upload: int) -> SubtaskStats:
    duration = CheckpointDuration(sync=1, async_=upload)
    return SubtaskStats(index=index, start_timestamp=start, ack_timestamp=ack, checkpoint=duration)


def traced(
    checkpoint: CheckpointStats, *stages: StageStats, committed_at_ms: int | None = None
) -> Trace:
    trace = trace_of(ORIGIN, checkpoint, stages, committed_at_ms)
    assert trace is not None
    return trace


def times(trace: Trace) -> list[tuple[str, int, int]]:
    return [(span.name, span.start_ms, span.end_ms) for span in trace.spans]


DONE = a_line(1, latest_ack_timestamp=1_900, completed_timestamp=2_000)
STAGE = with_subtasks(a_subtask(0, 1_200, 1_800, 100), a_subtask(1, 1_300, 1_900, 5_000))


def test_every_part_has_the_times_that_were_measured() -> None:
    assert times(traced(DONE, STAGE, committed_at_ms=2_500)) == [
        ("checkpoint auctions", 1_000, 2_500),
        ("trigger", 1_000, 1_200),
        ("stage count", 1_200, 1_900),
        ("subtask 0", 1_200, 1_800),
        ("upload", 1_700, 1_800),
        ("subtask 1", 1_300, 1_900),
        ("upload", 1_300, 1_900),  # Longer than the subtask, on another clock: cut to it.
        ("finalize", 1_900, 2_000),
        ("commit", 2_000, 2_500),
    ]


def test_each_part_is_below_what_it_is_a_part_of_and_has_an_id_of_its_own() -> None:
    trace = traced(DONE, STAGE, committed_at_ms=2_500)

    names = {span.span_id: span.name for span in trace.spans}
    assert len(names) == len(trace.spans)
    assert {(span.name, names.get(span.parent_id or 0)) for span in trace.spans} == {
        ("checkpoint auctions", None),
        ("trigger", "checkpoint auctions"),
        ("stage count", "checkpoint auctions"),
        ("subtask 0", "stage count"),
        ("subtask 1", "stage count"),
        ("upload", "subtask 0"),
        ("upload", "subtask 1"),
        ("finalize", "checkpoint auctions"),
        ("commit", "checkpoint auctions"),
    }


def test_the_same_checkpoint_is_the_same_trace_and_another_one_is_not() -> None:
    assert traced(DONE, STAGE) == traced(DONE, STAGE)

    others = [
        trace_of(Origin(pipeline="auctions", life="b"), DONE, ()),
        trace_of(Origin(pipeline="other", life="a"), DONE, ()),
        traced(a_line(2, completed_timestamp=3_000)),
    ]
    assert traced(DONE).trace_id not in {one.trace_id for one in others if one is not None}


def test_a_failed_one_says_why_and_has_what_is_known_of_it() -> None:
    failed = a_line(
        1, FAILED, failure_timestamp=3_000, failure_reason="DECLINED", failure_message="disk full"
    )
    silent = with_subtasks(a_subtask(0, None, 1_500, 0))

    trace = traced(failed, silent, with_subtasks(a_subtask(0, 1_200, None, 0)))

    assert times(trace) == [
        ("checkpoint auctions", 1_000, 3_000),
        ("trigger", 1_000, 1_200),
        ("stage count", 1_200, 1_200),
    ]
    assert trace.spans[0].error == "DECLINED: disk full"
    assert trace.spans[0].attributes["sluice.checkpointStatus"] == "FAILED"


def test_a_pending_one_has_no_trace_yet() -> None:
    assert trace_of(ORIGIN, a_line(1), ()) is None
