"""Rows by COPY, from and to a table: CSV that Arrow parses and writes, a column at once.

No Python object is made per value, but for nested ones, which are written as JSON.  In COPY's CSV a
null is nothing and the empty string is two quotes, which Arrow distinguishes when it reads; when it
writes, it quotes every text and leaves nulls empty.

Types that are read: smallint, int, bigint, real, double precision, boolean, date and bytea keep
theirs; numeric of a precision up to 38 becomes decimal128; timestamp and timestamptz microseconds,
the latter in UTC; text, varchar, char, uuid, json, jsonb and enums become text, and arrays JSON's
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from sluice.connectors.columns import (
    MAX_DECIMAL_DIGITS,
    check_no_nul,
    check_years,
    is_bytes,
    is_text,
    nul_error,
)
from sluice.connectors.json_rows import check_json_types, encoded, json_values
from sluice.connectors.postgres.server import Connection, TableName
from sluice.declaration.columns import check_source_columns
from sluice.declaration.places import RECORD
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.sql import Composed, Identifier

CAST = re.compile(r"(?P<name>[^:]+)::(?P<type>[A-Za-z][A-Za-z0-9_ ]*(\([0-9, ]+\))?)")
TEXT_TYPES = ("text", "varchar", "bpchar", "name", "citext", "uuid", "json", "jsonb")
# CSV of a batch: large enough to keep Arrow's parser busy, and small beside a worker's memory.
BATCH_BYTES = 8 << 20
SLICE_ROWS = 1 << 16  # CSV at a time: the server parses one block while the next is written.


@dataclass(frozen=True, slots=True)
class Selected:
    """A column of the result.  ``typmod`` is PostgreSQL's modifier, -1 without one."""

    name: str
    type: str  # The type's name in the catalog: int4.
    shown: str  # Its name for people: integer.
    kind: str  # "b" base, "e" enum, ...
    typmod: int
    is_array: bool

    @property
    def is_hex(self) -> bool:
        return self.type == "bytea"

    def arrow(self) -> pa.DataType:
        """The Arrow type; ConfigurationError for a type without one."""
        import pyarrow as pa

        if self.is_array or self.kind == "e" or self.type in TEXT_TYPES:
            return pa.string()
        if self.type == "numeric":
            return self._decimal()
        plain: dict[str, pa.DataType] = {
            "int2": pa.int16(),
            "int4": pa.int32(),
            "int8": pa.int64(),
            "float4": pa.float32(),
            "float8": pa.float64(),
            "bool": pa.bool_(),
            "bytea": pa.binary(),
            "date": pa.date32(),
            "timestamp": pa.timestamp("us"),
            "timestamptz": pa.timestamp("us", tz="UTC"),
        }
        if self.type not in plain:
            raise ConfigurationError(
                f"column {self.name!r} is of type {self.shown}, which sluice does not read; leave "
                f'it out of `columns`, or cast it there: "{self.name}::text"'
            )
        return plain[self.type]

    def _decimal(self) -> pa.DataType:
        import pyarrow as pa

        cast = f'cast it in `columns`: "{self.name}::numeric({MAX_DECIMAL_DIGITS}, 9)" or ::text'
        if self.typmod < 0:
            raise ConfigurationError(
                f"column {self.name!r} is numeric without a precision, and sluice has to know how "
                f"many digits follow the point; {cast}"
            )
        precision, scale = numeric_digits(self.typmod)
        digits = max(precision, scale) if scale >= 0 else precision - scale
        if digits > MAX_DECIMAL_DIGITS:
            raise ConfigurationError(
                f"column {self.name!r} is of type numeric({precision}, {scale}), and "
                f"{MAX_DECIMAL_DIGITS} digits is the most that Arrow and Spark hold; {cast}"
            )
        return pa.decimal128(digits, max(scale, 0))


def numeric_digits(typmod: int) -> tuple[int, int]:
    """Precision and scale in a numeric's modifier: numeric_typmod_precision in numeric.c."""
    return ((typmod - 4) >> 16) & 0xFFFF, (((typmod - 4) & 0x7FF) ^ 1024) - 1024


def numeric_typmod(precision: int, scale: int) -> int:
    """The modifier of numeric(precision, scale): make_numeric_typmod in numeric.c."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


@dataclass(frozen=True, slots=True)
class Selection:
    """The columns of a table's rows, and the offset of each as ``_record``."""

    table: TableName
    offset_column: str
    columns: tuple[Selected, ...]
    casts: dict[str, str]

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        fields = [pa.field(column.name, column.arrow()) for column in self.columns]
        return pa.schema([*fields, pa.field(RECORD, pa.int64())])

    def narrowed(self, columns: Sequence[str] | None) -> Selection:
        """The columns and fields *columns* alone, whole; all of them with None."""
        if columns is None:
            return self
        names = {path.partition(".")[0] for path in columns} | {*columns}
        return replace(self, columns=tuple(one for one in self.columns if one.name in names))

    def sql(self, where: str, start: int, end: int) -> Composed:
        """The query of the rows of offsets *start* to *end*, in order, encoded for CSV.

        The offset is the first column: a byte order mark would be lost at the start of a text.
        """
        from psycopg.sql import SQL, Identifier, Literal

        offset = Identifier(self.offset_column)
        return SQL(
            "SELECT {columns} FROM {table} WHERE {offset} >= {start} AND {offset} < {end}"
            "{where} ORDER BY {offset}"
        ).format(
            columns=SQL(", ").join([offset, *self.expressions()]),
            offset=offset,
            table=self.table.sql,
            start=Literal(start),
            end=Literal(end),
            where=filter_sql(where),
        )

    def expressions(self) -> list[Composed]:
        """The columns in SQL, encoded for CSV."""
        return [self._expression(column) for column in self.columns]

    def _expression(self, column: Selected) -> Composed:
        from psycopg.sql import SQL

        value = _value(column.name, self.casts)
        if column.is_hex:
            return SQL("encode({}, 'hex')").format(value)
        return SQL("array_to_json({})").format(value) if column.is_array else value


def filter_sql(where: str) -> Composed:
    from psycopg.sql import SQL

    # SQL of the pipeline's author, who may read the table anyway.
    return SQL(f" AND ({where})" if where else "").format()


def select(
    connection: Connection, table: TableName, offset_column: str, columns: Sequence[str]
) -> Selection:
    """The selection of *columns*, names or ``name::type``, with their types from the server.

    Raises:
        ConfigurationError: there is no such column, or it cannot be cast.
    """
    from psycopg.sql import SQL, Identifier

    casts: dict[str, str] = {}
    names: list[str] = []
    for column in columns:
        match = CAST.fullmatch(column)
        if match is not None:
            casts[match["name"]] = match["type"]
        names.append(match["name"] if match is not None else column)
    wanted = SQL(", ").join(
        [SQL("{} AS {}").format(_value(name, casts), Identifier(name)) for name in names]
    )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(
            f"column {twice!r} of {table} is twice in `columns`, and a row has one column of a "
            "name; name it once"
        )
    no_rows = SQL("SELECT {} FROM {} LIMIT 0").format(wanted if names else SQL("*"), table.sql)
    result = connection.execute(no_rows).pgresult
    assert result is not None
    types = {
        oid: rest
        for oid, *rest in connection.execute(
            "SELECT oid, typname, format_type(oid, NULL), typtype::text, typcategory = 'A'"
            " FROM pg_type WHERE oid = ANY(%s::oid[])",
            [[result.ftype(number) for number in range(result.nfields)]],
        )
    }
    selected = []
    for number in range(result.nfields):
        type_, shown, kind, is_array = types[result.ftype(number)]
        name = result.fname(number)
        assert name is not None
        selected.append(Selected(name.decode(), type_, shown, kind, result.fmod(number), is_array))
    check_source_columns([column.name for column in selected], f"table {table}")
    return Selection(table, offset_column, tuple(selected), casts)


def _value(name: str, casts: dict[str, str]) -> Composed:
    from psycopg.sql import SQL, Identifier

    column = Identifier(name)
    if name not in casts:
        return SQL("{}").format(column)
    type_ = SQL(casts[name])  # CAST accepts the type's name with a modifier.
    return SQL("{}::{}").format(column, type_)


def copy_out(connection: Connection, query: Composed, batch_bytes: int) -> Iterator[bytes]:
    """The result of *query* as CSV, whole rows in pieces of about *batch_bytes*.

    It calls libpq, which returns one message per row: psycopg's own iterator takes several times
    as long.  If the iteration is abandoned, the connection is closed.
    """
    import psycopg
    from psycopg.pq import ExecStatus
    from psycopg.sql import SQL

    server = connection.pgconn
    statement = SQL("COPY ({}) TO STDOUT (FORMAT csv)").format(query)
    started = server.exec_(statement.as_bytes(connection))
    if started.status != ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(started)
    is_done = False
    try:
        get = server.get_copy_data
        rows: list[memoryview] = []
        held = 0
        while True:
            size, row = get(0)
            if size <= 0:
                break
            rows.append(row)
            held += size
            if held >= batch_bytes:
                yield b"".join(rows)
                rows, held = [], 0
        while (ended := server.get_result()) is not None:
            if ended.status != ExecStatus.COMMAND_OK:
                raise psycopg.errors.error_from_result(ended)
        is_done = True
        if rows:
            yield b"".join(rows)
    finally:
        if not is_done:
            connection.close()


def parsed_csv(csv: bytes, selection: Selection, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in *csv*; ConfigurationError for a value that Arrow lacks, as an infinite date."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # By number, as names need not be unique; the offset is the first.
    names = [str(number) for number in range(len(schema))]
    hexes = [number for number, column in enumerate(selection.columns, 1) if column.is_hex]
    kinds = [schema.types[-1], *schema.types[:-1]]
    types = {
        name: pa.string() if number in hexes else kinds[number] for number, name in enumerate(names)
    }
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(csv),
            read_options=arrow_csv.ReadOptions(
                column_names=names, use_threads=False, block_size=len(csv) + 1
            ),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
    except pa.ArrowInvalid as error:
        raise ConfigurationError(
            f"a value of {selection.table} has no counterpart in Arrow ({error}; columns are "
            f"numbered from 0: {', '.join([RECORD, *schema.names[:-1]])}); a date or timestamp may "
            "be infinite, before the year 0 or after 9999, or a numeric NaN; leave such rows out "
            "by `where`, or cast the column to text in `columns`"
        ) from error
    batch = table.combine_chunks().to_batches()[0]
    columns = [
        unhexed(column) if number in hexes else column for number, column in enumerate(batch)
    ]
    return pa.RecordBatch.from_arrays([*columns[1:], columns[0]], schema=schema)


def unhexed(text: pa.Array) -> pa.Array:
    """Binary values from their hexadecimal digits, a column at once."""
    import numpy as np
    import pyarrow as pa

    assert text.offset == 0, "the parser's columns begin at their buffers' begin"
    validity, offsets, digits = text.buffers()
    places = np.frombuffer(offsets, np.int32, len(text) + 1)
    body = bytes.fromhex(bytes(memoryview(digits)[: places[-1]]).decode()) if digits else b""
    return pa.Array.from_buffers(
        pa.binary(),
        len(text),
        [validity, pa.py_buffer((places // 2).astype(np.int32)), pa.py_buffer(body)],
    )


def copy_in(connection: Connection, into: Identifier, tables: Iterable[pa.Table]) -> int:
    """Append rows, with one COPY for neighbouring tables of one schema; return their number."""
    from psycopg.sql import SQL, Identifier

    count = 0
    for schema, alike in groupby(tables, key=lambda table: table.schema):
        names = SQL(", ").join([Identifier(name) for name in schema.names])
        statement: Composed = SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(into, names)
        with connection.cursor() as cursor:
            with cursor.copy(statement) as copy:
                for table in alike:
                    for text in as_csv(table):
                        copy.write(text)
            count += cursor.rowcount
    return count


def check_nested_types(schema: pa.Schema, who: str) -> None:
    """Raises ConfigurationError when *who* cannot write a nested column as JSON."""
    import pyarrow as pa

    nested = [field for field in schema if pa.types.is_nested(field.type)]
    check_json_types(pa.schema(nested), who)


def check_values(rows: pa.Table) -> None:
    """Raises ConfigurationError for values that COPY refuses whatever the table's columns."""
    import pyarrow as pa

    types = pa.types
    for name, raw in zip(rows.column_names, rows.columns, strict=True):
        column = raw.cast(raw.type.value_type) if types.is_dictionary(raw.type) else raw
        check_years(column, name, "")
        if types.is_nested(column.type):
            if any(text is not None and _holds_nul(text) for text in _texts(column, name)):
                raise nul_error(name, "PostgreSQL's json")
        elif types.is_timestamp(column.type):
            _plain_column(column, name)
        elif is_text(column.type):
            check_no_nul(column, name, "PostgreSQL")


def _holds_nul(text: str) -> bool:
    """Whether JSON text has an escaped U+0000; backslashes may be escaped, too."""
    return "\\u0000" in text.replace("\\\\", "")


def as_csv(table: pa.Table) -> Iterator[memoryview]:
    import pyarrow as pa
    from pyarrow import csv

    options = csv.WriteOptions(include_header=False, batch_size=SLICE_ROWS, quoting_style="needed")
    for start in range(0, table.num_rows, SLICE_ROWS):
        sink = pa.BufferOutputStream()
        csv.write_csv(_plain(table.slice(start, SLICE_ROWS)), sink, options)
        yield memoryview(sink.getvalue())


def _plain(table: pa.Table) -> pa.Table:
    columns = [
        _plain_column(table.column(number), name) for number, name in enumerate(table.schema.names)
    ]
    return type(table).from_arrays(columns, names=table.schema.names)


def _plain_column(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray | pa.Array:
    """The column in a type that Arrow's CSV writes as PostgreSQL reads it."""
    import pyarrow as pa

    type_ = column.type
    if pa.types.is_dictionary(type_):
        return _plain_column(column.cast(type_.value_type), name)
    if pa.types.is_nested(type_):
        return pa.array(_texts(column, name), pa.string())
    if pa.types.is_timestamp(type_) and type_.unit == "ns":
        try:
            return column.cast(pa.timestamp("us", type_.tz))
        except pa.ArrowInvalid as error:
            raise ConfigurationError(
                f"column {name!r} has nanoseconds, and PostgreSQL keeps microseconds: {error}; "
                "truncate it before it is written"
            ) from error
    if is_bytes(type_):
        return pa.chunked_array([_hex(chunk) for chunk in column.chunks], pa.string())
    return column


def _texts(column: pa.ChunkedArray, name: str) -> Iterator[str | None]:
    """The JSON of nested values, see ``json_rows``."""
    values = json_values(column, name)
    return (None if value is None else encoded(value).decode() for value in values)


def _hex(values: pa.Array) -> pa.Array:
    """The *values* in PostgreSQL's hexadecimal form, computed for a column at once."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    values = values.cast(pa.binary())
    _, offsets, body = values.buffers()
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    taken = bytes(memoryview(body)[places[0] : places[-1]]) if body else b""
    digits = pa.Array.from_buffers(
        pa.string(),
        len(values),
        [
            None,
            pa.py_buffer(((places - places[0]) * 2).astype(np.int32)),
            pa.py_buffer(taken.hex().encode()),
        ],
    )
    texts = pc.binary_join_element_wise("\\x", digits, "")
    return pc.if_else(values.is_valid(), texts, None)
