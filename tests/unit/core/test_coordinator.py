"""The coordinator as a whole: whom it hears, and one job from its first checkpoint to its last.

Each rule has its tests beside this file: requests, progress, ends, lifecycle, restored.
"""

from __future__ import annotations

import pytest

from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.coordinator import step
from sluice.core.events import DiscardPending, Event, Verdict
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from tests.builders import (
    SUBTASKS,
    a_request,
    a_submitted,
    acked,
    after,
    all_acks,
    an_attempt,
    committed,
    completed,
    declined,
    failed,
    ids_of,
    restored,
    run,
    stopped,
    submitted,
    triggered,
)
from tests.core_events import (
    discarded,
    hooks_restored,
    job_failed,
    released,
    requested,
    timed_out,
    trigger_failed,
)

OVERTAKEN: list[Event] = [
    submitted(generation=2),
    restored(None, generation=2),
    restored(None, generation=1),
    requested(a_request()),
    triggered(2, generation=1),
    trigger_failed(a_request()),
    an_attempt(2),
    timed_out("count_bids"),
    completed(),
    committed(),
    discarded(1),
    released("s"),
    failed(),
    declined(),
    job_failed(),
    hooks_restored(generation=1),
    stopped(JobStatus.CANCELED),
    stopped(JobStatus.CANCELED, generation=3),
]


@pytest.mark.parametrize("event", OVERTAKEN)
def test_who_was_overtaken_changes_nothing(event: Event) -> None:
    state = after(a_submitted(), triggered(), restored(None), triggered(2, generation=2))

    transition = step(state, event)

    assert (transition.verdict, transition.state) == (Verdict.FENCED, state)
    assert transition.commands == ()


def test_an_ack_is_fenced_by_its_checkpoint_and_attempt_alone() -> None:
    state = after(a_submitted(), restored(None), triggered(1, generation=2))

    assert step(state, acked(SUBTASKS[0])).verdict is Verdict.APPLIED


def test_a_life_of_a_job_with_two_checkpoints_at_a_time() -> None:
    stop = CheckpointType.SAVEPOINT_SUSPEND
    state, commands = run(
        CoordinatorState(),
        submitted(max_concurrent=2, num_retained=1, tolerable_failed_checkpoints=1),
        triggered(1),
        triggered(2, parent=1),
        *all_acks(2),
        *all_acks(1),
        completed(1),
        committed(1),
        completed(2),
        committed(2),
        triggered(3, parent=2),
        triggered(4, parent=3),
        declined(checkpoint_id=3),
        triggered(5, parent=2, type=stop, savepoint="end"),
        *all_acks(5),
        completed(5),
        committed(5),
    )

    assert state.status is JobStatus.SUSPENDED
    assert (ids_of(state.completed), ids_of(state.discarding)) == ([5], [1, 2])
    assert [failure.checkpoint_id for failure in state.failed] == [3, 4]
    assert commands == [
        DiscardPending(checkpoint_id=CheckpointId(3)),
        DiscardPending(checkpoint_id=CheckpointId(4)),
    ]
