"""A real Airflow whose components are killed: each comes back, and nothing outlives the stack."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Event
from uuid import uuid4

import httpx
import pytest

from sluice.devstack import processes
from sluice.devstack.airflow import (
    AIRFLOW_START_TIMEOUT_S,
    COMPONENTS,
    AirflowApi,
    AirflowSettings,
    airflow_launch,
    write_airflow_settings,
)
from sluice.devstack.child import COMPONENT_VARIABLE
from sluice.devstack.processes import STACK_ID_VARIABLE, ProcessRecord
from sluice.devstack.stack import inherited_environment
from tests.devstack.test_s3_server import listening_addresses

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]

RESTART_TIMEOUT_S = 90.0  # Seconds on a quiet machine.


@dataclass(frozen=True)
class RunningAirflow:
    settings: AirflowSettings
    record: ProcessRecord
    stack_id: str
    log: Path

    def pid_of(self, component: str) -> int:
        """Return what supervisord said last of the component."""
        return int(re.findall(rf"spawned: '{component}' with pid (\d+)", self.log.read_text())[-1])

    def processes_of(self, component: str) -> set[int]:
        return self.all_processes() & marked(f"{COMPONENT_VARIABLE}={component}")

    def all_processes(self) -> set[int]:
        return marked(f"{STACK_ID_VARIABLE}={self.stack_id}")

    def heartbeats(self) -> dict[str, datetime]:
        """The last heartbeat of each component; empty while the API does not answer."""
        try:
            answer = httpx.get(f"{self.settings.url}/api/v2/monitor/health", trust_env=False)
            health = answer.json()
        except (httpx.TransportError, ValueError):
            return {}
        return {
            name.replace("_", "-"): datetime.fromisoformat(part[f"latest_{name}_heartbeat"])
            for name, part in health.items()
            if part.get(f"latest_{name}_heartbeat")
        }


def marked(assignment: str) -> set[int]:
    return {
        info.pid
        for info in processes.all_processes()
        if processes.carries(info.pid, assignment.encode())
    }


def wait_until(is_true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + RESTART_TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline, f"{what} within {RESTART_TIMEOUT_S:.0f} s"
        time.sleep(0.1)


@pytest.fixture
def airflow(tmp_path: Path) -> Iterator[RunningAirflow]:
    port, worker_log_port, trigger_log_port = processes.free_ports(3)
    for name in ("dags", "plugins"):
        (tmp_path / name).mkdir()
    settings = AirflowSettings(
        port=port,
        worker_log_port=worker_log_port,
        trigger_log_port=trigger_log_port,
        dags_folder=tmp_path / "dags",
        plugins_folder=tmp_path / "plugins",
        parallelism=2,
        preloads_imports=False,
    )
    inherited = inherited_environment().items()
    env = {name: value for name, value in inherited if not name.startswith("AIRFLOW_")}
    env["PYTHONPATH"] = str(Path(processes.__file__).parents[2])
    env[STACK_ID_VARIABLE] = stack_id = uuid4().hex
    write_airflow_settings(tmp_path)
    launch = airflow_launch(settings, sluice_dir=tmp_path, env=env)
    record = processes.start(launch)
    try:
        with AirflowApi(settings.url) as api:
            processes.wait_until_ready(
                record,
                api.is_ready,
                timeout_s=AIRFLOW_START_TIMEOUT_S,
                cancelled=Event(),
            )
        yield RunningAirflow(settings, record, stack_id, launch.log_path)
    finally:
        processes.stop_all([record], stack_id=stack_id, grace_s=5)


def kill_and_see_return(airflow: RunningAirflow, *components: str) -> None:
    before = {name: airflow.processes_of(name) for name in components}
    killed = {name: airflow.pid_of(name) for name in components}
    at = datetime.now(UTC)
    for pid in killed.values():
        os.kill(pid, signal.SIGKILL)

    def is_back(name: str) -> bool:
        if airflow.pid_of(name) == killed[name]:
            return False
        beats = airflow.heartbeats()
        return name in beats and beats[name] > at if name != "api-server" else bool(beats)

    for name in components:
        wait_until(partial(is_back, name), f"{name} did not come back")
        assert not before[name] & airflow.processes_of(name), f"{name} left processes behind"


def test_killed_components_come_back_and_a_killed_supervisor_leaves_none(
    airflow: RunningAirflow,
) -> None:
    for port in (airflow.settings.worker_log_port, airflow.settings.trigger_log_port):
        wait_until(partial(processes.accepts_connections, port), "no log server answers")
    assert set().union(*map(listening_addresses, airflow.all_processes())) == {"0100007F"}
    kill_and_see_return(airflow, "scheduler")
    kill_and_see_return(airflow, "triggerer", "dag-processor", "api-server")
    wait_until(
        lambda: processes.accepts_connections(airflow.settings.worker_log_port),
        "the killed scheduler's log server kept the port",
    )

    os.kill(airflow.record.pid, signal.SIGKILL)
    assert all(airflow.processes_of(name) for name in COMPONENTS)
    processes.stop_all([airflow.record], stack_id=airflow.stack_id, grace_s=5)

    assert airflow.all_processes() == set()
