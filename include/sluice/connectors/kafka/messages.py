"""The encoding of rows as messages: keys, values and headers, for a whole table at once.

Rows are refused before they are staged if no message can be made of them, so that none fails at the
commit.  That includes messages that are too large: their size is counted as librdkafka counts it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.connectors.avro import map_fields
from sluice.connectors.columns import check_years, is_bytes, is_text
from sluice.connectors.json_rows import (
    check_json_types,
    encoded,
    json_objects,
    named_rows,
    python_values,
)
from sluice.connectors.kafka.cluster import MAX_MESSAGE_BYTES
from sluice.connectors.kafka.formats import framed, parsed_json
from sluice.errors import ConfigurationError
from sluice.extras import require_installed

if TYPE_CHECKING:
    import pyarrow as pa

Texts: TypeAlias = Sequence[bytes | str | None]
Header: TypeAlias = tuple[str, str | bytes | None]

OVERHEAD_BYTES = 36  # RD_KAFKAP_MESSAGE_V2_MAX_OVERHEAD, in rdkafka_proto.h.
ESCAPED_BYTES = 6  # A control character of one byte is \u00XX in JSON.
SCALAR_BYTES = 100  # A number, a time or a decimal of 76 digits, as text.


@dataclass(frozen=True, slots=True)
class JsonRow:
    """An object of all columns, see ``json_rows``."""


@dataclass(frozen=True, slots=True)
class ColumnBytes:
    """The value is a column of bytes or text; null is a tombstone."""

    column: str


@dataclass(frozen=True, slots=True)
class AvroRow:
    """A record of *schema*; with a *schema_id* it has the Schema Registry's header."""

    schema: str
    schema_id: int | None = None


Value: TypeAlias = JsonRow | ColumnBytes | AvroRow


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """*key* and *headers* are columns; columns of headers are left out of JSON and Avro."""

    value: Value
    key: str | None = None
    headers: tuple[str, ...] = ()

    def check(self, schema: pa.Schema) -> None:
        """Raises ConfigurationError when a column is missing, or its type fits no message."""
        columns = [*self.headers, *([self.key] if self.key is not None else [])]
        match self.value:
            case ColumnBytes(column=column):
                columns.append(column)
            case AvroRow() as avro:
                _check_fields(avro, [name for name in schema.names if name not in self.headers])
            case JsonRow():
                self.check_json(schema, "a Kafka sink")
        for name in columns:
            _checked_type(schema, name)

    def check_json(self, schema: pa.Schema, who: str) -> None:
        """Raises ConfigurationError when JSON, as *who* writes it, cannot hold a column."""
        check_json_types(_without(schema.empty_table(), self.headers).schema, who)

    def check_years(self, table: pa.Table) -> None:
        """Raises ConfigurationError when a column has a year that JSON's times cannot have."""
        if isinstance(self.value, JsonRow):
            for name, column in zip(table.column_names, table.columns, strict=True):
                check_years(column, name, ", or give Kafka a column of text")

    def keys(self, table: pa.Table) -> Texts:
        """The keys of the messages; ConfigurationError when the column is missing."""
        return [None] * table.num_rows if self.key is None else _texts(table, self.key)

    def values(self, table: pa.Table) -> Texts:
        """The values of the messages; ConfigurationError when the rows do not fit."""
        match self.value:
            case ColumnBytes(column=column):
                return _texts(table, column)
            case JsonRow():
                return [encoded(row) for row in json_objects(_without(table, self.headers))]
            case AvroRow() as avro:
                held = _as_avro_has_it(avro, _without(table, self.headers))
                return _avro_rows(avro, _rows(held))

    def header_rows(self, table: pa.Table) -> list[list[Header]]:
        """The headers of each message; empty without columns of headers."""
        if not self.headers:
            return []
        columns = [_texts(table, name) for name in self.headers]
        return [list(zip(self.headers, row, strict=True)) for row in zip(*columns, strict=True)]


def _without(table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    return table.drop_columns([name for name in names if name in table.column_names])


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as dicts, of which the maps are dicts, too."""
    columns = [python_values(column, maps_as_pydicts="strict") for column in table.columns]
    return named_rows(table, columns)


def _avro_rows(avro: AvroRow, rows: list[dict[str, Any]]) -> list[bytes]:
    require_installed("fastavro", who="Avro")
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


def _as_avro_has_it(avro: AvroRow, table: pa.Table) -> pa.Table:
    """*table*, of which Avro's fields hold each value as it is.

    Raises:
        ConfigurationError: one would be another there.
    """
    import pyarrow as pa

    for name, field in map_fields(parsed_json(avro.schema)).items():
        if name not in table.column_names:
            continue
        try:
            held = field.held(table.column(name))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigurationError(
                f"a row does not fit the Avro schema of a Kafka sink: column {name!r}: {error}; "
                "cast it in the stage, or write it as another type"
            ) from error
        table = table.set_column(table.column_names.index(name), name, held)
    return table


def _texts(table: pa.Table, name: str) -> Texts:
    import pyarrow as pa

    type_ = _checked_type(table.schema, name)
    column = table.column(name)
    if not (pa.types.is_integer(type_) or pa.types.is_boolean(type_)):
        texts: Texts = column.to_pylist()
        return texts
    numbers: Texts = column.cast(pa.string()).to_pylist()
    return numbers


def _checked_type(schema: pa.Schema, name: str) -> pa.DataType:
    """The type of a column for keys or headers: bytes, text, a whole number or a boolean."""
    import pyarrow as pa

    if name not in schema.names:
        raise ConfigurationError(
            f"a Kafka sink takes the column {name!r}, but its rows have {', '.join(schema.names)}"
        )
    type_, types = schema.field(name).type, pa.types
    is_written = is_text(type_) or is_bytes(type_)
    if not (is_written or types.is_integer(type_) or types.is_boolean(type_)):
        raise ConfigurationError(
            f"the column {name!r} of a Kafka sink is {type_}; make it text or bytes before"
        )
    return type_


def _check_fields(avro: AvroRow, columns: Sequence[str]) -> None:
    """Check that each field of the record is a column, has a default, or may be null."""
    schema = parsed_json(avro.schema)
    fields = schema.get("fields", []) if isinstance(schema, dict) else []
    for field in fields:
        type_ = field.get("type")
        may_lack = "default" in field or type_ == "null" or (type_ and "null" in type_)
        if field["name"] not in columns and not may_lack:
            raise ConfigurationError(
                f"the Avro schema of a Kafka sink has a field {field['name']!r}, but its rows have "
                f"{', '.join(columns)}; write the column, or give the field a default"
            )


def check_sizes(format_: MessageFormat, rows: pa.Table, most: int, mark: Header) -> None:
    """Check that each row's message, with the header *mark*, has *most* bytes or fewer.

    librdkafka refuses a message above ``message.max.bytes`` when it is given one
    (``rd_kafka_msg_max_wire_size`` in rdkafka_msg.h); the broker's own limit, ``max.message.bytes``
    of the topic, is larger unless one of the two was changed.

    Rows are encoded for it where their columns do not show it, and always as Avro.

    Raises:
        ConfigurationError: one is larger, or cannot be encoded.
    """
    if not isinstance(format_.value, AvroRow) and _bound(rows, mark) <= most:
        return
    header_rows: Iterable[Sequence[Header]] = format_.header_rows(rows) or repeat([])
    messages = zip(format_.keys(rows), format_.values(rows), strict=True)
    for number, ((key, value), headers) in enumerate(zip(messages, header_rows, strict=False)):
        size = OVERHEAD_BYTES + _length(key) + _length(value)
        size += sum(map(_header_length, chain(headers, [mark])))
        if size > most:
            raise ConfigurationError(
                f"a message of {size:,} bytes is larger than {MAX_MESSAGE_BYTES}, {most:,}; its "
                f"row's longest column is {_longest(rows.slice(number, 1))!r}: shorten it before "
                f"the sink, or give KafkaTopic config={{'{MAX_MESSAGE_BYTES}': ...}}, and the "
                "topic a max.message.bytes that is not smaller"
            )


def _bound(rows: pa.Table, mark: Header) -> float:
    """A size that no message of the rows exceeds: cheap, and mostly far below the limit."""
    columns = sum(
        _column_bound(column) + ESCAPED_BYTES * _length(name)
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    )
    return OVERHEAD_BYTES + _header_length(mark) + 2 * columns  # A column may be key and field.


def _column_bound(column: pa.ChunkedArray) -> float:
    import pyarrow as pa
    import pyarrow.compute as pc

    type_, types = column.type, pa.types
    if types.is_nested(type_) or types.is_dictionary(type_):
        return float("inf")
    if is_text(type_) or is_bytes(type_):
        longest = pc.max(pc.binary_length(column)).as_py() or 0
        return float(ESCAPED_BYTES * longest + SCALAR_BYTES)
    return SCALAR_BYTES


def _length(text: bytes | str | None) -> int:
    if text is None:
        return 0
    return len(text if isinstance(text, bytes) else text.encode())


def _header_length(header: Header) -> int:
    name, value = map(_length, header)
    return name + _varint_bytes(name) + value + _varint_bytes(value)


def _varint_bytes(length: int) -> int:
    """The bytes of a length in zigzag encoding, 7 bits in each."""
    return max(1, -(-(2 * length).bit_length() // 7))


def _longest(row: pa.Table) -> str:
    return max(map(str, row.column_names), key=lambda name: row.column(name).nbytes)
