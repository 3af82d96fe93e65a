"""What every test run plays of the whole system, on one stack: S3, Spark, Airflow on PostgreSQL.

The main job loses a Python worker and is restored; a commit and a restore lose their processes and
are retried; runs tell what they did; a file's arrival is a checkpoint.  All the rest is for ``make
e2e`` and ``make chaos``, which bring stacks of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from harness.airflow_api import AirflowApi
from sluice.declaration.project import DAGS_VARIABLE, PIPELINES_VARIABLE
from sluice.devstack.stack import AirflowDatabase, Stack, StackOptions
from tests.best_auctions import best_auctions
from tests.chaos.kinds import KINDS, REPOSITORY, Field, own_field
from tests.chaos.play import play
from tests.chaos.runs_and_arrivals import (
    assert_arrivals_are_checkpoints,
    assert_runs_tell_what_they_did,
)
from tests.chaos.under_fire import EVENTS
from tests.contract.s3_stub import served
from tests.e2e.test_pipelines import (
    ENDS_WITHIN_S,
    IS_WHOLE,
    PIPELINE,
    assert_a_kill_changes_nothing,
)

pytestmark = pytest.mark.skipif(IS_WHOLE, reason="a part of make e2e and of make chaos")

ROW = replace(KINDS["task-killed"], points=("commit", "restore"))


Told = list[dict[str, Any]]  # The events of OpenLineage that a collector has received.


@pytest.fixture(scope="module", name="collector")
def _collector() -> Iterator[tuple[str, Told]]:
    told: Told = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(201)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
            """Nothing is printed."""

    with served(Handler) as url:
        yield url, told


@pytest.fixture(scope="module", name="field")
def _field(
    tmp_path_factory: pytest.TempPathFactory, collector: tuple[str, Told]
) -> Iterator[Field]:
    root = tmp_path_factory.mktemp("sample")
    options = StackOptions(
        dags_folder=REPOSITORY / "dags",
        plugins_folder=REPOSITORY / "plugins",
        spark_memory="1g",
        airflow_database=AirflowDatabase.POSTGRESQL,
    )
    env = {
        PIPELINES_VARIABLE: "tests.e2e.declared",
        DAGS_VARIABLE: f"{PIPELINE} at_* on_files",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "http", "url": collector[0]}),
    }
    with own_field(root, options, **env) as field:
        yield field


@pytest.fixture(scope="module", name="running")
def _running(field: Field) -> Stack:
    return field.running


def test_a_killed_commit_and_a_killed_restore_are_retried(field: Field) -> None:
    cells = play(field, ROW, best_auctions(EVENTS))

    known = {cell.point: (cell.restarts, cell.restores) for cell in cells}
    assert known == {"commit": (0, 0), "restore": (0, 1)}  # What a person asks for is no restart.


def test_runs_tell_what_they_did(field: Field) -> None:
    assert_runs_tell_what_they_did(field, "commit")


def test_a_killed_worker_restores_the_main_job_and_changes_nothing(
    running: Stack, airflow: AirflowApi, tmp_path: Path
) -> None:
    fault = "kill-worker stage=window_rule"
    assert_a_kill_changes_nothing(running, airflow, tmp_path, fault, epochs=2)


def test_files_that_arrive_are_an_event_and_the_event_is_a_checkpoint(field: Field) -> None:
    assert_arrivals_are_checkpoints(field)


def test_a_collector_is_told_what_a_checkpoint_read_and_published(
    field: Field, collector: tuple[str, Told]
) -> None:
    """By Airflow's own provider, whose processes send it; the job ran in the tests before."""
    _, told = collector
    deadline = time.monotonic() + ENDS_WITHIN_S

    def of_the_commit() -> Told:
        job = f"{PIPELINE}.commit"
        return [one for one in told if one["job"]["name"] == job and one.get("outputs")]

    while not of_the_commit() and time.monotonic() < deadline:
        time.sleep(1)
    one = of_the_commit()[-1]
    [read] = [place for place in one["inputs"] if place["name"].endswith("/auth.log")]
    [alerts] = [place for place in one["outputs"] if "/tables/" in place["name"]]
    assert one["eventType"] == "COMPLETE"
    assert read["namespace"] == "file"
    assert read["inputFacets"]["inputStatistics"]["rowCount"] >= 0
    assert alerts["namespace"].startswith("s3://")
    assert alerts["facets"]["version"]["datasetVersion"].startswith(f"{PIPELINE} checkpoint ")
