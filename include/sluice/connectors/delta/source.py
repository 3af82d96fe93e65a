"""The source of a Delta table, version by version, of rows that were appended or of all changes.

Of each version the files are read that it added.  One whose actions change no row (OPTIMIZE) is
skipped.  One that changes or deletes rows cannot be read as appended rows, and is refused or, if
that is declared, skipped.  With ``changes`` it is read, as the change data feed: the version's own
files of changes, or else each row of a file that it added or removed.

The entry ``versions`` of a position has the number of the next version, and the table's id: a
table that was made anew at its place is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from sluice.connectors.appended import (
    BASE,
    AddedFile,
    AppendedSource,
    Cursor,
    row_range,
)
from sluice.connectors.delta.table import (
    Action,
    DataFile,
    DeltaPlace,
    Snapshot,
    info_of,
    open_parquet,
    with_partition,
)
from sluice.connectors.files.parquet import cast_to_known_schema, known_schema
from sluice.core.plan import Slice
from sluice.declaration.columns import check_source_columns
from sluice.errors import ConfigurationError
from sluice.store.object_store import in_parallel

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

VERSIONS = "versions"
CHANGE, COMMIT = "_change_type", "_commit_version"
THREADS = 16
ENTRIES_AT_ONCE = 200  # Versions whose entries a plan reads ahead; of later ones no rows are known.


@dataclass(frozen=True, slots=True)
class Version:
    """A version to read: what it added, or with ``is_base`` the whole table as it was then."""

    number: int
    table_id: str
    is_base: bool = False

    @property
    def sequence(self) -> int:
        return self.number + 1

    @property
    def version(self) -> str:
        return self.table_id

    def __str__(self) -> str:
        return f"version {self.number}"


@dataclass(frozen=True, slots=True)
class DeltaSource(AppendedSource["Versions", Version]):
    """See ``Source``, and ``declared_source.DeltaTable`` for the options."""

    place: DeltaPlace
    start: str = "earliest"
    columns: tuple[str, ...] = ()
    changes: bool = False
    skip_overwrites: bool = False
    bounded: bool = False

    def __post_init__(self) -> None:
        if self.start not in ("earliest", "latest") and not self.start.isdecimal():
            raise ConfigurationError(
                f"the start {self.start!r} of {self.place.name} is unknown; write 'earliest', "
                "'latest', or a version's number"
            )

    @property
    def mark(self) -> str:
        return VERSIONS

    def schema(self) -> pa.Schema:
        found = known_schema(self._projection(self._snapshot()), self.place.name)
        check_source_columns(found.names, self.place.name)
        return found

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        snapshot = self._snapshot()
        wanted = self._projection(snapshot)
        if columns is not None:
            whole = {path.partition(".")[0] for path in columns}
            wanted = pa.schema([one for one in wanted if one.name in whole])
        known = known_schema(wanted, self.place.name)
        number, kind, file = self._found(piece.partition)
        parquet = open_parquet(self.place.store(), file)
        there = [name for name in wanted.names if name in parquet.schema_arrow.names]
        added = {CHANGE: kind, COMMIT: number}
        for batch in row_range(parquet, piece.start, piece.end, there):
            rows = with_partition(pa.Table.from_batches([batch]), file, wanted)
            for name, value in added.items():
                if name in wanted.names and name not in rows.column_names:
                    constant = pa.scalar(value, wanted.field(name).type)
                    rows = rows.append_column(name, pa.repeat(constant, rows.num_rows))
            for one in fitted(rows, wanted).to_batches():
                yield cast_to_known_schema(one, known, file.path)

    @contextmanager
    def _appends(self) -> Iterator[Versions]:
        snapshot = self._snapshot()
        yield Versions(snapshot, self.changes, self.skip_overwrites)

    def _snapshot(self) -> Snapshot:
        snapshot = self.place.load()
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
            return Cursor(VERSIONS, snapshot.version + 1, snapshot.id)
        number = int(self.start) if self.start.isdecimal() else snapshot.version
        if number > snapshot.version:
            raise ConfigurationError(
                f"{self.place.name} has no version {number} yet; begin with one up to "
                f"{snapshot.version}"
            )
        return Cursor(VERSIONS, number, f"{BASE}{snapshot.id}")

    def _steps(self, appends: Versions, cursor: Cursor) -> list[Version]:
        snapshot = appends.snapshot
        is_base = cursor.version.startswith(BASE)
        table_id = cursor.version.removeprefix(BASE)
        if table_id != snapshot.id or cursor.sequence > snapshot.version + 1:
            raise ConfigurationError(
                f"{self.place.name} was read to version {cursor.sequence - 1} of the table "
                f"{table_id}, and is {snapshot.id} at version {snapshot.version} now, so it was "
                "made anew or put back; put that table back, or begin anew without this state"
            )
        numbers = range(cursor.sequence, snapshot.version + 1)
        steps = [Version(number, table_id, is_base and number == numbers[0]) for number in numbers]
        appends.read_ahead([step for step in steps[:ENTRIES_AT_ONCE] if not step.is_base])
        return steps

    def _projection(self, snapshot: Snapshot) -> pa.Schema:
        import pyarrow as pa

        schema = snapshot.schema
        if self.changes:
            schema = pa.schema([*schema, (CHANGE, pa.string()), (COMMIT, pa.int64())])
        if not self.columns:
            return schema
        if missing := [name for name in self.columns if name not in schema.names]:
            raise ConfigurationError(
                f"{self.place.name} has no column {missing[0]!r}; it has {', '.join(schema.names)}"
            )
        return pa.schema([schema.field(name) for name in self.columns])

    def _found(self, partition: str) -> tuple[int, str, DataFile]:
        """The version, the kind of change and the file that a partition's name tells."""
        path, _, query = partition.partition("?")
        told = dict(parse_qsl(query, keep_blank_values=True))
        values = {
            name.removeprefix("="): value for name, value in told.items() if name.startswith("=")
        }
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
    _entries: dict[int, list[Action] | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.snapshot.place.name

    def read_ahead(self, steps: Sequence[Version]) -> None:
        entries = in_parallel(lambda step: self.snapshot.place.entry(step.number), steps, THREADS)
        self._entries.update(zip([step.number for step in steps], entries, strict=True))

    def files(self, step: Version, /) -> list[AddedFile]:
        """Raises ConfigurationError: rows were changed or deleted, or the version is gone."""
        if step.is_base:
            return self._base(step)
        entry = self._entry(step)
        added = [one["add"] for one in entry if one.get("add", {}).get("dataChange")]
        removed = [one["remove"] for one in entry if one.get("remove", {}).get("dataChange")]
        if any("deletionVector" in one and one["deletionVector"] for one in (*added, *removed)):
            raise self._refused(step, "has deletion vectors, which are not applied here")
        if self.changes:
            fed = [one["cdc"] for one in entry if "cdc" in one]
            if fed:
                return self._listed(step, fed, "")
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
            raise self._refused(step, "has deletion vectors, which are not applied here")
        told = [
            {"path": one.path, "partitionValues": one.partition, "size": one.size_bytes}
            | ({} if one.rows is None else {"stats": f'{{"numRecords":{one.rows}}}'})
            for one in snapshot.files
        ]
        return self._listed(step, told, "")

    def _entry(self, step: Version) -> list[Action]:
        if step.number not in self._entries:
            self._entries[step.number] = self.snapshot.place.entry(step.number)
        entry = self._entries[step.number]
        if entry is None:
            raise ConfigurationError(
                f"{step} of {self.name} was cleaned out of its log before it was read; begin anew, "
                "and keep the log for longer (delta.logRetentionDuration)"
            )
        return entry

    def _listed(
        self, step: Version, actions: Sequence[dict[str, Any]], change: str
    ) -> list[AddedFile]:
        found = []
        for one in sorted(actions, key=lambda one: str(one["path"])):
            told = {"version": str(step.number)} | ({"change": change} if change else {})
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

    def _refused(self, step: Version, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"{step} of {self.name} {what}, and a source of appended rows cannot tell which; read "
            "it with changes=True, pass over it with skip_overwrites=True, or begin anew behind it"
        )


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """*rows* in the columns of *schema*; those that the file has not are null."""
    import pyarrow as pa

    columns = [
        rows.column(one.name).cast(one.type, safe=False)
        if one.name in rows.column_names
        else pa.nulls(rows.num_rows, one.type)
        for one in schema
    ]
    kinds = [(one.name, one.type) for one in schema]
    return pa.Table.from_arrays(columns, schema=pa.schema(kinds))
