"""The columns of a table whose files differ: each has the type that holds all of its values.

A column may be added or left out, and is then null.  In another case it is the same column, which
has the name of its first file.  Its type may become a wider one, which holds
every value exactly:

    integers          those that hold both         uint8 and int8: int16
    floats            the wider; with integers     int32 and float: double; int64 and double: none
    decimals          digits before and after      38 of them; with integers, too
    text, bytes       with 32 or 64-bit offsets
    lists, structs    what is in them, likewise; a struct has the fields of both
    null              any

Anything else has no common type: a whole number is no text, and an instant is no local time.

``TableSchemas`` checks that rows fit the table before their checkpoint completes; ``read_chain``
reads files together, in the order in which they apply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from sluice.connectors.columns import MAX_DECIMAL_DIGITS
from sluice.connectors.delta_log import LOG
from sluice.connectors.files_table.log import READ_THREADS, TableLog, timeline_of
from sluice.connectors.row_files import decode_schema, encode_schema
from sluice.connectors.staged_files import (
    COLUMNS,
    RowFile,
    StagedFiles,
    columns_key,
    is_json,
    keys_of,
    newest_rows,
    schema_key,
)
from sluice.connectors.staged_sink import require_parent
from sluice.core.answers import Committable
from sluice.core.timeline import writer_named
from sluice.declaration.places import DELETED
from sluice.errors import ConfigurationError, ProtocolViolation, TableMismatch
from sluice.store.object_store import RangeReader, in_parallel

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.connectors.files_table.delta_view import DeltaView

MOST_PARTS = 200  # Each is an open file, of which a process may have 1,024.

_DELTA = "delta-"
_FLOAT_BITS = {"float": 24, "double": 53}  # The bits of whole numbers that floats hold exactly.


@dataclass(frozen=True, slots=True)
class TableSchemas:
    """The recorded schemas of the table that *files* are staged for.

        _columns/{schema}.arrow             a schema that fits all files of the table
        _columns/{writer}-{schema}.arrow    likewise, of a table outside of the job's root
        _columns/...delta-{schema}.arrow    a schema that is the same in all files of the table

    A recorded schema was compared with every file, and each later schema with it: so checking it
    costs one GET.  A new schema is compared with the recorded ones.  A restore deletes all records.
    The record says, too, that the table is the writer's own, as who takes a table over restores:
    so another root's job does not find its own, and looks whose the table is.
    So does a check that fails because of a record that no file has, left by an aborted checkpoint:
    the schemas are then read from the files, from Parquet's footers and from the names of JSON
    lines.
    """

    files: StagedFiles
    at: str = ""  # Where the sink is in its job's root; see ``Writer.sink``.
    view: DeltaView | None = None

    def check(
        self, parent: int | None, schema: pa.Schema | None, committables: Sequence[Committable]
    ) -> None:
        """Check that rows of *schema* can be read together with those of the version *parent*.

        Without a *schema* it is read from the staged files: no ack has that of a side output.

        Raises:
            ConfigurationError: a column has another type, or JSON cannot hold its type.
            TableMismatch: a table outside of the job's root does not show *parent*, or it is
                another sink's.
        """
        store = self.files.store
        if schema is None:
            staged = [file for unit in committables for file in self.files.files_of(unit)]
            schemas = self._schemas(staged)
        else:
            schemas = [schema]
        for schema in schemas:
            self.files.check_types(schema)
        names = [self._record(encode_schema(schema)[0]) for schema in schemas]
        if all(store.get(name) is not None for name in names):
            return
        if parent is not None and self.at:
            self._require_own(parent)
        where = f"the table at {store.root}"
        if self.view is not None:
            self.view.check(parent)
        elif next(iter(store.list(LOG)), None) is not None:
            raise ConfigurationError(
                f"{where} has a Delta log, and its readers would go on with the rows of now; "
                f"declare delta_log=True, or delete {LOG}"
            )
        unite = united if self.view is None else self.view.united
        records = [listed.key for listed in store.list(COLUMNS)]
        others = [key for key in records if (_DELTA in key) != (self.view is not None)]
        store.delete(others)  # So a log that is declared, and then is not, is looked for again.
        known = [self._decoded(key) for key in records if key not in others]
        if known:
            try:
                unite([*known, *schemas], where)
            except ConfigurationError:
                pass  # A record may be of an aborted checkpoint, and of no file.
            else:
                self._remember(schemas)
                return
        if parent is not None:
            schemas = [*self._schemas(TableLog(store).chain(parent).files), *schemas]
        unite(schemas, where)
        self.forget()
        self._remember(schemas)

    def forget(self) -> None:
        """Delete all records, before the table goes back or forward to another version."""
        store = self.files.store
        store.delete([listed.key for listed in store.list(COLUMNS)])

    def _decoded(self, key: str) -> pa.Schema:
        return decode_schema(self.files.store.get(key), f"{self.files.store.root}/{key}")

    def _record(self, schema: str) -> str:
        if self.view is not None:
            schema = f"{_DELTA}{schema}"
        if not self.at:
            return columns_key(schema)
        return columns_key(f"{hashlib.sha256(self.at.encode()).hexdigest()[:16]}-{schema}")

    def _require_own(self, parent: int) -> None:
        log = TableLog(self.files.store)
        line = timeline_of(log, since=parent).line
        require_parent(line, None, parent, self.files.sink)
        owner = line if line.life else log.manifest(parent)
        if owner is not None and owner.sink != self.at:
            raise TableMismatch(
                f"the table at {log.store.root} belongs to {writer_named(owner.life, owner.sink)}, "
                f"not to the sink at {self.at}: give each sink a table of its own, or have this "
                "job take it over: see 'sluice tables take-over'"
            )

    def _remember(self, schemas: Sequence[pa.Schema]) -> None:
        for schema in schemas:
            name, body = encode_schema(schema)
            self.files.store.put(self._record(name), body)

    def _schemas(self, files: Sequence[RowFile]) -> list[pa.Schema]:
        """The distinct schemas of *files*, first those of JSON lines."""
        keys = dict.fromkeys(schema_key(file.file) for file in files if is_json(file.file))
        found = [self._decoded(key) for key in keys]
        columnar = [file for file in files if not is_json(file.file)]
        found += in_parallel(self._footer, columnar, READ_THREADS)
        return [*{encode_schema(schema)[0]: schema for schema in found}.values()]

    def _footer(self, file: RowFile) -> pa.Schema:
        import pyarrow as pa
        import pyarrow.parquet as pq

        store = self.files.store
        try:
            return pq.read_schema(pa.PythonFile(RangeReader(store, file.file, file.size_bytes)))
        except pa.ArrowInvalid as error:
            place = f"{store.root}/{file.file}"
            raise ProtocolViolation(f"{place} is not the file that was committed") from error


def read_chain(
    files: StagedFiles, wanted: Sequence[RowFile], upsert_key: Sequence[str] | None
) -> pa.Table:
    """The rows of *wanted*, or with an *upsert_key* the newest of each key that was not deleted.

    Without files there are no columns.

    Raises:
        ConfigurationError: a column has two types in these files without a common one.
    """
    import pyarrow as pa

    if not wanted:
        return pa.table({})

    def read(file: RowFile) -> pa.Table:
        return files.read(file.file, rows=file.rows, size_bytes=file.size_bytes)

    tables = in_parallel(read, wanted, READ_THREADS)
    table = pa.concat_tables(_with_same_columns(tables, f"the table at {files.store.root}"))
    if not upsert_key:
        return table
    spelt = {name.lower(): name for name in table.column_names}
    key = [spelt[name.lower()] for name in upsert_key]
    return _without_deleted(table.take(newest_rows(table, key)))


def newest_in_parts(
    files: StagedFiles, wanted: Sequence[RowFile], upsert_key: Sequence[str], part_bytes: int
) -> Iterator[pa.Table]:
    """The rows of ``read_chain`` in parts, each of the keys of about so many bytes of *wanted*, or
    of more if there were too many parts.

    One file and one part are in memory at a time: the others lie on this machine's disk, under no
    name, so that none is left by a process that is killed.
    """
    import numpy as np
    import pyarrow as pa

    count = min(-(-sum(file.size_bytes for file in wanted) // part_bytes), MOST_PARTS)
    if count <= 1:
        yield read_chain(files, wanted, upsert_key)
        return
    where = f"the table at {files.store.root}"
    rows = united(TableSchemas(files)._schemas(wanted), where)  # noqa: SLF001 - of this file
    schema = rows.append(pa.field(DELETED, pa.bool_()))
    spelt = {name.lower(): name for name in schema.names}
    key = [spelt[name.lower()] for name in upsert_key]
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with ExitStack() as kept:
        parts = [kept.enter_context(TemporaryFile(prefix="sluice-merge-")) for _ in range(count)]
        with ExitStack() as written:
            streams = [
                written.enter_context(pa.ipc.new_stream(part, schema, options=options))
                for part in parts
            ]
            for file in wanted:
                read = files.read(file.file, rows=file.rows, size_bytes=file.size_bytes)
                table = _marked(conformed_to_schema(read, rows))
                hashes = keys_of(table, key).hash_rows(seed=0).to_numpy()
                numbers = (hashes % count).astype(np.int64)
                # The newest row of a key stays the last one.
                table = table.take(pa.array(np.argsort(numbers, kind="stable")))
                start = 0
                counts = np.bincount(numbers, minlength=count).tolist()
                for stream, height in zip(streams, counts, strict=True):
                    stream.write_table(table.slice(start, height))
                    start += height
        for part in parts:
            part.seek(0)
            table = pa.ipc.open_stream(part).read_all()
            yield _without_deleted(table.take(newest_rows(table, key)))


def _with_same_columns(tables: Sequence[pa.Table], where: str) -> list[pa.Table]:
    """The tables with the same columns, of the same types."""
    if all(table.schema.equals(tables[0].schema) for table in tables):
        return [*tables]
    schema = united([table.schema for table in tables], where)
    conformed = [conformed_to_schema(table, schema) for table in tables]
    if not any(DELETED in table.column_names for table in conformed):
        return conformed
    return [_marked(table) for table in conformed]


def _marked(table: pa.Table) -> pa.Table:
    """*table* with the mark of deletes, also if it has none."""
    import pyarrow as pa

    if DELETED in table.column_names:
        return table
    return table.append_column(DELETED, pa.nulls(table.num_rows, pa.bool_()))


def _without_deleted(table: pa.Table) -> pa.Table:
    """*table* without the mark of deletes; a file without the mark has no deletes."""
    import pyarrow.compute as pc

    if DELETED not in table.column_names:
        return table
    is_deleted = pc.fill_null(table.column(DELETED), False)  # noqa: FBT003 - a value
    return table.filter(pc.invert(is_deleted)).drop_columns([DELETED])


def united(schemas: Iterable[pa.Schema], table: str) -> pa.Schema:
    """The columns of all *schemas*, in the order of their first appearance.

    Raises:
        ConfigurationError: a column has two types without a common one; it names *table*.
    """
    import pyarrow as pa

    types: dict[str, pa.DataType] = {}
    spelt: dict[str, str] = {}
    for schema in schemas:
        for field in schema:
            if field.name == DELETED:
                continue
            name = spelt.setdefault(field.name.lower(), field.name)
            before = types.get(name, field.type)
            wide = wider(before, field.type)
            if wide is None:
                raise ConfigurationError(
                    f"column {field.name!r} of {table} is {before}, and the rows to be added have "
                    f"{field.type}, which no type holds both of; cast it to {before} in the stage, "
                    "give the column another name, or begin a table elsewhere"
                )
            types[name] = wide
    return pa.schema([pa.field(name, type_) for name, type_ in types.items()])


def conformed_to_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """*table* with the columns and types of *schema*, which has all its columns; others are null.

    The mark of deleted rows is kept as it is.
    """
    import pyarrow as pa

    spelt = {name.lower(): name for name in table.column_names}
    arrays = [
        table.column(spelt[field.name.lower()]).cast(field.type)
        if field.name.lower() in spelt
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in schema
    ]
    whole = pa.Table.from_arrays(arrays, schema=schema)
    if DELETED not in table.column_names:
        return whole
    return whole.append_column(DELETED, table.column(DELETED))


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds every value of both; None if there is none."""
    import pyarrow as pa

    types = pa.types
    one, other = _plain(one), _plain(other)
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if _is_number(one) and _is_number(other):
        return _wider_number(one, other)
    for small, large in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
        if {one, other} == {small, large}:
            return large
    if types.is_struct(one) and types.is_struct(other):
        return _wider_struct(one, other)
    if types.is_map(one) and types.is_map(other):
        key, item = wider(one.key_type, other.key_type), wider(one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if _is_list(one) and _is_list(other):
        item = wider(one.value_type, other.value_type)
        is_large = types.is_large_list(one) or types.is_large_list(other)
        return None if item is None else (pa.large_list if is_large else pa.list_)(item)
    return None


def _plain(type_: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _is_list(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def _is_number(type_: pa.DataType) -> bool:
    import pyarrow as pa

    is_float = str(type_) in _FLOAT_BITS
    return is_float or bool(pa.types.is_integer(type_) or pa.types.is_decimal128(type_))


def _wider_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    floats = [kind for kind in (one, other) if str(kind) in _FLOAT_BITS]
    decimals = [kind for kind in (one, other) if pa.types.is_decimal128(kind)]
    if floats and decimals:
        return None
    if len(floats) == 2:
        return pa.float64()
    if floats:
        (whole,) = (kind for kind in (one, other) if kind not in floats)
        bits = whole.bit_width - pa.types.is_signed_integer(whole)
        bits = max(bits, _FLOAT_BITS[str(floats[0])])
        fitting = (name for name, exact in _FLOAT_BITS.items() if exact >= bits)
        name = next(fitting, None)
        return None if name is None else {"float": pa.float32(), "double": pa.float64()}[name]
    if decimals:
        before, after = map(max, _digits(one), _digits(other))
        digits = before + after
        return pa.decimal128(digits, after) if digits <= MAX_DECIMAL_DIGITS else None
    return _wider_integer(one, other)


def _digits(type_: pa.DataType) -> tuple[int, int]:
    """The number of decimal digits before and after the point."""
    import pyarrow as pa

    if pa.types.is_decimal128(type_):
        return type_.precision - type_.scale, type_.scale
    return {8: 3, 16: 5, 32: 10, 64: 19 + pa.types.is_unsigned_integer(type_)}[type_.bit_width], 0


def _wider_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    signed = [pa.types.is_signed_integer(kind) for kind in (one, other)]
    if signed[0] == signed[1]:
        return max(one, other, key=lambda kind: kind.bit_width)
    with_sign, without = (one, other) if signed[0] else (other, one)
    bits = max(with_sign.bit_width, 2 * without.bit_width)
    sizes = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
    return sizes.get(bits)


def _wider_struct(one: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    import pyarrow as pa

    fields: dict[str, pa.DataType] = {}
    for field in (*one, *other):
        wide = wider(fields.get(field.name, field.type), field.type)
        if wide is None:
            return None
        fields[field.name] = wide
    return pa.struct([pa.field(name, type_) for name, type_ in fields.items()])
