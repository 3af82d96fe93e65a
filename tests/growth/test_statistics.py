"""What statistics cost: a page is one request or two, however many checkpoints and subtasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from harness.counting_store import CountingStore
from harness.jobs import a_pipeline, a_running_job, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.history import keep_failed
from sluice.core.configuration import CheckpointType
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, CheckpointIdCounter
from sluice.core.state import REMEMBERED_FAILURES, CoordinatorState, FailedCheckpoint
from sluice.figures.record import TAIL, kept_objects
from sluice.job.job import Job
from sluice.store.checkpoints import StatisticsStore
from sluice.surface.checkpoints import details, overview
from tests.subtasks import acknowledge

BOUND = 1_000
LATEST = 1_234


def test_a_thousand_checkpoints_are_two_gets_beside_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(history_size=BOUND))
    state = job.state()
    for number in range(1, LATEST + 1):
        state = fail(job, state, number)
    requests = Counter[str]()
    counting = replace(job, store=CountingStore(job.store, requests))

    monkeypatch.setattr(Job, "state", lambda _: state)

    shown = overview(counting)

    assert requests == Counter(get=2)
    assert [one.id for one in shown.history] == [*range(LATEST, LATEST - BOUND, -1)]
    assert (shown.counts.total, shown.counts.failed) == (LATEST, LATEST)
    assert len(StatisticsStore(job.store, job.paths).ids()) <= kept_objects(BOUND) + TAIL


def test_the_details_of_a_thousand_subtasks_are_one_get_beside_the_journal() -> None:
    pipeline = a_pipeline(stages=("count_bids",))
    pipeline.parallelism = 1_000
    job = a_running_job(pipeline)
    acknowledge(job, trigger_one(job))
    finalize(job, CheckpointId(1))
    requests = Counter[str]()

    told = details(replace(job, store=CountingStore(job.store, requests)), CheckpointId(1))

    assert requests == Counter(get=1)
    assert [stage.num_acknowledged_subtasks for stage in told.stages] == [1_000]
    assert len(told.stages[0].subtasks) == 1_000


def fail(job: Job, state: CoordinatorState, number: int) -> CoordinatorState:
    """What an abort does with statistics, without the journal's work."""
    failed = FailedCheckpoint(
        checkpoint_id=CheckpointId(number),
        type=CheckpointType.CHECKPOINT,
        triggered_at_ms=number,
        failed_at_ms=number + 1,
        reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
        message="too slow",
    )
    after = replace(
        state,
        ids=CheckpointIdCounter(next_id=CheckpointId(number + 1)),
        failed=(*state.failed, failed)[-REMEMBERED_FAILURES:],
    )
    keep_failed(job, after, failed.checkpoint_id, [])
    return after
