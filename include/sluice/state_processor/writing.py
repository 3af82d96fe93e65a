"""A savepoint's files, and at last its ``_metadata``, out of a snapshot and its changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from sluice.coordinator.holds import SAVEPOINT, hold
from sluice.coordinator.outside import require_outside
from sluice.coordinator.savepoints import copied_metadata, copy_files, require_free_name
from sluice.core.completed import CheckpointMetadata, StageState
from sluice.core.configuration import JobConfiguration
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import NO_GENERATION
from sluice.core.state import CoordinatorState
from sluice.declaration.job_configuration import fixed_configuration
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.protocol.records import encode_metadata
from sluice.state_processor.readers import readers_of
from sluice.state_processor.schemas import Tables
from sluice.state_processor.stages import (
    StageChanges,
    kept_stages,
    with_new_stages,
    with_tables,
)
from sluice.state_processor.tables import (
    Keep,
    NewTable,
    Place,
    bootstrap_table,
    rewrite_table,
)
from sluice.storage.object_store import Created, ObjectStore
from sluice.subtask.state.cache import SegmentCache

log = logging.getLogger(__name__)


class WrittenTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table that was rewritten or bootstrapped: its rows then and now."""

    stage: str
    table: str
    rows_before: int
    rows: int


class WrittenSavepoint(msgspec.Struct, frozen=True, kw_only=True):
    """``uri`` is where it lies; ``checkpoint`` the id behind which a job goes on.

    ``readers`` are stages that may have to be changed, too: see ``readers_of``.
    """

    name: str
    uri: str
    checkpoint: int
    files: int
    size_bytes: int
    tables: tuple[WrittenTable, ...]
    readers: tuple[str, ...] = ()


def write_savepoint(
    job: Job,
    base: CheckpointMetadata,
    changes: Mapping[str, StageChanges],
    schemas: Mapping[str, Tables],
    name: str,
    root: str | None,
) -> WrittenSavepoint:
    """See ``SavepointWriter.write``; *schemas* are of the stages that get rows."""
    state = job.state()
    require_free_name(job, name, state, request_id="")
    target = job.store if root is None else require_outside(job, root)
    key = job.paths.savepoint_metadata(name)
    if target.get(key) is not None:
        raise _taken(name, target)
    configuration = _configuration(job, state)
    work = _Work(
        job=job,
        base=base,
        schemas=schemas,
        keep=_kept_in(job, name, target, configuration.inline_threshold_bytes),
    )
    stages = with_new_stages(job, base, changes, configuration)
    made = [table for stage in stages for table in work.tables_of(stage, changes.get(stage.uid))]
    kept = replace(base, stages=tuple(kept_stages(job, stages, changes)))
    copy_files(job, kept, name, target)
    metadata = with_tables(copied_metadata(job, kept, name), made)
    if root is None:
        _hold(job, state, metadata, name)
    created = target.create(key, encode_metadata(metadata))  # Last: it is what makes it one.
    if not isinstance(created, Created):
        raise _taken(name, target)
    if root is None:  # The garbage collector may have released it: it was of no savepoint yet.
        _hold(job, state, metadata, name)
    log.info("savepoint written name=%s root=%s tables=%d", name, target.root, len(made))
    readers = readers_of(job.pipeline, [*changes]) if base.stages else ()
    return msgspec.structs.replace(_written(job, target, name, metadata, made), readers=readers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    job: Job
    base: CheckpointMetadata
    schemas: Mapping[str, Tables]
    keep: Keep

    def tables_of(
        self, stage: StageState, changes: StageChanges | None
    ) -> list[tuple[Place, NewTable]]:
        """The new tables of *stage*, written."""
        if changes is None:
            return []
        found: list[tuple[Place, NewTable]] = []
        for table, functions in changes.functions.items():
            place = self._place(stage, table)
            handles = [
                sorted((h for h in one.state if h.table == table), key=_run)
                for one in stage.subtasks
            ]
            rewritten = rewrite_table(
                place,
                handles,
                functions,
                as_of_ms=self.base.triggered_at_ms,
                cache=SegmentCache(self.job.location, self.job.store),
                keep=self.keep,
            )
            found.append((place, rewritten))
        for named, rows in changes.rows.items():
            place = self._place(stage, self._table(stage.uid, named))
            if place.table in {one.table for one, _ in found}:
                raise ConfigurationError(f"{place} is given its rows twice")
            found.append((place, bootstrap_table(place, rows, self.keep)))
        return found

    def _table(self, uid: str, named: str | None) -> str:
        names = [*self.schemas[uid]]
        if named is None and len(names) > 1:
            raise ConfigurationError(
                f"the state of stage {uid!r} has several tables; name one: {', '.join(names)}"
            )
        return names[0] if named is None else named

    def _place(self, stage: StageState, table: str) -> Place:
        tables = self.schemas[stage.uid]
        if table not in tables:
            raise ConfigurationError(
                f"stage {stage.uid!r}, as it is declared now, keeps no table {table!r}; it keeps "
                f"{', '.join(tables)}"
            )
        return Place(
            stage=stage.uid,
            table=table,
            schema=tables[table],
            parallelism=stage.parallelism,
            max_parallelism=stage.max_parallelism,
            now_ms=max(self.job.clock(), self.base.triggered_at_ms),
        )


def _kept_in(job: Job, name: str, target: ObjectStore, threshold_bytes: int) -> Keep:
    """A segment becomes a file of the savepoint, unless it is small enough for ``_metadata``."""

    def keep(segment: SegmentHandle, body: bytes) -> SegmentHandle:
        if len(body) < threshold_bytes:
            return segment
        key = job.paths.savepoint_file(name, segment.checksum)
        target.put(key, body)
        return replace(segment, key=key, inline=None)

    return keep


def _written(
    job: Job,
    target: ObjectStore,
    name: str,
    metadata: CheckpointMetadata,
    made: Iterable[tuple[Place, NewTable]],
) -> WrittenSavepoint:
    return WrittenSavepoint(
        name=name,
        uri=f"{target.root}/{job.paths.savepoint(name)}",
        checkpoint=metadata.checkpoint_id,
        files=len({handle.key for handle in metadata.files}),
        size_bytes=sum(handle.size_bytes for handle in metadata.files),
        tables=tuple(
            WrittenTable(
                stage=place.stage,
                table=place.table,
                rows_before=table.rows_before,
                rows=table.rows,
            )
            for place, table in made
        ),
    )


def _hold(job: Job, state: CoordinatorState, metadata: CheckpointMetadata, name: str) -> None:
    if state.generation != NO_GENERATION:
        hold(job, state, metadata.sources, SAVEPOINT + name)


def _configuration(job: Job, state: CoordinatorState) -> JobConfiguration:
    """The job's; of one that was never submitted what its declaration says."""
    if state.generation == NO_GENERATION:
        return fixed_configuration(job.pipeline.checkpointing)
    return state.configuration


def _taken(name: str, target: ObjectStore) -> ConfigurationError:
    return ConfigurationError(
        f"savepoint {name!r} exists in {target.root} and is never overwritten; choose another name"
    )


def _run(handle: StateHandle) -> int:
    return handle.run
