"""Whole DAG runs on a real Airflow database: ``dag.test()`` over a bundle of this folder's DAGs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.errors import StageFailed
from sluice.job.job import Job
from tests.airflow.database import is_paused, newest_run, set_paused
from tests.airflow.stand_in import StandInSpark, a_job, decline


def run(dag: DAG, **conf: object) -> tuple[str, dict[str, str]]:
    """The run's state, and that of every task.  ``dag.test()`` keeps earlier runs' conf."""
    done: Any = dag.test(run_conf=conf)
    return done.state, {ti.task_id: ti.state for ti in done.get_task_instances()}


def note_of(dag_id: str) -> str | None:
    """That of the newest run, once the scheduler has told of its end; ``dag.test()`` does not."""
    from sluice_airflow import run_notes

    with newest_run(dag_id) as ended:
        run_notes.on_dag_run_success(ended, "")
    with newest_run(dag_id) as ended:
        note: str | None = ended.note
        return note


def queued_runs(dag_id: str) -> list[tuple[str, dict[str, object]]]:
    from airflow.models.dagrun import DagRun

    return [(found.run_id, found.conf) for found in DagRun.find(dag_id=dag_id)]


def test_a_green_run_publishes_a_checkpoint(
    dags: dict[str, DAG], root: str, spark: StandInSpark
) -> None:
    state, tasks = run(dags["demo"])

    latest = a_job(root).state().latest_completed
    assert state == "success"
    told = note_of("demo")
    assert told is not None
    assert told.startswith("checkpoint 1 completed, 0 B, ")
    assert {tasks.pop(task) for task in ("abort", "restart", "cancel_stages")} == {"skipped"}
    assert set(tasks.values()) == {"success"}
    assert latest is not None
    assert latest.is_committed


def test_a_failed_stage_aborts_and_asks_for_the_restore_that_makes_the_next_run_green(
    dags: dict[str, DAG], root: str, spark: StandInSpark
) -> None:
    run(dags["demo"])
    spark.failing["by_auction"] = StageFailed("boom")

    state, tasks = run(dags["demo"])
    job = a_job(root)
    failed = job.state()
    asked = queued_runs("demo__restore")
    restore_state, _ = run(dags["demo__restore"], **asked[0][1])
    next_state, _ = run(dags["demo"])

    assert state == "failed"
    assert tasks["abort"] == tasks["restart"] == "success"
    assert tasks["commit"] == "upstream_failed"
    assert failed.status is JobStatus.RESTARTING
    assert [(f.checkpoint_id, f.reason) for f in failed.failed] == [
        (2, CheckpointFailureReason.TASK_FAILURE)
    ]
    assert asked == [
        (
            f"failover__generation-1__{failed.restart_at_ms}",
            {"target": "latest", "only_generation": 1},
        )
    ]
    assert (restore_state, next_state) == ("success", "success")
    latest = job.state().latest_completed
    assert latest is not None
    assert (latest.checkpoint_id, latest.parent, job.state().generation) == (3, 1, 2)


def test_a_decline_aborts_the_run_by_its_own_reason(
    dags: dict[str, DAG], root: str, spark: StandInSpark
) -> None:
    def declines(job: Job, checkpoint_id: int, stage: str) -> None:
        decline(job, checkpoint_id, stage, 0)
        raise StageFailed(f"{stage}/0 declined: no disk")

    spark.before = declines

    state, _ = run(dags["demo"])

    failed = a_job(root).state().failed
    assert state == "failed"
    assert [(f.reason, f.message) for f in failed] == [
        (CheckpointFailureReason.CHECKPOINT_DECLINED, "bids/0: no disk")
    ]


def test_a_savepoint_that_drains_finishes_the_job_and_later_runs_are_skipped(
    dags: dict[str, DAG], root: str, spark: StandInSpark
) -> None:
    run(dags["demo"])

    saved, _ = run(dags["demo__savepoint"], name="last", stop="drain")
    later, tasks = run(dags["demo"])

    assert saved == "success"
    assert a_job(root).state().status is JobStatus.FINISHED
    assert a_job(root).savepoint_metadata("last").checkpoint_id == 2
    assert later == "success"
    assert set(tasks.values()) == {"skipped"}


def test_the_schedule_ends_with_the_job_and_begins_again_with_its_restore(
    dags: dict[str, DAG], root: str, spark: StandInSpark
) -> None:
    run(dags["demo"])
    set_paused("demo", paused=False)
    note_of("demo")
    while_running = is_paused("demo")
    run(dags["demo__savepoint"], name="on_hold", stop="suspend")
    note_of("demo__savepoint")
    after_the_savepoint = is_paused("demo")
    _, skipped = run(dags["demo"])
    note_of("demo")
    once_skipped = is_paused("demo")
    run(dags["demo__restore"], target="savepoint", savepoint="on_hold", only_generation=None)
    note_of("demo__restore")
    resumed = is_paused("demo")
    note_of("demo")  # The end of the skipped run, told late: it is from before the restore.

    assert resumed is False
    assert set(skipped.values()) == {"skipped"}
    assert (while_running, after_the_savepoint, once_skipped) == (False, False, True)
    assert a_job(root).state().status is JobStatus.RUNNING
    assert is_paused("demo") is False


def test_the_run_that_finishes_a_job_is_the_last_one(
    dags: dict[str, DAG], root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_PARAM_EVENTS", "1000")
    state, _ = run(dags["demo"])
    set_paused("demo", paused=False)
    note_of("demo")

    assert state == "success"
    assert a_job(root).state().status is JobStatus.FINISHED
    assert is_paused("demo")


def test_a_dag_that_a_person_switched_on_since_stays_on(
    dags: dict[str, DAG], root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the task that found the job FINISHED and the end of its run a second passes, in which
    the job was submitted anew: its first run waited for ever, queued.
    """
    from airflow.models.log import Log
    from airflow.utils.session import create_session

    monkeypatch.setenv("SLUICE_PARAM_EVENTS", "1000")
    run(dags["demo"])
    set_paused("demo", paused=False)
    with create_session() as session:
        said = '{"is_paused": false, "method": "PATCH"}'
        session.add(Log(event="patch_dag", dag_id="demo", owner="ada", extra=said))
    note_of("demo")

    assert a_job(root).state().status is JobStatus.FINISHED
    assert is_paused("demo") is False


def test_a_restore_of_a_running_job_leaves_a_dag_that_a_person_paused(
    dags: dict[str, DAG], root: str, spark: StandInSpark
) -> None:
    run(dags["demo"])
    set_paused("demo", paused=True)
    run(dags["demo__restore"], target="latest", savepoint=None, only_generation=None)
    note_of("demo__restore")

    assert a_job(root).state().generation == 2
    assert is_paused("demo")


def test_a_trigger_that_fails_fails_the_run_and_restores_nothing(
    dags: dict[str, DAG], root: str, spark: StandInSpark
) -> None:
    Path(root.removeprefix("file://")).mkdir()
    job = a_job(root)
    job.store.put(job.paths.journal_entry(1), b"not an entry")

    state, tasks = run(dags["demo"])

    assert state == "failed"
    assert tasks["trigger"] == "failed"
    assert tasks["restart"] != "success"


def asked_parses() -> list[str]:
    from airflow.models.dagbag import DagPriorityParsingRequest
    from airflow.utils.session import create_session
    from sqlalchemy import delete, select

    with create_session() as session:
        files = [*session.scalars(select(DagPriorityParsingRequest.relative_fileloc))]
        session.execute(delete(DagPriorityParsingRequest))
        return files


def test_the_first_run_and_a_restore_have_airflow_watch_for_the_next_ones_at_once(
    dags: dict[str, DAG], root: str, spark: StandInSpark
) -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagbag import DagPriorityParsingRequest
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.sqlalchemy import prohibit_commit
    from airflow.utils.types import DagRunType
    from sqlalchemy import select

    from sluice_airflow import run_notes
    from sluice_airflow.notes import request_parse
    from tests.airflow.releases import DagSerialization

    run(dags["demo"])
    asked_parses()
    with create_session() as session, prohibit_commit(session) as guard:  # As the scheduler does.
        first = session.scalars(select(DagRun).where(DagRun.dag_id == "demo").limit(1)).one()
        first.dag = DagSerialization.from_dict(DagSerialization.to_dict(dags["demo"]))
        for run_type in (DagRunType.MANUAL, DagRunType.ASSET_TRIGGERED):
            first.run_type = run_type
            run_notes.on_dag_run_running(first, "started")
        of_later_ones = [*session.scalars(select(DagPriorityParsingRequest.relative_fileloc))]
        first.run_type = DagRunType.SCHEDULED
        for _ in range(2):
            run_notes.on_dag_run_running(first, "started")
        request_parse("demo__no_such_dag", session)
        first.run_type = DagRunType.MANUAL
        guard.commit()

    with create_session() as session:
        file = session.get(DagModel, "demo").relative_fileloc
    assert of_later_ones == []
    assert asked_parses() == [file]
