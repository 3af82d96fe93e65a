"""A request for a checkpoint: it starts one, waits its turn, or is dropped.

The queue has an order, and a length.  Externally induced barriers end an epoch elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.jobs import (
    ONE,
    ManualClock,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    trigger_one,
)
from sluice.connectors.files.text import FilesSource
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.planning import NothingToDo
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import (
    NotDue,
    NotRunning,
    Queued,
    Refused,
    Triggered,
    trigger,
)
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.decider import Limits
from sluice.core.events import CheckpointTriggered, JobStopped, Verdict
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId, SavepointId
from sluice.core.plan import CheckpointPlan
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.errors import (
    ConfigurationError,
    FencedError,
    RestoreError,
    SourceUnreadable,
    StoreUnavailable,
    TableMismatch,
)
from sluice.job.job import Job
from sluice.protocol.records import encode_plan
from sluice.sinks import FilesTable
from sluice.sources import Files, Nexmark
from sluice.surface.health import health
from tests.builders import a_request
from tests.planted import Caught, assert_is_caught
from tests.subtasks import a_savepoint, acknowledge, carry_out, complete_one, take_checkpoint

SAVEPOINT = CheckpointType.SAVEPOINT


def orphan(job: Job, plan: CheckpointPlan, checkpoint_id: int) -> CheckpointPlan:
    """The plan of a coordinator that died before it journaled it."""
    made = replace(plan, checkpoint_id=CheckpointId(checkpoint_id), cause="somebody who died")
    job.store.create(job.paths.plan(checkpoint_id), encode_plan(made))
    return made


def test_a_source_that_no_stage_reads_is_refused_when_the_job_is_submitted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    pipeline = a_pipeline()
    pipeline.source("forgotten", Files(str(tmp_path)))

    with pytest.raises(ConfigurationError, match="'forgotten' is read by no stage"):
        submit(a_job(pipeline), configure(pipeline, {}))


def test_who_lost_the_answer_finds_the_checkpoint_that_his_request_became() -> None:
    job = a_running_job()
    first = trigger(job, request_id="mine")

    assert trigger(job, request_id="mine") == first
    assert len(keys_of(job, job.paths.checkpoints())) == 1


@pytest.mark.parametrize(
    ("is_periodic", "reason"),
    [
        (True, Reason.PERIODIC_SCHEDULER_SHUTDOWN),
        (False, Reason.NOT_ALL_REQUIRED_TASKS_RUNNING),
    ],
)
def test_a_job_that_does_not_run_takes_no_checkpoint(is_periodic: bool, reason: Reason) -> None:
    job = a_job()

    assert trigger(job, is_periodic=is_periodic) == NotRunning(
        reason=reason, message="the job is CREATED"
    )
    assert keys_of(job) == []


def a_job_over(file: Path) -> Job:
    """Of one stage that counts the lines of a file that may grow."""
    pipeline = Pipeline("auctions")
    lines = pipeline.source("lines", Files(str(file), bounded=False))
    lines.key_by("line").aggregate("count_bids", n=agg.count()).sink(
        "results", FilesTable(changelog=True)
    )
    return a_running_job(pipeline)


def test_without_new_records_a_periodic_request_does_nothing_and_a_persons_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "names.txt").write_text("ann\n")
    job = a_job_over(tmp_path / "names.txt")
    take_checkpoint(job)

    assert trigger(job) == NothingToDo(message="no new records since the last checkpoint")
    assert trigger_one(job, is_periodic=False).records == 0


def test_a_queued_request_that_finds_nothing_to_do_leaves_the_queue(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ann\n")
    job = a_job_over(tmp_path / "names.txt")
    first = trigger_one(job)
    trigger(job, request_id="idle")
    carry_out(job, first)

    outcome = trigger(job, request_id="idle")

    assert outcome == NothingToDo(message="no new records since the last checkpoint")
    assert job.state().queue == ()


def test_a_queued_request_whose_source_is_gone_leaves_the_queue(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ann\n")
    job = a_job_over(tmp_path / "names.txt")
    first = trigger_one(job)
    trigger(job, request_id="mine")
    carry_out(job, first)
    (tmp_path / "names.txt").write_text("")

    with pytest.raises(ConfigurationError):
        trigger(job, request_id="mine")

    assert (job.state().queue, job.state().status) == ((), JobStatus.RUNNING)
    assert job.state().rejection("mine") is Reason.TRIGGER_CHECKPOINT_FAILURE


@pytest.mark.parametrize(("tolerable", "status"), [(1, JobStatus.RUNNING), (0, "RESTARTING")])
def test_a_store_that_fails_while_the_plan_is_made_counts(
    monkeypatch: pytest.MonkeyPatch, tolerable: int, status: JobStatus | str
) -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=tolerable))

    def fails(*_: object) -> None:
        raise StoreUnavailable("the bucket of the source is away")

    monkeypatch.setattr("sluice.coordinator.trigger.make_plan", fails)
    with pytest.raises(StoreUnavailable, match="the bucket of the source is away"):
        trigger(job)

    assert job.state().status is JobStatus(status)
    assert job.state().pending == ()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SourceUnreadable("the topic is gone"), "the topic is gone"),
        (RestoreError("its checkpoint is gone"), "its checkpoint is gone"),
        (TableMismatch("a table lacks rows"), "a table lacks rows"),
        (LookupError("no such partition"), "LookupError: no such partition"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_whatever_refuses_a_trigger_is_journaled_with_its_cause_and_raised(
    monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    job = a_running_job()

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("sluice.coordinator.trigger.make_plan", fails)
        for _ in range(2):
            with pytest.raises(type(error), match=message.rpartition(": ")[2]):
                trigger(job, cause="sluice run")

    state = job.state()
    assert (state.status, state.num_unsuccessful_triggers) == (JobStatus.RUNNING, 2)
    refused = state.unsuccessful_triggers[-1]
    assert (refused.reason, refused.cause) == (Reason.TRIGGER_CHECKPOINT_FAILURE, "sluice run")
    assert refused.message.endswith(message)
    trigger_one(job)
    assert job.state().num_unsuccessful_triggers == 0


def test_a_trigger_that_finds_what_the_job_owes_undoable_is_journaled_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sink's refusal is what a declaration is wrong by, but no caller's."""
    job = a_running_job()
    complete_one(job)
    errors = (TableMismatch("the table is of another job"), ConfigurationError("wrong password"))

    for error in errors:

        def fails(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("sluice.coordinator.duties.commit_owed", fails)
        with pytest.raises(type(error)):
            trigger(job)

    state = job.state()
    assert [one.message for one in state.unsuccessful_triggers] == [*map(str, errors)]
    assert "rong password" in health(job, state, state.latest_completed).says


def test_a_newcomer_in_a_full_queue_is_refused_and_journaled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.core.requests._limits", lambda _: Limits(max_queued=1))
    job = a_running_job()
    trigger_one(job)
    trigger(job, request_id="first", is_periodic=False)

    outcome = trigger(job, request_id="second", is_periodic=False, cause="ada")

    assert outcome == Refused(
        reason=Reason.TOO_MANY_CHECKPOINT_REQUESTS, message="1 requests are queued"
    )
    assert [(one.reason, one.cause) for one in job.state().unsuccessful_triggers] == [
        (Reason.TOO_MANY_CHECKPOINT_REQUESTS, "ada")
    ]


def test_a_commit_whose_task_died_is_replayed_before_the_next_trigger() -> None:
    job = a_running_job()
    complete_one(job)

    second = trigger_one(job)

    assert published_records(job) == list(range(10))
    assert job.state().completed[0].is_committed
    assert second.parent == 1


def test_the_id_of_a_dead_coordinators_plan_is_skipped_and_never_reused() -> None:
    job = a_running_job()
    first = trigger_one(job)
    dead = orphan(job, first, 2)
    carry_out(job, first)

    third = trigger_one(job)

    assert third.checkpoint_id == 3
    assert job.plan(CheckpointId(2)) == dead
    late = job.journal.append(
        lambda state: CheckpointTriggered(
            generation=state.generation, plan=dead, request=a_request()
        )
    )
    assert late.verdict is Verdict.REFUSED
    carry_out(job, third)
    assert trigger_one(job).checkpoint_id == 4


def other_checkpoint(job: Job) -> None:
    trigger(job, is_periodic=False, request_id="faster")


def other_restore(job: Job) -> None:
    restore(job, savepoint_target(job, "before"))


def cancellation(job: Job) -> None:
    job.journal.append(
        lambda s: JobStopped(at_ms=0, generation=s.generation, status=JobStatus.CANCELED)
    )


@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        (other_checkpoint, Queued(request_id="mine", message="another coordinator was faster")),
        (other_restore, Queued(request_id="mine", message="another coordinator was faster")),
        (
            cancellation,
            NotRunning(reason=Reason.PERIODIC_SCHEDULER_SHUTDOWN, message="the job is CANCELED"),
        ),
    ],
)
def test_who_is_overtaken_between_plan_and_journal_is_told(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Job], None], outcome: object
) -> None:
    job = a_running_job()
    a_savepoint(job, "before")
    create = job.store.create

    def create_after_the_others(key: str, body: bytes) -> object:
        if b'"cause":"slow"' in body and "/journal/" in key:
            monkeypatch.undo()
            act(job)
        return create(key, body)

    monkeypatch.setattr(job.store, "create", create_after_the_others)

    assert trigger(job, cause="slow", request_id="mine") == outcome
    assert all(pending.request_id != "mine" for pending in job.state().pending)


def test_submitting_a_running_job_is_refused_with_the_fix() -> None:
    job = a_running_job()

    with pytest.raises(ConfigurationError, match=r"'auctions' is RUNNING.*sluice cancel auctions"):
        submit(job, configure(job.pipeline, {}))


def test_who_slept_before_submitting_does_not_begin_a_job_anew_that_has_ended() -> None:
    """Found by ``tests.exactly_once``: all rows were published twice."""
    job = a_job()
    seen = job.state().generation
    configuration = configure(job.pipeline, {})
    submit(job, configuration, only_generation=seen)
    stop(job, JobStatus.CANCELED)

    with pytest.raises(FencedError, match="another coordinator submitted job 'auctions' first"):
        submit(job, configuration, only_generation=seen)

    assert job.state().status is JobStatus.CANCELED
    assert submit(job, configuration).generation == 2  # A person may.


def test_a_savepoint_of_a_used_name_does_not_pretend_to_have_been_written() -> None:
    job = a_running_job()
    a_savepoint(job)

    with pytest.raises(ConfigurationError, match="savepoint 'mine' exists"):
        a_savepoint(job)


def test_a_request_waits_for_the_pending_checkpoint_and_keeps_its_id() -> None:
    job = a_running_job()
    first = trigger_one(job)

    waits = trigger(job, request_id="mine")
    still_waits = trigger(job, request_id="mine")

    assert waits == Queued(request_id="mine", message="checkpoint 1 is still pending")
    assert still_waits == waits
    assert [request.request_id for request in job.state().queue] == ["mine"]
    carry_out(job, first)
    outcome = trigger(job, request_id="mine")
    assert isinstance(outcome, Triggered)
    assert (job.state().queue, job.state().pending[0].request_id) == ((), "mine")


def test_a_savepoint_goes_before_those_that_waited_longer() -> None:
    job = a_running_job()
    first = trigger_one(job)
    trigger(job, request_id="periodic")
    trigger(job, request_id="person", is_periodic=False)
    trigger(job, request_id="savepoint", type=SAVEPOINT, savepoint_name="s", is_periodic=False)
    carry_out(job, first)

    waits = trigger(job, request_id="person")
    outcome = trigger(job, request_id="savepoint", type=SAVEPOINT, savepoint_name="s")

    assert waits == Queued(request_id="person", message="another request is before it")
    assert isinstance(outcome, Triggered)
    assert [request.request_id for request in job.state().queue] == ["person", "periodic"]


def test_a_forced_request_does_not_wait() -> None:
    job = a_running_job()
    first = trigger_one(job)

    second = trigger_one(job, is_forced=True, is_periodic=False)

    assert second.parent == first.checkpoint_id
    assert [p.checkpoint_id for p in job.state().pending] == [1, 2]


def test_a_request_whose_owner_does_not_come_back_blocks_nobody_for_ever() -> None:
    clock = ManualClock()
    job = a_running_job(a_pipeline(timeout=timedelta(minutes=1)), clock=clock)
    first = trigger_one(job)
    trigger(job, request_id="dead", is_periodic=False)
    carry_out(job, first)
    assert isinstance(trigger(job, request_id="alive"), Queued)
    clock.advance(60_000)

    outcome = trigger(job, request_id="alive again")

    assert isinstance(outcome, Triggered)
    assert trigger(job, request_id="dead") == Refused(
        reason=Reason.CHECKPOINT_EXPIRED, message="it was rejected while it waited"
    )


def test_who_waits_while_the_job_ends_is_told_why() -> None:
    job = a_running_job()
    trigger_one(job)
    trigger(job, request_id="mine")
    stop(job, JobStatus.CANCELED)

    assert trigger(job, request_id="mine") == NotRunning(
        reason=Reason.CHECKPOINT_COORDINATOR_SUSPEND, message="it was rejected while it waited"
    )


def test_min_pause_holds_back_the_periodic_and_not_a_persons() -> None:
    clock = ManualClock()
    job = a_running_job(a_pipeline(min_pause=timedelta(seconds=10)), clock=clock)
    take_checkpoint(job)
    clock.advance(4_000)
    before = job.journal.load()

    assert trigger(job) == NotDue(
        reason=Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
        message="min_pause lasts 6.0 s more",
        retry_in_ms=6_000,
    )
    assert job.journal.load() == before
    trigger_one(job, is_periodic=False)


def test_a_name_that_another_savepoint_will_have_is_taken() -> None:
    job = a_running_job()
    first = trigger_one(job, type=SAVEPOINT, savepoint_name="pending")
    trigger(job, type=SAVEPOINT, savepoint_name="queued", is_periodic=False, request_id="q")

    for name in ("pending", "queued"):
        with pytest.raises(ConfigurationError, match=f"savepoint '{name}' is being taken"):
            trigger(job, type=SAVEPOINT, savepoint_name=name, is_periodic=False)
    acknowledge(job, first)
    finalize(job, first.checkpoint_id)  # Its own commit never comes.

    with pytest.raises(ConfigurationError, match="savepoint 'pending' exists"):
        trigger(job, type=SAVEPOINT, savepoint_name="pending", is_periodic=False)
    assert job.savepoint_metadata("pending").checkpoint_id == first.checkpoint_id


def test_a_job_that_a_savepoint_suspended_says_so_and_not_that_its_name_is_taken() -> None:
    job = a_running_job()
    how: dict[str, Any] = {
        "type": CheckpointType.SAVEPOINT_SUSPEND,
        "savepoint_name": "s",
        "is_periodic": False,
    }
    carry_out(job, trigger_one(job, **how))

    assert trigger(job, **how) == NotRunning(
        reason=Reason.NOT_ALL_REQUIRED_TASKS_RUNNING, message="the job is SUSPENDED"
    )


def test_a_waiting_savepoint_whose_name_was_taken_elsewhere_leaves_the_queue() -> None:
    job = a_running_job()
    first = trigger_one(job)
    trigger(job, type=SAVEPOINT, savepoint_name="mine", is_periodic=False, request_id="q")
    job.savepoints.reserve(SavepointId("mine", "theirs"), ONE)
    carry_out(job, first)

    with pytest.raises(ConfigurationError, match="savepoint 'mine' is being written"):
        trigger(job, type=SAVEPOINT, savepoint_name="mine", request_id="q")

    assert isinstance(trigger(job), Triggered)


def test_an_expired_checkpoint_lets_the_next_request_run() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    trigger_one(job)
    trigger(job, request_id="mine")
    fail_checkpoint(job, ONE, Reason.CHECKPOINT_EXPIRED, "too slow")

    outcome = trigger(job, request_id="mine")

    assert isinstance(outcome, Triggered)
    assert (outcome.plan.checkpoint_id, outcome.plan.parent) == (2, None)


def an_induced_job() -> Job:
    pipeline = Pipeline("auctions")
    events = pipeline.source("events", Nexmark(100), induced=True)
    events.transform("read", lambda rows: rows).sink("results", FilesTable())
    job = a_job(pipeline)
    submit(job, configure(pipeline, {}))
    return job


def test_a_checkpoint_reads_to_the_barrier_it_was_given() -> None:
    job = an_induced_job()

    outcome = trigger(job, is_periodic=False, barriers={"events": {"nexmark": 7}})

    assert isinstance(outcome, Triggered)
    (cut,) = outcome.plan.sources
    assert (cut.position[0].offset, cut.records, cut.exhausted) == (7, 7, False)


def test_without_a_barrier_the_source_stands_still() -> None:
    job = an_induced_job()
    take_checkpoint(job, is_periodic=False, barriers={"events": {"nexmark": 7}})

    assert isinstance(trigger(job), NothingToDo)
    outcome = trigger(job, is_periodic=False)

    assert isinstance(outcome, Triggered)
    assert (outcome.plan.records, outcome.plan.sources[0].position[0].offset) == (0, 7)


@pytest.mark.parametrize(
    ("barriers", "sentence"),
    [
        (
            {"event": {"nexmark": 1}},
            "'event', which is no stream source of 'auctions'; those are e",
        ),
        ({"events": {"p0": 1}}, "names partition 'p0' of the Nexmark source, which has nexmark"),
        ({"events": {"nexmark": 101}}, "offset 101 of 'nexmark' .* from 7, .* to 100, what can"),
        ({"events": {"nexmark": 6}}, "offset 6 of 'nexmark' .* from 7, where the last one was"),
    ],
)
def test_a_barrier_outside_of_what_can_be_read_is_refused(
    barriers: dict[str, dict[str, int]], sentence: str
) -> None:
    job = an_induced_job()
    take_checkpoint(job, is_periodic=False, barriers={"events": {"nexmark": 7}})
    before = job.state()

    with pytest.raises(ConfigurationError, match=sentence):
        trigger(job, is_periodic=False, barriers=barriers)

    assert job.state() == before


def test_a_file_is_read_to_the_byte(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "b.txt").write_text("four\n")
    source = FilesSource(str(tmp_path), format="text", bounded=True)

    first = source.plan((), max_records=None, parallelism=1, until={"a.txt": 8})
    second = source.plan(first.position, max_records=None, parallelism=1)

    assert [(piece.partition, piece.end) for piece in first.slices] == [("a.txt", 8)]
    assert (first.records, first.exhausted) == (2, False)
    assert (second.records, second.exhausted) == (2, True)


TRIGGER = "coordinator.trigger"
FAULTS = [
    Caught(
        "what an error refuses is not journaled", f"{TRIGGER}:_journal_error",
        "_refuse(job, head, request, reason, str(cause_of(error)))", "pass",
        test_whatever_refuses_a_trigger_is_journaled_with_its_cause_and_raised,
        {"error": LookupError("no such partition"), "message": "LookupError: no such partition"},
    ),
    Caught(
        "what the job owes refuses a trigger in silence", f"{TRIGGER}:_journal_error",
        "_refuse(job, head, request, reason, str(cause_of(error)))",
        "is_owed or _refuse(job, head, request, reason, str(cause_of(error)))",
        test_a_trigger_that_finds_what_the_job_owes_undoable_is_journaled_too,
    ),
    Caught(
        "who is turned away at a full queue leaves no trace", f"{TRIGGER}:_not_now",
        "if isinstance(outcome, Refused) and not is_journaled:", "if False:",
        test_a_newcomer_in_a_full_queue_is_refused_and_journaled,
    ),
    Caught(
        "refusals are counted beyond a checkpoint that was taken", "core.requests:on_triggered",
        "num_unsuccessful_triggers=0", "num_unsuccessful_triggers=state.num_unsuccessful_triggers",
        test_whatever_refuses_a_trigger_is_journaled_with_its_cause_and_raised,
        {"error": LookupError("no such partition"), "message": "LookupError: no such partition"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
