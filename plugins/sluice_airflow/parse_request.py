"""Has Airflow parse the file of a checkpoint DAG soon, and not only at its next turn.

Airflow runs the trigger of an asset only while a DAG on it is unpaused, and notices that when it
parses the DAG's file: twice a minute by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def request_parse(dag_id: str, session: Session) -> None:
    """Put the DAG's file first; nothing happens if it is there already."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbag import DagPriorityParsingRequest
    from sqlalchemy import select
    from sqlalchemy.exc import IntegrityError

    dag = session.scalars(select(DagModel).where(DagModel.dag_id == dag_id)).first()
    if dag is None or dag.bundle_name is None or dag.relative_fileloc is None:
        return
    request = DagPriorityParsingRequest(dag.bundle_name, dag.relative_fileloc)
    try:
        with session.begin_nested():
            session.add(request)
    except IntegrityError:  # Another process has asked for it.
        return
