"""Every DAG of every declared pipeline, and the watchdog's."""

from sluice_airflow.dags import dags

globals().update(dags())
