"""Registers sluice with Airflow: the only file here that Airflow's plugin scanner loads."""

from __future__ import annotations

from typing import ClassVar

from airflow.plugins_manager import AirflowPlugin

from sluice_airflow import run_notes
from sluice_airflow.timetable import CheckpointTimetable


class SluicePlugin(AirflowPlugin):  # type: ignore[misc]  # Airflow's annotations are skipped.
    name = "sluice"
    timetables: ClassVar = [CheckpointTimetable]
    listeners: ClassVar = [run_notes]
