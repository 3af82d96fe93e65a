"""The abort of a checkpoint: once, for one reason, followed by a restore of the job.

Two paths lead here, and both may run, in any order, any number of times: the ``abort`` task, which
runs however a task died, and a failed task's own callback, which is half a second faster if its
process survived.  Neither is relied on: the watchdog aborts what both missed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException, DagRunTriggerException

from sluice.core.pages import page_of
from sluice.core.pending import PendingCheckpoint
from sluice.core.properties import JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import CoordinatorState
from sluice.declaration.pipeline import Pipeline
from sluice.storage.redaction import redacted
from sluice_airflow.dag_switch import switch_off_if_ended
from sluice_airflow.job_stats import emit_stats, send_trace
from sluice_airflow.notes import note
from sluice_airflow.operators import CheckpointOperator
from sluice_airflow.ownership import cause_of, pending_of
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.job.job import Job

log = logging.getLogger(__name__)

MAX_MESSAGE = 500  # Characters of an exception that are journaled; the task's log has all.


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason of an abort.  A task failure fails the job over at once."""

    reason: CheckpointFailureReason
    message: str
    is_task_failure: bool = False


def classify(
    failed_tasks: frozenset[str], *, pending: PendingCheckpoint, is_declined: bool, now_ms: int
) -> Failure:
    """The reason of the abort, from the ids of the failed tasks and the state of the bucket.

    A decline comes first, because the snapshot task of a stage that declines fails, too, and the
    reason may not depend on which of the two was noticed first.  *failed_tasks* may be empty.
    """
    if is_declined:
        return Failure(
            reason=CheckpointFailureReason.CHECKPOINT_DECLINED, message="a subtask declined"
        )
    snapshots = sorted(task for task in failed_tasks if task.endswith(".snapshot"))
    if snapshots:
        stage = snapshots[0].removesuffix(".snapshot")
        return Failure(
            reason=CheckpointFailureReason.TASK_FAILURE,
            message=f"the snapshot task of stage {stage!r} failed",
            is_task_failure=True,
        )
    if now_ms >= pending.expires_at_ms:
        waited_s = (now_ms - pending.triggered_at_ms) // 1_000
        return Failure(
            reason=CheckpointFailureReason.CHECKPOINT_EXPIRED,
            message=f"not done after {waited_s} s",
        )
    if "finalize" in failed_tasks:
        return Failure(
            reason=CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
            message="the finalize task failed",
        )
    if "trigger" in failed_tasks:
        return Failure(
            reason=CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE,
            message="the trigger task died after it had journaled the checkpoint",
        )
    names = ", ".join(sorted(failed_tasks)) or "a task"
    return Failure(
        reason=CheckpointFailureReason.TASK_FAILURE,
        message=f"{names} of the run failed",
        is_task_failure=True,
    )


class AbortOperator(CheckpointOperator):
    """Aborts the run's checkpoint, unless it has ended already or was never triggered."""

    def act(self, job: Job, context: Context) -> str:
        ti = context["ti"]
        state = job.state()
        pending = pending_of(state, cause_of(ti))
        if pending is None:
            log.info("nothing to abort: no checkpoint of this run is pending")
        else:
            states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id])
            state = _fail(job, pending, _failed(states.get(ti.run_id, {})))
        switch_off_if_ended(context, self.pipeline, state.status)
        failed = next((f for f in reversed(state.failed) if f.cause == cause_of(ti)), None)
        if failed is not None:
            note(
                context,
                f"checkpoint {failed.checkpoint_id} aborted, {failed.reason.value}: "
                f"{failed.message}; the job is {state.status.value}"
                f"{_advice(self.pipeline, state)}; see {page_of(failed.reason)}",
            )
            emit_stats(job)
            send_trace(job, failed.checkpoint_id)
        return state.status.value


class RestartOperator(CheckpointOperator):
    """Starts the restore DAG if the job is to restart; the run's id makes it once per failure."""

    def act(self, job: Job, context: Context) -> None:
        state = job.state()
        if state.status is not JobStatus.RESTARTING:
            raise AirflowSkipException(f"the job is {state.status.value}: nothing to restore")
        log.info("restore requested generation=%d from=%s", state.generation, context["run_id"])
        # As TriggerDagRunOperator does; importing that operator would cost every task 0.3 s.
        raise DagRunTriggerException(
            trigger_dag_id=f"{self.pipeline.uid}__restore",
            dag_run_id=failover_run_id(state),
            conf={"target": "latest", "only_generation": state.generation},
            reset_dag_run=False,
            skip_when_already_exists=True,
            wait_for_completion=False,
            allowed_states=[],
            failed_states=[],
            poke_interval=1,
            deferrable=False,
        )


def failover_run_id(state: CoordinatorState) -> str:
    """The id of the restore run: one for each failure, also in a root that was emptied."""
    return f"failover__generation-{state.generation}__{state.restart_at_ms}"


def abort_on_failure(pipeline: Pipeline) -> Callable[[Mapping[str, Any]], None]:
    """An ``on_failure_callback``: the same abort, from the failed task's own process.

    When a worker is lost Airflow runs it elsewhere, late and perhaps twice, without harm.
    """

    def abort(context: Mapping[str, Any]) -> None:
        from sluice.job.job import open_job

        ti = context["ti"]
        job = open_job(pipeline, Settings.from_environment().location)
        pending = pending_of(job.state(), cause_of(ti))
        if pending is not None:
            _fail(job, pending, frozenset({ti.task_id}), context.get("exception"))

    return abort


def _fail(
    job: Job,
    pending: PendingCheckpoint,
    failed_tasks: frozenset[str],
    error: BaseException | str | None = None,
) -> CoordinatorState:
    from sluice.coordinator.recovery import fail_checkpoint

    is_declined = bool(job.answers.observe(pending.checkpoint_id).declined)
    failure = classify(failed_tasks, pending=pending, is_declined=is_declined, now_ms=job.clock())
    detail = f": {redacted(str(error))}"[:MAX_MESSAGE] if error else ""
    return fail_checkpoint(
        job,
        pending.checkpoint_id,
        failure.reason,
        failure.message + detail,
        is_task_failure=failure.is_task_failure,
    )


def _advice(pipeline: Pipeline, state: CoordinatorState) -> str:
    if state.status is not JobStatus.FAILED:
        return ""
    return f": the restart strategy gave up; mend the cause, then run {pipeline.uid}__restore"


def _failed(states: Mapping[str, str | None]) -> frozenset[str]:
    """The tasks that failed themselves, without those that never ran because of them."""
    return frozenset(task for task, state in states.items() if state == "failed")
