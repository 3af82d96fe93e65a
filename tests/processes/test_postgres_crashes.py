"""Coordinators that die, hang or lose their connection while they publish: every row once."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from harness.postgres_database import Database
from sluice.connectors.postgres import copy
from sluice.connectors.postgres.copy import as_csv
from sluice.connectors.postgres.ledger import Ledger
from sluice.connectors.postgres.server import Connection, one_row
from sluice.connectors.staged_sink import StagedSink
from sluice.core.answers import Committable
from sluice.core.timeline import Recovery
from sluice.errors import FencedError, StoreUnavailable
from sluice.store.open import StoreLocation
from tests.contract.conftest import environment_with_sluice
from tests.contract.sink_case import (
    JOB,
    RESTORED,
    SinkCase,
    open_staged,
    publish,
    rows,
    seen,
    staged_rows,
)
from tests.contract.test_postgres_target import COLUMNS, case_of, sink_of, target_of


@pytest.fixture
def table(database: Database) -> str:
    return f"{database.new_schema()}.orders"


@pytest.fixture
def root(tmp_path: Path) -> StoreLocation:
    return StoreLocation(root=f"file://{tmp_path}/staged")


def case_in(database: Database, table: str, root: StoreLocation) -> SinkCase:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    return case_of(database, table, root)


def impatient(sink: StagedSink, *, hung_after_s: float = 0.3, wait_s: float = 30) -> StagedSink:
    ledger = replace(target_of(sink).ledger, hung_after_s=hung_after_s, lock_wait_s=wait_s)
    return with_ledger(sink, ledger)


def ledger_of(kind: type[Ledger], sink: StagedSink) -> Ledger:
    """The ledger of *sink* as a derived class."""
    ledger = target_of(sink).ledger
    return kind(ledger.table, ledger.hung_after_s, ledger.lock_wait_s)


def with_ledger(sink: StagedSink, ledger: Ledger) -> StagedSink:
    return replace(sink, target=replace(target_of(sink), ledger=ledger))


# A coordinator of its own, that dies where the first argument says.
COMMITTER = """
import os, signal, sys, time
from sluice.connectors.postgres.ledger import Ledger
from sluice.connectors.postgres.target import PostgresTarget
from sluice.core.answers import Committable
from sluice.core.timeline import Writer
from sluice.connectors.postgres.declared_sink import PostgresTable
from sluice.store.open import StoreLocation

where, dsn, table, key, root, checkpoint_id, file, rows, size = sys.argv[1:]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def hang(*_):
    print("hangs", flush=True)
    time.sleep(600)

def after(method, what):
    def both(*args, **how):
        found = method(*args, **how)
        what()
        return found
    return both

match where:
    case "before":
        PostgresTarget.publish = die
    case "before_commit":
        Ledger.note = after(Ledger.note, die)
    case "after_commit":
        PostgresTarget.publish = after(PostgresTarget.publish, die)
    case "hang_before_commit":
        Ledger.note = after(Ledger.note, hang)
    case "hang_in_copy":
        from sluice.connectors.postgres import copy
        def some(table):
            yield b'5,"a",1.5,2026-01-01\\n'
            hang()
        copy.as_csv = some
sink = PostgresTable(dsn, table, upsert_key=tuple(key.split())).open(
    "orders", {}, StoreLocation(root=root))
staged = Committable(sink="orders", file=file, rows=int(rows), size_bytes=int(size))
writer = Writer(life="first-life", generation=1)
sink.commit(writer, int(checkpoint_id), 1, [staged])
"""


def committing(
    where: str,
    database: Database,
    table: str,
    root: StoreLocation,
    staged: Committable,
    key: str = "",
) -> subprocess.Popen[str]:
    file = (staged.file, staged.rows, staged.size_bytes)
    arguments = (where, database.dsn, table, key, root.root, 2, *file)
    return subprocess.Popen(
        [sys.executable, "-c", COMMITTER, *map(str, arguments)],
        env=environment_with_sluice(),
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("key", ["", "id"], ids=["appended", "upserted"])
@pytest.mark.parametrize("where", ["before", "before_commit", "after_commit"])
def test_a_coordinator_killed_while_it_commits_leaves_every_row_exactly_once(
    where: str, key: str, database: Database, table: str, root: StoreLocation
) -> None:
    # Only where rows are upserted: elsewhere the table must not stop a row that comes twice.
    unique = ", UNIQUE (id)" if key else ""
    database.run(f"CREATE TABLE {table} ({COLUMNS}{unique})")
    case = case_of(database, table, root, upsert_key=tuple(key.split()))
    publish(case.open(), 1, None, rows(1))
    staged = staged_rows(case.open(), 2, 2, 3)

    with committing(where, database, table, root, staged, key) as killed:
        assert killed.wait(60) == -signal.SIGKILL
    assert seen(case) == (rows(1, 2, 3) if where == "after_commit" else rows(1))
    for _ in range(2):
        case.open().commit(JOB, 2, 1, [staged])

    assert seen(case) == rows(1, 2, 3)
    ledger = database.run(
        f"SELECT checkpoint_id, rows FROM {table.partition('.')[0]}.sluice_ledger"
    )
    assert sorted(ledger) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("where", ["hang_before_commit", "hang_in_copy"])
def test_a_zombie_that_hangs_in_its_transaction_is_disconnected_and_shows_nothing(
    where: str, database: Database, table: str, root: StoreLocation
) -> None:
    case = case_in(database, table, root)
    publish(case.open(), 1, None, rows(1))
    staged = staged_rows(case.open(), 2, 2, 3)
    with committing(where, database, table, root, staged) as zombie:
        assert zombie.stdout is not None
        assert zombie.stdout.readline() == "hangs\n"
        try:
            os.kill(zombie.pid, signal.SIGSTOP)

            impatient(open_staged(case)).commit(JOB, 2, 1, [staged])

            assert seen(case) == rows(1, 2, 3)
        finally:
            zombie.kill()
    assert seen(case) == rows(1, 2, 3)


@pytest.mark.parametrize("where", ["hang_before_commit", "hang_in_copy"])
def test_a_zombie_that_a_restore_passed_while_it_hung_shows_nothing(
    where: str, database: Database, table: str, root: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_in(database, table, root)
    publish(case.open(), 1, None, rows(1))
    staged = staged_rows(case.open(), 2, 2, 3)
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        goes_on.wait(60)

    class Hanging(Ledger):
        """Hangs between its note and COMMIT."""

        def note(self, connection: Connection, *given: Any, **how: Any) -> None:
            super().note(connection, *given, **how)
            hang()

    def hang_first(given: pa.Table) -> Iterator[memoryview]:
        hang()
        return as_csv(given)

    zombie = open_staged(case)
    if where == "hang_before_commit":
        zombie = with_ledger(zombie, ledger_of(Hanging, zombie))
    else:
        monkeypatch.setattr(copy, "as_csv", hang_first)
    with ThreadPoolExecutor() as threads:
        hung = threads.submit(zombie.commit, JOB, 2, 1, [staged])
        assert hangs.wait(60)
        impatient(open_staged(case)).recover(RESTORED, Recovery(version=1, through=3))
        goes_on.set()

    assert isinstance(hung.exception(), StoreUnavailable)
    assert seen(case) == rows(1)
    with pytest.raises(FencedError, match="generation 2 of the job has written"):
        case.open().commit(JOB, 2, 1, [staged])
    assert seen(case) == rows(1)


def test_a_coordinator_that_works_is_waited_for_and_not_disconnected(
    database: Database, table: str, root: StoreLocation
) -> None:
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    gate = f"{table.partition('.')[0]}.gate()"
    database.run(
        f"CREATE FUNCTION {gate} RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN PERFORM pg_advisory_xact_lock_shared(78); RETURN NEW; END$$"
    )
    database.run(
        f"CREATE TRIGGER gate BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {gate}"
    )
    case = case_of(database, table, root)
    staged = staged_rows(case.open(), 1, 1, 2)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with ThreadPoolExecutor() as threads:
        with closing(database.connect()) as closed:
            closed.cursor().execute("SELECT pg_advisory_lock(78)")
            working = threads.submit(case.open().commit, JOB, 1, None, [staged])
            while database.run(waiting) != [(1,)]:
                assert not working.done(), working.exception()
            with pytest.raises(StoreUnavailable, match="another coordinator"):
                impatient(open_staged(case), hung_after_s=0, wait_s=0.5).commit(
                    JOB, 1, None, [staged]
                )
        case.open().commit(JOB, 1, None, [staged])

    assert working.exception() is None
    assert seen(case) == rows(1, 2)


def test_when_the_answer_to_commit_is_lost_somebody_tries_again_and_finds_the_note(
    database: Database, table: str, root: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server commits, and the connection breaks before it can say so."""
    case = case_in(database, table, root)
    publish(case.open(), 1, None, rows(1))
    staged = staged_rows(case.open(), 2, 2)
    commit = psycopg.Connection.commit
    lost: list[int] = []

    def commit_and_lose(self: psycopg.Connection) -> None:
        noted = self.execute(
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        ).fetchone()
        commit(self)
        if noted and not lost:
            lost.append(1)
            os.close(os.dup(self.fileno()))
            self.pgconn.finish()
            commit(self)

    monkeypatch.setattr(psycopg.Connection, "commit", commit_and_lose)
    with pytest.raises(StoreUnavailable):
        case.open().commit(JOB, 2, 1, [staged])
    case.open().commit(JOB, 2, 1, [staged])

    assert lost == [1]
    assert seen(case) == rows(1, 2)


def test_a_server_killed_in_the_transaction_is_unavailable_and_the_next_try_publishes(
    database: Database, table: str, root: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_in(database, table, root)
    staged = staged_rows(case.open(), 1, 1)
    note = Ledger.note

    def note_and_die(self: Ledger, connection: Connection, *given: Any, **how: Any) -> None:
        note(self, connection, *given, **how)
        database.run("SELECT pg_terminate_backend(%s)", connection.info.backend_pid)

    monkeypatch.setattr(Ledger, "note", note_and_die)
    with pytest.raises(StoreUnavailable):
        case.open().commit(JOB, 1, None, [staged])
    monkeypatch.undo()
    assert seen(case) == []
    case.open().commit(JOB, 1, None, [staged])

    assert seen(case) == rows(1)


def test_a_commit_survives_a_crash_of_a_server_that_does_not_flush(
    database: Database, table: str, root: StoreLocation
) -> None:
    """The devstack's server has synchronous_commit off; staged files are deleted after a commit."""
    database.run(f"CREATE TABLE {table} ({COLUMNS})")
    sink = sink_of(database, table, root)
    shown: list[str] = []

    class Asking(Ledger):
        def note(self, connection: Connection, *given: Any, **how: Any) -> None:
            super().note(connection, *given, **how)
            shown.append(one_row(connection, "SHOW synchronous_commit")[0])

    publish(with_ledger(sink, ledger_of(Asking, sink)), 1, None, rows(1))

    assert database.run("SHOW synchronous_commit") == [("off",)]
    assert shown == ["on"]
