"""Waiting for the acks of a stage, in the triggerer, without a worker slot.

The module is light, as every DAG file imports it: the trigger imports ``polls``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, assert_never

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, StartTriggerArgs, TaskFailedEvent, TaskSuccessEvent

from sluice.declaration.pipeline import Pipeline
from sluice.errors import SluiceError, StoreUnavailable
from sluice_airflow.compat import (
    STARTS_FROM_TRIGGER,
    AirflowFailException,
    AirflowRescheduleException,
    is_dag_test,
)
from sluice_airflow.runs import airflow_failures, run_cause
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice_airflow.polls import StageWatch

log = logging.getLogger(__name__)

POLL_S = 0.5  # Half of the second after which the triggerer itself forwards events.
TRIGGER_GRACE = timedelta(minutes=1)  # The trigger ends at the deadline, unless it died.
RESCHEDULE_AFTER = timedelta(milliseconds=100)


class AwaitAcksSensor(BaseOperator):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Succeeds when every subtask of the stage has acknowledged.  Runs in the triggerer only."""

    start_from_trigger = True

    def __init__(self, *, pipeline: Pipeline, stage: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self._kwargs: dict[str, Any] = {"pipeline": pipeline.uid, "stage": stage}
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls="sluice_airflow.answers.AwaitAcksTrigger",
            trigger_kwargs=self._kwargs,
            next_method="execute",
            timeout=pipeline.checkpointing.timeout + TRIGGER_GRACE,
        )

    def execute(self, context: Context) -> None:
        """Poll once, and reschedule: only ``dag.test()`` calls it, in a single process.

        The scheduler itself starts the trigger, and the trigger ends the task.  Before Airflow 3.3
        a worker does, which defers the task.
        """
        if not (STARTS_FROM_TRIGGER or is_dag_test()):
            args = self.start_trigger_args
            trigger = AwaitAcksTrigger(**self._kwargs, cause=run_cause(context["ti"]))
            self.defer(trigger=trigger, method_name=args.next_method, timeout=args.timeout)
        from sluice_airflow.polls import Acknowledged, Lost, Outstanding, StageWatch

        with airflow_failures():
            location, cause = Settings.from_environment().location, run_cause(context["ti"])
            stage_progress = StageWatch(location, **self._kwargs, cause=cause).poll()
        match stage_progress:
            case Outstanding(progress):
                log.info("%s", progress)
                raise AirflowRescheduleException(datetime.now(UTC) + RESCHEDULE_AFTER)
            case Lost(reason):
                raise AirflowFailException(reason)
            case Acknowledged(progress):
                log.info("acknowledged: %s", progress)


class AwaitAcksTrigger(BaseTrigger):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Fires when every subtask of a stage has answered, or the checkpoint has ended.

    The class path and the keyword names below are stored in Airflow's database while a task is
    deferred.  They are a wire format: rename neither.  The checkpoint is found by its *cause*,
    which is derived from the DAG run unless it is given; the root is that of the environment.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        stage: str,
        cause: str | None = None,
        root: str | None = None,
        endpoint_url: str | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.stage = stage
        self.cause = cause
        self.root = root
        self.endpoint_url = endpoint_url
        self.poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "sluice_airflow.answers.AwaitAcksTrigger",
            {
                "pipeline": self.pipeline,
                "stage": self.stage,
                "cause": self.cause,
                "root": self.root,
                "endpoint_url": self.endpoint_url,
                "poll_s": self.poll_s,
            },
        )

    async def run(self) -> AsyncIterator[TaskSuccessEvent | TaskFailedEvent]:
        try:
            watch = await asyncio.to_thread(self._watch)
            lost = await self._await_end(watch)
        except SluiceError as error:
            lost = str(error)  # For example an unreadable journal: fail here, and not on a worker.
        if lost is None:
            yield TaskSuccessEvent()
        else:
            log.error("stage lost stage=%s reason=%s", self.stage, lost)
            yield TaskFailedEvent(xcoms={"reason": lost})

    async def _await_end(self, watch: StageWatch) -> str | None:
        """Wait for the acks; None when all subtasks acknowledged, else why they never will."""
        from sluice_airflow.polls import Acknowledged, Lost, Outstanding

        begin, logged = time.monotonic(), ""
        while True:
            try:
                stage_progress = await asyncio.to_thread(watch.poll)
            except StoreUnavailable as error:
                stage_progress = Outstanding(f"the store does not answer: {error}")
            waited_s = round(time.monotonic() - begin)
            match stage_progress:
                case Outstanding(progress):
                    if progress != logged:
                        log.info("%s (%d s)", progress, waited_s)
                        logged = progress
                case Acknowledged(progress):
                    log.info("acknowledged: %s (%d s)", progress, waited_s)
                    return None
                case Lost(reason):
                    return reason
                case _:
                    assert_never(stage_progress)
            await asyncio.sleep(self.poll_s)

    def _watch(self) -> StageWatch:
        from sluice.store.open import StoreLocation
        from sluice_airflow.polls import StageWatch

        if self.root is None:
            location = Settings.from_environment().location
        else:
            location = StoreLocation(root=self.root, endpoint_url=self.endpoint_url)
        cause = self.cause or run_cause(self.task_instance)
        return StageWatch(location, pipeline=self.pipeline, stage=self.stage, cause=cause)
