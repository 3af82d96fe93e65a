"""Registers timetable, run notes and REST API, by the entry point ``airflow.plugins``."""

from __future__ import annotations

from typing import ClassVar

from airflow.plugins_manager import AirflowPlugin

from airflow import __version__
from sluice.extras import AIRFLOW
from sluice_airflow import run_notes
from sluice_airflow.rest.mount import PREFIX, DeferredApp
from sluice_airflow.timetable import CheckpointTimetable


class SluicePlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow's annotations are skipped.
    name = "sluice"
    timetables: ClassVar = [CheckpointTimetable]
    listeners: ClassVar = [run_notes]
    fastapi_apps: ClassVar = [{"app": DeferredApp(), "url_prefix": PREFIX, "name": "sluice"}]

    @classmethod
    def on_load(cls, *_: object, **__: object) -> None:
        """Raises ConfigurationError unless this Airflow is supported; shown as an import error."""
        AIRFLOW.check(__version__)
