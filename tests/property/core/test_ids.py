"""Checkpoint ids grow and are never used again, whatever is restored in between."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ids import FIRST_CHECKPOINT_ID, CheckpointId, CheckpointIdCounter, SubtaskId
from tests.conformance.flink_plan import get_and_increment


def test_the_first_id_is_1_and_get_shows_the_next() -> None:
    counter, seen = CheckpointIdCounter(), list[int]()

    for _ in range(3):
        taken, counter = get_and_increment(counter)
        seen += [taken, counter.get()]

    assert seen == [1, 2, 2, 3, 3, 4]


def test_a_counter_is_never_negative() -> None:
    assert CheckpointIdCounter().at_least(-5).get() == FIRST_CHECKPOINT_ID
    with pytest.raises(ValueError, match="the first checkpoint"):
        CheckpointIdCounter(next_id=CheckpointId(0))


@given(st.lists(st.none() | st.integers(-3, 40), max_size=50))
def test_no_id_is_taken_twice(history: list[int | None]) -> None:
    """None takes an id; a number restores a checkpoint; every step is a new coordinator."""
    counter, taken = CheckpointIdCounter(), list[int]()

    for restored in history:
        counter = msgspec.json.decode(msgspec.json.encode(counter), type=CheckpointIdCounter)
        if restored is None:
            checkpoint_id, counter = get_and_increment(counter)
            taken.append(checkpoint_id)
        else:
            counter = counter.at_least(restored + 1)
            assert counter.get() > restored

    assert taken == sorted(set(taken))
    assert all(checkpoint_id < counter.get() for checkpoint_id in taken)


def test_a_subtask_is_named_by_its_stage_and_index() -> None:
    subtasks = [SubtaskId("b", 0), SubtaskId("a", 10), SubtaskId("a", 9)]

    assert [str(subtask) for subtask in sorted(subtasks)] == ["a/9", "a/10", "b/0"]
