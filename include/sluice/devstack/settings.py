"""The options of the stack, and the environment of its processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from sluice.devstack.component import COMPONENT_VARIABLE
from sluice.devstack.ports import LOOPBACK
from sluice.devstack.processes import STACK_ID_VARIABLE
from sluice.devstack.s3_server import BUCKET
from sluice.devstack.stack_file import Ports
from sluice.errors import ConfigurationError

AIRFLOW_PORT_VARIABLE = "SLUICE_AIRFLOW_PORT"
SPARK_PORT_VARIABLE = "SLUICE_SPARK_PORT"
S3_PORT_VARIABLE = "SLUICE_S3_PORT"
SPARK_MEMORY_VARIABLE = "SLUICE_SPARK_MEMORY"
AIRFLOW_DATABASE_VARIABLE = "SLUICE_AIRFLOW_DATABASE"
DRILLS_VARIABLE = "SLUICE_DRILLS"

_INCLUDE_FOLDER = Path(__file__).resolve().parents[2]
_HIGHEST_PORT = 65_535

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
    preloads_spark_client: bool = True
    airflow_database: AirflowDatabase = AirflowDatabase.SQLITE
    airflow_slots: int = 4  # Tasks at a time; 32, Airflow's default, costs 28 workers of 130 MB.
    allows_drills: bool = True  # Forms have the field Fault: only jobs of one's own run here.

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Self:
        return cls(
            airflow_port=_port(env, AIRFLOW_PORT_VARIABLE),
            spark_port=_port(env, SPARK_PORT_VARIABLE),
            s3_port=_port(env, S3_PORT_VARIABLE),
            spark_memory=env.get(SPARK_MEMORY_VARIABLE, "2g"),
            airflow_database=_database(env),
            allows_drills=env.get(DRILLS_VARIABLE, "1") == "1",
        )


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
    """This process's environment, without variables that would misdirect a child."""
    env = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    # Airflow and Spark start their components by name.
    env["PATH"] = str(Path(sys.executable).parent) + os.pathsep + env.get("PATH", os.defpath)
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


def _port(env: Mapping[str, str], variable: str) -> int | None:
    text = env.get(variable, "")
    if not text:
        return None
    if not text.isdigit() or not 0 < int(text) <= _HIGHEST_PORT:
        raise ConfigurationError(f"{variable} is {text!r}; set it to a port, 1 to {_HIGHEST_PORT}")
    return int(text)
