"""The switch that a run's tasks store: what ends a job switches its DAG off, a restore on."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from sluice.coordinator.restore import stop
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import JobStatus
from sluice.declaration.checkpointing import no_restart
from sluice.surface.acts import STAY_SUSPENDED
from sluice_airflow.acts import AbortOperator, RestoreOperator
from sluice_airflow.compat import AirflowSkipException
from sluice_airflow.operators import CheckpointOperator
from sluice_airflow.trigger_task import TriggerOperator
from tests.airflow.acts import PIPELINE, RESTORE, a_checkpoint, a_context, trigger
from tests.airflow.stand_in import StandInSpark, a_job, a_pipeline

OFF = {"dag_id": "demo", "is_paused": True}
ON = {"dag_id": "demo", "is_paused": False}


def switches_of(task: CheckpointOperator, **context: Any) -> list[object]:
    built = a_context(**context)
    with suppress(AirflowSkipException):
        task.execute(built)
    return list(built["ti"].switches)


def restored(**form: object) -> list[object]:
    task = RestoreOperator(task_id="restore", pipeline=PIPELINE)
    return switches_of(task, dag_id="demo__restore", params=RESTORE | form)


@pytest.mark.parametrize("status", [JobStatus.CANCELED, JobStatus.SUSPENDED])
def test_a_trigger_that_finds_its_job_stopped_switches_the_dag_off(
    root: str, status: JobStatus
) -> None:
    trigger()
    stop(a_job(root), status)
    task = TriggerOperator(task_id="trigger", pipeline=PIPELINE)

    assert switches_of(task, run_id="run-2") == [OFF]
    assert switches_of(task, run_id="run-3", dag_id="demo__savepoint") == []


@pytest.mark.parametrize(("restarts", "stored"), [(True, []), (False, [OFF])])
def test_a_failure_switches_the_dag_off_where_it_ends_the_job(
    root: str, spark: StandInSpark, restarts: bool, stored: list[object]
) -> None:
    pipeline = a_pipeline() if restarts else a_pipeline(restart_strategy=no_restart())
    submit(a_job(root, pipeline), configure(pipeline, {}))
    a_checkpoint("run-1")
    trigger(run_id="run-2")
    task = AbortOperator(task_id="abort", pipeline=pipeline)

    found = switches_of(task, run_id="run-2", dag_id="demo", states={"bids.snapshot": "failed"})

    assert found == stored
    expected = JobStatus.RESTARTING if restarts else JobStatus.FAILED
    assert a_job(root).state().status is expected


def test_a_restore_switches_on_what_had_ended_and_goes_on(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    while_running = restored()
    stop(a_job(root), JobStatus.SUSPENDED)
    to_look_first = restored(then=STAY_SUSPENDED)
    resumed = restored()

    assert (while_running, to_look_first, resumed) == ([], [], [ON])
