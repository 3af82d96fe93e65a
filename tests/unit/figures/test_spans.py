"""The trace of a checkpoint, out of its statistics."""

from __future__ import annotations

from sluice.figures.metrics import Origin, Trace, trace_of
from sluice.figures.record import CheckpointDuration, CheckpointStats, StageStats, SubtaskStats
from tests.unit.figures.lines import FAILED, a_line, a_stage

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
