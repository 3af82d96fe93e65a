"""``StagedSink``: a sink for a place with transactions: a database, a broker, Iceberg.

Rows are staged as files under the job's root, by the subtasks in parallel; when the checkpoint is
completed, the coordinator passes them to the ``Target``, which makes them visible in one atomic
step together with a note of the checkpoint's id.  The note makes it exactly once: a commit that is
repeated, after a crash or by another coordinator, finds the note and does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sluice.connectors.contracts.listener import CheckpointListener
from sluice.connectors.contracts.sink import RollBack, Unpublished
from sluice.connectors.staging.file_names import of_data
from sluice.connectors.staging.staged_files import DELETES, StagedFiles, deletes_first
from sluice.core.acks import Committable
from sluice.core.timeline import Recovery, Standing, Timeline, Writer
from sluice.errors import ConfigurationError, ProtocolViolation

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class EpochRows:
    """A checkpoint's rows, one file of a bounded number of rows at a time.

    Deletes come first: a row that is both deleted and written by a checkpoint stays.  With an
    upsert key, each key is in ``deletes`` at most once, and in ``upserts`` at most once.
    """

    files: StagedFiles
    staged: tuple[Committable, ...]

    @property
    def row_count(self) -> int:
        return sum(one.rows for one in self.staged)

    @property
    def checkpoint_id(self) -> int | None:
        """The checkpoint that staged the rows; None without any."""
        return of_data(self.staged[0].file) if self.staged else None

    def schema(self) -> pa.Schema | None:
        """The columns of the rows, or else of the deletes; None without either.  Reads a file."""
        for table in self.upserts():
            return table.schema
        for table in self.deletes():
            return table.schema
        return None

    def upserts(self) -> Iterator[pa.Table]:
        """Rows to be appended; with an upsert key they replace those of the same key."""
        return self._read(is_delete=False)

    def deletes(self) -> Iterator[pa.Table]:
        """Rows whose keys are to be deleted, without the column ``_deleted``."""
        from sluice.connectors.contracts.sink import DELETED

        return (table.drop_columns([DELETED]) for table in self._read(is_delete=True))

    def has_nulls(self, columns: Sequence[str]) -> bool:
        """Whether an upserted or appended row may have no value in one of *columns*, by what the
        ends of the staged files say of them: a ranged request or two for each.
        """
        files = [one for one in self.staged if columns and not one.file.endswith(DELETES)]
        return any(self.files.has_nulls(one.file, one.size_bytes, columns) for one in files)

    def _read(self, *, is_delete: bool) -> Iterator[pa.Table]:
        for one in sorted(self.staged, key=deletes_first):
            if one.file.endswith(DELETES) == is_delete:
                yield self.files.read(
                    one.file, rows=one.rows, size_bytes=one.size_bytes, expected=one.checksum
                )


class Target(Protocol):
    """A place with transactions.  Several processes may call each method at once, and repeat it."""

    @property
    def rolls_back(self) -> RollBack: ...

    def check(self, schema: pa.Schema, rows: EpochRows) -> None:
        """Check that *rows*, of *schema*, can be published into the place; a target whose place
        refuses values reads them.  See ``Sink.check``.
        """
        ...

    def check_rows(self, rows: pa.Table) -> None:
        """Check that the place can hold the values of rows before they are staged.

        Rows that it cannot hold could never be committed.  Called in the subtasks; it does not
        connect to the place.

        Raises:
            ConfigurationError: it cannot; the message names the column and the fix.
        """
        ...

    def publish(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: EpochRows
    ) -> None:
        """Make *rows* visible and store ``Timeline.publishing``, in one atomic step.

        It does nothing if that is None.

        Raises:
            FencedError, TableMismatch: as ``Timeline.publishing``.
            ConfigurationError: the rows do not fit.
            StoreUnavailable: try again.
        """
        ...

    def timeline(self) -> Timeline:
        """The time line; ``Timeline()`` in a place without any writes."""
        ...

    def is_empty(self) -> bool:
        """See ``Sink``."""
        ...

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        """Store ``Timeline.recovered``, in one atomic step; it does nothing if that is None.

        With ``roll_back`` the same step deletes the rows of ids after its version.  See ``Sink``.
        """
        ...

    def describe(self, version: int) -> str:
        """See ``Sink``."""
        ...


@dataclass(frozen=True, slots=True)
class StagedSink(CheckpointListener):
    """See ``Sink``; *files* are below the job's root for every *target*."""

    files: StagedFiles
    target: Target

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if isinstance(self.target, CheckpointListener):
            self.target.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        if isinstance(self.target, CheckpointListener):
            self.target.notify_checkpoint_aborted(checkpoint_id)

    @property
    def rolls_back(self) -> RollBack:
        return self.target.rolls_back

    def stage(
        self, table: pa.Table, *, checkpoint_id: int, subtask: int, attempt_token: str
    ) -> Committable | None:
        self.target.check_rows(table)
        return self.files.stage(
            table, checkpoint_id=checkpoint_id, subtask=subtask, attempt_token=attempt_token
        )

    def check(
        self,
        parent: int | None,  # noqa: ARG002 - of ``Sink``
        schema: pa.Schema,
        committables: Sequence[Committable],
    ) -> None:
        rows = EpochRows(self.files, tuple(committables))
        try:
            self.target.check(schema, rows)
        except (ConfigurationError, ProtocolViolation):
            checkpoint_id = rows.checkpoint_id
            if checkpoint_id is None or not self.is_published(checkpoint_id):
                raise  # Else its own rows are in its way, or the staged ones were copied.

    def commit(
        self,
        writer: Writer,
        checkpoint_id: int,
        parent: int | None,
        committables: Sequence[Committable],
    ) -> None:
        try:
            rows = EpochRows(self.files, tuple(committables))
            self.target.publish(writer, checkpoint_id, parent, rows)
        except ProtocolViolation:
            if not self.is_published(checkpoint_id):
                raise  # Otherwise another process has published them, and deleted the staged files.

    def discard_copied(self, committables: Sequence[Committable]) -> None:
        self.files.discard(one.file for one in committables)

    def damage_of(self, committables: Iterable[Committable]) -> list[str]:
        return self.files.damage_of(committables)

    def is_published(self, checkpoint_id: int) -> bool:
        return self.target.timeline().shows(checkpoint_id)

    def standing(self, life: str, version: int | None) -> Standing:
        return self.target.timeline().standing(life, version)

    def is_empty(self) -> bool:
        return self.target.is_empty()

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        self.target.recover(writer, recovery)

    def describe(self, version: int) -> str:
        return self.target.describe(version)

    def abort(self, checkpoint_id: int) -> None:
        self.files.discard(self.files.of_checkpoint(checkpoint_id))

    def unpublished(self) -> Unpublished:
        """See ``Sink``; files of a published checkpoint are garbage, too, as they were copied."""
        return self.files.unpublished(self.files.listed(), ())

    def discard(self, files: Iterable[str]) -> None:
        self.files.discard(files)
