"""Coordinators whose clocks disagree act by one clock, and processing time is the checkpoint's."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from harness.jobs import (
    COUNT,
    ONE,
    THREE,
    TWO,
    ManualClock,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    trigger_one,
)
from sluice.coordinator import publication
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, watch
from sluice.coordinator.next_checkpoint import NextCheckpoint, Waiting
from sluice.coordinator.publication import commit, is_kept_alive, kept_alive
from sluice.coordinator.requests import UserRequest, request_checkpoint
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import trigger
from sluice.core.compaction import Compaction, MergedRuns, replaced_segment
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.restoring import Choice, Latest
from sluice.errors import ConfigurationError
from sluice.job.clock import TOLERANCE_MS
from sluice.job.job import Job, open_job, verify_root
from sluice.job.lineage import record_compaction
from sluice.spark.deployment import take_over_compactions
from sluice.store import memory
from sluice.store.object_store import machine_clock_ms
from tests.patching import replace_in
from tests.planted import Caught, assert_is_caught
from tests.subtasks import a_savepoint, acknowledge, carry_out, complete_one, take_checkpoint

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MINUTE_MS = 60_000
PATIENCE_S = 60.0  # What is to happen, happens long before.
NOW_MS = 1_800_000_000_000
TIMEOUT_MS = 10 * MINUTE_MS


def on_a_machine(job: Job, now_ms: int) -> tuple[Job, ManualClock]:
    """A coordinator in a process of its own, on a machine with that clock."""
    clock = ManualClock(now_ms)
    return open_job(job.pipeline, job.location, clock=clock), clock


def a_handle(name: str, run: int, *, rows: int = 10) -> StateHandle:
    segment = SegmentHandle(key=name, size_bytes=1, rows=rows, checksum=name)
    return StateHandle(segment=segment, run=run)


def a_shared_job(**checkpointing: object) -> Job:
    delay = RestartStrategy(type=RestartType.FIXED_DELAY, delay_ms=1_000)
    usual = {"timeout": timedelta(milliseconds=TIMEOUT_MS), "restart_strategy": delay}
    return a_running_job(a_pipeline(**usual | checkpointing))  # type: ignore[arg-type]


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, -TIMEOUT_MS, TIMEOUT_MS, HOUR_MS, 365 * DAY_MS])
def test_a_watchdog_whose_clock_is_off_aborts_no_fresh_checkpoint_and_every_expired_one(
    ahead_ms: int,
) -> None:
    job = a_shared_job()
    take_checkpoint(job)
    trigger_one(job)
    watchdog, clock = on_a_machine(job, job.clock() + ahead_ms)

    clock.advance(1_000)
    assert watch(watchdog).actions == ()

    clock.advance(TIMEOUT_MS)
    assert watch(watchdog).actions == ("aborted checkpoint 2: CHECKPOINT_EXPIRED",)


def test_a_handle_on_another_clock_is_a_machine_of_its_own() -> None:
    job = a_shared_job()
    take_checkpoint(job)
    ahead = replace(job, clock=lambda: job.clock() + TIMEOUT_MS + 1_000)
    trigger_one(job)

    assert watch(ahead).actions == ()


def test_who_submitted_a_job_triggers_by_the_clock_that_another_drew() -> None:
    """The submission is all that it has read, and what came next is truncated."""
    submitter = a_shared_job()
    other, _ = on_a_machine(submitter, submitter.clock() + HOUR_MS)
    take_checkpoint(other)
    assert other.journal.truncate(keep=1)

    plan = trigger_one(submitter)

    assert abs(plan.triggered_at_ms - other.now_ms()) <= TOLERANCE_MS


def test_a_request_has_the_clock_of_the_job_as_it_was_submitted_anew() -> None:
    """Asked for by one who last read of the job before, and what came next is truncated."""
    base = a_shared_job()
    trigger_one(base)
    asleep, _ = on_a_machine(base, base.clock())
    assert asleep.state().pending
    again, _ = on_a_machine(base, base.clock() + HOUR_MS)
    stop(again, JobStatus.FAILED)
    submit(again, configure(again.pipeline, {}))
    trigger_one(again)
    assert again.journal.truncate(keep=1)

    trigger(asleep)

    (queued,) = again.state().queue
    assert abs(queued.requested_at_ms - again.now_ms()) <= TOLERANCE_MS


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, HOUR_MS])
def test_a_restart_waits_its_pause_whoever_failed_the_job(ahead_ms: int) -> None:
    base = a_shared_job()
    first, _ = on_a_machine(base, NOW_MS + ahead_ms)
    watchdog, clock = on_a_machine(base, NOW_MS)
    take_checkpoint(first)
    plan = trigger_one(first)
    fail_checkpoint(first, plan.checkpoint_id, Reason.TASK_FAILURE, "x", is_task_failure=True)

    assert watch(watchdog).actions == ()
    clock.advance(1_000)

    assert watch(watchdog).actions == ("restored the job from checkpoint 1",)


def test_a_second_failure_on_another_clock_backs_off_from_the_first() -> None:
    strategy = RestartStrategy(type=RestartType.EXPONENTIAL_DELAY, jitter=0)
    base = a_shared_job(restart_strategy=strategy)
    first, _ = on_a_machine(base, NOW_MS + HOUR_MS)
    second, clock = on_a_machine(base, NOW_MS)
    take_checkpoint(first)
    plan = trigger_one(first)
    fail_checkpoint(first, plan.checkpoint_id, Reason.TASK_FAILURE, "x", is_task_failure=True)
    watch(second)
    clock.advance(1_000)
    watch(second)

    plan = trigger_one(second)
    clock.advance(1_000)
    state = fail_checkpoint(
        second, plan.checkpoint_id, Reason.TASK_FAILURE, "x", is_task_failure=True
    )

    assert state.restart_at_ms is not None
    assert state.restart_at_ms - second.now_ms() == 1_500


def test_a_request_waits_as_long_as_it_says_whoever_asked() -> None:
    base = a_shared_job()
    take_checkpoint(base)
    person, _ = on_a_machine(base, NOW_MS - HOUR_MS)
    host, _ = on_a_machine(base, NOW_MS)

    wanted = request_checkpoint(person, UserRequest(by="ada", type=CheckpointType.CHECKPOINT))

    assert trigger_one(host).cause != wanted.cause
    assert host.state().pending[0].request_id == wanted.request_id


def test_clocks_that_agree_to_seconds_are_used_as_they_are() -> None:
    base = a_shared_job()
    take_checkpoint(base)

    other, clock = on_a_machine(base, base.clock() + TOLERANCE_MS - 1_000)

    assert other.now_ms() == clock()


def test_a_machine_that_is_told_says_so(caplog: pytest.LogCaptureFixture) -> None:
    base = a_shared_job()
    take_checkpoint(base)
    ahead, _ = on_a_machine(base, base.clock() + HOUR_MS)

    ahead.state()
    ahead.now_ms()
    ahead.now_ms()

    (told,) = [record.getMessage() for record in caplog.records if "not the job's" in record.msg]
    assert "synchronize it with NTP" in told


def test_a_tick_of_the_machine_is_compared_with_the_machines_time() -> None:
    """A triggerer that is ahead must not start one run after the other for the same tick."""
    base = a_shared_job()
    take_checkpoint(base)
    triggerer, clock = on_a_machine(base, base.clock() + TIMEOUT_MS)
    tick_ms = clock() - 1_000
    waiting = NextCheckpoint(triggerer, interval_ms=0, latest_tick_ms=lambda: tick_ms).poll()

    assert waiting == Waiting(message="waiting for the next tick of the clock")


def test_a_job_does_not_begin_with_a_clock_that_aws_would_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "machine_clock_ms", lambda: machine_clock_ms() - DAY_MS)

    with pytest.raises(ConfigurationError, match=r"is 86,[34][0-9]{2} s ahead of that of memory:"):
        verify_root(a_job())


def processing_time_of(job: Job) -> int:
    """That of a checkpoint which is taken now."""
    plan = trigger_one(job)
    carry_out(job, plan)
    return plan.processing_time_ms


def test_one_trigger_on_a_clock_that_is_ahead_does_not_move_processing_time() -> None:
    base = a_shared_job()
    right, clock = on_a_machine(base, NOW_MS)
    ahead, _ = on_a_machine(base, NOW_MS + 365 * DAY_MS)

    first, second = processing_time_of(right), processing_time_of(ahead)
    clock.advance(MINUTE_MS)
    third = processing_time_of(right)

    assert first == NOW_MS
    assert abs(second - NOW_MS) < TOLERANCE_MS
    assert third == NOW_MS + MINUTE_MS


def test_an_aborted_plan_does_not_move_processing_time() -> None:
    clock = ManualClock()
    job = a_running_job(clock=clock)
    first_ms = processing_time_of(job)
    clock.advance(DAY_MS)
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "x")
    clock.advance(-DAY_MS)
    restore(job, Latest())

    again = trigger_one(job)

    assert plan.processing_time_ms == first_ms + DAY_MS
    assert again.processing_time_ms == first_ms


@pytest.mark.parametrize("is_savepoint", [False, True])
def test_a_restore_puts_processing_time_back_to_the_checkpoints(*, is_savepoint: bool) -> None:
    clock = ManualClock()
    job = a_running_job(a_pipeline(num_retained=2), clock=clock)
    first_ms = clock()
    if is_savepoint:
        a_savepoint(job, "s")
    else:
        take_checkpoint(job)
    clock.advance(DAY_MS)
    take_checkpoint(job)
    clock.advance(-DAY_MS)
    target = savepoint_target(job, "s") if is_savepoint else Choice(ONE)
    restore(job, target)

    behind = trigger_one(job)

    assert job.state().processing_time_ms == first_ms
    assert behind.processing_time_ms == first_ms


def test_processing_time_is_never_behind_that_of_the_checkpoint_that_is_continued() -> None:
    """What expired in one epoch and was merged away must not come back in the next."""
    clock = ManualClock()
    job = a_running_job(a_pipeline(max_concurrent_checkpoints=2), clock=clock)
    take_checkpoint(job)
    clock.advance(DAY_MS)
    parent = trigger_one(job)
    clock.advance(-HOUR_MS)

    child = trigger_one(job)

    assert (child.parent, child.processing_time_ms) == (TWO, parent.processing_time_ms)
    restore(job, Latest())
    assert job.state().processing_time_ms == parent.processing_time_ms - DAY_MS


def test_a_commit_that_lasts_is_kept_alive_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_shared_job()
    complete_one(job)
    watchdog, clock = on_a_machine(job, NOW_MS)
    watchdog.state()
    watchdog.now_ms()
    clock.advance(HOUR_MS)
    monkeypatch.setattr(publication, "BEAT_S", 0.01)

    with kept_alive(job, ONE):
        await_sign_of_life(job)
        assert watch(watchdog).actions == ()
        monkeypatch.setattr(publication, "ALIVE_MS", -1)  # It has not been heard of for long.
        actions = watch(watchdog).actions

    assert actions == ("committed checkpoint 1, whose own task did not",)
    assert not [*job.store.list(job.paths.committing(ONE))]


def await_sign_of_life(job: Job) -> None:
    given_up = time.monotonic() + PATIENCE_S
    while not is_kept_alive(job, ONE):
        assert time.monotonic() < given_up, "nothing shows that somebody is committing"
        time.sleep(0.001)  # It is another thread's turn.


def test_a_commit_whose_place_takes_long_is_kept_alive_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_shared_job()
    complete_one(job)
    watchdog, clock = on_a_machine(job, NOW_MS)
    watchdog.state()
    watchdog.now_ms()
    clock.advance(HOUR_MS)
    publish, watched = publication._publish, list[tuple[str, ...]]()  # noqa: SLF001

    def takes_long(*given: Any) -> None:
        await_sign_of_life(job)
        watched.append(watch(watchdog).actions)
        publish(*given)

    monkeypatch.setattr(publication, "BEAT_S", 0.01)
    monkeypatch.setattr(publication, "_publish", takes_long)
    commit(job, ONE)

    assert watched == [()]
    assert job.state().completed[-1].is_committed
    assert not [*job.store.list(job.paths.committing(ONE))]


def test_who_needs_a_commit_that_another_is_at_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_shared_job()
    complete_one(job)
    other, _ = on_a_machine(job, NOW_MS)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        commit(job, ONE)

    job.store.put(f"{job.paths.committing(ONE)}token", b"")
    replace_in(monkeypatch, "sluice.coordinator.publication", "time", sleep=sleep)
    trigger_one(other)

    assert waits == [publication.AWAIT_S]


def test_a_short_commit_asks_nothing_more_of_the_store() -> None:
    job = a_shared_job()
    plan = complete_one(job)
    commit(job, plan.checkpoint_id)

    assert not keys_of(job, job.paths.committing(ONE))
    assert job.state().status is JobStatus.RUNNING
    assert job.state().next_checkpoint_id == TWO != THREE


def test_a_completed_checkpoint_is_finalized_by_the_jobs_clock() -> None:
    base = a_shared_job()
    first, _ = on_a_machine(base, NOW_MS)
    take_checkpoint(first)
    plan = trigger_one(first)
    behind, _ = on_a_machine(base, NOW_MS - HOUR_MS)

    acknowledge(first, plan)
    completed = finalize(behind, plan.checkpoint_id)

    assert abs(completed.completed_at_ms - plan.triggered_at_ms) < TOLERANCE_MS


@pytest.mark.parametrize(("now_ms", "is_taken_over"), [(99, False), (100, True), (101, True)])
def test_what_a_later_processing_time_merged_away_is_not_missed_behind_a_restore(
    now_ms: int, *, is_taken_over: bool
) -> None:
    """A merge drops what had expired at its checkpoint; for an earlier one it has not."""
    job = a_shared_job()
    runs = tuple(a_handle(f"run{number}", number) for number in range(1, 10))
    merged = a_handle("merged", 9, rows=90)
    record_compaction(
        job,
        Compaction(
            stage=COUNT,
            checkpoint_id=TWO,
            merged=(MergedRuns(replaced=tuple(map(replaced_segment, runs)), merged=(merged,)),),
            processing_time_ms=100,
        ),
    )

    state = take_over_compactions(job, COUNT, (runs,), now_ms)

    assert state == (((merged,) if is_taken_over else runs),)


COMMIT = "coordinator.publication"
FAULTS = [
    Caught(
        "a commit that lasts shows no sign of life", f"{COMMIT}:kept_alive",
        'job.store.put(key, b"")', "pass",
        test_a_commit_that_lasts_is_kept_alive_and_left_alone,
    ),
    Caught(
        "a commit that lasts is not kept alive", f"{COMMIT}:commit",
        "with kept_alive(job, checkpoint_id):", "if True:",
        test_a_commit_whose_place_takes_long_is_kept_alive_until_it_is_done,
    ),
    Caught(
        "the watchdog does not ask whether who commits lives", "coordinator.failure:watch",
        "and not is_kept_alive(job, owed.checkpoint_id)", "",
        test_a_commit_that_lasts_is_kept_alive_and_left_alone,
    ),
    Caught(
        "a sign of life counts for ever", f"{COMMIT}:is_kept_alive",
        "return bool(beats) and now_ms(job.store) - max(beats) < ALIVE_MS", "return bool(beats)",
        test_a_commit_that_lasts_is_kept_alive_and_left_alone,
    ),
    Caught(
        "who needs a commit that another is at commits beside it", f"{COMMIT}:_await_owner",
        "while is_kept_alive(job, checkpoint_id):", "while False:",
        test_who_needs_a_commit_that_another_is_at_waits_for_it,
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(
    fault: Caught, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE_S", 1)  # In vain, in some of them.
    assert_is_caught(fault, request)
