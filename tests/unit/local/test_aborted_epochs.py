"""``sluice run`` goes on when a person aborts one of its checkpoints."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.jobs import a_pipeline, a_running_job, published_records
from sluice.coordinator import completion
from sluice.coordinator.failure import abort_checkpoint
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus
from sluice.core.ids import CheckpointId
from sluice.errors import FencedError
from sluice.job.job import Job
from sluice.local.driver import Epoch, EpochDriver, run_epochs
from sluice.spark.stage import AcknowledgedStage
from tests.subtasks import acknowledge

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
    job, stages, told = a_running_job(a_pipeline(events=30)), Stages(), list[Epoch]()
    monkeypatch.setattr(
        "sluice.local.driver.EpochDriver", lambda job, spark: EpochDriver(job, spark, stages)
    )

    status = run_epochs(job, stages.session, epochs=2, drain=False, report=told.append)

    assert status is JobStatus.RUNNING
    assert [(epoch.plan.checkpoint_id, epoch.failure) for epoch in told] == [
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
