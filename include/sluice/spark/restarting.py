"""What one process does when its job has failed over: go on, or stop for a person (ADR 24).

The restart strategy says whether the job restarts, and when, as it does in Airflow.  A process that
somebody waits for stops before that where a restart cannot help.
"""

from __future__ import annotations

import time

from sluice.core.causes import is_equal_cause
from sluice.core.properties import JobStatus
from sluice.core.restoring import Latest
from sluice.errors import StageFailed
from sluice.runner.job import Job
from sluice.runner.recovery import restore, stop


def is_equal(one: StageFailed, other: StageFailed) -> bool:
    """Whether the same stage failed for the same reason; a store that is away may come back."""
    if one.is_transient or one.stage != other.stage:
        return False
    return is_equal_cause(one.cause, other.cause)


def recover(job: Job, failure: StageFailed, *, is_repeated: bool) -> None:
    """Restore the job once its pause is over; one that fails *is_repeated* is suspended.

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
    if state.status is JobStatus.RESTARTING:
        pause_ms = (state.restart_at_ms or 0) - job.clock()
        time.sleep(max(0, pause_ms) / 1000)
        restore(job, Latest(), only_generation=state.generation)
    elif state.status is not JobStatus.RUNNING:
        raise StageFailed(
            f"job {uid!r} is {state.status.value}: {failure}",
            stage=failure.stage,
            cause=failure.cause,
        )
