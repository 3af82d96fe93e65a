"""The submit task: one stage of a checkpoint as a Spark application of its own (see ``Submit``).

The application's name has pipeline, checkpoint, stage and attempt, for people.  Its acks count by
the attempt in its arguments, so two applications are harmless.  When a worker was lost, the retry
of its task reads the acks first, and then asks the master for the application (Airflow's
``ResumableJobMixin``: standalone, YARN and Kubernetes in cluster mode).  Only if neither exists, a
new attempt begins, and the one before it is fenced.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import (  # noqa: TID253 - on demand
    SparkSubmitOperator,
)

import sluice
from sluice.core.pending import PendingCheckpoint
from sluice.declaration.project import loaded_package
from sluice.declaration.schedules import Submit
from sluice.errors import StageFailed
from sluice_airflow.settings import Settings
from sluice_airflow.snapshot import StageOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.job.job import Job

log = logging.getLogger(__name__)

APPLICATION = Path(sluice.__file__).parent / "spark" / "application" / "run_stage.py"


class SubmitOperator(StageOperator, SparkSubmitOperator):  # type: ignore[misc]
    """Submits the stage, and succeeds when it has ended and all subtasks have acknowledged."""

    def __init__(self, *, submit: Submit, **kwargs: Any) -> None:  # noqa: ANN401 - Airflow's
        super().__init__(
            application=str(APPLICATION),
            conn_id=submit.connection,
            conf=dict(submit.conf),
            driver_memory=submit.driver_memory,
            executor_memory=submit.executor_memory,
            executor_cores=submit.executor_cores,
            num_executors=submit.num_executors,
            **kwargs,
        )

    def run(self, job: Job, pending: PendingCheckpoint, attempt: int, context: Context) -> float:
        if not self.missing(job, pending, attempt):
            log.info("acknowledged already: nothing to submit")
            return 0.0
        location = Settings.from_environment().location
        package = loaded_package()
        self.name = f"sluice-{self.pipeline.uid}-{pending.checkpoint_id}-{self.stage}-{attempt}"
        self.application_args = [
            self.pipeline.uid, str(pending.checkpoint_id), self.stage, str(attempt),
            "--root", location.root,
            *(["--pipelines", package.said] if package is not None else []),
            *(["--endpoint-url", location.endpoint_url] if location.endpoint_url else []),
        ]  # fmt: skip
        log.info("submitting name=%s", self.name)
        started = time.monotonic()
        SparkSubmitOperator.execute(self, context)
        missing = self.missing(job, pending, attempt)
        if missing:
            raise StageFailed(f"{self.name} ended without an ack of {', '.join(missing)}")
        return time.monotonic() - started

    def goes_on(self, context: Context) -> bool:
        store = context.get("task_state_store")
        return store is not None and store.get(self.external_id_key) is not None
