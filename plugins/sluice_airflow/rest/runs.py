"""Starts the DAG run that an act is, and finds it again."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagNotFound
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from airflow.utils.types import DagRunTriggeredByType
from sqlalchemy import select

from sluice_airflow.rest.pipelines import dag_path
from sluice_airflow.rest.problems import Refused

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser


class StartedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A DAG run that was started; ``run`` is its path in Airflow.  Its id is the request's."""

    request_id: str = msgspec.field(name="request-id")
    dag_id: str
    run: str


class FoundRun(msgspec.Struct, frozen=True, kw_only=True):
    """``state`` is Airflow's: queued, running, success or failed."""

    state: str
    note: str | None


def start_run(dag_id: str, conf: dict[str, Any], user: BaseUser) -> StartedRun:
    """A manual run of *dag_id*, by *user*, with *conf* in the place of its form."""
    _require_ready(dag_id)
    try:
        started = trigger_dag(
            dag_id,
            triggered_by=DagRunTriggeredByType.REST_API,
            triggering_user_name=user.get_name(),
            conf=conf,
        )
    except DagNotFound as error:
        raise Refused(HTTPStatus.NOT_FOUND, _unknown(dag_id)) from error
    except ValueError as error:  # Airflow's, of a field that the form would refuse.
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, f"DAG {dag_id!r}: {error}") from error
    if started is None:
        raise Refused(HTTPStatus.NOT_FOUND, _unknown(dag_id))
    return StartedRun(
        request_id=started.run_id,
        dag_id=dag_id,
        run=run_path(dag_id, started.run_id),
    )


def run_path(dag_id: str, run_id: str) -> str:
    """Where Airflow shows a run."""
    return f"{dag_path(dag_id)}/runs/{quote(run_id, safe='')}"


def find_run(dag_id: str, run_id: str) -> FoundRun:
    """The run of an earlier request."""
    with create_session() as session:
        mine = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
        found = session.scalars(mine).one_or_none()
        if found is None:
            raise Refused(
                HTTPStatus.NOT_FOUND,
                f"DAG {dag_id!r} has no run {run_id!r}; it was never requested, or its run was "
                "deleted",
            )
        return FoundRun(state=DagRunState(found.state).value, note=found.note)


def _require_ready(dag_id: str) -> None:
    """A run of a paused DAG would wait, without a word of what for."""
    with create_session() as session:
        dag = session.scalars(select(DagModel).where(DagModel.dag_id == dag_id)).one_or_none()
        if dag is None or dag.is_stale:
            raise Refused(HTTPStatus.NOT_FOUND, _unknown(dag_id))
        if dag.is_paused:
            raise Refused(
                HTTPStatus.CONFLICT, f"DAG {dag_id!r} is paused, so that no run starts; unpause it"
            )


def _unknown(dag_id: str) -> str:
    return f"Airflow has no DAG {dag_id!r}; look at its import errors"
