"""A savepoint is a completed checkpoint plus a self-contained copy that a person owns.

The copy shares no file with the job and is never deleted by it; recovery of the job itself never
depends on the copy.  See docs/adr/0003-savepoints.md.
"""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sluice.core.completed import CheckpointMetadata
from sluice.core.handles import SegmentHandle
from sluice.errors import ConfigurationError, RestoreError
from sluice.protocol.records import encode_metadata
from sluice.runner.job import Job

log = logging.getLogger(__name__)

PARALLEL_COPIES = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")  # It becomes part of a key.


def check_savepoint_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"savepoint name {name!r} is not usable; use up to 128 of A-Z a-z 0-9 _ . - "
            "and start with a letter or digit"
        )
    return name


def require_free_name(job: Job, name: str) -> str:
    """The *name* of a savepoint to be; raises ConfigurationError when it is bad or taken."""
    if job.store.get(job.paths.savepoint_metadata(check_savepoint_name(name))) is not None:
        raise ConfigurationError(
            f"savepoint {name!r} exists in {job.store.root} and is never overwritten; "
            "choose another name"
        )
    return name


def export_savepoint(job: Job, metadata: CheckpointMetadata, name: str) -> None:
    """Copy every file of the checkpoint, then write the copy's ``_metadata`` last.  Idempotent."""
    moved = {
        handle.key: replace(handle, key=job.paths.savepoint_file(name, handle.checksum))
        for handle in metadata.files
    }

    def copy(handle: SegmentHandle) -> None:
        raw = job.store.get(handle.key)
        if raw is None:
            raise RestoreError(f"{handle.key} is gone; savepoint {name!r} cannot be completed")
        job.store.put(moved[handle.key].key, raw)

    with ThreadPoolExecutor(PARALLEL_COPIES) as pool:
        list(pool.map(copy, {handle.key: handle for handle in metadata.files}.values()))
    copied = _relocate(metadata, moved)
    job.store.create(job.paths.savepoint_metadata(name), encode_metadata(copied))
    log.info("savepoint written name=%s checkpoint_id=%d", name, metadata.checkpoint_id)


def savepoint_names(job: Job) -> list[str]:
    """Complete savepoints, in name order."""
    prefix = job.paths.savepoint("")[:-1]
    names = []
    for listed in job.store.list(prefix):
        name, _, leaf = listed.key.removeprefix(prefix).partition("/")
        if leaf == "_metadata":
            names.append(name)
    return names


def _relocate(metadata: CheckpointMetadata, moved: dict[str, SegmentHandle]) -> CheckpointMetadata:
    stages = tuple(
        replace(
            stage,
            subtasks=tuple(
                replace(
                    subtask,
                    output=(),
                    state=tuple(
                        replace(h, segment=moved.get(h.segment.key, h.segment))
                        for h in subtask.state
                    ),
                )
                for subtask in stage.subtasks
            ),
        )
        for stage in metadata.stages
    )
    sources = tuple(
        replace(cut, table=moved[cut.table.key]) if cut.table is not None else cut
        for cut in metadata.sources
    )
    return replace(metadata, stages=stages, sources=sources)
