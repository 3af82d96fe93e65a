"""Reads rows with COPY as CSV, parsed by Arrow without a Python object per value.

In COPY's CSV a null is nothing and the empty string is two quotes, which Arrow distinguishes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluice.connectors.contracts.source import RECORD
from sluice.connectors.postgres.select import Selection
from sluice.connectors.postgres.server import Connection
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from psycopg.sql import Composed

# CSV of a batch: large enough to keep Arrow's parser busy, and small beside a worker's memory.
BATCH_BYTES = 8 << 20


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


def parsed(csv: bytes, selection: Selection, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in *csv*; ConfigurationError for a value that Arrow lacks, as an infinite date."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    # By number, as names need not be unique; the offset is the first.
    names = [str(number) for number in range(len(schema))]
    hexes = [number for number, one in enumerate(selection.columns, 1) if one.is_hex]
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
