"""Who writes a note while the run ends, in a database where two transactions can meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from harness.postgres_database import Database
from sluice_airflow.notes import NOTE_KEY
from sluice_airflow.run_notes import on_dag_run_success, write_note, write_notes
from tests.postgres_database import database  # noqa: F401 - a fixture

SAID = "checkpoint 1 completed"


@pytest.fixture(name="engine", scope="module")
def _engine(database: Database) -> Engine:  # noqa: F811
    """Airflow's tables, without foreign keys: no row is needed but those of the run."""
    from airflow.models import import_all_models
    from airflow.models.dagrun import DagRun

    import_all_models()
    engine = create_engine(database.dsn, poolclass=NullPool)
    DagRun.metadata.create_all(engine)
    foreign_keys = (
        "SELECT conrelid::regclass::text, quote_ident(conname) FROM pg_constraint "
        "WHERE contype = 'f'"
    )
    for table, key in database.run(foreign_keys):
        database.run(f"ALTER TABLE {table} DROP CONSTRAINT {key}")
    return engine


def write_one(run_id: str) -> None:
    write_note("demo", run_id)


def write_all(_: str) -> None:
    write_notes()


@pytest.mark.parametrize("writes", [write_one, write_all])
def test_what_was_so_while_the_run_lasted_is_not_written_behind_its_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, writes: Callable[[str], None]
) -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.xcom import XComModel

    @contextmanager
    def create_session() -> Iterator[Session]:
        with Session(engine) as session, session.begin():
            yield session

    monkeypatch.setattr("airflow.utils.session.create_session", create_session)
    run_id = writes.__name__
    with create_session() as session:
        session.merge(
            DagModel(dag_id="demo", bundle_name="demo", fileloc="demo.py", is_paused=True)
        )
        of = {"dag_id": "demo", "run_id": run_id}
        run = DagRun(**of, run_type="manual", state="running", run_after=datetime.now(UTC))
        session.add(run)
        session.flush()
        value = XComModel.serialize_value(SAID)
        session.add(XComModel(**of, dag_run_id=run.id, task_id="commit", key=NOTE_KEY, value=value))

    def note() -> str:
        with create_session() as session:
            return str(session.scalars(select(DagRun).where(DagRun.run_id == run_id)).one().note)

    def pause(*, paused: bool) -> None:
        with create_session() as session:
            session.get_one(DagModel, "demo").is_paused = paused

    pause(paused=False)
    writes(run_id)
    assert note() == SAID
    pause(paused=True)
    with create_session() as scheduler:
        ended = scheduler.scalars(select(DagRun).where(DagRun.run_id == run_id)).one()
        ended.state = "success"
        scheduler.flush()
        on_dag_run_success(ended, "")
        late = threading.Thread(target=writes, args=(run_id,))
        late.start()
        late.join(0.5)  # It has read that the run lasts, unless it waits for this transaction.
    late.join(30)

    assert note() == SAID
