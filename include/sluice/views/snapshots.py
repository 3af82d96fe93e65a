"""The stored snapshots that a job can be restored from: retained checkpoints and savepoints, of its
own root and of others.

A snapshot that cannot be restored is listed, too, with the reasons in words.  They are those of a
dry run that reads no file: the files are there with their sizes, the sources can be read on from
it, the sinks' tables agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum

import msgspec

from sluice.coordinator.in_use import is_savepoint_metadata
from sluice.coordinator.restore_request import RestoreRequest, plan, resolve
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.ids import CheckpointId
from sluice.core.restoring import RestoreOptions, Stop
from sluice.core.state import CoordinatorState
from sluice.core.table_standings import TableAhead
from sluice.errors import ConfigurationError, ProtocolViolation, RestoreError, SluiceError
from sluice.job.job import Job
from sluice.protocol.paths import PipelinePaths
from sluice.protocol.records import FORMAT_VERSION, format_version
from sluice.storage.answers import AnswerStore
from sluice.storage.journal import Journal
from sluice.storage.remembering import ReadMemory, RememberingStore

_SIZES_ONLY = RestoreOptions(compare_checksums=False)


class SnapshotKind(Enum):
    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A retained checkpoint, or a savepoint.  ``root`` is empty in the job's own root.

    ``id`` is None of a savepoint that cannot be read; so is all that only the snapshot itself says.
    ``completed_at_ms`` of a savepoint is the store's clock.  ``is_of_this_life``: the job as it was
    submitted last took it.  ``tables`` has the version per sink that it pins, ``tables_ahead`` what
    readers of a table see beyond that.  ``can_restore`` is None without checks.
    """

    kind: SnapshotKind
    id: int | None
    savepoint: str | None = None
    root: str = ""
    pipeline: str = ""
    type: str | None = None
    triggered_at_ms: int | None = None
    completed_at_ms: int | None = None
    format_version: int | None = None
    full_bytes: int | None = None
    generation: int | None = None
    life: str | None = None
    is_of_this_life: bool = False
    tables: dict[str, int] = {}
    tables_ahead: tuple[TableAhead, ...] = ()
    can_restore: bool | None = None
    problems: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What people call it, with its root if that is another one."""
        own = f"checkpoint {self.id}" if self.savepoint is None else f"savepoint {self.savepoint!r}"
        return f"{own} of {self.pipeline!r} in {self.root}" if self.root else own


def snapshots(
    job: Job,
    roots: Sequence[str] = (),
    *,
    pipeline: str | None = None,
    checks: bool = True,
) -> list[Snapshot]:
    """The snapshots of the job's own root, then those of each of *roots*, the newest first.

    *pipeline* is the uid in the other roots, if another.  Without *checks* no source and no sink is
    asked, and ``can_restore`` is None, but for a snapshot that cannot be read.
    """
    state = job.state()
    found = _of_root(job, state, "")
    for root in dict.fromkeys(roots):
        place = elsewhere(job, root, pipeline or job.pipeline.uid)
        if (place.store.root, place.paths) != (job.store.root, job.paths):
            found += _of_root(place, state, root)
    if not checks:
        return found
    asked = _reading_once(job)
    return [one if one.problems else _checked(asked, state, one) for one in found]


def restore_request(snapshot: Snapshot, options: RestoreOptions = _SIZES_ONLY) -> RestoreRequest:
    """The request to restore *snapshot*."""
    is_checkpoint = snapshot.kind is SnapshotKind.CHECKPOINT and snapshot.id is not None
    return RestoreRequest(
        checkpoint=CheckpointId(snapshot.id or 0) if is_checkpoint else None,
        savepoint=snapshot.savepoint,
        root=snapshot.root or None,
        pipeline=snapshot.pipeline if snapshot.root else None,
        options=options,
    )


def elsewhere(job: Job, root: str, uid: str) -> Job:
    """The job *uid* of another root, as *job* is declared."""
    store, paths = job.store_at(root), PipelinePaths(uid)
    return replace(
        job,
        store=store,
        paths=paths,
        journal=Journal(store, paths),
        answers=AnswerStore(store, paths),
    )


def _reading_once(job: Job) -> Job:
    """All snapshots are held against the same tables and journal, which have a line for each."""
    location = replace(job.location, layer=ReadMemory())
    store = RememberingStore(job.store)
    return replace(
        job,
        location=location,
        store=store,
        journal=Journal(store, job.paths),
        answers=AnswerStore(store, job.paths),
    )


def _of_root(place: Job, state: CoordinatorState, root: str) -> list[Snapshot]:
    """What lies in one root; *state* is that of the job that would be restored."""
    known = place.state() if root else state
    found = [_checkpoint(place, done) for done in known.completed]
    found += _savepoints(place, known)
    return [
        msgspec.structs.replace(
            one,
            root=root,
            pipeline=place.paths.pipeline,
            is_of_this_life=bool(state.life) and one.life == state.life,
        )
        for one in sorted(found, key=lambda one: one.id or 0, reverse=True)
    ]


def _checkpoint(place: Job, done: CompletedCheckpoint) -> Snapshot:
    listed = Snapshot(
        kind=SnapshotKind.CHECKPOINT,
        id=done.checkpoint_id,
        type=done.type.value,
        triggered_at_ms=done.triggered_at_ms,
        completed_at_ms=done.completed_at_ms,
        generation=done.generation,
    )
    return _read(place, listed, place.paths.metadata(done.checkpoint_id))


def _savepoints(place: Job, known: CoordinatorState) -> Iterator[Snapshot]:
    for one in place.store.list(place.paths.savepoints()):
        name = place.paths.savepoint_of(one.key)
        if name is None or not is_savepoint_metadata(place, one.key):
            continue
        listed = Snapshot(
            kind=SnapshotKind.SAVEPOINT,
            id=None,
            savepoint=name,
            completed_at_ms=one.modified_ms,
        )
        read = _read(place, listed, one.key)
        yield (
            _without(read, "it is being deleted") if (name in known.releasing_savepoints) else read
        )


def _read(place: Job, listed: Snapshot, key: str) -> Snapshot:
    """What the snapshot says of itself; its format also where that is not ours."""
    try:
        metadata = (
            place.savepoint_metadata(listed.savepoint)
            if listed.savepoint is not None
            else place.metadata(CheckpointId(listed.id or 0))
        )
    except (ConfigurationError, ProtocolViolation, RestoreError) as error:
        known = msgspec.structs.replace(listed, format_version=_format_of(place, key))
        return _without(known, str(error))
    return msgspec.structs.replace(
        listed,
        id=metadata.checkpoint_id,
        type=metadata.type.value,
        triggered_at_ms=metadata.triggered_at_ms,
        format_version=FORMAT_VERSION,
        full_bytes=_state_bytes(metadata),
        generation=metadata.generation,
        life=metadata.life,
        tables=metadata.tables,
    )


def _format_of(place: Job, key: str) -> int | None:
    """The version of a record that was not read; None if it is gone, or no record."""
    raw = place.store.get(key)
    try:
        return None if raw is None else format_version(raw, key)
    except ProtocolViolation:
        return None


def _state_bytes(metadata: CheckpointMetadata) -> int:
    """The size of all state: what the acks of its subtasks added up to."""
    return sum(
        handle.segment.size_bytes
        for stage in metadata.stages
        for subtask in stage.subtasks
        for handle in subtask.state
    )


def _without(snapshot: Snapshot, problem: str) -> Snapshot:
    return msgspec.structs.replace(snapshot, can_restore=False, problems=(problem,))


def _checked(job: Job, state: CoordinatorState, snapshot: Snapshot) -> Snapshot:
    try:
        resolved = resolve(job, state, restore_request(snapshot))
        decision = plan(job, state, resolved).decision
    except SluiceError as error:
        return _without(snapshot, str(error))
    if isinstance(decision, Stop):
        return msgspec.structs.replace(snapshot, can_restore=False, problems=decision.problems)
    return msgspec.structs.replace(snapshot, can_restore=True, tables_ahead=decision.tables_ahead)
