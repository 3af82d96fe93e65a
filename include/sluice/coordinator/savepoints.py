"""Savepoints: a savepoint is a completed checkpoint plus a self-contained copy that a person owns.

The copy shares no file with the job and is never deleted by it; recovery of the job itself never
depends on the copy.  Only a restore with CLAIM gives it to the job, which then deletes it once no
checkpoint reads it.  See docs/adr/0002-savepoints-and-claims.md.

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

from sluice.coordinator.record import discard_claimed, is_savepoint_metadata, record
from sluice.core.completed import CheckpointMetadata, with_files
from sluice.core.events import SavepointsReleased
from sluice.core.handles import SegmentHandle
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job
from sluice.job.snapshots import verify
from sluice.protocol.keys import PipelinePaths, check_savepoint_name, is_uid
from sluice.protocol.records import encode_metadata
from sluice.store.object_store import ObjectStore, in_parallel
from sluice.store.open import StoreLocation, open_store
from sluice.store.uploads import copy_object

log = logging.getLogger(__name__)

PARALLEL_COPIES = 8


def require_free_name(job: Job, name: str, state: CoordinatorState, *, request_id: str) -> None:
    """Raises ConfigurationError when the name is bad, or another savepoint has it or will."""
    if job.store.get(job.paths.savepoint_metadata(check_savepoint_name(name))) is not None:
        raise ConfigurationError(
            f"savepoint {name!r} exists in {job.store.root} and is never overwritten; "
            "choose another name"
        )
    if name in state.claimed_savepoints:
        raise ConfigurationError(
            f"savepoint {name!r} was claimed by the job and is not deleted yet; choose another name"
        )
    taken = [(r.request_id, r.savepoint_name) for r in state.queue]
    taken += [(p.request_id, p.savepoint_name) for p in state.pending]
    if any(by != request_id and taken_name == name for by, taken_name in taken):
        raise ConfigurationError(f"savepoint {name!r} is being taken; choose another name")


def copy_files(
    job: Job, metadata: CheckpointMetadata, name: str, target: ObjectStore | None = None
) -> None:
    """Copy every file of a checkpoint to its savepoint *name*, before the checkpoint is completed.

    *target* is the store of another root, if the savepoint is to lie there.  A file that is gone or
    damaged fails the checkpoint, so that no savepoint looks complete and is not.  Idempotent: a
    copy's name is its content's, so one that is there is right.

    Raises:
        RestoreError: a file is gone.
        CorruptSegment: a file is not what its ack described.
    """
    folder, store = job.paths.savepoint(name), target or job.store
    there = {listed.key: listed.size_bytes for listed in store.list(folder)}

    def copy(handle: SegmentHandle) -> None:
        key = _copy_of(job, name, handle).key
        if there.get(key) == handle.size_bytes:
            return
        what = f"savepoint {name!r} cannot be completed"
        _copy(job.store_at(handle.root), handle, store, key, what)

    in_parallel(copy, {handle.key: handle for handle in metadata.files}.values(), PARALLEL_COPIES)


def export_savepoint(job: Job, metadata: CheckpointMetadata, name: str) -> None:
    """Copy the files, and then write the ``_metadata`` that makes them a savepoint.  Idempotent."""
    copy_files(job, metadata, name)
    copied = copied_metadata(job, metadata, name)
    job.store.create(job.paths.savepoint_metadata(name), encode_metadata(copied))
    log.info("savepoint written name=%s checkpoint_id=%d", name, metadata.checkpoint_id)


def copied_metadata(job: Job, metadata: CheckpointMetadata, name: str) -> CheckpointMetadata:
    """*metadata* with the files that ``copy_files`` writes in the place of its own."""
    return with_files(metadata, lambda handle: _copy_of(job, name, handle))


def copy_savepoint(job: Job, name: str, root: str) -> str:
    """Copy a savepoint of the job to another *root*, from which any job can restore it, and return
    where it lies.  Its keys are relative, and stay.  Idempotent.

    Raises:
        RestoreError: there is no such savepoint, or a file of it is gone.
        CorruptSegment: a file of it is not what it was.
        ConfigurationError: another one of that name lies there, or *root* lies inside a job.
    """
    target = require_outside(job, root)
    metadata_key = job.paths.savepoint_metadata(name)
    metadata = job.store.get(metadata_key)
    if metadata is None:
        raise RestoreError(f"there is no savepoint {name!r} in {job.store.root}")
    files = job.savepoint_metadata(name).files
    if target.get(metadata_key) not in (None, metadata):
        raise ConfigurationError(
            f"another savepoint {name!r} lies in {target.root} and is never overwritten; choose "
            "another name"
        )

    def copy(handle: SegmentHandle) -> None:
        _copy(job.store, handle, target, handle.key, f"savepoint {name!r} cannot be copied")

    in_parallel(copy, {handle.key: handle for handle in files}.values(), PARALLEL_COPIES)
    target.put(metadata_key, metadata)  # Last: it is what makes it a savepoint.
    log.info("savepoint copied name=%s root=%s files=%d", name, target.root, len(files))
    return f"{target.root}/{job.paths.savepoint(name)}"


def _copy(
    source: ObjectStore, handle: SegmentHandle, target: ObjectStore, key: str, what: str
) -> None:
    def check(pieces: Iterable[bytes]) -> None:
        verify(handle, pieces, what)

    if not copy_object(source, handle.key, target, key, check):
        raise RestoreError(f"{handle.key} is gone; {what}")


def _copy_of(job: Job, name: str, handle: SegmentHandle) -> SegmentHandle:
    key = job.paths.savepoint_file(name, handle.checksum, copy_of=handle.key)
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
    """Whether a journal was begun at *prefix*; no, if the store may not be listed there."""
    paths = PipelinePaths(prefix[-1])
    store = open_store(location.elsewhere(_uri(prefix[:-1])))
    try:
        return any(paths.is_journal_entry(entry.key) for entry in store.list(paths.journal()))
    except ConfigurationError as error:
        log.warning("cannot tell whether a job lives there place=%s: %s", _uri(prefix), error)
        return False


def _uri(place: tuple[str, ...]) -> str:
    if len(place) == 1:
        return place[0]
    return "/".join((place[0].removesuffix("/"), *place[1:]))


def savepoint_names(job: Job) -> list[str]:
    """The complete savepoints, in the order of their names."""
    keys = (listed.key for listed in job.store.list(job.paths.savepoints()))
    names = (job.paths.savepoint_of(key) for key in keys if is_savepoint_metadata(job, key))
    return [name for name in names if name]


def dispose(job: Job, name: str) -> bool:
    """Delete savepoint *name* of the job's root, complete or not; False if nothing of it is there.

    It is not known whether jobs of other roots or uids that were restored from it still read it.

    Raises:
        ConfigurationError: no savepoint may have that name, or the job needs this one.
        RestoreError, ProtocolViolation: a retained checkpoint cannot be read, and may need it.
    """
    folder = job.paths.savepoint(check_savepoint_name(name))
    state = job.state()
    if name not in state.releasing_savepoints:
        if next(iter(job.store.list(folder)), None) is None:
            return False
        _require_unused(job, state, name)
        state = record(
            job,
            lambda current: SavepointsReleased(
                generation=current.generation, savepoints=(name,), is_disposal=True
            ),
        ).state
        if name not in state.releasing_savepoints:
            _require_unused(job, state, name)  # The job began to use it meanwhile.
    discard_claimed(job)
    log.info("savepoint disposed of name=%s", name)
    return True


def _require_unused(job: Job, state: CoordinatorState, name: str) -> None:
    use = _use_of(job, state, name)
    if use:
        raise ConfigurationError(f"savepoint {name!r} cannot be disposed of: {use}")


def _use_of(job: Job, state: CoordinatorState, name: str) -> str:
    """What the job needs the savepoint for, with what to do; empty if it does not."""
    uid = job.pipeline.uid
    if state.origin is not None and state.origin.savepoint == name:
        return (
            f"job {uid!r} was restored from it, and has completed no checkpoint since; wait for "
            "one, or restore something else"
        )
    if name in state.claimed_savepoints:
        return f"job {uid!r} claimed it, and deletes it when no retained checkpoint reads it"
    if not state.is_free(name):
        return "it is being taken; wait for its end"
    for done in state.completed:
        files = job.metadata(done.checkpoint_id).files
        if any(job.paths.savepoint_of(file.key) == name for file in files if not file.root):
            return f"checkpoint {done.checkpoint_id} reads its files, and is retained"
    return ""
