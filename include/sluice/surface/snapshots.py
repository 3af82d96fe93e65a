"""The snapshots that a job can be restored from: retained checkpoints and savepoints, in any root.

A snapshot that cannot be restored is listed, too, with the reasons in words.  They are those of a
dry run that reads no file: the files are there with their sizes, the sources can continue from it,
the sinks' tables agree.

``facts_of_...`` describe a snapshot in few words, a name and a value each; ``checkpoint_details``
has all details of one retained checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import TypeAlias

import msgspec

from sluice.coordinator.restore import RestoreRequest, plan, resolve
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint, StageState
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId, SavepointId
from sluice.core.plan import SourceCut
from sluice.core.restoring import RestoreApproval, RestoreOptions, Stop
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableAhead
from sluice.core.units import size
from sluice.errors import ConfigurationError, ProtocolViolation, RestoreError, SluiceError
from sluice.job.job import Job
from sluice.job.lineage import position_of
from sluice.job.places import open_sinks
from sluice.job.snapshots import why_not_retained
from sluice.protocol.keys import PipelinePaths
from sluice.protocol.records import FORMAT_VERSION, format_version
from sluice.store.journal import Journal
from sluice.store.open import ReadMemory, RememberingStore
from sluice.surface.options import OptionChange
from sluice.surface.state import table_names

Facts: TypeAlias = Mapping[str, int | str]
Entry: TypeAlias = tuple[int, int, bool]  # An offset, the records before it, whether it is sealed.

NOT_COMPARED = "not compared with their checksums"
_SIZES_ONLY = RestoreOptions(compare_checksums=False)


class SnapshotKind(Enum):
    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A retained checkpoint, or a savepoint.  ``root`` is empty in the job's own root.

    Of a savepoint that cannot be read ``id`` is None, and so is every field that comes from its
    ``_metadata``.  ``completed_at_ms`` of a savepoint is by the store's clock.
    ``is_of_this_life``: the job took it since it was submitted last.  ``tables`` has the version
    per sink that it pins, ``tables_ahead`` what readers of a table see beyond that.
    ``can_restore`` is None without checks.
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
        """The name that people call it by, with its root if that is another one."""
        own = f"checkpoint {self.id}" if self.savepoint is None else f"savepoint {self.savepoint!r}"
        return f"{own} of {self.pipeline!r} in {self.root}" if self.root else own


class Segments(msgspec.Struct, frozen=True, kw_only=True):
    """The segments of a stage, counted; small ones are ``inline`` in the ``_metadata`` itself."""

    files: int
    inline: int
    size_bytes: int
    rows: int


class StageDetails(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    parallelism: int
    max_parallelism: int
    state: Segments
    in_flight: Segments
    watermark_ms: int
    is_overtaken: bool
    is_finished: bool


class PartitionDetails(msgspec.Struct, frozen=True, kw_only=True):
    partition: str
    offset: int
    records: int


class SourceDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a source; a table source has no partitions, but a file in ``files``."""

    uid: str
    partitions: list[PartitionDetails]
    exhausted: bool


class FileDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A file; ``written_by`` is the checkpoint that added it, ``root`` empty for the job's own."""

    key: str
    root: str
    size_bytes: int
    rows: int
    written_by: int | None


class CheckpointDetails(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    type: str
    generation: int
    parent: int | None
    origin: str | None
    savepoint: str | None
    triggered_at_ms: int
    completed_at_ms: int
    committed: bool
    cause: str
    records: int
    checkpointed_bytes: int
    full_bytes: int
    stages: list[StageDetails]
    sources: list[SourceDetails]
    tables: dict[str, int]
    published: dict[str, str]  # The names of the versions in the tables' own tools.
    files: list[FileDetails]


def snapshots(
    job: Job,
    roots: Sequence[str] = (),
    *,
    pipeline: str | None = None,
    checks: bool = True,
) -> list[Snapshot]:
    """The snapshots of the job's own root, then those of each of *roots*, the newest first.

    *pipeline* is the uid in the other roots, if it is another one.  Without *checks* no source and
    no sink is asked, and ``can_restore`` is None, but for a snapshot that cannot be read.
    """
    state = job.state()
    found = _of_root(job, state, "")
    for root in dict.fromkeys(roots):
        place = elsewhere(job, root, pipeline or job.pipeline.uid)
        if (place.store.root, place.names) != (job.store.root, job.names):
            found += _of_root(place, state, root)
    if not checks:
        return found
    checking = _reading_once(job)
    return [
        snapshot if snapshot.problems else _checked(checking, state, snapshot) for snapshot in found
    ]


def newest_checked(job: Job, state: CoordinatorState) -> Snapshot | None:
    """The newest retained checkpoint, checked by names and sizes; None without one."""
    if state.latest_completed is None:
        return None
    snapshot = _checkpoint(job, state.latest_completed)
    return snapshot if snapshot.problems else _checked(_reading_once(job), state, snapshot)


def restore_request_of(snapshot: Snapshot, options: RestoreOptions = _SIZES_ONLY) -> RestoreRequest:
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
    store = job.store_at(root)
    return replace(job, store=store, journal=Journal(store, PipelinePaths(uid)))


def facts_of_checkpoint(metadata: CheckpointMetadata) -> Facts:
    facts: dict[str, int | str] = {
        "type": metadata.type.value,
        "generation": metadata.generation,
        "life": metadata.life,
    }
    return facts | {f"hook {name}": text or "" for name, text in metadata.master_states.items()}


def offsets(job: Job, cut: SourceCut | None) -> dict[str, Entry]:
    """The offset of each partition, the records before it, and whether it ended."""
    entries = () if cut is None else position_of(job, cut)
    return {entry.partition: (entry.offset, entry.records, entry.sealed) for entry in entries}


def facts_of_source(cut: SourceCut | None, entries: Mapping[str, Entry]) -> Facts:
    if cut is None:
        return {}
    if cut.table is not None:
        return {"rows of the table": cut.table.rows, "version of the table": cut.table.checksum}
    return {
        "partitions": len(entries),
        "records": sum(records for _, records, _ in entries.values()),
        "exhausted": "yes" if cut.exhausted else "no",
    }


def facts_of_stage(stage: StageState | None) -> Facts:
    if stage is None:
        return {}
    return {
        "parallelism": stage.parallelism,
        "max parallelism": stage.max_parallelism,
        "watermark": stage.watermark_ms,
        "finished": "yes" if stage.is_finished else "no",
        "unaligned": "yes" if stage.is_overtaken else "no",
        "rows in flight": sum(segment.rows for segment in stage.in_flight_segments),
        "tables of state": ", ".join(table_names(stage)),
    }


def sinks_of(metadata: CheckpointMetadata) -> set[str]:
    """The sinks that have a version of a table or staged files in the checkpoint."""
    return {*metadata.tables, *(staged.sink for staged in metadata.committables)}


def facts_of_sink(metadata: CheckpointMetadata, uid: str) -> Facts:
    """The facts of a sink; the figures of ``published`` files are of this checkpoint alone."""
    committables = [staged for staged in metadata.committables if staged.sink == uid]
    facts: dict[str, int | str] = {}
    if uid in metadata.tables:
        facts["version of the table"] = metadata.tables[uid]
    return facts | {
        "files published": len(committables),
        "rows published": sum(staged.rows for staged in committables),
        "bytes published": sum(staged.size_bytes for staged in committables),
    }


def checkpoint_details(job: Job, checkpoint_id: CheckpointId) -> CheckpointDetails:
    """
    Raises:
        ConfigurationError: the checkpoint is not retained.
        RestoreError: its ``_metadata`` is gone.
    """
    state = job.state()
    done = state.completed_checkpoint(checkpoint_id)
    if done is None:
        raise ConfigurationError(why_not_retained(job, state, str(checkpoint_id)))
    metadata = job.metadata(checkpoint_id)
    return CheckpointDetails(
        id=done.checkpoint_id,
        type=done.type.value,
        generation=done.generation,
        parent=done.parent,
        origin=None if metadata.origin is None else str(metadata.origin),
        savepoint=done.savepoint_name,
        triggered_at_ms=done.triggered_at_ms,
        completed_at_ms=done.completed_at_ms,
        committed=done.is_committed,
        cause=done.cause,
        records=done.records,
        checkpointed_bytes=done.checkpointed_bytes,
        full_bytes=done.full_bytes,
        stages=[_stage(stage) for stage in metadata.stages],
        sources=[_source(job, cut) for cut in metadata.sources],
        tables=metadata.tables,
        published=_published(job, state, metadata),
        files=file_details(job, metadata.files),
    )


def file_details(job: Job, handles: Iterable[SegmentHandle]) -> list[FileDetails]:
    """The files, each once, in the order in which they are first named."""
    return [
        FileDetails(
            key=handle.key,
            root=handle.root,
            size_bytes=handle.size_bytes,
            rows=handle.rows,
            written_by=job.paths.checkpoint_of(handle.key),
        )
        for handle in dict.fromkeys(handles)
    ]


def plan_lines(decision: RestoreApproval, changed: Sequence[OptionChange]) -> list[str]:
    """The effects of a restore, a line each; *changed* are the options that it changes."""
    files = [*dict.fromkeys(decision.files)]
    total = size(sum(handle.size_bytes for handle in files))
    where = f"{len(files):,} files, {total}, all of them there"
    if not files:
        where = "all of it is in its _metadata"
    what = f"{where}, {'as written' if decision.is_compared else NOT_COMPARED}"
    if decision.choice.checkpoint_id is None:
        what = "no checkpoint was completed yet"
    said = {
        "its sinks publish what they staged first": decision.replays_commit,
        "its data in flight is dropped, and those rows are lost": decision.ignores_in_flight,
        f"the state of {', '.join(decision.dropped_stages)} is dropped": decision.dropped_stages,
    }
    rolls_back = decision.options.roll_back_tables
    return [
        f"would restore {decision.choice}: {what}",
        *(line for line, is_so in said.items() if is_so),
        *decision.changes,
        *(change.made for change in changed),
        *(ahead.sentence(rolls_back=rolls_back) for ahead in decision.tables_ahead),
        *(f"warning: {warning}" for warning in decision.warnings),
    ]


def _reading_once(job: Job) -> Job:
    """*job*, which reads each table and record once for the checks of all snapshots."""
    location = replace(job.location, layer=ReadMemory())
    store = RememberingStore(job.store)
    return replace(job, location=location, store=store, journal=Journal(store, job.names))


def _of_root(place: Job, state: CoordinatorState, root: str) -> list[Snapshot]:
    """The snapshots of one root; *state* is that of the job that would be restored."""
    known = place.state() if root else state
    found = [_checkpoint(place, done) for done in known.completed]
    found += _savepoints(place, known)
    return [
        msgspec.structs.replace(
            snapshot,
            root=root,
            pipeline=place.names.pipeline,
            is_of_this_life=bool(state.life) and snapshot.life == state.life,
        )
        for snapshot in sorted(found, key=lambda snapshot: snapshot.id or 0, reverse=True)
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
    files = {file.key: file for file in place.store.list(place.names.savepoints())}
    for name, pointer in sorted(place.savepoints.all(files).items()):
        if not pointer.is_complete:
            continue
        savepoint = SavepointId(name, pointer.token)
        file = files.get(place.names.savepoint_metadata(savepoint))
        listed = Snapshot(
            kind=SnapshotKind.SAVEPOINT,
            id=None,
            savepoint=name,
            completed_at_ms=None if file is None else file.modified_ms,
        )
        read = _read(place, listed, place.names.savepoint_metadata(savepoint))
        is_going = savepoint in known.releasing_savepoints
        yield _unrestorable(read, "it is being deleted") if is_going else read


def _read(place: Job, listed: Snapshot, key: str) -> Snapshot:
    """*listed* with the facts in its ``_metadata``; of another format, with the format alone."""
    try:
        metadata = (
            place.savepoint_metadata(listed.savepoint)
            if listed.savepoint is not None
            else place.metadata(CheckpointId(listed.id or 0))
        )
    except (ConfigurationError, ProtocolViolation, RestoreError) as error:
        known = msgspec.structs.replace(listed, format_version=_format_of(place, key))
        return _unrestorable(known, str(error))
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
    """The version of a record of an unknown format; None if it is gone, or no record."""
    raw = place.store.get(key)
    try:
        return None if raw is None else format_version(raw, key)
    except ProtocolViolation:
        return None


def _state_bytes(metadata: CheckpointMetadata) -> int:
    """The size of all state, as the sum over the acks of the subtasks."""
    return sum(
        handle.segment.size_bytes
        for stage in metadata.stages
        for subtask in stage.subtasks
        for handle in subtask.state
    )


def _unrestorable(snapshot: Snapshot, problem: str) -> Snapshot:
    return msgspec.structs.replace(snapshot, can_restore=False, problems=(problem,))


def _checked(job: Job, state: CoordinatorState, snapshot: Snapshot) -> Snapshot:
    try:
        resolved = resolve(job, state, restore_request_of(snapshot))
        decision = plan(job, state, resolved)
    except SluiceError as error:
        return _unrestorable(snapshot, str(error))
    if isinstance(decision, Stop):
        return msgspec.structs.replace(snapshot, can_restore=False, problems=decision.problems)
    return msgspec.structs.replace(snapshot, can_restore=True, tables_ahead=decision.tables_ahead)


def _published(job: Job, state: CoordinatorState, metadata: CheckpointMetadata) -> dict[str, str]:
    sinks = open_sinks(job, state.configuration.params)
    return {
        uid: sinks[uid].describe(version)
        for uid, version in metadata.tables.items()
        if uid in job.pipeline.sinks and sinks[uid].is_published(version)
    }


def _stage(stage: StageState) -> StageDetails:
    state = [handle.segment for subtask in stage.subtasks for handle in subtask.state]
    return StageDetails(
        uid=stage.uid,
        parallelism=stage.parallelism,
        max_parallelism=stage.max_parallelism,
        state=_segments(state),
        in_flight=_segments(stage.in_flight_segments),
        watermark_ms=stage.watermark_ms,
        is_overtaken=stage.is_overtaken,
        is_finished=stage.is_finished,
    )


def _segments(handles: Sequence[SegmentHandle]) -> Segments:
    """The number and size of segments; one that several subtasks share counts once."""
    distinct = {handle.key or handle.checksum: handle for handle in handles}.values()
    return Segments(
        files=sum(1 for handle in distinct if handle.key),
        inline=sum(1 for handle in distinct if not handle.key),
        size_bytes=sum(handle.size_bytes for handle in distinct),
        rows=sum(handle.rows for handle in distinct),
    )


def _source(job: Job, cut: SourceCut) -> SourceDetails:
    return SourceDetails(
        uid=cut.uid,
        partitions=[
            PartitionDetails(partition=entry.partition, offset=entry.offset, records=entry.records)
            for entry in position_of(job, cut)
        ],
        exhausted=cut.exhausted,
    )
