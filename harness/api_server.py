"""Airflow's API server with our plugin, in a process of its own: no scheduler, no triggerer.

The kernel ends it when the thread that started it ends, as it does the S3 server.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from sluice.devstack.airflow import AirflowSettings, airflow_launch
from sluice.devstack.processes import free_ports

REPOSITORY = Path(__file__).resolve().parents[1]
_PATIENCE_S = 300.0
_PARSED = ("db migrate", "dags reserialize")

# PR_SET_PDEATHSIG is 1.
_BOUND = """
import ctypes, runpy, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
runpy.run_module("airflow", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """``token`` is an admin's: on loopback everyone is one."""

    url: str
    token: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedAirflow:
    """A database that has the DAGs of the pipelines in *package*; servers start over it."""

    settings: AirflowSettings
    env: Mapping[str, str]
    folder: Path

    @contextmanager
    def serving(self, **env: str) -> Iterator[ApiServer]:
        with (self.folder / "api-server.log").open("ab") as log:
            started = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", _BOUND, "api-server"],
                env={**self.env, **env},
                stdout=log,
                stderr=log,
            )
        try:
            token = _token(self.settings.url, started)
            yield ApiServer(url=self.settings.url, token=token, pid=started.pid)
        finally:
            started.terminate()
            started.wait(timeout=120)


def prepared_airflow(folder: Path, *, pipelines: str, **env: str) -> PreparedAirflow:
    """In *folder*, of the declarations whose module has this source."""
    package = folder / "served_pipelines"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "declared.py").write_text(pipelines)
    port, worker_port, trigger_port = free_ports(3)
    settings = AirflowSettings(
        port=port,
        worker_log_port=worker_port,
        trigger_log_port=trigger_port,
        dags_folder=REPOSITORY / "dags",
        plugins_folder=REPOSITORY / "plugins",
    )
    told = {
        "SLUICE_PIPELINES": str(package),
        "SLUICE_CACHE_DIR": str(folder / "cache"),
        "SLUICE_ROOT": f"file://{folder / 'nothing'}",
        "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, folder))),
    }
    launch = airflow_launch(settings, sluice_dir=folder, env={**os.environ, **told, **env})
    launch.folder.mkdir(exist_ok=True)
    for command in _PARSED:
        subprocess.run(
            _airflow(*command.split()), env=launch.env, check=True, capture_output=True,
            timeout=_PATIENCE_S,
        )  # fmt: skip
    return PreparedAirflow(settings=settings, env=launch.env, folder=folder)


def _airflow(*command: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "airflow", *command]


def _token(url: str, server: subprocess.Popen[bytes]) -> str:
    """As soon as the server answers."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        assert server.poll() is None, "the API server ended; see api-server.log"
        try:
            answer = httpx.get(f"{url}/auth/token", trust_env=False, timeout=60)
        except httpx.TransportError:
            time.sleep(0.2)
        else:
            return str(answer.raise_for_status().json()["access_token"])
    raise AssertionError("the API server does not answer")
