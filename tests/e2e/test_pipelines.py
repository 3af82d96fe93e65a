"""The main job through Airflow: its result is right, also when a part of it is killed.

Each test kills in one way and compares with what plain Python finds in the whole log; nothing but
Airflow drives the checkpoints.  ``make e2e`` runs them; a sample of it every test run.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.airflow_api import AirflowApi
from sluice.cli.run import final_table
from sluice.coordinator.restore import stop
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import JobStatus
from sluice.declaration.project import load_pipeline
from sluice.devstack.stack import Stack
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from sluice.surface.checkpoints import CheckpointRecord, history
from tests.spark.sshd_log import Alert, write_allowlist, write_log

PIPELINE = "ssh_threats"
WATCHDOG = "sluice__watchdog"
DAGS = (PIPELINE, f"{PIPELINE}__restore", f"{PIPELINE}__savepoint", WATCHDOG)
ENDS_WITHIN_S = 600
IS_WHOLE = os.environ.get("SLUICE_E2E") == "all"  # make e2e
# The task of a stage behind the first may find its checkpoint completed: they are a chain.
FAULTS = ["kill-worker stage=window_rule", "kill-task stage=parse"]

whole = pytest.mark.skipif(not IS_WHOLE, reason="make e2e runs it")


def started(
    running: Stack, airflow: AirflowApi, tmp_path: Path, *, epochs: int
) -> tuple[Job, list[Alert], int]:
    """Submit the job on a new log; return it, the alerts it must find, and an id below which no
    checkpoint of it is: a run that was scheduled before the DAG was paused may begin at once.
    """
    expected = write_log(tmp_path / "auth.log", lines=epochs * 100, seed=epochs)
    pipeline = load_pipeline(PIPELINE)
    job = open_job(
        pipeline, StoreLocation(root=running.client_env["SLUICE_ROOT"], endpoint_url=running.s3_url)
    )
    params = {
        "input": str(tmp_path / "auth.log"),
        "allowlist": str(write_allowlist(tmp_path / "allow.txt")),
    }
    for dag in DAGS:
        airflow.wait_until_known(dag)
        airflow.unpause(dag)
    airflow.pause(PIPELINE)
    if job.state().status in (JobStatus.RUNNING, JobStatus.RESTARTING):
        stop(job, JobStatus.CANCELED)
    first_id = job.state().next_checkpoint_id
    submit(job, configure(pipeline, params, max_records_per_epoch=100))
    return job, expected, first_id


def wait_for_the_end(job: Job) -> JobStatus:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while not (state := job.state()).status.is_globally_terminal:
        assert time.monotonic() < deadline, list(history(job))
        time.sleep(1)
    return state.status


def alerts(job: Job) -> list[tuple[object, ...]]:
    rows = final_table(job, job.state().configuration.params).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def restored_by(airflow: AirflowApi) -> list[str]:
    """The notes of the runs that restored the job: the watchdog does when its minute comes before
    the task that starts the restore DAG.  Either run may end after the job: it goes on meanwhile.
    """
    by_watchdog = f"{PIPELINE}: restored the job from "
    deadline = time.monotonic() + ENDS_WITHIN_S
    while time.monotonic() < deadline:
        dags = (f"{PIPELINE}__restore", WATCHDOG)
        notes = [run.note or "" for dag in dags for run in airflow.runs(dag)]
        if found := [one for one in notes if one.startswith("restored ") or by_watchdog in one]:
            return found
        time.sleep(1)
    return []


def of_this_life(job: Job, first_id: int) -> list[CheckpointRecord]:
    return [record for record in history(job) if record.id >= first_id]


@whole
@pytest.mark.parametrize("fault", FAULTS)
def test_a_kill_in_a_snapshot_restores_and_changes_nothing(
    running: Stack, airflow: AirflowApi, tmp_path: Path, fault: str
) -> None:
    assert_a_kill_changes_nothing(running, airflow, tmp_path, fault)


def assert_a_kill_changes_nothing(
    running: Stack, airflow: AirflowApi, tmp_path: Path, fault: str, *, epochs: int = 3
) -> None:
    job, expected, first_id = started(running, airflow, tmp_path, epochs=epochs)
    run_id = f"e2e-{fault.partition(' ')[0]}-{first_id}"

    airflow.trigger(PIPELINE, conf={"fault": fault}, run_id=run_id)  # Before any scheduled run.
    airflow.unpause(PIPELINE)
    status = wait_for_the_end(job)

    records = of_this_life(job, first_id)
    failed = [record for record in records if record.status == "FAILED"]
    assert status is JobStatus.FINISHED
    assert alerts(job) == expected
    assert [record.reason for record in failed] == ["TASK_FAILURE"], records
    assert [r.records for r in records if r.status == "COMPLETED"] == [100] * epochs
    assert airflow.wait_until_finished(PIPELINE, run_id).state == "failed"
    airflow.pause(PIPELINE)  # Not before: no task of a paused DAG is started.
    assert job.state().num_restarts == 1
    assert restored_by(airflow)


@whole
def test_a_savepoint_is_taken_and_restored_through_airflow(
    running: Stack, airflow: AirflowApi, tmp_path: Path
) -> None:
    job, expected, first_id = started(running, airflow, tmp_path, epochs=4)
    name = f"before-{first_id}"

    airflow.unpause(f"{PIPELINE}__savepoint")
    run = airflow.trigger(f"{PIPELINE}__savepoint", conf={"name": name, "stop": "suspend"})
    assert airflow.wait_until_finished(f"{PIPELINE}__savepoint", run.dag_run_id).state == "success"
    assert job.state().status is JobStatus.SUSPENDED
    run = airflow.trigger(f"{PIPELINE}__restore", conf={"target": "savepoint", "savepoint": name})
    assert airflow.wait_until_finished(f"{PIPELINE}__restore", run.dag_run_id).state == "success"
    airflow.unpause(PIPELINE)
    status = wait_for_the_end(job)
    airflow.pause(PIPELINE)

    assert status is JobStatus.FINISHED
    assert alerts(job) == expected


@whole
def test_a_savepoint_waits_without_a_slot_and_a_cancelled_job_comes_back(
    running: Stack, airflow: AirflowApi, tmp_path: Path
) -> None:
    job, expected, first_id = started(running, airflow, tmp_path, epochs=4)
    savepoint_dag = f"{PIPELINE}__savepoint"
    for dag in (savepoint_dag, f"{PIPELINE}__cancel"):
        airflow.unpause(dag)

    airflow.unpause(PIPELINE)
    slow = airflow.trigger(PIPELINE, conf={"fault": "hang task=finalize seconds=45 tries=1"})
    wait_for_task(airflow, PIPELINE, slow.dag_run_id, "finalize", "running")
    waiting = airflow.trigger(savepoint_dag, conf={"name": f"behind-{first_id}"})
    wait_for_task(airflow, savepoint_dag, waiting.dag_run_id, "trigger", "up_for_reschedule")
    saved = airflow.wait_until_finished(savepoint_dag, waiting.dag_run_id)
    cancelled = airflow.trigger(f"{PIPELINE}__cancel")
    airflow.wait_until_finished(f"{PIPELINE}__cancel", cancelled.dag_run_id)
    status = job.state().status
    restored = airflow.trigger(f"{PIPELINE}__restore")
    back = airflow.wait_until_finished(f"{PIPELINE}__restore", restored.dag_run_id)
    end = wait_for_the_end(job)
    airflow.pause(PIPELINE)

    assert saved.state == back.state == "success"
    assert (saved.note or "").startswith(f"savepoint behind-{first_id} (checkpoint ")
    assert status is JobStatus.CANCELED
    assert end is JobStatus.FINISHED
    assert alerts(job) == expected


def wait_for_task(airflow: AirflowApi, dag: str, run_id: str, task_id: str, state: str) -> None:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while state not in [
        task.state for task in airflow.task_instances(dag, run_id) if task.task_id == task_id
    ]:
        assert time.monotonic() < deadline, airflow.task_instances(dag, run_id)
        time.sleep(0.3)
