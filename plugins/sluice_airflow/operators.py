"""The tasks of one checkpoint: each opens the job, finds its checkpoint, and lets the runner act.

trigger -> per stage: snapshot | await_acks -> finalize -> commit
"""

from __future__ import annotations

import logging
import os
import signal
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException

from sluice.errors import FencedError, NotYetAcknowledged, SluiceError
from sluice.faults import Fault, fault_from_environment, parse_fault
from sluice.pipeline import Pipeline
from sluice.units import duration, size
from sluice_airflow.assets import assets_of, events_of
from sluice_airflow.documentation import TASKS
from sluice_airflow.failures import airflow_failures
from sluice_airflow.notes import note
from sluice_airflow.ownership import cause_of, checkpoint_of, pending_of
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.core.completed import CompletedCheckpoint
    from sluice.runner.job import Job

log = logging.getLogger(__name__)

QUEUE_POLL_S = 0.5  # How often a queued request is looked after, and an unsealed input.

T = TypeVar("T")
Summary: TypeAlias = dict[str, int | str | None]


class CheckpointOperator(BaseOperator):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Part of a run that owns one checkpoint of *pipeline*.  What it may not do is trust itself to
    run once, or to its end: ``act`` may be killed at any moment, and repeated.
    """

    def __init__(self, *, pipeline: Pipeline, task_id: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(task_id=task_id, **{"doc_md": TASKS.get(task_id)} | kwargs)
        self.pipeline = pipeline

    def execute(self, context: Context) -> Any:  # noqa: ANN401 - what is shown as its result
        with airflow_failures():
            try:
                job = self.open_job()
                self._strike(job, context, is_after=False)
                result = self.act(job, context)
                self._strike(job, context, is_after=True)
            except AirflowException:  # It was said already, where it was raised.
                raise
            except Exception as error:  # The run ends in red or pink; its note says why.
                note(context, self.told(error))
                raise
            return result

    def told(self, error: Exception) -> str:
        """What the note of a run says whose task failed by *error*."""
        what = str(error) if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
        return f"{self.task_id} failed: {what}" if not isinstance(error, FencedError) else what

    @abstractmethod
    def act(self, job: Job, context: Context) -> Any:  # noqa: ANN401 - what is shown as its result
        ...

    def open_job(self) -> Job:
        from sluice.runner.job import open_job

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
    """Make the checkpoint true.  Repeating it finds that it is."""

    def act(self, job: Job, context: Context) -> Summary:
        from sluice.runner.completion import finalize

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
    """Have the sinks publish; then the checkpoint and its tables are events for other DAGs."""

    def __init__(self, *, pipeline: Pipeline, **kwargs: Any) -> None:  # noqa: ANN401 - Airflow's
        super().__init__(pipeline=pipeline, outlets=assets_of(pipeline), **kwargs)

    def act(self, job: Job, context: Context) -> Summary:
        from sluice.runner.completion import commit, finalize

        checkpoint_id = checkpoint_of(job.state(), cause_of(context["ti"]))
        completed = finalize(job, checkpoint_id)  # Which has happened: this tells of it.
        metadata = job.metadata(checkpoint_id)
        commit(job, checkpoint_id)
        for asset, extra in events_of(self.pipeline, completed, metadata).items():
            context["outlet_events"][asset].extra = dict(extra)
        note(context, _told(completed))
        return {
            "checkpoint_id": completed.checkpoint_id,
            "records": completed.records,
            "bytes": completed.checkpointed_bytes,
            "savepoint": completed.savepoint_name,
        }


def _told(completed: CompletedCheckpoint) -> str:
    """Like "checkpoint 42 completed, 3.2 MB, 1.8 s, 10,000 records"."""
    what = f"checkpoint {completed.checkpoint_id}"
    if completed.savepoint_name is not None:
        what = f"savepoint {completed.savepoint_name} ({what})"
    seconds = (completed.completed_at_ms - completed.triggered_at_ms) / 1000
    return (
        f"{what} completed, {size(completed.checkpointed_bytes)}, {duration(seconds)}, "
        f"{completed.records:,} records"
    )


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


def fault_of(context: Context) -> Fault | None:
    """What the run's form asks for, else what the environment does."""
    return parse_fault(context["params"].get("fault") or "") or fault_from_environment()
