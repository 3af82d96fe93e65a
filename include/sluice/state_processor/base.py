"""The snapshot that a new savepoint is made of: an existing one, or the empty state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sluice.core.completed import CheckpointMetadata
from sluice.core.ids import FIRST_CHECKPOINT_ID, NO_GENERATION
from sluice.core.plan import SourceCut
from sluice.core.properties import CheckpointType
from sluice.errors import ConfigurationError
from sluice.job.job import Job, new_life
from sluice.job.places import open_source
from sluice.job.retained import LATEST
from sluice.views.snapshot_differences import SnapshotName, open_snapshot

Starts = Mapping[str, Mapping[str, int]]
"""By source and partition, the offset of the first record to read."""


def existing(job: Job, name: SnapshotName) -> CheckpointMetadata:
    """The snapshot as a savepoint of *job*: its life, its id and its barrier stay what they were.

    Raises:
        ConfigurationError: there is no such checkpoint, or its rows are not published yet.
        RestoreError: its ``_metadata`` is gone, or there is no such savepoint.
        ProtocolViolation: it is damaged, or was not written by sluice.
    """
    found = open_snapshot(job, name)
    if name.root is None and (name.named == LATEST or name.named.isdecimal()):
        done = job.state().completed_checkpoint(found.checkpoint_id)
        if done is not None and not done.is_committed:
            raise ConfigurationError(
                f"checkpoint {found.checkpoint_id} is not committed yet, so its tables may still "
                "change; try again once it is"
            )
    kind = found.type if found.type.is_savepoint else CheckpointType.SAVEPOINT
    return replace(found, pipeline=job.pipeline.uid, type=kind)


def empty(job: Job, starts: Starts, params: Mapping[str, str]) -> CheckpointMetadata:
    """The empty state, of a life of its own; sources without a start are read as they are declared.

    Raises:
        ConfigurationError: a start is of no source, or is no offset of it.
    """
    return CheckpointMetadata(
        pipeline=job.pipeline.uid,
        life=new_life(),
        checkpoint_id=FIRST_CHECKPOINT_ID,
        parent=None,
        generation=NO_GENERATION,
        type=CheckpointType.SAVEPOINT,
        triggered_at_ms=job.clock(),
        drains=False,
        sources=tuple(_cut(job, uid, offsets, params) for uid, offsets in starts.items()),
        stages=(),
        committables=(),
    )


def _cut(job: Job, uid: str, offsets: Mapping[str, int], params: Mapping[str, str]) -> SourceCut:
    """As if an epoch had ended at *offsets*: what lies before them is never read."""
    streams = {node.uid: node for node in job.pipeline.stream_sources()}
    if uid not in streams:
        raise ConfigurationError(
            f"a start is given for {uid!r}, which is no stream source of {job.pipeline.uid!r}; "
            f"those are {', '.join(streams)}"
        )
    source = open_source(job, uid, params)
    barrier = source.plan((), max_records=None, parallelism=1, until=offsets)
    return SourceCut(
        uid=uid,
        position=barrier.position,
        exhausted=barrier.exhausted,
        waiting=barrier.waiting,
        partitions_end=source.partitions_end and streams[uid].idle_after_ms is None,
    )
