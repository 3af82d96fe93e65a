"""A Delta table as a sink: each checkpoint is published as one version of its log.

A version has the rows' files and an application transaction, ``txn`` of the application ``sluice``,
whose number names the table's note, ``_sluice/{number}.json``: the time line of what was published
(``staged_sink.encoded_note``), with the table's own id and the versions that wrote it last.  A note
is written before its version, under a number that nobody has used, and counts once the log has it.

The log keeps transactions when somebody restores an older version.  So the versions behind the
one that wrote the note are looked at, and a ``RESTORE`` shows the note of the version it restored.

Every commit, also one without rows and that of a restore, is the version after the one that was
looked at: a commit that was overtaken is refused by the store, looks again, and finds the other's
note.  Rows are staged below the job's root, where no VACUUM looks, and copied into the table by
the commit: byte by byte, where they have the table's columns and it has no partitions.

With an upsert key, files with older rows of the keys are rewritten without them in that version.
"""

from __future__ import annotations

import io
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sluice.connectors.columns import fitted_rows, remaining_rows
from sluice.connectors.delta_log import (
    TEXT_IN_STATISTICS,
    Action,
    DataFile,
    DeltaPlace,
    Snapshot,
    added_action,
    as_path,
    created,
    info_of,
    new_path,
    null_counts,
    open_parquet,
    partition_text,
    removed,
    with_partition,
)
from sluice.connectors.row_files import NULL_FOLDER, encode_parquet, split_by_partition
from sluice.connectors.staged_sink import (
    Note,
    TargetDefaults,
    attempts,
    decoded_note,
    encoded_note,
    errors_of_place,
)
from sluice.core.timeline import Recovery, Timeline, Writer
from sluice.declaration.places import RollBack
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.store.object_store import Created, in_parallel, machine_clock_ms
from sluice.store.open import verify_store

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sluice.connectors.staged_sink import EpochRows

APPLICATION = "sluice"  # Of the transactions: a table has one time line, whoever writes it.
CHECKPOINT = "sluice.checkpoint-id"  # In a version's commitInfo; absent in that of a restore.
NOTES_KEPT = 1_000  # A RESTORE to a version that an older note is of, is refused.
VERSIONS_KEPT = 16
MAX_BYTES = 64_000  # Of a note, which is an object of its own.
FIX = "put it back, or write an empty file there and restore the job with --accept-tables"
# deltalake reads no table without columns, and an epoch without rows knows none.
NO_COLUMNS = "_no_columns_yet"
THREADS = 16


@dataclass(frozen=True, slots=True)
class _Head:
    """The newest version of the table, None if there is none, and its time line."""

    snapshot: Snapshot | None
    number: int = 0
    note: Note | None = None
    timeline: Timeline = field(default_factory=Timeline)

    @property
    def version(self) -> int:
        return -1 if self.snapshot is None else self.snapshot.version

    @property
    def has_columns(self) -> bool:
        return self.snapshot is not None and self.snapshot.schema.names != [NO_COLUMNS]


@dataclass(frozen=True, slots=True)
class DeltaTarget(TargetDefaults):
    """See ``staged_sink.Target``."""

    place: DeltaPlace
    upsert_key: tuple[str, ...] = ()
    create: bool = False
    partition_by: tuple[str, ...] = ()

    @property
    def rolls_back(self) -> RollBack:
        return RollBack.ON_REQUEST

    def check(self, schema: pa.Schema, rows: EpochRows) -> None:
        head = self._head()
        if head.has_columns and head.snapshot is not None:
            head.snapshot.check_writable(changes=bool(self.upsert_key))
            wanted, columns = head.snapshot.schema, head.snapshot.partition_columns
            self._check_key(wanted)
        else:
            wanted, columns = self._columns_of(schema), self.partition_by
        self._check_values(schema.empty_table(), wanted, columns)
        required = [one.name for one in wanted if not one.nullable and one.name in schema.names]
        there = plain(wanted)
        is_cast = any(there[name] != kind for name, kind in plain(schema).items())
        if is_cast or columns or rows.has_nulls(required):
            for table in rows.upserts():  # A value that does not fit could never be committed.
                self._check_values(table, wanted, columns)

    def publish(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: EpochRows
    ) -> None:
        added: dict[tuple[str, ...], list[_Written]] = {}

        def changed(head: _Head) -> _Change:
            snapshot, metadata = head.snapshot, list[Action]()
            if head.has_columns and snapshot is not None:
                snapshot.check_writable(changes=bool(self.upsert_key))
                wanted, columns = snapshot.schema, snapshot.partition_columns
                self._check_key(wanted)
            elif (found := rows.schema()) is not None:
                wanted, columns = self._columns_of(found), self.partition_by
                metadata = self._metadata(wanted, snapshot, columns)
            else:
                wanted, columns = placeholder(), ()
                metadata = [] if snapshot is not None else self._metadata(wanted, None)
            files = _Files(self.place, wanted, columns, checkpoint_id)
            kind = (str(wanted), *columns)
            if kind not in added:
                added[kind] = [*files.copied(rows)]
            change = _Change(metadata, [one.action for one in added[kind]])
            if self.upsert_key and rows.row_count and head.has_columns and snapshot is not None:
                files.replace(change, snapshot, self._keys(rows, wanted, columns), rows)
            return change

        self._commit(
            lambda head: head.timeline.publishing(writer, checkpoint_id, parent),
            changed,
            {CHECKPOINT: checkpoint_id},
        )

    def timeline(self) -> Timeline:
        return self._head().timeline

    def is_empty(self) -> bool:
        snapshot = self._head().snapshot
        return snapshot is None or all(one.rows == 0 for one in snapshot.files)

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        def changed(head: _Head) -> _Change:
            snapshot = head.snapshot
            if snapshot is None:
                return _Change(self._metadata(placeholder(), None))
            undone = [*head.timeline.after(recovery.version)] if recovery.roll_back else []
            if not undone or all(one.rows == 0 for one in snapshot.files):
                return _Change()
            if head.timeline.is_cut and (recovery.version or 0) < head.timeline.oldest:
                raise self._cannot("its note has forgotten older checkpoints")
            return self._undone(snapshot, undone)

        self._commit(
            lambda head: head.timeline.recovered(writer, recovery),
            changed,
            {"sluice.through": recovery.through},
        )

    def describe(self, version: int) -> str:
        head = self._head()
        for one in () if head.note is None else head.note.at:
            if self._checkpoint_of(self.place.entry(one)) == version:
                return f"version {one} of {self.place.name}"
        return f"checkpoint {version} of {self.place.name}"

    def _commit(
        self,
        decide: Callable[[_Head], Timeline | None],
        changed: Callable[[_Head], _Change],
        marks: dict[str, Any],
    ) -> None:
        """Write the change and the note that is decided, as one version.

        Raises:
            StoreUnavailable: the store did not answer, or other writers were always faster.
        """
        store = self.place.store()
        for _ in attempts(f"{self.place.name} could not be written"):
            head = self._head()
            with errors_of_place(f"Delta table {self.place.location.root}"):
                timeline = decide(head)
            if timeline is None:
                return
            if head.snapshot is None and not self.create:
                raise self._missing()
            if head.note is None:
                verify_store(store, f"_sluice/probes/{uuid.uuid4().hex}")
            if head.snapshot is not None:
                head.snapshot.check_writable(changes=False)
            change = changed(head)
            version, now_ms = head.version + 1, machine_clock_ms()
            number = self._noted(head, version, timeline, change)
            info = {
                "timestamp": now_ms,
                "operation": "WRITE",
                "operationParameters": {"mode": "Append"},
                "engineInfo": "sluice",
                "isBlindAppend": not (self.upsert_key or change.removed),
                "sluice.attempt": secrets.token_hex(8),  # No two writers write equal bytes.
                **marks,
            }
            txn = {"appId": APPLICATION, "version": number, "lastUpdated": now_ms}
            if self.place.write(version, [{"commitInfo": info}, {"txn": txn}, *change.actions()]):
                store.delete([note_key(number - NOTES_KEPT)])
                found = {} if head.snapshot is None else head.snapshot.configuration
                self.place.tidy(version, found)
                return
            store.delete([one.key for one in change.rewritten])  # Another's is that version.

    def _head(self) -> _Head:
        snapshot = self.place.load()
        if snapshot is None:
            return _Head(None)
        with self.place.failures():
            number = snapshot.table.transaction_version(APPLICATION) or 0
        note = self._note(snapshot, number)
        if note is None:
            return _Head(snapshot, number)
        return _Head(snapshot, number, note, self._shown(snapshot, note))

    def _note(self, snapshot: Snapshot, number: int) -> Note | None:
        """The note of a version; None if nobody has written one, or it is another table's."""
        if not number:
            return None
        place = f"{self.place.location.root}/{note_key(number)}"
        body = self.place.store().get(note_key(number))
        if body is None:
            raise ProtocolViolation(f"{place}, the note of the Delta table, is missing; {FIX}")
        if not body:
            return None
        note = decoded_note(body.decode(errors="replace"), place, FIX)
        return note if note.table == snapshot.id else None

    def _shown(self, snapshot: Snapshot, note: Note) -> Timeline:
        """The table's content: what *note* says, unless somebody restored an older version since.

        An entry of the log that was cleaned up is passed over: maintenance must not stop a job.
        """
        for version in range(snapshot.version, note.at[0] if note.at else snapshot.version, -1):
            info = info_of(self.place.entry(version) or [])
            if info.get("operation") != "RESTORE":
                continue
            older = self._restored(version, info.get("operationParameters", {}).get("version"))
            with self.place.failures():
                number = older.table.transaction_version(APPLICATION) or 0
            then = self._note(older, number)
            ids = () if then is None else self._shown(older, then).published
            return note.timeline.showing(
                one for first, last in ids for one in range(first, last + 1)
            )
        return note.timeline

    def _restored(self, version: int, named: object) -> Snapshot:
        """The version that was restored by this one: the one it *named*, or has the files of."""
        number = str(named).strip('"')
        candidates = [int(number)] if number.isdecimal() else range(version - 1, -1, -1)
        now = self.place.load(version)
        wanted = {one.path for one in now.files} if now is not None else set[str]()
        for candidate in candidates:
            older = self.place.load(candidate)
            if older is not None and (
                number.isdecimal() or {one.path for one in older.files} == wanted
            ):
                return older
        raise ProtocolViolation(
            f"version {version} of {self.place.name} restored a version that its log has no more"
        )

    def _noted(self, head: _Head, version: int, timeline: Timeline, change: _Change) -> int:
        """The number under which the note was written, which no other commit has."""
        older = () if head.note is None else head.note.at
        table = change.table_id or (head.snapshot.id if head.snapshot is not None else "")
        note = Note(timeline=timeline, table=table, at=(version, *older)[:VERSIONS_KEPT])
        body, number = encoded_note(note, MAX_BYTES).encode(), head.number + 1
        while True:
            result = self.place.store().create(note_key(number), body)
            if isinstance(result, Created) or result.body == body:
                return number
            number += 1

    def _undone(self, snapshot: Snapshot, undone: Sequence[int]) -> _Change:
        """The change back to the version before the first of *undone*.

        Raises:
            ConfigurationError: other writers changed rows since, or a version or file is gone.
        """
        snapshot.check_writable(changes=True)
        version = self._version_before(snapshot, undone)
        older = self.place.load(version) if version >= 0 else None
        before = {} if older is None else {one.path: one for one in older.files}
        now = {one.path: one for one in snapshot.files}
        if older is not None and older.has_vectors:
            raise self._cannot(f"version {version} has deletion vectors")
        store = self.place.store()
        back = [one for path, one in before.items() if path not in now]
        bodies = in_parallel(lambda one: store.get_range(one.key, 0, 1), back, THREADS)
        if gone := [one.path for one, body in zip(back, bodies, strict=True) if body is None]:
            raise self._cannot(f"{gone[0]}, which it had, was deleted (VACUUM)")
        added = [
            added_action(one, open_parquet(store, one).metadata, snapshot.schema) for one in back
        ]
        return _Change(
            added=added, removed=[removed(one) for path, one in now.items() if path not in before]
        )

    def _version_before(self, snapshot: Snapshot, undone: Sequence[int]) -> int:
        wanted, others = set(undone), list[str]()
        for version in range(snapshot.version, -1, -1):
            entry = self.place.entry(version)
            if entry is None:
                break
            info = info_of(entry)
            if CHECKPOINT in info:
                wanted.discard(int(info[CHECKPOINT]))
                if not wanted:
                    if others:
                        raise self._cannot(
                            "other writers' versions would be lost: " + ", ".join(others[::-1])
                        )
                    return version - 1
            elif "sluice.through" not in info and changes_rows(entry):
                others.append(f"{version} ({info.get('operation', 'unknown')})")
        raise self._cannot(
            "the versions of checkpoints "
            f"{', '.join(map(str, sorted(wanted)))} are not in its log any more"
        )

    def _cannot(self, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self.place.name} cannot be rolled back: {why}; restore without rolling back, or "
            "repair the table by hand"
        )

    def _missing(self) -> ConfigurationError:
        return ConfigurationError(
            f"there is no Delta table at {self.place.location.root}; create it, or let the sink do "
            "so with create=True"
        )

    def _checkpoint_of(self, entry: list[Action] | None) -> int | None:
        found = info_of(entry or []).get(CHECKPOINT)
        return None if found is None else int(found)

    def _check_values(self, rows: pa.Table, schema: pa.Schema, partitions: Sequence[str]) -> None:
        rows = _fitted(rows, schema, self.place.name, are_all=True)
        if partitions:
            next(split_by_partition(rows, partitions, self.place.name), None)
        for name in partitions:
            if NULL_FOLDER in rows.column(name).unique().to_pylist():
                raise ConfigurationError(
                    f"{self.place.name} is partitioned by {name!r}, and in a partition Delta's "
                    f"readers take the text {NULL_FOLDER!r} for null; replace it, or leave it out"
                )

    def _check_key(self, schema: pa.Schema) -> None:
        if missing := [name for name in self.upsert_key if name not in schema.names]:
            raise ConfigurationError(
                f"{self.place.name} has no column {missing[0]!r}, by which the sink upserts; it "
                f"has {', '.join(schema.names)}"
            )

    def _columns_of(self, rows: pa.Schema) -> pa.Schema:
        """The columns of a table that is created for *rows*."""
        if not self.create:
            raise self._missing()
        self._check_key(rows)
        if missing := [name for name in self.partition_by if name not in rows.names]:
            raise ConfigurationError(
                f"the rows for {self.place.name} have no column {missing[0]!r}, by which it is to "
                f"be partitioned; they have {', '.join(rows.names)}"
            )
        return table_schema(rows, self.place.name)

    def _metadata(
        self, schema: pa.Schema, snapshot: Snapshot | None, partitions: Sequence[str] = ()
    ) -> list[Action]:
        found = {} if snapshot is None else snapshot.configuration
        table_id = str(uuid.uuid4()) if snapshot is None else snapshot.id
        return created(schema, table_id, partitions, found)

    def _keys(self, rows: EpochRows, schema: pa.Schema, partitions: Sequence[str]) -> pa.Table:
        """The keys of all rows to write or delete, as the table has them once they are written."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = pa.schema([(name, schema.field(name).type) for name in self.upsert_key])
        tables = (table for part in (rows.deletes(), rows.upserts()) for table in part)
        found = (table.select([*self.upsert_key]) for table in tables)
        keys = pa.concat_tables([_fitted(one, wanted, self.place.name) for one in found])
        for place, (name, values) in enumerate(zip(keys.column_names, keys.columns, strict=True)):
            if name in partitions and pa.types.is_string(values.type):
                values = pc.if_else(pc.equal(values, ""), None, values)  # noqa: PLW2901
                keys = keys.set_column(place, name, values)  # See ``partition_text``.
        return keys


@dataclass(slots=True)
class _Change:
    """The actions of a version; ``rewritten`` are the files that are of no use without it."""

    metadata: list[Action] = field(default_factory=list)
    added: list[Action] = field(default_factory=list)
    removed: list[Action] = field(default_factory=list)
    rewritten: list[DataFile] = field(default_factory=list)

    @property
    def table_id(self) -> str:
        return next((str(one["metaData"]["id"]) for one in self.metadata if "metaData" in one), "")

    def actions(self) -> list[Action]:
        return [*self.metadata, *self.removed, *self.added]


@dataclass(frozen=True, slots=True)
class _Written:
    file: DataFile
    action: Action


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that a commit writes into the table of *schema*."""

    place: DeltaPlace
    schema: pa.Schema
    partition_columns: tuple[str, ...]
    checkpoint_id: int
    prefix: str = ""

    def copied(self, rows: EpochRows) -> Iterator[_Written]:
        """The data files of the checkpoint's rows, one staged file in memory at a time."""
        import pyarrow.parquet as pq

        from sluice.connectors.staged_files import is_deletes

        for staged in sorted(rows.staged, key=lambda one: one.file):
            if is_deletes(staged.file):
                continue
            body = rows.files.body(
                staged.file, size_bytes=staged.size_bytes, expected=staged.checksum
            )
            found = pq.ParquetFile(io.BytesIO(body))
            if not self.partition_columns and self._fits(found):
                yield self._put(body, found.metadata, "", {})
            else:
                yield from self.written(found.read())

    def written(self, rows: pa.Table) -> Iterator[_Written]:
        """The data files of *rows*, one for each partition."""
        rows = _fitted(rows, self.schema, self.place.name, are_all=True)
        if not self.partition_columns:
            yield self._encoded(rows, "", {})
            return
        for folder, part in split_by_partition(rows, self.partition_columns, self.place.name):
            first = part.slice(0, 1).select([*self.partition_columns]).to_pylist()[0]
            partition = {name: partition_text(value) for name, value in first.items()}
            yield self._encoded(part.drop_columns([*self.partition_columns]), folder, partition)

    def replace(self, change: _Change, snapshot: Snapshot, keys: pa.Table, rows: EpochRows) -> None:
        """Take the rows of *keys* out of the files of *snapshot*, with one in memory at a time.

        Null is a key like any other, as in every sink of sluice.
        """
        import polars as pl

        deleted = pl.from_arrow(keys)
        assert isinstance(deleted, pl.DataFrame)
        deleted = deleted.unique()
        gone: list[pa.Table] = []
        store = self.place.store()
        for old in _pruned(snapshot.files, deleted):
            parquet = open_parquet(store, old)
            wanted = [name for name in keys.column_names if name in parquet.schema_arrow.names]
            found = with_partition(parquet.read(wanted), old, keys.schema)
            found = _fitted(found, keys.schema, self.place.name)
            remaining = remaining_rows(found, deleted)
            if remaining is None:
                continue
            change.removed.append(removed(old))
            if not remaining.any() and not snapshot.feeds_changes:
                continue
            whole = with_partition(parquet.read(), old, self.schema)
            gone.append(whole.filter((~remaining).to_arrow()))
            if remaining.any():
                for one in self.written(whole.filter(remaining.to_arrow())):
                    change.added.append(one.action)
                    change.rewritten.append(one.file)
        if snapshot.feeds_changes and change.removed:
            change.added += self._fed("delete", gone)
            change.added += self._fed("insert", rows.upserts())

    def _fed(self, kind: str, tables: Iterable[pa.Table]) -> Iterator[Action]:
        """The files of the change data feed; where a version has some, readers take only these."""
        import pyarrow as pa

        change = pa.field("_change_type", pa.string())
        fed = replace(self, schema=self.schema.append(change), prefix="_change_data/")
        for table in tables:
            kinds = pa.repeat(pa.scalar(kind), table.num_rows)
            for one in fed.written(table.append_column(change, kinds)):
                path, values = one.file.path, dict(one.file.partition)
                size = one.file.size_bytes
                told = {"path": path, "partitionValues": values, "size": size, "dataChange": False}
                yield {"cdc": told}

    def _fits(self, file: pq.ParquetFile) -> bool:
        """Whether a staged file is as it would be written from its rows."""
        found, wanted = plain(file.schema_arrow), plain(self.schema)
        counts = null_counts(file.metadata)
        return all(found.get(name) == kind for name, kind in wanted.items() if name in found) and (
            set(found) <= set(wanted)
            and all(
                one.nullable or (one.name in found and counts.get(one.name) == 0)
                for one in self.schema
            )
        )

    def _encoded(self, rows: pa.Table, folder: str, partition: dict[str, str | None]) -> _Written:
        import pyarrow.parquet as pq

        body = encode_parquet(rows)
        return self._put(body, pq.read_metadata(io.BytesIO(body)), folder, partition)

    def _put(
        self,
        body: bytes,
        footer: pq.FileMetaData,
        folder: str,
        partition: dict[str, str | None],
    ) -> _Written:
        key = self.prefix + new_path(folder, self.checkpoint_id)
        self.place.store().put(key, body)
        file = DataFile(path=as_path(key), size_bytes=len(body), partition=partition)
        return _Written(file, added_action(file, footer, self.schema))


def note_key(number: int) -> str:
    return f"_sluice/{max(number, 0):020d}.json"


def changes_rows(entry: Sequence[Action]) -> bool:
    """Whether a version changed a row: compactions say that they do not."""
    return any(one.get(kind, {}).get("dataChange") for one in entry for kind in ("add", "remove"))


def _pruned(files: Sequence[DataFile], keys: pl.DataFrame) -> list[DataFile]:
    """The files that may have one of *keys*, by their partitions and statistics."""
    may_have = [_by_partition(column) for column in keys] + [_by_statistics(one) for one in keys]
    return [file for file in files if all(one(file) for one in may_have)]


def _by_partition(column: pl.Series) -> Callable[[DataFile], bool]:
    """Whether a file may be of a partition with a value of the key's *column*."""
    import polars as pl

    # The log's texts of other types are each writer's own.
    is_one_text = column.dtype.is_integer() or column.dtype in (pl.String, pl.Date, pl.Boolean)
    wanted = {partition_text(one) for one in column.unique()} if is_one_text else set()
    name = column.name
    return lambda file: (
        not is_one_text or name not in file.partition or file.partition[name] in wanted
    )


def _by_statistics(column: pl.Series) -> Callable[[DataFile], bool]:
    """Whether a file may have one of the *column*'s values, by the least and greatest it has."""
    import polars as pl

    name, values = column.name, column.sort()
    is_told = column.dtype.is_integer() or column.dtype == pl.String

    def may_have(file: DataFile) -> bool:
        least, most = (file.least or {}).get(name), (file.most or {}).get(name)
        if not is_told or values.null_count() or least is None or most is None:
            return True
        if isinstance(least, str):  # deltalake may have cut long texts.
            return bool(values[-1] >= least[:TEXT_IN_STATISTICS])
        at = int(values.search_sorted(least))
        return at < len(values) and bool(values[at] <= most)

    return may_have


def placeholder() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(NO_COLUMNS, pa.bool_())])


def plain(schema: pa.Schema) -> dict[str, pa.DataType]:
    """The types of the columns, of which Parquet's files do not tell large ones from others."""
    import pyarrow as pa

    same = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return {field.name: same.get(field.type, field.type) for field in schema}


def table_schema(rows: pa.Schema, name: str) -> pa.Schema:
    """The columns of a table created for *rows*: Delta has no unsigned numbers, and microseconds.

    Raises:
        ConfigurationError: it has no type for a column.
    """
    import pyarrow as pa
    from deltalake import Schema

    types = pa.types
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
    wider[pa.uint64()] = pa.int64()

    def held(kind: pa.DataType) -> pa.DataType:
        if types.is_timestamp(kind):
            return pa.timestamp("us", tz="UTC" if kind.tz else None)
        return wider.get(kind, kind)

    fields = [field.with_type(held(field.type)).remove_metadata() for field in rows]
    try:
        return pa.schema(Schema.from_arrow(pa.schema(fields)).to_arrow())
    except Exception as error:
        raise ConfigurationError(
            f"{name} cannot be created from these columns: {error}; convert them in the stage"
        ) from error


def _fitted(rows: pa.Table, schema: pa.Schema, name: str, *, are_all: bool = False) -> pa.Table:
    """See ``columns.fitted_rows``; *are_all*: a required column may not be missing either."""
    for wanted in schema if are_all else ():
        if not wanted.nullable and wanted.name not in rows.column_names:
            raise ConfigurationError(
                f"column {wanted.name!r} of {name} is required, and the rows have only "
                f"{', '.join(rows.column_names)}; write it in the stage, or make it nullable"
            )
    return fitted_rows(rows, schema, name, truncates_times=True, optional="nullable")
