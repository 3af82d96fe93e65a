"""The whole stack, once per module: a real S3 server, Spark Connect and Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.airflow_api import AirflowApi
from harness.own_stack import own_stack
from sluice.devstack.stack import Stack, StackOptions

REPOSITORY = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/e2e/"):
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="module", name="running")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root = tmp_path_factory.mktemp("stack")
    options = StackOptions(
        dags_folder=REPOSITORY / "dags", plugins_folder=REPOSITORY / "plugins", spark_memory="1g"
    )
    with own_stack(root, options, {"SLUICE_CACHE_DIR": str(root / "cache")}) as started:
        yield started


@pytest.fixture(scope="module", name="airflow")
def _airflow(running: Stack) -> Iterator[AirflowApi]:
    with AirflowApi(running.airflow_url) as api:
        yield api
