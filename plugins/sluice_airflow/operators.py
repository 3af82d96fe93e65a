"""The common base of all tasks of a checkpoint's run, and the two that complete it.

    trigger -> per stage: snapshot | await_acks -> finalize -> commit

Each finds its checkpoint in the journal, and calls the coordinator.  The commit emits events for
other DAGs:

    sluice://{pipeline}/checkpoints        extra: checkpoint_id, records, bytes, watermark
    sluice://{pipeline}/tables/{sink}      extra: checkpoint_id, rows, bytes, watermark

An event follows the commit, so a DAG that is scheduled by it reads exactly-once epochs.  An event
may be repeated, with the same id, if a task died after its commit.  A lost event does no harm, as
the next one names the newest id.  A table has an event for every epoch, also without rows, since
its watermark may have moved.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from airflow.sdk import Asset, BaseOperator

from sluice.core.answers import TaskFailure
from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.failures import CheckpointFailureReason, page_of
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.units import duration, size
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, FencedError, NotYetAcknowledged, SluiceError
from sluice.exchange.faults import Fault, fault_from_environment, parse_fault
from sluice.store.open import open_store
from sluice_airflow.compat import AirflowException, AirflowFailException, AirflowTaskTimeout
from sluice_airflow.notes import Needed, note, note_silence, report_unanswered, switch_off_if_ended
from sluice_airflow.runs import (
    airflow_failures,
    checkpoint_of,
    failed_of,
    pending_of,
    run_cause,
)
from sluice_airflow.settings import DRILLS_VARIABLE, Settings
from sluice_airflow.stats import emit_stats, try_to_send_trace

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
    from sluice.job.job import Job

log = logging.getLogger(__name__)

QUEUE_POLL_S = 0.5  # Between two checks of a queued request, or of an unsealed input.

TASKS = {
    "trigger": "Asks the coordinator. Its log says why a run is skipped, or what it waits for.",
    "finalize": "Collects the acks and writes `_metadata`: from here on the checkpoint is true.",
    "commit": "The sinks publish what they staged, and what the checkpoint subsumed is deleted.",
    "export": "Copies the savepoint to the root that the form names; skipped if it names none.",
    "abort": "Ran because a task failed: the checkpoint ended for the one reason in its log.",
    "restart": "Starts the restore DAG, if the restart strategy says so.",
    "cancel_stages": "Frees Spark's cores of the aborted checkpoint's stages.",
    "verify": "Changes nothing: names what would be restored, or everything that is missing.",
    "restore": "Fences the older coordinators, replays an unfinished commit, and resumes.",
    "cancel": "Ends the job.",
}
T = TypeVar("T")
TaskSummary: TypeAlias = dict[str, int | str | None]  # The task's result, in XCom.
Extra: TypeAlias = dict[str, int | str | None]  # Of an asset event.


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
                if not self.upstream_task_ids:  # The first task refuses for its whole run.
                    require_no_forbidden_drill(context)
                job = self.open_job()
                with report_unanswered(partial(note_silence, context), self.needed(job)):
                    self._strike(job, context, is_after=False)
                    result = self.act(job, context)
                    self._strike(job, context, is_after=True)
            except AirflowException:  # The note was written where it was raised.
                raise
            except AirflowTaskTimeout:
                message = f"{self.task_id} took longer than {self.execution_timeout}"
                self._keep_failure(context, message)
                note(context, message)
                raise
            except Exception as error:  # The run fails or is skipped; its note says why.
                from sluice.coordinator.failure import stack_behind

                if not isinstance(error, FencedError):
                    self._keep_failure(context, _said(error), stack_behind(error))
                note(context, self.failure_note(error))
                raise
            return result

    def _keep_failure(self, context: Context, message: str, stack: str = "") -> None:
        """Write why the task failed, for whoever aborts its checkpoint, if one is pending.

        The worker may die, or the store be slow, before the callback has run.
        """
        try:
            job = self.open_job()
            pending = pending_of(job.state(), run_cause(context["ti"]))
            if pending is not None:
                task, attempt = self.attempt_of(pending, context)
                job.answers.keep_failure(
                    TaskFailure(
                        checkpoint_id=pending.checkpoint_id,
                        task=task,
                        attempt=attempt,
                        message=message,
                        stack=stack,
                    )
                )
        except Exception:  # What the task raises is worse.
            log.warning("failure not recorded task=%s", self.task_id, exc_info=True)

    def attempt_of(self, pending: PendingCheckpoint, context: Context) -> tuple[str, int]:  # noqa: ARG002
        """The task's name in the record of its failure, and the number of the attempt."""
        return self.task_id, context["ti"].try_number

    def failure_note(self, error: Exception) -> str:
        """The note of a run whose task failed with *error*."""
        if isinstance(error, FencedError):
            return str(error)
        return f"{self.task_id} failed: {_said(error)}"

    @abstractmethod
    def act(self, job: Job, context: Context) -> Any:  # noqa: ANN401 - what is shown as its result
        ...

    def needed(self, job: Job) -> tuple[Needed, ...]:
        """The servers without which the task cannot go on; the run's note names a silent one."""
        key = job.names.begun()  # Any small object, whether it exists or not.
        ask = partial(open_store(replace(job.location, patience_s=0)).get, key)  # Says it at once.
        page = page_of(CheckpointFailureReason.IO_EXCEPTION)
        return (Needed(name=f"the store {job.store.root}", ask=ask, page=page),)

    def open_job(self) -> Job:
        from sluice.job.job import open_job

        return open_job(self.pipeline, Settings.from_environment().location)

    def _strike(self, job: Job, context: Context, *, is_after: bool) -> None:
        fault, ti = fault_of(context), context["ti"]
        if fault is None:
            return
        pending = pending_of(job.state(), run_cause(ti))
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


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"


def fault_of(context: Context) -> Fault | None:
    """The fault to inject: that of the run's form, if drills are allowed, or of the environment."""
    planted = _planted(context) if Settings.from_environment().allows_drills else ""
    return parse_fault(planted) or fault_from_environment()


def require_no_forbidden_drill(context: Context) -> None:
    """Raises ConfigurationError for a run whose configuration plants a fault where drills are off.

    The form has no such field then, but Airflow passes on whatever a run's ``conf`` has.
    """
    planted = _planted(context)
    if planted and not Settings.from_environment().allows_drills:
        raise ConfigurationError(
            f"this run's configuration plants the fault {planted!r}, and drills are off "
            f"here; set {DRILLS_VARIABLE}=1 in every Airflow component, or leave fault out"
        )


def _planted(context: Context) -> str:
    return str(context["params"].get("fault") or "")


class FinalizeOperator(CheckpointOperator):
    """Completes the checkpoint.  A repetition finds it completed.

    It fails where the checkpoint has failed meanwhile, so its run is red: a stage that acknowledges
    and is killed then has its checkpoint aborted while all sensors have succeeded.
    """

    def act(self, job: Job, context: Context) -> TaskSummary:
        from sluice.coordinator.completion import finalize

        cause = run_cause(context["ti"])
        try:
            checkpoint_id = checkpoint_of(job.state(), cause)
            completed = once_sealed(lambda: finalize(job, checkpoint_id))
        except FencedError as error:
            failed = failed_of(job.state(), cause)
            if failed is None:
                raise
            note(context, str(failed))
            raise AirflowFailException(str(failed)) from error
        note(context, f"{_completion_note(completed)}; not committed yet")
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

    def act(self, job: Job, context: Context) -> TaskSummary:
        from sluice.coordinator.completion import finalize
        from sluice.coordinator.publication import commit

        state = job.state()
        checkpoint_id = checkpoint_of(state, run_cause(context["ti"]))
        completed = state.completed_checkpoint(checkpoint_id) or finalize(job, checkpoint_id)
        metadata = job.metadata(checkpoint_id)
        after = commit(job, checkpoint_id, known=metadata)
        switch_off_if_ended(context, self.pipeline, after.status)
        for asset, extra in events_of(self.pipeline, completed, metadata):
            context["outlet_events"][asset].extra = dict(extra)
        note(context, _completion_note(completed))
        emit_stats(job)
        try_to_send_trace(job, checkpoint_id)
        return {
            "checkpoint_id": completed.checkpoint_id,
            "records": completed.records,
            "bytes": completed.checkpointed_bytes,
            "savepoint": completed.savepoint_name,
        }

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ANN401 - Airflow's
        """The inputs and outputs of the checkpoint, where Airflow's OpenLineage provider asks."""
        from sluice_airflow.openlineage import checkpoint_lineage

        job = self.open_job()
        return checkpoint_lineage(job, checkpoint_of(job.state(), run_cause(task_instance)))


def _completion_note(completed: CompletedCheckpoint) -> str:
    """The run's note, such as "checkpoint 42 completed, 3.2 MB, 1.8 s, 10,000 records"."""
    subject = name_for_notes(completed.checkpoint_id, completed.savepoint_name)
    seconds = (completed.completed_at_ms - completed.triggered_at_ms) / 1000
    return (
        f"{subject} completed, {size(completed.checkpointed_bytes)}, {duration(seconds)}, "
        f"{completed.records:,} records"
    )


def name_for_notes(checkpoint_id: CheckpointId, savepoint: str | None) -> str:
    """The words "checkpoint 42", or "savepoint before-upgrade (checkpoint 42)"."""
    checkpoint = f"checkpoint {checkpoint_id}"
    return checkpoint if savepoint is None else f"savepoint {savepoint} ({checkpoint})"


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


def events_of(
    pipeline: Pipeline, completed: CompletedCheckpoint, metadata: CheckpointMetadata
) -> Iterator[tuple[Asset, Extra]]:
    """The ``extra`` of every asset for one committed checkpoint."""
    watermarks = {stage.uid: stage.watermark_ms for stage in metadata.stages}
    yield (
        checkpoints_asset(pipeline.uid),
        {
            "checkpoint_id": completed.checkpoint_id,
            "records": completed.records,
            "bytes": completed.checkpointed_bytes,
            "watermark": _watermark_text(min(filter(_is_known, watermarks.values()), default=None)),
        },
    )
    for sink in pipeline.sinks.values():
        staged = [c for c in metadata.committables if c.sink == sink.uid]
        yield (
            table_asset(pipeline.uid, sink.uid),
            {
                "checkpoint_id": completed.checkpoint_id,
                "rows": sum(c.rows for c in staged),
                "bytes": sum(c.size_bytes for c in staged),
                "watermark": _watermark_text(watermarks.get(sink.input)),
            },
        )


def assets_of(pipeline: Pipeline) -> list[Asset]:
    return [
        checkpoints_asset(pipeline.uid),
        *(table_asset(pipeline.uid, sink) for sink in pipeline.sinks),
    ]


def checkpoints_asset(pipeline: str) -> Asset:
    return Asset(f"sluice://{pipeline}/checkpoints")


def table_asset(pipeline: str, sink: str) -> Asset:
    return Asset(f"sluice://{pipeline}/tables/{sink}")


def _watermark_text(watermark_ms: int | None) -> str | None:
    """ISO 8601 in UTC; None before there is one, "end" once the input has ended."""
    if watermark_ms is None or not _is_known(watermark_ms):
        return None
    if watermark_ms == MAX_WATERMARK:
        return "end"
    return datetime.fromtimestamp(watermark_ms / 1000, UTC).isoformat()


def _is_known(watermark_ms: int) -> bool:
    """Whether a stage has event time; one without does not hold the watermark back."""
    return watermark_ms != MIN_WATERMARK
