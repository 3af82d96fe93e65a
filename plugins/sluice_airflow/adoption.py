"""Runs of the savepoint DAG for requests that people made outside of Airflow.

``sluice savepoint`` and the like queue a request in the journal.  A periodic run takes it up in the
place of its own; where none comes soon the watchdog starts a run.  That is one of the savepoint
DAG, which is not paused and has no other run to wait for.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException

from sluice_airflow.notes import note
from sluice_airflow.operators import QUEUE_POLL_S
from sluice_airflow.ownership import run_of

if TYPE_CHECKING:
    from datetime import timedelta

    from airflow.sdk import Context

    from sluice.coordinator.trigger import Triggered
    from sluice.job.job import Job

log = logging.getLogger(__name__)

REQUEST = "request"  # In the configuration of such a run: the request that it is for.


def start_runs(job: Job) -> list[str]:
    """Start a run for each request that awaits a host, if Airflow drives the job; say for which.

    A run's id is its request's, so it is started once.
    """
    from sluice.views.requests import last_host

    state, now_ms = job.state(), job.clock()
    queued = [one for one in state.queue if one.awaits_a_host and not one.has_expired(now_ms)]
    host = last_host(state)
    if host is not None and run_of(host.cause) is None:
        return []
    dag_id = f"{job.pipeline.uid}__savepoint"
    return [
        f"started a run of {dag_id}, {one.cause}"
        for one in queued
        if _start(dag_id, f"request__{one.request_id}", {REQUEST: one.request_id})
    ]


def _start(dag_id: str, run_id: str, conf: dict[str, object]) -> bool:
    """Whether the run was started now; False if it was before, or Airflow does not answer."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

    run = TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=conf)
    try:
        answer = task_runner.SUPERVISOR_COMMS.send(run)
    except Exception:  # Any error of Airflow: the next look tries again, until it has expired.
        log.warning("no run was started dag_id=%s run_id=%s", dag_id, run_id, exc_info=True)
        return False
    return not isinstance(answer, ErrorResponse)


def carry_out(
    job: Job, context: Context, *, cause: str, for_s: float, again_after: timedelta
) -> Triggered:
    """Take up the request of this run once it is due.

    Raises:
        AirflowSkipException: it is not queued any more.
        AirflowRescheduleException: *for_s* have passed; the task looks again *again_after*.
    """
    from sluice.coordinator.trigger import take_up
    from sluice.views.requests import request_progress

    request_id = context["params"][REQUEST]
    until = time.monotonic() + for_s
    while any(queued.request_id == request_id for queued in job.state().queue):
        triggered = take_up(job, cause=cause)
        if triggered is not None:
            return triggered
        if time.monotonic() >= until:
            raise AirflowRescheduleException(datetime.now(UTC) + again_after)
        time.sleep(QUEUE_POLL_S)
    told = request_progress(job, request_id)
    became = f", checkpoint {told.checkpoint}" if told.checkpoint is not None else ""
    reason = f"the request needs no run of its own: it is {told.status.value}{became}"
    note(context, f"skipped: {reason}")
    raise AirflowSkipException(reason)
