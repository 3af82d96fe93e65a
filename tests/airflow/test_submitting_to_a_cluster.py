"""Stages that are submitted to a real standalone cluster of two workers: the job has the rows that
any session has, and what becomes of applications without us.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.s3_server import own_bucket
from harness.spark_cluster import SparkCluster, running_cluster
from sluice.cli.run import final_table
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Latest
from sluice.declaration.project import load_pipeline
from sluice.declaration.schedules import Submit
from sluice.devstack.servers import BUCKET
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from sluice_airflow.applications import reap
from sluice_airflow.compat import AirflowFailException
from sluice_airflow.submitting import SubmitOperator
from tests.airflow.acts import a_context
from tests.best_auctions import best_auctions
from tests.spark_events import event_log, executors_lost, failed_tasks, has_begun_tasks

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.spark, pytest.mark.s3]
whole = pytest.mark.skipif(os.environ.get("SLUICE_CLUSTER") != "all", reason="make cluster runs it")
STAGE = "bid_statistics"
RUN = {"dag_id": "auctions", "run_id": "run-1"}
WAIT_S = 300.0


@pytest.fixture(scope="module", name="cluster")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    root = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch, own_bucket(root / "s3") as bucket:
        for name, value in bucket.items():
            patch.setenv(name, value)
        with running_cluster(root / "machines", os.environ, workers=2) as cluster:
            connection = {
                "conn_type": "spark",
                "host": cluster.master,
                "extra": {"master_webui_address": cluster.ui},
            }
            patch.setenv("AIRFLOW_CONN_SPARK_THERE", json.dumps(connection))
            patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
            patch.setenv("PYSPARK_PYTHON", sys.executable)
            bin_folder = Path(sys.executable).parent
            patch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
            yield cluster
            gc.collect()  # Of pipes that Airflow's hook leaves open; warnings are ignored here.


@pytest.fixture(name="job")
def _job(
    cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Job:
    root = f"s3://{BUCKET}/{request.node.name}"
    monkeypatch.setenv("SLUICE_ROOT", root)
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    job = open_job(load_pipeline("auctions"), StoreLocation(root=root, endpoint_url=endpoint))
    submit(job, configure(job.pipeline, {"events": "2000"}, parallelism=1))
    assert isinstance(trigger(job, cause="airflow:auctions/run-1"), Triggered)
    return job


def an_operator(cluster: SparkCluster, job: Job) -> SubmitOperator:
    return SubmitOperator(
        task_id="snapshot", pipeline=job.pipeline, stage=STAGE, submit=submit_to(cluster)
    )


def submit_to(cluster: SparkCluster) -> Submit:
    conf = {**cluster.executors, "spark.ui.enabled": "false"}
    return Submit(connection="spark_there", driver_memory="512m", conf=conf)


@contextmanager
def a_try_that_hangs(cluster: SparkCluster, job: Job, *, seconds: int) -> Iterator[int]:
    """A task's process, as Airflow forks one, while its application runs; yields its id."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_FAULT", f"hang-worker stage={STAGE} seconds={seconds}")
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            try:
                an_operator(cluster, job).execute(a_context(**RUN))
            finally:
                os._exit(0)
    until(lambda: len(running(cluster)) == 1, "the application")
    try:
        yield pid
    finally:
        os.waitpid(pid, 0)


def running(cluster: SparkCluster) -> list[str]:
    return [one["name"] for one in cluster.status()["activeapps"]]


def until(is_true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline, f"no {what} within {WAIT_S:.0f} s"
        time.sleep(0.2)


@whole
def test_what_was_submitted_is_found_again_after_its_worker_was_killed(
    cluster: SparkCluster, job: Job
) -> None:
    """Nothing of the first try is left but the application itself, and its name at the master."""
    with a_try_that_hangs(cluster, job, seconds=15) as pid:
        (name,) = running(cluster)
        os.kill(pid, signal.SIGKILL)

    assert running(cluster) == [name]
    an_operator(cluster, job).execute(a_context(**RUN, try_number=2))

    assert job.state().pending[0].attempt_of(STAGE) == 1
    (plan,) = job.state().pending
    answers = job.answers.observe(plan.checkpoint_id, plan.token)
    assert (plan.tasks[0].uid, 1) in answers.answered
    until(lambda: not running(cluster), "end of the application")
    assert [one["name"] for one in cluster.status()["completedapps"]] == [name]


@whole
def test_an_application_that_no_attempt_awaits_is_ended(cluster: SparkCluster, job: Job) -> None:
    with a_try_that_hangs(cluster, job, seconds=600) as pid:
        (name,) = running(cluster)
        assert reap(job, submit_to(cluster)) == []
        os.kill(pid, signal.SIGKILL)

    fail_checkpoint(job, CheckpointId(1), CheckpointFailureReason.CHECKPOINT_EXPIRED, "too late")

    assert reap(job, submit_to(cluster)) == [name]
    until(lambda: not running(cluster), "end of the application")
    assert reap(job, submit_to(cluster)) == []


@whole
def test_a_task_that_is_killed_ends_its_application(
    cluster: SparkCluster, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_FAULT", f"hang-worker stage={STAGE} seconds=600")
    operator = an_operator(cluster, job)
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(operator.execute, a_context(**RUN))
        until(lambda: len(running(cluster)) == 1, "the application")

        operator.on_kill()

        assert task.exception(WAIT_S) is not None
    until(lambda: not running(cluster), "end of the application")


@dataclass(frozen=True)
class SubmittedJob:
    """The pipeline of the example, whose applications log their events into ``logs``."""

    job: Job
    submit: Submit
    logs: Path

    def run_stages(self) -> None:
        for stage in self.job.pipeline.stages:  # The second runs chained to the first.
            SubmitOperator(
                task_id="snapshot", pipeline=self.job.pipeline, stage=stage, submit=self.submit
            ).execute(a_context(**RUN))

    def checkpoint(self) -> CheckpointPlan:
        plan = self.triggered()
        self.run_stages()
        finalize(self.job, plan.checkpoint_id)
        commit(self.job, plan.checkpoint_id)
        return plan

    def triggered(self) -> CheckpointPlan:
        outcome = trigger(self.job, cause="airflow:auctions/run-1")
        assert isinstance(outcome, Triggered)
        return outcome.plan

    def rows(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = final_table(self.job, {}).to_pylist()
        return sorted(rows, key=lambda row: (row["category"], row["rank"]))


@pytest.fixture(name="example")
def _example(
    cluster: SparkCluster,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> SubmittedJob:
    root = f"s3://{BUCKET}/{request.node.name}"
    monkeypatch.setenv("SLUICE_ROOT", root)
    endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
    pipeline = load_pipeline("auctions_submitted")
    declared, logs = pipeline.orchestration.submit, tmp_path / "events"
    assert declared is not None
    conf = {**declared.conf, **cluster.executors, **event_log(logs)}
    job = open_job(pipeline, StoreLocation(root=root, endpoint_url=endpoint))
    return SubmittedJob(job, replace(declared, connection="spark_there", conf=conf), logs)


def test_a_job_whose_stages_are_submitted_has_the_rows_of_any_session(
    example: SubmittedJob,
) -> None:
    job = example.job
    submit(job, configure(job.pipeline, {"events": "1000"}, parallelism=2))

    example.checkpoint()

    assert job.state().status is JobStatus.FINISHED
    assert example.rows() == best_auctions(1_000)
    assert failed_tasks(example.logs) == []


@whole
def test_it_declines_once_and_is_restored_with_more_subtasks(
    cluster: SparkCluster, example: SubmittedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, params = example.job, {"events": "2000"}
    before = len(cluster.status()["completedapps"])
    submit(job, configure(job.pipeline, params, parallelism=2, max_records_per_epoch=1_000))

    completed = example.checkpoint()
    declined = example.triggered()
    monkeypatch.setenv("SLUICE_FAULT", "decline stage=category_ranking")
    with pytest.raises(AirflowFailException, match=r"'category_ranking' failed.*: fault injected"):
        example.run_stages()
    monkeypatch.delenv("SLUICE_FAULT")
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED
    fail_checkpoint(job, declined.checkpoint_id, reason, "declined")
    wider = configure(job.pipeline, params, parallelism=3, max_records_per_epoch=1_000)
    restored = restore(job, Latest(), configuration=wider)
    last = example.checkpoint()

    assert restored.checkpoint_id == completed.checkpoint_id
    assert [task.parallelism for task in last.tasks] == [3, 3]
    assert job.state().status is JobStatus.FINISHED
    assert example.rows() == best_auctions(2_000)
    assert len(cluster.status()["completedapps"]) - before == 3
    assert failed_tasks(example.logs) == []  # A decline is an answer.


@whole
def test_an_executor_that_is_lost_is_replaced_by_spark_within_the_application(
    cluster: SparkCluster, example: SubmittedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, before = example.job, len(cluster.status()["completedapps"])
    submit(job, configure(job.pipeline, {"events": "1000"}, parallelism=2))
    monkeypatch.setenv("SLUICE_FAULT", f"hang-worker stage={STAGE} seconds=10")
    with ThreadPoolExecutor(1) as pool:
        checkpoint = pool.submit(example.checkpoint)
        until(lambda: example.logs.exists() and has_begun_tasks(example.logs), "a task")
        cluster.alive[0].kill_executors()
        checkpoint.result(WAIT_S)

    assert job.state().status is JobStatus.FINISHED
    assert example.rows() == best_auctions(1_000)
    assert set(failed_tasks(example.logs)) <= {"ExecutorLostFailure", "FetchFailed", "Resubmitted"}
    assert len(executors_lost(example.logs)) == 1
    assert len(cluster.status()["completedapps"]) - before == 1
