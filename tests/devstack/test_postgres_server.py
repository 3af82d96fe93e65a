"""A real PostgreSQL: only Airflow's role gets in, data outlives kill -9, nothing is left behind."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from urllib.parse import unquote, urlsplit

import psycopg2
import pytest

from sluice.devstack import processes, servers
from sluice.devstack.processes import ProcessRecord

Start = Callable[[], ProcessRecord]


@pytest.fixture
def port() -> int:
    return processes.free_ports(1)[0]


@pytest.fixture
def start(tmp_path: Path, port: int) -> Iterator[Start]:
    started: list[ProcessRecord] = []

    def begin() -> ProcessRecord:
        servers.prepare_data_folder(tmp_path)
        launch = servers.postgres_launch(port=port, sluice_dir=tmp_path, env=dict(os.environ))
        record = processes.start(launch)
        started.append(record)
        processes.wait_until_ready(
            record,
            lambda: servers.accepts_sessions(port),
            timeout_s=servers.POSTGRES_START_TIMEOUT_S,
            cancelled=Event(),
        )
        return record

    yield begin
    processes.stop_all(started, stack_id=None, grace_s=5)
    servers.kill_leftovers(tmp_path)


def query(sluice_dir: Path, port: int, statement: str) -> list[tuple[object, ...]]:
    """Run one statement as Airflow does: with the address that it is given, and nothing else."""
    address = urlsplit(servers.database_url(port=port, sluice_dir=sluice_dir))
    passwords = unquote(address.query.removeprefix("passfile="))
    with closing(
        psycopg2.connect(
            host=address.hostname,
            port=address.port,
            user=address.username,
            dbname=address.path.removeprefix("/"),
            passfile=passwords,
        )
    ) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []


def postgres_processes(sluice_dir: Path) -> list[int]:
    data = (sluice_dir / "postgres" / "18").resolve()
    seen = {info.pid: processes.program_and_folder(info.pid) for info in processes.all_processes()}
    return [pid for pid, where in seen.items() if where is not None and where[1] == data]


def test_data_outlives_a_stop_and_a_kill_9_and_no_process_does(
    tmp_path: Path, port: int, start: Start
) -> None:
    first = start()
    query(tmp_path, port, "CREATE TABLE kept AS SELECT 7 AS value")
    assert len(postgres_processes(tmp_path)) > 1

    killed = processes.stop_all([first], stack_id=None, grace_s=10)
    assert (killed, postgres_processes(tmp_path)) == (0, [])
    second = start()
    assert query(tmp_path, port, "SELECT value FROM kept") == [(7,)]

    os.kill(second.pid, signal.SIGKILL)  # Its children linger, and would bar the next server.
    processes.stop_all([second], stack_id=None, grace_s=5)
    third = start()
    assert query(tmp_path, port, "SELECT value FROM kept") == [(7,)]

    os.kill(third.pid, signal.SIGKILL)
    processes.stop_all([third], stack_id=None, grace_s=5)
    servers.kill_leftovers(tmp_path)
    assert postgres_processes(tmp_path) == []


def test_only_airflow_gets_in_with_its_password_and_is_no_superuser(
    tmp_path: Path, port: int, start: Start
) -> None:
    start()

    assert query(
        tmp_path,
        port,
        "SELECT current_user::text, rolsuper FROM pg_roles WHERE rolname = current_user",
    ) == [("airflow", False)]
    for user, database in (("airflow", "airflow"), ("postgres", "postgres"), ("root", "airflow")):
        with pytest.raises(psycopg2.OperationalError):
            psycopg2.connect(
                host=processes.LOOPBACK,
                port=port,
                user=user,
                dbname=database,
                password="wrong",  # noqa: S106
            )


def test_the_password_is_ours_alone(tmp_path: Path) -> None:
    servers.prepare_data_folder(tmp_path)

    assert (tmp_path / "postgres" / "passwords").stat().st_mode & 0o777 == 0o600
