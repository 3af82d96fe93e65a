"""The switch of a checkpoint DAG: off once its job has ended, on once a restore resumes it.

    run of {pipeline} ends; its job is FINISHED, FAILED, CANCELED or SUSPENDED   --> paused
    run of {pipeline}__restore ends; it resumed a job that had ended             --> unpaused

A task cannot pause a DAG (Airflow's execution API has no call for it), so it stores what is to be
done as an XCom, and the listener in the scheduler does it when the run ends (``run_notes``), in the
way in which Airflow pauses a DAG after too many failures.  Not sooner: a paused DAG's tasks do not
start, and this run has some left.

A failure's restore leaves the switch alone, as its job had not ended: who paused a DAG of a running
job finds it paused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from sluice.core.properties import JobStatus
from sluice_airflow.parse_request import request_parse

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import Context
    from sqlalchemy.orm import Session

    from sluice.declaration.pipeline import Pipeline

SWITCH_KEY = "sluice_switch"


class Switch(TypedDict):
    """What is stored: a DAG, and whether it is paused from then on."""

    dag_id: str
    is_paused: bool


def switch_off_if_ended(context: Context, pipeline: Pipeline, status: JobStatus) -> None:
    """Have the checkpoint DAG paused at the end of this run, if it is one of that DAG.

    The end of a savepoint's run is no moment for it: a run of the checkpoint DAG may still need
    its tasks.  The DAG of a job that was stopped from outside stays on; no event starts its runs.
    """
    if status.is_terminal and context["ti"].dag_id == pipeline.uid:
        _store(context, Switch(dag_id=pipeline.uid, is_paused=True))


def switch_on(context: Context, pipeline: Pipeline) -> None:
    """Have the checkpoint DAG unpaused at the end of this run."""
    _store(context, Switch(dag_id=pipeline.uid, is_paused=False))


def _store(context: Context, switch: Switch) -> None:
    context["ti"].xcom_push(key=SWITCH_KEY, value=dict(switch))


def turn(dag_run: DagRun, session: Session) -> None:
    """Do what a task of the ended run has stored; a switch that stands right is not touched."""
    from airflow.models.dag import DagModel
    from airflow.models.log import Log
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    found = session.scalars(stored(dag_run, SWITCH_KEY)).first()
    if found is None:
        return
    switch: Switch = XComModel.deserialize_value(found)
    is_paused, dag_id = switch["is_paused"], switch["dag_id"]
    dag = session.scalars(select(DagModel).where(DagModel.dag_id == dag_id)).first()
    if dag is None or dag.is_paused == is_paused:
        return
    if is_paused and _is_outdated(dag_run, found.timestamp, session):
        return
    dag.is_paused = is_paused
    if not is_paused:
        request_parse(dag_id, session)
    session.add(
        Log(
            event="paused" if is_paused else "unpaused",
            dag_id=dag_id,
            owner="sluice",
            extra=f"[('dag_id', '{dag_id}'), ('is_paused', {is_paused})]",
        )
    )


def stored(dag_run: DagRun, key: str) -> Any:  # noqa: ANN401 - SQLAlchemy's select
    """The query for what the run's tasks stored last under *key*."""
    from airflow.models.xcom import XComModel
    from sqlalchemy import select

    return (
        select(XComModel)
        .where(
            XComModel.dag_id == dag_run.dag_id,
            XComModel.run_id == dag_run.run_id,
            XComModel.key == key,
        )
        .order_by(XComModel.timestamp.desc())
        .limit(1)
    )


def _is_outdated(dag_run: DagRun, stored_at: Any, session: Session) -> bool:  # noqa: ANN401
    """Whether the job was restored since, or another run of the DAG still needs its tasks."""
    from airflow.models.dagrun import DagRun as Runs
    from airflow.utils.state import DagRunState
    from sqlalchemy import or_, select

    restored = (Runs.dag_id == f"{dag_run.dag_id}__restore") & (Runs.end_date > stored_at)
    running = (
        (Runs.dag_id == dag_run.dag_id)
        & (Runs.run_id != dag_run.run_id)
        & (Runs.state == DagRunState.RUNNING)
    )
    return (
        session.scalars(select(Runs.id).where(or_(restored, running)).limit(1)).first() is not None
    )
