"""Every DAG of every pipeline that include/pipelines/ declares."""

from __future__ import annotations

from sluice.declarations import load_pipelines
from sluice_airflow.dag_factory import build_dags

globals().update(build_dags(load_pipelines()))
