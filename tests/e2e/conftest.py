"""The whole stack, once per module: a real S3 server, Spark Connect and Airflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.devstack import stack
from sluice.devstack.airflow_api import AirflowApi
from sluice.devstack.settings import StackOptions
from sluice.devstack.stack import Stack

REPOSITORY = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="module", name="running")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root = tmp_path_factory.mktemp("stack")
    options = StackOptions(
        dags_folder=REPOSITORY / "dags", plugins_folder=REPOSITORY / "plugins", spark_memory="1g"
    )
    cache = {"SLUICE_CACHE_DIR": str(root / "cache")}
    with pytest.MonkeyPatch.context() as patch:
        # Its own AIRFLOW_HOME must not be that of another test module.
        for name in [name for name in os.environ if name.startswith("AIRFLOW_")]:
            patch.delenv(name)
        try:
            started = stack.up(root, options=options, extra_env=cache)
            for name, value in started.client_env.items():
                patch.setenv(name, value)
            yield started
        finally:
            stack.down(root)


@pytest.fixture(scope="module", name="airflow")
def _airflow(running: Stack) -> Iterator[AirflowApi]:
    with AirflowApi(running.airflow_url) as api:
        yield api
