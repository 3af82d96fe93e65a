"""Targets of a restore that a person names: a savepoint, a snapshot in another root, or a path."""

from __future__ import annotations

from dataclasses import replace

from sluice.core.ids import CheckpointId
from sluice.core.plan import SnapshotOrigin
from sluice.core.restoring import FromOrigin
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job
from sluice.protocol.paths import PipelinePaths, SnapshotPath, parse_snapshot_path
from sluice.storage.journal import Journal


def savepoint_target(job: Job, name: str) -> FromOrigin:
    """Raises RestoreError when there is no such savepoint."""
    checkpoint_id = job.savepoint_metadata(name).checkpoint_id
    return FromOrigin(SnapshotOrigin(checkpoint_id=checkpoint_id, savepoint=name))


def foreign_target(
    job: Job,
    root: str,
    *,
    pipeline: str | None = None,
    checkpoint_id: CheckpointId | None = None,
    savepoint: str | None = None,
) -> FromOrigin:
    """A checkpoint of another *root*, by default its latest completed one, or a savepoint there.

    Raises:
        RestoreError: there is none.
    """
    uid = pipeline or job.pipeline.uid
    origin = SnapshotOrigin(
        checkpoint_id=checkpoint_id or CheckpointId(0),
        savepoint=savepoint,
        root=root,
        pipeline=uid,
    )
    if savepoint is not None:
        found = job.origin_metadata(origin).checkpoint_id
        return FromOrigin(replace(origin, checkpoint_id=found))
    if checkpoint_id is None:
        latest = Journal(job.store_at(root), PipelinePaths(uid)).load().state.latest_completed
        if latest is None:
            raise RestoreError(f"job {uid!r} has no completed checkpoint in {root}")
        return FromOrigin(replace(origin, checkpoint_id=latest.checkpoint_id))
    return FromOrigin(origin)


def pointed_at(job: Job, pointer: str) -> SnapshotPath:
    """The snapshot whose folder, or whose ``_metadata``, the *pointer* is: a URI, an absolute path
    of a file system, or a path below the job's own root (Flink's resolveCheckpoint).

    Raises:
        ConfigurationError: it has not the form of a snapshot's path.
    """
    found = parse_snapshot_path(pointer)
    if found is None or found.checkpoint_id == 0:
        raise ConfigurationError(
            f"{pointer!r} is not the path of a snapshot: write its folder, or the _metadata in it, "
            "as ROOT/PIPELINE/checkpoints/ID or ROOT/PIPELINE/savepoints/NAME; a copy has to lie "
            "under such a path, too, as its files are found by it"
        )
    return replace(found, root=_as_uri(found.root, job.store.root))


def _as_uri(root: str | None, own: str) -> str:
    if root is None:
        return own
    if root in ("", "file://"):
        return "file:///"
    if root.startswith("/"):
        return f"file://{root}"
    return root if "://" in root else f"{own.rstrip('/')}/{root}"
