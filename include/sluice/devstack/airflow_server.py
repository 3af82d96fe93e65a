"""Airflow on loopback: four supervised components with LocalExecutor, tuned for short hops.

For development only: every user of this machine is an admin, and Airflow's log servers, which ask
for a signed token, cannot be bound to loopback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.devstack.ports import LOOPBACK
from sluice.devstack.processes import Launch
from sluice.devstack.supervision import supervisor_command, write_supervisor_configuration

NAME = "airflow"
START_TIMEOUT_S = 300.0  # 20 to 45 s on a quiet machine, longer beside two other JVMs.

_AUTH_MANAGER = "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager"

_LOCAL_SETTINGS = '''\
"""Written by sluice.devstack.airflow_server; Airflow imports it in each of its components.

LocalExecutor forks every task from the scheduler's children: what the scheduler has imported, no
stage task imports again.
"""

import os
import sys

__all__: list[str] = []  # Airflow copies every public name of this file into its settings.

if sys.argv[1:2] == ["scheduler"] and os.environ.get("SLUICE_PRELOAD") == "1":
    from sluice_airflow.preload import preload_spark_client

    preload_spark_client()
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowSettings:
    """The port on which Airflow listens, and the folders that it loads."""

    port: int
    worker_log_port: int
    trigger_log_port: int
    dags_folder: Path
    plugins_folder: Path
    parallelism: int = 4
    preloads_spark_client: bool = True
    database_url: str | None = None  # None: SQLite, in AIRFLOW_HOME.

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"


def airflow_launch(
    settings: AirflowSettings, *, sluice_dir: Path, env: Mapping[str, str]
) -> Launch:
    """Return how to start Airflow; AIRFLOW_HOME is ``{sluice_dir}/airflow``.

    Call `prepare` before.
    """
    home = sluice_dir / "airflow"
    return Launch(
        name=NAME,
        command=supervisor_command(sluice_dir),
        env={
            **env,
            "AIRFLOW_HOME": str(home),
            # Otherwise setproctitle overwrites the environment, which has our processes' mark.
            "SPT_NOENV": "1",
            "NO_COLOR": "1",
            "PYTHONFAULTHANDLER": "1",  # A crash in a C library names its line in the log.
            "SLUICE_PRELOAD": "1" if settings.preloads_spark_client else "0",
            **_configuration(settings, home),
        },
        folder=home,
        log_path=sluice_dir / "logs" / "airflow.log",
        port=settings.port,
    )


def prepare(sluice_dir: Path) -> None:
    """Write supervisord's configuration, and the module that preloads Spark in the scheduler."""
    write_supervisor_configuration(sluice_dir)
    path = sluice_dir / "airflow" / "config" / "airflow_local_settings.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_LOCAL_SETTINGS, encoding="utf-8")


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
        "core.hostname_callable": "sluice.devstack.ports.loopback",
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
