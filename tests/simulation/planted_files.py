"""Planted faults: objects that are overwritten, deleted, published or misread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sluice.connectors.files_table.log import Manifest
from sluice.connectors.files_table.table import ManifestTable
from sluice.coordinator import record, restore_plan
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.record import (
    InUse,
    discard_completed,
    discard_pending,
    files_in_use,
    load_files_in_use,
)
from sluice.coordinator.savepoints import export_savepoint, require_free_name
from sluice.coordinator.staged import abort_staged, require_shown
from sluice.coordinator.trigger import write_plan
from sluice.core.answers import Ack, Committable
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.coordinator import step
from sluice.core.events import Event, Transition
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.core.timeline import Writer
from sluice.declaration.places import Sink
from sluice.job.job import Job
from sluice.protocol import records
from sluice.protocol.records import JournalEntry, encode_ack, encode_entry
from sluice.store.checkpoints import AnswerStore
from sluice.store.journal import Head, Journal
from sluice.store.object_store import Created, CreateResult, ObjectStore
from tests.simulation.planting import mutation
from tests.simulation.play import replace_everywhere


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
        self._store.put(self._paths.journal_entry(seq), raw)
        return True

    patch.setattr(Journal, "_create", create)


@mutation(1)
def ignore_the_lost_answer(patch: pytest.MonkeyPatch) -> None:
    """An own entry that is found after a lost answer is taken for another coordinator's."""

    def create(self: Journal, seq: int, raw: bytes) -> bool:
        return isinstance(self._store.create(self._paths.journal_entry(seq), raw), Created)

    patch.setattr(Journal, "_create", create)


@mutation(1, 10)
def append_without_a_reload(patch: pytest.MonkeyPatch) -> None:
    """The loser of a race for a number writes the same entry under the next one."""

    def append(
        self: Journal,
        decide: Callable[[CoordinatorState], Event],
        *,
        head: Head | None = None,
    ) -> Transition:
        head = head or self.load()
        event = decide(head.state)
        transition = step(head.state, event)
        seq = head.seq + 1
        entry = JournalEntry(
            author="somebody", previous=head.author, event=event, state=transition.state
        )
        while transition.verdict.name == "APPLIED" and not self._create(seq, encode_entry(entry)):
            seq += 1
        return transition

    patch.setattr(Journal, "append", append)


@mutation(6)
def overwrite_a_plan(patch: pytest.MonkeyPatch) -> None:
    """Two coordinators that trigger at once overwrite each other's plan."""

    def write(job: Job, *given: Any) -> object:
        return write_plan(replace(job, store=OverwritingStore(job.store)), *given)

    replace_everywhere(patch, write_plan, write)


@mutation(7)
def replace_the_first_ack(patch: pytest.MonkeyPatch) -> None:
    """A second ack of the same subtask and attempt replaces the first."""

    def write_ack(self: AnswerStore, ack: Ack) -> bytes:
        key = self._paths.ack(ack.checkpoint_id, ack.subtask, ack.attempt)
        self._store.put(key, raw := encode_ack(ack))
        return raw

    patch.setattr(AnswerStore, "write_ack", write_ack)


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

    patch.setattr(record, "files_in_use", without_merged)


@mutation(0, 5)
def abort_what_is_shown_early(patch: pytest.MonkeyPatch) -> None:
    """AT_LEAST_ONCE: an abort deletes files that are about to be shown; where others are damaged,
    too, the job never comes back.
    """

    def abort(_: Job, checkpoint_id: CheckpointId, sinks: Mapping[str, Sink]) -> None:
        for sink in sinks.values():
            sink.abort(checkpoint_id)

    replace_everywhere(patch, abort_staged, abort)


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
        keys = [listed.key for listed in self._store.list(self._paths.journal())]
        self._store.delete(keys[keep:])
        return 0

    patch.setattr(Journal, "truncate", truncate)


@mutation(4)
def abort_more_than_was_pending(patch: pytest.MonkeyPatch) -> None:
    """An abort discards the files of the completed checkpoint before it, too."""

    def discard(job: Job, state: CoordinatorState, checkpoint_id: CheckpointId) -> None:
        discard_pending(job, state, checkpoint_id)
        if state.base is not None:
            discard_pending(job, state, state.base)

    replace_everywhere(patch, discard_pending, discard)


@mutation(2)
def discard_before_the_abort(patch: pytest.MonkeyPatch) -> None:
    """An abort deletes the files first and is journaled then."""

    def fail(job: Job, checkpoint_id: CheckpointId, *given: Any, **options: Any) -> object:
        state = job.state()
        if state.pending_checkpoint(checkpoint_id) is not None:
            discard_pending(job, state, checkpoint_id)
        return fail_checkpoint(job, checkpoint_id, *given, **options)

    replace_everywhere(patch, fail_checkpoint, fail)


@mutation(9)
def discard_a_savepoint(patch: pytest.MonkeyPatch) -> None:
    """A subsumed savepoint takes the copy with it that belongs to the user."""

    def discard(
        job: Job, checkpoint: CompletedCheckpoint, retained: list[CheckpointMetadata]
    ) -> None:
        discard_completed(job, checkpoint, retained)
        savepoint = job.paths.savepoint(checkpoint.savepoint_name or "none")
        job.store.delete([listed.key for listed in job.store.list(savepoint)])

    replace_everywhere(patch, discard_completed, discard)


@mutation(9)
def overwrite_a_savepoint(patch: pytest.MonkeyPatch) -> None:
    """A savepoint of a name that is taken replaces the old one."""

    def export(job: Job, metadata: CheckpointMetadata, name: str) -> None:
        export_savepoint(replace(job, store=OverwritingStore(job.store)), metadata, name)

    replace_everywhere(patch, require_free_name, lambda *_, **__: None)
    replace_everywhere(patch, export_savepoint, export)


@mutation(0)
def compare_no_bytes(patch: pytest.MonkeyPatch) -> None:
    """A restart that comes back to a checkpoint looks at names and sizes alone."""
    patch.setattr(restore_plan, "checksums_of", lambda *_: None)


@mutation(0, 1, 3, 4)
def believe_any_record(patch: pytest.MonkeyPatch) -> None:
    """A record whose bytes are not those that were written is read as it is."""
    patch.setattr(records, "checksum", lambda _: "whole")
