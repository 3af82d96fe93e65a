"""The listener that acts on what a run's tasks stored, when the run ends: it sets the run's note,
and turns the switch of the checkpoint DAG.  When the first run of such a DAG begins, it has Airflow
start the trigger that watches for the next ones.

It runs in the scheduler, or in the API server when a person ends a run, with their session, and
reads one row for each.  An error here must not affect either of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from sluice_airflow.dag_switch import turn
from sluice_airflow.notes import NOTE_KEY
from sluice_airflow.parse_request import request_parse

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

log = logging.getLogger(__name__)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_running(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    from airflow.timetables.assets import AssetOrTimeSchedule
    from airflow.utils.types import DagRunType
    from sqlalchemy.orm import object_session

    from sluice_airflow.timetable import CheckpointTimetable

    schedule = getattr(dag_run.dag, "timetable", None)
    is_ours = isinstance(schedule, AssetOrTimeSchedule) and isinstance(
        schedule.timetable, CheckpointTimetable
    )
    session = object_session(dag_run)
    if session is None or not is_ours or dag_run.run_type != DagRunType.SCHEDULED:
        return
    try:
        request_parse(dag_run.dag_id, session)
    except Exception:  # Airflow parses the file anyway, later.
        log.warning("parse not requested dag_id=%s", dag_run.dag_id, exc_info=True)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    _take_note(dag_run)
    _turn_switch(dag_run)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    _take_note(dag_run)
    _turn_switch(dag_run)


def _turn_switch(dag_run: Any) -> None:  # noqa: ANN401 - Airflow's annotations are skipped
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return
    try:
        with session.no_autoflush:
            turn(dag_run, session)
    except Exception:  # A DAG that runs on in vain must not stop the scheduler.
        log.warning("switch not turned dag_id=%s run_id=%s", dag_run.dag_id, dag_run.run_id,
                    exc_info=True)  # fmt: skip


def _take_note(dag_run: Any) -> None:  # noqa: ANN401 - Airflow's annotations are skipped
    from airflow.models.xcom import XComModel
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None or dag_run.note:
        return  # Keep a note that a person wrote.
    newest = (
        select(XComModel)
        .where(
            XComModel.dag_id == dag_run.dag_id,
            XComModel.run_id == dag_run.run_id,
            XComModel.key == NOTE_KEY,
        )
        .order_by(XComModel.timestamp.desc())
        .limit(1)
    )
    try:
        with session.no_autoflush:
            found = session.scalars(newest).first()
        if found is not None:
            dag_run.note = str(XComModel.deserialize_value(found))
    except Exception:  # An error of a note must not stop the scheduler.
        log.warning("run without a note dag_id=%s run_id=%s", dag_run.dag_id, dag_run.run_id,
                    exc_info=True)  # fmt: skip
