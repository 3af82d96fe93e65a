"""A pending checkpoint and its acks: Flink's PendingCheckpointTest, as far as it applies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.jobs import STAGES
from sluice.core.answers import Ack
from sluice.core.configuration import CheckpointType
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.pending import AckResult, PendingCheckpoint
from tests.builders import SUBTASKS, TASKS, a_plan, a_submitted, after, an_ack, triggered


def a_pending(**plan: Any) -> PendingCheckpoint:
    return after(a_submitted(), triggered(**plan)).pending[0]


def test_who_may_have_read_the_attempt_before_answers_again() -> None:
    """A transform need not give the same rows twice: the old attempt's cannot count."""
    chain = (TASKS[0], replace(TASKS[1], reads=(STAGES[0],)))
    pending, _ = a_pending(tasks=chain).acknowledge(map(an_ack, SUBTASKS))

    again = pending.start_attempt(STAGES[0], 2)

    assert again.not_yet_acknowledged == SUBTASKS
    assert {stage: again.attempt_of(stage) for stage in STAGES} == dict.fromkeys(STAGES, 2)
    assert again.acknowledge([an_ack(SUBTASKS[2])])[1] == (AckResult.UNKNOWN,)
    anew, _ = again.acknowledge(an_ack(s, attempt=2) for s in SUBTASKS)
    assert anew.is_fully_acknowledged


def test_who_left_its_input_in_flight_has_read_nothing_of_the_attempt_before() -> None:
    chain = (TASKS[0], replace(TASKS[1], reads=(STAGES[0],), is_unaligned=True))
    pending, _ = a_pending(tasks=chain).acknowledge(map(an_ack, SUBTASKS))

    again = pending.start_attempt(STAGES[0], 2)

    assert again.not_yet_acknowledged == SUBTASKS[:2]
    assert again.attempt_of(STAGES[1]) == 1


def test_an_attempt_never_goes_back() -> None:
    pending = a_pending().start_attempt(SUBTASKS[0].stage, 2)

    with pytest.raises(ValueError, match="attempts only grow"):
        pending.start_attempt(SUBTASKS[0].stage, 2)


def test_an_ack_of_another_checkpoint_is_the_callers_mistake() -> None:
    stray = Ack(checkpoint_id=CheckpointId(2), subtask=SUBTASKS[0], attempt=1)

    with pytest.raises(ValueError, match="of the same checkpoint"):
        a_pending().acknowledge([stray])


def test_its_sources_and_hooks_have_answered_in_the_plan() -> None:
    plan = a_plan(master_states={"hook": None})

    pending = PendingCheckpoint.of(plan, savepoint_name="s", request_id="r")

    assert (pending.savepoint_name, pending.request_id) == ("s", "r")
    assert pending.not_yet_acknowledged == SUBTASKS


def test_many_acks_are_taken_as_one_by_one() -> None:
    known, other = an_ack(SUBTASKS[0]), replace(an_ack(SUBTASKS[0]), watermark_ms=1)
    first, second = an_ack(SUBTASKS[1]), replace(an_ack(SUBTASKS[1]), watermark_ms=1)
    stranger = an_ack(SUBTASKS[2], attempt=2)
    pending, _ = a_pending().acknowledge([known])

    after_, results = pending.acknowledge([other, first, second, stranger])

    assert list(after_.acks.values()) == [known, first]
    assert [result.name for result in results] == ["DUPLICATE", "SUCCESS", "DUPLICATE", "UNKNOWN"]


def test_an_attempt_of_an_overtaken_stage_stays_overtaken() -> None:
    lax = tuple(replace(task, may_be_overtaken=True) for task in TASKS)
    pending = a_pending(tasks=lax).overtake([STAGES[0]]).start_attempt(STAGES[0], 2)

    assert pending.overtaken == (STAGES[0],)
    assert pending.acknowledge([an_ack(SUBTASKS[0], attempt=2)])[1] == (AckResult.UNKNOWN,)
    assert pending.not_yet_acknowledged == SUBTASKS[2:]


@pytest.mark.parametrize("type_", list(CheckpointType))
def test_a_savepoint_cannot_be_subsumed_but_aborted_for_any_other_reason(
    type_: CheckpointType,
) -> None:
    pending = a_pending(type=type_)

    impossible = {reason for reason in Reason if not pending.can_be_aborted(reason)}

    assert pending.can_be_subsumed == (type_ is CheckpointType.CHECKPOINT)
    assert impossible == (set() if pending.can_be_subsumed else {Reason.CHECKPOINT_SUBSUMED})


@pytest.mark.parametrize(
    ("plan", "ends"),
    [
        ({}, False),
        ({"type": CheckpointType.SAVEPOINT}, False),
        ({"type": CheckpointType.SAVEPOINT_SUSPEND}, True),
        ({"type": CheckpointType.SAVEPOINT_TERMINATE}, True),
        ({"drains": True}, True),
    ],
)
def test_nothing_follows_a_checkpoint_that_stops_the_job_or_drains_it(
    plan: dict[str, Any], ends: bool
) -> None:
    assert a_pending(**plan).ends_the_job is ends
