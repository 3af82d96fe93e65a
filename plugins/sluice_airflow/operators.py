"""The tasks of one checkpoint: each opens the job, finds its checkpoint, and lets the runner act.

trigger -> per stage: snapshot | await_acks -> finalize -> commit
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from airflow.triggers.base import StartTriggerArgs

from sluice.core.pending import PendingCheckpoint
from sluice.core.properties import CheckpointType, JobStatus
from sluice.errors import FencedError, NotYetAcknowledged
from sluice.faults import FAULT_VARIABLE, Fault, fault_from_environment, parse_fault
from sluice.pipeline import Pipeline
from sluice_airflow.checking import check_declaration
from sluice_airflow.failures import airflow_failures
from sluice_airflow.ownership import cause_of, checkpoint_of, pending_of
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.runner.job import Job
    from sluice.runner.trigger import NotTriggered, Triggered

log = logging.getLogger(__name__)

QUEUE_POLL_S = 0.5  # How often a queued request is looked after, and an unsealed input.
TRIGGER_GRACE = timedelta(minutes=1)  # The trigger knows the deadline; this is for its death.
RESCHEDULE_AFTER = timedelta(milliseconds=100)

T = TypeVar("T")
Summary: TypeAlias = dict[str, int | str | None]


class CheckpointOperator(BaseOperator):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Part of a run that owns one checkpoint of *pipeline*."""

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:  # noqa: ANN401 - Airflow's
        super().__init__(**kwargs)
        self.pipeline = pipeline

    def open_job(self) -> Job:
        from sluice.runner.job import open_job

        return open_job(self.pipeline, Settings.from_environment().location)


class TriggerOperator(CheckpointOperator):
    """Start checkpoint n.  Submits the job when nobody did; a dropped request skips the run."""

    def execute(self, context: Context) -> Summary:
        with airflow_failures():
            job, cause = self.open_job(), cause_of(context["ti"])
            state = job.state()
            if state.status is JobStatus.CREATED:
                self._submit(job)
            mine = pending_of(state, cause)
            if mine is not None:  # An earlier try journaled it, and died before it could say so.
                log.info("checkpoint adopted checkpoint_id=%d", mine.checkpoint_id)
                return {"checkpoint_id": mine.checkpoint_id, "records": mine.records}
            outcome = self.request(job, cause, context)
        from sluice.runner.trigger import NotTriggered

        if isinstance(outcome, NotTriggered):
            raise AirflowSkipException(explain(outcome))
        plan = outcome.plan
        return {
            "checkpoint_id": plan.checkpoint_id,
            "records": plan.records,
            "parent": plan.parent,
            "type": plan.type.value,
        }

    def request(self, job: Job, cause: str, context: Context) -> Triggered | NotTriggered:
        """A person's run is not periodic: no pause holds it back, and it may be empty."""
        is_periodic = context["dag_run"].run_type == "scheduled"
        return self.wait_for(job, cause=cause, is_periodic=is_periodic)

    def wait_for(self, job: Job, *, cause: str, **request: Any) -> Triggered | NotTriggered:  # noqa: ANN401 - trigger's
        """Ask until the request decider lets the request start, or drops it.

        A retry finds what its first try had queued; a run that was rejected, and that a person
        cleared, asks anew.
        """
        from sluice.runner.trigger import Queued, trigger

        was_rejected = job.state().rejection(cause) is not None
        request_id = f"{cause} {job.clock()}" if was_rejected else cause
        while True:
            outcome = trigger(job, cause=cause, request_id=request_id, **request)
            if not isinstance(outcome, Queued):
                return outcome
            log.info("checkpoint queued: %s", outcome.message)
            time.sleep(QUEUE_POLL_S)

    def _submit(self, job: Job) -> None:
        from sluice.runner.job import verify_store
        from sluice.runner.submission import configure, submit

        configuration = configure(self.pipeline, {})
        verify_store(job)
        check_declaration(self.pipeline, configuration.params)
        submit(job, configuration)


class TriggerSavepointOperator(TriggerOperator):
    """Start a savepoint, after whatever checkpoint is pending; ``stop`` ends the job with it."""

    def request(self, job: Job, cause: str, context: Context) -> Triggered | NotTriggered:
        from sluice.runner.trigger import NotTriggered

        params = context["params"]
        name = params["name"] or default_savepoint_name(context["run_id"])
        outcome = self.wait_for(
            job,
            type=SAVEPOINT_TYPES[params["stop"]],
            cause=cause,
            savepoint_name=name,
            is_periodic=False,
        )
        if isinstance(outcome, NotTriggered):
            raise AirflowFailException(f"savepoint {name!r}: {explain(outcome)}")
        return outcome


class SnapshotOperator(CheckpointOperator):
    """Run the Spark job of one stage.  Its acks count, in the bucket; its exit code does not."""

    def __init__(self, *, stage: str, **kwargs: Any) -> None:  # noqa: ANN401 - Airflow's
        super().__init__(**kwargs)
        self.stage = stage

    def execute(self, context: Context) -> None:
        with airflow_failures():
            job, cause = self.open_job(), cause_of(context["ti"])
            pending = pending_of(job.state(), cause)
            if pending is None:
                raise FencedError(f"no checkpoint of {cause} is pending any more")
            attempt = self._attempt(job, pending, is_retry=context["ti"].try_number > 1)
            self._strike(fault_of(context), pending.checkpoint_id)

            from sluice.spark.session import connect
            from sluice.spark.stage import run_stage

            spark = connect(Settings.from_environment().spark_remote, self.pipeline.uid)
            acknowledged = once_sealed(
                lambda: run_stage(job, spark, pending.checkpoint_id, self.stage, attempt=attempt)
            )
            acknowledged.compact()  # The checkpoint goes on meanwhile: it waits for the acks alone.

    def _attempt(self, job: Job, pending: PendingCheckpoint, *, is_retry: bool) -> int:
        """The execution attempt to run as; a retry fences all earlier ones in the journal first."""
        if not is_retry:
            return pending.attempt_of(self.stage)
        from sluice.runner.recovery import start_attempt

        return start_attempt(job, pending.checkpoint_id, self.stage)

    def _strike(self, fault: Fault | None, checkpoint_id: int) -> None:
        if fault is None:
            return
        if fault.strikes("kill-task", self.stage, checkpoint_id):
            log.warning("fault injected fault=%s checkpoint_id=%d", fault, checkpoint_id)
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.strikes("kill-worker", self.stage, checkpoint_id):
            os.environ[FAULT_VARIABLE] = str(fault)  # run_stage hands it to the subtasks.


class AwaitAcksSensor(BaseOperator):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Succeeds once every subtask of the stage acknowledged.  Lives in the triggerer only."""

    start_from_trigger = True

    def __init__(self, *, pipeline: Pipeline, stage: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self._kwargs: dict[str, Any] = {"pipeline": pipeline.uid, "stage": stage}
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls="sluice_airflow.triggers.AwaitAcksTrigger",
            trigger_kwargs=self._kwargs,
            next_method="execute",
            timeout=pipeline.checkpointing.timeout + TRIGGER_GRACE,
        )

    def execute(self, context: Context) -> None:
        """Only ``dag.test()`` comes here, task after task in one process: look once, come back.

        The scheduler itself starts the trigger, and the trigger ends the task.
        """
        from sluice_airflow.stage_watch import Acknowledged, Lost, StageWatch, Waiting

        with airflow_failures():
            location, cause = Settings.from_environment().location, cause_of(context["ti"])
            sight = StageWatch(location, **self._kwargs, cause=cause).look()
        match sight:
            case Waiting(progress):
                log.info("%s", progress)
                raise AirflowRescheduleException(datetime.now(UTC) + RESCHEDULE_AFTER)
            case Lost(reason):
                raise AirflowFailException(reason)
            case Acknowledged(progress):
                log.info("acknowledged: %s", progress)


class FinalizeOperator(CheckpointOperator):
    """Make the checkpoint true.  Repeating it finds that it is."""

    def execute(self, context: Context) -> Summary:
        from sluice.runner.completion import finalize

        with airflow_failures():
            job = self.open_job()
            checkpoint_id = checkpoint_of(job.state(), cause_of(context["ti"]))
            completed = once_sealed(lambda: finalize(job, checkpoint_id))
        return {
            "checkpoint_id": completed.checkpoint_id,
            "records": completed.records,
            "bytes": completed.checkpointed_bytes,
            "duration_ms": completed.completed_at_ms - completed.triggered_at_ms,
        }


class CommitOperator(CheckpointOperator):
    """Have the sinks publish; then the completed checkpoint is an asset event for other DAGs."""

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:  # noqa: ANN401 - Airflow's
        self.asset = checkpoints_asset(pipeline.uid)
        super().__init__(pipeline=pipeline, outlets=[self.asset], **kwargs)

    def execute(self, context: Context) -> Summary:
        from sluice.runner.completion import commit, finalize

        with airflow_failures():
            job = self.open_job()
            checkpoint_id = checkpoint_of(job.state(), cause_of(context["ti"]))
            completed = finalize(job, checkpoint_id)  # Which has happened: this tells of it.
            commit(job, checkpoint_id)
        summary: Summary = {
            "checkpoint_id": completed.checkpoint_id,
            "records": completed.records,
            "bytes": completed.checkpointed_bytes,
        }
        context["outlet_events"][self.asset].extra = dict(summary)
        return summary


SAVEPOINT_TYPES = {
    "none": CheckpointType.SAVEPOINT,
    "suspend": CheckpointType.SAVEPOINT_SUSPEND,
    "drain": CheckpointType.SAVEPOINT_TERMINATE,
}


def once_sealed(act: Callable[[], T]) -> T:
    """Repeat *act* while what it reads or continues still runs, as concurrent checkpoints do.

    It ends: a checkpoint that stays pending is aborted by its timeout, which *act* then meets.
    """
    while True:
        try:
            return act()
        except NotYetAcknowledged as error:
            log.info("waiting: %s", error)
            time.sleep(QUEUE_POLL_S)


def checkpoints_asset(pipeline: str) -> Asset:
    return Asset(f"sluice://{pipeline}/checkpoints")


def default_savepoint_name(run_id: str) -> str:
    """The run's id in the letters that a key may have."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", run_id)[:128]


def explain(refusal: NotTriggered) -> str:
    if refusal.reason is None:
        return refusal.message
    return f"{refusal.reason.value}: {refusal.message}"


def fault_of(context: Context) -> Fault | None:
    """What the run's form asks for, else what the environment does."""
    return parse_fault(context["params"].get("fault") or "") or fault_from_environment()
