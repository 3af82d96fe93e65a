"""Registers sluice with Airflow: the only file here that Airflow's plugin scanner loads."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


class SluicePlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow's annotations are skipped.
    name = "sluice"
