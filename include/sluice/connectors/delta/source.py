"""The source of a Delta table, version by version, of rows that were appended or of all changes.

Of each version the files are read that it added.  One whose actions change no row (OPTIMIZE) is
skipped.  One that changes or deletes rows cannot be read as appended rows, and is refused or, if
that is declared, skipped.  With ``changes`` it is read, as the change data feed: the version's own
files of changes, or else each row of a file that it added or removed.  What an entry of the feed
says of its row is a column, or with ``changes="rows"`` the row's weight.

The entry ``versions`` of a position has the number of the next version, and of the one before it
the table's id and a checksum of its actions: a table that was made anew at its place, or put back
and written again, is refused.  A version whose entry was cleaned out of the log is not compared.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl, urlencode

from sluice.connectors.appended import BASE, AddedFile, AppendedSource, Cursor
from sluice.connectors.columns import cast_exactly, is_bytes, is_text
from sluice.connectors.delta_log import (
    Action,
    DataFile,
    DeltaPlace,
    Snapshot,
    info_of,
    open_parquet,
    with_partition,
)
from sluice.connectors.files.parquet import cast_to_known_schema, known_schema, row_range
from sluice.core.plan import Slice
from sluice.declaration.columns import check_source_columns
from sluice.declaration.places import WEIGHT
from sluice.errors import BEGIN_ANEW, ConfigurationError
from sluice.protocol.records import checksum
from sluice.store.object_store import in_parallel

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

VERSIONS = "versions"
CHANGE, COMMIT = "_change_type", "_commit_version"
WEIGHTS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
THREADS = 16
ENTRIES_AT_ONCE = 200  # Versions whose entries a plan reads ahead; of later ones no rows are known.


@dataclass(frozen=True, slots=True)
class Version:
    """A version to read: what it added, or with ``is_base`` the whole table as it was then."""

    number: int
    is_base: bool = False

    @property
    def sequence(self) -> int:
        return self.number + 1

    def __str__(self) -> str:
        return f"version {self.number}"


@dataclass(frozen=True, slots=True)
class DeltaSource(AppendedSource["Versions", Version]):
    """See ``Source``, and ``declared_source.DeltaTable`` for the options."""

    mark = VERSIONS

    place: DeltaPlace
    start: str = "earliest"
    columns: tuple[str, ...] = ()
    changes: bool | Literal["rows"] = False
    skip_overwrites: bool = False
    bounded: bool = False

    def __post_init__(self) -> None:
        self._check_start(self.place.name, "a version's number")

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        found = known_schema(self._projection(self._snapshot()), self.place.name)
        check_source_columns(found.names, self.place.name)
        return found.append(pa.field(WEIGHT, pa.int8())) if self.takes_rows_back else found

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        snapshot = self._snapshot()
        wanted = self._projection(snapshot)
        if columns is not None:
            whole = {path.partition(".")[0] for path in columns}
            asked = [one for one in wanted if one.name in whole]
            wanted = pa.schema(asked or [wanted.field(0)])  # Without any, rows have no number.
        known = known_schema(wanted, self.place.name)
        number, kind, file = self._found(piece.partition, snapshot)
        parquet = open_parquet(self.place.store(), file)
        names = parquet.schema_arrow.names
        there = [name for name in wanted.names if name in names]
        is_weighed = self.takes_rows_back and (columns is None or WEIGHT in columns)
        if is_weighed and CHANGE in names:
            there.append(CHANGE)
        added = {CHANGE: kind, COMMIT: number}
        for batch in row_range(parquet, piece.start, piece.end, there):
            rows = with_partition(pa.Table.from_batches([batch]), file, wanted)
            for name, value in added.items():
                if name in wanted.names and name not in rows.column_names:
                    constant = pa.scalar(value, wanted.field(name).type)
                    rows = rows.append_column(name, pa.repeat(constant, rows.num_rows))
            whole = _fitted(rows, wanted, f"{file.path} of {self.place.name}").combine_chunks()
            for one in whole.to_batches():
                known_rows = cast_to_known_schema(one, known, file.path)
                if is_weighed:
                    told = batch.column(CHANGE) if CHANGE in names else None
                    weight = _weights(told, kind, batch.num_rows)
                    known_rows = known_rows.append_column(WEIGHT, weight)
                yield known_rows

    @contextmanager
    def _appends(self) -> Iterator[Versions]:
        snapshot = self._snapshot()
        mark = self._columns_of if self.takes_rows_back else None
        yield Versions(snapshot, bool(self.changes), self.skip_overwrites, mark)

    def _snapshot(self) -> Snapshot:
        snapshot = self.place.current()
        if snapshot is None:
            raise ConfigurationError(
                f"there is no Delta table at {self.place.location.root}; create it, or correct the "
                "location"
            )
        if snapshot.configuration.get("delta.columnMapping.mode", "none") != "none":
            raise ConfigurationError(
                f"{self.place.name} maps its columns to other names (delta.columnMapping.mode), "
                "which is not read here; copy it into a table without"
            )
        return snapshot

    def _first(self, appends: Versions) -> Cursor:
        snapshot = appends.snapshot
        if self.start == "latest":
            last = Version(snapshot.version)
            return Cursor(VERSIONS, last.sequence, appends.version(last))
        number = int(self.start) if self.start.isdecimal() else snapshot.version
        if number > snapshot.version:
            raise ConfigurationError(
                f"{self.place.name} has no version {number} yet; begin with one up to "
                f"{snapshot.version}"
            )
        return Cursor(VERSIONS, number, f"{BASE}{appends.version(Version(number))}")

    def _steps(self, appends: Versions, cursor: Cursor) -> list[Version]:
        snapshot = appends.snapshot
        is_base = cursor.version.startswith(BASE)
        known = Version(cursor.sequence if is_base else cursor.sequence - 1, is_base)
        told = cursor.version.removeprefix(BASE)
        table_id, _, digest = told.partition(" ")
        if table_id != snapshot.id or known.number > snapshot.version:
            now = f"it is {snapshot.id} at version {snapshot.version} now"
        elif digest and appends.version(known) not in (told, table_id):
            now = f"its {known} is another one now"
        else:
            now = ""
        if now:
            raise ConfigurationError(
                f"{self.place.name} was read to version {cursor.sequence - 1} of the table "
                f"{table_id}, and {now}, so it was made anew or put back; put that table back, or "
                f"{BEGIN_ANEW} without this state"
            )
        numbers = range(cursor.sequence, snapshot.version + 1)
        steps = [Version(number, is_base and number == numbers[0]) for number in numbers]
        ahead = [step for step in steps[:ENTRIES_AT_ONCE] if not step.is_base]
        appends.read_ahead(ahead)
        if self.takes_rows_back and (len(steps) > len(ahead) or appends.change_columns(ahead)):
            self._check_columns(known.number, snapshot)
        return steps

    def _check_columns(self, number: int, snapshot: Snapshot) -> None:
        """Check that rows read of the version *number* can be taken back as they were.

        Raises:
            ConfigurationError: a column that was read is gone, or another now.
        """
        before = self.place.load(number)
        assert before is not None, "the table was loaded a moment ago"
        there = snapshot.schema
        for one in self._projection(before):
            at = there.get_field_index(one.name)
            if at >= 0 and _holds(there.field(at).type, one.type):
                continue
            now = f"is {there.field(at).type} now" if at >= 0 else "is gone now"
            raise ConfigurationError(
                f"column {one.name!r} of {self.place.name} was read as {one.type} in version "
                f"{number} and {now}, so rows with it cannot be taken back; put it back, or "
                f"{BEGIN_ANEW} behind that change, with columns=... that stay"
            )

    def _projection(self, snapshot: Snapshot) -> pa.Schema:
        import pyarrow as pa

        schema = snapshot.schema
        if self.changes is True:
            schema = pa.schema([*schema, (CHANGE, pa.string()), (COMMIT, pa.int64())])
        if missing := [name for name in self.columns if name not in schema.names]:
            raise ConfigurationError(
                f"{self.place.name} has no column {missing[0]!r}; it has {', '.join(schema.names)}"
            )
        wanted = pa.schema([schema.field(name) for name in self.columns or schema.names])
        for name in snapshot.partition_columns:
            if name in wanted.names and is_bytes(wanted.field(name).type):
                raise ConfigurationError(
                    f"column {name!r} of {self.place.name} is binary, and its values are in the "
                    "log alone, as a text that each writer makes otherwise; leave it out of "
                    "columns=..."
                )
        return wanted

    def _columns_of(self, snapshot: Snapshot) -> str:
        """A text that tells the columns that are read of *snapshot* from others."""
        columns = [(one.name, str(one.type)) for one in self._projection(snapshot)]
        return checksum(str(columns).encode())[:8]

    def _found(self, partition: str, snapshot: Snapshot) -> tuple[int, str, DataFile]:
        """The version, the kind of change and the file that a partition's name tells.

        Raises:
            ConfigurationError: a column is gone since the slice was planned.
        """
        path, _, query = partition.partition("?")
        told = dict(parse_qsl(query, keep_blank_values=True))
        values = {
            name.removeprefix("="): value or None
            for name, value in told.items()
            if name.startswith("=")
        }
        if "columns" in told and told["columns"] != self._columns_of(snapshot):
            self._check_columns(int(told["of"]), snapshot)
        named = DataFile(path=path, size_bytes=0, partition=values)
        size = next((o.size_bytes for o in self.place.store().list(named.key)), 0)
        file = DataFile(path=path, size_bytes=size, partition=values)
        return int(told["version"]), told.get("change", "insert"), file


@dataclass(frozen=True, slots=True)
class Versions:
    """The history of a table; see ``appended.Appends``."""

    snapshot: Snapshot
    changes: bool
    skip_overwrites: bool
    columns_of: Callable[[Snapshot], str] | None  # None where columns may go.
    _entries: dict[int, list[Action] | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.snapshot.place.name

    def version(self, step: Version, /) -> str:
        """The table's id, and a checksum of the version's actions if they are still there."""
        entry = self._known_entry(step)
        if entry is None:
            return self.snapshot.id
        body = json.dumps(entry, sort_keys=True).encode()
        return f"{self.snapshot.id} {checksum(body)}"

    def read_ahead(self, steps: Sequence[Version]) -> None:
        entries = in_parallel(lambda step: self.snapshot.place.entry(step.number), steps, THREADS)
        self._entries.update(zip([step.number for step in steps], entries, strict=True))

    def change_columns(self, steps: Sequence[Version]) -> bool:
        """Whether one of *steps*, read ahead, may have changed the table's columns."""
        entries = (self._entries[step.number] for step in steps)
        return any("metaData" in one for entry in entries for one in entry or ())

    def files(self, step: Version, /) -> list[AddedFile]:
        """Raises ConfigurationError: rows were changed or deleted, or the version is gone."""
        if step.is_base:
            return self._base(step)
        entry = self._entry(step)
        added = [one["add"] for one in entry if one.get("add", {}).get("dataChange")]
        removed = [one["remove"] for one in entry if one.get("remove", {}).get("dataChange")]
        fed = [one["cdc"] for one in entry if "cdc" in one] if self.changes else []
        if fed:
            return self._listed(step, fed, "")
        if any(one.get("deletionVector") for one in (*added, *removed)):
            raise self._has_vectors(step)
        if self.changes:
            removed = self._with_partitions(step, removed)
            return self._listed(step, removed, "delete") + self._listed(step, added, "insert")
        if not removed:
            return self._listed(step, added, "")
        operation = info_of(entry).get("operation", "unknown")
        if not self.skip_overwrites:
            raise self._refused(step, f"changes or deletes rows ({operation})")
        log.warning("%s of %s changes or deletes rows; passed over", step, self.name)
        return []

    def rows(self, step: Version, /) -> int | None:
        if not step.is_base and step.number not in self._entries:
            return None
        try:
            return sum(file.rows for file in self.files(step))
        except ConfigurationError:  # It is refused when it is read, and rows before it are not.
            return None

    def adds_rows(self, step: Version, /) -> bool:
        return self.rows(step) != 0

    def _base(self, step: Version) -> list[AddedFile]:
        snapshot = self.snapshot
        if step.number != snapshot.version:
            found = snapshot.place.load(step.number)
            assert found is not None, "the table was loaded a moment ago"
            snapshot = found
        if snapshot.has_vectors:
            raise self._has_vectors(step)
        told = [
            {"path": one.path, "partitionValues": one.partition, "size": one.size_bytes}
            | ({} if one.rows is None else {"stats": f'{{"numRecords":{one.rows}}}'})
            for one in snapshot.files
        ]
        return self._listed(step, told, "", snapshot)

    def _known_entry(self, step: Version) -> list[Action] | None:
        if step.number not in self._entries:
            self._entries[step.number] = self.snapshot.place.entry(step.number)
        return self._entries[step.number]

    def _entry(self, step: Version) -> list[Action]:
        entry = self._known_entry(step)
        if entry is None:
            raise ConfigurationError(
                f"{step} of {self.name} was cleaned out of its log before it was read; "
                f"{BEGIN_ANEW}, and keep the log for longer (delta.logRetentionDuration)"
            )
        return entry

    def _with_partitions(
        self, step: Version, removed: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """*removed*, each with the values of its partition, which a writer may leave out there."""
        columns = {*self.snapshot.partition_columns}
        if all(columns <= {*(one.get("partitionValues") or ())} for one in removed):
            return removed
        before = self.snapshot.place.load(step.number - 1)
        assert before is not None, "the table was loaded a moment ago"
        known = {file.path: file.partition for file in before.files}
        return [one | {"partitionValues": known[str(one["path"])]} for one in removed]

    def _listed(
        self,
        step: Version,
        actions: Sequence[dict[str, Any]],
        change: str,
        read_as: Snapshot | None = None,
    ) -> list[AddedFile]:
        """The files of *actions*, with the columns of *read_as*, by default the table of now."""
        read_as = read_as or self.snapshot
        pinned = {}
        if self.columns_of is not None:
            pinned = {"columns": self.columns_of(read_as), "of": str(read_as.version)}
        found = []
        for one in sorted(actions, key=lambda one: str(one["path"])):
            told = {"version": str(step.number)} | ({"change": change} if change else {})
            told |= pinned
            values = one.get("partitionValues") or {}
            told |= {f"={name}": value for name, value in values.items() if value is not None}
            rows = self._rows_of(one)
            if rows:
                found.append(AddedFile(f"{one['path']}?{urlencode(told)}", rows))
        return found

    def _rows_of(self, action: dict[str, Any]) -> int:
        stats = action.get("stats")
        told = json.loads(stats).get("numRecords") if isinstance(stats, str) and stats else None
        if isinstance(told, int):
            return told
        store = self.snapshot.place.store()
        file = DataFile(path=str(action["path"]), size_bytes=0, partition={})
        size = action.get("size") or next((o.size_bytes for o in store.list(file.key)), 0)
        return int(open_parquet(store, DataFile(file.path, int(size), {})).metadata.num_rows)

    def _has_vectors(self, step: Version) -> ConfigurationError:
        return ConfigurationError(
            f"{step} of {self.name} has deletion vectors, which are not applied here; purge them "
            "(REORG TABLE ... APPLY (PURGE)), set delta.enableDeletionVectors to false, and "
            f"{BEGIN_ANEW} behind it"
        )

    def _refused(self, step: Version, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{step} of {self.name} {what}, and a source of appended rows cannot tell which; "
            f"read it with changes='rows', pass over it with skip_overwrites=True, or {BEGIN_ANEW} "
            "behind it"
        )


def _fitted(rows: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """*rows* in the columns of *schema*; those that the file has not are null.

    Raises:
        ConfigurationError: a column of the file *what* is of another type than the table's now.
    """
    import pyarrow as pa

    columns = []
    for one in schema:
        if one.name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, one.type))
            continue
        column = rows.column(one.name)
        try:
            fits = _sort_of(column.type) == _sort_of(one.type)
            columns.append(cast_exactly(column, one.type) if fits else None)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            columns.append(None)
        if columns[-1] is None:
            raise ConfigurationError(
                f"column {one.name!r} is {column.type} in {what}, and {one.type} in the table now, "
                f"which does not hold its values; {BEGIN_ANEW} behind that change, or leave the "
                "column out of columns=..."
            )
    kinds = [(one.name, one.type) for one in schema]
    return pa.Table.from_arrays(columns, schema=pa.schema(kinds))


def _sort_of(dtype: pa.DataType) -> str:
    """Types of one sort differ in width, unit or nullability; files of a table may, too."""
    import pyarrow as pa

    if is_text(dtype):
        return "text"
    if pa.types.is_dictionary(dtype):
        return _sort_of(dtype.value_type)
    for sort, names in (
        ("number", (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)),
        ("time", (pa.types.is_timestamp, pa.types.is_date)),
        ("bytes", (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)),
        ("list", (pa.types.is_list, pa.types.is_large_list)),
    ):
        if any(is_so(dtype) for is_so in names):
            return sort
    return str(dtype.id)


def _holds(now: pa.DataType, was: pa.DataType) -> bool:
    """Whether the type *now* has each value of the type *was*, as Delta widens types.

    A struct may have more fields than it had.
    """
    from pyarrow import types

    if types.is_struct(was) and types.is_struct(now):
        places = [(one.type, now.get_field_index(one.name)) for one in was]
        return all(at >= 0 and _holds(now.field(at).type, kind) for kind, at in places)
    if types.is_map(was) and types.is_map(now):
        return _holds(now.key_type, was.key_type) and _holds(now.item_type, was.item_type)
    if types.is_list(was) and types.is_list(now):
        return _holds(now.value_type, was.value_type)
    if types.is_integer(was):
        digits = {8: 3, 16: 5, 32: 10}.get(was.bit_width, 19)
        is_wider = types.is_integer(now) and now.bit_width >= was.bit_width
        is_exact = types.is_float64(now) and was.bit_width <= 32
        return bool(is_wider or is_exact or _has_digits(now, digits, 0))
    if types.is_decimal(was):
        return _has_digits(now, was.precision - was.scale, was.scale)
    is_wider = types.is_float64(now) and types.is_floating(was)
    return bool(now == was or is_wider or (types.is_timestamp(now) and types.is_date(was)))


def _has_digits(now: pa.DataType, whole: int, fraction: int) -> bool:
    from pyarrow import types

    return bool(
        types.is_decimal(now) and now.scale >= fraction and now.precision - now.scale >= whole
    )


def _weights(told: pa.Array | None, kind: str, count: int) -> pa.Array:
    """The weights of *count* rows of the *kind*, or of the kinds that the feed has *told*."""
    import pyarrow as pa

    if told is None:
        return pa.repeat(pa.scalar(WEIGHTS[kind], pa.int8()), count)
    kinds = told.dictionary_encode()
    weights = [WEIGHTS.get(one) for one in kinds.dictionary.to_pylist()]
    found = pa.array(weights, pa.int8()).take(kinds.indices)
    if found.null_count:
        unknown = next(one for one in told.to_pylist() if one not in WEIGHTS)
        raise ConfigurationError(f"the change feed has a row of the kind {unknown!r}")
    return found
