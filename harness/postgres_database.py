"""A real PostgreSQL for tests: the devstack's server on a free loopback port, over its own folder.

Each test gets a schema of its own.  ``owner`` owns the database and is no superuser; ``guest`` may
only log in.  Strangers look with psycopg2, which the connector does not use.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import psycopg2
import psycopg2.extras

from sluice.devstack import processes, servers
from sluice.devstack import processes as devstack_processes

HOST = devstack_processes.LOOPBACK
GUEST_PASSWORD = "guest's secret"
MORE_SETTINGS = "max_prepared_transactions = 4\nautovacuum = off\n"


@dataclass(frozen=True, slots=True)
class Database:
    """``dsn`` is what a declaration gives."""

    port: int
    password: str

    @property
    def dsn(self) -> str:
        return f"postgresql://airflow:{self.password}@{HOST}:{self.port}/airflow"

    @property
    def guest_dsn(self) -> str:
        return (
            f"host={HOST} port={self.port} dbname=airflow user=guest password='{_quoted_guest()}'"
        )

    def connect(self) -> Any:
        """A stranger's session; each statement is its own transaction until that is changed."""
        connection = psycopg2.connect(self.dsn)
        connection.autocommit = True
        return connection

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def rows(self, statement: str) -> list[dict[str, Any]]:
        with (
            closing(self.connect()) as connection,
            connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor) as cursor,
        ):
            cursor.execute(statement)
            return [dict(row) for row in cursor.fetchall()]

    def new_schema(self) -> str:
        name = f"s{secrets.token_hex(6)}"
        self.run(f"CREATE SCHEMA {name}")
        return name


@contextmanager
def running_postgres(folder: Path) -> Iterator[Database]:
    servers.prepare_data_folder(folder)
    data = servers.data_folder(folder)
    guest = f"CREATE ROLE guest LOGIN PASSWORD '{_quoted_guest(sql=True)}'"
    servers.run_program("postgres", "--single", "-D", str(data), "postgres", text=guest)
    with (data / "pg_hba.conf").open("a") as access:
        access.write(f"host airflow guest {HOST}/32 scram-sha-256\n")
    with (data / "postgresql.conf").open("a") as settings:
        settings.write(MORE_SETTINGS)
    password = servers.password_file(folder).read_text().strip().rpartition(":")[2]
    port = devstack_processes.free_ports(1)[0]
    launch = servers.postgres_launch(port=port, sluice_dir=folder, env=dict(os.environ))
    record = processes.start(launch)
    try:
        processes.wait_until_ready(
            record,
            lambda: servers.accepts_sessions(port),
            timeout_s=servers.POSTGRES_START_TIMEOUT_S,
            cancelled=Event(),
        )
        yield Database(port, password)
    finally:
        processes.stop_all([record], stack_id=None, grace_s=5)
        servers.kill_leftovers(folder)


def _quoted_guest(*, sql: bool = False) -> str:
    return GUEST_PASSWORD.replace("'", "''" if sql else "\\'")
