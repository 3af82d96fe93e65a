"""A sink for a place outside that has transactions of its own: a database, a broker, Iceberg.

Rows are staged as files under the job's root, by the subtasks in parallel; when the checkpoint is
completed, one process hands them to the ``Target``, which makes them visible in one atomic step
together with a note of the checkpoint's id.  The note is what makes it exactly once: who comes
again, after a crash or beside another coordinator, finds it and does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sluice.connectors.sink import RollBack, Unpublished
from sluice.connectors.staged_files import DELETES, StagedFiles, deletes_first
from sluice.core.acks import Committable
from sluice.core.timeline import Recovery, Standing, Timeline, Writer
from sluice.errors import ProtocolViolation

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

    def schema(self) -> pa.Schema | None:
        """The columns of the rows, of those that are taken away if there are no others; None
        without any.  Reads a file.
        """
        for table in self.upserts():
            return table.schema
        for table in self.deletes():
            return table.schema
        return None

    def upserts(self) -> Iterator[pa.Table]:
        """Rows to be appended; with an upsert key they replace those of the same key."""
        return self._read(is_delete=False)

    def deletes(self) -> Iterator[pa.Table]:
        """Rows whose keys are to be taken away, without the column that says so."""
        from sluice.connectors.sink import DELETED

        return (table.drop_columns([DELETED]) for table in self._read(is_delete=True))

    def _read(self, *, is_delete: bool) -> Iterator[pa.Table]:
        for one in sorted(self.staged, key=deletes_first):
            if one.file.endswith(DELETES) == is_delete:
                yield self.files.read(
                    one.file, rows=one.rows, size_bytes=one.size_bytes, expected=one.checksum
                )


class Target(Protocol):
    """The place outside.  Each method may be called by several processes at once, and again."""

    @property
    def rolls_back(self) -> RollBack: ...

    def check(self, schema: pa.Schema) -> None:
        """Whether rows of *schema* can be published into the place as it is; see ``Sink.check``."""
        ...

    def check_rows(self, rows: pa.Table) -> None:
        """Whether the place can hold each value of rows that are about to be staged: what it could
        not would be owed for ever.  Called in the subtasks; it does not ask the place.

        Raises:
            ConfigurationError: it names the column and what to do.
        """
        ...

    def publish(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: EpochRows
    ) -> None:
        """In one atomic step make *rows* visible and note ``Timeline.publishing``; nothing if that
        is None.

        Raises:
            FencedError, TableMismatch: what ``Timeline.publishing`` raises.
            ConfigurationError: the rows do not fit.
            StoreUnavailable: try again.
        """
        ...

    def timeline(self) -> Timeline:
        """What is noted now; ``Timeline()`` in a place that nobody wrote to."""
        ...

    def is_empty(self) -> bool:
        """See ``Sink``."""
        ...

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        """In one atomic step note ``Timeline.recovered``, and with ``roll_back`` take away the rows
        of the ids that are shown after its version; nothing if that is None.  See ``Sink``.
        """
        ...

    def describe(self, version: int) -> str:
        """See ``Sink``."""
        ...


@dataclass(frozen=True, slots=True)
class StagedSink:
    """See ``Sink``; *files* are below the job's root, whatever the *target* is."""

    files: StagedFiles
    target: Target

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

    def check(self, parent: int | None, schema: pa.Schema) -> None:  # noqa: ARG002 - of ``Sink``
        self.target.check(schema)

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
                raise  # Else another process was faster, and has deleted what was staged.

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
        """What is staged for a published checkpoint is garbage, too: it was copied."""
        return self.files.unpublished(self.files.listed(), ())

    def discard(self, files: Iterable[str]) -> None:
        self.files.discard(files)
