"""The check that a ``_metadata`` names only files that belong to its job.

``_metadata`` may have been copied here, or written, by another program.  A restore reads the files
that it names, and they are deleted when it is subsumed, so a foreign key is refused before either.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice.core.completed import CheckpointMetadata
from sluice.core.handles import SegmentHandle
from sluice.errors import ProtocolViolation
from sluice.protocol.names import is_key
from sluice.protocol.paths import PipelinePaths


def check_files(
    metadata: CheckpointMetadata, key: str, paths: PipelinePaths, savepoint: str | None
) -> None:
    """Check the files that *metadata* names.

    A checkpoint names files of its job, and files of other roots, which are never deleted; a
    *savepoint* names files of its own folder only.

    Raises:
        ProtocolViolation: the ``_metadata`` at *key* names another one.
    """
    for handle in _all_files(metadata):
        if savepoint is not None:
            is_own = not handle.root and paths.savepoint_of(handle.key) == savepoint
        elif handle.root:
            is_own = True
        else:
            is_checkpoints = paths.checkpoint_of(handle.key) is not None
            is_own = is_checkpoints or paths.savepoint_of(handle.key) is not None
        if not (is_own and is_key(handle.key)):
            place = f"{handle.root}/{handle.key}" if handle.root else handle.key
            raise ProtocolViolation(
                f"{key} names {place!r}, which is no file of {_owner(paths, savepoint)}; it was "
                "not written by sluice: restore another one"
            )


def _all_files(metadata: CheckpointMetadata) -> Iterator[SegmentHandle]:
    yield from metadata.files
    for stage in metadata.stages:
        for subtask in stage.subtasks:
            yield from (handle for handle in subtask.output if handle.key)


def _owner(paths: PipelinePaths, savepoint: str | None) -> str:
    return f"savepoint {savepoint!r}" if savepoint is not None else f"job {paths.pipeline!r}"
