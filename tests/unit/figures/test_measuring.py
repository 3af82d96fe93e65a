"""The figures of stages and checkpoints, out of plan, acks and metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sluice.core.answers import Ack, StoreRequests, SubtaskMetrics
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.plan import TaskPlan
from sluice.figures.measuring import Answered, measured_stages, stats_of_completed
from sluice.figures.record import CheckpointStatus, StageStats, SubtaskStatus
from tests.builders import a_plan
from tests.property.core.completed_checkpoints import a_completed

A = TaskPlan(uid="a", parallelism=2, max_parallelism=8)
B = replace(A, uid="b")
JOIN = replace(A, uid="join", reads=("a", "b"))
PLAN = a_plan(tasks=(A, B, JOIN), triggered_at_ms=1_000)
COMPLETED = CheckpointStatus.COMPLETED


def an_ack(stage: str, index: int, ended_ms: int, **metrics: Any) -> Ack:
    measured = SubtaskMetrics(started_at_ms=ended_ms - 30, acknowledged_at_ms=ended_ms, **metrics)
    subtask = SubtaskId(stage, index)
    return Ack(checkpoint_id=CheckpointId(1), subtask=subtask, attempt=1, metrics=measured)


def answered(stage: str, *ended_ms: int, **metrics: Any) -> Answered:
    acks = tuple(an_ack(stage, index, ms, **metrics) for index, ms in enumerate(ended_ms))
    return Answered(attempt=1, acks=acks)


def measured(**given: Answered) -> dict[str, StageStats]:
    stages = measured_stages(PLAN, given, status=COMPLETED, sources={"a": True, "b": True})
    return {stage.id: stage for stage in stages}


def test_alignment_is_from_the_first_inputs_barrier_to_the_last_ones() -> None:
    stages = measured(a=answered("a", 1_100, 1_400), b=answered("b", 1_150, 1_950))

    assert stages["a"].alignment.duration == 0  # It reads one source.
    assert stages["join"].alignment.duration == 550


def test_there_is_no_alignment_before_every_barrier_has_arrived() -> None:
    stages = measured(a=answered("a", 1_100, 1_400), b=answered("b", 1_150))

    assert stages["join"].alignment.duration is None


def test_a_source_beside_a_stream_has_its_barrier_at_the_trigger() -> None:
    read_both = replace(A, uid="mixed", reads=("a",))
    plan = replace(PLAN, tasks=(A, read_both))

    stages = measured_stages(
        plan,
        {"a": answered("a", 1_100, 1_400)},
        status=COMPLETED,
        sources={"a": True, "mixed": True},
    )

    assert stages[1].alignment.duration == 400


def test_an_unaligned_stage_waits_for_nothing() -> None:
    plan = replace(PLAN, tasks=(A, B, replace(JOIN, is_unaligned=True)))

    stages = measured_stages(plan, {}, status=COMPLETED)

    assert (stages[2].alignment.duration, stages[2].unaligned_checkpoint) == (None, True)


def test_a_stage_sums_its_subtasks_and_ends_with_the_last_of_them() -> None:
    answers = answered("a", 1_100, 1_400, checkpointed_bytes=7, full_bytes=20, rows_in=3)

    stage = measured(a=answers)["a"]

    assert (stage.checkpointed_size, stage.state_size, stage.rows_in) == (14, 40, 6)
    assert (stage.latest_ack_timestamp, stage.end_to_end_duration) == (1_400, 400)
    assert [(one.start_delay, one.end_to_end_duration) for one in stage.subtasks] == [
        (70, 100),
        (370, 400),
    ]


def test_clocks_that_differ_give_no_negative_duration() -> None:
    stage = measured(a=answered("a", 900, 950))["a"]

    assert [(one.start_delay, one.end_to_end_duration) for one in stage.subtasks] == [(0, 0)] * 2


def test_a_stage_that_has_not_answered_has_an_attempt_and_no_figures() -> None:
    stage = measured(a=Answered(attempt=2))["a"]

    assert (stage.attempt, stage.num_acknowledged_subtasks, stage.state_size) == (2, 0, None)
    assert {one.status for one in stage.subtasks} == {SubtaskStatus.PENDING_OR_FAILED}


def test_an_overtaken_stage_was_acknowledged_by_the_coordinator() -> None:
    stages = measured_stages(PLAN, {}, status=COMPLETED, overtaken=["join"])

    assert [stage.num_acknowledged_subtasks for stage in stages] == [0, 0, 2]
    assert (stages[2].unaligned_checkpoint, stages[2].subtasks) == (True, ())


def test_finalization_is_what_came_after_the_latest_ack() -> None:
    stages = [*measured(a=answered("a", 1_100, 1_400), b=answered("b", 1_150, 1_950)).values()]
    done = a_completed(1, PLAN.type, triggered_at_ms=1_000, completed_at_ms=2_000, records=10)

    line = stats_of_completed(done, stages)

    assert (line.end_to_end_duration, line.finalization_duration) == (950, 50)
    assert (line.num_acknowledged_subtasks, line.num_subtasks) == (4, 6)
    assert stats_of_completed(done).end_to_end_duration is None


def test_requests_to_stores_are_summed_and_unknown_where_no_subtask_answered() -> None:
    asked = StoreRequests(gets=1, puts=2, lists=3, deletes=4, bytes_read=5, bytes_written=6)
    stages = measured(a=answered("a", 1_100, 1_400, requests=asked), b=answered("b"))

    assert stages["a"].subtasks[1].requests == asked
    assert stages["a"].requests == StoreRequests(
        gets=2, puts=4, lists=6, deletes=8, bytes_read=10, bytes_written=12
    )
    assert (asked.total, stages["b"].requests) == (10, None)
