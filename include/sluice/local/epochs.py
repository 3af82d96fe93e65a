"""``EpochDriver``: runs the epochs of a job in one process, without Airflow.

The coordinator and the stages are those of the DAGs.  It takes one checkpoint after the other; its
callers decide what comes next: the loop of ``sluice run`` (``run_loop``), local runs, tests and
benchmarks.

Stages run in threads, each as soon as its inputs, and its state in the parent, are sealed.  So with
several concurrent checkpoints a stage works on epoch n + 1 while the next one works on n, and in
unaligned checkpoints no stage waits for another.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from sluice.coordinator.completion import commit, finalize
from sluice.coordinator.recovery import fail_checkpoint, overtake
from sluice.coordinator.trigger import NotTriggered, Queued, Triggered, TriggerOutcome, trigger
from sluice.core.completed import CompletedCheckpoint
from sluice.core.ids import CheckpointId
from sluice.core.pending import FIRST_ATTEMPT
from sluice.core.plan import CheckpointPlan
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.reasons import CheckpointFailureReason as Reason
from sluice.core.state import FailedCheckpoint
from sluice.errors import FencedError, StageFailed
from sluice.job.job import Job
from sluice.local.running_epoch import Ran, RunningEpoch, first_failure, seconds_by_chain, wait_for
from sluice.spark.session import interrupt, stage_tag, tagged
from sluice.spark.stage import AcknowledgedStage, run_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 2.0  # Between two looks while none is due: a person may ask for one, or resume.
QUEUE_POLL_S = 0.5  # The interval at which a queued request is repeated.


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One checkpoint's outcome: completed, failed for a reason, or ``aborted`` by a person."""

    plan: CheckpointPlan
    stage_seconds: dict[str, float]
    seconds: float
    completed: CompletedCheckpoint | None
    error: StageFailed | None = None
    aborted: FailedCheckpoint | None = None

    @property
    def failure(self) -> str | None:
        """Why it failed, in one sentence."""
        if self.aborted is not None:
            return str(self.aborted)
        return None if self.error is None else str(self.error)


class StageRunner(Protocol):
    """The type of ``run_stage``, and of functions that retry a failed stage, as Airflow does."""

    def __call__(
        self,
        job: Job,
        spark: SparkSession,
        checkpoint_id: CheckpointId,
        stage: str,
        *,
        attempt: int,
    ) -> AcknowledgedStage: ...


class EpochDriver:
    """The epochs under way, old to new, and the threads that run their stages."""

    def __init__(self, job: Job, spark: SparkSession, run: StageRunner = run_stage) -> None:
        self._job = job
        self._spark = spark
        self._run_stage = run
        threads = len(job.pipeline.stages) * (job.state().configuration.max_concurrent + 1)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stage")
        self._compactor = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._compactions: dict[str, Future[None]] = {}
        self._running: deque[RunningEpoch] = deque()
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

    def take(self, *, drain: bool = False) -> Epoch | None:
        """Take one checkpoint of what can be read now; None when there is none to take."""
        return self.end_oldest() if self.begin(drain=drain) else None

    def begin(self, *, drain: bool) -> bool:
        """Trigger the next checkpoint and start its stages; False when there is none to take."""
        outcome = self._request()
        if isinstance(outcome, Triggered):
            self._start(outcome.plan)
            return True
        is_at_rest = isinstance(outcome, NotTriggered) and outcome.reason is None
        if not (is_at_rest and drain and not self._running):
            return False
        return self.force(CheckpointType.SAVEPOINT_TERMINATE, cause="sluice run --drain")

    def begin_savepoint(self, name: str) -> bool:
        """Trigger a savepoint that suspends the job; False when the job is not RUNNING any more."""
        if self._job.state().status is not JobStatus.RUNNING:
            return False
        suspend = CheckpointType.SAVEPOINT_SUSPEND
        return self.force(suspend, cause="sluice run --savepoint", savepoint_name=name)

    def force(
        self,
        type: CheckpointType,  # noqa: A002 - Flink's word
        *,
        cause: str,
        savepoint_name: str | None = None,
    ) -> bool:
        """Trigger a checkpoint, also without new input, and start its stages.

        False when the coordinator refuses.
        """
        outcome = trigger(
            self._job,
            type=type,
            cause=cause,
            savepoint_name=savepoint_name,
            is_periodic=False,
        )
        if isinstance(outcome, Triggered):
            self._start(outcome.plan)
        return isinstance(outcome, Triggered)

    def _start(self, plan: CheckpointPlan) -> None:
        before = self._running[-1].stages if self._running else {}
        stages: dict[str, Ran] = {}
        # In topological order, so that no stage waits for a thread behind it in the pool.
        for task in plan.tasks:
            sealed = [before[task.uid]] if task.uid in before else []
            if not task.is_unaligned:
                sealed += [stages[producer] for producer in task.reads if producer in stages]
            stages[task.uid] = self._pool.submit(self._run, plan, task.uid, sealed)
        self._running.append(RunningEpoch(plan=plan, stages=stages))

    def _request(self) -> TriggerOutcome:
        """Request a checkpoint, and wait while it is queued.

        If it waits for an epoch of this driver, the caller has to end that epoch first.
        """
        while True:
            outcome = trigger(self._job, cause="sluice run", request_id=self._request_id)
            if not isinstance(outcome, Queued):  # An adopted one took its place in the queue, too.
                self._request_id = uuid.uuid4().hex
            if isinstance(outcome, Triggered) or self._running:
                return outcome
            if isinstance(outcome, Queued):
                time.sleep(QUEUE_POLL_S)
            elif outcome.retry_in_ms is not None:
                log.info("no checkpoint is due: %s", outcome.message)
                time.sleep(min(outcome.retry_in_ms / 1000, LOOK_AGAIN_S))
            else:
                return outcome

    def end_oldest(self) -> Epoch:
        """Wait for the stages of the oldest epoch, then complete and commit it, or abort it."""
        epoch = self._running.popleft()
        plan = epoch.plan
        overtaken = self._await(epoch)
        stages = {uid: stage for uid, stage in epoch.stages.items() if uid not in overtaken}
        aborted = self._aborted(plan)
        error = None if aborted is not None else self._failure(epoch, stages)
        completed = None
        if aborted is None and error is None:
            completed, aborted = self._complete(plan)
        self._stop(epoch)
        return Epoch(
            plan=plan,
            stage_seconds=seconds_by_chain(plan, stages) if completed else {},
            seconds=time.monotonic() - epoch.started,
            completed=completed,
            error=error,
            aborted=aborted,
        )

    def _failure(self, epoch: RunningEpoch, stages: dict[str, Ran]) -> StageFailed | None:
        """The failure of a stage, once the checkpoint is aborted for it; None if all are done."""
        late = [uid for uid, stage in stages.items() if not stage.done()]
        error = first_failure(stages)
        if error is not None:
            checkpoint_id = epoch.plan.checkpoint_id
            log.warning("stage failed checkpoint_id=%d", checkpoint_id, exc_info=error)
            reason = Reason.CHECKPOINT_DECLINED if error.is_declined else Reason.TASK_FAILURE
            self._fail(epoch.plan, reason, error)
        elif late:
            cause = "it did not acknowledge in time"
            error = StageFailed(f"stage {late[0]!r} failed: {cause}", stage=late[0], cause=cause)
            self._fail(epoch.plan, Reason.CHECKPOINT_EXPIRED, error)
        return error

    def _complete(
        self, plan: CheckpointPlan
    ) -> tuple[CompletedCheckpoint | None, FailedCheckpoint | None]:
        """Complete and commit it, unless a person aborts it at this moment.

        Raises:
            FencedError: another coordinator took over.
        """
        try:
            completed = finalize(self._job, plan.checkpoint_id)
        except FencedError:
            aborted = self._aborted(plan)
            if aborted is None:
                raise
            return None, aborted
        commit(self._job, plan.checkpoint_id)
        return completed, None

    def _aborted(self, plan: CheckpointPlan) -> FailedCheckpoint | None:
        """How the checkpoint ended, if a person aborted it, or the one that it continues."""
        state = self._job.state()
        failed = state.failed_checkpoint(plan.checkpoint_id)
        is_alive = state.status is JobStatus.RUNNING and state.generation == plan.generation
        return failed if is_alive else None

    def abandon(self) -> None:
        """Stop and drop all epochs under way, as they continue one that failed."""
        for epoch in self._running:
            self._stop(epoch)
        self._running.clear()

    def _await(self, epoch: RunningEpoch) -> set[str]:
        """Wait for the stages; return those that were overtaken after the aligned timeout."""
        may_be = {task.uid for task in epoch.plan.tasks if task.may_be_overtaken}
        if may_be:
            aligned_ms = self._job.state().configuration.aligned_timeout_ms
            rest_s = aligned_ms / 1000 - (time.monotonic() - epoch.started)
            self._wait(epoch, epoch.stages.values(), rest_s)
        behind = {uid for uid in may_be if not epoch.stages[uid].done()}
        if behind:
            state = overtake(self._job, epoch.plan.checkpoint_id, behind)
            pending = state.pending_checkpoint(epoch.plan.checkpoint_id)
            behind = set(pending.overtaken if pending is not None else ())
        rest_ms = epoch.plan.expires_at_ms - self._job.clock()
        waited_for = [stage for uid, stage in epoch.stages.items() if uid not in behind]
        self._wait(epoch, waited_for, rest_ms / 1000)
        return behind

    def _wait(self, epoch: RunningEpoch, stages: Iterable[Ran], seconds: float) -> None:
        wait_for(stages, seconds, gives_up=lambda: self._aborted(epoch.plan) is not None)

    def _fail(self, plan: CheckpointPlan, reason: Reason, error: StageFailed) -> None:
        is_task_failure = reason is Reason.TASK_FAILURE
        checkpoint_id, why = plan.checkpoint_id, str(error)
        fail_checkpoint(self._job, checkpoint_id, reason, why, is_task_failure=is_task_failure)

    def _stop(self, epoch: RunningEpoch) -> None:
        """Interrupt stages that still run, to free the cores; the coordinator does not need it."""
        for uid, stage in epoch.stages.items():
            if not stage.done() and not stage.cancel():
                interrupt(self._spark, self._tag(epoch.plan, uid))
        wait(epoch.stages.values())

    def _tag(self, plan: CheckpointPlan, uid: str) -> str:
        return stage_tag(self._job.pipeline.uid, plan.checkpoint_id, uid)

    def _run(self, plan: CheckpointPlan, uid: str, sealed: list[Ran]) -> float | None:
        for other in sealed:
            other.result()
        started = time.monotonic()
        with tagged(self._spark, self._tag(plan, uid)):
            stage = self._run_stage(
                self._job, self._spark, plan.checkpoint_id, uid, attempt=FIRST_ATTEMPT
            )
        if uid not in self._compactions or self._compactions[uid].done():
            self._compactions[uid] = self._compactor.submit(stage.compact)
        return time.monotonic() - started if stage.snapshots else None
