"""What a person on call is told first, in each state that a job can be in."""

from __future__ import annotations

from datetime import timedelta

import pytest

from harness.jobs import ManualClock, a_job, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.requests import pause
from sluice.coordinator.restore import restore, stop
from sluice.core.configuration import JobStatus, Retention
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Choice, Latest
from sluice.declaration.schedules import Cron, OnAsset
from sluice.job.job import Job
from sluice.surface.health import Health, Tone, next_trigger
from sluice.surface.pipelines import pipeline_line
from tests.subtasks import a_savepoint, take_checkpoint

EXPIRED = CheckpointFailureReason.CHECKPOINT_EXPIRED


def health_of(job: Job) -> Health:
    found = pipeline_line(job).health
    assert found is not None
    return found


def a_job_of(clock: ManualClock, *, tolerable: int = 9) -> Job:
    return a_running_job(a_pipeline(events=45, tolerable_failed_checkpoints=tolerable), clock=clock)


def test_a_job_that_was_never_submitted_says_how_it_begins() -> None:
    found = health_of(a_job(a_pipeline()))

    assert (found.tone, found.says, found.since) == (Tone.WARN, "It was never submitted.", None)
    assert found.next_step is not None
    assert found.next_step.command == "sluice run auctions"


def test_a_running_job_needs_nothing_and_says_since_when() -> None:
    clock = ManualClock()
    job = a_job_of(clock)
    since = clock.now_ms
    clock.advance(5_000)
    take_checkpoint(job)
    clock.advance(7_000)

    found = health_of(job)

    assert (found.tone, found.says, found.next_step) == (Tone.GOOD, "It runs.", None)
    assert (found.since, found.age_ms, found.target_age_ms) == (since, 7_000, 180_000)


@pytest.mark.parametrize(
    ("target", "age_s", "is_late"), [(None, 180, False), (None, 181, True), (60, 61, True)]
)
def test_a_job_is_late_above_its_target_or_three_intervals(
    target: int | None, age_s: int, is_late: bool
) -> None:
    clock = ManualClock()
    age = None if target is None else timedelta(seconds=target)
    job = a_running_job(a_pipeline(events=45, target_age=age), clock=clock)
    take_checkpoint(job)
    clock.advance(age_s * 1_000)

    found = health_of(job)

    assert (found.is_late, found.tone is Tone.WARN) == (is_late, is_late)
    assert next_trigger(job).is_due


def test_a_checkpoint_by_the_clock_is_due_at_its_tick_and_not_before() -> None:
    clock = ManualClock()
    job = a_running_job(a_pipeline(events=45, schedule=Cron("0 * * * *")), clock=clock)
    tick_ms = clock.now_ms
    clock.advance(1_000)
    take_checkpoint(job)
    clock.advance(100_000)

    before = next_trigger(job, latest_tick_ms=lambda: tick_ms)
    at_the_tick = next_trigger(job, latest_tick_ms=lambda: clock.now_ms)

    assert (before.is_due, before.says) == (False, "waiting for the next tick of the clock")
    assert at_the_tick.is_due


def test_a_checkpoint_that_an_asset_starts_is_never_due_by_itself() -> None:
    job = a_running_job(a_pipeline(events=45, schedule=OnAsset(uri="s3://orders")))

    found = next_trigger(job)

    assert not found.is_due
    assert (
        found.says == "an event of asset 's3://orders' starts it; there is: new records in events"
    )


def test_a_job_that_was_just_restored_is_not_late_for_the_time_before() -> None:
    clock = ManualClock()
    job = a_job_of(clock)
    take_checkpoint(job)
    stop(job, JobStatus.SUSPENDED)
    clock.advance(3_600_000)
    suspended = health_of(job)
    restore(job, Latest())
    restored = health_of(job)
    clock.advance(181_000)

    assert (suspended.is_late, restored.is_late) == (False, False)
    assert restored.since == clock.now_ms - 181_000
    assert health_of(job).is_late


def test_a_pause_names_who_paused_and_how_it_is_resumed() -> None:
    job = a_job_of(ManualClock())
    pause(job, by="ada")

    found = health_of(job)

    assert found.says == "Its checkpointing is paused by ada: it reads nothing."
    assert found.next_step is not None
    assert found.next_step.command == "sluice resume auctions"


def test_a_failed_checkpoint_names_its_reason_until_another_completed() -> None:
    job = a_job_of(ManualClock())
    fail_checkpoint(job, trigger_one(job).checkpoint_id, EXPIRED, "too slow")

    failed = health_of(job)
    take_checkpoint(job)

    assert failed.says == "Checkpoint 1 was aborted, CHECKPOINT_EXPIRED: too slow."
    assert failed.next_step is not None
    assert failed.next_step.page == ("reasons", "CHECKPOINT_EXPIRED")
    assert health_of(job).tone is Tone.GOOD


def test_a_restart_says_when_and_from_where() -> None:
    clock = ManualClock()
    job = a_job_of(clock, tolerable=0)
    take_checkpoint(job)
    fail_checkpoint(job, trigger_one(job).checkpoint_id, EXPIRED, "too slow")

    found = health_of(job)

    assert job.state().status is JobStatus.RESTARTING
    assert found.tone is Tone.WARN
    assert found.says.startswith("It failed, and restarts in ")
    assert found.says.endswith(
        " from checkpoint 1. Checkpoint 2 was aborted, CHECKPOINT_EXPIRED: too slow."
    )


def test_a_restart_and_a_restore_go_on_from_the_checkpoint_that_was_restored() -> None:
    """Not from a newer one that is retained still: it belongs to a life that was left."""
    job = a_running_job(a_pipeline(events=45, tolerable_failed_checkpoints=0, num_retained=2))
    for _ in range(2):
        take_checkpoint(job)
    restore(job, Choice(CheckpointId(1)))
    failing = trigger_one(job).checkpoint_id
    fail_checkpoint(job, failing, EXPIRED, "too slow")
    restarting = health_of(job)
    stop(job, JobStatus.SUSPENDED)
    suspended = health_of(job).next_step

    assert [c.checkpoint_id for c in job.state().completed] == [1, 2]
    assert " from checkpoint 1. " in restarting.says
    assert suspended is not None
    assert "from checkpoint 1 if no other is chosen" in suspended.says


def test_a_job_that_began_from_a_savepoint_restarts_from_there() -> None:
    job = a_job_of(ManualClock(), tolerable=0)
    a_savepoint(job)
    restore(job, Choice.of(job.savepoint_origin("mine")))
    fail_checkpoint(job, trigger_one(job).checkpoint_id, EXPIRED, "too slow")

    assert " from savepoint mine. " in health_of(job).says


@pytest.mark.parametrize(
    ("status", "tone", "says"),
    [
        (JobStatus.SUSPENDED, Tone.WARN, "A person suspended it, and it can go on."),
        (JobStatus.CANCELED, Tone.CALM, "A person cancelled it."),
    ],
)
def test_what_a_person_stopped_goes_on_by_a_restore(
    status: JobStatus, tone: Tone, says: str
) -> None:
    job = a_job_of(ManualClock())
    take_checkpoint(job)
    stop(job, status)

    found = health_of(job)

    assert (found.tone, found.says) == (tone, says)
    assert found.next_step is not None
    assert (found.next_step.command, found.next_step.page) == (
        "sluice restore auctions",
        ("snapshots",),
    )
    assert "checkpoint 1" in found.next_step.says


def test_a_cancelled_job_that_retained_nothing_says_how_old_its_last_checkpoint_is() -> None:
    clock = ManualClock()
    never = Retention.NEVER_RETAIN_AFTER_TERMINATION
    job = a_running_job(a_pipeline(events=45, externalized_checkpoint_retention=never), clock=clock)
    take_checkpoint(job)
    clock.advance(9_000)
    stop(job, JobStatus.CANCELED)

    found = health_of(job)

    assert pipeline_line(job).last_completed is None
    assert found.age_ms == 9_000
    assert found.next_step is not None
    assert found.next_step.command == "sluice run auctions --fresh"
