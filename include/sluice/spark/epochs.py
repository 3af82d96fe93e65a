"""Drives a job in one process: the same coordinator and stages as the DAGs, without Airflow."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.core.completed import CompletedCheckpoint
from sluice.core.pending import FIRST_ATTEMPT
from sluice.core.plan import CheckpointPlan
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.errors import StageFailed
from sluice.runner.completion import commit, finalize
from sluice.runner.job import Job
from sluice.runner.recovery import Latest, fail_checkpoint, restore
from sluice.runner.trigger import Triggered, trigger
from sluice.spark.stage import run_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One checkpoint's outcome: completed, or failed for a reason."""

    plan: CheckpointPlan
    stage_seconds: dict[str, float]
    seconds: float
    completed: CompletedCheckpoint | None
    failure: str | None = None


def run_epochs(
    job: Job,
    spark: SparkSession,
    *,
    epochs: int | None,
    drain: bool,
    report: Callable[[Epoch], None],
) -> JobStatus:
    """Take checkpoints until *epochs* have completed, or the input has ended, or the job has.

    With *drain* an unbounded job that has read everything is ended by a final checkpoint, whose
    watermark fires all windows.  A failed stage aborts its checkpoint; the restart strategy decides
    whether the job goes on from the latest completed one.

    Raises:
        StageFailed: the restart strategy gave up; the job is FAILED.
    """
    completed = 0
    while epochs is None or completed < epochs:
        outcome = trigger(job, cause="sluice run")
        if not isinstance(outcome, Triggered):
            if outcome.reason is not None or not drain:
                break  # The job ended, or there is nothing new to read.
            outcome = trigger(
                job,
                type=CheckpointType.SAVEPOINT_TERMINATE,
                cause="sluice run --drain",
                is_periodic=False,
            )
            if not isinstance(outcome, Triggered):
                break
        epoch = _take(job, spark, outcome.plan)
        report(epoch)
        if epoch.completed is not None:
            completed += 1
        else:
            _recover(job, epoch.failure or "")
    return job.state().status


def _take(job: Job, spark: SparkSession, plan: CheckpointPlan) -> Epoch:
    started = time.monotonic()
    stage_seconds: dict[str, float] = {}
    try:
        for stage in job.pipeline.stages:
            before = time.monotonic()
            run_stage(job, spark, plan.checkpoint_id, stage, attempt=FIRST_ATTEMPT)
            stage_seconds[stage] = time.monotonic() - before
    except StageFailed as error:
        fail_checkpoint(
            job,
            plan.checkpoint_id,
            CheckpointFailureReason.TASK_FAILURE,
            str(error),
            is_task_failure=True,
        )
        return Epoch(
            plan=plan,
            stage_seconds=stage_seconds,
            seconds=time.monotonic() - started,
            completed=None,
            failure=str(error),
        )
    completed = finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)
    return Epoch(
        plan=plan,
        stage_seconds=stage_seconds,
        seconds=time.monotonic() - started,
        completed=completed,
    )


def _recover(job: Job, failure: str) -> None:
    state = job.state()
    if state.status is JobStatus.RESTARTING:
        pause_ms = (state.restart_at_ms or 0) - job.clock()
        time.sleep(max(0, pause_ms) / 1000)
        restore(job, Latest(), only_generation=state.generation)
    elif state.status is not JobStatus.RUNNING:
        raise StageFailed(f"job {job.pipeline.uid!r} is {state.status.value}: {failure}")
