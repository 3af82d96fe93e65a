"""Route of what stands still now: Airflow alone is asked, so a store that hangs is told, too."""

from __future__ import annotations

from typing import Any

import msgspec
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from fastapi import APIRouter, Depends, Response
from sqlalchemy import select

from sluice_airflow.rest.access import Uid, may_read
from sluice_airflow.rest.answers import answer, shows
from sluice_airflow.rest.runs import run_path
from sluice_airflow.run_notes import standing_still

router = APIRouter(tags=["pipelines"])


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """``notice`` says what a run under way waits for in vain, and where it is told what to do; it
    is empty as long as all goes on.  ``run`` is the path of that run in Airflow.
    """

    notice: str
    run: str | None


@router.get("/pipelines/{uid}/notice", responses=shows(Notice), dependencies=[Depends(may_read)])
def show_notice(uid: Uid) -> Response:
    """What does not answer, such as Spark or the store, or that the DAG of a run is paused."""
    with create_session() as session:
        for run in session.scalars(_under_way(uid)):
            if said := standing_still(run, session):
                return answer(Notice(notice=said, run=run_path(run.dag_id, run.run_id)))
    return answer(Notice(notice="", run=None))


def _under_way(uid: str) -> Any:  # noqa: ANN401 - SQLAlchemy's select
    """The runs of the pipeline's DAGs that have begun, the newest first."""
    dags = [uid, *(f"{uid}__{kind}" for kind in ("savepoint", "restore", "cancel"))]
    return (
        select(DagRun)
        .where(DagRun.dag_id.in_(dags), DagRun.state == DagRunState.RUNNING)
        .order_by(DagRun.id.desc())
    )
