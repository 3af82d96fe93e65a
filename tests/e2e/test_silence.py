"""Spark, the store or a person stands still: the run's note says it within ten seconds.

The servers are stopped by their pids, on a stack of this module's own.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.airflow_api import AirflowApi, DagRun
from sluice.coordinator.submission import configure, submit
from sluice.declaration.project import load_pipeline
from sluice.devstack.stack import Stack
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation

log = logging.getLogger(__name__)

pytestmark = pytest.mark.skipif(os.environ.get("SLUICE_E2E") != "all", reason="make e2e runs it")

PIPELINE = "auctions"
SAID_WITHIN_S = 10.0


@pytest.fixture(scope="module", name="job")
def _job(running: Stack, airflow: AirflowApi) -> Job:
    """A job that goes on for long, after a first checkpoint, so that Spark is warm."""
    location = StoreLocation(root=running.client_env["SLUICE_ROOT"], endpoint_url=running.s3_url)
    for dag in (PIPELINE, f"{PIPELINE}__restore"):
        airflow.wait_until_known(dag)
    pipeline = load_pipeline(PIPELINE)
    job = open_job(pipeline, location)
    submit(job, configure(pipeline, {"events": "1000000000"}))
    airflow.unpause(PIPELINE)
    wait_for(lambda: len(job.state().completed) > 0, within_s=900)
    return job


def wait_for(is_true: Callable[[], bool], *, within_s: float) -> float:
    """The seconds that it took."""
    began = time.monotonic()
    while not is_true():
        assert time.monotonic() < began + within_s
        time.sleep(0.1)
    return time.monotonic() - began


@contextmanager
def struck(running: Stack, name: str, blow: signal.Signals) -> Iterator[None]:
    """Strike a server, which what keeps it cannot start anew before the block has ended."""
    keeper = next(record.pid for record in running.records if record.name == name)
    (server,) = map(int, Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split())
    os.kill(keeper, signal.SIGSTOP)
    os.kill(server, blow)
    try:
        yield
    finally:
        if blow is signal.SIGSTOP:
            os.kill(server, signal.SIGCONT)
        os.kill(keeper, signal.SIGCONT)


def newest(airflow: AirflowApi) -> DagRun:
    return airflow.runs(PIPELINE)[0]


def note(airflow: AirflowApi) -> str:
    return newest(airflow).note or ""


def seconds_until_said(airflow: AirflowApi, *sentences: str) -> float:
    """Until the newest run, while it runs, has a note with all *sentences*."""
    return wait_for(
        lambda: (
            newest(airflow).state == "running" and all(one in note(airflow) for one in sentences)
        ),
        within_s=120,
    )


def test_a_paused_dag_with_a_pending_checkpoint_says_so(
    running: Stack, airflow: AirflowApi, job: Job
) -> None:
    wait_for(lambda: " triggered at " in note(airflow), within_s=600)

    airflow.pause(PIPELINE)
    took_s = seconds_until_said(airflow, "the DAG is paused", "CHECKPOINT_EXPIRED")
    airflow.unpause(PIPELINE)

    assert took_s < SAID_WITHIN_S
    wait_for(lambda: not note(airflow).startswith("the DAG is paused"), within_s=SAID_WITHIN_S)


@pytest.mark.parametrize(
    ("server", "sentence", "page"),
    [
        ("spark", "Spark at sc://", "TASK_FAILURE"),
        ("s3", "the store s3://", "IO_EXCEPTION"),
    ],
)
def test_a_server_that_hangs_is_said_while_the_run_waits(
    running: Stack,
    airflow: AirflowApi,
    job: Job,
    server: str,
    sentence: str,
    page: str,
) -> None:
    wait_for(lambda: " triggered at " in note(airflow), within_s=600)

    with struck(running, server, signal.SIGSTOP):
        took_s = seconds_until_said(airflow, sentence, "does not answer", page)
        log.info("said after %.1f s: %s", took_s, note(airflow))

    assert took_s < SAID_WITHIN_S


def test_spark_that_is_gone_is_said_by_the_run_that_needs_it(
    running: Stack, airflow: AirflowApi, job: Job
) -> None:
    wait_for(lambda: " triggered at " in note(airflow), within_s=600)

    with struck(running, "spark", signal.SIGKILL):
        took_s = seconds_until_said(airflow, "does not answer", "TASK_FAILURE")
        log.info("said after %.1f s: %s", took_s, note(airflow))

    assert took_s < SAID_WITHIN_S
