"""An Iceberg table as a sink: each checkpoint is published in one commit of the catalog.

Subtasks write data files into the table's own location; a commit makes a snapshot that names them,
and changes the note of published checkpoints in the same step.  The note is the table's property
``sluice.timeline.{branch}``, which outlives the snapshots, and holds the branch's time line
(``staged_sink.encoded_note``), the table's uuid and the ids of the snapshots that wrote it last.

Properties stay when somebody rolls the branch back, empties or replaces it.  So the note is
believed only if the snapshot that wrote it is an ancestor of the branch's head; otherwise the
branch shows what its own history says (``BranchLineage.shown``).

Every commit, also one without rows and that of a restore, makes a snapshot: the catalog compares
the branch's head with the expected one, so a commit that was overtaken is refused, loads the table
again, and finds the other's note.

With an upsert key, older rows of the keys are deleted from their files in the same commit.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sluice.connectors.columns import remaining_rows
from sluice.connectors.iceberg.catalog import CatalogTable, may_arrive
from sluice.connectors.iceberg.data_files import (
    DELETES,
    REWRITE,
    THREADS,
    FieldMapping,
    Staging,
    check_required,
    check_writable,
    checkpoint_of_file,
    described,
    file_name,
    fitted,
    footer,
    of_table,
    partitioned,
)
from sluice.connectors.iceberg.source import projected_rows
from sluice.connectors.staged_files import check_keys, check_tokens
from sluice.connectors.staged_sink import (
    Note,
    attempts,
    decoded_note,
    encoded_note,
    errors_of_place,
    require_parent,
)
from sluice.core.answers import Attempt, Committable
from sluice.core.timeline import Recovery, Timeline, TimelineComparison, Writer
from sluice.declaration.places import DELETED, RollBack, Unpublished
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.store.object_store import in_parallel

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.typedef import Record

# The keys of the summary of each snapshot that the sink makes.
SINK = "sluice.sink"  # The sink's identity.
BRANCH = "sluice.branch"  # Whose time line has the checkpoint.
CHECKPOINT = "sluice.checkpoint-id"  # The published one; absent in the snapshot of a restore.
THROUGH = "sluice.through"  # The id up to which a restore fences older coordinators.
COPIED = "sluice.copied"  # "true" where the rows were copied from the staged files to others.
# The branch's snapshot before the commit, or NONE: pyiceberg forgets a snapshot's own parent when
# that one expires.
PARENT = "sluice.parent"
NONE = "none"

PROPERTY = "sluice.timeline."  # Of a table; the branch's name follows.
FIX = (
    "put it back from an older metadata file of the table, or remove it and restore the job with "
    "--accept-tables"
)
# The snapshots of the newest notes whose ids are known: a branch that was rolled back to one of
# them is known as such when its later history has expired, too.
SNAPSHOTS_KEPT = 16

MOST_VALUES = 200  # The most that pyiceberg compares with a file's bounds; of more it uses none.
# Room for 600 spans of ids of five digits in each metadata file; an aborted checkpoint begins one.
MAX_BYTES = 8_000


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """See ``Sink``.  *identity* names the files and snapshots of this sink, beside those of other
    tools; *at* is where the sink is in its job's root, see ``Writer.sink``.  *is_shared*:
    the identity is not derived from that, so that other jobs may have it; see ``Unpublished``.
    """

    uid: str
    place: CatalogTable
    identity: str
    at: str
    upsert_key: tuple[str, ...] = ()
    create: bool = False
    branch: str = "main"
    is_shared: bool = False

    def stage(self, table: pa.Table, by: Attempt) -> Committable | None:
        """See ``Sink.stage``.

        Raises:
            ConfigurationError: the rows do not fit the table, have no upsert key, or one twice.
        """
        check_tokens(by)
        if table.num_rows == 0:
            return None
        check_keys(self.uid, self.upsert_key, table)
        is_delete = DELETED in table.column_names
        rows = table.drop_columns([DELETED]) if is_delete else table
        target = self._prepared(rows.schema)
        kind = DELETES if is_delete else ".parquet"
        rest = f"{by.subtask:05d}-{by.attempt_token}{kind}"
        file = file_name(by.checkpoint_id, by.checkpoint_token, rest)
        with self.place.failures():
            check_writable(target, is_upserted=bool(self.upsert_key))
            schema = target.schema()
            if is_delete:
                rows, schema = rows.select(self.upsert_key), schema.select(*self.upsert_key)
            rows = fitted(rows, schema, self.place.name)
            return Staging(target, self.identity).stage(self.uid, file, of_table(rows, target))

    def check(
        self, parent: int | None, schema: pa.Schema, committables: Sequence[Committable]
    ) -> None:
        """See ``Sink.check``: finds missing required columns; values are cast when staged."""
        table, shown = self._table_and_timeline()
        id_ = checkpoint_of_file(committables[0].file)[0] if committables else None
        require_parent(shown, id_, parent, self.uid)
        if table is None:
            return
        with self.place.failures():
            check_writable(table, is_upserted=bool(self.upsert_key))
            if table.schema().fields:
                fitted(schema.empty_table(), table.schema(), self.place.name)
            check_required(table, schema.names, self.place.name)

    def commit(
        self,
        writer: Writer,
        checkpoint_id: int,
        parent: int | None,
        committables: Sequence[Committable],
    ) -> None:
        """See ``Sink.commit``.  Raises StoreUnavailable after a bounded number of lost races."""
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        for _ in self._attempts(f"checkpoint {checkpoint_id}"):
            table, before = self._table_and_timeline()
            with errors_of_place(self._name):
                after = before.publishing(replace(writer, sink=self.at), checkpoint_id, parent)
            if after is None:
                return
            table = table or self._created(committables)
            publication = Publication(
                BranchLineage(table, self.branch, self.identity),
                Staging(table, self.identity),
                checkpoint_id,
                checkpoint_of_file(committables[0].file)[1] if committables else "",
                self.upsert_key,
            )
            try:
                with self.place.failures():
                    publication.publish(after, tuple(committables))
            except CommitFailedException:
                publication.withdraw()
            except CommitStateUnknownException:
                pass  # The note shows whether the commit succeeded.
            except ConfigurationError:
                publication.withdraw()  # It is retried until a person has mended the table.
                raise
            except ProtocolViolation:
                publication.withdraw()
                if not self.is_published(checkpoint_id):
                    raise  # Otherwise another process has published it.
            else:
                return

    def discard_copied(self, committables: Sequence[Committable]) -> None:
        """Delete files of deleted keys, and files of rows if the snapshot says they were copied."""
        table = self._found()
        if table is None or not committables:
            return
        checkpoint_id, _ = checkpoint_of_file(committables[0].file)
        copied = BranchLineage(table, self.branch, self.identity).has_copied(checkpoint_id)
        Staging(table, self.identity).discard(
            one.file for one in committables if copied or one.file.endswith(DELETES)
        )

    def damage_of(self, committables: Iterable[Committable]) -> Sequence[str]:
        """See ``Sink``.  None where the table is gone, and the files with it: the commit fails."""
        if (table := self._found()) is None:
            return ()
        with self.place.failures():
            return Staging(table, self.identity).damage_of(committables)

    def is_published(self, checkpoint_id: int) -> bool:
        return self._timeline().shows(checkpoint_id)

    @property
    def rolls_back(self) -> RollBack:
        return RollBack.ON_REQUEST

    def compare(self, life: str, version: int | None) -> TimelineComparison:
        return self._timeline().compare(life, version, self.at)

    def is_empty(self) -> bool:
        table = self._found()
        return table is None or BranchLineage(table, self.branch, self.identity).is_empty()

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        """See ``Sink.recover``.

        Rolling back moves the branch to the snapshot before the first checkpoint that is undone,
        and keeps the snapshots.

        Raises:
            ConfigurationError: other writers committed in between, or a snapshot has expired.
        """
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        for _ in self._attempts(f"the restore through checkpoint {recovery.through}"):
            table, before = self._table_and_timeline()
            with errors_of_place(self._name):
                after = before.recovered(replace(writer, sink=self.at), recovery)
            if after is None:
                return
            table = table or self._created(())
            lineage = BranchLineage(table, self.branch, self.identity)
            undone: tuple[int, ...] = ()
            if recovery.roll_back and not lineage.is_empty():
                undone = self._undone(before, recovery.version)
            try:
                with self.place.failures():
                    restore_branch(lineage, undone, after)
            except (CommitFailedException, CommitStateUnknownException):
                continue
            return

    def describe(self, version: int) -> str:
        lineage = BranchLineage(self.place.load(), self.branch, self.identity)
        snapshot = lineage.of_checkpoint(version)
        if snapshot is None:
            return f"checkpoint {version} of {self.place.name}, whose snapshot has expired"
        return f"snapshot {snapshot.snapshot_id} of {self.place.name}"

    def abort(self, checkpoint_id: int, checkpoint_token: str) -> None:
        table = self._found()
        if table is None:
            return
        staging = Staging(table, self.identity)
        whose = (checkpoint_id, checkpoint_token)
        files = [
            one.file
            for one in staging.listed()
            if (one.checkpoint_id, one.checkpoint_token) == whose
        ]
        if files and BranchLineage(table, self.branch, self.identity).has_noted(checkpoint_id):
            with self.place.failures():
                in_snapshots = staging.named()
            files = [file for file in files if file not in in_snapshots]
        staging.discard(files)

    def unpublished(self) -> Unpublished:
        """See ``Sink``.  Costs a request or two for each manifest.

        Files are listed before the table is loaded, so a file that is committed in between is
        named by a snapshot.
        """
        table = self._found()
        if table is None:
            return Unpublished(
                root=self.place.name, is_shared=self.is_shared, staged=(), newest_ms=0
            )
        staging = Staging(table, self.identity)
        listed = staging.listed()
        in_snapshots: set[str] = set()
        if listed:
            with self.place.failures():
                in_snapshots = Staging(self.place.load(), self.identity).named()
        return Unpublished(
            root=staging.folder,
            is_shared=self.is_shared,
            staged=tuple(one for one in listed if one.file not in in_snapshots),
            newest_ms=max((one.modified_ms for one in listed), default=0),
        )

    def discard(self, files: Iterable[str]) -> None:
        if (table := self._found()) is not None:
            Staging(table, self.identity).discard(files)

    def _table_and_timeline(self) -> tuple[Table | None, Timeline]:
        """The table to commit to, None if it does not exist yet, and what its branch shows."""
        table = self._found()
        if table is None:
            return None, Timeline()
        if self.branch != "main" and self.branch not in table.metadata.refs:
            raise ConfigurationError(
                f"the Iceberg table {self.place.name} has no branch {self.branch!r}; create it"
            )
        return table, BranchLineage(table, self.branch, self.identity).timeline()

    def _created(self, committables: Sequence[Committable]) -> Table:
        """The table, created with the columns of the staged rows; without rows it has none."""
        rows = sorted(committables, key=lambda one: one.file.endswith(DELETES))
        table = self.place.create(None)
        if not rows:
            return table
        with self.place.failures():
            (found,) = Staging(table, self.identity).footers(rows[:1])
        return self._prepared(found.schema.to_arrow_schema())

    def _undone(self, note: Timeline, version: int | None) -> tuple[int, ...]:
        """The checkpoints after *version* that the table shows.

        Raises:
            ConfigurationError: the note has forgotten some of them.
        """
        if note.is_cut and (version or 0) < note.oldest:
            raise ConfigurationError(
                f"the {self._name} cannot be rolled back to checkpoint {version or 'nothing'}: its "
                f"note has forgotten which checkpoints it shows before {note.oldest}; restore "
                "without rolling back, or empty the table"
            )
        return tuple(note.after(version))

    @property
    def _name(self) -> str:
        return f"Iceberg table {self.place.name}"

    def _timeline(self) -> Timeline:
        return self._table_and_timeline()[1]

    def _found(self) -> Table | None:
        """The table; None if it does not exist yet."""
        return self.place.find() if self.create else self.place.load()

    def _prepared(self, schema: pa.Schema) -> Table:
        """The table, with columns: it may have been created by an epoch without rows."""
        from pyiceberg.exceptions import CommitFailedException

        if not self.create:
            return self.place.load()
        table = self.place.find() or self.place.create(schema)
        tries = self._attempts("its first columns")
        while not table.schema().fields:
            next(tries)
            try:
                # Without rows, a required column may be added.
                with (
                    self.place.failures(),
                    table.update_schema(allow_incompatible_changes=True) as update,
                ):
                    update.union_by_name(schema)
            except CommitFailedException:
                pass
            table = self.place.load()
        return table

    def _attempts(self, what: str) -> Iterator[None]:
        return attempts(f"{what} could not be written to the {self._name}")


@dataclass(frozen=True, slots=True)
class Publication:
    """One attempt to publish a checkpoint on top of the head that *lineage* was loaded with.

    Without staged files, which have the *checkpoint_token*, nothing is written either.
    """

    lineage: BranchLineage
    staging: Staging
    checkpoint_id: int
    checkpoint_token: str
    upsert_key: tuple[str, ...] = ()
    _written: list[str] = field(default_factory=list[str])

    def publish(self, note: Timeline, committables: Sequence[Committable]) -> None:
        """Publish the rows, and *note*, in one commit and one snapshot.

        A staged file becomes a data file if it has the table's present columns and the table has
        no partitions; else its rows are written again, one staged file in memory at a time.

        Raises:
            CommitFailedException: the branch has moved, or the metadata changed: load it again.
            ConfigurationError: the table was changed, and the rows do not fit any more.
            ProtocolViolation: a staged file is missing or changed.
        """
        ordered = sorted(committables, key=lambda one: one.file)
        rows = [one for one in ordered if not one.file.endswith(DELETES)]
        table = self.lineage.table
        added = [*self._added(rows)]
        gone: list[DataFile] = []
        matching: BooleanExpression | None = None
        if self.upsert_key and committables:
            keys = self._keys(ordered)
            matching = key_filter(keys)
            for replacement in _replaced(table, self.lineage.head, keys, matching):
                gone.append(replacement.old)
                added += self._kept(replacement)
        copied = len(rows) > 0 and not any(self._is_staged(one) for one in added)
        marks = self.lineage.summary(self.checkpoint_id, are_copied=copied)
        with table.transaction() as transaction:
            self._change(transaction, added, gone, matching, marks)
            self.lineage.write_note(transaction, note)

    def withdraw(self) -> None:
        """Delete the files that were written for a commit that failed, if it certainly did.

        The others are garbage if it never arrives; ``unpublished`` lists them.
        """
        if may_arrive(self.lineage.table):
            return
        for location in self._written:
            self.lineage.table.io.delete(location)

    def _added(self, rows: Sequence[Committable]) -> Iterator[DataFile]:
        """The data files of *rows*: all staged files, or all rewritten, never a mixture."""
        table = self.lineage.table
        footers = self.staging.footers(rows)
        mappings = [FieldMapping(table, one.schema.to_arrow_schema()) for one in footers]
        if table.spec().is_unpartitioned() and all(one.fits for one in mappings):
            for one, found in zip(rows, footers, strict=True):
                place = self.staging.location(one.file)
                yield described(table.metadata, place, found, one.size_bytes)
            return
        for one, mapping in zip(rows, mappings, strict=True):
            yield from self._rewritten(mapping.mapped(self.staging.read(one)))

    def _is_staged(self, file: DataFile) -> bool:
        below = f"{self.staging.folder}/"
        return file.file_path.startswith(below) and REWRITE not in file.file_path

    def _keys(self, committables: Sequence[Committable]) -> pa.Table:
        """The keys of all rows to write or delete, under the names that the table has for them."""
        import pyarrow as pa

        table = self.lineage.table
        name = ".".join(table.name())
        tables = []
        for one, found in zip(committables, self.staging.footers(committables), strict=True):
            names = FieldMapping(table, found.schema.to_arrow_schema()).names_now(self.upsert_key)
            keys = self.staging.read(one, columns=self.upsert_key).select([*self.upsert_key])
            keys = keys.rename_columns(names)
            tables.append(fitted(keys, table.schema().select(*names), name))
        return pa.concat_tables(tables)

    def _kept(self, replacement: Replaced) -> Iterator[DataFile]:
        """The data files of a file's remaining rows, in the same partition if it still exists."""
        table, old = self.lineage.table, replacement.old
        if replacement.kept is None:
            return
        if old.spec_id != table.metadata.default_spec_id:
            yield from self._rewritten(replacement.kept)
            return
        rows = fitted(replacement.kept, table.schema(), ".".join(table.name()))
        partition: Record = old.partition
        yield self._written_file(rows, partition)

    def _rewritten(self, rows: pa.Table) -> Iterator[DataFile]:
        """The data files of *rows*, one for each of the table's present partitions.

        pyiceberg does not write them: it makes null lists and maps empty.
        """
        table = self.lineage.table
        rows = fitted(rows, table.schema(), ".".join(table.name()))
        if table.spec().is_unpartitioned():
            yield self._written_file(rows, None)
            return
        yield from in_parallel(
            lambda part: self._written_file(part[1], part[0]),
            list(partitioned(table, rows)),
            THREADS,
        )

    def _written_file(self, rows: pa.Table, partition: Record | None) -> DataFile:
        table = self.lineage.table
        rest = f"{REWRITE}{secrets.token_hex(8)}.parquet"
        file = file_name(self.checkpoint_id, self.checkpoint_token, rest)
        place = self.staging.location(file)
        self._written.append(place)
        size_bytes = self.staging.write(file, rows).size_bytes
        return described(table.metadata, place, footer(table.io, place), size_bytes, partition)

    def _change(
        self,
        transaction: Transaction,
        added: Sequence[DataFile],
        gone: Sequence[DataFile],
        matching: BooleanExpression | None,
        marks: dict[str, str],
    ) -> None:
        """Make one snapshot, even without changes: the head has to move."""
        update = transaction.update_snapshot(marks, self.lineage.branch)
        if gone:
            assert matching is not None
            with update.overwrite() as overwrite:
                overwrite.delete_by_predicate(matching)
                for old in gone:
                    overwrite.delete_data_file(old)
                for new in added:
                    overwrite.append_data_file(new)
            return
        merges = transaction.table_metadata.properties.get("commit.manifest-merge.enabled")
        is_merging = (merges or "").lower() == "true"
        with update.merge_append() if is_merging else update.fast_append() as append:
            for new in added:
                append.append_data_file(new)


def restore_branch(lineage: BranchLineage, undone: tuple[int, ...], note: Timeline) -> None:
    """Roll the branch back to before the first of *undone*, if any, and write *note*, at once.

    Raises:
        CommitFailedException: the branch has moved, or the metadata changed: load it again.
        ConfigurationError: see ``BranchLineage.before``.
    """
    table = lineage.table
    marks = lineage.summary(None, through=note.through)
    back_to = lineage.before(undone) if undone else None
    with table.transaction() as transaction:
        if undone:
            _move(transaction, lineage.branch, back_to)
        with transaction.update_snapshot(marks, lineage.branch).fast_append():
            pass  # The head moves, so that commits on top of the old one are refused.
        lineage.write_note(transaction, note)


def _move(transaction: Transaction, branch: str, snapshot_id: int | None) -> None:
    from pyiceberg.table.update.snapshot import ManageSnapshots

    refs = ManageSnapshots(transaction)
    if snapshot_id is None:
        if branch != "main":
            raise ConfigurationError(
                f"the branch {branch!r} had no snapshot before, and cannot be emptied; restore "
                "without rolling back, or remove the branch and create it anew"
            )
        refs.remove_branch(branch)
    else:
        old = transaction.table_metadata.refs[branch]
        refs.create_branch(
            snapshot_id,
            branch,
            max_ref_age_ms=old.max_ref_age_ms,
            max_snapshot_age_ms=old.max_snapshot_age_ms,
            min_snapshots_to_keep=old.min_snapshots_to_keep,
        )
    refs.commit()


@dataclass(frozen=True, slots=True)
class Replaced:
    """A data file to replace: *kept* are the remaining rows of *old*; None if there are none."""

    old: DataFile
    kept: pa.Table | None


def key_filter(keys: pa.Table) -> BooleanExpression:
    """A filter for files that may have *keys*: by values, or by the range of the first column."""
    import pyarrow.compute as pc
    from pyarrow import types
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, In, LessThanOrEqual

    column = keys.column(0)
    name = keys.column_names[0]
    kind = column.type
    is_ordered = types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)
    if not is_ordered or column.null_count or not keys.num_rows:
        return AlwaysTrue()
    values = pc.unique(column)
    if len(values) <= MOST_VALUES:
        return In(term=name, values=set(values.to_pylist()))
    bounds = pc.min_max(column)
    return And(
        GreaterThanOrEqual(term=name, value=bounds["min"].as_py()),
        LessThanOrEqual(term=name, value=bounds["max"].as_py()),
    )


def _replaced(
    table: Table, head: Snapshot | None, keys: pa.Table, rows: BooleanExpression
) -> Iterator[Replaced]:
    """The data files of *head* with rows of *keys*, without these; *rows* filters the files.

    Copy on write, with one data file in memory at a time.  pyiceberg's own delete reads every file
    whole and builds one expression of all keys.  Here a file's key columns are read and joined with
    the keys; only a file with both deleted and remaining rows is read whole, to be written again.
    Null is a key like any other, as in every sink of sluice.
    """
    import polars as pl

    if head is None or not keys.num_rows:
        return
    deleted = pl.from_arrow(keys)
    assert isinstance(deleted, pl.DataFrame)
    deleted = deleted.unique()
    try:
        tasks = list(table.scan(row_filter=rows, snapshot_id=head.snapshot_id).plan_files())
    except NotImplementedError as error:
        raise ConfigurationError(
            f"the Iceberg table {'.'.join(table.name())} cannot be upserted: {error}; rewrite its "
            "data files, so that no delete files are left"
        ) from error
    for task in tasks:
        remaining = remaining_rows(_rows_of(table, task, deleted.columns), deleted)
        if remaining is None:
            continue
        if not remaining.any():
            yield Replaced(task.file, None)
        else:
            yield Replaced(task.file, _whole(table, task).filter(remaining.to_arrow()))


def _whole(table: Table, task: FileScanTask) -> pa.Table:
    """All columns of ``_rows_of``.

    pyiceberg's scan makes null lists and maps empty, so a table that has some is read by ours.

    Raises:
        ConfigurationError: ours cannot read the file.
    """
    import pyarrow as pa
    from pyiceberg.manifest import FileFormat
    from pyiceberg.types import ListType, MapType

    schema = table.schema()
    has_lists = any(
        isinstance(schema.find_type(id_), ListType | MapType) for id_ in schema.field_ids
    )
    if not has_lists:
        return _rows_of(table, task, schema.column_names)
    if task.delete_files or task.file.file_format is not FileFormat.PARQUET:
        raise ConfigurationError(
            f"{task.file.file_path} of the Iceberg table {'.'.join(table.name())} has delete files "
            "or is no Parquet, and pyiceberg would make its null lists and maps empty when it is "
            "written again; rewrite the table's data files, and try again"
        )
    rows = task.file.record_count
    return pa.Table.from_batches([*projected_rows(table, task.file.file_path, 0, rows, schema)])


def _rows_of(table: Table, task: FileScanTask, columns: Sequence[str]) -> pa.Table:
    """The rows of a file in order, without those that were deleted from it."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    schema = table.schema()
    scan = ArrowScan(
        table_metadata=table.metadata,
        io=table.io,
        projected_schema=schema.select(*columns),
        row_filter=AlwaysTrue(),
    )
    return scan.to_table([task])


@dataclass(frozen=True, slots=True)
class BranchLineage:
    """The snapshots of *branch* of *table*, and of these the ones that the sink *identity* made."""

    table: Table
    branch: str
    identity: str

    @property
    def head(self) -> Snapshot | None:
        return self.table.metadata.snapshot_by_name(self.branch)

    def note(self) -> Note | None:
        """The note of the branch; None if nobody has written one, or it is another table's.

        Raises:
            ProtocolViolation: it is of another format.
        """
        properties = self.table.properties
        name = property_of(self.branch)
        text = properties.get(name)
        if text is None:
            older = (key for key in sorted(properties) if is_older_note(key, properties[key]))
            if (name := next(older, "")) == "":
                return None
            text = properties[name]
        note = decoded_note(text, f"the property {name} of {self._name}", FIX)
        return note if note.table == str(self.table.metadata.table_uuid) else None

    def timeline(self) -> Timeline:
        """The branch's time line; see ``Target.timeline``."""
        note = self.note()
        if note is None:
            return Timeline()
        shown = self.shown(note)
        return note.timeline if shown is None else note.timeline.showing(shown)

    def has_noted(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint was published, also if the branch was put back since."""
        note = self.note()
        return note is not None and note.timeline.shows(checkpoint_id)

    def shown(self, note: Note) -> frozenset[int] | None:
        """The checkpoints in the history of the branch; None if *note* has them.

        Maintenance must not stop a job: where the snapshot that wrote the note has expired, and
        with it the history between it and the head, the note is believed, unless the history goes
        on at an older one.
        """
        from pyiceberg.table.snapshots import ancestors_of

        if not note.at:
            return None
        newest, *older = note.at
        known = [*ancestors_of(self.head, self.table.metadata)]
        if any(snapshot.snapshot_id == newest for snapshot in known):
            return None
        own = [snapshot for snapshot in known if self._is_own(snapshot)]
        if known and not own:
            parent = known[-1].parent_snapshot_id
            if parent == newest or not (parent in older or self._has_beside_refs(newest)):
                return None
        ids = {int(mark) for snapshot in own if (mark := _mark(snapshot, CHECKPOINT))}
        expired = (
            checkpoint_id
            for first, last in note.timeline.published
            for checkpoint_id in range(first, last + 1)
            if ids and checkpoint_id < min(ids)
        )
        return frozenset(ids) | frozenset(expired)

    def _is_own(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot is of the branch's time line, of whichever job that wrote it."""
        return _mark(snapshot, BRANCH) == self.branch

    def _has_beside_refs(self, snapshot_id: int) -> bool:
        """Whether the snapshot exists, though no branch or tag keeps it from expiry."""
        metadata = self.table.metadata
        return metadata.snapshot_by_id(snapshot_id) is not None and all(
            ref.snapshot_id != snapshot_id for ref in metadata.refs.values()
        )

    def write_note(self, transaction: Transaction, timeline: Timeline) -> None:
        """Have *transaction*, which has made a snapshot of the branch, change the note as well."""
        metadata = transaction.table_metadata
        head = metadata.snapshot_by_name(self.branch)
        assert head is not None
        before = self.note()
        older = () if before is None else before.at
        note = Note(
            timeline=timeline,
            table=str(metadata.table_uuid),
            at=(head.snapshot_id, *older)[:SNAPSHOTS_KEPT],
        )
        transaction.set_properties({property_of(self.branch): encoded_note(note, MAX_BYTES)})

    def summary(
        self,
        checkpoint_id: int | None,
        *,
        through: int | None = None,
        are_copied: bool = False,
    ) -> dict[str, str]:
        """The summary of the snapshots of a commit on top of the head."""
        head = self.head
        parent = NONE if head is None else str(head.snapshot_id)
        marks = {SINK: self.identity, BRANCH: self.branch, PARENT: parent}
        if checkpoint_id is not None:
            marks[CHECKPOINT] = str(checkpoint_id)
        if through is not None:
            marks[THROUGH] = str(through)
        if are_copied:
            marks[COPIED] = "true"
        return marks

    def is_empty(self) -> bool:
        """Whether the branch has no rows; False where its head does not count them."""
        return self.head is None or _mark(self.head, "total-records") == "0"

    def of_checkpoint(self, checkpoint_id: int) -> Snapshot | None:
        """The last snapshot of the checkpoint's commit; None if it has expired or never existed."""
        found = [
            one
            for one in self.table.metadata.snapshots
            if _mark(one, SINK) == self.identity and _mark(one, CHECKPOINT) == str(checkpoint_id)
        ]
        return max(found, key=lambda one: one.sequence_number or 0, default=None)

    def has_copied(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint's staged files were copied, and are garbage; False if unknown."""
        snapshot = self.of_checkpoint(checkpoint_id)
        return snapshot is not None and _mark(snapshot, COPIED) == "true"

    def before(self, undone: tuple[int, ...]) -> int | None:
        """The id of the snapshot before the first of *undone*; None if there was none.

        Raises:
            ConfigurationError: other writers' snapshots would be undone, too, or it has expired.
        """
        from pyiceberg.table.snapshots import ancestors_of

        wanted = {str(checkpoint_id) for checkpoint_id in undone}
        found: set[str] = set()
        others: list[Snapshot] = []
        for snapshot in ancestors_of(self.head, self.table.metadata):
            if self._is_own(snapshot):
                found.add(_mark(snapshot, CHECKPOINT))
                if wanted <= found:
                    self._check_foreign(others, undone)
                    return self._parent(snapshot)
            elif not _is_compaction(snapshot):
                others.append(snapshot)
        gone = sorted(int(one) for one in wanted - found)
        raise ConfigurationError(
            f"{self._name} cannot be rolled back: the snapshots of checkpoints "
            f"{', '.join(map(str, gone))} are not in the history of {self.branch} any more; "
            "restore without rolling back, or repair the table by hand"
        )

    def _parent(self, oldest: Snapshot) -> int | None:
        parent = _mark(oldest, PARENT)
        if parent == NONE:
            return None
        if self.table.metadata.snapshot_by_id(int(parent)) is None:
            raise ConfigurationError(
                f"{self._name} cannot be rolled back to snapshot {parent}, which has expired; "
                "restore without rolling back, or repair the table by hand"
            )
        return int(parent)

    def _check_foreign(self, others: list[Snapshot], undone: tuple[int, ...]) -> None:
        if not others:
            return
        names = ", ".join(
            f"{one.snapshot_id} ({one.summary.operation.value if one.summary else 'unknown'})"
            for one in reversed(others)
        )
        raise ConfigurationError(
            f"{self._name} cannot be rolled back behind checkpoint {undone[0]}: other writers' "
            f"snapshots would be lost: {names}; undo these first, or restore without rolling back"
        )

    @property
    def _name(self) -> str:
        return f"the Iceberg table {'.'.join(self.table.name())}"


def _mark(snapshot: Snapshot, key: str) -> str:
    return snapshot.summary.additional_properties.get(key, "") if snapshot.summary else ""


def _is_compaction(snapshot: Snapshot) -> bool:
    """Whether the snapshot rewrote files and changed no row."""
    from pyiceberg.table.snapshots import Operation

    return snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE


def property_of(branch: str) -> str:
    return f"{PROPERTY}{branch}"


def is_older_note(key: str, value: str) -> bool:
    """Whether a table's property is a note of an older format, which had one for each sink."""
    return key.startswith("sluice.") and not key.startswith(PROPERTY) and value.startswith('{"v":')
