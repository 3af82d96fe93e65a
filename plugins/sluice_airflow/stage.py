"""The snapshot task: one stage of a checkpoint in the pipeline's warm Spark Connect session."""

from __future__ import annotations

import importlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperatorLink

from sluice.core.failures import CheckpointFailureReason, page_of
from sluice.core.pending import PendingCheckpoint
from sluice.declaration.operations import needs_own_session
from sluice.errors import FencedError
from sluice.exchange.faults import FAULT_VARIABLE, WORKER_FAULTS
from sluice.protocol.keys import snapshot_task
from sluice.spark.session import ask_spark
from sluice.store.redaction import redacted
from sluice_airflow.notes import Needed
from sluice_airflow.operators import CheckpointOperator, TaskSummary, fault_of, once_sealed
from sluice_airflow.runs import completed_of, pending_of, run_cause
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from sluice.declaration.pipeline import Pipeline
    from sluice.job.job import Job

log = logging.getLogger(__name__)


def session_name(settings: Settings, pipeline: Pipeline, stage: str) -> str:
    """The name of the session that *stage* runs in: the pipeline's, or its own where its function
    may make temporary views or their like, as stages run beside each other, each in a process.
    """
    is_own = needs_own_session(pipeline.stages[stage].operation)
    return settings.session(pipeline.uid, stage if is_own else "")


class SparkLink(BaseOperatorLink):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """The link to Spark's UI, with its jobs and its executors' logs; Airflow reads and stores it
    when the task ends.
    """

    name = "Spark"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:  # noqa: ANN401, ARG002 - Airflow's
        ui = Settings.from_environment().spark_ui
        return f"{ui}/jobs/" if ui else ""


class StageOperator(CheckpointOperator):
    """Has the subtasks of one stage take their snapshots.

    It succeeds by their acks in the bucket, and not by the exit code of the Spark job.
    """

    operator_extra_links = (SparkLink(),)

    def __init__(self, *, stage: str, **kwargs: Any) -> None:  # noqa: ANN401 - Airflow's
        super().__init__(**kwargs)
        self.stage = stage

    def act(self, job: Job, context: Context) -> TaskSummary:
        from sluice.job.answers import plan_of

        cause = run_cause(context["ti"])
        state = job.state()
        pending = pending_of(state, cause)
        if pending is None:
            completed = completed_of(state, cause)
            if completed is None:
                raise FencedError(f"no checkpoint of {cause} is pending any more")
            log.info("completed already, with this stage chained to another: nothing runs again")
            return {"checkpoint_id": completed.checkpoint_id, "stage_ms": 0}
        takes_part = any(task.uid == self.stage for task in pending.tasks)
        if not takes_part and self.stage in plan_of(job, pending.checkpoint_id).finished:
            log.info("finished: its sources ended at an earlier checkpoint, so nothing runs")
            return {"checkpoint_id": pending.checkpoint_id, "stage_ms": 0}
        attempt = pending.attempt_of(self.stage)
        is_retried = context["ti"].try_number > 1
        # It may have run chained to another stage, in the Spark job of that one.  Its acks tell, so
        # neither a session nor an application is needed to find out.
        may_be_chained = bool(self.pipeline.upstream_of(self.stage))
        if (is_retried or may_be_chained) and self.has_answered(job, pending, attempt):
            log.info("acknowledged already: nothing runs again")
            return {"checkpoint_id": pending.checkpoint_id, "attempt": attempt, "stage_ms": 0}
        if is_retried and not self.goes_on(job, pending, attempt):
            from sluice.coordinator.failure import start_attempt

            attempt = start_attempt(job, pending.checkpoint_id, self.stage)  # Fences the earlier.
        fault = fault_of(context)
        if fault is not None and fault.kind in WORKER_FAULTS:
            os.environ[FAULT_VARIABLE] = str(fault)  # For the subtasks, also of chained stages.
        stage_s = self.run(job, pending, attempt, context)
        return {
            "checkpoint_id": pending.checkpoint_id,
            "attempt": attempt,
            "stage_ms": round(stage_s * 1000),
        }

    def failure_note(self, error: Exception) -> str:
        return str(error) if isinstance(error, FencedError) else f"stage {self.stage}: {error}"

    def attempt_of(self, pending: PendingCheckpoint, context: Context) -> tuple[str, int]:  # noqa: ARG002
        return snapshot_task(self.stage), pending.attempt_of(self.stage)

    def run(self, job: Job, pending: PendingCheckpoint, attempt: int, context: Context) -> float:
        """Run until every subtask has acknowledged as *attempt*; return the seconds of Spark."""
        raise NotImplementedError

    def goes_on(
        self,
        job: Job,  # noqa: ARG002 - for SubmitOperator
        pending: PendingCheckpoint,  # noqa: ARG002
        attempt: int,  # noqa: ARG002
    ) -> bool:
        """Whether the attempt of the previous try still runs, and a retry can continue it."""
        return False

    def has_answered(self, job: Job, pending: PendingCheckpoint, attempt: int) -> bool:
        """Whether the stage's subtasks have acknowledged as *attempt*: they do so at once.  Then it
        must not run again: stages behind it may have read its output, and would have to, too, which
        Airflow does not know.
        """
        answers = job.answers.observe(pending.checkpoint_id, pending.token)
        return (self.stage, attempt) in answers.answered


class SnapshotOperator(StageOperator):
    """Runs the stage in the session, and interrupts it on Spark when the task ends first."""

    def run(
        self,
        job: Job,
        pending: PendingCheckpoint,
        attempt: int,
        context: Context,  # noqa: ARG002 - for SubmitOperator
    ) -> float:
        from sluice.spark.session import interrupted_with, named_session, stage_tag
        from sluice.spark.stage import run_stage

        settings = Settings.from_environment()
        if settings.spark_ui:
            log.info("spark ui: %s", settings.spark_ui)
        tag = stage_tag(self.pipeline.uid, pending.checkpoint_id, self.stage)
        session = session_name(settings, self.pipeline, self.stage)
        with named_session(settings.spark_remote, session) as spark:
            started = time.monotonic()
            # Also for a timeout or SIGTERM: an abandoned stage must not keep the cores.
            with interrupted_with(spark, tag):
                acknowledged = once_sealed(
                    lambda: run_stage(
                        job, spark, pending.checkpoint_id, self.stage, attempt=attempt
                    )
                )
            stage_s = time.monotonic() - started
            acknowledged.compact()  # The checkpoint goes on meanwhile, as it waits for acks only.
        return stage_s

    def needed(self, job: Job) -> tuple[Needed, ...]:
        remote = Settings.from_environment().spark_remote
        spark = Needed(
            name=f"Spark at {redacted(remote.partition('/;')[0])}",
            ask=lambda: ask_spark(remote),
            page=page_of(CheckpointFailureReason.TASK_FAILURE),
            first_s=0.0,  # Asking costs no request, and without Spark nothing can be done.
        )
        return (spark, *super().needed(job))


class CancelStagesOperator(CheckpointOperator):
    """Interrupts, or ends, the stages of an aborted checkpoint that still run on Spark.

    The task that started a stage may have been killed before it could do so.  This only frees the
    cores: the stages are fenced, and their acks do not count.
    """

    def act(self, job: Job, context: Context) -> list[str]:
        from sluice.spark.session import named_session, stage_tag

        aborted = [f for f in job.state().failed if f.cause == run_cause(context["ti"])]
        if not aborted:
            return []
        submit = self.pipeline.orchestration.submit
        if submit is not None:
            from sluice_airflow.applications import reap

            return reap(job, submit)
        settings, dropped = Settings.from_environment(), list[str]()
        stages_in: dict[str, list[str]] = {}
        for stage in self.pipeline.stages:
            stages_in.setdefault(session_name(settings, self.pipeline, stage), []).append(stage)
        for session, stages in stages_in.items():
            with named_session(settings.spark_remote, session) as spark:
                for checkpoint in aborted:
                    for stage in stages:
                        tag = stage_tag(self.pipeline.uid, checkpoint.checkpoint_id, stage)
                        dropped += spark.interruptTag(tag)
        log.info("stages cancelled on Spark operations=%d", len(dropped))
        return dropped


# What parsing a DAG file imports: Airflow's DAG processor forks for each file, too.
_DECLARATION_MODULES = (
    "sluice.declaration.sql_reader",
    "sluice.sinks",
    "sluice.sources",
    "sluice_airflow.dag_factory",
    "sluice_airflow.dags",
    "sluice_airflow.submitting",
    "sluice_airflow.watchdog",
)

# The imports of a checkpoint's tasks, of a stage's before its session exists, of the sink that most
# pipelines have, and of Airflow's own task runner after the fork.  The stage imports Polars, too:
# that is safe before a fork as long as nothing uses it there, as its thread pool starts with its
# first use.
_TASK_MODULES = (
    "pyspark.sql",
    "pyspark.sql.functions",
    "pyspark.sql.connect.session",
    "pyspark.sql.connect.functions",
    "pyspark.sql.connect.dataframe",
    "pyspark.sql.connect.udf",
    "pyarrow.compute",
    "boto3",
    "sluice.connectors.files_table.table",
    "sluice.coordinator.completion",
    "sluice.coordinator.trigger",
    "sluice.spark.stage",
    "sluice.spark.session",
    "sluice.surface.monitoring",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
)


def preload(component: str) -> None:
    """Import in *component* of Airflow, ``scheduler`` or ``dag-processor``, once, what each process
    that it forks would import.

    LocalExecutor forks its workers from the scheduler and each task from a worker; the DAG
    processor forks for each file.  Only imports and parsing are safe: a gRPC channel or thread from
    before the fork would make the task hang.  A missing module is logged here, and fails the task
    that needs it.
    """
    begin = time.perf_counter()
    _import_all(_DECLARATION_MODULES)
    if component == "scheduler":
        from sluice.store.s3 import preload_descriptions

        _import_all(_TASK_MODULES)
        preload_descriptions()
    log.info("preload finished duration_ms=%d", (time.perf_counter() - begin) * 1_000)


def _import_all(names: Sequence[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            log.warning("preload skipped module=%s", name, exc_info=True)
