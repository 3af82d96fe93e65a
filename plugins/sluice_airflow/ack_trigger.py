"""The trigger that waits for the acks of a stage, in the triggerer, without any worker slot.

The module is light, as the triggerer imports it; boto3 is imported once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any, assert_never

from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent

from sluice.errors import SluiceError, StoreUnavailable
from sluice.storage.open import StoreLocation
from sluice_airflow.ownership import cause_of
from sluice_airflow.settings import Settings
from sluice_airflow.stage_watch import Acknowledged, Lost, StageWatch, Waiting

log = logging.getLogger(__name__)

POLL_S = 0.5  # Half of the second after which the triggerer itself forwards events.


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
            "sluice_airflow.ack_trigger.AwaitAcksTrigger",
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
        begin, said = time.monotonic(), ""
        while True:
            try:
                sight = await asyncio.to_thread(watch.look)
            except StoreUnavailable as error:
                sight = Waiting(f"the store does not answer: {error}")
            waited_s = round(time.monotonic() - begin)
            match sight:
                case Waiting(progress):
                    if progress != said:
                        log.info("%s (%d s)", progress, waited_s)
                        said = progress
                case Acknowledged(progress):
                    log.info("acknowledged: %s (%d s)", progress, waited_s)
                    return None
                case Lost(reason):
                    return reason
                case _:
                    assert_never(sight)
            await asyncio.sleep(self.poll_s)

    def _watch(self) -> StageWatch:
        settings = Settings.from_environment()
        if self.root is None:
            location = settings.location
        else:
            location = StoreLocation(root=self.root, endpoint_url=self.endpoint_url)
        cause = self.cause or cause_of(self.task_instance)
        return StageWatch(location, pipeline=self.pipeline, stage=self.stage, cause=cause)
