"""Registers timetables, run notes, REST API and pages, by the entry point ``airflow.plugins``."""

from __future__ import annotations

from typing import ClassVar

from airflow.plugins_manager import AirflowPlugin

from airflow import __version__
from sluice.extras import AIRFLOW
from sluice_airflow import pages_app, run_notes
from sluice_airflow.live_notes import LiveNotes
from sluice_airflow.rest.mount import PREFIX, DeferredApp
from sluice_airflow.timetable import CheckpointTimetable, FirstTickTimetable


class SluicePlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow's annotations are skipped.
    name = "sluice"
    timetables: ClassVar = [CheckpointTimetable, FirstTickTimetable]
    listeners: ClassVar = [run_notes]
    fastapi_apps: ClassVar = [  # The first whose prefix fits is asked.
        {"app": pages_app.PagesApp(), "url_prefix": pages_app.PREFIX, "name": "sluice pages"},
        {"app": DeferredApp(), "url_prefix": PREFIX, "name": "sluice"},
    ]
    fastapi_root_middlewares: ClassVar = [{"middleware": LiveNotes, "name": "sluice live notes"}]
    react_apps: ClassVar = [dict(view) for view in pages_app.VIEWS]

    @classmethod
    def on_load(cls, *_: object, **__: object) -> None:
        """Raises ConfigurationError unless this Airflow is supported; shown as an import error."""
        AIRFLOW.check(__version__)
