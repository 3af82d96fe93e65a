"""Airflow on loopback, tuned for short hops, and a client of its REST API.

Its four components, with LocalExecutor, are under supervisord, which restarts each one that dies.
``airflow standalone`` does not: after a kill -9 of its scheduler it runs on without one.

    supervisord
     ├── airflow db migrate, once; if it fails, it ends supervisord
     ├── child.py component scheduler   -> airflow scheduler, when the database is migrated
     ├── child.py component api-server  -> airflow api-server
     └── ... (each in a process group of its own, all in one session)

For development only: ``simple_auth_manager_all_admins`` makes every user of this machine an admin.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from sluice.devstack.child import MIGRATED_FILE, component_command
from sluice.devstack.processes import LOOPBACK, Launch
from sluice.errors import ConfigurationError, StoreUnavailable

AIRFLOW_SERVICE = "airflow"
AIRFLOW_START_TIMEOUT_S = 300.0  # 20 to 45 s on a quiet machine, longer beside two other JVMs.
COMPONENTS = ("scheduler", "api-server", "triggerer", "dag-processor")

_AUTH_MANAGER = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"

# A component that dies earlier is restarted after a pause that grows by 1 s each time.
_RUNS_AFTER_S = 5
_FOREVER = 1_000_000  # Supervisord's default is to give up after three tries.
_STOP_WAIT_S = 8  # Less than the stack's own grace period, after which all are killed.

_ANSWER_TIMEOUT_S = 30.0  # The first request after a start imports half of Airflow.
_BUILD_TIMEOUT_S = 120.0
_POLL_S = 0.2
_BUSY_RETRIES = 10

# The migration and supervisord in parallel, because supervisord takes two seconds to start.
_MIGRATE_AND_SUPERVISE = (
    'rm -f "$2"; { "$0" -m airflow db migrate && touch "$2" || kill $$; } &'
    ' exec "$0" -m supervisor.supervisord --nodaemon --configuration "$1"'
)
_LOCAL_SETTINGS = '''\
"""Written by sluice.devstack.airflow; Airflow imports it in each of its components."""

import os
import sys

__all__: list[str] = []  # Airflow copies every public name of this file into its settings.

component = "".join(sys.argv[1:2])
if component in {"scheduler", "dag-processor"} and os.environ.get("SLUICE_PRELOAD") == "1":
    from sluice_airflow.stage import preload

    preload(component)
'''

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowSettings:
    """The port on which Airflow listens, and the folders that it loads."""

    port: int
    worker_log_port: int
    trigger_log_port: int
    dags_folder: Path
    plugins_folder: Path
    parallelism: int = 4
    preloads_imports: bool = True
    database_url: str | None = None  # None: SQLite, in AIRFLOW_HOME.

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


def airflow_launch(
    settings: AirflowSettings, *, sluice_dir: Path, env: Mapping[str, str]
) -> Launch:
    """Return how to start Airflow; AIRFLOW_HOME is ``{sluice_dir}/airflow``.

    Call ``write_airflow_settings`` before.
    """
    home = sluice_dir / "airflow"
    files = (str(_supervisor_file(sluice_dir)), str(home / MIGRATED_FILE))
    return Launch(
        name=AIRFLOW_SERVICE,
        command=("/bin/sh", "-c", _MIGRATE_AND_SUPERVISE, sys.executable, *files),
        env={
            **env,
            "AIRFLOW_HOME": str(home),
            # Otherwise setproctitle overwrites the environment, which has our processes' mark.
            "SPT_NOENV": "1",
            "NO_COLOR": "1",
            "PYTHONFAULTHANDLER": "1",  # A crash in a C library names its line in the log.
            "SLUICE_PRELOAD": "1" if settings.preloads_imports else "0",
            **_configuration(settings, home),
        },
        folder=home,
        log_path=sluice_dir / "logs" / "airflow.log",
        port=settings.port,
    )


def _configuration(settings: AirflowSettings, home: Path) -> dict[str, str]:
    options = {
        "core.executor": "LocalExecutor",
        "core.auth_manager": _AUTH_MANAGER,
        "core.mp_start_method": "fork",
        "core.execute_tasks_new_python_interpreter": "False",
        "core.parallelism": str(settings.parallelism),
        "core.dags_folder": str(settings.dags_folder),
        "core.plugins_folder": str(settings.plugins_folder),
        "core.load_examples": "False",
        "core.hostname_callable": "sluice.devstack.processes.loopback",
        "core.simple_auth_manager_all_admins": "True",
        "core.execution_api_server_url": f"{settings.url}/execution/",
        "database.sql_alchemy_conn": settings.database_url or f"sqlite:///{home / 'airflow.db'}",
        "api.host": LOOPBACK,
        "api.port": str(settings.port),
        "api.base_url": settings.url,
        "api.workers": "1",
        "logging.base_log_folder": str(home / "logs"),
        "logging.worker_log_server_port": str(settings.worker_log_port),
        "logging.trigger_log_server_port": str(settings.trigger_log_port),
        "logging.colored_console_log": "False",
        # One second of idle sleep is most of a default task hop; 0.05 s costs 2 % of a core.
        "scheduler.scheduler_idle_sleep_time": "0.05",
        # A lost supervisor is noticed after this; 300 s by default.
        "scheduler.task_instance_heartbeat_timeout": "30",
        "scheduler.task_instance_heartbeat_timeout_detection_interval": "5",
        "scheduler.orphaned_tasks_check_interval": "30",
        "workers.min_heartbeat_interval": "1",
        "triggerer.job_heartbeat_sec": "1",
        "dag_processor.parsing_processes": "1",
        "dag_processor.refresh_interval": "5",
        "dag_processor.bundle_refresh_check_interval": "1",
        "dag_processor.min_file_process_interval": "30",
        "dag_processor.print_stats_interval": "0",
        "usage_data_collection.enabled": "False",
    }
    return {
        "AIRFLOW__{}__{}".format(*name.upper().split(".")): value for name, value in options.items()
    }


def write_airflow_settings(sluice_dir: Path) -> None:
    """Write supervisord's configuration, and the module that preloads Airflow's components.

    Supervisord logs to its output, each component to a file of its own.
    """
    local_settings = sluice_dir / "airflow" / "config" / "airflow_local_settings.py"
    local_settings.parent.mkdir(parents=True, exist_ok=True)
    local_settings.write_text(_LOCAL_SETTINGS, encoding="utf-8")
    programs = "".join(_program(name, sluice_dir) for name in COMPONENTS)
    _supervisor_file(sluice_dir).write_text(_supervisord(sluice_dir) + programs, encoding="utf-8")


def _supervisord(sluice_dir: Path) -> str:
    # No [unix_http_server] and no [inet_http_server], as it has no clients.
    return f"""\
; Written by sluice.devstack.airflow.
[supervisord]
logfile = /dev/null
logfile_maxbytes = 0
pidfile = {_escaped(sluice_dir / "airflow" / "supervisord.pid")}
"""


def _program(component: str, sluice_dir: Path) -> str:
    log_path = sluice_dir / "logs" / f"airflow-{component}.log"
    return f"""
[program:{component}]
command = {_escaped(shlex.join(component_command(component)))}
autorestart = true
startsecs = {_RUNS_AFTER_S}
startretries = {_FOREVER}
stopasgroup = true
killasgroup = true
stopwaitsecs = {_STOP_WAIT_S}
redirect_stderr = true
stdout_logfile = {_escaped(log_path)}
stdout_logfile_backups = 1
"""


def _escaped(value: str | Path) -> str:
    return str(value).replace("%", "%%")  # Supervisord expands %(...)s.


def _supervisor_file(sluice_dir: Path) -> Path:
    return sluice_dir / "airflow" / "supervisord.conf"


class AirflowApi:
    """A client of one Airflow on loopback; use it as a context manager, or close it."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        # trust_env=False: no proxy of the environment for loopback.
        self._http = httpx.Client(base_url=base_url, timeout=_ANSWER_TIMEOUT_S, trust_env=False)
        self._token: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        """Whether Airflow is healthy, and its first task will not wait for the API server.

        The server builds the API for tasks at its first request, which takes 7 to 12 s; requested
        early, that happens while the scheduler is still starting.
        """
        try:
            answer = self._http.get("/execution/health", timeout=_BUILD_TIMEOUT_S)
        except httpx.TransportError:
            return False
        return answer.is_success and self.is_healthy()

    def is_healthy(self) -> bool:
        """Whether scheduler, triggerer and DAG processor have heartbeats; False if unreachable."""
        try:
            answer = self._http.get("/api/v2/monitor/health")
            health = msgspec.json.decode(answer.content, type=_Health)
        except (httpx.TransportError, msgspec.MsgspecError):
            return False
        parts = (health.metadatabase, health.scheduler, health.triggerer, health.dag_processor)
        return all(part is not None and part.status == "healthy" for part in parts)

    def knows(self, dag_id: str) -> bool:
        """Whether the DAG was parsed and stored."""
        return self._call("GET", _dag(dag_id), missing_ok=True) is not None

    def wait_until_known(self, dag_id: str, *, timeout_s: float = 120.0) -> None:
        self._wait(lambda: self.knows(dag_id), f"DAG {dag_id!r} did not appear", timeout_s)

    def unpause(self, dag_id: str) -> None:
        """Unpause the DAG, and have its file parsed now: only then Airflow watches its events."""
        patched = self._must("PATCH", _dag(dag_id), body={"is_paused": False})
        token = _decoded(patched, _DagFile).file_token
        self._send("PUT", f"/api/v2/parseDagFile/{token}", None)  # Refused if it is due already.

    def pause(self, dag_id: str) -> None:
        self._call("PATCH", _dag(dag_id), body={"is_paused": True})

    def _must(
        self, method: str, path: str, *, body: Mapping[str, JsonValue] | None = None
    ) -> bytes:
        content = self._call(method, path, body=body)
        assert content is not None
        return content

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, JsonValue] | None = None,
        missing_ok: bool = False,
    ) -> bytes | None:
        answer = self._send(method, path, body)
        if answer.status_code == httpx.codes.UNAUTHORIZED:  # The token expired.
            self._token = None
            answer = self._send(method, path, body)
        for _ in range(_BUSY_RETRIES):
            if not answer.is_server_error:
                break
            time.sleep(1)  # SQLite was locked by the scheduler, and the call was rolled back.
            answer = self._send(method, path, body)
        if missing_ok and answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.is_error:
            raise ConfigurationError(
                f"Airflow refused {method} {path} with {answer.status_code}: {answer.text[:300]}"
            )
        return answer.content

    def _send(self, method: str, path: str, body: Mapping[str, JsonValue] | None) -> httpx.Response:
        try:
            if self._token is None:
                token = self._http.get("/auth/token").raise_for_status()
                self._token = _decoded(token.content, _Token).access_token
            headers = {"Authorization": f"Bearer {self._token}"}
            return self._http.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise StoreUnavailable(
                f"Airflow at {self.base_url} does not answer ({error})"
            ) from error

    def _wait(self, is_true: Callable[[], bool], complaint: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_true():
            if time.monotonic() > deadline:
                raise ConfigurationError(f"{complaint} within {timeout_s:.0f} s")
            time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class _Token:
    access_token: str


@dataclass(frozen=True, slots=True)
class _DagFile:
    file_token: str


@dataclass(frozen=True, slots=True)
class _Component:
    status: str | None = None


@dataclass(frozen=True, slots=True)
class _Health:
    metadatabase: _Component
    scheduler: _Component
    triggerer: _Component
    dag_processor: _Component | None = None


def _dag(dag_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id, safe='')}"


def _decoded(content: bytes, kind: type[_T]) -> _T:
    return msgspec.json.decode(content, type=kind)
