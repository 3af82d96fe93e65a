"""An Airflow, Spark and S3 server of their own for the pipelines of the failure matrix."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.airflow_api import AirflowApi
from sluice.devstack.stack import AirflowDatabase, StackOptions
from tests.chaos.kinds import Field
from tests.chaos.under_fire import FOLDER_VARIABLE
from tests.own_stack import own_stack

REPOSITORY = Path(__file__).resolve().parents[2]
SLOTS = 10  # A task that stands still at every point, and some that go on.
SUBTASKS = 4  # Two that hang within Spark, and those of the jobs that are to come to their points.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="module", name="field")
def _field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    """On PostgreSQL: ten tasks at a time are more than SQLite's one writer is good for."""
    root = tmp_path_factory.mktemp("chaos")
    options = StackOptions(
        dags_folder=REPOSITORY / "tests" / "chaos" / "dags",
        plugins_folder=REPOSITORY / "plugins",
        spark_memory="1g",
        spark_cores=SUBTASKS,
        airflow_database=AirflowDatabase.POSTGRESQL,
        airflow_slots=SLOTS,
    )
    arrivals = root / "arrivals"
    arrivals.mkdir()
    extra_env = {
        FOLDER_VARIABLE: str(arrivals),
        "SLUICE_CACHE_DIR": str(root / "cache"),
        "PYTHONPATH": f"{REPOSITORY / 'include'}{os.pathsep}{REPOSITORY}",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(arrivals))  # This process builds the pipelines, too.
        with (
            own_stack(root, options, extra_env) as started,
            AirflowApi(started.airflow_url) as airflow,
        ):
            yield Field(started, airflow, options, extra_env)
