"""The link from a snapshot task to Spark's UI, with its jobs and its executors' logs."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink

from sluice_airflow.settings import Settings


class SparkLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """The link to Spark's UI; Airflow reads and stores it when the task ends."""

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ANN401, ARG002 - Airflow's
        ui = Settings.from_environment().spark_ui
        return f"{ui}/jobs/" if ui else ""
