"""``SavepointWriter``: a new savepoint out of an existing snapshot, or out of rows alone.

Flink's class of that name.  What it writes is a savepoint like any other: self-contained, never
overwritten, complete as soon as its name means it, which is written last; ``restore``
takes it with its usual checks.  The snapshot that it is made of is only read.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import msgspec

from sluice.coordinator.notifications import hold, hold_of
from sluice.coordinator.savepoints import (
    copied_metadata,
    copy_files,
    publish,
    require_free_name,
    require_outside,
)
from sluice.core.completed import CheckpointMetadata, StageState
from sluice.core.configuration import CheckpointType
from sluice.core.event_time import with_activity
from sluice.core.handles import SegmentHandle
from sluice.core.ids import FIRST_CHECKPOINT_ID, NO_GENERATION, SavepointId
from sluice.core.plan import SourceCut
from sluice.core.transitions import Fingerprint
from sluice.declaration.arguments import checked_arguments, checked_methods
from sluice.declaration.checkpointing import fixed_configuration
from sluice.declaration.fingerprints import fingerprints
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import load_pipeline
from sluice.errors import ConfigurationError
from sluice.job import job as jobs
from sluice.job.job import Job, new_life, new_token
from sluice.job.places import keeps_copies, open_source
from sluice.job.snapshots import LATEST
from sluice.local.savepoint_tables import (
    Function,
    NewTable,
    RewrittenTable,
    SessionFactory,
    StageChanges,
    StateRows,
    StoreSegment,
    Tables,
    bootstrap_table,
    kept_stages,
    readers_of,
    require_stateful,
    resolved_params,
    rewrite_table,
    state_tables,
    with_new_stages,
    with_tables,
)
from sluice.spark.session import local_session
from sluice.state.cache import SegmentCache
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, verify_store
from sluice.store.savepoints import SavepointStore
from sluice.surface.differences import SnapshotName, open_snapshot
from sluice.surface.state import only_name, table_names

log = logging.getLogger(__name__)

Starts = Mapping[str, Mapping[str, int]]
"""By source and partition, the offset of the first record to read."""


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


@checked_arguments
def open_job(pipeline: Pipeline | str, root: str, *, endpoint_url: str | None = None) -> Job:
    """The job of a pipeline, or of one that the project declares under this uid; nothing is read.

    *endpoint_url* names an S3 server other than AWS.

    Raises:
        ConfigurationError: there is no such pipeline, or *root* is no root.
    """
    declared = load_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    return jobs.open_job(declared, StoreLocation(root=root, endpoint_url=endpoint_url))


@checked_methods()
class SavepointWriter:
    """Collects changes; ``write`` makes them, and reads and writes nothing before.

    Every method but ``write`` returns the writer, and none changes the snapshot it is made of.
    """

    def __init__(
        self,
        job: Job,
        base: CheckpointMetadata,
        params: Mapping[str, str],
        session: SessionFactory,
    ) -> None:
        """See the two class methods, which know what *base* is."""
        self._job = job
        self._base = base
        self._params = params
        self._session = session
        self._changes: dict[str, StageChanges] = {}

    @classmethod
    def from_existing_savepoint(
        cls,
        job: Job,
        snapshot: str,
        *,
        root: str | None = None,
        pipeline: str | None = None,
        params: Mapping[str, str] | None = None,
        session: SessionFactory = local_session,
    ) -> Self:
        """A writer on a savepoint by name, a retained checkpoint by id, or ``latest``.

        *root* is another root where it lies, *pipeline* the uid there, if another.  Its life, its
        id, positions of sources, watermarks, rows in flight and versions of tables stay those of
        the snapshot.  *session* opens a Spark where only Spark knows a stage's columns.

        Raises:
            ConfigurationError: there is no such checkpoint, or its commit is owed.
            RestoreError: there is no such savepoint, or its ``_metadata`` is gone.
            ProtocolViolation: its ``_metadata`` is damaged, or names files that are not its own.
        """
        found = open_snapshot(job, SnapshotName(named=snapshot, root=root, pipeline=pipeline))
        if root is None and (snapshot == LATEST or snapshot.isdecimal()):
            done = job.state().completed_checkpoint(found.checkpoint_id)
            if done is not None and not done.is_committed:
                raise ConfigurationError(
                    f"checkpoint {found.checkpoint_id} is not committed yet, so its tables may "
                    "still change; try again once it is"
                )
        kind = found.type if found.type.is_savepoint else CheckpointType.SAVEPOINT
        base = replace(found, pipeline=job.pipeline.uid, type=kind)
        return cls(job, base, params or {}, session)

    @classmethod
    def new_savepoint(
        cls,
        job: Job,
        *,
        starts: Starts | None = None,
        params: Mapping[str, str] | None = None,
        session: SessionFactory = local_session,
    ) -> Self:
        """A writer on the empty state: sources begin as they are declared, or at *starts*, an
        offset by source and partition.

        Raises:
            ConfigurationError: a start is of no source, or is no offset of it.
        """
        resolved = resolved_params(job, params or {})
        base = CheckpointMetadata(
            pipeline=job.pipeline.uid,
            life=new_life(),
            checkpoint_id=FIRST_CHECKPOINT_ID,
            parent=None,
            generation=NO_GENERATION,
            type=CheckpointType.SAVEPOINT,
            triggered_at_ms=job.now_ms(),
            processing_time_ms=job.now_ms(),
            drains=False,
            sources=tuple(
                _cut(job, uid, offsets, resolved) for uid, offsets in (starts or {}).items()
            ),
            stages=(),
            committables=(),
            fingerprints=fingerprints(job.pipeline, resolved),
        )
        return cls(job, base, params or {}, session)

    def transform(self, stage: str, function: Function, table: str | None = None) -> Self:
        """Put the rows that *function* gives in the place of those of a table.

        It is called with frames of a quarter of a million rows at most, unless a key has more; each
        has all rows of its keys.  It gives frames of the same columns.  What it leaves out is
        dropped; keys it cannot change.  A stage with one table needs no name for it.

        Raises:
            ConfigurationError: the snapshot has no such table, or the pipeline no such stage.
        """
        require_stateful(self._job, stage)
        names = self.tables(stage)
        changes = self._changes.setdefault(stage, StageChanges())
        if changes.is_removed or changes.rows:
            raise ConfigurationError(
                f"the state of stage {stage!r} is removed or bootstrapped already, so there is "
                "nothing to transform"
            )
        changes.functions.setdefault(only_name(names, stage, table), []).append(function)
        return self

    def remove(self, stage: str) -> Self:
        """Remove the keyed state of a stage (Flink's ``removeOperator``).

        Of a declared stage the watermark and the rows that are in flight to it stay; one that is
        not declared any more goes as a whole.

        Raises:
            ConfigurationError: the snapshot has no such stage.
        """
        if self._base.stage(stage) is None:
            known = ", ".join(state.uid for state in self._base.stages) or "none"
            raise ConfigurationError(f"the snapshot has no stage {stage!r}; it has {known}")
        self._changes[stage] = StageChanges(is_removed=True)
        return self

    def bootstrap(self, stage: str, rows: StateRows, table: str | None = None) -> Self:
        """Give a stage without keyed state the *rows* of one of its tables (Flink's
        ``withOperator``): a frame, an iterable of frames, a Parquet file or a folder of them.

        Raises:
            ConfigurationError: the snapshot has state of that stage, which is to be removed first.
        """
        require_stateful(self._job, stage)
        before = self._base.stage(stage)
        changes = self._changes.setdefault(stage, StageChanges())
        if before is not None and before.has_state and not changes.is_removed:
            raise ConfigurationError(
                f"the snapshot has state of stage {stage!r} already; remove it first"
            )
        if table in changes.rows:
            raise ConfigurationError(f"stage {stage!r} is given the rows of one table twice")
        changes.rows[table] = rows
        return self

    def tables(self, stage: str) -> tuple[str, ...]:
        """The tables of which the snapshot has rows of *stage*.

        Raises:
            ConfigurationError: there are none.
        """
        found = self._base.stage(stage)
        names = table_names(found) if found is not None else ()
        if not names:
            raise ConfigurationError(f"the snapshot has no keyed state of stage {stage!r}")
        return names

    def write(self, name: str, *, root: str | None = None) -> WrittenSavepoint:
        """Write the savepoint *name*, in the job's root or in another *root*.

        The name is reserved before the first file, and free again if the write fails; the files
        that it left, ``sluice gc`` deletes.

        Raises:
            ConfigurationError: the name is taken, *root* lies inside of a job, or rows cannot be
                those of their table; the message says which and why.
            CorruptSegment, RestoreError: a file of the snapshot is damaged, is gone, or is not
                readable as the stage is declared now.
        """
        job, changes = self._job, self._changes
        wanted = [uid for uid, change in changes.items() if change.functions or change.rows]
        schemas = state_tables(job, wanted, self._params, session=self._session)
        state = job.state()
        require_free_name(job, name, state, request_id="")
        target = job.store if root is None else require_outside(job, root)
        names, savepoint = SavepointStore(target, job.names), SavepointId(name, new_token())
        newest = names.newest(name)
        if newest is not None and not newest.is_gone:
            raise names.taken(name, newest)
        is_submitted = state.generation != NO_GENERATION
        if root is not None or not is_submitted:
            verify_store(target, job.names.probe(uuid.uuid4().hex))
        configuration = (
            state.configuration if is_submitted else fixed_configuration(job.pipeline.checkpointing)
        )
        keep = _kept_in(job, savepoint, target, configuration.inline_threshold_bytes)
        work = _Work(job=job, base=self._base, schemas=schemas, keep=keep)
        stages = with_new_stages(job, self._base, changes, configuration)
        is_held = root is None and is_submitted
        names.reserve(savepoint, self._base.checkpoint_id)
        try:
            made = [
                table for stage in stages for table in work.tables_of(stage, changes.get(stage.uid))
            ]
            kept = replace(
                self._base,
                stages=tuple(kept_stages(job, stages, changes)),
                fingerprints=self._fingerprints(),
            )
            copy_files(job, kept, savepoint, target)
            metadata = with_tables(copied_metadata(job, kept, savepoint), made)
            if is_held:
                hold(job, state, metadata.sources, hold_of(savepoint))
            publish(job, metadata, savepoint, target)
        except Exception:
            names.remove(savepoint)
            raise
        if is_held:  # The garbage collector may have released it: it was of no savepoint yet.
            hold(job, state, metadata.sources, hold_of(savepoint))
        log.info("savepoint written name=%s root=%s tables=%d", name, target.root, len(made))
        return WrittenSavepoint(
            name=name,
            uri=f"{target.root}/{job.names.savepoint(name)}",
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
            readers=readers_of(job.pipeline, [*changes]) if self._base.stages else (),
        )

    def _fingerprints(self) -> dict[str, Fingerprint]:
        """The fingerprints of the snapshot; of what was rewritten, those of the declaration."""
        before = self._base.fingerprints
        declared = fingerprints(self._job.pipeline, resolved_params(self._job, self._params))
        rewritten = {uid: of for uid, of in declared.items() if uid in self._changes}
        return declared | before | rewritten


def _cut(job: Job, uid: str, offsets: Mapping[str, int], params: Mapping[str, str]) -> SourceCut:
    """The cut of an epoch that would have ended at *offsets*, before which nothing is read."""
    streams = {node.uid: node for node in job.pipeline.stream_sources()}
    if uid not in streams:
        raise ConfigurationError(
            f"a start is given for {uid!r}, which is no stream source of {job.pipeline.uid!r}; "
            f"those are {', '.join(streams)}"
        )
    source = open_source(job, uid, params)
    if keeps_copies(source):
        raise ConfigurationError(
            f"a start is given for {uid!r}, which takes rows back, so the root needs copies of "
            "what lies before it; leave the start out"
        )
    barrier = source.plan((), max_records=None, parallelism=1, until=offsets)
    cut = SourceCut(
        uid=uid,
        position=barrier.position,
        exhausted=barrier.exhausted,
        partitions_end=source.partitions_end and streams[uid].idle_after_ms is None,
    )
    return with_activity(cut, barrier.waiting, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The tools for a savepoint's new tables; ``keep`` stores their segments."""

    job: Job
    base: CheckpointMetadata
    schemas: Mapping[str, Tables]
    keep: StoreSegment

    def tables_of(
        self, stage: StageState, changes: StageChanges | None
    ) -> list[tuple[RewrittenTable, NewTable]]:
        """The new tables of *stage*, written."""
        if changes is None:
            return []
        found: list[tuple[RewrittenTable, NewTable]] = []
        for table, functions in changes.functions.items():
            place = self._place(stage, table)
            handles = [
                sorted((h for h in subtask.state if h.table == table), key=lambda h: h.run)
                for subtask in stage.subtasks
            ]
            rewritten = rewrite_table(
                place,
                handles,
                functions,
                as_of_ms=self.base.processing_time_ms,
                cache=SegmentCache(self.job.location, self.job.store),
                keep=self.keep,
            )
            found.append((place, rewritten))
        for named, rows in changes.rows.items():
            only = (
                only_name([*self.schemas[stage.uid]], stage.uid, None) if named is None else named
            )
            place = self._place(stage, only)
            if place.table in {other.table for other, _ in found}:
                raise ConfigurationError(f"{place} is given its rows twice")
            found.append((place, bootstrap_table(place, rows, self.keep)))
        return found

    def _place(self, stage: StageState, table: str) -> RewrittenTable:
        tables = self.schemas[stage.uid]
        if table not in tables:
            raise ConfigurationError(
                f"stage {stage.uid!r}, as it is declared now, keeps no table {table!r}; it keeps "
                f"{', '.join(tables)}"
            )
        return RewrittenTable(
            stage=stage.uid,
            table=table,
            schema=tables[table],
            parallelism=stage.parallelism,
            max_parallelism=stage.max_parallelism,
            now_ms=self.base.processing_time_ms,
        )


def _kept_in(
    job: Job, savepoint: SavepointId, target: ObjectStore, threshold_bytes: int
) -> StoreSegment:
    """Stores a segment as a file of the savepoint, unless it is small enough for ``_metadata``."""

    def keep(segment: SegmentHandle, body: bytes) -> SegmentHandle:
        if len(body) < threshold_bytes:
            return segment
        key = job.names.savepoint_file(savepoint, segment.checksum)
        target.put(key, body)
        return replace(segment, key=key, inline=None)

    return keep
