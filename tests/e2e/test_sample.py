"""What every test run plays of the whole system, on one stack: S3, Spark, Airflow on PostgreSQL.

The main job loses a Python worker and is restored; a commit and a restore lose their processes and
are retried; runs tell what they did; a file's arrival is a checkpoint.  All the rest is for ``make
e2e`` and ``make chaos``, which bring stacks of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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
from tests.e2e.test_pipelines import IS_WHOLE, PIPELINE, assert_a_kill_changes_nothing

pytestmark = pytest.mark.skipif(IS_WHOLE, reason="a part of make e2e and of make chaos")

ROW = replace(KINDS["task-killed"], points=("commit", "restore"))


@pytest.fixture(scope="module", name="field")
def _field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
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
