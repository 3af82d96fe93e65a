"""The first task of a run: request a checkpoint or savepoint, then wait, skip or continue.

``sluice savepoint`` and the like queue a request in the journal.  A periodic run takes it up in the
place of its own; where none comes soon the watchdog starts a run for it (``start_runs``).  That is
one of the savepoint DAG, which is not paused and has no other run to wait for.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Never, assert_never

from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus
from sluice.core.failures import page_of
from sluice.core.ids import FIRST_CHECKPOINT_ID, NO_GENERATION
from sluice.declaration.durations import milliseconds
from sluice.declaration.schedules import OnAsset
from sluice.errors import ConfigurationError, FencedError
from sluice.surface.acts import CHECKPOINT, SAVEPOINT, STOPS
from sluice_airflow.compat import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from sluice_airflow.declared import check_declaration
from sluice_airflow.forms import given_params, require_unchanged
from sluice_airflow.notes import note, switch_off_if_ended
from sluice_airflow.operators import QUEUE_POLL_S, CheckpointOperator, TaskSummary, name_for_notes
from sluice_airflow.runs import completed_of, failed_of, pending_of, run_cause, run_of
from sluice_airflow.stats import emit_stats

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.coordinator.planning import Barriers
    from sluice.coordinator.trigger import NotDue, NotRunning, NotTriggered, Refused, Triggered
    from sluice.core.pending import PendingCheckpoint
    from sluice.core.plan import CheckpointPlan
    from sluice.core.state import FailedCheckpoint
    from sluice.job.job import Job

log = logging.getLogger(__name__)

# The time that a queued request occupies a worker slot: most wait a few seconds, for the checkpoint
# before them.  Then the slot is released, and the task shows as up for reschedule.
WAIT_IN_SLOT_S = 15.0
RESCHEDULE_AFTER = timedelta(seconds=15)
LONGEST_REST_S = 5.0  # The longest rest of the interval that a run waits for in its slot.
PERIODIC_RUN_TYPES = ("scheduled", "asset_triggered")
REQUEST = "request"  # In the configuration of a run that ``start_runs`` started: the request's id.


class TriggerOperator(CheckpointOperator):
    """Triggers a checkpoint.  Submits the job if necessary.

    The run is skipped where nothing is to be done: nothing is there, it is too early, or the job
    does not run.  It fails where somebody refused.
    """

    def act(self, job: Job, context: Context) -> TaskSummary:
        cause = run_cause(context["ti"])
        state = job.state()
        given = given_params(self.pipeline, context["params"])
        if state.status is JobStatus.CREATED:
            self._submit(job, given)
        else:
            require_unchanged(self.pipeline, state, given)
        pending = pending_of(state, cause)
        if pending is not None:  # An earlier try journaled it, and died afterwards.
            log.info("checkpoint adopted checkpoint_id=%d", pending.checkpoint_id)
            note(context, triggered_note(pending, pending.savepoint_name))
            return {"checkpoint_id": pending.checkpoint_id, "records": pending.records}
        before = completed_of(state, cause) or failed_of(state, cause)
        plan = self._plan_of(job, self.request(job, cause, context), context)
        pending = pending_of(job.state(), cause) if plan.type.is_savepoint else None
        triggered = triggered_note(plan, None if pending is None else pending.savepoint_name)
        cleared = "" if before is None else f"; the run was cleared behind {_which(before)}"
        note(context, triggered + cleared)
        return {
            "checkpoint_id": plan.checkpoint_id,
            "records": plan.records,
            "parent": plan.parent,
            "type": plan.type.value,
        }

    def _plan_of(
        self, job: Job, outcome: Triggered | NotTriggered, context: Context
    ) -> CheckpointPlan:
        """The plan of the checkpoint that was triggered.

        Raises:
            AirflowSkipException: there is nothing to do.
            AirflowFailException: somebody refused.
        """
        from sluice.coordinator.planning import NothingToDo
        from sluice.coordinator.trigger import NotDue, NotRunning, Refused, Triggered

        match outcome:
            case Triggered(plan=plan):
                return plan
            case NothingToDo(message=message):
                return _skip(context, message)
            case NotDue():
                return _skip(context, explain(outcome))
            case NotRunning():
                switch_off_if_ended(context, self.pipeline, job.state().status)
                return _skip(context, explain(outcome))
            case Refused(reason=reason):
                refusal = explain(outcome)
                note(context, f"no checkpoint was triggered: {refusal}; see {page_of(reason)}")
                emit_stats(job)
                raise AirflowFailException(f"no checkpoint was triggered: {refusal}")
            case _:
                assert_never(outcome)

    def request(self, job: Job, cause: str, context: Context) -> Triggered | NotTriggered:
        """Request a checkpoint.  A manual run ignores the minimum pause, and may be empty, as may
        one that the user's asset event started, and the first of all.
        """
        from sluice.coordinator.planning import NothingToDo

        run_type = context["dag_run"].run_type
        rest_s = self._rest_of_interval_s(job) if run_type == "asset_triggered" else 0.0
        if rest_s > LONGEST_REST_S:  # An event that came twice.
            return NothingToDo(message=f"the interval lasts {rest_s:.0f} s more")
        if rest_s > 0:
            time.sleep(rest_s)
        given = CHECKPOINT.given(context["params"])
        request = partial(
            self.wait_for,
            job,
            context,
            cause=cause,
            is_full=given["checkpoint_type"] == "FULL",
            is_forced=given["forced"],
            barriers=barriers_of(context.get("triggering_asset_events") or {}),
        )
        outcome = request(is_periodic=run_type in PERIODIC_RUN_TYPES)
        if isinstance(outcome, NothingToDo) and self._may_be_empty(job):
            return request(is_periodic=False)
        return outcome

    def _may_be_empty(self, job: Job) -> bool:
        """An event of the user's asset gets its checkpoint, and so does the run that submits a job:
        the first that the job can go back to.
        """
        if isinstance(self.pipeline.checkpointing.schedule, OnAsset):
            return True
        return job.state().next_checkpoint_id == FIRST_CHECKPOINT_ID

    def _rest_of_interval_s(self, job: Job) -> float:
        """The rest of the interval, as the event comes a little before its end."""
        from sluice.coordinator.next_checkpoint import rest_before_event_ms

        interval = self.pipeline.checkpointing.interval
        if self.pipeline.checkpointing.schedule is not None or interval is None:
            return 0.0
        return rest_before_event_ms(job.state(), milliseconds(interval), job.now_ms()) / 1_000

    def wait_for(
        self,
        job: Job,
        context: Context,
        *,
        cause: str,
        **request: Any,  # noqa: ANN401 - trigger's
    ) -> Triggered | NotTriggered:
        """Repeat the request until the request decider starts or drops it.

        A task that gave its slot back, or is retried, continues the run's queued request; a
        rejected run that a person clears makes a new one.

        Raises:
            AirflowRescheduleException: it is still queued; the task repeats it later.
        """
        from sluice.coordinator.trigger import Queued, trigger

        state, try_number = job.state(), context["ti"].try_number
        request_id = next((own.request_id for own in state.queue if own.cause == cause), cause)
        if try_number > 1 and state.rejection(request_id) is not None:
            request_id = f"{cause} {try_number}"  # The same when the task comes back.
        give_back_at = time.monotonic() + WAIT_IN_SLOT_S
        noted = ""
        while True:
            outcome = trigger(job, cause=cause, request_id=request_id, **request)
            if not isinstance(outcome, Queued):
                return outcome
            if outcome.message != noted:
                noted = outcome.message
                note(context, f"waiting: {noted}")
            if time.monotonic() >= give_back_at:
                raise AirflowRescheduleException(datetime.now(UTC) + RESCHEDULE_AFTER)
            time.sleep(QUEUE_POLL_S)

    def _submit(self, job: Job, given: Mapping[str, str]) -> None:
        from sluice.coordinator.submission import configure, submit
        from sluice.job.job import verify_root

        configuration = configure(self.pipeline, given)
        verify_root(job)
        check_declaration(self.pipeline, configuration.params)
        with suppress(FencedError):  # Another run was faster.
            submit(job, configuration, only_generation=NO_GENERATION)


def triggered_note(checkpoint: CheckpointPlan | PendingCheckpoint, savepoint: str | None) -> str:
    """The run's note while the checkpoint is pending: "checkpoint 42 triggered at 10:21:07 UTC"."""
    subject = name_for_notes(checkpoint.checkpoint_id, savepoint)
    at = datetime.fromtimestamp(checkpoint.triggered_at_ms / 1_000, UTC)
    return f"{subject} triggered at {at:%H:%M:%S} UTC, {checkpoint.records:,} records"


def _which(before: CompletedCheckpoint | FailedCheckpoint) -> str:
    """The checkpoint that a run took before somebody cleared it, in words."""
    outcome = "completed" if isinstance(before, CompletedCheckpoint) else "failed"
    return f"checkpoint {before.checkpoint_id}, which {outcome}"


def _skip(context: Context, reason: str) -> Never:
    note(context, f"skipped: {reason}")
    raise AirflowSkipException(reason)


def explain(outcome: NotDue | NotRunning | Refused) -> str:
    return f"{outcome.reason.value}: {outcome.message}"


def barriers_of(events: Mapping[Any, Iterable[Any]]) -> Barriers:
    """The barriers in the asset events that started this run; of several, the furthest.

    An event's own ``extra`` may have ``barriers``, or the payload of a watcher in it.

    Raises:
        ConfigurationError: ``barriers`` is not an end offset per source and partition.
    """
    found: dict[str, dict[str, int]] = {}
    for event in (event for group in events.values() for event in group):
        extra = event.extra or {}
        payload = extra.get("payload")
        own = payload if isinstance(payload, Mapping) else {}  # A trigger yields whatever it likes.
        given = extra.get("barriers") or own.get("barriers", {})
        try:
            for source, ends in given.items():
                cut = found.setdefault(source, {})
                for partition, end in ends.items():
                    cut[partition] = max(int(end), cut.get(partition, 0))
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"an asset event has the barriers {given!r}; write an end offset per source and "
                'partition, as {"orders": {"0": 1200}}'
            ) from error
    return found


class TriggerSavepointOperator(TriggerOperator):
    """Triggers a savepoint, after pending checkpoints; with ``stop`` it suspends the job."""

    def request(self, job: Job, cause: str, context: Context) -> Triggered | NotTriggered:
        from sluice.coordinator.planning import NothingToDo
        from sluice.coordinator.savepoints import require_outside
        from sluice.coordinator.trigger import Triggered

        params = context["params"]
        if params.get(REQUEST):
            return take_up_in_run(job, context, cause=cause)
        name, given = savepoint_name(context), SAVEPOINT.given(params)
        if given["target"]:  # Refuse a bad address before the savepoint is triggered.
            require_outside(job, given["target"])
        outcome = self.wait_for(
            job,
            context,
            type=STOPS[given["stop"]],
            cause=cause,
            savepoint_name=name,
            is_canonical=given["format"] == "canonical",
            is_forced=given["forced"],
            is_periodic=False,
        )
        if isinstance(outcome, Triggered):
            return outcome
        # A request that is not periodic has always something to do.
        because = outcome.message if isinstance(outcome, NothingToDo) else explain(outcome)
        reason = f"savepoint {name!r}: {because}"
        note(context, reason)
        raise AirflowFailException(reason)


def savepoint_name(context: Context) -> str:
    """The name in the form, else the run's id with the characters that a key may have."""
    return context["params"]["name"] or re.sub(r"[^A-Za-z0-9_.-]", "-", context["run_id"])[:128]


def take_up_in_run(job: Job, context: Context, *, cause: str) -> Triggered:
    """Take up the request that this run was started for, once it is due.

    Raises:
        AirflowSkipException: it is not queued any more.
        AirflowRescheduleException: it is not due yet; the task repeats it later.
    """
    from sluice.coordinator.trigger import take_up
    from sluice.surface.journal import request_progress

    request_id = context["params"][REQUEST]
    give_back_at = time.monotonic() + WAIT_IN_SLOT_S
    while any(queued.request_id == request_id for queued in job.state().queue):
        triggered = take_up(job, cause=cause)
        if triggered is not None:
            return triggered
        if time.monotonic() >= give_back_at:
            raise AirflowRescheduleException(datetime.now(UTC) + RESCHEDULE_AFTER)
        time.sleep(QUEUE_POLL_S)
    progress = request_progress(job, request_id)
    became = f", checkpoint {progress.checkpoint}" if progress.checkpoint is not None else ""
    reason = f"the request needs no run of its own: it is {progress.status.value}{became}"
    note(context, f"skipped: {reason}")
    raise AirflowSkipException(reason)


def start_runs(job: Job) -> list[str]:
    """Start a run for each request that awaits a host, if Airflow drives the job; return a sentence
    for each.

    A run's id is its request's, so it is started once.
    """
    from sluice.surface.journal import last_host

    state, now_ms = job.state(), job.now_ms()
    due = [
        queued for queued in state.queue if queued.awaits_a_host and not queued.has_expired(now_ms)
    ]
    host = last_host(state)
    if host is not None and run_of(host.cause) is None:
        return []
    dag_id = SAVEPOINT.dag_id(job.pipeline.uid)
    return [
        f"started a run of {dag_id}, {queued.cause}"
        for queued in due
        if _start(dag_id, f"request__{queued.request_id}", {REQUEST: queued.request_id})
    ]


def _start(dag_id: str, run_id: str, conf: dict[str, object]) -> bool:
    """Whether the run was started now; False if it was before, or Airflow does not answer."""
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

    run = TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=conf)
    try:
        answer = task_runner.SUPERVISOR_COMMS.send(run)
    except Exception:  # Any error of Airflow: the watchdog tries again, until it has expired.
        log.warning("no run was started dag_id=%s run_id=%s", dag_id, run_id, exc_info=True)
        return False
    return not isinstance(answer, ErrorResponse)
