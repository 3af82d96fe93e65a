"""The names that Airflow 3.1 and 3.2 have elsewhere than 3.3, or lack."""

from __future__ import annotations

from typing import Any

from airflow import __version__

_IS_3_1 = __version__.startswith("3.1.")
STARTS_FROM_TRIGGER = not __version__.startswith(("3.1.", "3.2."))  # Else a worker defers the task.

try:
    from airflow.sdk import AssetOrTimeSchedule
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        AirflowSkipException,
        AirflowTaskTimeout,
        DagRunTriggerException,
    )
except ImportError:  # Airflow 3.1
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        AirflowSkipException,
        AirflowTaskTimeout,
        DagRunTriggerException,
    )
    from airflow.timetables.assets import AssetOrTimeSchedule


def dag_run_to_trigger(**fields: Any) -> DagRunTriggerException:  # noqa: ANN401 - as Airflow's
    """The exception that a task raises for Airflow to start a DAG's run."""
    return DagRunTriggerException(**({"logical_date": None} if _IS_3_1 else {}), **fields)


def is_dag_test() -> bool:
    """Whether the task is one of ``dag.test()``, which runs them one by one in its own process."""
    from airflow.sdk.execution_time import task_runner

    return type(task_runner.SUPERVISOR_COMMS).__name__ == "InProcessSupervisorComms"


def configuration() -> Any:  # noqa: ANN401 - Airflow's annotations are skipped
    """Airflow's configuration as a task reads it."""
    try:
        from airflow.sdk.configuration import conf
    except ImportError:
        from airflow.configuration import conf
    return conf


def airflow_stats() -> Any:  # noqa: ANN401 - Airflow's annotations are skipped
    """The client of Airflow's metrics."""
    try:
        from airflow.sdk.observability import stats
    except ImportError:
        from airflow.stats import Stats

        return Stats
    return stats


__all__ = [
    "STARTS_FROM_TRIGGER",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRescheduleException",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "AssetOrTimeSchedule",
    "DagRunTriggerException",
    "airflow_stats",
    "configuration",
    "dag_run_to_trigger",
    "is_dag_test",
]
