"""The transactions of a sink: a checkpoint's rows and the note, or a restore and the note."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.connectors.iceberg.data_files import described, fitted, footer
from sluice.connectors.iceberg.lineage import Lineage
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
    """One attempt to publish a checkpoint on top of the head that *lineage* has seen."""

    lineage: Lineage
    staging: Staging
    checkpoint_id: int
    upsert_key: tuple[str, ...] = ()
    _written: list[str] = field(default_factory=list[str])

    def publish(self, note: Timeline, committables: Sequence[Committable]) -> None:
        """In one commit: the rows, and *note* of them.

        Unpartitioned, the staged files become the table's; of a partitioned table pyiceberg writes
        them anew, one staged file in memory at a time and each a snapshot of the same commit.

        Raises:
            CommitFailedException: the branch has moved, or the metadata changed; look again.
            ProtocolViolation: something staged is missing, or is not what it was.
        """
        rows = sorted(
            (one for one in committables if not one.file.endswith(DELETES)),
            key=lambda one: one.file,
        )
        table = self.lineage.table
        is_whole = table.spec().is_unpartitioned()
        added = [*self._added(rows)] if is_whole else []
        gone: list[DataFile] = []
        rest: list[pa.Table] = []
        matching: BooleanExpression | None = None
        if self.upsert_key and committables:
            keys = self._keys(committables)
            matching = key_filter(keys)
            for hit in replaced(table, self.lineage.head, keys, matching):
                gone.append(hit.old)
                self._keep(hit, added, rest)
        marks = self.lineage.summary(self.checkpoint_id)
        with table.transaction() as transaction:
            self._change(transaction, added, gone, matching, marks)
            for kept in rest:
                transaction.append(kept, marks, self.lineage.branch)
            for one in [] if is_whole else rows:
                transaction.append(self.staging.read(one), marks, self.lineage.branch)
            transaction.set_properties({property_of(self.lineage.identity): encoded(note)})

    def withdraw(self) -> None:
        """Delete what was rewritten for a commit that did not happen."""
        self.staging.discard(self._written)

    def _added(self, rows: Sequence[Committable]) -> Iterator[DataFile]:
        metadata = self.lineage.table.metadata
        for one, found in zip(rows, self.staging.footers(rows), strict=True):
            yield described(metadata, self.staging.location(one.file), found, one.size_bytes)

    def _keys(self, committables: Sequence[Committable]) -> pa.Table:
        """The keys of all rows that come and go."""
        import pyarrow as pa

        schema = self.lineage.table.schema().select(*self.upsert_key)
        name = ".".join(self.lineage.table.name())
        tables = [
            self.staging.read(one, columns=self.upsert_key)
            for one in sorted(committables, key=lambda one: one.file)
        ]
        return pa.concat_tables([fitted(table, schema, name) for table in tables])

    def _keep(self, one: Replaced, added: list[DataFile], rest: list[pa.Table]) -> None:
        """Write what stays of a file, into the same partition where that is still one."""
        table = self.lineage.table
        if one.kept is None:
            return
        if one.old.spec_id != table.metadata.default_spec_id:
            rest.append(one.kept)
            return
        rows = fitted(one.kept, table.schema(), ".".join(table.name()))
        file = file_name(self.checkpoint_id, f"{REWRITE}{secrets.token_hex(8)}.parquet")
        self._written.append(file)
        size_bytes = self.staging.write(file, rows)
        place = self.staging.location(file)
        partition: Record = one.old.partition
        added.append(
            described(table.metadata, place, footer(table.io, place), size_bytes, partition)
        )

    def _change(
        self,
        transaction: Transaction,
        added: Sequence[DataFile],
        gone: Sequence[DataFile],
        matching: BooleanExpression | None,
        marks: dict[str, str],
    ) -> None:
        """One snapshot; also where nothing changes, for the head has to move."""
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
    """In one commit: put the branch back to before the first of *undone*, if there are any, and
    leave *note*.

    Raises:
        CommitFailedException: the branch has moved, or the metadata changed; look again.
        ConfigurationError: see ``Lineage.before``.
    """
    table = lineage.table
    marks = lineage.summary(None, through=note.through)
    back_to = lineage.before(undone) if undone else None
    with table.transaction() as transaction:
        if undone:
            _move(transaction, lineage.branch, back_to)
        with transaction.update_snapshot(marks, lineage.branch).fast_append():
            pass  # The head moves, so that whoever looked before is refused.
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
