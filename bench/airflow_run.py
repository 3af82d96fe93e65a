"""``make bench-airflow``: the overhead of a checkpoint, compared with that of empty Airflow tasks.

The same Airflow runs, in turn, a checkpoint of a three-stage pipeline and a DAG of as many tasks in
a row that do nothing, the floor.  *Overhead* is a run's duration less the time of Spark's work, as
its snapshot tasks report it; the aim is at most 1.5 times the floor, and at most 2.5 s.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.airflow_api import AirflowApi, TaskInstance
from sluice.devstack import stack
from sluice.devstack.stack import AirflowDatabase, StackOptions

REPOSITORY = Path(__file__).resolve().parents[1]
RUNS, WARM_UP = int(os.environ.get("REPETITIONS") or 10), 3
ENDED = ("success", "failed", "skipped", "upstream_failed")
STAGES = ("per_bidder", "per_auction", "best")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Seconds of one DAG run, and of each of its tasks."""

    total_s: float
    task_s: Mapping[str, float]
    spark_s: float = 0.0

    @property
    def overhead_s(self) -> float:
        return self.total_s - self.spark_s


def main() -> None:
    database = AirflowDatabase(os.environ.get("SLUICE_AIRFLOW_DATABASE") or "sqlite")
    options = StackOptions(
        dags_folder=REPOSITORY / "bench" / "airflow",
        plugins_folder=REPOSITORY / "plugins",
        airflow_database=database,
    )
    path = f"{REPOSITORY / 'include'}{os.pathsep}{REPOSITORY}"
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        root = Path(folder)
        try:
            running = stack.start_stack(root, options=options, extra_env={"PYTHONPATH": path})
            with AirflowApi(running.airflow_url) as airflow:
                checkpoints, floors = _measure(airflow)
        finally:
            stack.stop_stack(root)
    _show(checkpoints, floors, database)


def _measure(airflow: AirflowApi) -> tuple[list[Run], list[Run]]:
    checkpoints: list[Run] = []
    floors: list[Run] = []
    for dag in ("three_stages", "nothing"):
        airflow.wait_until_known(dag)
        airflow.unpause(dag)
    for number in range(WARM_UP + RUNS):
        checkpoint = _run(airflow, "three_stages", number)
        floor = _run(airflow, "nothing", number)
        if number >= WARM_UP:
            checkpoints.append(checkpoint)
            floors.append(floor)
    return checkpoints, floors


def _run(airflow: AirflowApi, dag: str, number: int) -> Run:
    run = airflow.trigger(dag, run_id=f"bench-{number}")
    done = airflow.wait_until_finished(dag, run.dag_run_id, timeout_s=300)
    assert done.state == "success", (dag, done)
    assert done.start_date is not None
    assert done.end_date is not None
    tasks = _ended_tasks(airflow, dag, run.dag_run_id)
    spark_s = 0.0
    if dag == "three_stages":
        for stage in STAGES:
            told = airflow.xcom(dag, run.dag_run_id, f"{stage}.snapshot", "return_value")
            summary = json.loads(told) if isinstance(told, str) else told
            assert isinstance(summary, dict)
            spark_s += float(str(summary["stage_ms"])) / 1000
    return Run(
        total_s=(done.end_date - done.start_date).total_seconds(),
        task_s={name: task.duration or 0.0 for name, task in tasks.items() if task.duration},
        spark_s=spark_s,
    )


def _ended_tasks(airflow: AirflowApi, dag: str, run_id: str) -> dict[str, TaskInstance]:
    """A run may end before a snapshot task, which merges state behind its acks."""
    while True:
        tasks = {task.task_id: task for task in airflow.task_instances(dag, run_id)}
        if all(task.state in ENDED for task in tasks.values()):
            return tasks
        time.sleep(0.1)


def _show(checkpoints: list[Run], floors: list[Run], database: AirflowDatabase) -> None:
    table = Table("seconds", "minimum", "median", title=f"{RUNS} runs each, on {database.value}")
    totals = {
        "checkpoint's run": [run.total_s for run in checkpoints],
        "  of it Spark's work": [run.spark_s for run in checkpoints],
        "  overhead": [run.overhead_s for run in checkpoints],
        "equal run of nothing": [run.total_s for run in floors],
    }
    for name in checkpoints[0].task_s:
        totals[f"task {name}"] = [run.task_s.get(name, 0.0) for run in checkpoints]
    for name, values in totals.items():
        table.add_row(name, f"{min(values):.2f}", f"{statistics.median(values):.2f}")
    console = Console()
    console.print(table)
    floor = statistics.median(totals["equal run of nothing"])
    overhead = statistics.median(totals["  overhead"])
    console.print(f"overhead / floor: {overhead / floor:.2f} (aim 1.5); {overhead:.1f} s (aim 5)")


if __name__ == "__main__":
    main()
