"""An Airflow DAG file: the pipeline, and a DAG of as many empty tasks in a row."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, BaseOperator, chain

from bench.airflow.three_stages import three_stages
from sluice_airflow.dag_factory import build_dags

HOPS = ("trigger", "stage_1", "stage_2", "stage_3", "finalize", "commit")


class Nothing(BaseOperator):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """An empty task that runs in a worker, as ours do; an EmptyOperator does not."""

    def execute(self, context: object) -> None:
        pass


globals().update(build_dags({"three_stages": three_stages()}))
with DAG("nothing", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as nothing:
    chain(*(Nothing(task_id=name) for name in HOPS))
