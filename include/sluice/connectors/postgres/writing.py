"""Writes rows with COPY from CSV, made by Arrow without a Python object per value.

Arrow quotes every text and leaves nulls empty, by which COPY distinguishes them.  Only nested
values, which are written as JSON, become Python objects.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from sluice.connectors.contracts.value_checks import check_no_nul, check_years, holds_nul
from sluice.connectors.postgres.server import Connection
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.sql import Composed, Identifier

SLICE_ROWS = 1 << 16  # CSV at a time: the server parses one block while the next is written.


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


def check_values(rows: pa.Table) -> None:
    """Raises ConfigurationError for values that COPY refuses whatever the table's columns."""
    import pyarrow as pa

    types = pa.types
    for name, given in zip(rows.column_names, rows.columns, strict=True):
        is_coded = types.is_dictionary(given.type)
        column = given.cast(given.type.value_type) if is_coded else given
        check_years(column, name, "")
        if types.is_nested(column.type):
            if any(text is not None and _holds_nul(text) for text in _texts(column)):
                raise holds_nul(name, "PostgreSQL's json")
        elif types.is_timestamp(column.type):
            _plain_column(column, name)
        elif types.is_string(column.type) or types.is_large_string(column.type):
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
        return pa.array(_texts(column), pa.string())
    if pa.types.is_timestamp(type_) and type_.unit == "ns":
        try:
            return column.cast(pa.timestamp("us", type_.tz))
        except pa.ArrowInvalid as error:
            raise ConfigurationError(
                f"column {name!r} has nanoseconds, and PostgreSQL keeps microseconds: {error}; "
                "truncate it before it is written"
            ) from error
    if (
        pa.types.is_binary(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
    ):
        return pa.chunked_array([_hex(chunk) for chunk in column.chunks], pa.string())
    return column


def _texts(column: pa.ChunkedArray) -> Iterator[str | None]:
    return (None if one is None else _json(one) for one in column.to_pylist())


def _json(value: object) -> str:
    """JSON as ``to_jsonb`` writes it: bytes in hexadecimal, NaN and infinities as text."""
    try:
        return json.dumps(value, default=_in_json, allow_nan=False)
    except ValueError:
        return json.dumps(_numbers_alone(value), default=_in_json)


def _in_json(value: object) -> str:
    return f"\\x{value.hex()}" if isinstance(value, bytes) else str(value)


def _numbers_alone(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        case dict():
            return {name: _numbers_alone(one) for name, one in value.items()}
        case list() | tuple():
            return [_numbers_alone(one) for one in value]
        case _:
            return value


def _hex(values: pa.Array) -> pa.Array:
    """Each value in PostgreSQL's hexadecimal form, computed for a column at once."""
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
