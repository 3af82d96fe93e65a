"""``SavepointWriter``: a new savepoint out of an existing snapshot, or out of rows alone.

Flink's class of that name.  What it writes is a savepoint like any other: self-contained, never
overwritten, complete as soon as its ``_metadata`` is there, which is written last; ``restore``
takes it with its usual checks.  The snapshot that it is made of is only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from sluice.core.completed import CheckpointMetadata
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.spark.session import local_session
from sluice.state_processor.base import Starts, empty, existing
from sluice.state_processor.rows import Function, Rows
from sluice.state_processor.schemas import Session, require_stateful, resolved, state_tables
from sluice.state_processor.stages import StageChanges
from sluice.state_processor.writing import WrittenSavepoint, write_savepoint
from sluice.views.keyed_state import table_names
from sluice.views.snapshot_differences import SnapshotName


class SavepointWriter:
    """Collects changes; ``write`` makes them, and reads and writes nothing before.

    Every method but ``write`` returns the writer, and none changes the snapshot it is made of.
    """

    def __init__(
        self,
        job: Job,
        base: CheckpointMetadata,
        params: Mapping[str, str],
        session: Session,
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
        session: Session = local_session,
    ) -> Self:
        """A writer on a savepoint by name, a retained checkpoint by id, or ``latest``.

        *root* is another root where it lies, *pipeline* the uid there, if another.  Positions of
        sources, watermarks, rows in flight and versions of tables stay those of the snapshot.
        *session* opens a Spark where only Spark knows a stage's columns.

        Raises:
            ConfigurationError: there is no such checkpoint, or its commit is owed.
            RestoreError: there is no such savepoint, or its ``_metadata`` is gone.
            ProtocolViolation: its ``_metadata`` is damaged, or names files that are not its own.
        """
        base = existing(job, SnapshotName(named=snapshot, root=root, pipeline=pipeline))
        return cls(job, base, params or {}, session)

    @classmethod
    def new_savepoint(
        cls,
        job: Job,
        *,
        starts: Starts | None = None,
        params: Mapping[str, str] | None = None,
        session: Session = local_session,
    ) -> Self:
        """A writer on the empty state: sources begin as they are declared, or at *starts*, an
        offset by source and partition.

        Raises:
            ConfigurationError: a start is of no source, or is no offset of it.
        """
        base = empty(job, starts or {}, resolved(job, params or {}))
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
        changes.functions.setdefault(_chosen(stage, names, table), []).append(function)
        return self

    def remove(self, stage: str) -> Self:
        """Remove the keyed state of a stage (Flink's ``removeOperator``).

        Of a declared stage the watermark and the rows that are in flight to it stay; one that is
        not declared any more goes as a whole.

        Raises:
            ConfigurationError: the snapshot has no such stage.
        """
        if self._base.stage(stage) is None:
            known = ", ".join(one.uid for one in self._base.stages) or "none"
            raise ConfigurationError(f"the snapshot has no stage {stage!r}; it has {known}")
        self._changes[stage] = StageChanges(is_removed=True)
        return self

    def bootstrap(self, stage: str, rows: Rows, table: str | None = None) -> Self:
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

        Files without ``_metadata`` stay behind if it fails; ``sluice gc`` deletes them.

        Raises:
            ConfigurationError: the name is taken, *root* lies inside of a job, or rows cannot be
                those of their table; the message says which and why.
            CorruptSegment, RestoreError: a file of the snapshot is damaged, is gone, or is not
                readable as the stage is declared now.
        """
        wanted = [uid for uid, one in self._changes.items() if one.functions or one.rows]
        schemas = state_tables(self._job, wanted, self._params, session=self._session)
        return write_savepoint(self._job, self._base, self._changes, schemas, name, root)


def _chosen(stage: str, names: tuple[str, ...], table: str | None) -> str:
    if table is None and len(names) > 1:
        raise ConfigurationError(
            f"the state of stage {stage!r} has several tables; name one: {', '.join(names)}"
        )
    if table is not None and table not in names:
        raise ConfigurationError(
            f"the state of stage {stage!r} has no table {table!r}; it has {', '.join(names)}"
        )
    return names[0] if table is None else table
