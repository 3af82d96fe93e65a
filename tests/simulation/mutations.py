"""Faults planted in the core one at a time: a proof that the simulation would see them.

To add one, write a function that patches the product, say in its docstring what is wrong, and name
the invariants that may catch it.  They stand by what they break: objects of the bucket, stages and
chains, what people ask, rules of the coordinator, readers of tables.  ``make sim`` remembers the
shortest history that catches each, and a test run plays these before any seed: a history is turns
by name, so that it stays what it was when acts are added, where a seed would draw another world.
"""

# ruff: noqa: SLF001 - faults are planted inside

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sluice.connectors.files_table.log import Manifest
from sluice.connectors.files_table.table import ManifestTable
from sluice.connectors.staged_files import (
    MANIFESTS,
    LogEntryName,
    StagedFiles,
    fence_key,
    parsed_log_key,
    unit_of,
)
from sluice.coordinator import completion, failure, restore, restore_plan
from sluice.coordinator import completion as coordinator_completion
from sluice.coordinator import record as recording
from sluice.coordinator import requests as timing_calls
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.garbage import of_earlier_journals
from sluice.coordinator.planning import make_plan
from sluice.coordinator.record import (
    InUse,
    delete_savepoint,
    discard_completed,
    discard_pending,
    files_in_use,
    load_files_in_use,
    record,
)
from sluice.coordinator.requests import timeout_ms
from sluice.coordinator.restore import foreign_target
from sluice.coordinator.restore_plan import damage_of_owed_rows, observe
from sluice.coordinator.savepoints import require_free_name
from sluice.coordinator.staged import abort_staged, require_shown
from sluice.coordinator.tables import (
    compare_tables_to_restore,
    compare_tables_to_submit,
    gave_way,
    writer_of,
)
from sluice.coordinator.trigger import write_plan
from sluice.core import coordinator, lifecycle, requests
from sluice.core.answers import Ack, Committable, StageAnswer
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.configuration import Timing
from sluice.core.coordinator import step
from sluice.core.decider import CheckpointRequest
from sluice.core.events import (
    CheckpointCompleted,
    CheckpointFailed,
    DeclineReceived,
    DiscardPending,
    Event,
    JobRestored,
    Transition,
    Verdict,
)
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, CheckpointIdCounter, Generation, SavepointId
from sluice.core.lifecycle import end
from sluice.core.pending import AckResult, PendingCheckpoint
from sluice.core.plan import CheckpointPlan, SnapshotOrigin, TaskPlan
from sluice.core.requests import Admission, Examination, examine
from sluice.core.restoring import Choice, Observed, Stop, choose
from sluice.core.state import CoordinatorState, ServedRestore
from sluice.core.tables import TableComparison
from sluice.core.timeline import Recovery, Timeline, TimelineComparison, Writer
from sluice.declaration.durations import milliseconds
from sluice.declaration.places import Sink
from sluice.errors import NotYetAcknowledged
from sluice.job import stage_input
from sluice.job.answers import with_acks
from sluice.job.applications import short_life
from sluice.job.clock import JobClock
from sluice.job.job import Job
from sluice.job.lineage import assigned_state, stage_state
from sluice.job.places import open_sinks
from sluice.job.stage_input import StageInput
from sluice.protocol import records
from sluice.protocol.keys import JournalPaths, PipelinePaths
from sluice.protocol.records import (
    decode_metadata,
    encode_answer,
    encode_metadata,
)
from sluice.store.checkpoints import AnswerStore
from sluice.store.journal import Head, Journal
from sluice.store.object_store import AlreadyExists, Created, CreateResult, Listed, ObjectStore
from sluice.store.open import now_ms as store_now_ms
from sluice.store.savepoints import SavepointStore
from tests.simulation.noted import PLAYING, Place, pointed_elsewhere
from tests.simulation.play import (
    Plant,
    Run,
    a_new_life,
    replace_everywhere,
    simulate,
    simulated,
)
from tests.simulation.script import Turn, as_json, from_json
from tests.simulation.seeds import pool_of, workers
from tests.simulation.shrink import Shrinker
from tests.simulation.spark_jobs import CUT_SHORT, SparkJob
from tests.simulation.subtasks import Execution
from tests.simulation.world import World

MAX_SEEDS = 5_000  # The rarest, publish_beside_what_was_rolled_back, took 1,752.
CAUGHT_AT = Path(__file__).with_name(
    "caught_at.json"
)  # A hint: the product calls otherwise tomorrow.


@dataclass(frozen=True, slots=True)
class Caught:
    name: str
    run: Run

    def __str__(self) -> str:
        number, what = self.kind
        return f"{what} (invariant {number})" if isinstance(number, int) else f"{number} in {what}"

    @property
    def kind(self) -> tuple[object, ...]:
        assert self.run.failure is not None
        return self.run.failure.kind

    @property
    def is_as_expected(self) -> bool:
        return self.kind[0] in MUTATIONS[self.name].caught_by


def hunt(name: str) -> Caught | None:
    """Play seeds with the fault planted, until an invariant that it breaks sees it; another one
    that saw it before is the answer where none of them does.  First comes the remembered history,
    then the seed that it was shrunk from, which may see it where the product calls otherwise now.
    """
    by_another: Caught | None = None
    seeds = ((seed, None) for seed in range(MAX_SEEDS))
    with simulated(MUTATIONS[name].plant):
        for seed, script in chain(_remembered(name), seeds):
            run = simulate(seed, script)
            if run.failure is None:
                continue
            caught = Caught(name, run)
            if caught.is_as_expected:
                return caught
            by_another = by_another or caught
    return by_another


def hunt_all(names: Iterable[str] = ()) -> dict[str, Caught | None]:
    wanted = [*names] or [*MUTATIONS]
    with pool_of(workers()) as pool:
        return dict(zip(wanted, pool.map(hunt, wanted), strict=True))


def remember(hunted: Mapping[str, Caught | None]) -> None:
    """Keep the shortest history of each, beside those of faults that were not hunted."""
    with pool_of(workers()) as pool:
        runs = pool.map(_shortest, filter(None, hunted.values()))
        found = {name: {"seed": run.seed, "script": as_json(run.script)} for name, run in runs}
    kept = {name: history for name, history in _histories().items() if name in MUTATIONS}
    lines = (
        f"{json.dumps(name)}: {json.dumps(history)}"
        for name, history in sorted((kept | found).items())
    )
    CAUGHT_AT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _shortest(caught: Caught) -> tuple[str, Run]:
    with simulated(MUTATIONS[caught.name].plant):
        return caught.name, Shrinker(caught.run).shrink()


def _remembered(name: str) -> list[tuple[int, Sequence[Turn] | None]]:
    found = _histories().get(name)
    if found is None:
        return []
    return [(found["seed"], from_json(found["script"])), (found["seed"], None)]


def _histories() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(CAUGHT_AT.read_text())
    return found


def table(hunted: dict[str, Caught | None]) -> str:
    lines = ["| mutation | what is wrong | caught by | seed |", "|---|---|---|---|"]
    for name, caught in hunted.items():
        seed = f"none of {MAX_SEEDS}" if caught is None else caught.run.seed
        lines.append(f"| {name} | {MUTATIONS[name].wrong} | {caught or '**nothing**'} | {seed} |")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Mutation:
    """``caught_by``: the invariants that may catch it; whichever is seen first does."""

    plant: Plant
    caught_by: frozenset[int]

    @property
    def wrong(self) -> str:
        return (self.plant.__doc__ or "").strip().rstrip(".").replace("\n    ", " ")


MUTATIONS: dict[str, Mutation] = {}


def mutation(*caught_by: int) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        MUTATIONS[plant.__name__] = Mutation(plant, frozenset(caught_by))
        return plant

    return register


class OverwritingStore:
    """Its ``create`` replaces what is there, as in a store that ignores ``If-None-Match``."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def create(self, key: str, body: bytes) -> CreateResult:
        self._store.put(key, body)
        return Created()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@mutation(1)
def overwrite_the_journal(patch: pytest.MonkeyPatch) -> None:
    """Entries of the journal are put, not created."""

    def create(self: Journal, seq: int, raw: bytes) -> bool:
        self._store.put(self.paths.journal_entry(seq), raw)
        return True

    patch.setattr(Journal, "_create", create)


@mutation(1)
def ignore_the_lost_answer(patch: pytest.MonkeyPatch) -> None:
    """An own entry that is found after a lost answer is taken for another coordinator's."""

    def create(self: Journal, seq: int, raw: bytes) -> bool:
        return isinstance(self._store.create(self.paths.journal_entry(seq), raw), Created)

    patch.setattr(Journal, "_create", create)


@mutation(1, 10)
def append_without_a_reload(patch: pytest.MonkeyPatch) -> None:
    """The loser of a race for a number writes the same entry under the next one."""

    create = Journal._create

    def created(self: Journal, seq: int, raw: bytes) -> bool:
        while not create(self, seq, raw):
            seq += 1
        return True

    patch.setattr(Journal, "_create", created)
    patch.setattr(Journal, "_is_chained", lambda *_: True)


@mutation(6)
def overwrite_a_plan(patch: pytest.MonkeyPatch) -> None:
    """Two coordinators that trigger at once overwrite each other's plan."""

    def write(job: Job, *given: Any) -> object:
        return write_plan(replace(job, store=OverwritingStore(job.store)), *given)

    replace_everywhere(patch, write_plan, write)


@mutation(7)
def replace_the_first_answer(patch: pytest.MonkeyPatch) -> None:
    """A second answer of the same stage and attempt replaces the first."""

    def write(self: AnswerStore, answer: StageAnswer) -> StageAnswer:
        self._store.put(self._key_of(answer), encode_answer(answer))
        return answer

    patch.setattr(AnswerStore, "write", write)


@mutation(7)
def publish_whatever_is_staged(patch: pytest.MonkeyPatch) -> None:
    """The commit publishes every staged file of the checkpoint, acknowledged or not."""
    commit = ManifestTable.commit

    def publish(
        self: ManifestTable,
        writer: Writer,
        checkpoint_id: int,
        parent: int | None,
        committables: Sequence[Committable],
    ) -> None:
        staged = tuple(
            Committable(sink=self.sink, file=found.key, rows=1, size_bytes=found.size_bytes)
            for found in self.store.list(f"data/{checkpoint_id:020d}-")
        )
        commit(self, writer, checkpoint_id, parent, staged)

    patch.setattr(ManifestTable, "commit", publish)


@mutation(8, 11)
def read_what_was_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """A reader takes every version for part of the table, also those a restore left behind."""

    def chain(self: ManifestTable, version: int | None = None) -> tuple[Manifest, ...]:
        found = map(self._log.manifest, self.versions())
        return tuple(manifest for manifest in found if manifest is not None)

    patch.setattr(ManifestTable, "chain", chain)


@mutation(8)
def begin_behind_the_first_version(patch: pytest.MonkeyPatch) -> None:
    """A reader that follows the table back stops before its beginning."""
    whole = ManifestTable.chain

    def chain(self: ManifestTable, version: int | None = None) -> tuple[Manifest, ...]:
        found = whole(self, version)
        return found[1:] or found

    patch.setattr(ManifestTable, "chain", chain)


@mutation(4)
def delete_shared_files(patch: pytest.MonkeyPatch) -> None:
    """All files of a subsumed checkpoint are deleted, also those that others name."""

    def discard(job: Job, checkpoint: CompletedCheckpoint, _: list[CheckpointMetadata]) -> None:
        discard_completed(job, checkpoint, [])

    replace_everywhere(patch, discard_completed, discard)


@mutation(4)
def delete_what_can_be_taken_over(patch: pytest.MonkeyPatch) -> None:
    """A subsumed checkpoint takes merged state with it that a record still hands out."""

    def without_merged(job: Job, kept: Iterable[CheckpointMetadata], **_: object) -> Any:
        return files_in_use(job, kept, doomed=())

    patch.setattr(recording, "files_in_use", without_merged)


@mutation(0, 5)
def abort_what_is_shown_early(patch: pytest.MonkeyPatch) -> None:
    """AT_LEAST_ONCE: an abort deletes files that are about to be shown; where others are damaged,
    too, the job never comes back.
    """

    def abort(job: Job, aborted: DiscardPending, sinks: Mapping[str, Sink]) -> None:
        for sink in sinks.values():
            token = job.paths.checkpoint_token(aborted.plan)
            sink.abort(aborted.checkpoint_id, token)

    replace_everywhere(patch, abort_staged, abort)


@mutation(2, 4, 5)
def know_what_is_staged_by_its_number(patch: pytest.MonkeyPatch) -> None:
    """An abort finds what its checkpoint staged by the number, which the next life has, too."""

    def of_checkpoint(self: StagedFiles, checkpoint_id: int, _: str) -> list[str]:
        listed = self.store.list(f"data/{checkpoint_id:020d}-")
        return [*dict.fromkeys(unit_of(found.key) for found in listed)]

    patch.setattr(StagedFiles, "of_checkpoint", of_checkpoint)


@mutation(11)
def complete_beside_what_is_shown(patch: pytest.MonkeyPatch) -> None:
    """AT_LEAST_ONCE: a stage runs again, and its checkpoint names other rows than readers see."""
    replace_everywhere(patch, require_shown, lambda *_: None)


@mutation(4)
def collect_what_is_retained(patch: pytest.MonkeyPatch) -> None:
    """The garbage collector forgets what the retained checkpoints name."""
    replace_everywhere(
        patch, load_files_in_use, lambda job: replace(load_files_in_use(job), keys=frozenset())
    )


@mutation(2)
def collect_what_is_pending(patch: pytest.MonkeyPatch) -> None:
    """The garbage collector takes a pending checkpoint for one that is over."""
    patch.setattr(InUse, "is_over", lambda *_: True)


@mutation(1)
def believe_a_stray(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that creates a deleted number again takes its entry for a valid one."""
    patch.setattr(Journal, "_is_chained", lambda *_: True)


@mutation(1)
def truncate_the_newest(patch: pytest.MonkeyPatch) -> None:
    """Truncation deletes the newest entries, not the oldest."""

    def truncate(self: Journal, *, keep: int = 1) -> int:
        keys = [listed.key for listed in self._store.list(self.paths.journal())]
        self._store.delete(keys[keep:])
        return 0

    patch.setattr(Journal, "truncate", truncate)


@mutation(4)
def abort_more_than_was_pending(patch: pytest.MonkeyPatch) -> None:
    """An abort discards the files of the completed checkpoint before it, too."""

    def discard(job: Job, state: CoordinatorState, aborted: DiscardPending) -> None:
        discard_pending(job, state, aborted)
        if state.base is not None:
            discard_pending(job, state, replace(aborted, checkpoint_id=state.base))

    replace_everywhere(patch, discard_pending, discard)


@mutation(2)
def discard_before_the_abort(patch: pytest.MonkeyPatch) -> None:
    """An abort deletes the files first and is journaled then."""

    def fail(job: Job, checkpoint_id: CheckpointId, *given: Any, **options: Any) -> object:
        state = job.state()
        pending = state.pending_checkpoint(checkpoint_id)
        if pending is not None:
            aborted = DiscardPending(checkpoint_id=checkpoint_id, plan=pending.token)
            discard_pending(job, state, aborted)
        return fail_checkpoint(job, checkpoint_id, *given, **options)

    replace_everywhere(patch, fail_checkpoint, fail)


@mutation(9)
def discard_a_savepoint(patch: pytest.MonkeyPatch) -> None:
    """A subsumed savepoint takes the copy with it that belongs to the user."""

    def discard(
        job: Job, checkpoint: CompletedCheckpoint, retained: list[CheckpointMetadata]
    ) -> None:
        discard_completed(job, checkpoint, retained)
        if checkpoint.savepoint is not None:
            delete_savepoint(job, checkpoint.savepoint)

    replace_everywhere(patch, discard_completed, discard)


@mutation(9)
def overwrite_a_savepoint(patch: pytest.MonkeyPatch) -> None:
    """A savepoint of a name that is taken replaces the old one."""
    reserve = SavepointStore.reserve

    def take(self: SavepointStore, savepoint: SavepointId, *given: Any, **owner: Any) -> object:
        newest = self.newest(savepoint.name)
        if newest is not None and newest.token != savepoint.token:
            self.remove(SavepointId(savepoint.name, newest.token))
        return reserve(self, savepoint, *given, **owner)

    replace_everywhere(patch, require_free_name, lambda *_, **__: None)
    patch.setattr(SavepointStore, "reserve", take)


@mutation(3)
def know_a_savepoint_by_its_name(patch: pytest.MonkeyPatch) -> None:
    """What was restored is opened by what its name means now."""
    known = Job.origin_metadata

    def by_name(self: Job, origin: SnapshotOrigin) -> CheckpointMetadata:
        if origin.savepoint is None:
            return known(self, origin)
        meant = self.savepoint_origin(origin.savepoint, root=origin.root, pipeline=origin.pipeline)
        return known(self, meant)

    patch.setattr(Job, "origin_metadata", by_name)


@mutation(3)
def forget_the_digest(patch: pytest.MonkeyPatch) -> None:
    """Of a checkpoint of another root only its number is compared."""
    known = Job.origin_metadata

    def any_content(self: Job, origin: SnapshotOrigin) -> CheckpointMetadata:
        if origin.savepoint is None:
            there = Journal(self.store_at(origin.root), PipelinePaths(origin.pipeline)).paths
            origin = self.checkpoint_origin(origin.checkpoint_id, origin.root, there)
        return known(self, origin)

    patch.setattr(Job, "origin_metadata", any_content)


@mutation(3)
def begin_elsewhere_from_what_is_not_completed(patch: pytest.MonkeyPatch) -> None:
    """Of another root only the objects are looked at, and not its journal."""

    def unread(job: Job, root: str, **given: Any) -> Choice:
        if given.get("checkpoint_id") is None:
            return foreign_target(job, root, **given)
        uid = given.get("pipeline") or job.pipeline.uid
        there = Journal(job.store_at(root), PipelinePaths(uid)).paths
        return Choice.of(job.checkpoint_origin(given["checkpoint_id"], root, there))

    replace_everywhere(patch, foreign_target, unread)


@mutation(9)
def forget_that_a_savepoint_is_gone(patch: pytest.MonkeyPatch) -> None:
    """Its pointers are all deleted, so that a late one brings it back."""
    remove = SavepointStore.remove

    def forget(self: SavepointStore, savepoint: SavepointId, *given: Any, **only: Any) -> bool:
        is_gone = remove(self, savepoint, *given, **only)
        newest = self.newest(savepoint.name)
        if newest is not None and newest.is_gone:
            self._store.delete([*self._numbers(savepoint.name)])
        return is_gone

    patch.setattr(SavepointStore, "remove", forget)


@mutation(1)
def serve_a_request_again(patch: pytest.MonkeyPatch) -> None:
    """Of the restores that were asked for only the latest is remembered."""

    def served_restore(self: CoordinatorState, cause: str) -> ServedRestore | None:
        latest = self.served[-1] if self.served else None
        return latest if latest is not None and cause == latest.cause else None

    patch.setattr(CoordinatorState, "served_restore", served_restore)


@mutation(0)
def compare_no_bytes(patch: pytest.MonkeyPatch) -> None:
    """A restart that comes back to a checkpoint looks at names and sizes alone."""
    patch.setattr(restore_plan, "checksums_of", lambda *_: None)


@mutation(0, 1, 3, 4)
def believe_any_record(patch: pytest.MonkeyPatch) -> None:
    """A record whose bytes are not those that were written is read as it is."""
    patch.setattr(records, "checksum", lambda _: "whole")


@mutation(3)
def acknowledge_from_within_the_task(patch: pytest.MonkeyPatch) -> None:
    """A driver answers when the input of its tasks has ended, also if Spark has cut that short."""
    run = SparkJob.run

    def runs(self: SparkJob, world: World, one: Execution) -> None:
        while_cut = world.chance(CUT_SHORT)
        if while_cut and len(self.stages) == 1 and one is self.tasks[-1]:
            one.run(world, share=world.random.random(), is_last=True)
            self.stages[0][0].job.answers.write(self.answers()[0])
        run(self, world, one)

    patch.setattr(SparkJob, "run", runs)


@mutation(12)
def acknowledge_a_chain_from_the_front(patch: pytest.MonkeyPatch) -> None:
    """The driver of a chain writes the answer of its first stage first."""
    write_chain = AnswerStore.write_chain

    def write(self: AnswerStore, answers: Sequence[StageAnswer]) -> str | None:
        return write_chain(self, answers[::-1])

    patch.setattr(AnswerStore, "write_chain", write)


@mutation(12)
def acknowledge_before_the_chain_has_ended(patch: pytest.MonkeyPatch) -> None:
    """The subtasks of a chained stage acknowledge as soon as they are done, as without a chain."""
    advance = SparkJob.advance

    def acknowledges(self: SparkJob, world: World) -> None:
        advance(self, world)
        done = 0
        for stage in self.stages[:-1]:
            done += len(stage)
            if self.step == done:
                stage[0].job.answers.write(self.answers()[self.stages.index(stage)])

    patch.setattr(SparkJob, "advance", acknowledges)


@mutation(3)
def chain_what_has_something_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A stage is chained though rows of an earlier epoch wait for it, or it may be overtaken."""
    patch.setattr(stage_input, "_waits", lambda *_: True)


@mutation(3)
def read_the_stream_of_a_chained_stage(patch: pytest.MonkeyPatch) -> None:
    """A stage that runs again reads its input from the bucket, where a chain has left none."""
    patch.setattr(StageInput, "is_chained", property(lambda _: False))


BY_USER = CheckpointFailureReason.CHECKPOINT_ABORTED_BY_USER


@mutation(13)
def forget_the_times_at_a_restore(patch: pytest.MonkeyPatch) -> None:
    """A restore begins with the times, and without the pause, that were declared."""

    def forgetting(state: CoordinatorState, event: Event) -> Transition:
        transition = step(state, event)
        if not isinstance(event, JobRestored) or transition.verdict is not Verdict.APPLIED:
            return transition
        return replace(transition, state=replace(transition.state, timing=Timing()))

    replace_everywhere(patch, step, forgetting)


def _held_back_by(patch: pytest.MonkeyPatch, other: Callable[[Timing], dict[str, object]]) -> None:
    """Whether a periodic request is due is asked of *other* times."""
    held_back = requests._held_back

    def held_back_otherwise(state: CoordinatorState, now_ms: int) -> Examination | None:
        timing = replace(state.timing, **other(state.timing))  # type: ignore[arg-type]
        found = held_back(replace(state, timing=timing), now_ms)
        return None if found is None else replace(found, after=state)

    patch.setattr(requests, "_held_back", held_back_otherwise)


@mutation(0, 13)
def trigger_while_it_is_paused(patch: pytest.MonkeyPatch) -> None:
    """A periodic checkpoint is taken although a person paused the job."""
    _held_back_by(patch, lambda _: {"is_paused": False})


@mutation(13)
def ignore_the_changed_interval(patch: pytest.MonkeyPatch) -> None:
    """A periodic checkpoint comes when the declared interval is over."""
    _held_back_by(patch, lambda _: {"interval_ms": None})


@mutation(0)
def refuse_everything_while_it_is_paused(patch: pytest.MonkeyPatch) -> None:
    """A paused job takes no checkpoint at all, also none that a person asks for."""

    def examining(state: CoordinatorState, request: CheckpointRequest, now_ms: int) -> Examination:
        if not state.timing.is_paused:
            return examine(state, request, now_ms)
        reason = CheckpointFailureReason.PERIODIC_SCHEDULER_SHUTDOWN
        return Examination(admission=Admission.REJECTED, after=state, reason=reason)

    replace_everywhere(patch, examine, examining)


@mutation(13)
def change_what_was_read_before(patch: pytest.MonkeyPatch) -> None:
    """A change writes all of the times as they were read before, over the change of another one."""
    change = timing_calls._change

    def changing(job: Job, wish: Callable[[Timing], Timing], by: str) -> CoordinatorState:
        seen = job.state().timing
        return change(job, lambda _: wish(seen), by)

    patch.setattr(timing_calls, "_change", changing)


@mutation(13)
def keep_the_declared_timeout(patch: pytest.MonkeyPatch) -> None:
    """A plan has the declared timeout, whatever a person changed it to."""

    def declared(job: Job, _: CoordinatorState) -> int:
        return milliseconds(job.pipeline.checkpointing.timeout)

    replace_everywhere(patch, timeout_ms, declared)


@mutation(13)
def remember_the_timeout(patch: pytest.MonkeyPatch) -> None:
    """A coordinator goes on with the timeout that it saw first."""
    seen: dict[int, tuple[Job, int]] = {}

    def first(job: Job, state: CoordinatorState) -> int:
        return seen.setdefault(id(job), (job, timeout_ms(job, state)))[1]

    replace_everywhere(patch, timeout_ms, first)


@mutation(13)
def abort_the_oldest(patch: pytest.MonkeyPatch) -> None:
    """A person who aborts a checkpoint ends the oldest that is pending by then."""

    def recording(job: Job, decide: Callable[[CoordinatorState], Event]) -> Transition:
        def oldest(state: CoordinatorState) -> Event:
            event = decide(state)
            if not isinstance(event, CheckpointFailed) or not state.pending:
                return event
            return replace(event, checkpoint_id=state.pending[0].checkpoint_id)

        return record(job, oldest)

    patch.setattr(failure, "record", recording)


@mutation(13)
def fail_over_for_an_abort(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that a person aborts counts as a failure of the job."""

    def counting(state: CoordinatorState, event: Any) -> Transition:
        if isinstance(event, CheckpointFailed) and event.reason is BY_USER:
            event = replace(event, reason=CheckpointFailureReason.CHECKPOINT_EXPIRED)
        return step(state, event)

    replace_everywhere(patch, step, counting)


@mutation(14)
def discard_at_a_suspension(patch: pytest.MonkeyPatch) -> None:
    """The retention is applied whenever a job stops, also when it is to be resumed."""

    def final(*given: Any, is_final: bool) -> Transition:
        return end(*given, is_final=True)

    replace_everywhere(patch, end, final)


@mutation(2, 7)
def accept_any_attempt(patch: pytest.MonkeyPatch) -> None:
    """An answer of whatever execution attempt counts."""
    real, read = PendingCheckpoint.acknowledge, AnswerStore.answer

    def acknowledge(
        self: PendingCheckpoint, acks: Iterable[Ack]
    ) -> tuple[PendingCheckpoint, tuple[AckResult, ...]]:
        return real(self, [replace(a, attempt=self.attempt_of(a.subtask.stage)) for a in acks])

    def answer(self: AnswerStore, *given: Any, attempt: int, plan: str) -> StageAnswer | None:
        attempts = range(1, attempt + 3)
        found = (read(self, *given, attempt=each, plan=plan) for each in attempts)
        return next(filter(None, found), None)

    patch.setattr(PendingCheckpoint, "acknowledge", acknowledge)
    patch.setattr(AnswerStore, "answer", answer)


@mutation(3)
def keep_the_acks_behind_an_attempt(patch: pytest.MonkeyPatch) -> None:
    """A stage that runs again leaves the acks of those that read its attempt before, and nobody
    compares whose rows were read.
    """

    def start_attempt(self: PendingCheckpoint, stage: str, attempt: int) -> PendingCheckpoint:
        attempts = {**self.attempts, stage: attempt}
        return replace(self, attempts=attempts, acks=self._acks_without({stage}))

    patch.setattr(PendingCheckpoint, "start_attempt", start_attempt)
    patch.setattr(completion, "mixture_of_drivers", lambda _: None)


@mutation(0, 2, 3, 7)
def forget_the_plan_in_the_answer(patch: pytest.MonkeyPatch) -> None:
    """An answer to any plan of that id counts, of whatever journal: the driver of a root that was
    emptied answers.
    """
    answer = JournalPaths.answer

    def anonymous(self: JournalPaths, checkpoint_id: int, stage: str, attempt: int, _: str) -> str:
        return answer(self, checkpoint_id, stage, attempt, "")

    patch.setattr(JournalPaths, "answer", anonymous)
    leave_the_journal_out_of_the_keys_of_checkpoints(patch)


@mutation(3)
def forget_the_driver(patch: pytest.MonkeyPatch) -> None:
    """A driver of a chain writes beside another driver's answer, and nobody compares whose rows
    were read.
    """

    def write_chain(self: AnswerStore, answers: Sequence[StageAnswer]) -> str | None:
        for answer in reversed(answers):
            self.write(answer)
        return None

    patch.setattr(AnswerStore, "write_chain", write_chain)
    patch.setattr(completion, "mixture_of_drivers", lambda _: None)


@mutation(2, 3)
def complete_whichever_ended(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint completes as an attempt that was overtaken meanwhile, or long ago."""
    completed = coordinator._on_completed

    def unasked(state: CoordinatorState, event: CheckpointCompleted) -> Transition:
        pending = state.pending_checkpoint(event.checkpoint_id)
        if pending is not None:
            event = replace(event, attempts=pending.current_attempts)
        return completed(state, event)

    def whatever_is_there(job: Job, metadata: CheckpointMetadata) -> CheckpointMetadata:
        key = job.paths.metadata(metadata.checkpoint_id)
        result = job.store.create(key, encode_metadata(metadata))
        if isinstance(result, AlreadyExists):
            return decode_metadata(result.body, key)
        return metadata

    patch.setattr(coordinator, "_on_completed", unasked)
    patch.setattr(completion, "write_metadata", whatever_is_there)


@mutation(15)
def name_applications_by_uid_only(patch: pytest.MonkeyPatch) -> None:
    """What runs has the same name in every root, and a copy takes it for its own."""
    replace_everywhere(patch, short_life, lambda *_: "00000000")


@mutation(15)
def forget_the_place_in_the_name(patch: pytest.MonkeyPatch) -> None:
    """A copy of a root has the same life, so its reaper takes the original's for its own."""
    replace_everywhere(patch, short_life, lambda _, life: life.replace("-", ""))


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
    patch.setattr(restore, "resume_duties", lambda _, head: head)


@mutation(0)
def never_restart(patch: pytest.MonkeyPatch) -> None:
    """The watchdog leaves a failed job to itself."""
    patch.setattr(failure, "_restart", lambda *_: "nothing")


@mutation(2)
def finalize_without_an_ack(patch: pytest.MonkeyPatch) -> None:
    """The last subtask's ack is not waited for."""

    def nearly(
        state: CoordinatorState, checkpoint_id: CheckpointId, answers: Mapping[str, StageAnswer]
    ) -> PendingCheckpoint:
        pending = with_acks(state, checkpoint_id, answers.values())
        missing = pending.not_yet_acknowledged
        if len({subtask.stage for subtask in missing}) > 1:
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


@mutation(11)
def go_forward_over_a_hole(patch: pytest.MonkeyPatch) -> None:
    """A restore continues a version whose rows an earlier one has rolled back."""
    recovered = Timeline.recovered

    def unasked(self: Timeline, writer: Writer, recovery: Recovery) -> Timeline | None:
        return recovered(self, writer, replace(recovery, accepts=True))

    patch.setattr(Timeline, "recovered", unasked)
    patch.setattr(TableComparison, "problem", lambda *_, **__: None)


@mutation(0, 11)
def take_an_old_note_for_ones_own(patch: pytest.MonkeyPatch) -> None:
    """Over an emptied root ids begin at 1, and the notes of an earlier life say they are there."""
    replace_everywhere(patch, a_new_life, lambda: "always the same")
    patch.setattr(Timeline, "_require_generation", lambda *_: None)
    replace_everywhere(patch, compare_tables_to_submit, lambda *_: ())
    replace_everywhere(patch, compare_tables_to_restore, lambda *_: ())


@mutation(10)
def wake_up_and_roll_back(patch: pytest.MonkeyPatch) -> None:
    """A restore that was suspended in its roll back goes on after a later one."""
    patch.setattr(Timeline, "_require_generation", lambda *_: None)


@mutation(0)
def fence_what_is_owed(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was left behind before its commit is restored, and cannot be published."""
    recovered = Timeline.recovered

    def unowed(self: Timeline, writer: Writer, recovery: Recovery) -> Timeline | None:
        return recovered(self, writer, replace(recovery, continues=None))

    patch.setattr(Timeline, "recovered", unowed)


@mutation(0, 11)
def sort_fences_by_version(patch: pytest.MonkeyPatch) -> None:
    """A second roll back of a table of files is a fence that sorts before the first."""

    def key(through: int, generation: int, shown: int | None) -> str:
        return f"{MANIFESTS}{through:020d}_{shown or 0:010d}_{generation:010d}.json"

    def named(key: str) -> LogEntryName | None:
        found = parsed_log_key(key)
        if found is None or not found.is_fence:
            return found
        return replace(found, shown=found.generation or None, generation=found.shown or 0)

    replace_everywhere(patch, fence_key, key)
    replace_everywhere(patch, parsed_log_key, named)


@mutation(11)
def publish_over_a_hole(patch: pytest.MonkeyPatch) -> None:
    """A commit does not ask whether readers see what it continues: a database was put back."""
    publishing = Timeline.publishing

    def unasked(
        self: Timeline, writer: Writer, checkpoint_id: int, parent: int | None
    ) -> Timeline | None:
        return publishing(self, writer, checkpoint_id, None)

    patch.setattr(Timeline, "publishing", unasked)


@mutation(11)
def publish_beside_what_was_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """A database was put back to before a roll back, and shows its rows again."""
    publishing = Timeline.publishing

    def unaware(
        self: Timeline, writer: Writer, checkpoint_id: int, parent: int | None
    ) -> Timeline | None:
        return publishing(self, replace(writer, recovered_by=0), checkpoint_id, parent)

    patch.setattr(Timeline, "publishing", unaware)


@mutation(11)
def compare_the_life_alone(patch: pytest.MonkeyPatch) -> None:
    """A copy of the root has the job's life, and is taken for the job itself."""
    compare = Timeline.compare

    def alone(self: Timeline, life: str, version: int | None, _: str = "") -> TimelineComparison:
        return compare(self, life, version, self.sink)

    patch.setattr(Timeline, "_is_of", lambda self, writer: self.life == writer.life)
    patch.setattr(Timeline, "compare", alone)


@mutation(11)
def believe_the_note_of_a_table_that_was_put_back(patch: pytest.MonkeyPatch) -> None:
    """Whoever rolls a branch back leaves its properties, and nobody looks into its history."""
    patch.setattr(Timeline, "showing", lambda self, _: self)


@mutation(11)
def take_over_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """A job is restored over the rows of another one, and nobody has said that it may."""
    problem = TableComparison.problem

    def unasked(self: TableComparison, **given: Any) -> str | None:
        return problem(self, **given | {"takes_over": self.is_of_others})

    patch.setattr(TableComparison, "problem", unasked)


@mutation(11)
def take_the_id_of_another_for_ones_own(patch: pytest.MonkeyPatch) -> None:
    """A commit is owed, another job has used its id in the table, and so it counts as done."""
    replace_everywhere(patch, gave_way, lambda *_: False)


@mutation(11)
def know_a_table_by_the_name_of_its_sink(patch: pytest.MonkeyPatch) -> None:
    """A sink that is declared for another table finds its own note there."""

    def with_the_note(here: Place, elsewhere: Place) -> tuple[Place, Place]:
        return here.noting(here.timeline, elsewhere.rows), here

    replace_everywhere(patch, pointed_elsewhere, with_the_note)


@mutation(0)
def try_a_damaged_commit_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Rows whose commit is owed are never compared, so that no restart passes them over."""
    replace_everywhere(patch, damage_of_owed_rows, lambda *_: [])


@mutation(16)
def compare_two_clocks(patch: pytest.MonkeyPatch) -> None:
    """A coordinator stamps, and judges others' stamps, by its machine's clock."""
    patch.setattr(JobClock, "_compare", lambda *_: None)


@mutation(16)
def draw_the_clock_again(patch: pytest.MonkeyPatch) -> None:
    """Each coordinator has the job's clock begin with its own."""

    def drawn(self: Journal, head: Head, event: Event) -> int | None:
        return self.drawn_offset_ms or head.clock_offset_ms

    def now_ms(self: JobClock) -> int:
        own_ms = self._own()
        self._journal.drawn_offset_ms = own_ms - store_now_ms(self._store)
        return own_ms

    patch.setattr(Journal, "_offset_after", drawn)
    patch.setattr(JobClock, "now_ms", now_ms)


@mutation(16)
def keep_the_latest_processing_time(patch: pytest.MonkeyPatch) -> None:
    """An aborted plan moves processing time, and no restore puts it back."""
    newest: dict[World, int] = {}

    def planned(job: Job, *given: Any, **options: Any) -> object:
        plan = make_plan(job, *given, **options)
        if not isinstance(plan, CheckpointPlan):
            return plan
        world = PLAYING[0]
        newest[world] = max(newest.get(world, 0), plan.processing_time_ms)
        return replace(plan, processing_time_ms=newest[world])

    replace_everywhere(patch, make_plan, planned)


@mutation(16)
def restore_no_processing_time(patch: pytest.MonkeyPatch) -> None:
    """A restore leaves processing time where it was, or begins it anew."""
    on_restored = lifecycle.on_restored

    def kept(state: CoordinatorState, event: JobRestored) -> Transition:
        return on_restored(state, replace(event, processing_time_ms=state.processing_time_ms))

    replace_everywhere(patch, on_restored, kept)


@mutation(17)
def skip_the_probe(patch: pytest.MonkeyPatch) -> None:
    """A journal begins in whatever store it is given."""
    patch.setattr(Journal, "verify_store", lambda _: None)


@mutation(1, 2, 4, 6, 7, 10)
def leave_the_journal_out_of_the_keys(patch: pytest.MonkeyPatch) -> None:
    """Over an emptied root a coordinator that overslept it, and what it had sent, find the keys of
    the next journal.
    """
    patch.setattr(
        PipelinePaths, "of_journal", lambda self, _: JournalPaths(self.pipeline, "j-always")
    )


@mutation(2, 4, 6, 7)
def leave_the_journal_out_of_the_keys_of_checkpoints(patch: pytest.MonkeyPatch) -> None:
    """What cleans up behind an aborted checkpoint deletes, late, those of the next journal."""
    patch.setattr(
        JournalPaths, "checkpoints", lambda self: f"{self.pipeline}/j-always/checkpoints/"
    )


@mutation(1)
def never_compare_the_journal(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that overslept an emptied root is told that its append counts."""
    patch.setattr(Journal, "require_current", lambda _: None)


@mutation(1)
def overwrite_which_journal_began(patch: pytest.MonkeyPatch) -> None:
    """Of two that begin a journal at once, the second replaces the pointer of the first."""
    begin = Journal._begin

    def begun(self: Journal) -> bool:
        store, self._store = self._store, OverwritingStore(self._store)
        try:
            return begin(self)
        finally:
            self._store = store

    patch.setattr(Journal, "_begin", begun)


@mutation(1, 2, 4)
def collect_the_next_journal(patch: pytest.MonkeyPatch) -> None:
    """A collector that overslept an emptied root takes the next journal for an earlier one."""

    def others(job: Job) -> list[Listed]:
        own = job.paths.folder
        return [one for one in job.store.list(job.names.journals()) if not one.key.startswith(own)]

    replace_everywhere(patch, of_earlier_journals, others)
