"""The whole stack: ``up`` starts what is missing, ``down`` leaves no process behind.

``up`` may be repeated at any time: services that run, answer and were started with the same
settings are reused; others are stopped and started again, in parallel.  If it fails or is
interrupted, the services that this call started are stopped again.

    options, recorded ports --> plan of each service --> running, recorded in stack.json

    .sluice/  stack.json  stack.lock  logs/  s3/  spark/  airflow/  postgres/

Every start and stop is recorded before anything else happens, so that another process can find,
reuse and stop the services.  A lock refuses a second ``up`` or ``down`` at a time on a folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Self
from uuid import uuid4

import msgspec

from sluice.devstack import processes, servers
from sluice.devstack.airflow import (
    AIRFLOW_SERVICE,
    AIRFLOW_START_TIMEOUT_S,
    AirflowApi,
    AirflowSettings,
    airflow_launch,
    write_airflow_settings,
)
from sluice.devstack.child import COMPONENT_VARIABLE, keeper_command
from sluice.devstack.processes import (
    LOOPBACK,
    STACK_ID_VARIABLE,
    Launch,
    ProcessRecord,
    accepts_connections,
    first_free,
    free_ports,
    require_free,
)
from sluice.devstack.servers import BUCKET
from sluice.errors import ConfigurationError
from sluice.spark.jvm import LOCALES, find_java

AIRFLOW_PORT_VARIABLE = "SLUICE_AIRFLOW_PORT"
SPARK_PORT_VARIABLE = "SLUICE_SPARK_PORT"
S3_PORT_VARIABLE = "SLUICE_S3_PORT"
SPARK_MEMORY_VARIABLE = "SLUICE_SPARK_MEMORY"
AIRFLOW_DATABASE_VARIABLE = "SLUICE_AIRFLOW_DATABASE"
DRILLS_VARIABLE = "SLUICE_DRILLS"

STOP_GRACE_S = 10.0  # The scheduler waits for running tasks, which Sluice does not need.
_REUSE_TIMEOUT_S = 20.0  # A process that runs but does not answer for this long is restarted.
_ARCHIVE_GRACE_S = 180.0  # Spark writes it while it stops: 11 s when quiet, 50 s when busy.
_POLL_S = 0.05

_FAMILIAR_AIRFLOW_PORT = 8080  # A new stack gets it if it is free, as people try it first.
_HIGHEST_PORT = 65_535
_STACK_FILE = "stack.json"
_INCLUDE_FOLDER = Path(__file__).resolve().parents[2]

# Not inherited: each would direct a child to another Spark, cloud or account, or, as
# PYTHONDONTWRITEBYTECODE, make every process compile all modules again (4 s per Spark client,
# measured).
_NOT_INHERITED = frozenset(
    {
        "AWS_PROFILE",
        "AWS_SESSION_TOKEN",
        "AWS_ENDPOINT_URL",
        "PYSPARK_SUBMIT_ARGS",
        "PYTHONDONTWRITEBYTECODE",
        "SPARK_CONF_DIR",
        "SPARK_CONNECT_MODE_ENABLED",
        "SPARK_REMOTE",
        STACK_ID_VARIABLE,
        COMPONENT_VARIABLE,
    }
)


class AirflowDatabase(StrEnum):
    """The database of Airflow's own tables."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOptions:
    """The options of the stack; a port of None means any free one."""

    airflow_port: int | None = None
    spark_port: int | None = None
    s3_port: int | None = None
    spark_memory: str = "2g"
    spark_cores: int = os.cpu_count() or 1  # Subtasks at a time.
    dags_folder: Path | None = None  # None: {root}/dags
    plugins_folder: Path | None = None  # None: {root}/plugins
    preloads_imports: bool = True
    airflow_database: AirflowDatabase = AirflowDatabase.SQLITE
    airflow_slots: int = 4  # Tasks at a time; 32, Airflow's default, costs 28 workers of 130 MB.
    allows_drills: bool = True  # Forms have the field Fault: only jobs of one's own run here.

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Self:
        return cls(
            airflow_port=_port_from_env(env, AIRFLOW_PORT_VARIABLE),
            spark_port=_port_from_env(env, SPARK_PORT_VARIABLE),
            s3_port=_port_from_env(env, S3_PORT_VARIABLE),
            spark_memory=env.get(SPARK_MEMORY_VARIABLE, "2g"),
            airflow_database=_database(env),
            allows_drills=env.get(DRILLS_VARIABLE, "1") == "1",
        )


@dataclass(frozen=True, slots=True)
class Ports:
    """Every port of the stack; all on 127.0.0.1."""

    s3: int
    spark: int
    spark_ui: int
    airflow: int
    worker_log: int
    trigger_log: int
    postgres: int


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


def start_stack(
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
    with exclusive(sluice_dir), _sigterm_as_ctrl_c():
        recorded = read_stack_file(sluice_dir)
        ports = choose_ports(recorded, chosen)
        ledger = StackRecord(
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


def stop_stack(root_dir: Path) -> int:
    """Stop the stack and everything it ever started; return how many processes needed SIGKILL."""
    sluice_dir = sluice_folder(root_dir.resolve())
    with exclusive(sluice_dir):
        recorded = read_stack_file(sluice_dir)
        if recorded is None:
            return 0
        records = [service.process for service in recorded.services.values()]
        # A database waits for its clients when it shuts down.
        clients = [record for record in records if record.name != servers.POSTGRES_SERVICE]
        killed = processes.stop_all(clients, stack_id=None, grace_s=STOP_GRACE_S)
        killed += processes.stop_all(records, stack_id=recorded.stack_id, grace_s=STOP_GRACE_S)
        servers.kill_leftovers(sluice_dir)
        # The ports stay recorded, so that addresses survive a restart if possible.
        write_stack_file(sluice_dir, replace(recorded, services={}))
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
    settings = servers.SparkSettings(port=port, ui_port=ui_port, writes_archive=True)
    with exclusive(sluice_dir):
        stack_id = uuid4().hex
        env = {**inherited_environment(), STACK_ID_VARIABLE: stack_id}
        record = processes.start(servers.spark_launch(settings, sluice_dir=sluice_dir, env=env))
        try:
            processes.wait_until_ready(
                record,
                lambda: accepts_connections(port),
                timeout_s=servers.SPARK_START_TIMEOUT_S,
                cancelled=threading.Event(),
            )
        finally:
            processes.stop_all((record,), stack_id=stack_id, grace_s=_ARCHIVE_GRACE_S)


def running(root_dir: Path) -> Stack | None:
    """The stack if all its processes are alive; starts nothing, and sends no request."""
    recorded = read_stack_file(sluice_folder(root_dir.resolve()))
    required = {servers.S3_SERVICE, servers.SPARK_SERVICE, AIRFLOW_SERVICE}
    if recorded is None or not recorded.services.keys() >= required:
        return None
    if not all(processes.is_alive(service.process) for service in recorded.services.values()):
        return None
    return _stack(root_dir.resolve(), recorded)


def stack_status(root_dir: Path) -> tuple[ServiceStatus, ...]:
    """The status of every service of the stack; all dead when it was never started."""
    recorded = read_stack_file(sluice_folder(root_dir.resolve()))
    if recorded is None:
        return ()
    stack = _stack(root_dir.resolve(), recorded)
    ports = stack.ports
    with AirflowApi(stack.airflow_url) as api:
        checks: list[tuple[str, str, Callable[[], bool]]] = [
            (servers.S3_SERVICE, stack.s3_url, lambda: servers.serves_bucket(ports.s3)),
            (servers.SPARK_SERVICE, stack.spark_remote, lambda: accepts_connections(ports.spark)),
            (AIRFLOW_SERVICE, stack.airflow_url, api.is_healthy),
        ]
        if servers.POSTGRES_SERVICE in recorded.services:
            url = f"postgresql://{LOOPBACK}:{ports.postgres}"
            is_answering = partial(servers.accepts_sessions, ports.postgres)
            checks.append((servers.POSTGRES_SERVICE, url, is_answering))
        return tuple(
            _service_status(recorded.services.get(name), name, address, answers)
            for name, address, answers in checks
        )


def _service_status(
    service: Service | None, name: str, address: str, answers: Callable[[], bool]
) -> ServiceStatus:
    is_alive = service is not None and processes.is_alive(service.process)
    pid = service.process.pid if service is not None and is_alive else None
    return ServiceStatus(name=name, address=address, pid=pid, is_answering=is_alive and answers())


def _stack(root_dir: Path, content: StackFile) -> Stack:
    records = tuple(service.process for service in content.services.values())
    return Stack(root_dir=root_dir, ports=content.ports, records=records)


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


def choose_ports(recorded: StackFile | None, options: StackOptions) -> Ports:
    """Return the ports to use now.

    A service keeps its ports while any process of it lives, and gets them again later if they are
    still free, so that addresses survive restarts.

    Raises:
        ConfigurationError: a requested port is taken by another process.
    """
    spare = Ports(*free_ports(7))
    old = spare if recorded is None else recorded.ports
    s3 = _is_running(recorded, servers.S3_SERVICE)
    spark = _is_running(recorded, servers.SPARK_SERVICE)
    airflow = _is_running(recorded, AIRFLOW_SERVICE)
    postgres = _is_running(recorded, servers.POSTGRES_SERVICE)
    familiar = () if recorded is not None else (_FAMILIAR_AIRFLOW_PORT,)
    return Ports(
        s3=_chosen_port(options.s3_port, S3_PORT_VARIABLE, old.s3, spare.s3, keep=s3),
        spark=_chosen_port(
            options.spark_port, SPARK_PORT_VARIABLE, old.spark, spare.spark, keep=spark
        ),
        spark_ui=old.spark_ui if spark else first_free(old.spark_ui, spare.spark_ui),
        airflow=_chosen_port(
            options.airflow_port,
            AIRFLOW_PORT_VARIABLE,
            old.airflow if airflow else first_free(*familiar, old.airflow),
            spare.airflow,
            keep=airflow,
        ),
        worker_log=old.worker_log if airflow else first_free(old.worker_log, spare.worker_log),
        trigger_log=old.trigger_log if airflow else first_free(old.trigger_log, spare.trigger_log),
        postgres=old.postgres if postgres else first_free(old.postgres, spare.postgres),
    )


def _is_running(recorded: StackFile | None, name: str) -> bool:
    service = None if recorded is None else recorded.services.get(name)
    return service is not None and bool(processes.members(service.process))


def _chosen_port(requested: int | None, variable: str, old: int, spare: int, *, keep: bool) -> int:
    if keep and requested in {None, old}:
        return old
    if requested is not None:
        return require_free(requested, variable=variable)
    return first_free(old, spare)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """One service: the command that starts it, and the check that it answers."""

    launch: Launch
    is_ready: Callable[[], bool]
    start_timeout_s: float
    prepare: Callable[[], None] = field(default=lambda: None)  # Runs right before a start.
    after: str | None = None  # The service that must answer first.

    @property
    def digest(self) -> str:
        """A digest of the command and of the environment that the stack sets."""
        text = repr((self.launch.command, sorted(self.launch.env.items())))
        return hashlib.sha256(text.encode()).hexdigest()


def plan_services(
    root_dir: Path, ports: Ports, options: StackOptions, env: Mapping[str, str], api: AirflowApi
) -> tuple[ServicePlan, ...]:
    """Return one plan per service, with its settings; starts nothing."""
    sluice_dir = sluice_folder(root_dir)
    on_postgres = options.airflow_database is AirflowDatabase.POSTGRESQL
    spark = servers.SparkSettings(
        port=ports.spark,
        ui_port=ports.spark_ui,
        driver_memory=options.spark_memory,
        cores=options.spark_cores,
    )
    airflow = AirflowSettings(
        port=ports.airflow,
        worker_log_port=ports.worker_log,
        trigger_log_port=ports.trigger_log,
        dags_folder=options.dags_folder or root_dir / "dags",
        plugins_folder=options.plugins_folder or root_dir / "plugins",
        preloads_imports=options.preloads_imports,
        parallelism=options.airflow_slots,
        database_url=servers.database_url(port=ports.postgres, sluice_dir=sluice_dir)
        if on_postgres
        else None,
    )
    plans = (
        ServicePlan(
            launch=_kept(servers.s3_launch(port=ports.s3, sluice_dir=sluice_dir, env=env)),
            is_ready=lambda: servers.bucket_exists_or_is_created(ports.s3),
            start_timeout_s=servers.S3_START_TIMEOUT_S,
        ),
        ServicePlan(
            launch=_kept(servers.spark_launch(spark, sluice_dir=sluice_dir, env=env)),
            is_ready=lambda: accepts_connections(ports.spark),
            start_timeout_s=servers.SPARK_START_TIMEOUT_S,
            prepare=lambda: servers.clear_scratch(sluice_dir),
        ),
        ServicePlan(
            launch=airflow_launch(airflow, sluice_dir=sluice_dir, env=env),
            is_ready=api.is_ready,
            start_timeout_s=AIRFLOW_START_TIMEOUT_S,
            prepare=lambda: write_airflow_settings(sluice_dir),
            after=servers.POSTGRES_SERVICE if on_postgres else None,
        ),
    )
    if not on_postgres:
        return plans
    postgres = ServicePlan(
        launch=servers.postgres_launch(port=ports.postgres, sluice_dir=sluice_dir, env=env),
        is_ready=lambda: servers.accepts_sessions(ports.postgres),
        start_timeout_s=servers.POSTGRES_START_TIMEOUT_S,
        prepare=lambda: servers.prepare_data_folder(sluice_dir),
    )
    return (postgres, *plans)


def _kept(launch: Launch) -> Launch:
    """Started anew when it dies, as supervisord does it for Airflow's components."""
    return replace(launch, command=keeper_command(launch.command))


def ensure_all(plans: tuple[ServicePlan, ...], ledger: StackRecord) -> None:
    """Start every service of the plans, wait until all are ready, and stop all others.

    Raises:
        ConfigurationError: one of them did not start; those that this call started are stopped.
    """
    cancelled = threading.Event()
    ready = {plan.launch.name: threading.Event() for plan in plans}
    is_complete = False
    try:
        with ThreadPoolExecutor(max_workers=len(plans)) as pool:
            futures = [pool.submit(_ensure, plan, ledger, ready, cancelled) for plan in plans]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:
                cancelled.set()  # Cancels the services that are not ready yet.
            for future in done:  # The results, or the error of one that failed.
                future.result()
        is_complete = True
    finally:
        if not is_complete:
            processes.stop_all(ledger.started, stack_id=None, grace_s=STOP_GRACE_S)
            for record in tuple(ledger.started):
                ledger.drop(record)
    # Last, when a database that is not planned any more has no clients.
    for name, service in tuple(ledger.content.services.items()):
        if name not in ready:
            processes.stop_all((service.process,), stack_id=None, grace_s=STOP_GRACE_S)
            ledger.drop(service.process)


def _ensure(
    plan: ServicePlan,
    ledger: StackRecord,
    ready: Mapping[str, threading.Event],
    cancelled: threading.Event,
) -> None:
    service = ledger.content.services.get(plan.launch.name)
    if service is not None:
        if service.digest == plan.digest and _answers_soon(plan, service.process, cancelled):
            ready[plan.launch.name].set()
            return
        # Also if its first process is dead, as Airflow's components outlive their supervisor.
        processes.stop_all((service.process,), stack_id=None, grace_s=STOP_GRACE_S)
        ledger.drop(service.process)
    if plan.after is not None:
        while not ready[plan.after].wait(_POLL_S):
            if cancelled.is_set():
                return
    if cancelled.is_set():
        return
    plan.prepare()
    launch = replace(plan.launch, env={**inherited_environment(), **plan.launch.env})
    record = processes.start(launch)
    ledger.add(Service(process=record, digest=plan.digest))
    processes.wait_until_ready(
        record, plan.is_ready, timeout_s=plan.start_timeout_s, cancelled=cancelled
    )
    ready[plan.launch.name].set()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A process that was started, and a digest of everything it was started with."""

    process: ProcessRecord
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFile:
    """All of ``stack.json``.  ``stack_id`` marks every process of this stack in its environment."""

    stack_id: str
    ports: Ports
    services: Mapping[str, Service] = field(default_factory=dict[str, Service])


class StackRecord:
    """The stack file, replaced at every start and stop; ``started`` are this call's processes."""

    def __init__(self, sluice_dir: Path, content: StackFile) -> None:
        self._sluice_dir = sluice_dir
        self._content = content
        self._mutex = threading.Lock()
        self.started: list[ProcessRecord] = []
        write_stack_file(sluice_dir, content)

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
        write_stack_file(self._sluice_dir, self._content)


def read_stack_file(sluice_dir: Path) -> StackFile | None:
    """The recorded stack; None without a record."""
    path = sluice_dir / _STACK_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StackFile)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise ConfigurationError(
            f"{path} is unreadable ({error}); stop the stack's processes by hand and"
            " remove the file"
        ) from error


def write_stack_file(sluice_dir: Path, content: StackFile) -> None:
    """Replace the file; readers see the old or the new one, never a part."""
    path = sluice_dir / _STACK_FILE
    new = path.with_suffix(".json.new")
    new.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2))
    new.replace(path)


@contextmanager
def exclusive(sluice_dir: Path) -> Iterator[None]:
    """Hold the folder's lock; the kernel releases it when the process dies."""
    sluice_dir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(sluice_dir / "stack.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(
                f"another command is starting or stopping the stack in {sluice_dir};"
                " wait until it is done"
            ) from None
        yield
    finally:
        os.close(descriptor)


def sluice_folder(root_dir: Path) -> Path:
    """The folder of all files that the stack writes."""
    return root_dir / ".sluice"


def client_environment(ports: Ports) -> dict[str, str]:
    """The variables with which a client of the stack finds the store and Spark."""
    return {
        "SLUICE_ROOT": f"s3://{BUCKET}/jobs",
        "SLUICE_SPARK_REMOTE": f"sc://{LOOPBACK}:{ports.spark}",
        "SLUICE_SPARK_UI": f"http://{LOOPBACK}:{ports.spark_ui}",
        "AWS_ENDPOINT_URL_S3": f"http://{LOOPBACK}:{ports.s3}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",  # The server checks no signature.
        "AWS_DEFAULT_REGION": "us-east-1",
    }


def service_environment(
    ports: Ports, options: StackOptions, *, stack_id: str, extra_env: Mapping[str, str]
) -> dict[str, str]:
    """The variables that are added to the inherited environment of each process of the stack."""
    return {
        **client_environment(ports),
        "PYTHONPATH": str(_INCLUDE_FOLDER),
        DRILLS_VARIABLE: "1" if options.allows_drills else "0",
        **extra_env,
        STACK_ID_VARIABLE: stack_id,
    }


def inherited_environment() -> dict[str, str]:
    """The environment of this process, without variables that would misdirect a child."""
    env = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    # Airflow and Spark start their components by name.
    env["PATH"] = str(Path(sys.executable).parent) + os.pathsep + env.get("PATH", os.defpath)
    if (locale := env.get("LC_ALL", "")) in LOCALES:
        env["LC_ALL"] = LOCALES[locale]
    direct = f"{LOOPBACK},localhost"
    for name in ("NO_PROXY", "no_proxy"):
        env[name] = f"{env[name]},{direct}" if env.get(name) else direct
    return env


def _database(env: Mapping[str, str]) -> AirflowDatabase:
    text = env.get(AIRFLOW_DATABASE_VARIABLE) or AirflowDatabase.SQLITE
    try:
        return AirflowDatabase(text)
    except ValueError:
        known = " or ".join(AirflowDatabase)
        raise ConfigurationError(
            f"{AIRFLOW_DATABASE_VARIABLE} is {text!r}; set it to {known}"
        ) from None


def _port_from_env(env: Mapping[str, str], variable: str) -> int | None:
    text = env.get(variable)
    if not text:
        return None
    if not text.isdigit() or not 0 < int(text) <= _HIGHEST_PORT:
        raise ConfigurationError(f"{variable} is {text!r}; set it to a port, 1 to {_HIGHEST_PORT}")
    return int(text)
