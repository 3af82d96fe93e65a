"""Has Airflow parse the file of a checkpoint DAG soon, and not only at its next turn.

Airflow runs the trigger of an asset only while a DAG on it is unpaused, and notices that when it
parses the DAG's file: twice a minute by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.orm import Session


def request_parse(dag_id: str, session: Session) -> None:
    """Put the DAG's file first; nothing happens if it is there already.

    One statement in the transaction of *session*, which is the scheduler's: Airflow allows
    no commit there but its own, not of a savepoint either.
    """
    from airflow.models.dag import DagModel
    from airflow.models.dagbag import DagPriorityParsingRequest
    from sqlalchemy import select

    dag = session.scalars(select(DagModel).where(DagModel.dag_id == dag_id)).first()
    if dag is None or dag.bundle_name is None or dag.relative_fileloc is None:
        return
    table = DagPriorityParsingRequest.__table__
    row = {"bundle_name": dag.bundle_name, "relative_fileloc": dag.relative_fileloc}
    session.execute(_insert_if_absent(table, session.get_bind().dialect.name).values(row))


def _insert_if_absent(table: Table, dialect: str) -> Any:  # noqa: ANN401 - each dialect has its own
    from sqlalchemy.dialects import mysql, postgresql, sqlite

    match dialect:
        case "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing()
        case "sqlite":
            return sqlite.insert(table).on_conflict_do_nothing()
        case _:
            return mysql.insert(table).prefix_with("IGNORE")
