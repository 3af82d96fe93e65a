"""The whole stack: ``up`` starts what is missing, ``down`` leaves no process behind.

``up`` may be repeated at any time: what runs, answers and was started with the same settings is
reused; anything else is stopped first and started again, all three at once.  If it fails or is
interrupted, what this call started is stopped again.

    .sluice/  stack.json  stack.lock  logs/  s3/  spark/  airflow/
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from uuid import uuid4

from sluice.devstack import airflow_server, processes, s3_server, spark_server, stack_file
from sluice.devstack.airflow_api import AirflowApi
from sluice.devstack.java import find_java
from sluice.devstack.plan import ServicePlan, choose_ports, plan_services
from sluice.devstack.ports import LOOPBACK, accepts_connections, free_ports
from sluice.devstack.processes import STACK_ID_VARIABLE, ProcessRecord
from sluice.devstack.settings import (
    StackOptions,
    client_environment,
    inherited_environment,
    service_environment,
    sluice_folder,
)
from sluice.devstack.stack_file import Ports, Service, StackFile
from sluice.errors import ConfigurationError

_STOP_GRACE_S = 10.0  # The scheduler waits for running tasks; nothing in Sluice needs it to.
_ARCHIVE_GRACE_S = 180.0
_REUSE_TIMEOUT_S = 20.0  # A process that runs but does not answer for so long is started anew.


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
    """What one service is seen to do right now."""

    name: str
    address: str
    pid: int | None
    is_answering: bool


class _Ledger:
    """Writes every start and stop to the stack file at once, from whichever thread."""

    def __init__(self, sluice_dir: Path, content: StackFile) -> None:
        self._sluice_dir = sluice_dir
        self._content = content
        self._mutex = threading.Lock()
        self.started: list[ProcessRecord] = []
        stack_file.write(sluice_dir, content)

    @property
    def content(self) -> StackFile:
        return self._content

    def add(self, service: Service) -> None:
        with self._mutex:
            self.started.append(service.process)
            self._write({**self._content.services, service.process.name: service})

    def drop(self, record: ProcessRecord) -> None:
        with self._mutex:
            kept = {n: s for n, s in self._content.services.items() if s.process != record}
            self._write(kept)

    def _write(self, services: Mapping[str, Service]) -> None:
        self._content = replace(self._content, services=services)
        stack_file.write(self._sluice_dir, self._content)


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
        ledger = _Ledger(
            sluice_dir,
            StackFile(stack_id=uuid4().hex, ports=ports)
            if recorded is None
            else replace(recorded, ports=ports),
        )
        env = service_environment(
            ports, stack_id=ledger.content.stack_id, extra_env=extra_env or {}
        )
        with AirflowApi(f"http://{LOOPBACK}:{ports.airflow}") as api:
            _ensure_all(plan_services(root_dir, ports, chosen, env, api), ledger)
    return _stack(root_dir, ledger.content)


def down(root_dir: Path) -> int:
    """Stop the stack and everything it ever started; return how many processes needed SIGKILL."""
    sluice_dir = sluice_folder(root_dir.resolve())
    with stack_file.exclusive(sluice_dir):
        recorded = stack_file.read(sluice_dir)
        if recorded is None:
            return 0
        records = [service.process for service in recorded.services.values()]
        killed = processes.stop_all(records, stack_id=recorded.stack_id, grace_s=_STOP_GRACE_S)
        # The ports stay on record: addresses survive a restart wherever they can.
        stack_file.write(sluice_dir, replace(recorded, services={}))
        return killed


def write_spark_archive(root_dir: Path) -> None:
    """Start Spark once so that it writes down its classes; later starts take half the time.

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
        finally:  # It writes while it stops: 11 s on a quiet machine, 50 s on a busy one.
            processes.stop_all((record,), stack_id=mark, grace_s=_ARCHIVE_GRACE_S)


def running(root_dir: Path) -> Stack | None:
    """Return the stack if all its processes are alive, without starting or probing anything."""
    recorded = stack_file.read(sluice_folder(root_dir.resolve()))
    if recorded is None or set(recorded.services) != {"s3", "spark", "airflow"}:
        return None
    if not all(processes.is_alive(service.process) for service in recorded.services.values()):
        return None
    return _stack(root_dir.resolve(), recorded)


def status(root_dir: Path) -> tuple[ServiceStatus, ...]:
    """Look at every service of the stack; all dead when there never was one."""
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


def _ensure_all(plans: tuple[ServicePlan, ...], ledger: _Ledger) -> None:
    cancelled = threading.Event()
    is_complete = False
    try:
        with ThreadPoolExecutor(max_workers=len(plans)) as pool:
            futures = [pool.submit(_ensure, plan, ledger, cancelled) for plan in plans]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                cancelled.set()  # Too late for whoever is done; the end for whoever still waits.
            for future in done:  # All of them, or the one that failed.
                future.result()
        is_complete = True
    finally:
        if not is_complete:
            processes.stop_all(ledger.started, stack_id=None, grace_s=_STOP_GRACE_S)
            for record in tuple(ledger.started):
                ledger.drop(record)


def _ensure(plan: ServicePlan, ledger: _Ledger, cancelled: threading.Event) -> None:
    service = ledger.content.services.get(plan.launch.name)
    if service is not None:
        if service.digest == plan.digest and _answers_soon(plan, service.process, cancelled):
            return
        # Also when its first process is dead: Airflow's scheduler outlives its parent.
        processes.stop_all((service.process,), stack_id=None, grace_s=_STOP_GRACE_S)
        ledger.drop(service.process)
    if cancelled.is_set():
        return
    launch = replace(plan.launch, env={**inherited_environment(), **plan.launch.env})
    record = processes.start(launch)
    ledger.add(Service(process=record, digest=plan.digest))
    processes.wait_until_ready(
        record, plan.is_ready, timeout_s=plan.start_timeout_s, cancelled=cancelled
    )


def _answers_soon(plan: ServicePlan, record: ProcessRecord, cancelled: threading.Event) -> bool:
    if not processes.is_alive(record):
        return False
    try:
        processes.wait_until_ready(
            record, plan.is_ready, timeout_s=_REUSE_TIMEOUT_S, cancelled=cancelled
        )
    except ConfigurationError:
        return False
    return True


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does; signals belong to the main thread."""
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
