"""The watchdog's DAG: in a file of its own, so that a broken declaration does not take it away."""

from __future__ import annotations

from sluice.declarations import load_pipelines
from sluice_airflow.watchdog import build_watchdog

dag = build_watchdog(load_pipelines)
