"""The source of rows appended to an Iceberg table; its partitions are data files.

A position has at most two entries.  ``snapshots`` has as its offset the sequence number of the last
snapshot that was read to its end, and as its version that one's id.  A data file is there when the
cut lies in the snapshot after it: the files before it in order are read, those behind it are not.
So a position stays small, whatever the table's history.

``snapshots`` is sealed, as no row is read of it: the watermark waits for open files only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from sluice.connectors.contracts.source import (
    Barrier,
    SourceDefaults,
    SourcePosition,
    check_induced,
    offsets_by_partition,
)
from sluice.connectors.iceberg.appends import NOTHING, AddedFile, Appends, Step
from sluice.connectors.iceberg.catalog import CatalogTable
from sluice.connectors.iceberg.rows import arrow_schema, rows_of
from sluice.connectors.iceberg.tags import Tags
from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

SNAPSHOTS = "snapshots"
BASE = "base "  # The prefix of the id of a snapshot that is being read whole, and is not finished.


@dataclass(frozen=True, slots=True)
class _Cursor:
    """A position in the table: after the snapshot *version*, and *offset* rows into *file*."""

    sequence: int = 0
    version: str = NOTHING
    file: str = ""
    offset: int = 0
    is_done: bool = False

    def position(self) -> SourcePosition:
        entries = [
            PartitionOffset(
                partition=SNAPSHOTS,
                offset=self.sequence,
                records=0,
                sealed=True,
                version=self.version,
            )
        ]
        if self.file:
            entries.append(
                PartitionOffset(
                    partition=self.file,
                    offset=self.offset,
                    records=self.offset,
                    sealed=self.is_done,
                )
            )
        return tuple(sorted(entries, key=lambda entry: entry.partition))


@dataclass(frozen=True, slots=True)
class IcebergSource(SourceDefaults):
    """See ``Source``.  *start*: ``earliest``, ``latest`` or a snapshot's id, see the descriptor."""

    place: CatalogTable
    start: str = "earliest"
    columns: tuple[str, ...] = ()
    skip_overwrites: bool = False
    bounded: bool = False

    def __post_init__(self) -> None:
        if self.start not in ("earliest", "latest") and not self.start.isdecimal():
            raise ConfigurationError(
                f"the start {self.start!r} of Iceberg table {self.place.name} is unknown; write "
                "'earliest', 'latest', or a snapshot's id"
            )

    def schema(self) -> pa.Schema:
        return arrow_schema(self._projection(self.place.load()))

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """See ``Source.plan``; reads manifests.  An induced barrier names ``snapshots`` and a
        sequence number, and lies behind that snapshot.
        """
        assert max_records is None or max_records > 0
        assert parallelism > 0

        with self.place.failures():
            appends = Appends(self.place.load(), self.skip_overwrites)
            cursor = _parsed(position) if position else self._first(appends)
            steps = self._steps(appends, cursor)
            if until is not None:
                last = steps[-1].sequence if steps else cursor.sequence
                check_induced(self.place.name, until, {SNAPSHOTS: (cursor.sequence, last)})
                steps = [step for step in steps if step.sequence <= until.get(SNAPSHOTS, 0)]
            return self._cut(appends, cursor, steps, max_records, parallelism, until is not None)

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        with self.place.failures():
            table = self.place.load()
            location = _located(table, piece.partition)
            projection = self._projection(table)
            try:
                yield from rows_of(table, location, piece.start, piece.end, projection)
            except FileNotFoundError as error:
                raise ConfigurationError(
                    f"{location} of the Iceberg table {self.place.name} is gone; restore it, or "
                    "begin anew, and expire snapshots only when they are read"
                ) from error

    def hold(self, name: str, position: SourcePosition) -> None:
        """Tag the snapshot that was read last, and the one that is being read."""
        with self.place.failures():
            appends = Appends(self.place.load(), self.skip_overwrites)
            cursor = _parsed(position)
            ids = [int(cursor.version.removeprefix(BASE))] if cursor.version else []
            if cursor.file and not cursor.version.startswith(BASE):
                ids += [step.snapshot.snapshot_id for step in self._steps(appends, cursor)[:1]]
            Tags(self.place).keep(name, ids)

    def release(self, name: str) -> None:
        with self.place.failures():
            Tags(self.place).release(name)

    def held(self, prefix: str) -> tuple[str, ...]:
        with self.place.failures():
            return Tags(self.place).held(prefix)

    def _first(self, appends: Appends) -> _Cursor:
        """The first position of a source without one."""
        head = appends.head()
        if self.start == "latest":
            if head is None:
                return _Cursor()
            return _Cursor(head.sequence_number or 0, str(head.snapshot_id))
        base = appends.base(int(self.start) if self.start.isdecimal() else None)
        if base is None:
            return _Cursor()
        return _Cursor(base.sequence - 1, f"{BASE}{base.snapshot.snapshot_id}")

    def _steps(self, appends: Appends, cursor: _Cursor) -> list[Step]:
        if not cursor.version.startswith(BASE):
            return appends.after(cursor.sequence, cursor.version)
        base = appends.base(int(cursor.version.removeprefix(BASE)))
        assert base is not None
        return [base, *appends.after(base.sequence, str(base.snapshot.snapshot_id))]

    def _cut(
        self,
        appends: Appends,
        cursor: _Cursor,
        steps: Sequence[Step],
        max_records: int | None,
        parallelism: int,
        is_induced: bool,  # noqa: FBT001 - of one caller
    ) -> Barrier:
        parts: list[tuple[str, int, int]] = []
        missing = max_records
        rest = False
        for step in steps:
            if missing == 0:
                rest = any(appends.adds_rows(one) for one in steps[steps.index(step) :])
                break
            for file in self._unread(appends, step, cursor):
                start = cursor.offset if file.name == cursor.file else 0
                if missing == 0:
                    rest = True
                    break
                end = file.rows if missing is None else min(file.rows, start + missing)
                missing = None if missing is None else missing - (end - start)
                parts.append((file.name, start, end))
                cursor = replace(cursor, file=file.name, offset=end, is_done=end == file.rows)
            if rest or (cursor.file and not cursor.is_done):
                rest = True
                break
            cursor = _Cursor(step.sequence, str(step.snapshot.snapshot_id))
        longest = max(1, -(-sum(end - start for _, start, end in parts) // parallelism))
        left = [step for step in steps if step.sequence > cursor.sequence]
        return Barrier(
            position=cursor.position(),
            slices=tuple(
                Slice(partition=name, start=a, end=b, first_record=a, records=b - a)
                for name, start, end in parts
                for a, b in _ranges(start, end, longest)
            ),
            exhausted=self.bounded and not rest and not is_induced,
            is_backlog=rest,
            # Files of one snapshot may hold the same times, so the snapshot counts as a whole.
            waiting=(SNAPSHOTS,) if cursor.file else (),
            unread=replace(self._left(appends, cursor, left), is_least=is_induced),
        )

    def _left(self, appends: Appends, cursor: _Cursor, steps: Sequence[Step]) -> Unread:
        """What *steps* have behind *cursor*: of the first its files, of others their summaries."""
        rows: list[int | None] = [appends.rows(step) for step in steps[bool(cursor.file) :]]
        if cursor.file:
            files = self._unread(appends, steps[0], cursor)
            begun = 0 if cursor.is_done else cursor.offset
            rows.append(sum(file.rows for file in files) - begun)
        known = [count for count in rows if count is not None]
        return Unread(
            partitions=sum(1 for count in rows if count != 0),
            records=sum(known) if len(known) == len(rows) else None,
        )

    def _unread(self, appends: Appends, step: Step, cursor: _Cursor) -> list[AddedFile]:
        """The files of *step* from the one of the cursor on."""
        files = appends.files(step)
        if not cursor.file:
            return files
        names = [file.name for file in files]
        if cursor.file not in names or files[names.index(cursor.file)].rows < cursor.offset:
            raise ConfigurationError(
                f"{cursor.file} was read to row {cursor.offset} and is not in snapshot "
                f"{step.snapshot.snapshot_id} of the Iceberg table {self.place.name} any more: the "
                "table was made anew; begin anew, too"
            )
        return files[names.index(cursor.file) + cursor.is_done :]

    def _projection(self, table: Table) -> Schema:
        schema = table.schema()
        if not self.columns:
            return schema
        known = [field.name for field in schema.fields]
        if missing := [column for column in self.columns if column not in known]:
            raise ConfigurationError(
                f"the Iceberg table {self.place.name} has no column {missing[0]!r}; it has "
                f"{', '.join(known)}"
            )
        return schema.select(*self.columns)


def _parsed(position: SourcePosition) -> _Cursor:
    entries = offsets_by_partition(position)
    read = entries.pop(SNAPSHOTS)
    assert len(entries) <= 1, "at most one file is read in part"
    cursor = _Cursor(read.offset, read.version)
    for file in entries.values():
        cursor = replace(cursor, file=file.partition, offset=file.offset, is_done=file.sealed)
    return cursor


def _located(table: Table, name: str) -> str:
    is_absolute = "://" in name or name.startswith("/")
    return name if is_absolute else f"{table.location().rstrip('/')}/{name}"


def _ranges(start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Cut rows into nearly equal ranges of about *longest*, or fewer."""
    pieces = -(-(end - start) // longest)
    yield from pairwise(start + (end - start) * piece // pieces for piece in range(pieces + 1))
