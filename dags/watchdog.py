"""The watchdog's DAG: in a file of its own, so that a broken declaration does not take it away."""

from __future__ import annotations

from sluice_airflow.upgrades import load_watched
from sluice_airflow.watchdog import build_watchdog

dag = build_watchdog(load_watched)
