"""The whole stack: ``up`` starts what is missing, ``down`` leaves no process behind.

``up`` may be repeated at any time: services that run, answer and were started with the same
settings are reused; others are stopped and started again, in parallel.  If it fails or is
interrupted, the services that this call started are stopped again.

    .sluice/  stack.json  stack.lock  logs/  s3/  spark/  airflow/  postgres/
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from uuid import uuid4

from sluice.devstack import (
    airflow_server,
    postgres_server,
    processes,
    s3_server,
    spark_server,
    stack_file,
)
from sluice.devstack.airflow_api import AirflowApi
from sluice.devstack.plan import choose_ports, plan_services
from sluice.devstack.ports import LOOPBACK, accepts_connections, free_ports
from sluice.devstack.processes import STACK_ID_VARIABLE, ProcessRecord
from sluice.devstack.settings import (
    StackOptions,
    client_environment,
    inherited_environment,
    service_environment,
    sluice_folder,
)
from sluice.devstack.stack_file import Ports, StackFile
from sluice.devstack.starting import STOP_GRACE_S, Ledger, ensure_all
from sluice.errors import ConfigurationError
from sluice.spark.java import find_java

_ARCHIVE_GRACE_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The addresses of a running stack, and the environment of its clients."""

    root_dir: Path
    ports: Ports
    records: tuple[ProcessRecord, ...]

    @property
    def airflow_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.airflow}"

    @property
    def spark_ui_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.spark_ui}"

    @property
    def spark_remote(self) -> str:
        return f"sc://{LOOPBACK}:{self.ports.spark}"

    @property
    def s3_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ports.s3}"

    @property
    def client_env(self) -> dict[str, str]:
        return client_environment(self.ports)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """The present status of one service."""

    name: str
    address: str
    pid: int | None
    is_answering: bool


def up(
    root_dir: Path,
    *,
    options: StackOptions | None = None,
    extra_env: Mapping[str, str] | None = None,
) -> Stack:
    """Return the running stack of this repository folder, starting whatever is missing.

    Raises:
        ConfigurationError: no Java, a taken port, another ``up`` at work, or a service that did
            not start; the message says what to do.
    """
    root_dir = root_dir.resolve()
    chosen = options or StackOptions.from_environment(os.environ)
    sluice_dir = sluice_folder(root_dir)
    find_java(os.environ)
    with stack_file.exclusive(sluice_dir), _sigterm_as_ctrl_c():
        recorded = stack_file.read(sluice_dir)
        ports = choose_ports(recorded, chosen)
        ledger = Ledger(
            sluice_dir,
            StackFile(stack_id=uuid4().hex, ports=ports)
            if recorded is None
            else replace(recorded, ports=ports),
        )
        env = service_environment(
            ports, chosen, stack_id=ledger.content.stack_id, extra_env=extra_env or {}
        )
        with AirflowApi(f"http://{LOOPBACK}:{ports.airflow}") as api:
            ensure_all(plan_services(root_dir, ports, chosen, env, api), ledger)
    return _stack(root_dir, ledger.content)


def down(root_dir: Path) -> int:
    """Stop the stack and everything it ever started; return how many processes needed SIGKILL."""
    sluice_dir = sluice_folder(root_dir.resolve())
    with stack_file.exclusive(sluice_dir):
        recorded = stack_file.read(sluice_dir)
        if recorded is None:
            return 0
        records = [service.process for service in recorded.services.values()]
        # A database waits for its clients when it shuts down.
        clients = [record for record in records if record.name != postgres_server.NAME]
        killed = processes.stop_all(clients, stack_id=None, grace_s=STOP_GRACE_S)
        killed += processes.stop_all(records, stack_id=recorded.stack_id, grace_s=STOP_GRACE_S)
        postgres_server.kill_leftovers(sluice_dir)
        # The ports stay recorded, so that addresses survive a restart if possible.
        stack_file.write(sluice_dir, replace(recorded, services={}))
        return killed


def write_spark_archive(root_dir: Path) -> None:
    """Start Spark once to write an archive of its classes; later starts take half the time.

    Raises:
        ConfigurationError: the stack runs; the archive is read when Spark starts.
    """
    if running(root_dir) is not None:
        raise ConfigurationError("the stack runs; stop it with `python -m sluice.devstack down`")
    sluice_dir = sluice_folder(root_dir.resolve())
    port, ui_port = free_ports(2)
    settings = spark_server.SparkSettings(port=port, ui_port=ui_port, writes_archive=True)
    with stack_file.exclusive(sluice_dir):
        env = {**inherited_environment(), STACK_ID_VARIABLE: (mark := uuid4().hex)}
        launch = spark_server.spark_launch(settings, sluice_dir=sluice_dir, env=env)
        record = processes.start(launch)
        try:
            processes.wait_until_ready(
                record,
                lambda: accepts_connections(port),
                timeout_s=spark_server.START_TIMEOUT_S,
                cancelled=threading.Event(),
            )
        # It writes the archive while it stops: 11 s on a quiet machine, 50 s on a busy one.
        finally:
            processes.stop_all((record,), stack_id=mark, grace_s=_ARCHIVE_GRACE_S)


def running(root_dir: Path) -> Stack | None:
    """The stack if all its processes are alive; starts nothing, and sends no request."""
    recorded = stack_file.read(sluice_folder(root_dir.resolve()))
    if recorded is None or not recorded.services.keys() >= {"s3", "spark", "airflow"}:
        return None
    if not all(processes.is_alive(service.process) for service in recorded.services.values()):
        return None
    return _stack(root_dir.resolve(), recorded)


def status(root_dir: Path) -> tuple[ServiceStatus, ...]:
    """The status of every service of the stack; all dead when it was never started."""
    recorded = stack_file.read(sluice_folder(root_dir.resolve()))
    if recorded is None:
        return ()
    stack = _stack(root_dir.resolve(), recorded)
    ports = stack.ports
    with AirflowApi(stack.airflow_url) as api:
        seen: tuple[tuple[str, str, Callable[[], bool]], ...] = (
            (s3_server.NAME, stack.s3_url, lambda: s3_server.answers(ports.s3)),
            (spark_server.NAME, stack.spark_remote, lambda: accepts_connections(ports.spark)),
            (airflow_server.NAME, stack.airflow_url, api.is_healthy),
        )
        if postgres_server.NAME in recorded.services:
            address = f"postgresql://{LOOPBACK}:{ports.postgres}"
            seen += (
                (postgres_server.NAME, address, lambda: postgres_server.answers(ports.postgres)),
            )
        statuses: list[ServiceStatus] = []
        for name, address, answers in seen:
            service = recorded.services.get(name)
            pid = (
                service.process.pid
                if service is not None and processes.is_alive(service.process)
                else None
            )
            statuses.append(
                ServiceStatus(
                    name=name, address=address, pid=pid, is_answering=pid is not None and answers()
                )
            )
        return tuple(statuses)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C within the block; only the main thread gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stack(root_dir: Path, content: StackFile) -> Stack:
    records = tuple(service.process for service in content.services.values())
    return Stack(root_dir=root_dir, ports=content.ports, records=records)
