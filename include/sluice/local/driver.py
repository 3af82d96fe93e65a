"""Runs the epochs of a job in one process, without Airflow: ``EpochDriver``, and a loop over it.

The coordinator and the stages are those of the DAGs.  ``EpochDriver`` triggers a checkpoint, runs
its stages, and then completes and commits it, or aborts it.  Its callers decide what comes next:
``run_epochs``, the loop of ``sluice run``; local runs, tests and benchmarks.

Stages run in threads, each as soon as its inputs, and its state in the parent, are sealed.  So with
several concurrent checkpoints a stage works on epoch n + 1 while the next one works on n, and in
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
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias

from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, overtake
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, stop
from sluice.coordinator.trigger import NotTriggered, Queued, Triggered, TriggerOutcome, trigger
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.failures import is_equal_cause
from sluice.core.ids import CheckpointId
from sluice.core.pending import FIRST_ATTEMPT
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Latest
from sluice.core.state import FailedCheckpoint
from sluice.errors import FencedError, NotYetAcknowledged, StageFailed
from sluice.job.job import Job
from sluice.spark.session import interrupt, stage_tag, tagged
from sluice.spark.stage import AcknowledgedStage, run_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
IDLE_POLL_S = 2.0  # The longest pause while none is due: a person may ask for one, or resume.
QUEUE_POLL_S = 0.5  # Between two repetitions of a queued request.
ABORT_POLL_S = 2.0  # Between two readings of the journal, for an abort by a person.
TOLERATED_PAUSE_S = 1.0  # Behind a tolerated failure, which may be repeated without end.


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


def run_epochs(
    job: Job,
    spark: SparkSession,
    *,
    epochs: int | None,
    drain: bool,
    savepoint: str | None = None,
    report: Callable[[Epoch], None],
) -> JobStatus:
    """Take checkpoints until *epochs* have completed, or the input has ended, or the job has.

    With *drain* an unbounded job that has read everything is ended by a final checkpoint, whose
    watermark fires all windows.  With *savepoint* the last checkpoint is a savepoint of that name,
    and suspends a job that has not ended.  A failed stage aborts its checkpoint; the restart
    strategy decides whether, and when, the job goes on from the latest completed one, as it does in
    Airflow.  But a job that fails twice for one reason, without a completed checkpoint in between,
    is suspended: a restart cannot help it (ADR 5).

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
            if not driver.in_flight and not (savepoint and driver.begin_savepoint(savepoint)):
                return job.state().status
            epoch = driver.end_oldest()
            report(epoch)
            if epoch.completed is not None:
                completed += 1
                failures.clear()
                continue
            driver.abandon()
            if epoch.error is not None:
                is_repeated = any(is_same_failure(epoch.error, earlier) for earlier in failures)
                failures.append(epoch.error)
                recover(job, epoch.error, is_repeated=is_repeated)


def recover(job: Job, failure: StageFailed, *, is_repeated: bool) -> None:
    """Restore the job when its pause is over, or suspend it if the failure *is_repeated*.

    A failure that the job tolerates only makes it pause.

    Raises:
        StageFailed: the job ended, or is suspended; the message ends with the cause.
    """
    state = job.state()
    uid = job.pipeline.uid
    if state.status is JobStatus.RESTARTING and is_repeated:
        base = stop(job, JobStatus.SUSPENDED).base
        continues = "from the beginning" if base is None else f"from checkpoint {base}"
        raise StageFailed(
            f"job {uid!r} failed twice for the same reason and is SUSPENDED; mend it and run it "
            f"again, and it goes on {continues}: {failure}",
            stage=failure.stage,
            cause=failure.cause,
        )
    if state.status is JobStatus.RUNNING:
        time.sleep(TOLERATED_PAUSE_S)
    elif state.status is JobStatus.RESTARTING:
        pause_ms = (state.restart_at_ms or 0) - job.clock()
        time.sleep(max(0, pause_ms) / 1000)
        restore(job, Latest(), only_generation=state.generation)
    else:
        raise StageFailed(
            f"job {uid!r} is {state.status.value}: {failure}",
            stage=failure.stage,
            cause=failure.cause,
        )


def is_same_failure(one: StageFailed, other: StageFailed) -> bool:
    """Whether both are the same failure of the same stage; a transient one never is."""
    if one.is_transient or one.stage != other.stage:
        return False
    return is_equal_cause(one.cause, other.cause)


StageFuture: TypeAlias = Future[float | None]
"""A stage that runs: ends with the seconds that it took; None if it ran chained to another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEpoch:
    """An epoch under way in this process: its plan, and the threads that run its stages."""

    plan: CheckpointPlan
    stages: dict[str, StageFuture]
    started: float = field(default_factory=time.monotonic)


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
        parent = self._running[-1].stages if self._running else {}
        stages: dict[str, StageFuture] = {}
        # In topological order, so that no stage waits for a thread behind it in the pool.
        for task in plan.tasks:
            awaited = [parent[task.uid]] if task.uid in parent else []
            if not task.is_unaligned:
                awaited += [stages[producer] for producer in task.reads if producer in stages]
            stages[task.uid] = self._pool.submit(self._run, plan, task.uid, awaited)
        self._running.append(RunningEpoch(plan=plan, stages=stages))

    def _request(self) -> TriggerOutcome:
        """Request a checkpoint, and wait while it is queued.

        If it waits for an epoch of this driver, the caller has to end that epoch first.
        """
        while True:
            outcome = trigger(self._job, cause="sluice run", request_id=self._request_id)
            if not isinstance(outcome, Queued):  # It has an answer: the next request is another.
                self._request_id = uuid.uuid4().hex
            if isinstance(outcome, Triggered) or self._running:
                return outcome
            if isinstance(outcome, Queued):
                time.sleep(QUEUE_POLL_S)
            elif outcome.retry_in_ms is not None:
                log.info("no checkpoint is due: %s", outcome.message)
                time.sleep(min(outcome.retry_in_ms / 1000, IDLE_POLL_S))
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

    def _failure(self, epoch: RunningEpoch, stages: dict[str, StageFuture]) -> StageFailed | None:
        """The failure of a stage, once the checkpoint is aborted for it; None if all are done."""
        late = [uid for uid, stage in stages.items() if not stage.done()]
        error, checkpoint_id = first_failure(stages), epoch.plan.checkpoint_id
        if error is not None:
            log.warning("stage failed checkpoint_id=%d", checkpoint_id, exc_info=error)
            reason = Reason.CHECKPOINT_DECLINED if error.is_declined else Reason.TASK_FAILURE
        elif late:
            cause = "it did not acknowledge in time"
            error = StageFailed(f"stage {late[0]!r} failed: {cause}", stage=late[0], cause=cause)
            reason = Reason.CHECKPOINT_EXPIRED
        else:
            return None
        is_task_failure = reason is Reason.TASK_FAILURE
        fail_checkpoint(
            self._job, checkpoint_id, reason, str(error), is_task_failure=is_task_failure
        )
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
        """How the checkpoint ended, if a person aborted it or the one that it continues."""
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

        def wait_up_to(seconds: float, stages: Iterable[StageFuture]) -> None:
            wait_for(stages, seconds, gives_up=lambda: self._aborted(epoch.plan) is not None)

        overtaken = {task.uid for task in epoch.plan.tasks if task.may_be_overtaken}
        if overtaken:
            aligned_ms = self._job.state().configuration.aligned_timeout_ms
            passed_s = time.monotonic() - epoch.started
            wait_up_to(aligned_ms / 1000 - passed_s, epoch.stages.values())
            overtaken = {uid for uid in overtaken if not epoch.stages[uid].done()}
        if overtaken:
            state = overtake(self._job, epoch.plan.checkpoint_id, overtaken)
            pending = state.pending_checkpoint(epoch.plan.checkpoint_id)
            overtaken = set(pending.overtaken if pending is not None else ())
        rest_ms = epoch.plan.expires_at_ms - self._job.clock()
        others = [stage for uid, stage in epoch.stages.items() if uid not in overtaken]
        wait_up_to(rest_ms / 1000, others)
        return overtaken

    def _stop(self, epoch: RunningEpoch) -> None:
        """Interrupt stages that still run, to free the cores; the coordinator does not need it."""
        for uid, stage in epoch.stages.items():
            if not stage.done() and not stage.cancel():
                interrupt(self._spark, self._tag(epoch.plan, uid))
        wait(epoch.stages.values())

    def _tag(self, plan: CheckpointPlan, uid: str) -> str:
        return stage_tag(self._job.pipeline.uid, plan.checkpoint_id, uid)

    def _run(self, plan: CheckpointPlan, uid: str, awaited: list[StageFuture]) -> float | None:
        for other in awaited:
            other.result()
        started = time.monotonic()
        with tagged(self._spark, self._tag(plan, uid)):
            stage = self._run_stage(
                self._job, self._spark, plan.checkpoint_id, uid, attempt=FIRST_ATTEMPT
            )
        if uid not in self._compactions or self._compactions[uid].done():
            self._compactions[uid] = self._compactor.submit(stage.compact)
        return time.monotonic() - started if stage.snapshots else None


def wait_for(
    stages: Iterable[StageFuture], seconds: float, *, gives_up: Callable[[], bool]
) -> None:
    """Wait until all are done or one failed, for *seconds*, or until *gives_up* is true."""
    deadline, awaited = time.monotonic() + seconds, tuple(stages)
    while True:
        rest_s = max(0.0, deadline - time.monotonic())
        ended, others = wait(awaited, min(rest_s, ABORT_POLL_S), return_when=FIRST_EXCEPTION)
        has_failed = any(stage.cancelled() or stage.exception() for stage in ended)
        if not others or has_failed or rest_s == 0 or gives_up():
            return


def first_failure(stages: dict[str, StageFuture]) -> StageFailed | None:
    """The error of the first stage that failed; those behind it failed because of it.

    Raises:
        Exception: an error of sluice itself, and not of a stage.
    """
    for uid, stage in stages.items():
        error = stage.exception() if stage.done() else None
        if isinstance(error, StageFailed):
            return error
        # Another coordinator has started a new attempt of a stage.
        if isinstance(error, NotYetAcknowledged):
            return StageFailed(str(error), stage=uid)
        if error is not None:
            raise error
    return None


def seconds_by_chain(plan: CheckpointPlan, stages: dict[str, StageFuture]) -> dict[str, float]:
    """The seconds of each Spark job of an epoch, by the stages that it ran: ``a > b``."""
    chains: dict[str, list[str]] = {}
    seconds: dict[str, float] = {}
    for task in plan.tasks:
        if task.uid not in stages:
            continue
        took = stages[task.uid].result()
        if took is None:
            (producer,) = task.reads
            chains[task.uid] = chains[producer]
            chains[producer].append(task.uid)
        else:
            chains[task.uid], seconds[task.uid] = [task.uid], took
    return {" > ".join(chains[first]): took for first, took in seconds.items()}
