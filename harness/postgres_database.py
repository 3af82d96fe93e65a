"""A real PostgreSQL for tests: the devstack's server on a free loopback port, over its own folder.

Each test gets a schema of its own.  ``owner`` owns the database and is no superuser; ``guest`` may
only log in.  Strangers look with psycopg2, which the connector does not use.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import psycopg2
import psycopg2.extras

from sluice.devstack import processes, servers
from sluice.devstack import processes as devstack_processes

HOST = devstack_processes.LOOPBACK
GUEST_PASSWORD = "guest's secret"
# For logical decoding, which sees what is on disk: so is what was committed.
LOGICAL = {"wal_level": "logical", "max_wal_senders": "4", "synchronous_commit": "on"}
MORE_SETTINGS = "max_prepared_transactions = 4\nautovacuum = off\n"

# What ICU and an extension would bring, which this build lacks and only a superuser may make: a
# collation that says of itself that different texts may be equal, and citext.
_SIGNS = {"<": "lt", "<=": "le", "=": "eq", ">=": "ge", ">": "gt"}
_FUNCTION = "IMMUTABLE STRICT AS"
_COMPARED = f"(citext, citext) RETURNS {{}} LANGUAGE sql {_FUNCTION} '{{}}'"
FOLDING = [
    'CREATE COLLATION public.folded FROM "C"',
    "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'folded'",
    "SET search_path = public",
    "CREATE TYPE citext",
    f"CREATE FUNCTION citextin(cstring) RETURNS citext LANGUAGE internal {_FUNCTION} 'textin'",
    f"CREATE FUNCTION citextout(citext) RETURNS cstring LANGUAGE internal {_FUNCTION} 'textout'",
    (
        "CREATE TYPE citext (INPUT = citextin, OUTPUT = citextout, LIKE = text, CATEGORY = 'S',"
        " COLLATABLE = true)"
    ),
    "CREATE CAST (citext AS text) WITHOUT FUNCTION AS IMPLICIT",
    "CREATE FUNCTION citext_cmp"
    + _COMPARED.format("int", "SELECT bttextcmp(lower($1::text), lower($2::text))"),
    *(
        f"CREATE FUNCTION citext_{name}"
        + _COMPARED.format("boolean", f"SELECT lower($1::text) {sign} lower($2::text)")
        for sign, name in _SIGNS.items()
    ),
    *(
        f"CREATE OPERATOR {sign} (LEFTARG = citext, RIGHTARG = citext, FUNCTION = citext_{name})"
        for sign, name in _SIGNS.items()
    ),
    "CREATE OPERATOR CLASS citext_ops DEFAULT FOR TYPE citext USING btree AS "
    + ", ".join(f"OPERATOR {n} {sign}" for n, sign in enumerate(_SIGNS, start=1))
    + ", FUNCTION 1 citext_cmp(citext, citext)",
]


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
    prepare_postgres(folder)
    with serving_postgres(folder) as database:
        yield database


def prepare_postgres(folder: Path) -> None:
    servers.prepare_data_folder(folder)
    data = servers.data_folder(folder)
    role = f"CREATE ROLE guest LOGIN PASSWORD '{_quoted_guest(sql=True)}'"
    as_superuser(folder, "\n".join([role, *FOLDING]))
    with (data / "pg_hba.conf").open("a") as access:
        access.write(f"host airflow guest {HOST}/32 scram-sha-256\n")
    with (data / "postgresql.conf").open("a") as settings:
        settings.write(MORE_SETTINGS)


def as_superuser(folder: Path, statements: str) -> None:
    """Run statements, one a line, in the tests' database while its server is stopped."""
    data = str(servers.data_folder(folder))
    servers.run_program("postgres", "--single", "-D", data, "airflow", text=statements)


@contextmanager
def serving_postgres(folder: Path, **settings: str) -> Iterator[Database]:
    """The server of a prepared folder, which may have been stopped before."""
    password = servers.password_file(folder).read_text().strip().rpartition(":")[2]
    port = devstack_processes.free_ports(1)[0]
    launch = servers.postgres_launch(port=port, sluice_dir=folder, env=dict(os.environ))
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    record = processes.start(replace(launch, command=(*launch.command, *options)))
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


def standby_of(folder: Path, to: Path, *, is_promoted: bool = True) -> None:
    """Copy a stopped server as it is: a standby that got no more, which is promoted by its start.

    Otherwise it is a copy that somebody puts back.
    """
    shutil.copytree(folder, to, symlinks=True)
    data = servers.data_folder(to)
    if is_promoted:
        (data / "recovery.signal").touch()
    if os.geteuid() == 0:
        for path in (data, *data.rglob("*")):
            shutil.chown(path, "nobody", pwd.getpwnam("nobody").pw_gid)


def _quoted_guest(*, sql: bool = False) -> str:
    return GUEST_PASSWORD.replace("'", "''" if sql else "\\'")
