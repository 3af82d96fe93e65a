"""The plan of the stack: the services for given options, and their ports; starts nothing.

A service keeps its ports while any process of it lives, and gets them again later if they are still
free, so that addresses survive restarts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sluice.devstack import airflow_server, postgres_server, processes, s3_server, spark_server
from sluice.devstack.airflow_api import AirflowApi
from sluice.devstack.keeper import kept
from sluice.devstack.ports import accepts_connections, first_free, free_ports, require_free
from sluice.devstack.processes import Launch
from sluice.devstack.settings import (
    AIRFLOW_PORT_VARIABLE,
    S3_PORT_VARIABLE,
    SPARK_PORT_VARIABLE,
    AirflowDatabase,
    StackOptions,
    sluice_folder,
)
from sluice.devstack.stack_file import Ports, StackFile

_FAMILIAR_AIRFLOW_PORT = 8080  # Used if it is free, as people try it first.


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
    """Return one plan per service."""
    sluice_dir = sluice_folder(root_dir)
    on_postgres = options.airflow_database is AirflowDatabase.POSTGRESQL
    spark = spark_server.SparkSettings(
        port=ports.spark,
        ui_port=ports.spark_ui,
        driver_memory=options.spark_memory,
        cores=options.spark_cores,
    )
    airflow = airflow_server.AirflowSettings(
        port=ports.airflow,
        worker_log_port=ports.worker_log,
        trigger_log_port=ports.trigger_log,
        dags_folder=options.dags_folder or root_dir / "dags",
        plugins_folder=options.plugins_folder or root_dir / "plugins",
        preloads_spark_client=options.preloads_spark_client,
        parallelism=options.airflow_slots,
        database_url=postgres_server.database_url(port=ports.postgres, sluice_dir=sluice_dir)
        if on_postgres
        else None,
    )
    plans = (
        ServicePlan(
            launch=_kept(s3_server.s3_launch(port=ports.s3, sluice_dir=sluice_dir, env=env)),
            is_ready=lambda: s3_server.bucket_exists_or_is_created(ports.s3),
            start_timeout_s=s3_server.START_TIMEOUT_S,
        ),
        ServicePlan(
            launch=_kept(spark_server.spark_launch(spark, sluice_dir=sluice_dir, env=env)),
            is_ready=lambda: accepts_connections(ports.spark),
            start_timeout_s=spark_server.START_TIMEOUT_S,
        ),
        ServicePlan(
            launch=airflow_server.airflow_launch(airflow, sluice_dir=sluice_dir, env=env),
            is_ready=api.is_ready,
            start_timeout_s=airflow_server.START_TIMEOUT_S,
            prepare=lambda: airflow_server.prepare(sluice_dir),
            after=postgres_server.NAME if on_postgres else None,
        ),
    )
    return (_postgres(ports.postgres, sluice_dir, env), *plans) if on_postgres else plans


def _kept(launch: Launch) -> Launch:
    """Started anew when it dies, as supervisord does it for Airflow's components."""
    return replace(launch, command=kept(launch.command))


def _postgres(port: int, sluice_dir: Path, env: Mapping[str, str]) -> ServicePlan:
    return ServicePlan(
        launch=postgres_server.postgres_launch(port=port, sluice_dir=sluice_dir, env=env),
        is_ready=lambda: postgres_server.answers(port),
        start_timeout_s=postgres_server.START_TIMEOUT_S,
        prepare=lambda: postgres_server.prepare(sluice_dir),
    )


def choose_ports(recorded: StackFile | None, options: StackOptions) -> Ports:
    """Return the ports to use now.

    Raises:
        ConfigurationError: a requested port is taken by another process.
    """
    spare = free_ports(7)
    old = _ports_in_order(spare) if recorded is None else recorded.ports
    s3 = _is_running(recorded, s3_server.NAME)
    spark = _is_running(recorded, spark_server.NAME)
    airflow = _is_running(recorded, airflow_server.NAME)
    postgres = _is_running(recorded, postgres_server.NAME)
    familiar = () if recorded is not None else (_FAMILIAR_AIRFLOW_PORT,)
    return Ports(
        s3=_port(options.s3_port, S3_PORT_VARIABLE, old.s3, spare[0], keep=s3),
        spark=_port(options.spark_port, SPARK_PORT_VARIABLE, old.spark, spare[1], keep=spark),
        spark_ui=old.spark_ui if spark else first_free(old.spark_ui, spare[2]),
        airflow=_port(
            options.airflow_port,
            AIRFLOW_PORT_VARIABLE,
            first_free(*familiar, old.airflow) if not airflow else old.airflow,
            spare[3],
            keep=airflow,
        ),
        worker_log=old.worker_log if airflow else first_free(old.worker_log, spare[4]),
        trigger_log=old.trigger_log if airflow else first_free(old.trigger_log, spare[5]),
        postgres=old.postgres if postgres else first_free(old.postgres or spare[6]),
    )


def _ports_in_order(numbers: tuple[int, ...]) -> Ports:
    s3, spark, spark_ui, airflow, worker_log, trigger_log, postgres = numbers
    return Ports(
        s3=s3,
        spark=spark,
        spark_ui=spark_ui,
        airflow=airflow,
        worker_log=worker_log,
        trigger_log=trigger_log,
        postgres=postgres,
    )


def _is_running(recorded: StackFile | None, name: str) -> bool:
    service = None if recorded is None else recorded.services.get(name)
    return service is not None and bool(processes.members(service.process))


def _port(requested: int | None, variable: str, old: int, spare: int, *, keep: bool) -> int:
    if keep and requested in {None, old}:
        return old
    if requested is not None:
        return require_free(requested, variable=variable)
    return first_free(old, spare)
