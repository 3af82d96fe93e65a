"""``sluice run`` goes on where a person aborts a checkpoint, and behind a failure that the job
tolerates; one too many restarts it, whether a trigger failed, a stage or the completion.  A refusal
is never taken for the end of the input.  The stages of an epoch are reported by chain.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.jobs import a_pipeline, a_running_job, published_records
from sluice.coordinator import completion, planning, publication
from sluice.coordinator.failure import abort_checkpoint
from sluice.coordinator.requests import pause, resume
from sluice.coordinator.restore import restore, stop
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus, Retention
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.plan import TaskPlan
from sluice.core.restart import RestartStrategy
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.errors import (
    CheckpointFailure,
    FencedError,
    ProtocolViolation,
    SourceUnreadable,
    StageFailed,
    StoreUnavailable,
)
from sluice.job.job import Job
from sluice.local.driver import Epoch, EpochDriver, StageFuture, run_epochs, seconds_by_chain
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.stage import AcknowledgedStage
from sluice.store.journal import KEPT_ENTRIES
from tests.builders import a_plan
from tests.planted import Caught, assert_is_caught
from tests.subtasks import acknowledge, decline

ONE = CheckpointId(1)


class Session:
    """What the driver asks of a Spark session: to interrupt the jobs of a tag."""

    def __init__(self, interrupted: threading.Event) -> None:
        self._interrupted = interrupted

    def addTag(self, tag: str) -> None: ...  # noqa: N802 - Spark's

    def removeTag(self, tag: str) -> None: ...  # noqa: N802 - Spark's

    def interruptTag(self, _: str) -> None:  # noqa: N802 - Spark's
        self._interrupted.set()


def answered(
    job: Job,
    spark: object,
    checkpoint_id: CheckpointId,
    stage: str,
    *,
    attempt: int,
) -> AcknowledgedStage:
    plan = job.plan(checkpoint_id)
    assert plan is not None
    acknowledge(job, plan, stage, attempt=attempt)
    return cast("AcknowledgedStage", SimpleNamespace(compact=lambda: None, snapshots=(1,)))


class Stages:
    """Subtasks that answer without Spark; those of checkpoint 1 hang until they are interrupted."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self.session = cast("Any", Session(self.interrupted))

    def __call__(
        self, job: Job, spark: object, checkpoint_id: CheckpointId, stage: str, *, attempt: int
    ) -> AcknowledgedStage:
        if checkpoint_id == ONE:
            abort_checkpoint(job, ONE, by="ada")
            assert self.interrupted.wait(60)
            raise FencedError("interrupted")
        return answered(job, spark, checkpoint_id, stage, attempt=attempt)


def test_an_aborted_epoch_is_interrupted_and_its_records_come_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.local.driver.ABORT_POLL_S", 0.02)
    job, stages, epochs = a_running_job(a_pipeline(events=30)), Stages(), list[Epoch]()
    monkeypatch.setattr(
        "sluice.local.driver.EpochDriver", lambda job, spark: EpochDriver(job, spark, stages)
    )

    status = run_epochs(job, stages.session, epochs=2, drain=False, report=epochs.append)

    assert status is JobStatus.RUNNING
    assert [(epoch.plan.checkpoint_id, epoch.failure) for epoch in epochs] == [
        (1, "checkpoint 1 was aborted, CHECKPOINT_ABORTED_BY_USER: aborted by ada"),
        (2, None),
        (3, None),
    ]
    assert published_records(job) == [*range(20)]
    assert job.state().num_restarts == 0


def test_a_run_shortens_the_journal_as_no_watchdog_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(events=30))
    for _ in range(KEPT_ENTRIES):
        pause(job, by="ada")
        resume(job, by="ada")
    monkeypatch.setattr(
        "sluice.local.driver.EpochDriver", lambda job, spark: EpochDriver(job, spark, answered)
    )

    run_epochs(job, Stages().session, epochs=1, drain=False, report=lambda _: None)

    assert job.journal.inspect().entries == KEPT_ENTRIES
    assert published_records(job) == [*range(10)]


def test_ctrl_c_interrupts_the_epoch_that_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the run would end no sooner than its stages, whose threads it waits for."""
    # What interrupts here is no signal, so it is heeded between two waits.
    monkeypatch.setattr("sluice.local.driver.ABORT_POLL_S", 0.02)
    job, stages, heard = a_running_job(), Stages(), list[bool]()

    def hangs(*_: object, **__: object) -> AcknowledgedStage:
        while driver.in_flight:
            time.sleep(0.01)
        time.sleep(0.1)  # The main thread waits.
        _thread.interrupt_main()
        heard.append(stages.interrupted.wait(60))
        raise FencedError("interrupted")

    with pytest.raises(KeyboardInterrupt), EpochDriver(job, stages.session, hangs) as driver:
        driver.take()

    assert heard == [True]


def test_an_epoch_that_is_aborted_while_it_is_completed_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job()

    def aborted_first(job: Job, checkpoint_id: CheckpointId) -> CompletedCheckpoint:
        abort_checkpoint(job, checkpoint_id, by="ada")
        return completion.finalize(job, checkpoint_id)

    monkeypatch.setattr("sluice.local.driver.finalize", aborted_first)
    with EpochDriver(job, Stages().session, answered) as driver:
        epoch = driver.take()

    assert epoch is not None
    assert (epoch.completed, epoch.error) == (None, None)
    assert epoch.aborted is not None


AT_ONCE = RestartStrategy(delay_ms=1, max_delay_ms=1)
NOT_READY = Reason.CHECKPOINT_DECLINED_TASK_NOT_READY


@dataclass
class Declining:
    """Subtasks that answer without Spark; the first of these checkpoints decline."""

    reasons: list[Reason]
    epochs: list[Epoch] = field(default_factory=list[Epoch])

    def __call__(
        self, job: Job, spark: object, checkpoint_id: CheckpointId, stage: str, *, attempt: int
    ) -> AcknowledgedStage:
        if checkpoint_id <= len(self.reasons):
            reason = self.reasons[checkpoint_id - 1]
            decline(job, checkpoint_id, SubtaskId(stage, 0), attempt=attempt, reason=reason)
            raise StageFailed("the input is odd", stage=stage, is_declined=True)
        return answered(job, spark, checkpoint_id, stage, attempt=attempt)

    def run(self, monkeypatch: pytest.MonkeyPatch, job: Job, *, epochs: int) -> JobStatus:
        def driver(job: Job, spark: Any) -> EpochDriver:
            return EpochDriver(job, spark, self)

        monkeypatch.setattr("sluice.local.driver.TOLERATED_PAUSE_S", 0)
        monkeypatch.setattr("sluice.local.driver.EpochDriver", driver)
        session = Stages().session
        return run_epochs(job, session, epochs=epochs, drain=False, report=self.epochs.append)


def test_a_tolerated_decline_does_not_restart_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_running_job(a_pipeline(events=30, tolerable_failed_checkpoints=1))
    declining = Declining([Reason.CHECKPOINT_DECLINED])

    status = declining.run(monkeypatch, job, epochs=2)

    state = job.state()
    assert (status, state.num_restarts, state.generation) == (JobStatus.RUNNING, 0, 1)
    assert [failed.reason for failed in state.failed] == [Reason.CHECKPOINT_DECLINED]
    assert [epoch.completed is not None for epoch in declining.epochs] == [False, True, True]
    assert published_records(job) == [*range(20)]


def test_one_decline_too_many_restarts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_running_job(a_pipeline(events=30, restart_strategy=AT_ONCE))
    declining = Declining([Reason.CHECKPOINT_DECLINED])

    declining.run(monkeypatch, job, epochs=1)

    assert (job.state().num_restarts, job.state().generation) == (1, 2)
    assert [failed.reason for failed in job.state().failed] == [Reason.CHECKPOINT_DECLINED]


def test_a_subtask_that_is_not_ready_is_asked_again_however_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(events=30))
    declining = Declining([NOT_READY] * 4)

    status = declining.run(monkeypatch, job, epochs=1)

    state = job.state()
    assert (status, state.num_restarts) == (JobStatus.RUNNING, 0)
    assert [failed.reason for failed in state.failed] == [NOT_READY] * 4
    assert published_records(job) == [*range(10)]


@dataclass
class Breaking:
    """Calls what it stands for, but raises the first of *errors*, one a call."""

    real: Callable[..., Any]
    errors: list[BaseException]

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        return self.real(*given, **named)


@pytest.fixture(name="at_once", autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.local.driver.TOLERATED_PAUSE_S", 0)


def runs(monkeypatch: pytest.MonkeyPatch, job: Job, **given: Any) -> tuple[JobStatus, list[Epoch]]:
    """As ``sluice run``, of stages that answer without Spark."""
    epochs = list[Epoch]()
    monkeypatch.setattr(
        "sluice.local.driver.EpochDriver", lambda job, spark: EpochDriver(job, spark, answered)
    )
    usual = {"epochs": None, "drain": False, "report": epochs.append}
    return run_epochs(job, Stages().session, **usual | given), epochs


def a_refused_job(
    refuses: Callable[[int], bool], given: Pipeline | None = None, **checkpointing: Any
) -> Job:
    """Its hook refuses the checkpoints of these ids."""

    def trigger(checkpoint_id: int, timestamp_ms: int) -> str | None:
        if refuses(checkpoint_id):
            raise LookupError(f"no flags for checkpoint {checkpoint_id}")
        return None

    usual: dict[str, Any] = {"events": 30, "restart_strategy": AT_ONCE}
    pipeline = given or a_pipeline(**usual | checkpointing)
    pipeline.hook("flags", trigger=trigger, restore=lambda checkpoint_id, state: None)
    return a_running_job(pipeline)


@pytest.mark.parametrize("retention", Retention)
def test_a_refusal_is_not_the_end_of_the_input_and_ends_the_run_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, retention: Retention
) -> None:
    job = a_refused_job(lambda n: n == 2, externalized_checkpoint_retention=retention)

    with pytest.raises(CheckpointFailure) as raised:
        runs(monkeypatch, job)

    assert raised.value.is_refused is False, "the run ended, whatever was refused"
    assert str(raised.value) == (
        "job 'auctions' failed twice for the same reason and is SUSPENDED; mend it and run it "
        "again, and it goes on from checkpoint 1: no checkpoint was triggered: "
        "TRIGGER_CHECKPOINT_FAILURE: master hook 'flags' failed: no flags for checkpoint 2"
    )
    state = job.state()
    assert (state.status, state.base, state.num_unsuccessful_triggers) == (
        JobStatus.SUSPENDED,
        1,
        2,
    )
    assert restore(job, Latest()).checkpoint_id == 1


def test_one_refusal_that_passes_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    once = [True]
    job = a_refused_job(lambda n: n == 2 and bool(once) and once.pop())

    status, epochs = runs(monkeypatch, job)

    assert (status, [epoch.failure for epoch in epochs]) == (JobStatus.FINISHED, [None] * 3)
    assert published_records(job) == [*range(30)]
    assert [one.reason for one in job.state().unsuccessful_triggers] == [
        Reason.TRIGGER_CHECKPOINT_FAILURE
    ]


def test_a_drain_that_is_refused_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "names.txt").write_text("ann\n")
    pipeline = Pipeline("auctions")
    lines = pipeline.source("lines", Files(str(tmp_path), bounded=False))
    lines.key_by("line").aggregate("count_bids", n=agg.count()).sink(
        "results", FilesTable(changelog=True)
    )
    job = a_refused_job(lambda n: n == 2, pipeline)

    with pytest.raises(CheckpointFailure, match="no flags for checkpoint 2"):
        runs(monkeypatch, job, drain=True)

    assert (job.state().status, job.state().base) == (JobStatus.SUSPENDED, 1)


def test_a_last_savepoint_that_is_refused_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_refused_job(lambda n: n == 2)

    with pytest.raises(CheckpointFailure, match="no flags for checkpoint 2"):
        runs(monkeypatch, job, epochs=1, savepoint="mine")

    assert job.state().status is JobStatus.SUSPENDED


@pytest.mark.parametrize(
    ("tolerable", "restarts"), [(1, 0), (0, 1)], ids=["tolerated", "it restarts"]
)
@pytest.mark.parametrize(
    "what", ["coordinator.trigger.make_plan", "local.driver.finalize"], ids=["trigger", "finalize"]
)
def test_one_passing_error_of_the_store_is_tolerated_as_the_coordinator_says(
    monkeypatch: pytest.MonkeyPatch, what: str, tolerable: int, restarts: int
) -> None:
    job = a_running_job(
        a_pipeline(events=30, tolerable_failed_checkpoints=tolerable, restart_strategy=AT_ONCE)
    )
    module, _, name = what.rpartition(".")
    real = getattr(import_module(f"sluice.{module}"), name)
    broken = Breaking(real, [StoreUnavailable("the bucket is away")])
    monkeypatch.setattr(f"sluice.{what}", broken)

    status, _ = runs(monkeypatch, job)

    state = job.state()
    assert (status, state.num_restarts, state.pending) == (JobStatus.FINISHED, restarts, ())
    assert published_records(job) == [*range(30)]
    expected = [Reason.FINALIZE_CHECKPOINT_FAILURE] if name == "finalize" else []
    assert [failed.reason for failed in state.failed] == expected
    assert all("the bucket is away" in failed.message for failed in state.failed)


def test_an_error_of_the_users_source_at_a_trigger_is_tolerated_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(events=30))
    broken = Breaking(planning.make_plan, [LookupError("no such partition")])
    monkeypatch.setattr("sluice.coordinator.trigger.make_plan", broken)
    assert runs(monkeypatch, job)[0] is JobStatus.FINISHED

    again = a_running_job(a_pipeline(events=30))
    broken.errors += [LookupError("no such partition")] * 2
    with pytest.raises(CheckpointFailure, match=r"SUSPENDED.*LookupError: no such partition"):
        runs(monkeypatch, again)


def test_what_a_person_has_to_mend_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_running_job(a_pipeline(events=30))
    broken = Breaking(planning.make_plan, [SourceUnreadable("the topic is gone")])
    monkeypatch.setattr("sluice.coordinator.trigger.make_plan", broken)

    with pytest.raises(SourceUnreadable, match="the topic is gone"):
        runs(monkeypatch, job)

    assert [one.message for one in job.state().unsuccessful_triggers] == ["the topic is gone"]


def test_what_cannot_be_completed_is_not_left_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_running_job(a_pipeline(events=30, restart_strategy=AT_ONCE))
    broken = Breaking(completion.finalize, [ProtocolViolation("a staged file is gone")] * 9)
    monkeypatch.setattr("sluice.local.driver.finalize", broken)

    with pytest.raises(CheckpointFailure) as raised:
        runs(monkeypatch, job)

    assert str(raised.value).endswith("checkpoint 2 could not be completed: a staged file is gone")
    state = job.state()
    assert (state.status, state.pending) == (JobStatus.SUSPENDED, ())
    assert [failed.reason for failed in state.failed] == [Reason.FINALIZE_CHECKPOINT_FAILURE] * 2


def test_a_commit_that_the_store_did_not_take_is_made_up_for_also_behind_the_last_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(events=30))
    monkeypatch.setattr(
        "sluice.local.driver.commit",
        Breaking(publication.commit, [StoreUnavailable("the bucket is away")]),
    )

    status, epochs = runs(monkeypatch, job, epochs=1)

    assert (status, len(epochs), published_records(job)) == (JobStatus.RUNNING, 1, [*range(10)])


def test_a_stage_that_could_not_be_run_is_a_failed_task_and_its_checkpoint_is_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(events=30, restart_strategy=AT_ONCE))
    away = Breaking(answered, [StoreUnavailable("the bucket is away")])
    monkeypatch.setattr(sys.modules[__name__], "answered", away)

    assert runs(monkeypatch, job, epochs=1)[0] is JobStatus.RUNNING

    (failed,) = job.state().failed
    assert (failed.reason, job.state().num_restarts) == (Reason.TASK_FAILURE, 1)
    assert failed.message == "stage 'count_bids' failed: the bucket is away"


def test_a_job_that_somebody_else_ended_is_not_taken_for_one_that_has_read_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(events=30))

    def cancels(epoch: Epoch) -> None:
        stop(job, JobStatus.CANCELED)

    with pytest.raises(CheckpointFailure, match="'auctions' is CANCELED, and was not ended by thi"):
        runs(monkeypatch, job, report=cancels)


def ran(seconds: float | None) -> StageFuture:
    future: StageFuture = StageFuture()
    future.set_result(seconds)
    return future


def test_the_stages_of_a_chain_are_reported_together() -> None:
    reads = {"a": (), "b": ("a",), "other": (), "c": ("b",), "late": ("other",)}
    tasks = tuple(
        TaskPlan(uid=uid, parallelism=1, max_parallelism=1, reads=read)
        for uid, read in reads.items()
    )
    took = {"a": 3.0, "b": None, "other": 1.0, "c": None}

    stages = {uid: ran(seconds) for uid, seconds in took.items()}

    assert seconds_by_chain(a_plan(tasks=tasks), stages) == {"a > b > c": 3.0, "other": 1.0}


DRIVER = "local.driver:EpochDriver"
ONE_ERROR = {"tolerable": 1, "restarts": 0}
FAULTS = [
    Caught(
        "a refusal is the end of the input", f"{DRIVER}._asked",
        'return not_triggered(f"{outcome.reason.value}: {outcome.message}")',
        'return NothingToDo(message="the input has ended")',
        test_a_refusal_is_not_the_end_of_the_input_and_ends_the_run_with_its_cause,
        {"retention": Retention.RETAIN_ON_CANCELLATION},
    ),
    Caught(
        "one passing error at a trigger ends the run", f"{DRIVER}._asked",
        "may_pass = is_transient or not isinstance(error, SluiceError)", "may_pass = False",
        test_one_passing_error_of_the_store_is_tolerated_as_the_coordinator_says,
        {"what": "coordinator.trigger.make_plan", **ONE_ERROR}, (StoreUnavailable,),
    ),
    Caught(
        "one passing error of a completion ends the run", f"{DRIVER}._complete",
        "except Exception as error:", "except ConnectionError as error:",
        test_one_passing_error_of_the_store_is_tolerated_as_the_coordinator_says,
        {"what": "local.driver.finalize", **ONE_ERROR}, (StoreUnavailable,),
    ),
    Caught(
        "a commit that the store does not take ends the run", f"{DRIVER}._complete",
        "except StoreUnavailable as error:", "except ConnectionError as error:",
        test_a_commit_that_the_store_did_not_take_is_made_up_for_also_behind_the_last_epoch,
        raises=(StoreUnavailable,),
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
