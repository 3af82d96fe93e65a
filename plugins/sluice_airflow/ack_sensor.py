"""The sensor of a stage's acks: no worker slot before, during or after (see ``triggers``)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException
from airflow.triggers.base import StartTriggerArgs

from sluice.declaration.pipeline import Pipeline
from sluice_airflow.ownership import cause_of
from sluice_airflow.retry_policy import airflow_failures
from sluice_airflow.settings import Settings

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

TRIGGER_GRACE = timedelta(minutes=1)  # The trigger ends at the deadline, unless it died.
RESCHEDULE_AFTER = timedelta(milliseconds=100)


class AwaitAcksSensor(BaseOperator):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Succeeds when every subtask of the stage has acknowledged.  Runs in the triggerer only."""

    start_from_trigger = True

    def __init__(self, *, pipeline: Pipeline, stage: str, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(**kwargs)
        self._kwargs: dict[str, Any] = {"pipeline": pipeline.uid, "stage": stage}
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls="sluice_airflow.ack_trigger.AwaitAcksTrigger",
            trigger_kwargs=self._kwargs,
            next_method="execute",
            timeout=pipeline.checkpointing.timeout + TRIGGER_GRACE,
        )

    def execute(self, context: Context) -> None:
        """Look once, and reschedule: only ``dag.test()`` calls it, in a single process.

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
