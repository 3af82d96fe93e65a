"""An Iceberg table as a sink: each checkpoint is published in one commit of the catalog.

Subtasks write data files into the table's own location; a commit makes a snapshot that names them,
and changes the note (``note.py``) in the same step.  Every commit, also one without rows and that
of a restore, makes a snapshot: the catalog compares the branch's head with the expected one, so a
commit that was overtaken is refused, loads the table again, and finds the other's note.

With an upsert key, older rows of the keys are deleted from their files in the same commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.contracts.sink import DELETED, RollBack, Unpublished
from sluice.connectors.contracts.timeline_note import named
from sluice.connectors.iceberg.catalog import CatalogTable, pauses
from sluice.connectors.iceberg.data_files import check_required, check_writable, fitted
from sluice.connectors.iceberg.lineage import Lineage, undone
from sluice.connectors.iceberg.mapping import of_table
from sluice.connectors.iceberg.note import noted
from sluice.connectors.iceberg.publishing import Publication, restore
from sluice.connectors.iceberg.staging import (
    DELETES,
    Staging,
    checkpoint_of,
    file_name,
    of_checkpoint,
)
from sluice.connectors.staging.staged_files import ATTEMPT_TOKEN, check_keys
from sluice.core.acks import Committable
from sluice.core.timeline import Recovery, Standing, Timeline, Writer
from sluice.errors import ConfigurationError, ProtocolViolation, StoreUnavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True)
class IcebergSink:
    """See ``Sink``.  *identity* names this sink in the table, which others may write, too."""

    uid: str
    place: CatalogTable
    identity: str
    upsert_key: tuple[str, ...] = ()
    create: bool = False
    branch: str = "main"

    def stage(
        self, table: pa.Table, *, checkpoint_id: int, subtask: int, attempt_token: str
    ) -> Committable | None:
        """See ``Sink.stage``.

        Raises:
            ConfigurationError: the rows do not fit the table, have no upsert key, or one twice.
        """
        assert ATTEMPT_TOKEN.fullmatch(attempt_token), f"not a file name: {attempt_token!r}"
        if table.num_rows == 0:
            return None
        check_keys(self.uid, self.upsert_key, table)
        is_delete = DELETED in table.column_names
        rows = table.drop_columns([DELETED]) if is_delete else table
        target = self._prepared(rows.schema)
        kind = DELETES if is_delete else ".parquet"
        file = file_name(checkpoint_id, f"{subtask:05d}-{attempt_token}{kind}")
        with self.place.failures():
            check_writable(target)
            schema = target.schema()
            if is_delete:
                rows, schema = rows.select(self.upsert_key), schema.select(*self.upsert_key)
            rows = fitted(rows, schema, self.place.name)
            return Staging(target, self.identity).stage(self.uid, file, of_table(rows, target))

    def check(
        self,
        parent: int | None,  # noqa: ARG002 - of ``Sink``
        schema: pa.Schema,
        committables: Sequence[Committable],  # noqa: ARG002
    ) -> None:
        """See ``Sink.check``: finds missing required columns; values are cast when staged."""
        table = self._found()
        if table is None:
            return
        with self.place.failures():
            check_writable(table)
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

        for _ in pauses():
            table, before = self._looked()
            with named(self._name):
                after = before.publishing(writer, checkpoint_id, parent)
            if after is None:
                break
            table = table or self._created(committables)
            publication = Publication(
                Lineage(table, self.branch, self.identity),
                Staging(table, self.identity),
                checkpoint_id,
                self.upsert_key,
            )
            try:
                with self.place.failures():
                    publication.publish(after, tuple(committables))
                break
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
            raise self._overtaken(f"checkpoint {checkpoint_id}")

    def discard_copied(self, committables: Sequence[Committable]) -> None:
        """Delete files of deleted keys, and files of rows if the snapshot says they were copied."""
        table = self._found()
        if table is None or not committables:
            return
        checkpoint_id = checkpoint_of(committables[0].file)
        copied = Lineage(table, self.branch, self.identity).has_copied(checkpoint_id)
        Staging(table, self.identity).discard(
            one.file for one in committables if copied or one.file.endswith(DELETES)
        )

    def damage_of(self, committables: Iterable[Committable]) -> Sequence[str]:
        """See ``Sink``.  Those of a table that is gone went with it, which the commit says."""
        if (table := self._found()) is None:
            return ()
        with self.place.failures():
            return Staging(table, self.identity).damage_of(committables)

    def is_published(self, checkpoint_id: int) -> bool:
        return self._noted().shows(checkpoint_id)

    @property
    def rolls_back(self) -> RollBack:
        return RollBack.ON_REQUEST

    def standing(self, life: str, version: int | None) -> Standing:
        return self._noted().standing(life, version)

    def is_empty(self) -> bool:
        table = self._found()
        return table is None or Lineage(table, self.branch, self.identity).is_empty()

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        """See ``Sink.recover``.

        Rolling back moves the branch to the snapshot before the first checkpoint that is undone,
        and keeps the snapshots.

        Raises:
            ConfigurationError: other writers committed in between, or a snapshot has expired.
        """
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

        for _ in pauses():
            table, before = self._looked()
            with named(self._name):
                after = before.recovered(writer, recovery)
            if after is None:
                return
            table = table or self._created(())
            lineage = Lineage(table, self.branch, self.identity)
            left_behind: tuple[int, ...] = ()
            if recovery.roll_back and not lineage.is_empty():
                left_behind = undone(before, recovery.version, self._name)
            try:
                with self.place.failures():
                    restore(lineage, left_behind, after)
            except (CommitFailedException, CommitStateUnknownException):
                continue
            return
        raise self._overtaken(f"the restore through checkpoint {recovery.through}")

    def describe(self, version: int) -> str:
        lineage = Lineage(self.place.load(), self.branch, self.identity)
        snapshot = lineage.of_checkpoint(version)
        if snapshot is None:
            return f"checkpoint {version} of {self.place.name}, whose snapshot has expired"
        return f"snapshot {snapshot.snapshot_id} of {self.place.name}"

    def abort(self, checkpoint_id: int) -> None:
        table = self._found()
        if table is None:
            return
        staging = Staging(table, self.identity)
        files = list(of_checkpoint(staging.listed(), checkpoint_id))
        if files and noted(table.properties, self.identity).shows(checkpoint_id):
            with self.place.failures():
                named = staging.named()
            files = [file for file in files if file not in named]
        staging.discard(files)

    def unpublished(self) -> Unpublished:
        """See ``Sink``.  Costs a request or two for each manifest.

        Files are listed before the table is loaded, so a file that is committed in between is
        named by a snapshot.
        """
        table = self._found()
        if table is None:
            return Unpublished(root=self.place.name, staged=(), newest_ms=0)
        staging = Staging(table, self.identity)
        listed = staging.listed()
        named: set[str] = set()
        if listed:
            with self.place.failures():
                named = Staging(self.place.load(), self.identity).named()
        return Unpublished(
            root=staging.folder,
            staged=tuple(one for one in listed if one.file not in named),
            newest_ms=max((one.modified_ms for one in listed), default=0),
        )

    def discard(self, files: Iterable[str]) -> None:
        if (table := self._found()) is not None:
            Staging(table, self.identity).discard(files)

    def _looked(self) -> tuple[Table | None, Timeline]:
        """The table to commit to, None if it does not exist yet, and its time line."""
        table = self._found()
        if table is None:
            return None, Timeline()
        if self.branch != "main" and self.branch not in table.metadata.refs:
            raise ConfigurationError(
                f"the Iceberg table {self.place.name} has no branch {self.branch!r}; create it"
            )
        return table, noted(table.properties, self.identity)

    def _created(self, committables: Sequence[Committable]) -> Table:
        """The table, created with the columns of the staged rows; without rows it has none."""
        rows = sorted(committables, key=lambda one: one.file.endswith(DELETES))
        table = self.place.create(None)
        if not rows:
            return table
        with self.place.failures():
            (found,) = Staging(table, self.identity).footers(rows[:1])
        return self._prepared(found.schema.to_arrow_schema())

    @property
    def _name(self) -> str:
        return f"Iceberg table {self.place.name}"

    def _noted(self) -> Timeline:
        table = self._found()
        return Timeline() if table is None else noted(table.properties, self.identity)

    def _found(self) -> Table | None:
        """The table; None if it does not exist yet."""
        return self.place.find() if self.create else self.place.load()

    def _prepared(self, schema: pa.Schema) -> Table:
        """The table, with columns: it may have been created by an epoch without rows."""
        from pyiceberg.exceptions import CommitFailedException

        if not self.create:
            return self.place.load()
        table = self.place.find() or self.place.create(schema)
        for _ in pauses():
            if table.schema().fields:
                return table
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
        raise self._overtaken("its first columns")

    def _overtaken(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"{what} could not be written to the Iceberg table {self.place.name}: other writers "
            "were always faster; try again, or have them commit less often"
        )
