"""The invariants of DESIGN section 8, whatever dies, is lost or comes late.

Method: a seeded ``World`` plays with a store that loses requests and answers and kills its callers.
The ``Invariants`` see every write and every delete as it happens, and refuse what must never be.
Then the faults end, and the job has to take a checkpoint and publish every record exactly once.

SIM_SEEDS=5000 plays more; a failure prints its seed and the history of the acts.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import sluice.core.coordinator
import sluice.runner.commands
import sluice.storage.journal
from sluice.core.acks import Ack
from sluice.core.completed import CheckpointMetadata
from sluice.core.coordinator import Verdict, step
from sluice.core.ids import NO_GENERATION
from sluice.core.messages import (
    CheckpointCompleted,
    CheckpointTriggered,
    JobRestored,
    JobSubmitted,
)
from sluice.core.pending import AckResult, PendingCheckpoint
from sluice.core.properties import JobStatus
from sluice.core.reasons import CheckpointFailureReason as Reason
from sluice.core.state import CoordinatorState
from sluice.protocol.records import JournalEntry, decode_ack, decode_entry, decode_metadata
from sluice.runner.completion import commit, finalize
from sluice.runner.recovery import Latest, fail_checkpoint, restore
from sluice.runner.submission import configure, submit
from sluice.runner.trigger import Triggered, trigger
from sluice.runner.watch import watch
from sluice.storage.journal import Journal
from sluice.storage.memory import InMemoryStore
from tests.builders import SINK
from tests.simulation.world import FlakyStore, InlinePool, World

SEEDS = int(os.environ.get("SIM_SEEDS", "300"))
TURNS = 200


class SimulationFailed(AssertionError):
    """The seed, the history of the acts, and what went wrong."""


class Invariants:
    """Sees every write and delete at the moment it happens."""

    def __init__(self) -> None:
        self.world: World
        self.head = CoordinatorState()
        self.ended: dict[int, str] = {}
        self.metadata: dict[int, CheckpointMetadata] = {}
        self.attempts: dict[int, list[dict[str, int]]] = {}  # That ever counted, per checkpoint.
        self.manifests: dict[int, Any] = {}

    def wrote(self, key: str, body: bytes, before: bytes | None) -> None:
        assert before in (None, body), f"{key} was rewritten with other bytes"
        if key.startswith("auctions/journal/"):
            assert before is None, f"{key} was written twice"
            self._appended(decode_entry(body, key))
        if key.startswith(f"auctions/tables/{SINK}/_manifests/"):
            self._published(json.loads(body))

    def deletes(self, key: str) -> None:
        assert "/journal/" not in key
        assert "/savepoints/" not in key, f"{key} belongs to the user"
        for retained in self.head.completed:
            metadata = self.metadata[retained.checkpoint_id]
            assert key not in {handle.key for handle in metadata.files}, f"{key} is still needed"
            assert key not in self._staged(metadata), f"{key} is of a completed checkpoint"
        for manifest in self.manifests.values():
            assert key not in self._files(manifest), f"{key} is published"

    def _appended(self, entry: JournalEntry) -> None:
        """The journal is a fold, its generations grow, each checkpoint ends once."""
        before, event = self.head, entry.event
        transition = step(before, event)
        assert (transition.verdict, transition.state) == (Verdict.APPLIED, entry.state)
        if isinstance(event, JobSubmitted | JobRestored):
            assert event.generation > before.generation, "a generation was taken twice"
        else:
            assert event.generation == before.generation, "an overtaken generation wrote"
        if isinstance(event, CheckpointTriggered):
            checkpoint_id = event.plan.checkpoint_id
            assert checkpoint_id >= before.next_checkpoint_id, "ids grow"
            assert checkpoint_id not in self.attempts, "an id was reused"
            assert self.read(self.paths.plan(checkpoint_id)) is not None
        now = {p.checkpoint_id for p in entry.state.pending}
        for pending in before.pending:
            if pending.checkpoint_id not in now:
                is_completed = entry.state.completed_checkpoint(pending.checkpoint_id) is not None
                outcome = "completed" if is_completed else "aborted"
                assert self.ended.setdefault(pending.checkpoint_id, outcome) == outcome
        for pending in entry.state.pending:
            assert pending.checkpoint_id not in self.ended, "an ended checkpoint came back"
            self.attempts.setdefault(pending.checkpoint_id, []).append(dict(pending.attempts))
        if isinstance(event, CheckpointCompleted):
            self._completed(event.checkpoint_id, before)
        self.head = entry.state

    def _completed(self, checkpoint_id: int, before: CoordinatorState) -> None:
        """Every planned ack, of one planned attempt a stage; every file; one consistent cut."""
        key = self.paths.metadata(checkpoint_id)
        raw = self.read(key)
        assert raw is not None, f"{key} is missing"
        metadata = self.metadata[checkpoint_id] = decode_metadata(raw, key)
        assert metadata.generation == before.generation
        assert metadata.parent == before.base
        acks = self._acks(checkpoint_id)
        plan = before.pending_checkpoint(checkpoint_id)
        assert plan is not None
        used: list[Ack] = []
        for task in plan.tasks:
            stage = metadata.stage(task.uid)
            assert stage is not None
            mine = [self._ack_of(acks, kept.output[0].key) for kept in stage.subtasks]
            assert [ack.subtask for ack in mine] == list(task.subtasks)
            assert [ack.state for ack in mine] == [kept.state for kept in stage.subtasks]
            (attempt,) = {ack.attempt for ack in mine}
            counted = {a.get(task.uid, 1) for a in self.attempts[checkpoint_id]}
            assert attempt in counted, f"attempt {attempt} of {task.uid} never counted"
            used += mine
            self._is_a_cut(metadata, task.uid)
        staged = {c.file for ack in used for c in ack.committables}
        assert {c.file for c in metadata.committables} == staged

    def _is_a_cut(self, metadata: CheckpointMetadata, uid: str) -> None:
        """The stage has absorbed exactly the records before the barrier, each once."""
        stage = metadata.stage(uid)
        assert stage is not None
        absorbed: list[int] = []
        for handle in (handle for kept in stage.subtasks for handle in kept.state):
            segment = handle.segment
            body = segment.inline if segment.inline is not None else self.read(segment.key)
            assert body is not None, f"{segment.key} is missing"
            assert hashlib.blake2b(body).hexdigest() == segment.checksum, segment.key
            absorbed += json.loads(body)["records"]
        assert sorted(absorbed) == list(range(metadata.sources[0].position[0].offset)), uid

    def _published(self, manifest: dict[str, Any]) -> None:
        """Only of completed checkpoints, after their parent's, and exactly what was staged."""
        checkpoint_id = manifest["checkpoint_id"]
        assert self.ended.get(checkpoint_id) == "completed", f"{checkpoint_id} is not completed"
        metadata = self.metadata[checkpoint_id]
        assert manifest["parent"] == metadata.previous_tables.get(SINK)
        assert manifest["parent"] is None or manifest["parent"] in self.manifests
        assert self._files(manifest) == self._staged(metadata)
        self.manifests[checkpoint_id] = manifest

    def at_the_end(self) -> None:
        """What is retained can be restored, what is committed is published, all of it once."""
        for retained in self.head.completed:
            metadata = self.metadata[retained.checkpoint_id]
            for stage in metadata.stages:
                self._is_a_cut(metadata, stage.uid)
            if retained.is_committed:
                assert retained.checkpoint_id in self.manifests
        newest: int | None = max(self.manifests)
        assert newest == self.head.base
        position = self.metadata[newest].sources[0].position[0].offset
        rows: list[int] = []
        while newest is not None:
            for file in self._files(self.manifests[newest]):
                rows += json.loads(self.read(file) or b"[]")
            newest = self.manifests[newest]["parent"]
        assert sorted(rows) == list(range(position)), "every record is published exactly once"

    @property
    def paths(self) -> Any:
        return self.world.job.paths

    def read(self, key: str) -> bytes | None:
        return InMemoryStore.get(self.world.store, key)

    def _acks(self, checkpoint_id: int) -> list[Ack]:
        prefix = self.paths.acks(checkpoint_id)
        written = self.world.store._objects.written
        return [decode_ack(written[key][0], key) for key in written if key.startswith(prefix)]

    @staticmethod
    def _ack_of(acks: list[Ack], output: str) -> Ack:
        return next(ack for ack in acks if ack.output[0].key == output)

    @staticmethod
    def _files(manifest: dict[str, Any]) -> set[str]:
        return {f"auctions/tables/{SINK}/{file['file']}" for file in manifest["files"]}

    @staticmethod
    def _staged(metadata: CheckpointMetadata) -> set[str]:
        return {f"auctions/tables/{SINK}/{c.file}" for c in metadata.committables}


def simulate(seed: int) -> World:
    invariants = Invariants()
    world = invariants.world = World(seed, invariants)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.storage.open.open_store", world.open_store)
        patch.setattr("sluice.storage.answers.ThreadPoolExecutor", InlinePool)
        patch.setattr("sluice.runner.savepoints.ThreadPoolExecutor", InlinePool)
        try:
            world.attempt("submits", world.submits)
            world.play(TURNS)
            world.has_faults = False
            settle(world)
            invariants.at_the_end()
        except Exception as error:
            history = "\n".join(world.history)
            raise SimulationFailed(f"seed {seed}\n{history}\n{error!r}") from error
    return world


def settle(world: World) -> None:
    """Without faults the job comes to itself, and takes the next checkpoint."""
    job = world.job
    world.history.append("the faults end")
    for _ in range(4):
        world.clock.advance(10_000_000)
        watch(job)
        state = job.state()
        if state.generation == NO_GENERATION:
            submit(job, configure(job.pipeline, {}))
        elif state.status is not JobStatus.RUNNING:
            restore(job, Latest())
    for pending in job.state().pending:
        fail_checkpoint(job, pending.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "gone")
        world.clock.advance(10_000_000)
        watch(job)
    outcome = trigger(job, is_periodic=False)
    assert isinstance(outcome, Triggered), outcome
    plan = outcome.plan
    for task in plan.tasks:
        for subtask in task.subtasks:
            one = world.subtask(plan, subtask, 1)
            while not world.advance(one):
                pass
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)
    assert job.state().completed[-1].is_committed


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_loss_death_or_race_breaks_an_invariant(seed: int) -> None:
    simulate(seed)


def accept_any_attempt(patch: pytest.MonkeyPatch) -> None:
    real = PendingCheckpoint.acknowledge

    def acknowledge(self: PendingCheckpoint, ack: Ack) -> tuple[PendingCheckpoint, AckResult]:
        as_planned = replace(ack, attempt=self.attempt_of(ack.subtask.stage))
        return real(self, as_planned)

    patch.setattr(PendingCheckpoint, "acknowledge", acknowledge)


def skip_the_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sluice.core.coordinator, "_is_fenced", lambda *_: False)


def delete_shared_files(patch: pytest.MonkeyPatch) -> None:
    """What a subsumed checkpoint names goes, whoever else names it."""
    real = sluice.runner.commands.discard_completed

    def discard(job: Any, state: CoordinatorState, checkpoint: Any) -> None:
        real(job, replace(state, completed=()), checkpoint)

    patch.setattr(sluice.runner.commands, "discard_completed", discard)


def overwrite_the_journal(patch: pytest.MonkeyPatch) -> None:
    def create(self: Journal, seq: int, raw: bytes) -> bool:
        self._store.put(self._paths.journal_entry(seq), raw)
        return True

    patch.setattr(sluice.storage.journal.Journal, "_create", create)


@pytest.mark.parametrize(
    "plant",
    [accept_any_attempt, skip_the_fence, delete_shared_files, overwrite_the_journal],
)
def test_the_simulation_catches_a_planted_fault(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    def is_caught(seed: int) -> bool:
        try:
            simulate(seed)
        except SimulationFailed:
            return True
        return False

    assert any(is_caught(seed) for seed in range(300))


def test_the_simulation_reaches_every_outcome() -> None:
    """It would prove little if nothing ever completed, aborted, crashed or was fenced."""
    histories = "\n".join(line for seed in range(20) for line in simulate(seed).history)

    for outcome in (
        *("dies", "StoreUnavailable", "FencedError", "StageFailed", "RestoreError"),
        *("SAVEPOINT_SUSPEND", "SAVEPOINT_TERMINATE", "CHECKPOINT_DECLINED", "CHECKPOINT_EXPIRED"),
        *("restored the job", "committed checkpoint", "FromSavepoint(name='s", "Verdict.APPLIED"),
    ):
        assert outcome in histories, outcome
    assert isinstance(World(0, Invariants()).store, FlakyStore)
