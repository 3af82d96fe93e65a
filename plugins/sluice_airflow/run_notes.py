"""A listener: when a run of one of our DAGs ends, what its tasks said becomes its note.

It runs in the scheduler, or in the API server when a person ends a run, with their session, and
reads one row.  Whatever goes wrong here must not hold up either of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from sluice_airflow.notes import NOTE_KEY

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun

log = logging.getLogger(__name__)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_success(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    _take_note(dag_run)


@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_failed(dag_run: DagRun, msg: str) -> None:  # noqa: ARG001 - Airflow's signature
    _take_note(dag_run)


def _take_note(dag_run: Any) -> None:  # noqa: ANN401 - Airflow's annotations are skipped
    from airflow.models.xcom import XComModel
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None or dag_run.note:
        return  # A person's own note stays.
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
    except Exception:  # A note is no reason to stop a scheduler.
        log.warning("run without a note dag_id=%s run_id=%s", dag_run.dag_id, dag_run.run_id,
                    exc_info=True)  # fmt: skip
