"""The tasks of one checkpoint: each finds it in the journal, and calls the coordinator.

trigger -> per stage: snapshot | await_acks -> finalize -> commit
"""

from __future__ import annotations

import logging
import os
import signal
import time
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout

from sluice.core.ids import CheckpointId
from sluice.core.pages import page_of
from sluice.core.reasons import CheckpointFailureReason
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, FencedError, NotYetAcknowledged, SluiceError
from sluice.subtask.faults import Fault, fault_from_environment, parse_fault
from sluice.views.units import duration, size
from sluice_airflow.assets import assets_of, events_of
from sluice_airflow.dag_switch import switch_off_if_ended
from sluice_airflow.documentation import TASKS
from sluice_airflow.job_stats import emit_stats, send_trace
from sluice_airflow.notes import note, note_silence
from sluice_airflow.ownership import cause_of, checkpoint_of, pending_of
from sluice_airflow.retry_policy import airflow_failures
from sluice_airflow.settings import DRILLS_VARIABLE, Settings
from sluice_airflow.silence import Needed, silence_said

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.core.completed import CompletedCheckpoint
    from sluice.job.job import Job

log = logging.getLogger(__name__)

QUEUE_POLL_S = 0.5  # The interval at which a queued request, or an unsealed input, is checked.

T = TypeVar("T")
Summary: TypeAlias = dict[str, int | str | None]


class CheckpointOperator(BaseOperator):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """A task of a run that owns one checkpoint of *pipeline*.

    ``act`` must be idempotent: it may be killed at any moment, and repeated.
    """

    def __init__(self, *, pipeline: Pipeline, task_id: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(task_id=task_id, **{"doc_md": TASKS.get(task_id)} | kwargs)
        self.pipeline = pipeline

    def execute(self, context: Context) -> Any:  # noqa: ANN401 - what is shown as its result
        with airflow_failures():
            try:
                if not self.upstream_task_ids:  # The first task speaks for its run.
                    require_no_forbidden_drill(context)
                job = self.open_job()
                with silence_said(partial(note_silence, context), self.needed(job)):
                    self._strike(job, context, is_after=False)
                    result = self.act(job, context)
                    self._strike(job, context, is_after=True)
            except AirflowException:  # The note was written where it was raised.
                raise
            except AirflowTaskTimeout:
                note(context, f"{self.task_id} took longer than {self.execution_timeout}")
                raise
            except Exception as error:  # The run fails or is skipped; its note says why.
                note(context, self.told(error))
                raise
            return result

    def told(self, error: Exception) -> str:
        """The note of a run whose task failed with *error*."""
        what = str(error) if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
        return f"{self.task_id} failed: {what}" if not isinstance(error, FencedError) else what

    @abstractmethod
    def act(self, job: Job, context: Context) -> Any:  # noqa: ANN401 - what is shown as its result
        ...

    def needed(self, job: Job) -> tuple[Needed, ...]:
        """What the task cannot do without, and says when it does not answer."""
        key = job.paths.plan(CheckpointId(1))  # Any that is small, whether it is there or not.
        ask = partial(job.store.get, key)
        page = page_of(CheckpointFailureReason.IO_EXCEPTION)
        return (Needed(name=f"the store {job.store.root}", ask=ask, page=page),)

    def open_job(self) -> Job:
        from sluice.job.job import open_job

        return open_job(self.pipeline, Settings.from_environment().location)

    def _strike(self, job: Job, context: Context, *, is_after: bool) -> None:
        fault, ti = fault_of(context), context["ti"]
        if fault is None:
            return
        pending = pending_of(job.state(), cause_of(ti))
        checkpoint_id = pending.checkpoint_id if pending is not None else None
        if not fault.strikes_task(
            ti.task_id, checkpoint_id, is_after=is_after, try_number=ti.try_number
        ):
            return
        log.warning("fault injected fault=%s checkpoint_id=%s", fault, checkpoint_id)
        match fault.kind:
            case "kill-task":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill-supervisor":
                os.kill(os.getppid(), signal.SIGKILL)
            case "hang":
                time.sleep(fault.seconds)
            case _:
                raise RuntimeError(f"fault injected: {fault}")


class FinalizeOperator(CheckpointOperator):
    """Completes the checkpoint.  A repetition finds it completed."""

    def act(self, job: Job, context: Context) -> Summary:
        from sluice.coordinator.completion import finalize

        checkpoint_id = checkpoint_of(job.state(), cause_of(context["ti"]))
        completed = once_sealed(lambda: finalize(job, checkpoint_id))
        note(context, f"{_told(completed)}; not committed yet")
        return {
            "checkpoint_id": completed.checkpoint_id,
            "records": completed.records,
            "bytes": completed.checkpointed_bytes,
            "duration_ms": completed.completed_at_ms - completed.triggered_at_ms,
        }


class CommitOperator(CheckpointOperator):
    """Commits the checkpoint at the sinks, and emits the asset events for other DAGs."""

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:  # noqa: ANN401 - Airflow's
        super().__init__(pipeline=pipeline, outlets=assets_of(pipeline), **kwargs)

    def act(self, job: Job, context: Context) -> Summary:
        from sluice.coordinator.completion import commit, finalize

        checkpoint_id = checkpoint_of(job.state(), cause_of(context["ti"]))
        completed = finalize(job, checkpoint_id)  # The commit itself is done.
        metadata = job.metadata(checkpoint_id)
        after = commit(job, checkpoint_id)
        switch_off_if_ended(context, self.pipeline, after.status)
        for asset, extra in events_of(self.pipeline, completed, metadata).items():
            context["outlet_events"][asset].extra = dict(extra)
        note(context, _told(completed))
        emit_stats(job)
        send_trace(job, checkpoint_id)
        return {
            "checkpoint_id": completed.checkpoint_id,
            "records": completed.records,
            "bytes": completed.checkpointed_bytes,
            "savepoint": completed.savepoint_name,
        }


def _told(completed: CompletedCheckpoint) -> str:
    """The run's note, such as "checkpoint 42 completed, 3.2 MB, 1.8 s, 10,000 records"."""
    what = f"checkpoint {completed.checkpoint_id}"
    if completed.savepoint_name is not None:
        what = f"savepoint {completed.savepoint_name} ({what})"
    seconds = (completed.completed_at_ms - completed.triggered_at_ms) / 1000
    return (
        f"{what} completed, {size(completed.checkpointed_bytes)}, {duration(seconds)}, "
        f"{completed.records:,} records"
    )


def once_sealed(act: Callable[[], T]) -> T:
    """Repeat *act* while its inputs or its parent checkpoint are not sealed yet.

    It ends at the latest with the checkpoint's timeout: *act* then finds it aborted.
    """
    while True:
        try:
            return act()
        except NotYetAcknowledged as error:
            log.info("waiting: %s", error)
            time.sleep(QUEUE_POLL_S)


def fault_of(context: Context) -> Fault | None:
    """The fault to inject: that of the run's form, if drills are allowed, or of the environment."""
    planted = _planted(context) if Settings.from_environment().allows_drills else ""
    return parse_fault(planted) or fault_from_environment()


def require_no_forbidden_drill(context: Context) -> None:
    """Raises ConfigurationError for a run whose configuration plants a fault without leave.

    The form has no such field then, but Airflow passes on whatever a run's ``conf`` has.
    """
    if _planted(context) and not Settings.from_environment().allows_drills:
        raise ConfigurationError(
            f"this run's configuration plants the fault {_planted(context)!r}, and drills are off "
            f"here; set {DRILLS_VARIABLE}=1 in every Airflow component, or leave fault out"
        )


def _planted(context: Context) -> str:
    return str(context["params"].get("fault") or "")
