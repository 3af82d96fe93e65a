"""Master hooks: the outside world is told of every checkpoint, and put back with every restore."""

from __future__ import annotations

from typing import Any

import pytest

from harness.jobs import ManualClock, a_pipeline, a_running_job, keys_of, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, watch
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.trigger import NotTriggered, Queued, Triggered, trigger
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.restoring import FromCheckpoint, Latest
from sluice.declaration.pipeline import Pipeline
from sluice.errors import RestoreError
from sluice.job.job import Job
from tests.subtasks import a_savepoint, acknowledge, take_checkpoint

ONE = CheckpointId(1)


class World:
    """The calls of a job's hooks; ``broken`` names those that fail."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.broken: set[str] = set()

    def declare(self, pipeline: Pipeline, *uids: str) -> Pipeline:
        for uid in uids:
            pipeline.hook(uid, trigger=self.trigger_of(uid), restore=self.restore_of(uid))
        return pipeline

    def trigger_of(self, uid: str) -> Any:
        def on_trigger(checkpoint_id: int, timestamp_ms: int) -> str | None:
            self._call(uid, "trigger", checkpoint_id, timestamp_ms)
            return None if uid == "silent" else f"{uid} as of {checkpoint_id}"

        return on_trigger

    def restore_of(self, uid: str) -> Any:
        return lambda checkpoint_id, state: self._call(uid, "restore", checkpoint_id, state)

    def _call(self, uid: str, act: str, *given: object) -> None:
        self.calls.append((uid, act, *given))
        if uid in self.broken:
            raise OSError("the outside does not answer")

    def taken(self) -> list[tuple[Any, ...]]:
        calls, self.calls = self.calls, []
        return calls


def a_hooked_job(**checkpointing: Any) -> tuple[Job, World]:
    delay = RestartStrategy(type=RestartType.FIXED_DELAY, delay_ms=0)
    world = World()
    pipeline = a_pipeline(**{"restart_strategy": delay} | checkpointing)
    return a_running_job(world.declare(pipeline, "flags", "silent")), world


def test_hooks_are_called_in_order_before_the_checkpoint_is_true_and_their_states_are_kept() -> (
    None
):
    job, world = a_hooked_job()
    assert isinstance(job.clock, ManualClock)

    plan = trigger_one(job)

    now_ms = job.clock.now_ms
    assert world.taken() == [("flags", "trigger", 1, now_ms), ("silent", "trigger", 1, now_ms)]
    assert plan.master_states == {"flags": "flags as of 1", "silent": None}
    acknowledge(job, plan)
    finalize(job, ONE)
    commit(job, ONE)
    assert job.metadata(ONE).master_states == plan.master_states
    assert world.taken() == []


def test_hooks_are_restored_in_order_with_what_they_answered() -> None:
    job, world = a_hooked_job()
    take_checkpoint(job)
    take_checkpoint(job)
    world.taken()

    restore(job, FromCheckpoint(ONE))

    assert world.taken() == [
        ("flags", "restore", 1, "flags as of 1"),
        ("silent", "restore", 1, None),
    ]
    assert not job.state().must_restore_hooks


def test_hooks_get_back_what_a_savepoint_kept() -> None:
    job, world = a_hooked_job()
    a_savepoint(job)
    take_checkpoint(job)
    world.taken()

    restore(job, savepoint_target(job, "mine"))

    assert world.taken()[0] == ("flags", "restore", 1, "flags as of 1")


def test_a_job_that_starts_from_empty_tells_its_hooks_so() -> None:
    job, world = a_hooked_job()

    restore(job, Latest())

    assert world.taken() == [("flags", "restore", None, None), ("silent", "restore", None, None)]


def test_a_hook_that_is_new_has_nothing_to_get_back() -> None:
    job, world = a_hooked_job()
    take_checkpoint(job)
    world.declare(job.pipeline, "new")

    restore(job, Latest())

    assert world.taken()[-1] == ("new", "restore", 1, None)


def test_a_restore_of_a_job_without_hooks_owes_nothing() -> None:
    job = a_running_job()
    take_checkpoint(job)

    assert not restore(job, Latest()).state.must_restore_hooks


def test_a_failing_restore_hook_fails_the_job_over() -> None:
    job, world = a_hooked_job()
    take_checkpoint(job)
    world.taken()
    world.broken = {"flags"}

    with pytest.raises(RestoreError, match="hook 'flags' could not be restored: the outside does"):
        restore(job, Latest())

    state = job.state()
    assert (state.status, state.must_restore_hooks) == (JobStatus.RESTARTING, True)
    assert world.taken() == [("flags", "restore", 1, "flags as of 1")]
    world.broken = set()
    assert watch(job).actions == ("restored the job from checkpoint 1",)
    assert job.state().status is JobStatus.RUNNING
    assert not job.state().must_restore_hooks


def test_a_failing_restore_hook_uses_up_the_restarts() -> None:
    once = RestartStrategy(type=RestartType.FIXED_DELAY, attempts=1, delay_ms=0)
    job, world = a_hooked_job(restart_strategy=once)
    world.broken = {"flags"}

    for status in (JobStatus.RESTARTING, JobStatus.FAILED):
        with pytest.raises(RestoreError):
            restore(job, Latest())
        assert job.state().status is status


def a_job_whose_restorer_died(monkeypatch: pytest.MonkeyPatch) -> tuple[Job, World]:
    """The fence is journaled; nothing behind it happened."""
    job, world = a_hooked_job()
    take_checkpoint(job)
    world.taken()

    class Killed(BaseException):
        pass

    def dies(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("sluice.coordinator.restore.resume", dies)
    with pytest.raises(Killed):
        restore(job, Latest())
    monkeypatch.undo()
    assert (job.state().generation, world.taken()) == (2, [])
    return job, world


def test_a_crash_between_the_fence_and_the_hooks_is_made_up_for_by_the_next_trigger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, world = a_job_whose_restorer_died(monkeypatch)

    trigger_one(job)

    acts = [call[:3] for call in world.taken()]
    assert acts == [
        ("flags", "restore", 1),
        ("silent", "restore", 1),
        ("flags", "trigger", 2),
        ("silent", "trigger", 2),
    ]
    assert not job.state().must_restore_hooks


def test_nothing_is_triggered_while_a_hook_cannot_be_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, world = a_job_whose_restorer_died(monkeypatch)
    world.broken = {"silent"}

    with pytest.raises(RestoreError, match="hook 'silent' could not be restored"):
        trigger(job)

    assert (job.state().status, job.state().pending) == (JobStatus.RESTARTING, ())


def test_a_failing_trigger_hook_drops_the_request_and_the_job_goes_on() -> None:
    job, world = a_hooked_job()
    world.broken = {"silent"}

    assert trigger(job) == NotTriggered(
        reason=Reason.TRIGGER_CHECKPOINT_FAILURE,
        message="master hook 'silent' failed: the outside does not answer",
    )
    assert keys_of(job, "auctions/checkpoints/") == []
    assert job.state().status is JobStatus.RUNNING
    world.broken = set()
    assert take_checkpoint(job) == 1


def test_a_queued_request_whose_hook_fails_leaves_the_queue() -> None:
    job, world = a_hooked_job(tolerable_failed_checkpoints=1)
    trigger_one(job)
    assert isinstance(trigger(job, request_id="mine"), Queued)
    fail_checkpoint(job, ONE, Reason.CHECKPOINT_EXPIRED, "too slow")
    world.broken = {"flags"}

    outcome = trigger(job, request_id="mine")

    assert isinstance(outcome, NotTriggered)
    assert (outcome.reason, job.state().queue) == (Reason.TRIGGER_CHECKPOINT_FAILURE, ())
    world.broken = set()
    assert isinstance(trigger(job, request_id="another"), Triggered)
