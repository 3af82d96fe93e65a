"""Savepoints: a savepoint is a completed checkpoint plus a self-contained copy that a person owns.

The copy shares no file with the job and is never deleted by it; recovery of the job itself never
depends on the copy.  Only a restore with CLAIM gives it to the job, which then deletes it once no
checkpoint reads it.  See docs/adr/0002-savepoints-and-claims.md.

People call it by its name, and the protocol by its incarnation, a token that is drawn once: files,
holds, claims and deletes are of one incarnation, and the name's newest pointer says which it means.
The name is reserved before the first file is written, and is a savepoint's once all are there.

A person may have a savepoint copied to another root, but not into a job: a job's prefix,
``{root}/{uid}``, with its journal, its checkpoints and its tables, is that job's alone.  A form, an
option and a caller all come through ``require_outside`` before the first byte is written, whatever
root they name and however they spell it.

A person may also dispose of a savepoint.  Flink then deletes its files, though a job may read them.
Here the release is journaled first, so that no restore begins from what is being deleted, and a
crash in between leaves a duty for the garbage collector, as with a claimed savepoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

from sluice.coordinator.record import discard_claimed, record
from sluice.core.completed import CheckpointMetadata, with_files
from sluice.core.events import SavepointsReleased
from sluice.core.handles import SegmentHandle
from sluice.core.ids import SavepointId
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, CorruptSegment, ProtocolViolation, RestoreError
from sluice.job.job import Job, new_token
from sluice.job.snapshots import verify_segment
from sluice.protocol.keys import PipelinePaths, check_savepoint_name, is_uid
from sluice.protocol.records import checksum, encode_metadata
from sluice.store.object_store import AlreadyExists, ObjectStore, in_parallel
from sluice.store.open import StoreLocation, open_store
from sluice.store.savepoints import SavepointStore
from sluice.store.uploads import copy_object

log = logging.getLogger(__name__)

PARALLEL_COPIES = 8


def require_free_name(job: Job, name: str, state: CoordinatorState, *, request_id: str) -> None:
    """Raises ConfigurationError when the name is bad, or another savepoint has it or will.

    An early answer: who takes the name is decided when it is reserved.
    """
    newest = job.savepoints.newest(check_savepoint_name(name))
    if newest is not None and not newest.is_gone:
        raise job.savepoints.taken(name, newest)
    if any(savepoint.name == name for savepoint in state.claimed_savepoints):
        raise ConfigurationError(
            f"savepoint {name!r} was claimed by the job and is not deleted yet; choose another name"
        )
    taken = [(r.request_id, r.savepoint_name) for r in state.queue]
    taken += [(p.request_id, p.savepoint_name) for p in state.pending]
    if any(by != request_id and taken_name == name for by, taken_name in taken):
        raise ConfigurationError(f"savepoint {name!r} is being taken; choose another name")


def reserve_and_copy(job: Job, metadata: CheckpointMetadata, savepoint: SavepointId) -> None:
    """Reserve the savepoint's name and copy its files, before the checkpoint is completed.

    Raises:
        ConfigurationError: another savepoint has the name, or this one was disposed of.
        RestoreError, CorruptSegment: as ``copy_files``.
    """
    job.savepoints.reserve(savepoint, metadata.checkpoint_id, life=metadata.life)
    copy_files(job, metadata, savepoint)


def copy_files(
    job: Job,
    metadata: CheckpointMetadata,
    savepoint: SavepointId,
    target: ObjectStore | None = None,
) -> None:
    """Copy every file of a checkpoint to its *savepoint*, whose name is reserved.

    *target* is the store of another root, if the savepoint is to lie there.  A file that is gone or
    damaged fails the checkpoint, so that no savepoint looks complete and is not.  Idempotent: a
    copy's name is its content's, so one that is there is right.

    Raises:
        RestoreError: a file is gone.
        CorruptSegment: a file is not what its ack described.
    """
    folder, store = job.names.incarnation(savepoint), target or job.store
    there = {listed.key: listed.size_bytes for listed in store.list(folder)}

    def copy(handle: SegmentHandle) -> None:
        key = _copy_of(job, savepoint, handle).key
        if there.get(key) == handle.size_bytes:
            return
        what = f"savepoint {savepoint.name!r} cannot be completed"
        _copy(job.store_at(handle.root), handle, store, key, what)

    in_parallel(copy, {handle.key: handle for handle in metadata.files}.values(), PARALLEL_COPIES)


def export_savepoint(job: Job, metadata: CheckpointMetadata, savepoint: SavepointId) -> None:
    """Make the copy of the completed checkpoint a savepoint.  Idempotent: one that is complete with
    this content is this one's, and one that was disposed of since stays so.

    Raises:
        ConfigurationError: its name means another one, which a person has to dispose of.
    """
    newest = job.savepoints.newest(savepoint.name)
    if newest is None:  # Its pointer was lost, as with a root that was copied in part.
        job.savepoints.reserve(savepoint, metadata.checkpoint_id, life=metadata.life)
    elif newest.is_gone:  # It was reserved before its checkpoint completed, and removed since.
        log.warning("savepoint was disposed of before its commit name=%s", savepoint.name)
        return
    elif newest.token != savepoint.token:
        raise job.savepoints.taken(savepoint.name, newest)
    copy_files(job, metadata, savepoint)
    publish(job, copied_metadata(job, metadata, savepoint), savepoint)
    log.info("savepoint written name=%s checkpoint_id=%d", savepoint.name, metadata.checkpoint_id)


def publish(
    job: Job,
    metadata: CheckpointMetadata,
    savepoint: SavepointId,
    target: ObjectStore | None = None,
) -> None:
    """Write the ``_metadata`` of a savepoint whose files are there, and have its name mean it.

    *metadata* names the files of this incarnation.  Idempotent.

    Raises:
        ConfigurationError: it was disposed of meanwhile.
        ProtocolViolation: its ``_metadata`` was written with other content.
    """
    store, raw = target or job.store, encode_metadata(metadata)
    key = job.names.savepoint_metadata(savepoint)
    result = store.create(key, raw)
    if isinstance(result, AlreadyExists) and result.body != raw:
        raise ProtocolViolation(f"{key} has other content; a savepoint's token is used once")
    SavepointStore(store, job.names).publish(savepoint, checksum(raw))


def copied_metadata(
    job: Job, metadata: CheckpointMetadata, savepoint: SavepointId
) -> CheckpointMetadata:
    """*metadata* with the files that ``copy_files`` writes in the place of its own."""
    return with_files(metadata, lambda handle: _copy_of(job, savepoint, handle))


def copy_savepoint(job: Job, name: str, root: str) -> str:
    """Copy a savepoint of the job to another *root*, from which any job can restore it, and return
    where it lies: an incarnation of its own, which knows of what it is a copy.  Idempotent.

    Raises:
        RestoreError: there is no such savepoint, or a file of it is gone.
        CorruptSegment: a file of it is not what it was.
        ConfigurationError: another one of that name lies there, or *root* lies inside a job.
    """
    target = require_outside(job, root)
    origin = job.savepoint_origin(name)
    metadata = job.origin_metadata(origin)
    names, place = SavepointStore(target, job.names), f"{target.root}/{job.names.savepoint(name)}"
    pointer = names.reserve(
        SavepointId(name, new_token()), origin.checkpoint_id, copy_of=origin.token
    )
    if pointer.is_complete:
        return place  # An earlier call made it.
    savepoint = SavepointId(name, pointer.token)
    try:
        copy_files(job, metadata, savepoint, target)
    except (CorruptSegment, RestoreError):  # To try again would not mend it.
        names.remove(savepoint)
        raise
    publish(job, copied_metadata(job, metadata, savepoint), savepoint, target)
    log.info("savepoint copied name=%s root=%s", name, target.root)
    return place


def _copy(
    source: ObjectStore, handle: SegmentHandle, target: ObjectStore, key: str, what: str
) -> None:
    def check(pieces: Iterable[bytes]) -> None:
        verify_segment(handle, pieces, what)

    if not copy_object(source, handle.key, target, key, check):
        raise RestoreError(f"{handle.key} is gone; {what}")


def _copy_of(job: Job, savepoint: SavepointId, handle: SegmentHandle) -> SegmentHandle:
    key = job.names.savepoint_file(savepoint, handle.checksum, copy_of=handle.key)
    return replace(handle, key=key, root="")


def require_outside(job: Job, root: str) -> ObjectStore:
    """The store of *root*, which is not the job's own and does not lie inside a job.

    Raises:
        ConfigurationError: it is no root, it is the job's own, or it lies inside a job; the message
            names that job.
    """
    location = job.location.elsewhere(root)
    place, own = location.place, job.location.place
    if place == own:
        raise ConfigurationError(
            f"{root} is the job's own root, where it lies already; name another one, or none"
        )
    for prefix in _prefixes(place):
        is_own = prefix == (*own, job.pipeline.uid)
        if is_own or _holds_a_job(prefix, location):
            raise ConfigurationError(
                f"{root} lies inside job {prefix[-1]!r}, whose prefix is {_uri(prefix)}: nothing "
                "but that job writes there; name a root outside of it"
            )
    return job.store_at(root)


def _prefixes(place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """*place* and every place around it, if its last part can be a pipeline's uid."""
    return (place[:n] for n in range(2, len(place) + 1) if is_uid(place[n - 1]))


def _holds_a_job(prefix: tuple[str, ...], location: StoreLocation) -> bool:
    """Whether a journal was begun at *prefix*; no, if the store may not be read there."""
    pointer = PipelinePaths(prefix[-1]).begun()
    store = open_store(location.elsewhere(_uri(prefix[:-1])))
    try:
        return store.get(pointer) is not None
    except ConfigurationError as error:
        log.warning("cannot tell whether a job lives there place=%s: %s", _uri(prefix), error)
        return False


def _uri(place: tuple[str, ...]) -> str:
    if len(place) == 1:
        return place[0]
    return "/".join((place[0].removesuffix("/"), *place[1:]))


def savepoint_names(job: Job) -> list[str]:
    """The complete savepoints, in the order of their names."""
    return [savepoint.name for savepoint in complete_savepoints(job)]


def complete_savepoints(job: Job) -> list[SavepointId]:
    """The incarnations that names mean, in the order of their names."""
    pointers = job.savepoints.all(one.key for one in job.store.list(job.names.savepoints()))
    return [
        SavepointId(name, pointer.token)
        for name, pointer in sorted(pointers.items())
        if pointer.is_complete
    ]


def dispose(job: Job, name: str) -> bool:
    """Delete savepoint *name* of the job's root, complete or not; False if there is none.

    It deletes the incarnation that the name means now.  It is not known whether jobs of other roots
    or uids that were restored from it still read it.

    Raises:
        ConfigurationError: no savepoint may have that name, or the job needs this one.
        RestoreError, ProtocolViolation: a retained checkpoint cannot be read, and may need it.
    """
    newest = job.savepoints.newest(check_savepoint_name(name))
    state = job.state()
    is_going = any(savepoint.name == name for savepoint in state.releasing_savepoints)
    if newest is not None and not newest.is_gone:
        savepoint = SavepointId(name, newest.token)
        if savepoint not in state.releasing_savepoints:
            _release(job, state, savepoint)
    elif not is_going:
        return False
    discard_claimed(job)
    log.info("savepoint disposed of name=%s", name)
    return True


def _release(job: Job, state: CoordinatorState, savepoint: SavepointId) -> None:
    _require_unused(job, state, savepoint)
    state = record(
        job,
        lambda current: SavepointsReleased(
            generation=current.generation, savepoints=(savepoint,), is_disposal=True
        ),
    ).state
    if savepoint not in state.releasing_savepoints:
        _require_unused(job, state, savepoint)  # The job began to use it meanwhile.


def _require_unused(job: Job, state: CoordinatorState, savepoint: SavepointId) -> None:
    use = _use_of(job, state, savepoint)
    if use:
        raise ConfigurationError(f"savepoint {savepoint.name!r} cannot be disposed of: {use}")


def _use_of(job: Job, state: CoordinatorState, savepoint: SavepointId) -> str:
    """The job's need of the savepoint, with what to do; empty if it has none."""
    uid = job.pipeline.uid
    if state.origin is not None and state.origin.own_savepoint == savepoint:
        return (
            f"job {uid!r} was restored from it, and has completed no checkpoint since; wait for "
            "one, or restore something else"
        )
    if savepoint in state.claimed_savepoints:
        return f"job {uid!r} claimed it, and deletes it when no retained checkpoint reads it"
    if not state.is_free(savepoint):
        return "it is being taken; wait for its end"
    for done in state.completed:
        files = job.metadata(done.checkpoint_id).files
        if any(job.names.savepoint_of(file.key) == savepoint for file in files if not file.root):
            return f"checkpoint {done.checkpoint_id} reads its files, and is retained"
    return ""
