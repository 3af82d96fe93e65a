"""The sensor of a stage's acks: no worker slot before, during or after (see ``triggers``).

The trigger that waits for the acks of a stage, in the triggerer, without any worker slot.

The module is light, as the triggerer imports it; boto3 is imported once.

``StageWatch``: the progress of one stage of one checkpoint, read from the bucket.

    Waiting --every subtask acknowledged--> Acknowledged
       |
       +----a decline, the timeout, or the checkpoint gone----> Lost

A look is one LIST.  The journal is read before the first, for the checkpoint that the DAG run owns,
and again before a verdict, because only it has the current execution attempt.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException
from airflow.triggers.base import BaseTrigger, StartTriggerArgs, TaskFailedEvent, TaskSuccessEvent

from sluice.core.configuration import JobStatus
from sluice.core.events import AlignmentTimedOut
from sluice.core.pending import PendingCheckpoint
from sluice.declaration.pipeline import Pipeline
from sluice.errors import SluiceError, StoreUnavailable
from sluice.protocol.keys import PipelinePaths
from sluice.store.checkpoints import Answers, AnswerStore
from sluice.store.journal import Journal, jittered_pause
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store
from sluice_airflow.runs import airflow_failures, cause_of, completed_of, pending_of
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
            trigger_cls="sluice_airflow.answers.AwaitAcksTrigger",
            trigger_kwargs=self._kwargs,
            next_method="execute",
            timeout=pipeline.checkpointing.timeout + TRIGGER_GRACE,
        )

    def execute(self, context: Context) -> None:
        """Look once, and reschedule: only ``dag.test()`` calls it, in a single process.

        The scheduler itself starts the trigger, and the trigger ends the task.
        """

        with airflow_failures():
            location, cause = Settings.from_environment().location, cause_of(context["ti"])
            sight = StageWatch(location, **self._kwargs, cause=cause).look()
        match sight:
            case Outstanding(progress):
                log.info("%s", progress)
                raise AirflowRescheduleException(datetime.now(UTC) + RESCHEDULE_AFTER)
            case Lost(reason):
                raise AirflowFailException(reason)
            case Acknowledged(progress):
                log.info("acknowledged: %s", progress)


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
        begin, said = time.monotonic(), ""
        while True:
            try:
                sight = await asyncio.to_thread(watch.look)
            except StoreUnavailable as error:
                sight = Outstanding(f"the store does not answer: {error}")
            waited_s = round(time.monotonic() - begin)
            match sight:
                case Outstanding(progress):
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


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Subtasks are outstanding; ``progress`` is for people: "11 of 12, waiting for parse/3"."""

    progress: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    progress: str


@dataclass(frozen=True, slots=True)
class Lost:
    reason: str


POLLS_PER_JOURNAL_READ = (
    20  # An abort that died before it deleted the plan shows only in the journal.
)

StageProgress: TypeAlias = Outstanding | Acknowledged | Lost


class StageWatch:
    """A watch of one stage, without resources to close; every look may raise StoreUnavailable."""

    def __init__(self, location: StoreLocation, *, pipeline: str, stage: str, cause: str) -> None:
        store, paths = shared_store(location), PipelinePaths(pipeline)
        self._answers = AnswerStore(store, paths)
        self._journal = Journal(store, paths, pause=jittered_pause)
        self._stage = stage
        self._cause = cause
        self._pending: PendingCheckpoint | None = None
        self._looks = 0
        self._aligned_timeout_ms = 0

    def look(self) -> StageProgress:
        found = self._pending or self._read_journal()
        if not isinstance(found, PendingCheckpoint):
            return found
        answers = self._answers.observe(found.checkpoint_id)
        sight = self._judge(found, answers)
        self._looks += 1
        is_sure = isinstance(sight, Outstanding) and not self._has_newer_attempt(found, answers)
        if is_sure and self._looks % POLLS_PER_JOURNAL_READ:
            self._pending = found
            return sight
        found = self._read_journal()
        if not isinstance(found, PendingCheckpoint):
            return found
        self._pending = found
        return self._judge(found, answers)

    def _read_journal(self) -> PendingCheckpoint | StageProgress:
        state = self._journal.load().state
        self._aligned_timeout_ms = state.configuration.aligned_timeout_ms
        pending = pending_of(state, self._cause)
        if pending is not None:
            return pending
        completed = completed_of(state, self._cause)
        if completed is not None:
            return Acknowledged(f"checkpoint {completed.checkpoint_id} is completed")
        was_aborted = any(failed.cause == self._cause for failed in state.failed)
        if state.status is JobStatus.FINISHED and not was_aborted:
            return Acknowledged("the job is FINISHED, and its checkpoints went with it")
        return Lost(f"the checkpoint of {self._cause} was aborted")

    def _overtake(self, pending: PendingCheckpoint) -> bool:
        """Have the coordinator overtake the stage after the aligned timeout; whether it did."""
        transition = self._journal.append(
            lambda state: AlignmentTimedOut(
                generation=state.generation,
                at_ms=time.time_ns() // 1_000_000,
                checkpoint_id=pending.checkpoint_id,
                stages=(self._stage,),
            )
        )
        after = transition.state.pending_checkpoint(pending.checkpoint_id)
        return after is not None and self._stage in after.overtaken

    def _has_newer_attempt(self, pending: PendingCheckpoint, answers: Answers) -> bool:
        """Whether *answers* has a newer attempt: it is journaled first, so our state is old."""
        known = pending.attempt_of(self._stage)
        return any(
            subtask.stage == self._stage and attempt > known
            for subtask, attempt in answers.acknowledged | answers.declined
        )

    def _judge(self, pending: PendingCheckpoint, answers: Answers) -> StageProgress:
        task = next(task for task in pending.tasks if task.uid == self._stage)
        attempt = pending.attempt_of(self._stage)
        declined = sorted(
            subtask
            for subtask, of_attempt in answers.declined
            if subtask.stage == self._stage and of_attempt == attempt
        )
        missing = answers.missing(task.subtasks, attempt)
        if self._stage in pending.overtaken:
            return Acknowledged("overtaken: its input stays in flight")
        if declined:
            return Lost(f"subtask {declined[0]} declined checkpoint {pending.checkpoint_id}")
        if not missing:
            return Acknowledged(f"{task.parallelism} of {task.parallelism}")
        if not answers.has_plan:
            return Lost(f"the plan of checkpoint {pending.checkpoint_id} is gone")
        now_ms = time.time_ns() // 1_000_000
        waited_ms = now_ms - pending.triggered_at_ms
        if now_ms >= pending.expires_at_ms:
            waited_s = (pending.expires_at_ms - pending.triggered_at_ms) // 1_000
            names = ", ".join(map(str, missing))
            return Lost(
                f"checkpoint {pending.checkpoint_id} expired after {waited_s} s; {names} did not "
                "acknowledge"
            )
        is_late = task.may_be_overtaken and waited_ms >= self._aligned_timeout_ms
        if is_late and self._overtake(pending):
            return Acknowledged("overtaken: its input stays in flight")
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        done = task.parallelism - len(missing)
        return Outstanding(f"{done} of {task.parallelism}, waiting for {missing[0]}{others}")


@cache
def shared_store(location: StoreLocation) -> ObjectStore:
    """One client for all watches of a triggerer, as building one costs more than a look."""
    return open_store(location)
