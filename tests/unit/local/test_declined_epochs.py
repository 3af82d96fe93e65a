"""``sluice run`` goes on after a decline that the job tolerates; one too many restarts it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.jobs import a_pipeline, a_running_job, published_records
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.restart import RestartStrategy
from sluice.errors import StageFailed
from sluice.job.job import Job
from sluice.local.driver import Epoch, EpochDriver, run_epochs
from sluice.spark.stage import AcknowledgedStage
from tests.subtasks import decline
from tests.unit.local.test_aborted_epochs import Stages, answered

AT_ONCE = RestartStrategy(delay_ms=1, max_delay_ms=1)
NOT_READY = Reason.CHECKPOINT_DECLINED_TASK_NOT_READY


@dataclass
class Declining:
    """Subtasks that answer without Spark; the first of these checkpoints decline."""

    reasons: list[Reason]
    told: list[Epoch] = field(default_factory=list[Epoch])

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
        return run_epochs(job, session, epochs=epochs, drain=False, report=self.told.append)


def test_a_tolerated_decline_does_not_restart_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_running_job(a_pipeline(events=30, tolerable_failed_checkpoints=1))
    declining = Declining([Reason.CHECKPOINT_DECLINED])

    status = declining.run(monkeypatch, job, epochs=2)

    state = job.state()
    assert (status, state.num_restarts, state.generation) == (JobStatus.RUNNING, 0, 1)
    assert [failed.reason for failed in state.failed] == [Reason.CHECKPOINT_DECLINED]
    assert [epoch.completed is not None for epoch in declining.told] == [False, True, True]
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
