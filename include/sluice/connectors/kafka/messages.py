"""Rows as messages: keys and values of a whole table at once."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.connectors.kafka.avro import parsed_json
from sluice.connectors.kafka.framing import framed
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

Texts: TypeAlias = Sequence[bytes | str | None]


@dataclass(frozen=True, slots=True)
class JsonRow:
    """An object of all columns: times as RFC 3339, decimals as text, bytes as base64."""


@dataclass(frozen=True, slots=True)
class ColumnBytes:
    """What a column of bytes or text has; null is a tombstone."""

    column: str


@dataclass(frozen=True, slots=True)
class AvroRow:
    """A record of *schema*; with a *schema_id* as the Schema Registry's serializers write it."""

    schema: str
    schema_id: int | None = None


Value: TypeAlias = JsonRow | ColumnBytes | AvroRow


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """*key* and *headers* are columns; columns of headers are left out of JSON and Avro."""

    value: Value
    key: str | None = None
    headers: tuple[str, ...] = ()

    def keys(self, table: pa.Table) -> Texts:
        """Raises ConfigurationError when the rows have no such column."""
        return [None] * table.num_rows if self.key is None else _texts(table, self.key)

    def values(self, table: pa.Table) -> Texts:
        """Raises ConfigurationError when the rows do not fit."""
        match self.value:
            case ColumnBytes(column=column):
                return _texts(table, column)
            case JsonRow():
                return _json_rows(_rows(table, self.headers))
            case AvroRow() as avro:
                return _avro_rows(avro, _rows(table, self.headers))

    def header_rows(self, table: pa.Table) -> list[list[tuple[str, str | bytes | None]]]:
        """Per row what its columns of headers have; empty without any."""
        if not self.headers:
            return []
        columns = [_texts(table, name) for name in self.headers]
        return [list(zip(self.headers, row, strict=True)) for row in zip(*columns, strict=True)]


def _rows(table: pa.Table, without: tuple[str, ...]) -> list[dict[str, Any]]:
    """As Python has them.  Polars is several times faster than Arrow here, but knows no maps."""
    import polars as pl

    table = table.drop_columns([name for name in without if name in table.column_names])
    if any(_needs_arrow(one.type) for one in table.schema):
        rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
        return rows
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame.to_dicts()


def _json_rows(rows: list[dict[str, Any]]) -> list[bytes]:
    import msgspec

    encode = msgspec.json.Encoder().encode
    try:
        return [encode(row) for row in rows]
    except (TypeError, msgspec.EncodeError) as error:
        raise ConfigurationError(
            f"a row cannot be written as JSON: {error}; select other columns, or give Kafka a "
            "column of text"
        ) from error


def _avro_rows(avro: AvroRow, rows: list[dict[str, Any]]) -> list[bytes]:
    from fastavro import parse_schema, schemaless_writer

    schema = parse_schema(parsed_json(avro.schema), named_schemas={})
    written: list[bytes] = []
    for row in rows:
        stream = io.BytesIO()
        try:
            schemaless_writer(stream, schema, row)
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            raise ConfigurationError(
                f"a row does not fit the Avro schema of a Kafka sink: {error}; its columns are "
                f"{', '.join(row)}"
            ) from error
        body = stream.getvalue()
        written.append(body if avro.schema_id is None else framed(avro.schema_id, body))
    return written


def _texts(table: pa.Table, name: str) -> Texts:
    import pyarrow as pa

    if name not in table.column_names:
        raise ConfigurationError(
            f"a Kafka sink takes the column {name!r}, but its rows have "
            f"{', '.join(table.column_names)}"
        )
    column = table.column(name)
    is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    if is_bytes or pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        texts: Texts = column.to_pylist()
        return texts
    if not (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
        raise ConfigurationError(
            f"the column {name!r} of a Kafka sink is {column.type}; make it text or bytes before"
        )
    numbers: Texts = column.cast(pa.string()).to_pylist()
    return numbers


def _needs_arrow(type_: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_map(type_) or pa.types.is_decimal256(type_):
        return True
    return any(_needs_arrow(type_.field(index).type) for index in range(type_.num_fields))
