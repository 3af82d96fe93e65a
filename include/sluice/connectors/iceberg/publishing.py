"""The transactions of an Iceberg sink, which publish or roll back rows, and change the note."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.data_files import described, fitted, footer
from sluice.connectors.iceberg.lineage import Lineage
from sluice.connectors.iceberg.mapping import FieldMapping
from sluice.connectors.iceberg.note import encoded, property_of
from sluice.connectors.iceberg.rewriting import Replaced, key_filter, replaced
from sluice.connectors.iceberg.staging import DELETES, REWRITE, Staging, file_name
from sluice.core.acks import Committable
from sluice.core.timeline import Timeline
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Transaction
    from pyiceberg.typedef import Record


@dataclass(frozen=True, slots=True)
class Publication:
    """One attempt to publish a checkpoint on top of the head that *lineage* was loaded with."""

    lineage: Lineage
    staging: Staging
    checkpoint_id: int
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
            for hit in replaced(table, self.lineage.head, keys, matching):
                gone.append(hit.old)
                added += self._kept(hit)
        copied = len(rows) > 0 and not any(self._is_staged(one) for one in added)
        marks = self.lineage.summary(self.checkpoint_id, are_copied=copied)
        with table.transaction() as transaction:
            self._change(transaction, added, gone, matching, marks)
            transaction.set_properties({property_of(self.lineage.identity): encoded(note)})

    def withdraw(self) -> None:
        """Delete the files that were written for a commit that failed."""
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

    def _kept(self, one: Replaced) -> Iterator[DataFile]:
        """The data files of a file's remaining rows, in the same partition if it still exists."""
        table = self.lineage.table
        if one.kept is None:
            return
        if one.old.spec_id != table.metadata.default_spec_id:
            yield from self._rewritten(one.kept)
            return
        rows = fitted(one.kept, table.schema(), ".".join(table.name()))
        file = file_name(self.checkpoint_id, f"{REWRITE}{secrets.token_hex(8)}.parquet")
        place = self.staging.location(file)
        self._written.append(place)
        size_bytes = self.staging.write(file, rows).size_bytes
        partition: Record = one.old.partition
        yield described(table.metadata, place, footer(table.io, place), size_bytes, partition)

    def _rewritten(self, rows: pa.Table) -> Iterator[DataFile]:
        """The data files of *rows*, written by pyiceberg into the table's present partitions."""
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        table = self.lineage.table
        for file in _dataframe_to_data_files(table.metadata, rows, table.io):
            self._written.append(file.file_path)
            yield file

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


def restore(lineage: Lineage, undone: tuple[int, ...], note: Timeline) -> None:
    """Roll the branch back to before the first of *undone*, if any, and write *note*, at once.

    Raises:
        CommitFailedException: the branch has moved, or the metadata changed: load it again.
        ConfigurationError: see ``Lineage.before``.
    """
    table = lineage.table
    marks = lineage.summary(None, through=note.through)
    back_to = lineage.before(undone) if undone else None
    with table.transaction() as transaction:
        if undone:
            _move(transaction, lineage.branch, back_to)
        with transaction.update_snapshot(marks, lineage.branch).fast_append():
            pass  # The head moves, so that commits on top of the old one are refused.
        transaction.set_properties({property_of(lineage.identity): encoded(note)})


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
