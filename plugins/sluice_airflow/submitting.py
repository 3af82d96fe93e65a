"""The submit task: one stage of a checkpoint as a Spark application of its own (see ``Submit``).

Its acks count by the attempt in its arguments, so two applications are harmless.  When a worker was
lost, the retry of its task reads the acks first, and then asks the cluster for the application by
its name, which needs no id that the lost worker would have had to keep.  Only if neither exists, a
new attempt begins, and the one before it is fenced.  A stage that failed has left its root cause in
the bucket: it is not tried again.
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
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.declaration.project import loaded_package
from sluice.declaration.schedules import Submit
from sluice.errors import FencedError, StageFailed
from sluice.job.applications import ApplicationName, short_life
from sluice.protocol.keys import snapshot_task
from sluice_airflow.applications import Application, SparkCluster, cluster_of
from sluice_airflow.compat import AirflowException
from sluice_airflow.settings import Settings
from sluice_airflow.stage import StageOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.job.job import Job

log = logging.getLogger(__name__)

APPLICATION = Path(sluice.__file__).parent / "spark" / "application" / "run_stage.py"
POLL_S = 2.0  # Between two requests for an application that another process submitted.


class SubmitOperator(StageOperator, SparkSubmitOperator):  # type: ignore[misc]
    """Submits the stage, and succeeds when it has ended and all subtasks have acknowledged."""

    def __init__(self, *, submit: Submit, **kwargs: Any) -> None:  # noqa: ANN401 - Airflow's
        super().__init__(
            application=submit.application or str(APPLICATION),
            conn_id=submit.connection,
            conf=dict(submit.conf),
            driver_memory=submit.driver_memory,
            executor_memory=submit.executor_memory,
            executor_cores=submit.executor_cores,
            num_executors=submit.num_executors,
            durable=False,  # Airflow's own way back needs an id, and YARN's or Kubernetes' API.
            **kwargs,
        )
        self._submit = submit

    def run(self, job: Job, pending: PendingCheckpoint, attempt: int, context: Context) -> float:
        if self.has_answered(job, pending, attempt):
            log.info("acknowledged already: nothing to submit")
            return 0.0
        name = self._named(job, pending, attempt)
        cluster = cluster_of(self._submit)
        self.name = str(name)
        started = time.monotonic()
        if context["ti"].try_number > 1 and _found(cluster, name) is not None:
            log.info("found again name=%s", name)
            self._wait_for(job, pending, name, cluster)
        else:
            self.conf = {**self._submit.conf, **cluster.properties(name)}
            self.application_args = self._arguments(name)
            log.info("submitting name=%s", name)
            try:
                SparkSubmitOperator.execute(self, context)
            except AirflowException:  # It knows no more than an exit code.
                _require_lost(job, name)
                raise
            if not name.is_awaited(job, job.state()):
                return time.monotonic() - started  # Completed already, and its acks are deleted.
        if not self.has_answered(job, pending, attempt):
            _require_lost(job, name)
            raise StageFailed(f"{name} ended, and its stage has not acknowledged")
        return time.monotonic() - started

    def goes_on(self, job: Job, pending: PendingCheckpoint, attempt: int) -> bool:
        name = self._named(job, pending, attempt)
        return _found(cluster_of(self._submit), name) is not None

    def on_kill(self) -> None:
        """End ``spark-submit``, and what it, or the try before, has submitted."""
        try:
            super().on_kill()
        finally:
            name = ApplicationName.parse(self.name)
            if name is not None:
                _end(self._submit, name)

    def _named(self, job: Job, pending: PendingCheckpoint, attempt: int) -> ApplicationName:
        return ApplicationName(
            pipeline=self.pipeline.uid,
            checkpoint_id=pending.checkpoint_id,
            stage=self.stage,
            attempt=attempt,
            life=short_life(job, job.state().life),
        )

    def _arguments(self, name: ApplicationName) -> list[str]:
        location = Settings.from_environment().location
        package = loaded_package()
        return [
            name.pipeline, str(name.checkpoint_id), name.stage, str(name.attempt),
            "--root", location.root,
            *(["--pipelines", package.setting] if package is not None else []),
            *(["--endpoint-url", location.endpoint_url] if location.endpoint_url else []),
        ]  # fmt: skip

    def _wait_for(
        self, job: Job, pending: PendingCheckpoint, name: ApplicationName, cluster: SparkCluster
    ) -> None:
        """Return when the stage has acknowledged, or its application has ended.

        Raises:
            FencedError: no attempt awaits it any more.
        """
        while not self.has_answered(job, pending, name.attempt):
            if not name.is_awaited(job, job.state()):
                raise FencedError(f"{name} was overtaken, or its checkpoint has ended")
            if _found(cluster, name, if_unknown=Application("", str(name))) is None:
                return
            time.sleep(POLL_S)


def _require_lost(job: Job, name: ApplicationName) -> None:
    """Return if the application ended without a word: it was lost, and may be submitted again.

    Raises:
        StageFailed: its driver has left the root cause in the bucket; the stage would fail again.
        FencedError: no attempt awaits it any more: whoever read of the failure has aborted it.
    """
    _, failures = job.answers.problems(CheckpointId(name.checkpoint_id))
    for failure in failures:
        if (failure.task, failure.attempt) == (snapshot_task(name.stage), name.attempt):
            raise StageFailed(failure.message, stage=name.stage)
    if not name.is_awaited(job, job.state()):  # The abort has deleted what the driver left.
        raise FencedError(f"{name} was overtaken, or its checkpoint has ended")


def _end(submit: Submit, name: ApplicationName) -> None:
    """Kill the application of that name if the cluster lists it; an error is logged."""
    try:
        cluster = cluster_of(submit)
        found = _found(cluster, name)
        if found is not None:
            cluster.kill(found)
    except Exception:  # It holds cores until the watchdog finds it.
        log.warning("the application may still run name=%s", name, exc_info=True)


def _found(
    cluster: SparkCluster, name: ApplicationName, *, if_unknown: Application | None = None
) -> Application | None:
    """The application of that name, if it has not ended; *if_unknown* of a cluster that does not
    answer, which is logged.
    """
    try:
        found = cluster.applications({name.life})
    except Exception:  # A new attempt is right, too; and an acknowledgement ends the wait.
        log.warning("the cluster does not say what runs name=%s", name, exc_info=True)
        return if_unknown
    return next((application for application in found if application.name == str(name)), None)
