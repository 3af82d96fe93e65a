"""A DAG whose stages Airflow submits to a standalone cluster of two workers, from start to end.

Its rows are those that the same pipeline has in a session of Spark Connect and in ``sluice run``,
whose tests expect them of the same function.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from harness.airflow_api import AirflowApi
from harness.own_stack import own_stack
from harness.spark_cluster import SparkCluster, running_cluster
from sluice.cli.run import final_table
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import JobStatus
from sluice.core.ids import CheckpointId
from sluice.declaration.project import DAGS_VARIABLE, load_pipeline
from sluice.devstack.stack import Stack, StackOptions
from sluice.job.applications import ApplicationName
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from sluice.surface.checkpoints import history, stage_with_subtasks
from tests.best_auctions import best_auctions
from tests.e2e.conftest import REPOSITORY

pytestmark = pytest.mark.skipif(
    os.environ.get("SLUICE_CLUSTER") != "all", reason="make cluster runs it"
)
PIPELINE = "auctions_submitted"
RESTORE = f"{PIPELINE}__restore"
EVENTS, PER_EPOCH = 3_000, 1_000
WAIT_S = 900.0


@pytest.fixture(scope="module", name="cluster")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Its machines share nothing with Airflow's but the bucket, of which they have the keys."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    env = {**os.environ, **keys, "AWS_DEFAULT_REGION": "us-east-1"}
    with running_cluster(tmp_path_factory.mktemp("machines"), env, workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module", name="running")
def _running(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    root = tmp_path_factory.mktemp("stack")
    options = StackOptions(
        dags_folder=REPOSITORY / "dags", plugins_folder=REPOSITORY / "plugins", spark_memory="512m"
    )
    connection = {
        "conn_type": "spark",
        "host": cluster.master,
        "extra": {"master_webui_address": cluster.ui},
    }
    env = {
        DAGS_VARIABLE: PIPELINE,
        "AIRFLOW_CONN_SPARK_STANDALONE": json.dumps(connection),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SLUICE_CACHE_DIR": str(root / "cache"),
    }
    with own_stack(root, options, env) as started:
        yield started


def test_its_checkpoints_complete_a_stage_fails_once_and_it_is_rescaled(
    running: Stack, cluster: SparkCluster, airflow: AirflowApi
) -> None:
    pipeline = load_pipeline(PIPELINE)
    job = open_job(
        pipeline, StoreLocation(root=running.client_env["SLUICE_ROOT"], endpoint_url=running.s3_url)
    )
    for dag in (PIPELINE, RESTORE):
        airflow.wait_until_known(dag)
    airflow.unpause(RESTORE)
    given = {"events": str(EVENTS)}
    submit(job, configure(pipeline, given, parallelism=2, max_records_per_epoch=PER_EPOCH))
    airflow.unpause(PIPELINE)  # A run is due, and takes the first checkpoint.
    until(lambda: len(completed(job)) >= 1, "a checkpoint", job)

    failing = airflow.trigger(PIPELINE, conf={"fault": "fail-worker stage=category_ranking"})
    failed = airflow.wait_until_finished(PIPELINE, failing.dag_run_id, timeout_s=WAIT_S)
    until(lambda: job.state().status is not JobStatus.RESTARTING, "a restart", job)
    tries = {
        task.task_id: task.try_number
        for task in airflow.task_instances(PIPELINE, failing.dag_run_id)
    }
    (record,) = [record for record in history(job) if record.status == "FAILED"]

    assert failed.state == "failed"
    assert "RuntimeError: fault injected" in (record.message or "")
    assert tries["bid_statistics.snapshot"] == 1
    assert job.state().num_restarts == 1

    rescaled = airflow.trigger(RESTORE, conf={"parallelism": "3"})
    assert airflow.wait_until_finished(RESTORE, rescaled.dag_run_id).state == "success"
    until(lambda: job.state().status.is_globally_terminal, "the end", job)
    airflow.pause(PIPELINE)

    assert job.state().status is JobStatus.FINISHED
    rows = final_table(job, job.state().configuration.params).to_pylist()
    assert sorted(rows, key=lambda row: (row["category"], row["rank"])) == best_auctions(EVENTS)
    assert len(stage_with_subtasks(job, completed(job)[-1], "bid_statistics").subtasks) == 3
    submitted = [ApplicationName.parse(one["name"]) for one in cluster.status()["completedapps"]]
    of_the_failed = [name for name in submitted if name and name.checkpoint_id == record.id]
    assert len(of_the_failed) == 1


def completed(job: Job) -> list[CheckpointId]:
    return [CheckpointId(one.id) for one in history(job) if one.status == "COMPLETED"]


def until(is_true: Callable[[], bool], what: str, job: Job) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline, (what, list(history(job)))
        time.sleep(1)
