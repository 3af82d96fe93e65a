"""The loop of ``sluice run``: takes epochs, and restarts a failed job or stops (ADR 5).

The restart strategy decides whether the job restarts, and when, as it does in Airflow.  But the
process of a person stops earlier where a restart cannot help.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sluice.coordinator.recovery import restore, stop
from sluice.core.causes import is_equal_cause
from sluice.core.properties import JobStatus
from sluice.core.restoring import Latest
from sluice.errors import StageFailed
from sluice.job.job import Job
from sluice.local.epochs import Epoch, EpochDriver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TOLERATED_PAUSE_S = 1.0  # A subtask that is not ready is asked again; it may never be.


def run_epochs(
    job: Job,
    spark: SparkSession,
    *,
    epochs: int | None,
    drain: bool,
    savepoint: str | None = None,
    report: Callable[[Epoch], None],
) -> JobStatus:
    """Take checkpoints until *epochs* have completed, or the input has ended, or the job has.

    With *drain* an unbounded job that has read everything is ended by a final checkpoint, whose
    watermark fires all windows.  With *savepoint* the last checkpoint is a savepoint of that name,
    and suspends a job that has not ended.  A failed stage aborts its checkpoint; the restart
    strategy decides whether the job goes on from the latest completed one.  A job that fails twice
    for one reason, without a completed checkpoint in between, is suspended.

    Raises:
        StageFailed: the restart strategy gave up, and the job is FAILED, or it is SUSPENDED; the
            message ends with the cause.
    """
    completed = 0
    failures: list[StageFailed] = []  # Since the latest completed checkpoint.
    with EpochDriver(job, spark) as driver:
        while True:
            has_room = driver.in_flight < job.state().configuration.max_concurrent
            is_wanted = epochs is None or completed + driver.in_flight < epochs
            if has_room and is_wanted and driver.begin(drain=drain):
                continue
            if not driver.in_flight and not (savepoint and driver.begin_savepoint(savepoint)):
                return job.state().status
            epoch = driver.end_oldest()
            report(epoch)
            if epoch.completed is not None:
                completed += 1
                failures.clear()
                continue
            driver.abandon()
            if epoch.error is not None:
                is_repeated = any(is_equal(epoch.error, before) for before in failures)
                failures.append(epoch.error)
                recover(job, epoch.error, is_repeated=is_repeated)


def is_equal(one: StageFailed, other: StageFailed) -> bool:
    """Whether both are the same failure of the same stage; a transient one never is."""
    if one.is_transient or one.stage != other.stage:
        return False
    return is_equal_cause(one.cause, other.cause)


def recover(job: Job, failure: StageFailed, *, is_repeated: bool) -> None:
    """Restore the job when its pause is over, or suspend it if the failure *is_repeated*; one that
    the job tolerates only makes it pause.

    Raises:
        StageFailed: the job ended, or is suspended; the message ends with the cause.
    """
    state = job.state()
    uid = job.pipeline.uid
    if state.status is JobStatus.RESTARTING and is_repeated:
        base = stop(job, JobStatus.SUSPENDED).base
        continues = "from the beginning" if base is None else f"from checkpoint {base}"
        raise StageFailed(
            f"job {uid!r} failed twice for the same reason and is SUSPENDED; mend it and run it "
            f"again, and it goes on {continues}: {failure}",
            stage=failure.stage,
            cause=failure.cause,
        )
    if state.status is JobStatus.RUNNING:
        time.sleep(TOLERATED_PAUSE_S)
    elif state.status is JobStatus.RESTARTING:
        pause_ms = (state.restart_at_ms or 0) - job.clock()
        time.sleep(max(0, pause_ms) / 1000)
        restore(job, Latest(), only_generation=state.generation)
    else:
        raise StageFailed(
            f"job {uid!r} is {state.status.value}: {failure}",
            stage=failure.stage,
            cause=failure.cause,
        )
