"""The bytes of a file of rows: Parquet, or JSON lines that any tool reads.

JSON lines are plain: an object per line, times as ISO 8601 (with ``Z`` where the column has a time
zone), decimals as text, NaN and infinities as null.  JSON does not say what type a column has, so
the schema is kept beside the rows, by its hash.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from sluice.connectors.value_checks import check_years
from sluice.errors import ConfigurationError, ProtocolViolation

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET = "parquet"
JSON = "json"
HASH_HEX_DIGITS = 16  # 64 bits: schemas of one table do not meet by chance.


def encode_parquet(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    body: bytes = buffer.getvalue().to_pybytes()
    return body


def decode_parquet(body: bytes) -> pa.Table:
    """Raises ArrowInvalid when these are not a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_table(pa.BufferReader(body))


def encode_json(table: pa.Table) -> bytes:
    """Raises ConfigurationError for a time outside of the years 1 to 9999."""
    import msgspec
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if pa.types.is_temporal(field.type):
            column = _in_years_of_iso(table.column(number), field.name)
            table = table.set_column(number, pa.field(field.name, column.type), column)
    return msgspec.json.Encoder().encode_lines(table.to_pylist())


def decode_json(body: bytes, schema: pa.Schema) -> pa.Table:
    """Raises ArrowInvalid when these are not lines of *schema*."""
    import pyarrow as pa
    import pyarrow.json as pj

    read = pa.schema([pa.field(one.name, _as_parsed(one.type)) for one in schema])
    table = pj.read_json(
        pa.BufferReader(body),
        # One block: a line longer than a block cannot be read.
        read_options=pj.ReadOptions(block_size=max(1, len(body)), use_threads=False),
        parse_options=pj.ParseOptions(explicit_schema=read, unexpected_field_behavior="error"),
    )
    return table.cast(schema)


def check_json_types(schema: pa.Schema, sink: str) -> None:
    """Raises ConfigurationError for a column that would not be read back as it was."""
    for field in schema:
        if not _survives(field.type, is_nested=False):
            raise ConfigurationError(
                f"sink {sink!r} cannot write column {field.name!r} of type {field.type} as JSON; "
                "convert it to text, a number or a timestamp of microseconds, or write "
                "format='parquet'"
            )


def encode_schema(schema: pa.Schema) -> tuple[str, bytes]:
    """The schema without its metadata, and what it is known by."""
    body: bytes = schema.remove_metadata().serialize().to_pybytes()
    return hashlib.sha256(body).hexdigest()[:HASH_HEX_DIGITS], body


def decode_schema(body: bytes | None, place: str) -> pa.Schema:
    import pyarrow as pa

    if body is None:
        raise ProtocolViolation(f"{place} is missing, and files of JSON lines need it")
    try:
        return pa.ipc.read_schema(pa.BufferReader(body))
    except pa.ArrowInvalid as error:
        raise ProtocolViolation(f"{place} is no schema") from error


def _in_years_of_iso(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """The column, an instant as it is in UTC."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    check_years(column, name, ", or write format='parquet'")
    return column


def _as_parsed(dtype: pa.DataType) -> pa.DataType:
    """Arrow's JSON reader takes no dates and no zones; a cast does."""
    import pyarrow as pa

    is_text = pa.types.is_temporal(dtype) or pa.types.is_decimal(dtype)
    return pa.string() if is_text else dtype


def _survives(dtype: pa.DataType, *, is_nested: bool) -> bool:
    import pyarrow as pa

    types = pa.types
    if types.is_list(dtype) or types.is_large_list(dtype):
        return _survives(dtype.value_type, is_nested=True)
    if types.is_struct(dtype):
        return all(_survives(field.type, is_nested=True) for field in dtype)
    if types.is_timestamp(dtype):
        return not is_nested and dtype.unit != "ns"
    if types.is_date32(dtype) or types.is_decimal128(dtype):
        return not is_nested
    is_number = types.is_integer(dtype) or types.is_float32(dtype) or types.is_float64(dtype)
    is_text = types.is_string(dtype) or types.is_large_string(dtype)
    return bool(is_number or is_text or types.is_boolean(dtype))
