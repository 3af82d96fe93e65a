"""The database of this folder's Airflow, migrated once for a process that asks for it.

What is of Airflow is imported within: the environment of tests/airflow has to be set before.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@functools.cache
def migrate() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "airflow", "db", "migrate"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)


def is_paused(dag_id: str) -> bool:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        return bool(session.scalar(select(DagModel.is_paused).where(DagModel.dag_id == dag_id)))


def set_paused(dag_id: str, *, paused: bool) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(is_paused=paused))


@contextmanager
def newest_run(dag_id: str) -> Iterator[Any]:
    """The newest run of the DAG, in a transaction."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    newest = select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(1)
    with create_session() as session:
        yield session.scalars(newest).one()
