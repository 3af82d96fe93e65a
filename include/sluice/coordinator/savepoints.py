"""A savepoint is a completed checkpoint plus a self-contained copy that a person owns.

The copy shares no file with the job and is never deleted by it; recovery of the job itself never
depends on the copy.  See docs/adr/0002-savepoints-and-claims.md.

Only a restore with CLAIM gives it to the job, which then deletes it once no checkpoint reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from sluice.coordinator.outside import require_outside
from sluice.core.completed import CheckpointMetadata, with_files
from sluice.core.handles import SegmentHandle
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.contents import verify
from sluice.job.job import Job
from sluice.protocol.names import check_savepoint_name
from sluice.protocol.records import encode_metadata
from sluice.storage.copying import copy_object
from sluice.storage.object_store import ObjectStore
from sluice.storage.parallel import in_parallel

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
    to_be = [(r.request_id, r.savepoint_name) for r in state.queue]
    to_be += [(p.request_id, p.savepoint_name) for p in state.pending]
    if any(taken == name and other != request_id for other, taken in to_be):
        raise ConfigurationError(f"savepoint {name!r} is being taken; choose another name")


def copy_files(
    job: Job, metadata: CheckpointMetadata, name: str, target: ObjectStore | None = None
) -> None:
    """Copy every file of a checkpoint to its savepoint *name*, before the checkpoint is completed.

    *target* is the store of another root, if the savepoint is to lie there.  A file that is gone or
    damaged fails the checkpoint, so no savepoint looks complete and is not.
    Idempotent: a copy's name is its content's, so what is there is right.

    Raises:
        RestoreError: a file is gone.
        CorruptSegment: a file is not what its ack described.
    """
    folder, store = job.paths.savepoint(name), target or job.store
    there = {one.key: one.size_bytes for one in store.list(folder)}

    def copy(handle: SegmentHandle) -> None:
        key = _copy_of(job, name, handle).key
        if there.get(key) == handle.size_bytes:
            return
        source = job.store_at(handle.root)
        _copy(source, handle, store, key, f"savepoint {name!r} cannot be completed")

    in_parallel(copy, {handle.key: handle for handle in metadata.files}.values(), PARALLEL_COPIES)


def export_savepoint(job: Job, metadata: CheckpointMetadata, name: str) -> None:
    """Write the copy's ``_metadata``, which makes it a savepoint, behind its files.  Idempotent."""
    copy_files(job, metadata, name)
    copied = copied_metadata(job, metadata, name)
    job.store.create(job.paths.savepoint_metadata(name), encode_metadata(copied))
    log.info("savepoint written name=%s checkpoint_id=%d", name, metadata.checkpoint_id)


def copied_metadata(job: Job, metadata: CheckpointMetadata, name: str) -> CheckpointMetadata:
    """*metadata* with the files that ``copy_files`` writes in the place of its own."""
    return with_files(metadata, lambda handle: _copy_of(job, name, handle))


def copy_savepoint(job: Job, name: str, root: str) -> str:
    """Copy a savepoint of the job to another *root*, from which any job can restore it; its keys
    stay, as they are relative.  Idempotent.  Returns where it lies.

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


def savepoint_names(job: Job) -> list[str]:
    """Complete savepoints, in name order."""
    found = (
        (job.paths.savepoint_of(one.key), one.key) for one in job.store.list(job.paths.savepoints())
    )
    return [name for name, key in found if name and key == job.paths.savepoint_metadata(name)]
