"""The tasks of one checkpoint: each opens the job, finds its checkpoint, and lets the runner act.

trigger -> per stage: snapshot | await_acks -> finalize -> commit
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from airflow.triggers.base import StartTriggerArgs

from sluice.core.messages import AttemptStarted
from sluice.core.pending import PendingCheckpoint
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import CoordinatorState
from sluice.errors import FencedError
from sluice.faults import FAULT_VARIABLE, Fault, fault_from_environment, parse_fault
from sluice.pipeline import Pipeline
from sluice_airflow.failures import airflow_failures
from sluice_airflow.ownership import cause_of, checkpoint_of, pending_of
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.runner.job import Job
    from sluice.runner.trigger import NotTriggered, TriggerOutcome

log = logging.getLogger(__name__)

PENDING_POLL_S = 0.5  # How often a savepoint looks whether the pending checkpoint has ended.
TRIGGER_GRACE = timedelta(minutes=1)  # The trigger knows the deadline; this is for its death.
RESCHEDULE_AFTER = timedelta(milliseconds=100)

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

    def request(self, job: Job, cause: str, context: Context) -> TriggerOutcome:
        """A person's run is not periodic: no pause holds it back, and it may be empty."""
        from sluice.runner.trigger import trigger

        is_periodic = context["dag_run"].run_type == "scheduled"
        return trigger(job, cause=cause, is_periodic=is_periodic)

    def _submit(self, job: Job) -> None:
        from sluice.runner.job import verify_store
        from sluice.runner.submission import configure, submit

        verify_store(job)
        submit(job, configure(self.pipeline, {}))


class TriggerSavepointOperator(TriggerOperator):
    """Start a savepoint, after whatever checkpoint is pending; ``stop`` ends the job with it."""

    def request(self, job: Job, cause: str, context: Context) -> TriggerOutcome:
        from sluice.runner.trigger import NotTriggered, trigger

        params = context["params"]
        name = params["name"] or default_savepoint_name(context["run_id"])
        give_up = time.monotonic() + self.pipeline.checkpointing.timeout.total_seconds()
        while True:
            outcome = trigger(
                job,
                type=SAVEPOINT_TYPES[params["stop"]],
                cause=cause,
                savepoint_name=name,
                is_periodic=False,
            )
            if not isinstance(outcome, NotTriggered):
                return outcome
            is_busy = outcome.reason is CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
            if not is_busy or time.monotonic() >= give_up:
                raise AirflowFailException(f"savepoint {name!r}: {explain(outcome)}")
            time.sleep(PENDING_POLL_S)


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
            run_stage(job, spark, pending.checkpoint_id, self.stage, attempt=attempt)

    def _attempt(self, job: Job, pending: PendingCheckpoint, *, is_retry: bool) -> int:
        """The execution attempt to run as; a retry fences all earlier ones in the journal first."""
        if not is_retry:
            return pending.attempt_of(self.stage)

        def decide(state: CoordinatorState) -> AttemptStarted:
            current = state.pending_checkpoint(pending.checkpoint_id) or pending
            return AttemptStarted(
                generation=state.generation,
                checkpoint_id=pending.checkpoint_id,
                stage=self.stage,
                attempt=current.attempt_of(self.stage) + 1,
            )

        after = job.journal.append(decide).state.pending_checkpoint(pending.checkpoint_id)
        if after is None:
            raise FencedError(f"checkpoint {pending.checkpoint_id} ended before its retry began")
        return after.attempt_of(self.stage)

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
            completed = finalize(job, checkpoint_id)
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
        from sluice.runner.completion import commit

        with airflow_failures():
            job = self.open_job()
            checkpoint_id = checkpoint_of(job.state(), cause_of(context["ti"]))
            state = commit(job, checkpoint_id)
        completed = state.completed_checkpoint(checkpoint_id)
        assert completed is not None, "a committed checkpoint is retained until the next one"
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
