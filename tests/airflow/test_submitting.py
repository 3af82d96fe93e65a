"""A stage as a Spark application of its own: real spark-submit, on a real job in a folder."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.ids import CheckpointId
from sluice.declaration.project import load_pipeline
from sluice.declaration.schedules import Orchestration, Submit
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from sluice_airflow.compat import AirflowException, AirflowFailException, AirflowSkipException
from sluice_airflow.dag_factory import dags_of
from sluice_airflow.dags import build_each
from sluice_airflow.submitting import SubmitOperator
from tests.airflow.acts import a_context

pytestmark = pytest.mark.filterwarnings("ignore")
CAUSE = "airflow:auctions/run-1"
SUBMIT = Submit(connection="spark_here", conf={"spark.ui.enabled": "false"})


@pytest.fixture(name="job")
def _job(root: str, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_HERE", "spark://local%5B2%5D")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    job = open_job(load_pipeline("auctions"), StoreLocation(root=root))
    submit(job, configure(job.pipeline, {"events": "2000"}, parallelism=1))
    assert isinstance(trigger(job, cause=CAUSE), Triggered)
    return job


def an_operator(job: Job, stage: str) -> SubmitOperator:
    return SubmitOperator(task_id="snapshot", pipeline=job.pipeline, stage=stage, submit=SUBMIT)


def test_a_failure_says_why_and_a_cleared_task_is_another_attempt(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, chained = job.pipeline.stages
    context = {"dag_id": "auctions", "run_id": "run-1"}

    monkeypatch.setenv("SLUICE_FAULT", f"fail-worker stage={stage} checkpoint=1")
    with pytest.raises(AirflowFailException, match="RuntimeError: fault injected"):
        an_operator(job, stage).execute(a_context(**context))
    monkeypatch.delenv("SLUICE_FAULT")
    an_operator(job, stage).execute(a_context(**context, try_number=2))
    monkeypatch.setenv("PATH", "")  # From here on nothing can be submitted.
    an_operator(job, stage).execute(a_context(**context, try_number=3))  # Its worker was lost.
    an_operator(job, chained).execute(a_context(**context))  # It has run behind the first.

    assert job.state().pending[0].attempt_of(stage) == 2
    plan = job.plan(CheckpointId(1))
    assert plan is not None
    assert (stage, 2) in job.answers.observe(plan.checkpoint_id, plan.token).answered


def test_an_application_that_left_no_cause_is_tried_again(job: Job) -> None:
    """Its driver was lost, or never began."""
    stage, nowhere = next(iter(job.pipeline.stages)), replace(SUBMIT, application="/nowhere.py")
    operator = SubmitOperator(
        task_id="snapshot", pipeline=job.pipeline, stage=stage, submit=nowhere
    )

    with pytest.raises(AirflowException, match="Cannot execute") as raised:
        operator.execute(a_context(dag_id="auctions", run_id="run-1"))

    assert not isinstance(raised.value, AirflowFailException)


IMPORTS = """
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.core.failures import CheckpointFailureReason
from sluice.declaration.project import load_pipeline
from sluice.job.job import open_job
from sluice.spark.application.run_stage import main
from sluice.store.open import StoreLocation
"""
ABORTED = """
fail_checkpoint(job, 1, CheckpointFailureReason.TASK_FAILURE, "declined")
raise SystemExit(1)
"""
COMPLETED = """
main("auctions", 1, "bid_statistics", 1, root=job.store.root)
finalize(job, 1)
commit(job, 1)
"""


def an_application(folder: Path, job: Job, ends: str) -> SubmitOperator:
    """One whose checkpoint *ends* before ``spark-submit`` does, as whoever waits for the acks reads
    them, or of a failure, sooner.
    """
    script = folder / "application.py"
    opened = f"job = open_job(load_pipeline('auctions'), StoreLocation(root={job.store.root!r}))"
    script.write_text(f"{IMPORTS}{opened}{ends}")
    stage, submitted = next(iter(job.pipeline.stages)), replace(SUBMIT, application=str(script))
    return SubmitOperator(task_id="snapshot", pipeline=job.pipeline, stage=stage, submit=submitted)


def test_an_application_whose_checkpoint_was_aborted_meanwhile_is_not_tried_again(
    job: Job, tmp_path: Path
) -> None:
    operator = an_application(tmp_path, job, ABORTED)

    with pytest.raises(AirflowSkipException, match="its checkpoint has ended"):
        operator.execute(a_context(dag_id="auctions", run_id="run-1"))


def test_an_application_whose_checkpoint_was_completed_meanwhile_succeeds(
    job: Job, tmp_path: Path
) -> None:
    done = an_application(tmp_path, job, COMPLETED).execute(
        a_context(dag_id="auctions", run_id="run-1")
    )

    assert done["checkpoint_id"] == 1
    assert not job.state().pending


def test_a_provider_that_is_missing_is_named_with_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = load_pipeline("auctions")
    monkeypatch.setattr(pipeline, "orchestration", Orchestration(submit=SUBMIT))
    monkeypatch.setitem(sys.modules, "airflow.providers.apache.spark", None)

    dags, problems = build_each({"auctions": pipeline})

    assert dags == {}
    assert problems == {
        "pipeline auctions": "orchestration with submit= needs the library "
        "airflow.providers.apache.spark, which is not installed; run: pip install 'sluice[submit]'"
    }


def test_a_pipeline_that_submits_retries_its_stages() -> None:
    pipeline = load_pipeline("auctions")
    before, pipeline.orchestration = pipeline.orchestration, Orchestration(submit=SUBMIT)
    try:
        dag = dags_of(pipeline)[0]
    finally:
        pipeline.orchestration = before

    snapshots = [task for task in dag.tasks if task.task_id.endswith(".snapshot")]
    assert {type(task) for task in snapshots} == {SubmitOperator}
    assert {task.retries for task in snapshots} == {1}
