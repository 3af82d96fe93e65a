"""An Airflow, Spark and S3 server of their own for the pipelines of the failure matrix."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.devstack.stack import AirflowDatabase, StackOptions
from tests.chaos.kinds import REPOSITORY, Field, own_field

SLOTS = 10  # A task that stands still at every point, and some that go on.
SUBTASKS = 4  # Two that hang within Spark, and those of the jobs that are to come to their points.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/chaos/"):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(3600))


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
    with own_field(root, options) as field:
        yield field
