"""Rows out of PostgreSQL: COPY as CSV, parsed by Arrow, no Python object per value.

In COPY's CSV null is nothing and the empty string is two quotes; Arrow is told to keep them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluice.connectors.postgres.select import Selection
from sluice.connectors.postgres.server import Connection
from sluice.connectors.source import RECORD
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.sql import Composed

# Of CSV per batch: large enough that Arrow's parser is busy, small beside a worker's memory.
BATCH_BYTES = 8 << 20


def copy_out(connection: Connection, query: Composed, batch_bytes: int) -> Iterator[bytes]:
    """The result of *query* as CSV, whole rows in pieces of about *batch_bytes*.

    By libpq itself, which gives one message per row: psycopg's own iterator takes several times as
    long for each.  Given up half way, the connection is closed.
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


def parsed(csv: bytes, selection: Selection, schema: pa.Schema) -> pa.RecordBatch:
    """Raises ConfigurationError for a value that Arrow has not: infinity as a date, NaN digits."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # By number, for a column may have any name, or that of another.
    names = [str(number) for number in range(len(schema))]
    hexes = [number for number, one in enumerate(selection.columns) if one.is_hex]
    types = {
        name: pa.string() if number in hexes else schema.field(number).type
        for number, name in enumerate(names)
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
            f"numbered from 0: {', '.join([*schema.names[:-1], RECORD])}); a date or timestamp may "
            "be infinite, before the year 0 or after 9999, or a numeric NaN; leave such rows out "
            "by `where`, or cast the column to text in `columns`"
        ) from error
    batch = table.combine_chunks().to_batches()[0]
    columns = [
        unhexed(column) if number in hexes else column for number, column in enumerate(batch)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def unhexed(text: pa.Array) -> pa.Array:
    """Binary values from their hexadecimal digits, all in one go."""
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
