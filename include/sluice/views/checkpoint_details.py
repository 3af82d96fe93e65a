"""The details of one retained checkpoint, read from its ``_metadata``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from sluice.core.completed import CheckpointMetadata, StageState
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.core.plan import SourceCut
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.places import open_sinks
from sluice.job.positions import position_of
from sluice.job.retained import why_not_retained


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
    """Each file once, in the order it is first named."""
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
            PartitionDetails(partition=one.partition, offset=one.offset, records=one.records)
            for one in position_of(job, cut)
        ],
        exhausted=cut.exhausted,
    )
