"""One local Spark for all tests of this folder, and jobs on a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice.declaration.project import load_pipeline
from sluice.job.job import Job
from sluice.spark.session import local_session
from tests.spark.folder_job import FolderJob, a_submitted_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where values that Spark computes are the point, it computes them with the code that it generates,
# as everywhere else.  To generate it for a few rows is an eighth of the CPU of the other files.
WITH_GENERATED_CODE = ("test_exchange", "test_nexmark", "test_types", "test_updates")
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.spark)


# The S3 server of the tests checks no signature, but a client does not sign without them.
BUCKET_KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

CORES = max(2, os.cpu_count() or 2)  # Tasks that wait for each other have one each.


@pytest.fixture(scope="session", name="shared_spark")
def _shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Its workers keep the cache, and the keys of a bucket, that it finds when it is started."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLUICE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
            for name, value in BUCKET_KEYS.items():
                patch.setenv(name, value)
            session = stack.enter_context(local_session(cores=CORES, driver_memory="1g"))
        yield session


@pytest.fixture(scope="module", name="spark")
def _spark(request: pytest.FixtureRequest, shared_spark: SparkSession) -> Iterator[SparkSession]:
    module = request.module.__name__.rpartition(".")[2]
    chosen = {} if module in WITH_GENERATED_CODE else INTERPRETED
    for name, value in chosen.items():
        shared_spark.conf.set(name, value)
    yield shared_spark
    for name in chosen:
        shared_spark.conf.unset(name)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """That of this process, for what it reads of a job's state."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def bucket_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in BUCKET_KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(name="job")
def _job(spark: SparkSession, tmp_path: Path) -> FolderJob:
    return FolderJob(spark, tmp_path)


@pytest.fixture(name="submitted")
def _submitted(tmp_path: Path) -> Callable[..., Job]:
    """Submit a declared pipeline in a folder of this test."""

    def start(uid: str, *, parallelism: int, max_records: int, **params: object) -> Job:
        return a_submitted_job(
            load_pipeline(uid),
            tmp_path / "root",
            {name: str(value) for name, value in params.items()},
            parallelism=parallelism,
            max_records_per_epoch=max_records,
        )

    return start
