"""A Spark standalone cluster: a master and workers, which share no disk and no cache.

    master <-- worker 1: its scratch space, its cache, its executors
           <-- worker 2: ...

Each is a process of the pip package, started and stopped as those of ``sluice.devstack`` are.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import requests

from sluice.devstack import processes, servers
from sluice.devstack.processes import (
    LOOPBACK,
    Launch,
    ProcessRecord,
    accepts_connections,
    free_ports,
)
from sluice.state.cache import FOLDER_VARIABLE

START_TIMEOUT_S = 120.0  # 5 s on a quiet machine.
STOP_GRACE_S = 0.5  # Nothing of it is kept.
WORKER_MEMORY = "1536m"
EXECUTOR_MEMORY = "512m"
_POLL_S = 0.1
_DEPLOY = "org.apache.spark.deploy"


@dataclass(slots=True)
class Worker:
    """One machine of the cluster: everything on its disk is in ``folder``."""

    name: str
    folder: Path
    record: ProcessRecord

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def cached(self) -> set[str]:
        """The names of the segments in its cache."""
        return {path.name for path in self.cache.rglob("*") if path.is_file()}

    @property
    def is_alive(self) -> bool:
        return processes.is_alive(self.record)

    def kill(self) -> None:
        """Kill the worker and its executors with their Python, at once, as a lost machine does."""
        _kill(info.pid for info in processes.members(self.record))

    def kill_executors(self) -> None:
        """Kill its executors alone; the worker starts others."""
        _kill(info.pid for info in processes.members(self.record) if _is_executor(info.pid))


class SparkCluster:
    """A running master, and its workers by name."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._java_options = env.get("SPARK_SUBMIT_OPTS", "")  # Those of one's own, to start fast.
        self._env = {
            **env,
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_HOME": str(servers.spark_home()),
            "SPARK_DAEMON_JAVA_OPTS": self._java_options,
        }
        self._port, self._ui_port = free_ports(2)
        self._started: list[ProcessRecord] = []
        self.workers: dict[str, Worker] = {}

    @property
    def master(self) -> str:
        return f"spark://{LOOPBACK}:{self._port}"

    @property
    def ui(self) -> str:
        return f"http://{LOOPBACK}:{self._ui_port}"

    @property
    def executors(self) -> dict[str, str]:
        """The Spark properties of an application whose executors fit on the workers."""
        return {
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.extraJavaOptions": self._java_options,
            "spark.scheduler.minRegisteredResourcesRatio": "1",  # So that each gets a subtask.
        }

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.is_alive]

    def start(self, *, workers: int) -> None:
        self._start(
            "master",
            ("master.Master", "--port", str(self._port), "--webui-port", str(self._ui_port)),
            self._folder / "master",
            {},
        )
        _until(lambda: accepts_connections(self._port), "the master")
        for number in range(1, workers + 1):
            self.add_worker(f"worker-{number}")
        self.wait_for_workers(workers)

    def add_worker(self, name: str, host: str = LOOPBACK) -> Worker:
        """Start a worker with one core and an empty disk."""
        folder = self._folder / f"{name}-{len(self._started)}"
        arguments = ("--webui-port", "0", "--cores", "1", "--memory", WORKER_MEMORY)
        disk = {
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "TMPDIR": str(folder / "tmp"),
            FOLDER_VARIABLE: str(folder / "cache"),
            "SPARK_LOCAL_IP": host,
        }
        (folder / "tmp").mkdir(parents=True)
        work = ("--work-dir", str(folder / "work"), self.master)
        record = self._start(name, ("worker.Worker", *arguments, *work), folder, disk, host)
        self.workers[name] = Worker(name, folder, record)
        return self.workers[name]

    def wait_for_workers(self, count: int) -> None:
        """Return when the master has *count* workers; it may only just begin to answer."""

        def has_them() -> bool:
            with suppress(requests.RequestException):
                return bool(self.status()["aliveworkers"] == count)
            return False

        _until(has_them, f"{count} workers")

    def status(self) -> dict[str, Any]:
        """What the master says of itself."""
        answer = requests.get(f"{self.ui}/json/", timeout=30)
        answer.raise_for_status()
        said: dict[str, Any] = answer.json()
        return said

    @contextmanager
    def connect_server(
        self, properties: Mapping[str, str] = MappingProxyType({}), **variables: str
    ) -> Iterator[str]:
        """A Spark Connect server whose executors are on the cluster; yields its address.

        It has *properties*, too, and its environment *variables*.
        """
        port, ui_port = free_ports(2)
        settings = servers.SparkSettings(
            port=port,
            ui_port=ui_port,
            driver_memory="1g",
            cluster=self.master,
            properties={**self.executors, **properties},
        )
        env = {**self._env, FOLDER_VARIABLE: str(self._folder / "driver-cache")}
        launch = servers.spark_launch(settings, sluice_dir=self._folder, env=env)
        launch = replace(launch, env={**launch.env, **variables})
        record = processes.start(launch)
        self._started.append(record)
        _until(lambda: accepts_connections(port), "the Spark Connect server")
        yield f"sc://{LOOPBACK}:{port}"
        processes.stop_all([record], stack_id=None, grace_s=STOP_GRACE_S)

    def stop(self) -> None:
        processes.stop_all(self._started, stack_id=None, grace_s=STOP_GRACE_S)

    def _start(
        self,
        name: str,
        arguments: tuple[str, ...],
        folder: Path,
        env: Mapping[str, str],
        host: str = LOOPBACK,
    ) -> ProcessRecord:
        module, *rest = arguments
        home = servers.spark_home()
        launch = Launch(
            name=name,
            command=(
                str(home / "bin" / "spark-class"),
                f"{_DEPLOY}.{module}",
                *("--host", host),
                *rest,
            ),
            env={**self._env, **env},
            folder=folder,
            log_path=self._folder / "logs" / f"{folder.name}.log",
            port=self._port,
        )
        record = processes.start(launch)
        self._started.append(record)
        return record


@contextmanager
def running_cluster(
    folder: Path, env: Mapping[str, str], *, workers: int
) -> Iterator[SparkCluster]:
    """A cluster whose processes have the environment *env*, stopped when the block ends."""
    cluster = SparkCluster(folder, env)
    try:
        cluster.start(workers=workers)
        yield cluster
    finally:
        cluster.stop()


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_executor(pid: int) -> bool:
    with suppress(OSError):
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline, f"{what} did not come within {START_TIMEOUT_S:.0f} s"
        time.sleep(_POLL_S)
