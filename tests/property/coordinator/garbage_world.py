"""A job under random weather: crashes, fenced attempts, aborts, restores, savepoints, pipelines."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from harness.hooked import Crash, crashing
from harness.jobs import ManualClock, a_pipeline, a_running_job, results
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, overtake, watch
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.savepoints import complete_savepoints
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import CheckpointType, ClaimMode, JobStatus
from sluice.core.events import AttemptStarted
from sluice.core.failures import CheckpointFailureReason as Failure
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.restoring import (
    Choice,
    Latest,
    RestoreApproval,
    RestoreOptions,
    RestoreTarget,
)
from sluice.core.state import CoordinatorState
from sluice.errors import FencedError, NotYetAcknowledged, SluiceError
from sluice.job.job import Job
from tests.subtasks import acknowledge, in_flight_records, state_records

STAGES = ("count_bids", "rank_bids", "best_bids")
FOR_EVER = RestartStrategy(type=RestartType.FIXED_DELAY, delay_ms=0, attempts=1_000)
WEATHERS: dict[str, dict[str, Any]] = {
    "one at a time": {},
    "pipelined": {"max_concurrent_checkpoints": 3},
    "unaligned": {"unaligned": True},
    "overtaken": {"unaligned": True, "aligned_checkpoint_timeout": timedelta(seconds=1)},
}


class World:
    """``step`` does something at random; ``snapshots`` is what must never change."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.plans: list[CheckpointPlan] = []
        self.weather = self.random.choice(sorted(WEATHERS))
        pipeline = a_pipeline(
            stages=STAGES,
            num_retained=self.random.randint(1, 3),
            tolerable_failed_checkpoints=1_000,
            restart_strategy=FOR_EVER,
            **WEATHERS[self.weather],
        )
        self.job = a_running_job(pipeline, clock=self.clock)

    def step(self) -> None:
        self.clock.advance(100)
        usual = [self.trigger, self.answer, self.finish]
        if self.weather == "overtaken":
            usual.append(self.overtake)
        rare = [self.zombie, self.retry, self.abort, self.take_savepoint, self.restore, self.watch]
        act = self.random.choice(usual if self.random.random() < 0.85 else rare)
        if self.job.state().status is JobStatus.RESTARTING:
            act = self.watch
        job = (
            crashing(self.job, self.random.randint(0, 15))
            if self.random.random() < 0.1
            else self.job
        )
        with suppress(Crash, FencedError, NotYetAcknowledged):
            act(job)

    def trigger(self, job: Job, **given: Any) -> None:
        outcome = trigger(job, **given)
        if isinstance(outcome, Triggered):
            self.plans.append(outcome.plan)

    def answer(self, job: Job) -> None:
        """Stages of what is pending, in order; maybe not all of them."""
        for pending in job.state().pending:
            plan = job.plan(pending.checkpoint_id)
            if plan is None:
                continue
            for task in plan.tasks:
                if self.random.random() < 0.1:
                    return
                if task.uid not in pending.overtaken:
                    attempt, compacts = pending.attempt_of(task.uid), self.random.random() < 0.4
                    acknowledge(job, plan, task.uid, attempt=attempt, compacts=compacts)

    def finish(self, job: Job) -> None:
        for pending in job.state().pending[:1]:
            finalize(job, pending.checkpoint_id)
            if self.random.random() < 0.8:
                commit(job, pending.checkpoint_id)

    def zombie(self, job: Job) -> None:
        """A Spark job of a fenced attempt, or of a checkpoint long over, still writes."""
        if self.plans:
            plan = self.random.choice(self.plans)
            with suppress(SluiceError, AssertionError):  # What it reads may be gone.
                acknowledge(job, plan, self.random.choice(plan.tasks).uid, attempt=99)

    def retry(self, job: Job) -> None:
        for pending in job.state().pending:
            uid = self.random.choice(pending.tasks).uid
            attempt = pending.attempt_of(uid) + 1
            job.journal.append(partial(_an_attempt, pending.checkpoint_id, uid, attempt))

    def overtake(self, job: Job) -> None:
        for pending in job.state().pending:
            overtake(job, pending.checkpoint_id, [self.random.choice(STAGES[1:])])

    def abort(self, job: Job) -> None:
        for pending in job.state().pending[-1:]:
            is_failure = self.random.random() < 0.5
            reason = Failure.TASK_FAILURE if is_failure else Failure.CHECKPOINT_EXPIRED
            fail_checkpoint(job, pending.checkpoint_id, reason, "rain", is_task_failure=is_failure)

    def take_savepoint(self, job: Job) -> None:
        name = f"s{len(self.plans)}-{self.random.randrange(10**6)}"
        self.trigger(job, type=CheckpointType.SAVEPOINT, savepoint_name=name, is_periodic=False)

    def restore(self, job: Job) -> None:
        mode = self.random.choice(list(ClaimMode))
        target = self.random.choice(self.targets(job))
        may_claim = isinstance(target, Choice) and target.origin is not None  # Not the job's own.
        restore(job, target, RestoreOptions(claim_mode=mode) if may_claim else RestoreOptions())

    def watch(self, job: Job) -> None:
        """Restarts a failed job, too, and collects its garbage every few checkpoints."""
        watch(job, commit_grace_ms=0, kept_entries=5, garbage_grace_ms=0)

    def targets(self, job: Job) -> list[RestoreTarget]:
        own = [Choice(c.checkpoint_id) for c in job.state().completed]
        claimed = job.state().claimed_savepoints
        free = [one.name for one in complete_savepoints(job) if one not in claimed]
        return [Latest(), *own, *(savepoint_target(job, name) for name in free)]

    def settle(self) -> None:
        """End what is pending, and do what is owed."""
        for pending in reversed(self.job.state().pending):
            fail_checkpoint(self.job, pending.checkpoint_id, Failure.CHECKPOINT_EXPIRED, "over")
        if self.job.state().status is not JobStatus.RUNNING:
            restore(self.job, Latest())
        watch(self.job, commit_grace_ms=0)

    def snapshots(self) -> dict[str, object]:
        """Everything that can be restored, read to the last row; and the tables."""
        job = self.job
        found = {str(target): self._restored(target) for target in self.targets(job)}
        table = results(job)
        versions = {str(version): table.read(version).num_rows for version in table.versions()}
        return found | versions

    def _restored(self, target: RestoreTarget) -> object:
        job = self.job
        decision = plan_restore(job, target)
        assert isinstance(decision, RestoreApproval), decision.problems
        choice = decision.choice
        if choice.checkpoint_id is None:
            return None
        origin = choice.origin
        metadata = job.origin_metadata(origin) if origin else job.metadata(choice.checkpoint_id)
        self._check_staged(metadata)
        return {
            stage.uid: (
                state_records(job, metadata, stage.uid), in_flight_records(job, metadata, stage.uid)
            )
            for stage in metadata.stages
        }  # fmt: skip

    def _check_staged(self, metadata: CheckpointMetadata) -> None:
        """What is yet to be committed is there."""
        store = results(self.job).store
        for committable in metadata.committables:
            body = store.get(committable.file)
            assert body is not None, f"{committable.file} is missing"
            assert len(body) == committable.size_bytes


def _an_attempt(
    checkpoint_id: CheckpointId, stage: str, attempt: int, state: CoordinatorState
) -> AttemptStarted:
    return AttemptStarted(
        generation=state.generation, checkpoint_id=checkpoint_id, stage=stage, attempt=attempt
    )
