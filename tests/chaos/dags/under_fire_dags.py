"""An airflow dag file: the pipelines of the failure matrix, and the watchdog over them."""

from __future__ import annotations

from sluice_airflow.dag_factory import build_dags
from sluice_airflow.watchdog import build_watchdog
from tests.chaos.under_fire import load

globals().update(build_dags(load()))
watchdog = build_watchdog(load)
