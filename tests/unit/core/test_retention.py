"""The retained checkpoints when the job ends: the matrix of CheckpointPropertiesTest."""

from __future__ import annotations

import pytest

from sluice.core.configuration import CheckpointType, JobStatus, Retention
from sluice.core.coordinator import step
from sluice.core.events import DiscardCompleted
from sluice.core.state import CoordinatorState
from tests.builders import (
    a_checkpoint,
    a_submitted,
    after,
    ids_of,
    restored,
    stopped,
)

ENDS = (JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED)
DISCARDS = {
    Retention.NEVER_RETAIN_AFTER_TERMINATION: (True, True, True),
    Retention.RETAIN_ON_FAILURE: (True, False, True),
    Retention.RETAIN_ON_CANCELLATION: (False, False, False),
}
NEVER = Retention.NEVER_RETAIN_AFTER_TERMINATION


def a_store(retention: Retention) -> CoordinatorState:
    """Savepoint 1, and checkpoint 2."""
    savepoint = a_checkpoint(1, type=CheckpointType.SAVEPOINT, savepoint="mine")
    return after(a_submitted(retention=retention), *savepoint, *a_checkpoint(2, parent=1))


@pytest.mark.parametrize(
    ("retention", "status", "discards"),
    [(r, s, d) for r, row in DISCARDS.items() for s, d in zip(ENDS, row, strict=True)],
)
def test_the_end_of_the_job_discards_as_its_retention_says_but_never_a_savepoint(
    retention: Retention, status: JobStatus, discards: bool
) -> None:
    state = a_store(retention)
    checkpoint = state.completed[1]

    transition = step(state, stopped(status))

    after_ = transition.state
    assert transition.commands == ((DiscardCompleted(checkpoint=checkpoint),) if discards else ())
    assert ids_of(after_.completed) == ([1] if discards else [1, 2])
    assert after_.discarding == ((checkpoint,) if discards else ())
    assert after_.base == (None if discards else 2)


def test_a_suspended_job_that_is_canceled_is_judged_anew() -> None:
    state = a_store(Retention.RETAIN_ON_CANCELLATION)

    suspended = after(state, stopped(JobStatus.SUSPENDED))
    canceled = after(suspended, stopped(JobStatus.CANCELED))

    assert suspended.completed == canceled.completed == state.completed


def test_the_origin_of_a_job_is_not_lost_with_its_checkpoints() -> None:
    state = after(a_store(NEVER), restored(2, savepoint="of the same id"))

    state = after(state, stopped(JobStatus.CANCELED, generation=2))

    assert ids_of(state.completed) == [1]
    assert state.base == 2
    assert str(state.origin) == "savepoint of the same id"
