"""A cluster of a test module's own, and the command line as a user of it has it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from harness.s3_server import own_bucket
from harness.spark_cluster import SparkCluster, running_cluster
from sluice.declaration.project import find_pipelines, load_pipeline
from sluice.devstack.servers import BUCKET
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation

DECLARED = Path(__file__).with_name("declared")
COMMAND = (sys.executable, "-c", "from sluice.cli.main import main; main()")
WAIT_S = 300
IS_WHOLE = os.environ.get("SLUICE_CLUSTER") == "all"

whole = pytest.mark.skipif(not IS_WHOLE, reason="minutes; make cluster runs it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/cluster/"):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.s3)


@dataclass(frozen=True, slots=True)
class Client:
    """A machine from which jobs are run; it shares nothing with the workers but the bucket."""

    cluster: SparkCluster
    folder: Path
    env: Mapping[str, str]

    def begin(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sluice(self, *arguments: str) -> str:
        """Run a command of sluice to its end, and return what it printed."""
        return ended(self.begin(*arguments))

    def job(self, root: str) -> Job:
        pipeline = load_pipeline("auctions", find_pipelines(setting=str(DECLARED)))
        return open_job(
            pipeline, StoreLocation(root=root, endpoint_url=self.env["AWS_ENDPOINT_URL_S3"])
        )

    def rows(self, name: str) -> list[dict[str, object]]:
        """The result that a run wrote into a file."""
        return pl.read_parquet(self.folder / name).sort("category", "rank").to_dicts()


def ended(process: subprocess.Popen[str]) -> str:
    said, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, errors
    return said + errors


@pytest.fixture(name="client")
def _client(tmp_path: Path) -> Iterator[Client]:
    """On a cluster of the test's own, with two workers."""
    with a_client(tmp_path, workers=2) as client:
        yield client


@contextmanager
def a_client(folder: Path, *, workers: int, lacking: Collection[str] = ()) -> Iterator[Client]:
    """A client of a new cluster, whose machines have no variable that is *lacking*."""
    (home := folder / "client").mkdir()
    with pytest.MonkeyPatch.context() as patch, own_bucket(folder / "s3") as bucket:
        env = {**os.environ, **bucket}
        of_machines = {name: value for name, value in env.items() if name not in lacking}
        with running_cluster(folder / "machines", of_machines, workers=workers) as cluster:
            of_client = {"SLUICE_PIPELINES": str(DECLARED), "SLUICE_CACHE_DIR": str(home / "cache")}
            for name, value in {**bucket, **of_client}.items():
                patch.setenv(name, value)  # This process is a client, too.
            yield Client(cluster, home, env | of_client)


@pytest.fixture(name="root")
def _root() -> str:
    return f"s3://{BUCKET}/jobs"
