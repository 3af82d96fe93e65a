"""A pending checkpoint and its acks: Flink's PendingCheckpointTest, as far as it applies."""

from __future__ import annotations

import pytest

from sluice.core.acks import Ack
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.pending import AckResult, PendingCheckpoint
from tests.builders import SUBTASKS, a_submitted, after, an_ack, triggered


def a_pending() -> PendingCheckpoint:
    return after(a_submitted(), triggered()).pending[0]


def ack_of(subtask: SubtaskId, *, attempt: int = 1) -> Ack:
    return an_ack(subtask, attempt=attempt).ack


def test_it_waits_for_every_subtask_of_every_stage() -> None:
    pending = a_pending()

    for number, subtask in enumerate(SUBTASKS):
        assert not pending.is_fully_acknowledged
        assert pending.not_yet_acknowledged == SUBTASKS[number:]
        pending, result = pending.acknowledge(ack_of(subtask))
        assert result is AckResult.SUCCESS

    assert pending.is_fully_acknowledged
    assert pending.not_yet_acknowledged == ()


def test_the_first_ack_of_a_subtask_stays() -> None:
    first, second = ack_of(SUBTASKS[0]), ack_of(SUBTASKS[0])
    pending, _ = a_pending().acknowledge(first)

    again, result = pending.acknowledge(second)

    assert result is AckResult.DUPLICATE
    assert again is pending
    assert again.acks[str(SUBTASKS[0])] is first


@pytest.mark.parametrize(
    ("subtask", "attempt"),
    [
        (SUBTASKS[0], 0),
        (SUBTASKS[0], 2),
        (SubtaskId(SUBTASKS[0].stage, 2), 1),
        (SubtaskId(SUBTASKS[0].stage, -1), 1),
        (SubtaskId("removed", 0), 1),
    ],
)
def test_an_ack_from_outside_the_plan_is_unknown(subtask: SubtaskId, attempt: int) -> None:
    before = a_pending()

    pending, result = before.acknowledge(ack_of(subtask, attempt=attempt))

    assert result is AckResult.UNKNOWN
    assert pending is before


def test_an_attempt_counts_for_its_own_stage() -> None:
    pending = a_pending().start_attempt(SUBTASKS[0].stage, 3)

    assert pending.attempt_of(SUBTASKS[0].stage) == 3
    assert pending.attempt_of(SUBTASKS[2].stage) == 1
    assert pending.acknowledge(ack_of(SUBTASKS[0], attempt=3))[1] is AckResult.SUCCESS
    assert pending.acknowledge(ack_of(SUBTASKS[0], attempt=2))[1] is AckResult.UNKNOWN


def test_an_attempt_never_goes_back() -> None:
    pending = a_pending().start_attempt(SUBTASKS[0].stage, 2)

    with pytest.raises(AssertionError):
        pending.start_attempt(SUBTASKS[0].stage, 2)


def test_an_ack_of_another_checkpoint_is_the_callers_mistake() -> None:
    stray = Ack(checkpoint_id=CheckpointId(2), subtask=SUBTASKS[0], attempt=1)

    with pytest.raises(AssertionError):
        a_pending().acknowledge(stray)
