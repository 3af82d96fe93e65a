"""``sluice run`` goes on where a person aborts a checkpoint, and behind a decline that the job
tolerates; one decline too many restarts it.  The stages of an epoch are reported by chain.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.jobs import a_pipeline, a_running_job, published_records
from sluice.coordinator import completion
from sluice.coordinator.failure import abort_checkpoint
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.plan import TaskPlan
from sluice.core.restart import RestartStrategy
from sluice.errors import FencedError, StageFailed
from sluice.job.job import Job
from sluice.local.driver import Epoch, EpochDriver, StageFuture, run_epochs, seconds_by_chain
from sluice.spark.stage import AcknowledgedStage
from tests.builders import a_plan
from tests.subtasks import acknowledge, decline

ONE = CheckpointId(1)


class Session:
    """What the driver asks of a Spark session: to interrupt the jobs of a tag."""

    def __init__(self, interrupted: threading.Event) -> None:
        self._interrupted = interrupted

    def addTag(self, tag: str) -> None: ...  # noqa: N802 - Spark's

    def removeTag(self, tag: str) -> None: ...  # noqa: N802 - Spark's

    def interruptTag(self, _: str) -> None:  # noqa: N802 - Spark's
        self._interrupted.set()


def answered(
    job: Job,
    spark: object,
    checkpoint_id: CheckpointId,
    stage: str,
    *,
    attempt: int,
) -> AcknowledgedStage:
    plan = job.plan(checkpoint_id)
    assert plan is not None
    acknowledge(job, plan, stage, attempt=attempt)
    return cast("AcknowledgedStage", SimpleNamespace(compact=lambda: None, snapshots=(1,)))


class Stages:
    """Subtasks that answer without Spark; those of checkpoint 1 hang until they are interrupted."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self.session = cast("Any", Session(self.interrupted))

    def __call__(
        self, job: Job, spark: object, checkpoint_id: CheckpointId, stage: str, *, attempt: int
    ) -> AcknowledgedStage:
        if checkpoint_id == ONE:
            abort_checkpoint(job, ONE, by="ada")
            assert self.interrupted.wait(20)
            raise FencedError("interrupted")
        return answered(job, spark, checkpoint_id, stage, attempt=attempt)


def test_an_aborted_epoch_is_interrupted_and_its_records_come_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.local.driver.ABORT_POLL_S", 0.02)
    job, stages, epochs = a_running_job(a_pipeline(events=30)), Stages(), list[Epoch]()
    monkeypatch.setattr(
        "sluice.local.driver.EpochDriver", lambda job, spark: EpochDriver(job, spark, stages)
    )

    status = run_epochs(job, stages.session, epochs=2, drain=False, report=epochs.append)

    assert status is JobStatus.RUNNING
    assert [(epoch.plan.checkpoint_id, epoch.failure) for epoch in epochs] == [
        (1, "checkpoint 1 was aborted, CHECKPOINT_ABORTED_BY_USER: aborted by ada"),
        (2, None),
        (3, None),
    ]
    assert published_records(job) == [*range(20)]
    assert job.state().num_restarts == 0


def test_an_epoch_that_is_aborted_while_it_is_completed_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job()

    def aborted_first(job: Job, checkpoint_id: CheckpointId) -> CompletedCheckpoint:
        abort_checkpoint(job, checkpoint_id, by="ada")
        return completion.finalize(job, checkpoint_id)

    monkeypatch.setattr("sluice.local.driver.finalize", aborted_first)
    with EpochDriver(job, Stages().session, answered) as driver:
        epoch = driver.take()

    assert epoch is not None
    assert (epoch.completed, epoch.error) == (None, None)
    assert epoch.aborted is not None


AT_ONCE = RestartStrategy(delay_ms=1, max_delay_ms=1)
NOT_READY = Reason.CHECKPOINT_DECLINED_TASK_NOT_READY


@dataclass
class Declining:
    """Subtasks that answer without Spark; the first of these checkpoints decline."""

    reasons: list[Reason]
    epochs: list[Epoch] = field(default_factory=list[Epoch])

    def __call__(
        self, job: Job, spark: object, checkpoint_id: CheckpointId, stage: str, *, attempt: int
    ) -> AcknowledgedStage:
        if checkpoint_id <= len(self.reasons):
            reason = self.reasons[checkpoint_id - 1]
            decline(job, checkpoint_id, SubtaskId(stage, 0), attempt=attempt, reason=reason)
            raise StageFailed("the input is odd", stage=stage, is_declined=True)
        return answered(job, spark, checkpoint_id, stage, attempt=attempt)

    def run(self, monkeypatch: pytest.MonkeyPatch, job: Job, *, epochs: int) -> JobStatus:
        def driver(job: Job, spark: Any) -> EpochDriver:
            return EpochDriver(job, spark, self)

        monkeypatch.setattr("sluice.local.driver.TOLERATED_PAUSE_S", 0)
        monkeypatch.setattr("sluice.local.driver.EpochDriver", driver)
        session = Stages().session
        return run_epochs(job, session, epochs=epochs, drain=False, report=self.epochs.append)


def test_a_tolerated_decline_does_not_restart_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_running_job(a_pipeline(events=30, tolerable_failed_checkpoints=1))
    declining = Declining([Reason.CHECKPOINT_DECLINED])

    status = declining.run(monkeypatch, job, epochs=2)

    state = job.state()
    assert (status, state.num_restarts, state.generation) == (JobStatus.RUNNING, 0, 1)
    assert [failed.reason for failed in state.failed] == [Reason.CHECKPOINT_DECLINED]
    assert [epoch.completed is not None for epoch in declining.epochs] == [False, True, True]
    assert published_records(job) == [*range(20)]


def test_one_decline_too_many_restarts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_running_job(a_pipeline(events=30, restart_strategy=AT_ONCE))
    declining = Declining([Reason.CHECKPOINT_DECLINED])

    declining.run(monkeypatch, job, epochs=1)

    assert (job.state().num_restarts, job.state().generation) == (1, 2)
    assert [failed.reason for failed in job.state().failed] == [Reason.CHECKPOINT_DECLINED]


def test_a_subtask_that_is_not_ready_is_asked_again_however_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(events=30))
    declining = Declining([NOT_READY] * 4)

    status = declining.run(monkeypatch, job, epochs=1)

    state = job.state()
    assert (status, state.num_restarts) == (JobStatus.RUNNING, 0)
    assert [failed.reason for failed in state.failed] == [NOT_READY] * 4
    assert published_records(job) == [*range(10)]


def ran(seconds: float | None) -> StageFuture:
    future: StageFuture = StageFuture()
    future.set_result(seconds)
    return future


def test_the_stages_of_a_chain_are_reported_together() -> None:
    reads = {"a": (), "b": ("a",), "other": (), "c": ("b",), "late": ("other",)}
    tasks = tuple(
        TaskPlan(uid=uid, parallelism=1, max_parallelism=1, reads=read)
        for uid, read in reads.items()
    )
    took = {"a": 3.0, "b": None, "other": 1.0, "c": None}

    stages = {uid: ran(seconds) for uid, seconds in took.items()}

    assert seconds_by_chain(a_plan(tasks=tasks), stages) == {"a > b > c": 3.0, "other": 1.0}
