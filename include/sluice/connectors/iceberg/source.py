"""The source of rows appended to an Iceberg table, or of its changes; its partitions are files.

The table is read snapshot by snapshot, and of each the files that it added, in a fixed order.
Snapshots are immutable, so a repeated plan finds the same files.  A compaction (``replace``)
changes no row and is skipped.  A snapshot that deletes or changes rows (``overwrite``, ``delete``)
cannot be read as appended rows, and is refused or, if that is declared, skipped.  With
``changes="rows"`` it is read: the rows that came and those that went, each with its weight.

What was read is an ancestor of the table's head, or the table is refused.  ``CREATE OR REPLACE
TABLE`` keeps the table's uuid, its old snapshots and the count of sequence numbers, and begins a
line of snapshots without a parent, the first of which inherits no row.

The position's entry of a snapshot, ``snapshots`` in ``connectors/appended.py``,
has its sequence number and id; with ``changes`` the id of the schema, too, as which it was read.

The rows of a snapshot are those of its data files, without the places that its delete files name
(position deletes, or the deletion vectors of format version 3); equality deletes name no place in a
file, and are refused.  A change is the difference between a snapshot and its parent, whatever their
writer says of them; only manifests that they do not share are read, and of delete files all.  So a
data file that both have is read where its deletes differ.

A file is read in the columns of the table's present schema, which are matched by field id, or by
the table's name mapping where the file has none, as the format demands: a renamed column is found,
and one that was added later is null.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlencode

from sluice.connectors.appended import (
    BASE,
    AddedFile,
    AppendedSource,
    Cursor,
    parsed_cursor,
)
from sluice.connectors.files.parquet import cast_to_known_schema, known_schema, row_range
from sluice.connectors.iceberg.catalog import CatalogTable, Tags
from sluice.connectors.iceberg.data_files import projected_batch
from sluice.core.plan import Slice
from sluice.declaration.columns import check_source_columns
from sluice.declaration.places import WEIGHT, SourcePosition
from sluice.errors import BEGIN_ANEW, ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

SNAPSHOTS = "snapshots"

_ABSOLUTE = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*:)?/")

# How the rows of a data file changed, and their weights: all that there are came, or all that there
# were went; and places that were deleted, or whose deletes are gone.
CAME, WENT, DELETED, BACK = "came", "went", "deleted", "back"
WEIGHTS = {CAME: 1, WENT: -1, DELETED: -1, BACK: 1}

FILE_PATH_ID = 2147483546  # The field of a delete file that names the data file; the format's.


@dataclass(frozen=True, slots=True)
class IcebergSource(AppendedSource["IcebergHistory", "SnapshotRead"]):
    """See ``Source``, and ``declared_source.IcebergTable`` for the options."""

    mark = SNAPSHOTS

    place: CatalogTable
    start: str = "earliest"
    columns: tuple[str, ...] = ()
    changes: Literal[False, "rows"] = False
    skip_overwrites: bool = False
    bounded: bool = False

    def __post_init__(self) -> None:
        self._check_start(f"the Iceberg table {self.place.name}", "a snapshot's id")

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        schema = _arrow_schema(self._projection(self.place.load()))
        check_source_columns(schema.names, f"Iceberg table {self.place.name}")
        return schema.append(pa.field(WEIGHT, pa.int8())) if self.takes_rows_back else schema

    @contextmanager
    def _appends(self) -> Iterator[IcebergHistory]:
        with self.place.failures():
            yield IcebergHistory(self.place.load(), self.skip_overwrites, self.takes_rows_back)

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with self.place.failures():
            table = self.place.load()
            path, query = piece.partition, ""
            if self.takes_rows_back:
                path, _, query = path.rpartition("?")
            location = _located(table, path)
            projection = self._projection(table)
            if columns is not None:
                whole = {path.partition(".")[0] for path in columns} | {*columns}
                names = [field.name for field in projection.fields if field.name in whole]
                # Without any, rows have no number.
                projection = projection.select(*(names or [projection.fields[0].name]))
            try:
                if not query:
                    yield from read_row_range(table, location, piece.start, piece.end, projection)
                    return
                change = FileChange.parsed(query)
                self._check_columns(table, change.schema)
                is_weighed = columns is None or WEIGHT in columns
                for batch in read_changed(table, location, piece, change, projection):
                    weight = pa.repeat(pa.scalar(WEIGHTS[change.did], pa.int8()), batch.num_rows)
                    yield batch.append_column(WEIGHT, weight) if is_weighed else batch
            except FileNotFoundError as error:
                raise ConfigurationError(
                    f"{location} of the Iceberg table {self.place.name} is gone; restore it, or "
                    f"{BEGIN_ANEW}, and expire snapshots only when they are read"
                ) from error

    def hold(self, name: str, position: SourcePosition) -> None:
        """Tag the snapshot that was read last, and the one that is being read."""
        with self._appends() as appends:
            cursor = parsed_cursor(position, self.mark)
            read, _ = _read_of(cursor)
            ids = [int(read)] if read else []
            if cursor.file and not cursor.version.startswith(BASE):
                ids += [step.snapshot.snapshot_id for step in self._steps(appends, cursor)[:1]]
            Tags(self.place).keep(name, ids)

    def release(self, name: str) -> None:
        with self.place.failures():
            Tags(self.place).release(name)

    def held(self, prefix: str) -> tuple[str, ...]:
        with self.place.failures():
            return Tags(self.place).held(prefix)

    def _first(self, appends: IcebergHistory) -> Cursor:
        """The first position of a source without one."""
        head = appends.head
        if self.start == "latest":
            if head is None:
                return Cursor(self.mark)
            version = appends.version(SnapshotRead(head))
            return Cursor(self.mark, head.sequence_number or 0, version)
        base = appends.base(int(self.start) if self.start.isdecimal() else None)
        if base is None:
            return Cursor(self.mark)
        return Cursor(self.mark, max(base.sequence - 1, 0), f"{BASE}{appends.version(base)}")

    def _steps(self, appends: IcebergHistory, cursor: Cursor) -> list[SnapshotRead]:
        read, schema = _read_of(cursor)
        if schema is not None:
            self._check_columns(appends.table, schema)
        if not cursor.version.startswith(BASE):
            return appends.after(cursor.sequence, read)
        base = next((one for one in appends.ancestors() if str(one.snapshot_id) == read), None)
        if base is None:
            raise appends.is_no_ancestor(read, cursor.sequence + 1)
        steps = appends.after(base.sequence_number or 0, read)
        return [SnapshotRead(base, is_base=True, schema=schema), *steps]

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

    def _check_columns(self, table: Table, schema_id: int) -> None:
        """Check that rows with the columns of that schema can be taken back as they were read.

        A field is known by its id, at any depth: one that was dropped and added again is another.

        Raises:
            ConfigurationError: a column or field of it is gone, or a declared column is.
        """
        now = self._projection(table)
        before = table.schemas().get(schema_id)
        if before is None:
            return
        read = [one.name for one in before.fields if one.name in (self.columns or (one.name,))]
        for id_ in sorted(before.select(*read).field_ids) if read else ():
            name = before.find_column_name(id_)
            if now.find_column_name(id_) != name:
                raise ConfigurationError(
                    f"column {name!r} of the Iceberg table {self.place.name} was read, and is "
                    "dropped or renamed, so rows with it cannot be taken back; "
                    f"{BEGIN_ANEW} behind that change, with columns=... that stay"
                )


def _read_of(cursor: Cursor) -> tuple[str, int | None]:
    """The id of the snapshot that was read, and of the schema that its rows were read in, where
    rows are taken back; see ``IcebergHistory.version``.
    """
    read, _, schema = cursor.version.removeprefix(BASE).partition(" ")
    return read, int(schema) if schema else None


def _located(table: Table, name: str) -> str:
    """The location of a file by its path, which is below the table's or, as Hadoop's, absolute."""
    return name if _ABSOLUTE.match(name) else f"{table.location().rstrip('/')}/{name}"


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """A snapshot to read: the files it added, or with ``is_base`` all files of the table then, in
    the columns of ``schema``, by default those of now.
    """

    snapshot: Snapshot
    is_base: bool = False
    schema: int | None = None

    @property
    def sequence(self) -> int:
        return self.snapshot.sequence_number or 0

    def __str__(self) -> str:
        return f"snapshot {self.snapshot.snapshot_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A change of a data file's rows, in the name of a partition.

    It lies between the snapshots ``parent`` (0: none) and ``snapshot``; ``schema`` is the one that
    the table had when the slice was planned.
    """

    did: str
    snapshot: int
    parent: int
    schema: int

    @classmethod
    def parsed(cls, query: str) -> FileChange:
        told = dict(parse_qsl(query))
        numbers = {name: int(told[name]) for name in ("snapshot", "parent", "schema")}
        return cls(did=told["did"], **numbers)

    def __str__(self) -> str:
        names = ("did", "snapshot", "parent", "schema")
        return urlencode({name: getattr(self, name) for name in names})


@dataclass(frozen=True, slots=True)
class IcebergHistory:
    """The history of *table*'s main branch."""

    table: Table
    skip_overwrites: bool = False
    takes_rows_back: bool = False

    @property
    def name(self) -> str:
        return f"the Iceberg table {'.'.join(self.table.name())}"

    @property
    def head(self) -> Snapshot | None:
        return self.table.current_snapshot()

    def ancestors(self) -> list[Snapshot]:
        """The head and its ancestors, newest first, as far as they have not expired."""
        from pyiceberg.table.snapshots import ancestors_of

        if self.table.metadata.format_version < 2:
            raise ConfigurationError(
                f"{self.name} is of format version 1, which does not number its snapshots; upgrade "
                "it to version 2"
            )
        return list(ancestors_of(self.head, self.table.metadata))

    def base(self, snapshot_id: int | None) -> SnapshotRead | None:
        """The snapshot of this id, or by default the oldest that exists, to be read whole.

        Of those from before an upgrade to version 2, which have no number, only the newest counts.
        """
        ancestors = self.ancestors()
        numbered = [one for one in ancestors if one.sequence_number]
        ancestors = ancestors[: len(numbered) + 1]
        found = [one for one in ancestors if snapshot_id is None or one.snapshot_id == snapshot_id]
        if not found and snapshot_id is not None:
            raise ConfigurationError(
                f"snapshot {snapshot_id} is not in the history of {self.name}; begin with one of "
                f"{', '.join(str(one.snapshot_id) for one in reversed(ancestors))}"
            )
        return SnapshotRead(found[-1], is_base=True) if found else None

    def after(self, sequence: int, snapshot_id: str) -> list[SnapshotRead]:
        """The snapshots after the one of that number and id, oldest first.

        Raises:
            ConfigurationError: some of them have expired, or that one is no ancestor of the head.
        """
        steps: list[SnapshotRead] = []
        for snapshot in self.ancestors():
            if (snapshot.sequence_number or 0) <= sequence:
                if str(snapshot.snapshot_id) != snapshot_id:
                    raise self.is_no_ancestor(snapshot_id, sequence)
                return steps[::-1]
            steps.append(SnapshotRead(snapshot))
        if steps:
            self._check_begin(steps[-1].snapshot, sequence, snapshot_id)
        elif sequence:
            raise self.is_no_ancestor(snapshot_id, sequence)
        return steps[::-1]

    def is_no_ancestor(self, snapshot_id: str, sequence: int) -> ConfigurationError:
        """The error for a table whose present rows do not continue those of *snapshot_id*."""
        head = self.head
        now = "has no snapshot now"
        if head is not None:
            now = f"its head is {head.snapshot_id} ({head.sequence_number}) now"
        return ConfigurationError(
            f"{self.name} was read to snapshot {snapshot_id or 'none'} (sequence number "
            f"{sequence}), which is no ancestor of what it has: {now}, so it was rolled back, "
            f"replaced or made anew; have that snapshot be the head again, or {BEGIN_ANEW} without "
            "this state"
        )

    def version(self, step: SnapshotRead) -> str:
        """The snapshot's id, and where rows are taken back that of the schema they are read in."""
        read = str(step.snapshot.snapshot_id)
        return f"{read} {self.table.metadata.current_schema_id}" if self.takes_rows_back else read

    def files(self, step: SnapshotRead) -> list[AddedFile]:
        """The files to read of *step*, in order; none where no row was added.

        Raises:
            ConfigurationError: rows were changed or deleted, or a file cannot be read.
        """
        from pyiceberg.table.snapshots import Operation

        summary = step.snapshot.summary
        operation = summary.operation if summary is not None else None
        if self.takes_rows_back:
            is_compacted = operation is Operation.REPLACE and not _grows(step.snapshot)
            return [] if is_compacted and not step.is_base else self._changed(step)
        if step.is_base:
            return self._described(self._live(step.snapshot))
        if operation is Operation.APPEND:
            return self._described(self._added(step.snapshot))
        if operation is Operation.REPLACE and not _grows(step.snapshot):
            return []
        what = (
            f"snapshot {step.snapshot.snapshot_id} of {self.name} "
            f"({operation.value if operation else 'unknown'}) changes or deletes rows"
        )
        if not self.skip_overwrites:
            raise ConfigurationError(
                f"{what}, and a source of appended rows cannot tell which; pass over all that it "
                f"did with skip_overwrites=True, or {BEGIN_ANEW} behind it"
            )
        log.warning("%s; passed over", what)
        return []

    def rows(self, step: SnapshotRead) -> int | None:
        """The number of rows to read of *step*, by its summary alone; None if that is not known."""
        from pyiceberg.table.snapshots import Operation

        summary = step.snapshot.summary
        if summary is None:
            return None
        if self.takes_rows_back:
            is_append = summary.operation is Operation.APPEND
            is_compacted = summary.operation is Operation.REPLACE and not _grows(step.snapshot)
            has_deletes = _count(step.snapshot, "total-delete-files") > 0
            if has_deletes if step.is_base else not (is_append or is_compacted):
                return None
        if not step.is_base and summary.operation is not Operation.APPEND:
            return 0
        name = "total-records" if step.is_base else "added-records"
        count = summary.additional_properties.get(name, "" if step.is_base else "0")
        return int(count) if count.isdecimal() else None

    def adds_rows(self, step: SnapshotRead) -> bool:
        """Whether *step* may have added rows, by its summary alone."""
        summary = step.snapshot.summary
        if summary is None or step.is_base or self.takes_rows_back:
            return True
        return summary.additional_properties.get("added-records", "0") != "0"

    def _changed(self, step: SnapshotRead) -> list[AddedFile]:
        """The files with rows that *step* brought or took."""
        snapshot = step.snapshot
        parent = None if step.is_base else self._parent(snapshot)
        if not step.is_base and parent is None and _inherits(snapshot):
            changes = [
                ChangedFile(entry.data_file, CAME, entry.data_file.record_count)
                for entry in self._added(snapshot)
            ]
        else:
            before, after = Rows(self.table, parent), Rows(self.table, snapshot)
            try:
                changes = list(changed_files(before, after))
            except FileNotFoundError as error:
                raise ConfigurationError(
                    f"a manifest or delete file of {step} of {self.name}, or of the one before it, "
                    f"is gone ({error}); restore it, or "
                    f"{BEGIN_ANEW}, and expire snapshots only when they are read"
                ) from error
        schema = self.table.metadata.current_schema_id if step.schema is None else step.schema
        found = []
        for one in changes:
            change = FileChange(
                did=one.did,
                snapshot=snapshot.snapshot_id,
                parent=0 if parent is None else parent.snapshot_id,
                schema=schema,
            )
            if one.rows:
                found.append(AddedFile(f"{self._name_of(one.file)}?{change}", one.rows))
        return sorted(found, key=lambda file: file.name)

    def _parent(self, snapshot: Snapshot) -> Snapshot | None:
        """The snapshot before; None if it had no rows, or *snapshot* only appended some.

        Raises:
            ConfigurationError: it has expired, so what *snapshot* took is not known.
        """
        from pyiceberg.table.snapshots import Operation

        id_, summary = snapshot.parent_snapshot_id, snapshot.summary
        parent = None if id_ is None else self.table.snapshot_by_id(id_)
        is_append = summary is not None and summary.operation is Operation.APPEND
        if parent is None and not is_append and (id_ is not None or _inherits(snapshot)):
            raise ConfigurationError(
                f"the snapshot before {snapshot.snapshot_id} of {self.name} has expired, so the "
                f"rows that it took are not known; {BEGIN_ANEW} there, and expire snapshots only "
                "when they are read"
            )
        return parent

    def _check_begin(self, oldest: Snapshot, sequence: int, snapshot_id: str) -> None:
        """Check that *oldest*, the first existing snapshot, follows the last one that was read.

        Some writers, as pyiceberg, take the parent from a snapshot when they expire that one.
        """
        first, parent = oldest.sequence_number or 0, oldest.parent_snapshot_id
        if parent is not None:
            follows = str(parent) == snapshot_id
        elif not snapshot_id:
            follows = first == 1
        elif not _inherits(oldest):
            raise self.is_no_ancestor(snapshot_id, sequence)
        else:
            has_expired = self.table.snapshot_by_id(int(snapshot_id)) is None
            follows = has_expired and first == sequence + 1
        if not follows:
            raise ConfigurationError(
                f"{self.name} was read to snapshot {snapshot_id or 'none'} (sequence number "
                f"{sequence}), and the snapshots with the sequence numbers {sequence + 1} to "
                f"{first - 1} have expired before they were read; the first that there is, is "
                f"{oldest.snapshot_id} ({first}): {BEGIN_ANEW} there, and keep snapshots for longer"
            )

    def _added(self, snapshot: Snapshot) -> Iterator[ManifestEntry]:
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

        for manifest in snapshot.manifests(self.table.io):
            is_added = manifest.added_snapshot_id == snapshot.snapshot_id
            if not is_added or manifest.content != ManifestContent.DATA:
                continue
            for entry in manifest.fetch_manifest_entry(self.table.io):
                is_new = entry.snapshot_id == snapshot.snapshot_id
                if is_new and entry.status is ManifestEntryStatus.ADDED:
                    yield entry

    def _live(self, snapshot: Snapshot) -> Iterator[ManifestEntry]:
        from pyiceberg.manifest import ManifestContent

        for manifest in snapshot.manifests(self.table.io):
            entries = manifest.fetch_manifest_entry(self.table.io)
            if manifest.content == ManifestContent.DATA:  # Of version 1 it is a plain 0.
                yield from entries
            elif entries:
                raise ConfigurationError(
                    f"snapshot {snapshot.snapshot_id} of {self.name} has delete files, which are "
                    "not applied here; declare the source with changes='rows', which applies them"
                )

    def _described(self, entries: Iterator[ManifestEntry]) -> list[AddedFile]:
        found = []
        for entry in entries:
            name, rows = self._name_of(entry.data_file), entry.data_file.record_count
            if rows:
                found.append((entry.sequence_number or 0, name, rows))
        return [AddedFile(name, rows) for _, name, rows in sorted(found)]

    def _name_of(self, file: DataFile) -> str:
        """Its path below the table's location, or else whole."""
        from pyiceberg.manifest import FileFormat

        if file.file_format is not FileFormat.PARQUET:
            raise ConfigurationError(
                f"{file.file_path} of {self.name} is {file.file_format.value}; only Parquet can be "
                "read by rows: rewrite it"
            )
        return file.file_path.removeprefix(f"{self.table.location().rstrip('/')}/")


def _grows(snapshot: Snapshot) -> bool:
    """Whether *snapshot* added more rows than it removed, by its summary."""
    return _count(snapshot, "added-records") > _count(snapshot, "deleted-records")


def _inherits(snapshot: Snapshot) -> bool:
    """Whether *snapshot* has rows that it did not add, by its summary."""
    return _count(snapshot, "total-records") > _count(snapshot, "added-records")


def _count(snapshot: Snapshot, name: str) -> int:
    properties = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    count = properties.get(name, "")
    return int(count) if count.isdecimal() else 0


def _arrow_schema(schema: Schema) -> pa.Schema:
    """*schema* with the types that sources yield; see ``files.parquet.known_schema``."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.types import TimestampNanoType, TimestamptzNanoType

    for id_ in sorted(schema.field_ids):
        of = schema.find_type(id_)
        if isinstance(of, TimestampNanoType | TimestamptzNanoType):
            raise ConfigurationError(
                f"column {schema.find_column_name(id_)!r} of the Iceberg table is {of}, and no "
                "stage keeps nanoseconds; leave it out: columns=(...) of the source"
            )
    return known_schema(schema_to_pyarrow(schema, include_field_ids=False), "the Iceberg table")


def read_row_range(
    table: Table, location: str, start: int, end: int, schema: Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``projected_rows`` with the types that sources yield."""
    wanted = _arrow_schema(schema)
    for batch in projected_rows(table, location, start, end, schema):
        yield cast_to_known_schema(batch, wanted, location)


def read_changed(
    table: Table, location: str, piece: Slice, change: FileChange, schema: Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *piece*, which counts those alone to which *change* happened."""
    places = _places(table, location, piece.end, change)
    if places is None:
        yield from read_row_range(table, location, piece.start, piece.end, schema)
        return
    chosen = places[piece.start : piece.end]
    at = int(chosen[0])
    for batch in read_row_range(table, location, at, int(chosen[-1]) + 1, schema):
        end = at + batch.num_rows
        mine = chosen[(chosen >= at) & (chosen < end)]
        if len(mine):
            yield batch.take(mine - at)
        at = end


def _places(
    table: Table, location: str, count: int, change: FileChange
) -> NDArray[np.int64] | None:
    """The places of the first *count* rows that *change* happened to; None if those are all."""
    import numpy as np

    def rows_of(snapshot_id: int) -> Rows:
        snapshot = table.snapshot_by_id(snapshot_id)
        if snapshot is None and snapshot_id:
            raise ConfigurationError(
                f"snapshot {snapshot_id} of the Iceberg table {'.'.join(table.name())} expired "
                f"before its changes were read; {BEGIN_ANEW}, and expire snapshots only when they "
                "are read"
            )
        return Rows(table, snapshot)

    if change.did not in (CAME, WENT):
        return places_of(change.did, location, rows_of(change.parent), rows_of(change.snapshot))
    gone = rows_of(change.snapshot if change.did == CAME else change.parent).deleted(location)
    if not len(gone):
        return None
    return np.setdiff1d(np.arange(count + len(gone)), gone, assume_unique=True)[:count]


def projected_rows(
    table: Table, location: str, start: int, end: int, schema: Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows from *start* to *end*; row groups and columns outside are not read.

    Raises:
        FileNotFoundError: it is gone.
        ConfigurationError: it has fewer rows.
    """
    import pyarrow.parquet as pq

    with table.io.new_input(location).open() as stream, pq.ParquetFile(stream) as file:
        if file.metadata.num_rows < end:
            raise ConfigurationError(
                f"{location} has {file.metadata.num_rows} rows, and its manifest says {end} or "
                "more; restore it, for a data file may not change"
            )
        yield from _projected(table, file, start, end, schema)


def _projected(
    table: Table, file: pq.ParquetFile, start: int, end: int, schema: Schema
) -> Iterator[pa.RecordBatch]:
    from pyiceberg.io.pyarrow import pyarrow_to_schema
    from pyiceberg.schema import prune_columns
    from pyiceberg.types import ListType, MapType

    names = table.metadata.name_mapping()
    found = pyarrow_to_schema(file.schema_arrow, names, downcast_ns_timestamp_to_us=True)
    _check_partition_columns(table, found, schema)
    # Lists and maps are chosen by their elements, a struct also where all of its fields are others.
    kinds = {id_: schema.find_type(id_) for id_ in schema.field_ids}
    ids = {id_ for id_, of in kinds.items() if not isinstance(of, ListType | MapType)}
    there = prune_columns(found, ids & found.field_ids, select_full_types=False)
    if not there.columns:  # All were added to the table later, and may have initial defaults.
        there = found.select(found.columns[0].name)
    columns = [column.name for column in there.columns]
    for batch in row_range(file, start, end, columns):
        yield projected_batch(batch, there, schema)


def _check_partition_columns(table: Table, found: Schema, schema: Schema) -> None:
    """Refuse a column that is missing in a file because its value is in the partition only."""
    from pyiceberg.transforms import IdentityTransform

    partition_ids = {
        field.source_id
        for spec in table.specs().values()
        for field in spec.fields
        if isinstance(field.transform, IdentityTransform)
    }
    for column in schema.fields:
        if column.field_id in partition_ids - found.field_ids:
            raise ConfigurationError(
                f"column {column.name!r} of the Iceberg table {'.'.join(table.name())} is in a "
                "partition's name and not in its files, which is not read here; rewrite the data "
                "files, or leave the column out with columns=(...)"
            )


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A data file with changed rows: what they did is one of ``WEIGHTS``."""

    file: DataFile
    did: str
    rows: int


@dataclass(frozen=True)
class Rows:
    """The rows of *snapshot*; of no snapshot there are none."""

    table: Table
    snapshot: Snapshot | None
    _opened: dict[str, pa.Table] = field(default_factory=dict[str, Any])

    @cached_property
    def data_manifests(self) -> dict[str, ManifestFile]:
        return {path: one for path, one in self._manifests.items() if not _has_deletes(one)}

    @cached_property
    def deletes(self) -> dict[tuple[str, int], ManifestEntry]:
        """The live delete files, by what tells them apart: several vectors may be in one.

        Raises:
            ConfigurationError: some are equality deletes.
        """
        from pyiceberg.manifest import DataFileContent

        found = {}
        for manifest in self._manifests.values():
            if not _has_deletes(manifest):
                continue
            for entry in manifest.fetch_manifest_entry(self.table.io):
                file = entry.data_file
                if file.content is DataFileContent.EQUALITY_DELETES:
                    raise ConfigurationError(
                        f"{self._name} has equality deletes, as Flink writes them, and these name "
                        "no rows; rewrite the data files of the table (rewrite_data_files with "
                        f"delete-file-threshold 1), and {BEGIN_ANEW} with the snapshot of that"
                    )
                found[file.file_path, entry.sequence_number or 0] = entry
        return found

    def live(self, manifests: Sequence[ManifestFile]) -> dict[str, ManifestEntry]:
        """The live data files of *manifests*, by their paths."""
        entries = (one for of in manifests for one in of.fetch_manifest_entry(self.table.io))
        return {entry.data_file.file_path: entry for entry in entries}

    def deleted(self, path: str) -> NDArray[np.int64]:
        """The places of the data file *path* whose rows are deleted, in order."""
        import numpy as np

        found = [np.empty(0, np.int64)]
        for entry in self.deletes.values():
            if _may_name(entry.data_file, path):
                places = self.places(entry.data_file)
                chosen = places.filter(_equal(places, path)).column("pos")
                found.append(chosen.to_numpy().astype(np.int64))
        places = np.sort(np.concatenate(found))  # np.unique hashes, and takes 20 times as long.
        is_first = np.ones(len(places), np.bool_)
        is_first[1:] = places[1:] != places[:-1]
        return places[is_first]

    def places(self, file: DataFile) -> pa.Table:
        """The rows that the delete *file* names: columns ``file_path`` and ``pos``."""
        if file.file_path not in self._opened:
            self._opened[file.file_path] = self._read(file)
        return self._opened[file.file_path]

    def _read(self, file: DataFile) -> pa.Table:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from pyiceberg.manifest import FileFormat
        from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
        from pyiceberg.table.puffin import PuffinFile

        with self.table.io.new_input(file.file_path).open() as stream:
            if file.file_format is FileFormat.PARQUET:
                return pq.ParquetFile(stream).read(["file_path", "pos"], use_threads=False)
            if file.file_format is not FileFormat.PUFFIN:
                raise ConfigurationError(
                    f"the delete file {file.file_path} of {self._name} is "
                    f"{file.file_format.value}; only Parquet and deletion vectors are read here: "
                    "rewrite the data files of the table"
                )
            vectors = deletion_vectors_from_puffin_file(PuffinFile(stream.read()))
        found = [(one.referenced_data_file, one.to_vector().combine_chunks()) for one in vectors]
        kinds = pa.schema([("file_path", pa.string()), ("pos", pa.int64())])
        tables = [
            pa.table([pa.repeat(pa.scalar(path), len(at)), at.cast(pa.int64())], schema=kinds)
            for path, at in found
        ]
        return pa.concat_tables(tables) if tables else kinds.empty_table()

    @cached_property
    def _manifests(self) -> dict[str, ManifestFile]:
        if self.snapshot is None:
            return {}
        return {one.manifest_path: one for one in self.snapshot.manifests(self.table.io)}

    @property
    def _name(self) -> str:
        id_ = self.snapshot.snapshot_id if self.snapshot is not None else "none"
        return f"snapshot {id_} of the Iceberg table {'.'.join(self.table.name())}"


def changed_files(before: Rows, after: Rows) -> Iterator[ChangedFile]:
    """The changes that lead from the rows *before* to those *after*, in no order."""
    own = before.data_manifests.keys() - after.data_manifests.keys()
    new = after.data_manifests.keys() - before.data_manifests.keys()
    were = before.live([before.data_manifests[path] for path in own])
    are = after.live([after.data_manifests[path] for path in new])
    shared = after.data_manifests.keys() & before.data_manifests.keys()
    if touched := _touched(before, after) - were.keys() - are.keys():
        entries = after.live([after.data_manifests[path] for path in shared])
        for path in touched & entries.keys():
            were[path] = are[path] = entries[path]
    for path, entry in were.items():
        if path not in are:
            rows = entry.data_file.record_count - len(before.deleted(path))
            yield ChangedFile(entry.data_file, WENT, rows)
    for path, entry in are.items():
        if path not in were:
            rows = entry.data_file.record_count - len(after.deleted(path))
            yield ChangedFile(entry.data_file, CAME, rows)
            continue
        for did in (DELETED, BACK):
            if rows := len(places_of(did, path, before, after)):
                yield ChangedFile(entry.data_file, did, rows)


def places_of(did: str, path: str, before: Rows, after: Rows) -> NDArray[np.int64]:
    """The places of the rows of the data file *path* that were deleted, or are back."""
    import numpy as np

    own, new = before.deleted(path), after.deleted(path)
    more, less = (new, own) if did == DELETED else (own, new)
    return np.setdiff1d(more, less, assume_unique=True)


def _touched(before: Rows, after: Rows) -> set[str]:
    """The data files that delete files name which only one of the two has."""
    found: set[str] = set()
    for rows, others in ((before, after), (after, before)):
        for key in rows.deletes.keys() - others.deletes.keys():
            places = rows.places(rows.deletes[key].data_file)
            found.update(places.column("file_path").unique().to_pylist())
    return found


def _has_deletes(manifest: ManifestFile) -> bool:
    from pyiceberg.manifest import ManifestContent

    return manifest.content is ManifestContent.DELETES


def _may_name(file: DataFile, path: str) -> bool:
    """Whether the delete *file* may name the data file *path*, by its statistics."""
    least = (file.lower_bounds or {}).get(FILE_PATH_ID)
    most = (file.upper_bounds or {}).get(FILE_PATH_ID)
    name = path.encode()
    return (not least or least <= name) and (not most or name <= most)


def _equal(places: pa.Table, path: str) -> pa.Array:
    import pyarrow.compute as pc

    return pc.equal(places.column("file_path"), path)
