"""The tasks that act on a job beside its checkpoints: restore, cancel, export, abort and restart.

The abort of a checkpoint happens once, for one reason, and is followed by a restore of the job.
Two paths lead to it, and both may run, in any order, any number of times: the ``abort`` task, which
runs however a task died, and a failed task's own callback, which is half a second faster if its
process survived.  Neither is relied on: the watchdog aborts what both missed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason, page_of
from sluice.core.pending import PendingCheckpoint
from sluice.core.restoring import Latest, RestoreOptions, Stop, choose
from sluice.core.state import CoordinatorState
from sluice.declaration.pipeline import Pipeline
from sluice.errors import FencedError, RestoreError, of_pipeline
from sluice.store.redaction import redacted
from sluice.surface.acts import RESTORE, STAY_SUSPENDED, require_named, restore_request
from sluice_airflow.compat import AirflowSkipException, dag_run_to_trigger
from sluice_airflow.declared import check_declaration
from sluice_airflow.forms import given_params
from sluice_airflow.notes import note, switch_off_if_ended, switch_on
from sluice_airflow.operators import CheckpointOperator, TaskSummary
from sluice_airflow.runs import failed_of, pending_of, run_cause
from sluice_airflow.settings import Settings
from sluice_airflow.stats import emit_stats, try_to_send_trace
from sluice_airflow.trigger_task import savepoint_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.coordinator.restore import RestoredJob, RestoreRequest
    from sluice.job.job import Job

log = logging.getLogger(__name__)

MAX_MESSAGE = 500  # Characters of an exception that are journaled; the task's log has all.


class VerifyOperator(CheckpointOperator):
    """Names the checkpoint to restore, or everything that is missing for it; changes nothing."""

    def act(self, job: Job, context: Context) -> TaskSummary:
        from sluice.coordinator.restore import plan, resolve
        from sluice.surface.options import options_after
        from sluice.surface.snapshots import plan_lines

        request = request_of(context["params"], self.pipeline)
        state = job.state()
        resolved = resolve(job, state, request)
        if request.only_generation is None:  # A person's run, perhaps with other code.
            continued = resolved.configuration or state.configuration
            check_declaration(self.pipeline, continued.params)
        decision = plan(job, state, resolved)
        if isinstance(decision, Stop):
            if not decision.message:
                raise RestoreError("; ".join(decision.problems))
            note(context, f"stops the job: {decision.message}")
            return {"checkpoint_id": None, "bytes": 0}
        changed = options_after(state, resolved.configuration)
        note(context, "; ".join(plan_lines(decision, changed)))
        return {
            "checkpoint_id": decision.choice.checkpoint_id,
            "bytes": sum(handle.size_bytes for handle in decision.files),
        }

    def failure_note(self, error: Exception) -> str:
        return str(error) if isinstance(error, FencedError) else f"cannot restore: {error}"


class RestoreOperator(CheckpointOperator):
    """Waits for the restart strategy's pause, then restores the job under the next generation."""

    def act(self, job: Job, context: Context) -> TaskSummary:
        from sluice.coordinator.restore import resolve, restore, restored_job
        from sluice.surface.options import options_after

        if context["params"].get("dry_run"):
            raise AirflowSkipException("a dry run: verify's log says what would be restored")
        request, state = request_of(context["params"], self.pipeline), job.state()
        cause = run_cause(context["ti"])
        served = state.served_restore(cause)
        if served is not None:  # By an earlier try, which died: nothing is restored again.
            return self._ends(job, context, restored_job(job, state, served), may_switch_on=True)
        resolved = resolve(job, state, request)
        if state.status is JobStatus.RESTARTING and request.only_generation is not None:
            pause_s = max(0.0, ((state.restart_at_ms or 0) - job.now_ms()) / 1_000)
            log.info("restart strategy pauses pause_s=%.1f", pause_s)
            time.sleep(pause_s)
        restored = restore(
            job,
            resolved.target,
            resolved.options,
            configuration=resolved.configuration,
            only_generation=resolved.only_generation,
            cause=cause,
        )
        changed = [f"{name}={value}" for name, value in request.params.items()]
        changed += [change.made for change in options_after(state, resolved.configuration)]
        return self._ends(job, context, restored, changed, may_switch_on=state.status.is_terminal)

    def _ends(
        self,
        job: Job,
        context: Context,
        restored: RestoredJob,
        changed: Sequence[str] = (),
        *,
        may_switch_on: bool,
    ) -> TaskSummary:
        """Do what follows the restore, unless the job has moved on, and return what it came to."""
        from sluice.coordinator.restore import stop

        params, after = context["params"], restored.state
        if restored.has_moved_on:
            changed = [*changed, "this run had restored it before, and the job went on since"]
        elif params.get("then") == STAY_SUSPENDED:
            after = stop(job, JobStatus.SUSPENDED)
        elif params["only_generation"] is None and may_switch_on:
            switch_on(context, self.pipeline)
        done = f"restored {restored.named}, generation {after.generation}; {after.status.value}"
        tables = [table.sentence(rolls_back=False) for table in restored.tables_ahead]
        note(context, "; ".join([done, *changed, *tables, *restored.warnings]))
        return {
            "checkpoint_id": restored.checkpoint_id,
            "savepoint": restored.origin.savepoint if restored.origin is not None else None,
            "generation": after.generation,
            "status": after.status.value,
        }


def request_of(params: Mapping[str, Any], pipeline: Pipeline) -> RestoreRequest:
    """The request in a run's form; a run that was started by a failure has only some fields.

    Raises:
        ConfigurationError: the field of the chosen target is empty, or that of another one is not;
            or other fields contradict each other, or a parallelism is above its limit.
    """
    from sluice.coordinator.submission import check_stages, parse_parallelism

    given = RESTORE.given({**params, "params": given_params(pipeline, params)})
    require_named(given)
    request = restore_request(given, may_submit=True)
    check_stages(pipeline, *parse_parallelism(request.parallelism))
    return request


class CancelOperator(CheckpointOperator):
    """Cancels the job and aborts its pending checkpoints, whose runs then end.  Idempotent."""

    def act(self, job: Job, context: Context) -> TaskSummary:
        from sluice.coordinator.restore import stop

        before = job.state()
        if before.status is JobStatus.CREATED:
            raise AirflowSkipException(f"job {self.pipeline.uid!r} was never submitted")
        if before.status.is_globally_terminal:
            reason = f"the job is {before.status.value} already"
            note(context, reason)
            raise AirflowSkipException(reason)
        after = stop(job, JobStatus.CANCELED)
        retained = ", ".join(str(c.checkpoint_id) for c in after.completed) or "none"
        note(context, f"the job is {after.status.value}; retained checkpoints: {retained}")
        return {
            "status": after.status.value,
            "aborted": ", ".join(str(p.checkpoint_id) for p in before.pending) or None,
            "retained": retained,
        }


class ExportOperator(CheckpointOperator):
    """Copies the savepoint; repeating it copies the same bytes to the same place."""

    def act(self, job: Job, context: Context) -> str:
        from sluice.coordinator.savepoints import copy_savepoint

        root = context["params"].get("target")
        if not root:
            raise AirflowSkipException("the savepoint stays in the job's own root")
        place = copy_savepoint(job, savepoint_name(context), root)
        note(context, f"savepoint {savepoint_name(context)} copied to {place}")
        return place

    def failure_note(self, error: Exception) -> str:
        return f"the savepoint is complete in the job's own root, but was not copied: {error}"


class AbortOperator(CheckpointOperator):
    """Aborts the run's checkpoint, unless it has ended already or was never triggered."""

    def act(self, job: Job, context: Context) -> str:
        ti = context["ti"]
        state = job.state()
        pending = pending_of(state, run_cause(ti))
        if pending is None:
            log.info("nothing to abort: no checkpoint of this run is pending")
        else:
            states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
            # Without the tasks that never ran because of these.
            failed_tasks = frozenset(task for task in states if states[task] == "failed")
            state = _fail(job, pending, failed_tasks)
        switch_off_if_ended(context, self.pipeline, state.status)
        failed = failed_of(state, run_cause(ti))
        if failed is not None:
            advice = ""
            if state.status is JobStatus.FAILED:
                advice = f": the restart strategy gave up; {_way_on(state, self.pipeline)}"
            note(
                context,
                f"checkpoint {failed.checkpoint_id} aborted, {failed.reason.value}: "
                f"{failed.message}; the job is {state.status.value}{advice}; "
                f"see {page_of(failed.reason)}",
            )
            emit_stats(job)
            try_to_send_trace(job, failed.checkpoint_id)
        return state.status.value


def _way_on(state: CoordinatorState, pipeline: Pipeline) -> str:
    """The way on for a person with a job that has failed for good."""
    choice = choose(state, Latest(), RestoreOptions())
    if isinstance(choice, Stop):
        return f"mend the cause; {of_pipeline('; '.join(choice.problems), pipeline.uid)}"
    return f"mend the cause, then run {RESTORE.dag_id(pipeline.uid)}"


class RestartOperator(CheckpointOperator):
    """Starts the restore DAG if the job is to restart; the run's id makes it once per failure."""

    def act(self, job: Job, context: Context) -> None:
        state = job.state()
        if state.status is not JobStatus.RESTARTING:
            raise AirflowSkipException(f"the job is {state.status.value}: nothing to restore")
        log.info("restore requested generation=%d from=%s", state.generation, context["run_id"])
        # As TriggerDagRunOperator does; importing that operator would cost every task 0.3 s.
        raise dag_run_to_trigger(
            trigger_dag_id=RESTORE.dag_id(self.pipeline.uid),
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
        pending = pending_of(job.state(), run_cause(ti))
        if pending is not None:
            _fail(job, pending, frozenset({ti.task_id}), context.get("exception"))

    return abort


def _fail(
    job: Job,
    pending: PendingCheckpoint,
    failed_tasks: frozenset[str],
    error: BaseException | str | None = None,
) -> CoordinatorState:
    from sluice.coordinator.failure import fail_checkpoint

    declined = job.answers.observe(pending.checkpoint_id, pending.token).declined
    is_declined = any(pending.awaits_answer(*one) for one in declined)
    failure = classify(failed_tasks, pending=pending, is_declined=is_declined, now_ms=job.now_ms())
    return fail_checkpoint(
        job,
        pending.checkpoint_id,
        failure.reason,
        failure.message,
        is_task_failure=failure.is_task_failure,
        raised=redacted(str(error))[:MAX_MESSAGE] if error else "",
    )


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
            message=f"{pending.records:,} records were not done after {waited_s} s",
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
