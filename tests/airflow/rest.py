"""The REST API as its callers meet it: Airflow's whole core app, with its real users and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from harness.jobs import a_pipeline
from harness.no_spark import stages_without_spark
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.submission import configure, submit
from sluice.core.plan import CheckpointPlan
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job, open_job
from sluice.spark.stage import run_stage
from sluice.store.open import StoreLocation
from tests.airflow.conftest import DAGS, HOME
from tests.airflow.database import migrate

BASE = "/sluice/api/v1"
PACKAGE = HOME / "rest_pipelines"

# Two pipelines, one of which has another job in every test, and a module that cannot be imported.
_MODULES = {
    "__init__": "",
    "jobs": """
from datetime import timedelta
from harness.jobs import a_pipeline as auctions_pipeline
from tests.airflow.stand_in import a_pipeline

auctions = auctions_pipeline()
demo = a_pipeline()
""",
    "broken": "raise RuntimeError('a module that cannot be imported')",
}
_DAG_FILE = '''
"""An airflow dag file of the pipelines."""
from sluice_airflow.dag_factory import build_dags
from rest_pipelines.jobs import auctions, demo

globals().update(build_dags({"auctions": auctions, "demo": demo}))
'''


@dataclass(frozen=True)
class Api:
    """Requests of one user, by their token; of nobody without one."""

    client: TestClient
    tokens: dict[str, str]
    headers: dict[str, str] = field(default_factory=dict)

    def by(self, name: str) -> Api:
        return replace(self, headers={"Authorization": f"Bearer {self.tokens[name]}"})

    def get(self, path: str, **query: Any) -> Any:
        return self.client.get(BASE + path, params=query or None, headers=self.headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.client.post(BASE + path, json=body or {}, headers=self.headers | headers)


def found(answer: Any) -> Any:
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


def refused(answer: Any, status: int) -> str:
    """What the problem says, with which a request was answered."""
    assert (answer.status_code, answer.headers["content-type"]) == (
        status, "application/problem+json",
    ), answer.text  # fmt: skip
    assert answer.json()["status"] == status
    return str(answer.json()["detail"])


def auctions_in(root: str, pipeline: Pipeline | None = None) -> Job:
    """The job of ``auctions`` in *root*, submitted."""
    job = open_job(pipeline or a_pipeline(), StoreLocation(root=root))
    submit(job, configure(job.pipeline, {}))
    return job


def take(job: Job, plan: CheckpointPlan) -> None:
    run_stages(job, plan, *job.pipeline.stages)
    complete(job, plan)


def run_stages(job: Job, plan: CheckpointPlan, *stages: str) -> None:
    """The stages' own subtasks, with lists of rows in the place of Spark."""
    with stages_without_spark():
        for stage in stages:
            run_stage(job, None, plan.checkpoint_id, stage, attempt=1)  # type: ignore[arg-type]


def complete(job: Job, plan: CheckpointPlan) -> None:
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)


@contextmanager
def an_api() -> Iterator[Api]:
    """Over a database that has the DAGs; each user has logged in with the password they were given.

    Its pipelines are those that SLUICE_PIPELINES says when it is asked first.
    """
    migrate()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HOME))
        _write_project()
    yield _logged_in()


def _write_project() -> None:
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    from tests.airflow.releases import a_bag, sync_bag_to_db

    PACKAGE.mkdir(exist_ok=True)
    for name, text in _MODULES.items():
        (PACKAGE / f"{name}.py").write_text(text)
    path = DAGS / "rest.py"
    path.write_text(_DAG_FILE)
    bag = a_bag(path, Path(DAGS))
    assert bag.import_errors == {}
    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(bag, "dags-folder", None)
    path.unlink()  # Other modules of tests look at the folder.


def _logged_in() -> Api:
    from airflow.api_fastapi.app import create_app

    from tests.airflow.releases import passwords

    client = TestClient(create_app("core"), raise_server_exceptions=False)
    tokens = {}
    for name, password in passwords().items():
        answer = client.post("/auth/token", json={"username": name, "password": password})
        tokens[name] = answer.json()["access_token"]
    client.cookies.clear()
    return Api(client, tokens)
