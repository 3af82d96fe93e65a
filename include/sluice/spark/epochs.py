"""Drives a job in one process: the same coordinator and stages as the DAGs, without Airflow.

Stages run in threads, each as soon as what it reads and what it continues is sealed.  So with
several concurrent checkpoints a stage is on epoch n + 1 while the one behind it is on n, and in
unaligned checkpoints no stage waits for another.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from sluice.core.completed import CompletedCheckpoint
from sluice.core.pending import FIRST_ATTEMPT
from sluice.core.plan import CheckpointPlan
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.errors import StageFailed
from sluice.runner.completion import commit, finalize
from sluice.runner.job import Job
from sluice.runner.recovery import fail_checkpoint, overtake
from sluice.runner.trigger import NotTriggered, Queued, Triggered, TriggerOutcome, trigger
from sluice.spark.restarting import is_equal, recover
from sluice.spark.session import stage_tag
from sluice.spark.stage import run_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

QUEUE_POLL_S = 0.5  # How often a request that another coordinator holds back is repeated.


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One checkpoint's outcome: completed, or failed for a reason."""

    plan: CheckpointPlan
    stage_seconds: dict[str, float]
    seconds: float
    completed: CompletedCheckpoint | None
    error: StageFailed | None = None

    @property
    def failure(self) -> str | None:
        """Why it failed, in one sentence."""
        return None if self.error is None else str(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    plan: CheckpointPlan
    stages: dict[str, Future[float]]
    started: float = field(default_factory=time.monotonic)


def run_epochs(
    job: Job,
    spark: SparkSession,
    *,
    epochs: int | None,
    drain: bool,
    report: Callable[[Epoch], None],
) -> JobStatus:
    """Take checkpoints until *epochs* have completed, or the input has ended, or the job has.

    With *drain* an unbounded job that has read everything is ended by a final checkpoint, whose
    watermark fires all windows.  A failed stage aborts its checkpoint; the restart strategy decides
    whether the job goes on from the latest completed one.  What fails twice for one reason, and no
    checkpoint completed in between, would fail for ever: then the job is suspended.

    Raises:
        StageFailed: the restart strategy gave up, and the job is FAILED, or it is SUSPENDED; the
            message ends with the cause.
    """
    completed = 0
    failures: list[StageFailed] = []  # Since the latest completed checkpoint.
    with EpochDriver(job, spark) as driver:
        while True:
            has_room = driver.in_flight < job.state().configuration.max_concurrent
            is_wanted = epochs is None or completed + driver.in_flight < epochs
            if has_room and is_wanted and driver.begin(drain=drain):
                continue
            if not driver.in_flight:
                return job.state().status
            epoch = driver.end_oldest()
            report(epoch)
            if epoch.error is None:
                completed += 1
                failures.clear()
            else:
                driver.abandon()
                is_repeated = any(is_equal(epoch.error, before) for before in failures)
                failures.append(epoch.error)
                recover(job, epoch.error, is_repeated=is_repeated)


class EpochDriver:
    """The epochs under way, old to new, and the threads that run their stages."""

    def __init__(self, job: Job, spark: SparkSession) -> None:
        self._job = job
        self._spark = spark
        threads = len(job.pipeline.stages) * (job.state().configuration.max_concurrent + 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stage")
        self._compactor = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._compactions: dict[str, Future[None]] = {}
        self._running: deque[_Running] = deque()
        self._request_id = uuid.uuid4().hex

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()
        self._pool.shutdown()
        self._compactor.shutdown(cancel_futures=True)

    @property
    def in_flight(self) -> int:
        return len(self._running)

    def begin(self, *, drain: bool) -> bool:
        """Trigger the next checkpoint and start its stages; False when there is none to take."""
        outcome = self._request()
        may_drain = drain and not self._running
        if isinstance(outcome, NotTriggered) and outcome.reason is None and may_drain:
            outcome = trigger(
                self._job,
                type=CheckpointType.SAVEPOINT_TERMINATE,
                cause="sluice run --drain",
                is_periodic=False,
            )
        if not isinstance(outcome, Triggered):
            return False
        plan = outcome.plan
        before = self._running[-1].stages if self._running else {}
        stages: dict[str, Future[float]] = {}
        for task in plan.tasks:  # In topological order, so nobody waits for a thread behind him.
            sealed = [before[task.uid]] if task.uid in before else []
            if not task.is_unaligned:
                sealed += [stages[producer] for producer in task.reads if producer in stages]
            stages[task.uid] = self._pool.submit(self._run, plan, task.uid, sealed)
        self._running.append(_Running(plan=plan, stages=stages))
        return True

    def _request(self) -> TriggerOutcome:
        """Ask for a checkpoint.  What holds it back may be an epoch of our own, which is to end
        first; else another coordinator's, or a pause: wait.
        """
        while True:
            outcome = trigger(self._job, cause="sluice run", request_id=self._request_id)
            if not isinstance(outcome, Queued):
                self._request_id = uuid.uuid4().hex
            if isinstance(outcome, Triggered) or self._running:
                return outcome
            if isinstance(outcome, Queued):
                time.sleep(QUEUE_POLL_S)
            elif outcome.retry_in_ms is not None:
                time.sleep(outcome.retry_in_ms / 1000)
            else:
                return outcome

    def end_oldest(self) -> Epoch:
        """Wait for the stages of the oldest epoch, then complete and commit it, or abort it."""
        epoch = self._running.popleft()
        plan = epoch.plan
        overtaken = self._await(epoch)
        stages = {uid: stage for uid, stage in epoch.stages.items() if uid not in overtaken}
        late = [uid for uid, stage in stages.items() if not stage.done()]
        completed, error = None, _first_failure(stages)
        if error is not None:
            log.warning("stage failed checkpoint_id=%d", plan.checkpoint_id, exc_info=error)
            self._fail(epoch, CheckpointFailureReason.TASK_FAILURE, error)
        elif late:
            cause = "it did not acknowledge in time"
            error = StageFailed(f"stage {late[0]!r} failed: {cause}", stage=late[0], cause=cause)
            self._fail(epoch, CheckpointFailureReason.CHECKPOINT_EXPIRED, error)
        else:
            completed = finalize(self._job, plan.checkpoint_id)
            commit(self._job, plan.checkpoint_id)
        self._stop(epoch)
        return Epoch(
            plan=plan,
            stage_seconds={uid: stage.result() for uid, stage in stages.items() if completed},
            seconds=time.monotonic() - epoch.started,
            completed=completed,
            error=error,
        )

    def abandon(self) -> None:
        """What is still under way continues an epoch that failed: stop it and forget it."""
        for epoch in self._running:
            self._stop(epoch)
        self._running.clear()

    def _await(self, epoch: _Running) -> set[str]:
        """Return the stages that were overtaken: the aligned checkpoint timeout passed them by."""
        may_be = {task.uid for task in epoch.plan.tasks if task.may_be_overtaken}
        if may_be:
            aligned_ms = self._job.state().configuration.aligned_timeout_ms
            _wait(epoch.stages.values(), aligned_ms / 1000 - (time.monotonic() - epoch.started))
        behind = {uid for uid in may_be if not epoch.stages[uid].done()}
        if behind:
            state = overtake(self._job, epoch.plan.checkpoint_id, behind)
            pending = state.pending_checkpoint(epoch.plan.checkpoint_id)
            behind = set(pending.overtaken if pending is not None else ())
        rest_ms = epoch.plan.expires_at_ms - self._job.clock()
        _wait([stage for uid, stage in epoch.stages.items() if uid not in behind], rest_ms / 1000)
        return behind

    def _fail(self, epoch: _Running, reason: CheckpointFailureReason, error: StageFailed) -> None:
        is_task_failure = reason is CheckpointFailureReason.TASK_FAILURE
        fail_checkpoint(
            self._job,
            epoch.plan.checkpoint_id,
            reason,
            str(error),
            is_task_failure=is_task_failure,
        )

    def _stop(self, epoch: _Running) -> None:
        """Free the cores of what still runs.  The coordinator does not depend on it."""
        for uid, stage in epoch.stages.items():
            if not stage.done() and not stage.cancel():
                self._spark.interruptTag(self._tag(epoch.plan, uid))
        wait(epoch.stages.values())

    def _tag(self, plan: CheckpointPlan, uid: str) -> str:
        return stage_tag(self._job.pipeline.uid, plan.checkpoint_id, uid)

    def _run(self, plan: CheckpointPlan, uid: str, sealed: list[Future[float]]) -> float:
        for other in sealed:
            other.result()
        started = time.monotonic()
        tag = self._tag(plan, uid)
        self._spark.addTag(tag)
        try:
            stage = run_stage(
                self._job, self._spark, plan.checkpoint_id, uid, attempt=FIRST_ATTEMPT
            )
        finally:
            self._spark.removeTag(tag)
        if uid not in self._compactions or self._compactions[uid].done():
            self._compactions[uid] = self._compactor.submit(stage.compact)
        return time.monotonic() - started


def _first_failure(stages: dict[str, Future[float]]) -> StageFailed | None:
    """The error of the first stage that failed; those behind it failed because of it.

    Raises:
        Exception: what failed was not a stage but sluice itself.
    """
    for stage in stages.values():
        error = stage.exception() if stage.done() else None
        if isinstance(error, StageFailed):
            return error
        if error is not None:
            raise error
    return None


def _wait(stages: Iterable[Future[float]], seconds: float) -> None:
    wait(stages, timeout=max(0.0, seconds), return_when=FIRST_EXCEPTION)
