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
from typing import TYPE_CHECKING, Protocol, Self, TypeAlias, assert_never

from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import cause_of, fail_checkpoint, keep_short, overtake
from sluice.coordinator.planning import NothingToDo
from sluice.coordinator.publication import commit
from sluice.coordinator.requests import timeout_ms
from sluice.coordinator.restore import restore, stop
from sluice.coordinator.trigger import (
    NotDue,
    NotRunning,
    Queued,
    Refused,
    Triggered,
    TriggerOutcome,
    trigger,
)
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.failures import is_equal_cause
from sluice.core.ids import CheckpointId
from sluice.core.pending import FIRST_ATTEMPT
from sluice.core.plan import CheckpointPlan
from sluice.core.requests import LEAST_RECORDS
from sluice.core.restoring import Latest
from sluice.core.state import FailedCheckpoint
from sluice.core.units import duration
from sluice.declaration.operations import SparkCode
from sluice.errors import (
    CheckpointFailure,
    ConfigurationError,
    FencedError,
    NotYetAcknowledged,
    SluiceError,
    StageFailed,
    StoreUnavailable,
)
from sluice.job.job import Job
from sluice.spark.session import interrupt, stage_tag, tagged
from sluice.spark.stage import AcknowledgedStage, run_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
IDLE_POLL_S = 2.0  # The longest pause while none is due: a person may ask for one, or resume.
QUEUE_POLL_S = 0.5  # Between two repetitions of a queued request.
ABORT_POLL_S = 2.0  # Between two readings of the journal, for an abort by a person.
KEPT_SHORT_EVERY = 10  # Epochs, of some four entries in the journal each.
TOLERATED_PAUSE_S = 1.0  # Behind a tolerated failure, which may be repeated without end.


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One checkpoint's outcome: completed, failed for a reason, or ``aborted`` by a person."""

    plan: CheckpointPlan
    stage_seconds: dict[str, float]
    seconds: float
    completed: CompletedCheckpoint | None
    error: CheckpointFailure | None = None
    aborted: FailedCheckpoint | None = None

    @property
    def failure(self) -> str | None:
        """The reason why it failed, in one sentence."""
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
    and suspends a job that has not ended.

    What fails, be it a trigger, a stage or the completion, counts as the coordinator says, as in
    Airflow: the job goes on, or the restart strategy decides whether, and when, it goes on from the
    latest completed checkpoint.  But a job that fails over twice for one reason, without a
    completed checkpoint in between, is suspended, and so is one whose trigger is refused twice for
    one: to repeat it cannot help (ADR 5).

    Raises:
        CheckpointFailure: the restart strategy gave up, and the job is FAILED, or it is SUSPENDED;
            the message ends with the cause.
        ConfigurationError, TableMismatch: a person has to decide first.
    """
    completed = 0
    failures: list[CheckpointFailure] = []  # Since the latest completed checkpoint.
    with EpochDriver(job, spark) as driver:

        def fail(failure: CheckpointFailure) -> None:
            is_repeated = any(is_same_failure(failure, earlier) for earlier in failures)
            failures.append(failure)
            recover(job, failure, is_repeated=is_repeated)

        while True:
            has_room = driver.in_flight < job.state().configuration.max_concurrent
            is_wanted = epochs is None or completed + driver.in_flight < epochs
            outcome: Begun = NothingToDo(message="as many checkpoints completed as were asked for")
            if has_room and is_wanted:
                outcome = driver.begin(drain=drain)
            if isinstance(outcome, NothingToDo) and savepoint and not driver.in_flight:
                outcome = driver.begin_savepoint(savepoint)
            match outcome:
                case Triggered():
                    continue
                case NothingToDo() | NotRunning() | NotDue() if not driver.in_flight:
                    return _at_rest(job)
                case NothingToDo() | NotRunning() | NotDue() | Queued():
                    pass  # The epochs under way come first.
                case CheckpointFailure():
                    if not driver.in_flight or job.state().status is not JobStatus.RUNNING:
                        driver.abandon()
                        fail(outcome)
                        continue
                case _:
                    assert_never(outcome)
            epoch = driver.end_oldest()
            report(epoch)
            if epoch.completed is not None:
                _keep_short(job, completed)
                completed += 1
                failures.clear()
                continue
            driver.abandon()
            if epoch.error is not None:
                fail(epoch.error)


def _keep_short(job: Job, completed: int) -> None:
    """No watchdog does it here; where the store fails, the next one may."""
    if completed % KEPT_SHORT_EVERY != 0:  # Behind the first epoch of each run, too.
        return
    try:
        for action in keep_short(job):
            log.info("journal kept short pipeline=%s action=%s", job.pipeline.uid, action)
    except StoreUnavailable as error:
        log.warning("journal not kept short pipeline=%s: %s", job.pipeline.uid, error)


def _at_rest(job: Job) -> JobStatus:
    """The status of a job of which nothing is under way any more, once all is published.

    Raises:
        CheckpointFailure: somebody else ended the job, so that it has not read what it could.
    """
    state = job.state()
    if state.owed is not None:
        state = commit(job, state.owed.checkpoint_id)
    if state.status in (JobStatus.CANCELED, JobStatus.FAILED):
        because = f": {state.stopped_because}" if state.stopped_because else ""
        raise CheckpointFailure(
            f"job {job.pipeline.uid!r} is {state.status.value}, and was not ended by this run, "
            f"which had more to do{because}"
        )
    return state.status


def recover(job: Job, failure: CheckpointFailure, *, is_repeated: bool) -> None:
    """Restore the job when its pause is over, or suspend it if the failure *is_repeated*.

    A failure that the job tolerates only makes it pause, unless it is a refusal that *is_repeated*.

    Raises:
        CheckpointFailure: the job ended, or is suspended; the message ends with the cause.
    """
    state = job.state()
    is_refused = failure.is_refused and state.status is JobStatus.RUNNING
    if is_repeated and (state.status is JobStatus.RESTARTING or is_refused):
        base = stop(job, JobStatus.SUSPENDED).base
        continues = "from the beginning" if base is None else f"from checkpoint {base}"
        raise failure.retold(
            f"job {job.pipeline.uid!r} failed twice for the same reason and is SUSPENDED; mend it "
            f"and run it again, and it goes on {continues}: {failure}",
        )
    if state.status is JobStatus.RUNNING:
        time.sleep(TOLERATED_PAUSE_S)
    elif state.status is JobStatus.RESTARTING:
        pause_ms = (state.restart_at_ms or 0) - job.now_ms()
        time.sleep(max(0, pause_ms) / 1000)
        restore(job, Latest(), only_generation=state.generation)
    else:
        raise failure.retold(f"job {job.pipeline.uid!r} is {state.status.value}: {failure}")


def is_same_failure(one: CheckpointFailure, other: CheckpointFailure) -> bool:
    """Whether both are the same failure of the same stage, or of none; a transient one never is."""
    if one.is_transient or one.stage != other.stage:
        return False
    return is_equal_cause(one.cause, other.cause)


Begun: TypeAlias = Triggered | Queued | NothingToDo | NotDue | NotRunning | CheckpointFailure
"""What came of a trigger: a refusal, and whatever it raised that may pass, is a failure."""

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
        """Take one checkpoint of what can be read now; None when there is none to take.

        Raises:
            CheckpointFailure: the trigger was refused.
        """
        outcome = self.begin(drain=drain)
        if isinstance(outcome, CheckpointFailure):
            raise outcome
        return self.end_oldest() if isinstance(outcome, Triggered) else None

    def begin(self, *, drain: bool) -> Begun:
        """Trigger the next checkpoint and start its stages, or return why there is none."""
        outcome = self._asked(self._request)
        if isinstance(outcome, NothingToDo) and drain and not self._running:
            return self.force(CheckpointType.SAVEPOINT_TERMINATE, cause="sluice run --drain")
        return outcome

    def begin_savepoint(self, name: str) -> Begun:
        """Trigger a savepoint that suspends the job, or return why there is none."""
        suspend = CheckpointType.SAVEPOINT_SUSPEND
        return self.force(suspend, cause="sluice run --savepoint", savepoint_name=name)

    def force(
        self,
        type: CheckpointType,  # noqa: A002 - Flink's word
        *,
        cause: str,
        savepoint_name: str | None = None,
    ) -> Begun:
        """Trigger a checkpoint, also without new input, and start its stages, or return why not."""
        request_id = uuid.uuid4().hex

        def ask() -> TriggerOutcome:
            while True:
                outcome = trigger(
                    self._job,
                    type=type,
                    cause=cause,
                    savepoint_name=savepoint_name,
                    is_periodic=False,
                    request_id=request_id,
                )
                if not isinstance(outcome, Queued) or self._running:
                    return outcome
                time.sleep(QUEUE_POLL_S)

        return self._asked(ask)

    def _asked(self, ask: Callable[[], TriggerOutcome]) -> Begun:
        """The answer; the stages of a checkpoint that was triggered are started.

        Raises:
            SluiceError: what cannot pass, of a job that goes on: a person has to decide first.
        """
        try:
            outcome = ask()
        except FencedError:
            raise
        except Exception as error:
            is_transient = isinstance(error, StoreUnavailable)
            may_pass = is_transient or not isinstance(error, SluiceError)
            if not may_pass and self._job.state().status is JobStatus.RUNNING:
                raise
            log.warning("no checkpoint was triggered", exc_info=error)
            return not_triggered(str(cause_of(error)), is_transient=is_transient)
        match outcome:
            case Triggered():
                self._start(outcome.plan)
                return outcome
            case Refused():
                return not_triggered(f"{outcome.reason.value}: {outcome.message}")
            case NotRunning():
                return self._if_it_ended(outcome)
            case Queued() | NothingToDo() | NotDue():
                return outcome
            case _:
                assert_never(outcome)

    def _if_it_ended(self, outcome: NotRunning) -> NotRunning | CheckpointFailure:
        """A job that is to restart has not ended: it failed over, by whomever."""
        status = self._job.state().status
        goes_on = status in (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FAILING)
        return not_triggered(outcome.message, is_transient=True) if goes_on else outcome

    def _start(self, plan: CheckpointPlan) -> None:
        parent = self._running[-1].stages if self._running else {}
        stages: dict[str, StageFuture] = {}
        # In topological order, so that no stage waits for a thread behind it in the pool.
        for task in plan.tasks:
            code = self._job.pipeline.stages[task.uid].operation
            states = (task.uid, *(code.previous_of if isinstance(code, SparkCode) else ()))
            awaited = [parent[uid] for uid in states if uid in parent]
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
            if self._running:
                return outcome
            match outcome:
                case Queued():
                    time.sleep(QUEUE_POLL_S)
                case NotDue(message=message, retry_in_ms=int(rest_ms)):
                    log.info("no checkpoint is due: %s", message)
                    time.sleep(min(rest_ms / 1000, IDLE_POLL_S))
                case _:
                    return outcome

    def end_oldest(self) -> Epoch:
        """Wait for the stages of the oldest epoch, then complete and commit it, or abort it.

        Whatever it is left by, also Ctrl-C, nothing of that epoch goes on in Spark.
        """
        epoch = self._running.popleft()
        try:
            return self._ended(epoch)
        except BaseException:
            self._stop(epoch)
            raise

    def _ended(self, epoch: RunningEpoch) -> Epoch:
        plan = epoch.plan
        overtaken = self._await(epoch)
        stages = {uid: stage for uid, stage in epoch.stages.items() if uid not in overtaken}
        aborted = self._aborted(plan)
        error: CheckpointFailure | None = None
        if aborted is None:
            error = self._failure(epoch, stages)
        completed = None
        if aborted is None and error is None:
            completed, aborted, error = self._complete(plan)
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
        """The failure of a stage, once the checkpoint is aborted for it; None if all are done.

        Raises:
            FencedError: another coordinator took over.
            ConfigurationError: what a stage declares is wrong; the checkpoint is aborted.
        """
        late = [uid for uid, stage in stages.items() if not stage.done()]
        error, checkpoint_id = first_failure(stages), epoch.plan.checkpoint_id
        if error is not None:
            log.warning("stage failed checkpoint_id=%d", checkpoint_id, exc_info=error)
            reason = Reason.CHECKPOINT_DECLINED if error.is_declined else Reason.TASK_FAILURE
        elif late:
            had = duration(timeout_ms(self._job, self._job.state()) / 1_000)
            is_least = epoch.plan.records <= LEAST_RECORDS
            cure = "raise timeout" if is_least else "the next epoch takes fewer"
            cause = (
                f"it did not acknowledge in time: {epoch.plan.records:,} records in {had}; {cure}"
            )
            error = StageFailed(
                f"stage {late[0]!r} failed: {cause}",
                stage=late[0],
                cause=cause,
                is_transient=not is_least,
            )
            reason = Reason.CHECKPOINT_EXPIRED
        else:
            return None
        is_task_failure = reason is Reason.TASK_FAILURE
        fail_checkpoint(
            self._job, checkpoint_id, reason, str(error), is_task_failure=is_task_failure
        )
        if isinstance(error.__cause__, ConfigurationError):
            raise error.__cause__
        return error

    def _complete(
        self, plan: CheckpointPlan
    ) -> tuple[CompletedCheckpoint | None, FailedCheckpoint | None, CheckpointFailure | None]:
        """Complete and commit it, unless a person aborts it at this moment, or it cannot be
        completed.

        A commit that the store does not take is owed, and comes before the next trigger.

        Raises:
            FencedError: another coordinator took over.
        """
        checkpoint_id = plan.checkpoint_id
        try:
            completed = finalize(self._job, checkpoint_id)
        except FencedError:
            aborted = self._aborted(plan)
            if aborted is None:
                raise
            return None, aborted, None
        except Exception as error:
            log.warning("checkpoint not completed checkpoint_id=%d", checkpoint_id, exc_info=error)
            cause = cause_of(error)
            failure = CheckpointFailure(
                f"checkpoint {checkpoint_id} could not be completed: {cause}",
                cause=str(cause),
                is_transient=isinstance(error, StoreUnavailable),
            )
            state = fail_checkpoint(
                self._job, checkpoint_id, Reason.FINALIZE_CHECKPOINT_FAILURE, str(cause)
            )
            done = state.completed_checkpoint(checkpoint_id)  # Only the answer was lost.
            if done is None:
                return None, None, failure
            completed = done
        try:
            commit(self._job, checkpoint_id)
        except StoreUnavailable as error:
            log.warning("not committed yet checkpoint_id=%d: %s", checkpoint_id, error)
        return completed, None, None

    def _aborted(self, plan: CheckpointPlan) -> FailedCheckpoint | None:
        """The end of the checkpoint, if a person aborted it or the one that it continues."""
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
        rest_ms = epoch.plan.expires_at_ms - self._job.now_ms()
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
        FencedError: another coordinator took over.
    """
    for uid, stage in stages.items():
        error = stage.exception() if stage.done() else None
        match error:
            case None:
                continue
            case StageFailed():
                return error
            case FencedError():
                raise error
            case NotYetAcknowledged():  # Another coordinator has started a new attempt of a stage.
                return StageFailed(str(error), stage=uid)
            case Exception():
                return _stage_failed(uid, error)
            case _:
                raise error
    return None


def _stage_failed(stage: str, error: Exception) -> StageFailed:
    """The failure of a *stage* that could not be run, as the store did not answer, or otherwise."""
    cause = cause_of(error)
    failure = StageFailed(
        f"stage {stage!r} failed: {cause}",
        stage=stage,
        cause=str(cause),
        is_transient=isinstance(error, StoreUnavailable),
    )
    failure.__cause__ = error
    return failure


def not_triggered(cause: str, *, is_transient: bool = False) -> CheckpointFailure:
    return CheckpointFailure(
        f"no checkpoint was triggered: {cause}",
        cause=cause,
        is_transient=is_transient,
        is_refused=True,
    )


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
