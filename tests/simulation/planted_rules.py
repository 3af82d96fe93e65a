"""Planted faults: rules of the coordinator that are broken."""

# ruff: noqa: SLF001 - faults are planted inside

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from sluice.coordinator import completion, failure, restore
from sluice.coordinator import completion as coordinator_completion
from sluice.coordinator.planning import make_plan
from sluice.coordinator.restore_plan import observe
from sluice.coordinator.tables import writer_of
from sluice.core import coordinator
from sluice.core.answers import Ack
from sluice.core.completed import CheckpointMetadata
from sluice.core.coordinator import step
from sluice.core.events import (
    CheckpointCompleted,
    CheckpointFailed,
    DeclineReceived,
    Event,
    JobRestored,
    Transition,
    Verdict,
)
from sluice.core.ids import CheckpointId, CheckpointIdCounter, Generation
from sluice.core.pending import AckResult, PendingCheckpoint
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.restoring import Choice, Observed, Stop, choose
from sluice.core.state import CoordinatorState
from sluice.errors import NotYetAcknowledged
from sluice.job.answers import acknowledged
from sluice.job.job import Job
from sluice.job.lineage import assigned_state, stage_state
from sluice.job.places import open_sinks
from sluice.store.checkpoints import AnswerStore
from tests.simulation.planting import mutation
from tests.simulation.play import replace_everywhere


@mutation(2, 7)
def accept_any_attempt(patch: pytest.MonkeyPatch) -> None:
    """An ack of whatever execution attempt counts."""
    real, read = PendingCheckpoint.acknowledge, AnswerStore.acks

    def acknowledge(
        self: PendingCheckpoint, acks: Iterable[Ack]
    ) -> tuple[PendingCheckpoint, tuple[AckResult, ...]]:
        return real(self, [replace(a, attempt=self.attempt_of(a.subtask.stage)) for a in acks])

    def acks(self: AnswerStore, *given: Any, attempt: int, parallelism: int) -> list[Ack]:
        found = {}
        for each in range(attempt + 2, 0, -1):
            for ack in read(self, *given, attempt=each, parallelism=parallelism):
                found[ack.subtask] = ack
        return [found[subtask] for subtask in sorted(found)]

    patch.setattr(PendingCheckpoint, "acknowledge", acknowledge)
    patch.setattr(AnswerStore, "acks", acks)


@mutation(3)
def keep_the_acks_behind_an_attempt(patch: pytest.MonkeyPatch) -> None:
    """A stage that runs again leaves the acks of those that read its attempt before."""

    def start_attempt(self: PendingCheckpoint, stage: str, attempt: int) -> PendingCheckpoint:
        attempts = {**self.attempts, stage: attempt}
        return replace(self, attempts=attempts, acks=self._acks_without({stage}))

    patch.setattr(PendingCheckpoint, "start_attempt", start_attempt)


@mutation(10)
def skip_the_fence(patch: pytest.MonkeyPatch) -> None:
    """An overtaken generation may still write."""
    patch.setattr(coordinator, "_is_fenced", lambda *_: False)


@mutation(10)
def keep_the_generation(patch: pytest.MonkeyPatch) -> None:
    """A restore continues under the generation it found."""
    is_fenced = coordinator._is_fenced

    def is_fenced_unless_restored(state: CoordinatorState, event: Event) -> bool:
        return not isinstance(event, JobRestored) and is_fenced(state, event)

    patch.setattr(restore, "next_generation", lambda state: state.generation or Generation(1))
    patch.setattr(coordinator, "_is_fenced", is_fenced_unless_restored)


@mutation(6)
def reuse_an_id(patch: pytest.MonkeyPatch) -> None:
    """The id of an aborted checkpoint is free again."""

    def reusing(state: CoordinatorState, event: Event) -> Transition:
        transition = step(state, event)
        if transition.verdict is not Verdict.APPLIED or not state.pending:
            return transition
        if not isinstance(event, CheckpointFailed | DeclineReceived):
            return transition
        left = {pending.checkpoint_id for pending in transition.state.pending}
        gone = [p.checkpoint_id for p in state.pending if p.checkpoint_id not in left]
        if not gone:
            return transition
        ids = CheckpointIdCounter(next_id=min(gone))
        again = replace(transition.state, ids=ids)
        return replace(transition, state=again)

    replace_everywhere(patch, step, reusing)


@mutation(3)
def restore_what_is_pending(patch: pytest.MonkeyPatch) -> None:
    """The latest checkpoint is restored, even if it is only pending."""

    def choose_pending(state: CoordinatorState, *given: Any) -> Choice | Stop:
        if state.pending:
            return Choice(checkpoint_id=state.pending[-1].checkpoint_id)
        return choose(state, *given)

    def look(job: Job, choice: Choice, *given: Any) -> Observed:
        pending = job.state().pending_checkpoint(choice.checkpoint_id or 0)
        return observe(job, choice, *given) if pending is None else Observed()

    def restoring(state: CoordinatorState, event: Event) -> Transition:
        if not isinstance(event, JobRestored) or event.checkpoint_id is None:
            return step(state, event)
        if state.pending_checkpoint(event.checkpoint_id) is None:
            return step(state, event)
        transition = step(state, replace(event, checkpoint_id=state.base))
        if transition.verdict is not Verdict.APPLIED:
            return transition
        return replace(transition, state=replace(transition.state, base=event.checkpoint_id))

    replace_everywhere(patch, choose, choose_pending)
    replace_everywhere(patch, observe, look)
    replace_everywhere(patch, step, restoring)


@mutation(3)
def continue_from_the_newest(patch: pytest.MonkeyPatch) -> None:
    """The next epoch begins where the newest checkpoint ended, whichever was restored."""
    base_metadata = Job.base_metadata

    def newest(self: Job, state: CoordinatorState) -> CheckpointMetadata | None:
        if state.base is None or not state.completed:
            return base_metadata(self, state)
        return self.metadata(state.completed[-1].checkpoint_id)

    patch.setattr(Job, "base_metadata", newest)


@mutation(3)
def forget_the_hash_range(patch: pytest.MonkeyPatch) -> None:
    """After a rescale every subtask owns all the rows of the state that it inherits."""

    def whole(before: object, task: TaskPlan) -> tuple[tuple[object, ...], ...]:
        shares = assigned_state(before, task)  # type: ignore[arg-type]
        return tuple(
            tuple(replace(h, first_hash=-(2**63), last_hash=2**63 - 1) for h in share)
            for share in shares
        )

    replace_everywhere(patch, assigned_state, whole)


@mutation(3, 5)
def complete_before_the_parent(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint is completed although the one that it continues is still pending."""

    def completing(state: CoordinatorState, event: Event) -> Transition:
        if not isinstance(event, CheckpointCompleted) or len(state.pending) < 2:
            return step(state, event)
        mine = state.pending_checkpoint(event.checkpoint_id)
        if mine is None or mine is state.pending[0]:
            return step(state, event)
        alone = replace(state, pending=(replace(mine, parent=state.base),))
        return step(alone, event)

    patch.setattr(completion, "_after_parent", lambda _, head, __: head)
    replace_everywhere(patch, step, completing)


@mutation(3)
def forget_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    """The segments that a stage has not consumed are not kept in the checkpoint."""
    replace_everywhere(
        patch, stage_state, lambda *given: replace(stage_state(*given), in_flight=())
    )


@mutation(3)
def overtake_a_source(patch: pytest.MonkeyPatch) -> None:
    """The coordinator acknowledges for any stage, also for one that reads the source itself."""
    real = PendingCheckpoint.overtake

    def overtake(self: PendingCheckpoint, stages: Iterable[str]) -> PendingCheckpoint:
        tasks = tuple(replace(task, may_be_overtaken=True) for task in self.tasks)
        return replace(real(replace(self, tasks=tasks), stages), tasks=self.tasks)

    patch.setattr(PendingCheckpoint, "overtake", overtake)


@mutation(9)
def share_files_with_the_savepoint(patch: pytest.MonkeyPatch) -> None:
    """The first checkpoint after a NO_CLAIM restore goes on naming the savepoint's files."""

    def plan(*given: Any) -> object:
        made = make_plan(*given)
        return replace(made, is_full=False) if isinstance(made, CheckpointPlan) else made

    replace_everywhere(patch, make_plan, plan)


@mutation(5)
def publish_before_it_is_completed(patch: pytest.MonkeyPatch) -> None:
    """The sinks publish once the metadata is written, before it is journaled."""
    write = coordinator_completion.write_metadata

    def write_and_publish(job: Job, metadata: CheckpointMetadata) -> CheckpointMetadata:
        written, state = write(job, metadata), job.state()
        before = written.previous_tables if state.tables is None else state.tables
        for uid, sink in open_sinks(job, state.configuration.params).items():
            if written.tables.get(uid) == written.checkpoint_id:
                mine = tuple(c for c in written.committables if c.sink == uid)
                sink.commit(writer_of(state), written.checkpoint_id, before.get(uid), mine)
        return written

    patch.setattr(completion, "write_metadata", write_and_publish)


@mutation(5)
def restore_without_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A restore does not replay an unfinished commit."""
    patch.setattr(restore, "resume", lambda _, head: head)


@mutation(0)
def never_restart(patch: pytest.MonkeyPatch) -> None:
    """The watchdog leaves a failed job to itself."""
    patch.setattr(failure, "_restart", lambda *_: "nothing")


@mutation(2)
def finalize_without_an_ack(patch: pytest.MonkeyPatch) -> None:
    """The last subtask's ack is not waited for."""

    def nearly(job: Job, state: CoordinatorState, checkpoint_id: CheckpointId) -> PendingCheckpoint:
        pending = acknowledged(job, state, checkpoint_id)
        missing = pending.not_yet_acknowledged
        if len(missing) > 1:
            raise NotYetAcknowledged("too many acks are missing")
        forged = [
            Ack(
                checkpoint_id=checkpoint_id,
                subtask=subtask,
                attempt=pending.attempt_of(subtask.stage),
                watermark_ms=0,
            )
            for subtask in missing
        ]
        return pending.acknowledge(forged)[0]

    patch.setattr(completion, "_fully_acknowledged", nearly)
