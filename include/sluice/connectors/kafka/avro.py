"""Avro values: a record's fields become the columns."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sluice.connectors.kafka.avro_types import (
    AvroSchema,
    in_microseconds,
    record_fields,
    without_logical_types,
)
from sluice.connectors.kafka.framing import NotFramed, Registry, unframed
from sluice.connectors.kafka.values import Decoded, held, tombstone_fields, tombstones
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class AvroValues:
    """*schema* is the reader's, as JSON.  With a *registry* each value names the schema that it was
    written with, and is resolved to the reader's; without one *schema* is the writer's, too.
    """

    schema: str
    registry: Registry | None = None

    @property
    def text_schema(self) -> str | None:
        return None

    def kept(self) -> list[pa.Field]:
        return tombstone_fields()

    def fields(self) -> list[pa.Field]:
        return [one.with_type(in_microseconds(one.type)) for one in self._wire_fields()]

    def decode(self, raw: Sequence[bytes | None]) -> Decoded:
        """Raises StoreUnavailable or ConfigurationError when the registry does not answer."""
        reader = _Reader(self)
        bad_bytes = _bad_bytes()
        records: list[Any] = []
        malformed: dict[int, str] = {}
        for row, value in enumerate(raw):
            try:
                records.append(None if value is None else reader.read(value))
            except bad_bytes as error:
                records.append(None)
                malformed[row] = f"not Avro of the schema: {error or type(error).__name__}"
        return Decoded([tombstones(raw), *held(records, self._columns, malformed)], malformed)

    def _columns(self, records: Sequence[object]) -> list[pa.Array]:
        import pyarrow as pa

        rows = pa.array(records, pa.struct(self._wire_fields())).cast(pa.struct(self.fields()))
        columns: list[pa.Array] = rows.flatten()  # A field is null where its record is.
        return columns

    def _wire_fields(self) -> list[pa.Field]:
        return record_fields(parsed_json(self.schema), "the values")


class _Reader:
    """Knows the schemas of the writers that it has met."""

    def __init__(self, values: AvroValues) -> None:
        from fastavro import parse_schema, schemaless_reader

        self._registry = values.registry
        self._client = values.registry.client() if values.registry is not None else None
        self._reads: Any = schemaless_reader
        plain = without_logical_types(parsed_json(values.schema))
        self._schema = parse_schema(plain, named_schemas={})
        self._writers: dict[int, Any] = {}

    def read(self, value: bytes) -> object:
        if self._registry is None:
            writer, reader, body = self._schema, None, value
        else:
            schema_id, body = unframed(value)
            writer, reader = self._writer(schema_id), self._schema
        stream = io.BytesIO(body)
        record: object = self._reads(stream, writer, reader)
        if stream.tell() != len(body):
            raise ValueError(f"{len(body) - stream.tell()} bytes are left over")
        return record

    def _writer(self, schema_id: int) -> AvroSchema:
        from fastavro import parse_schema

        if schema_id not in self._writers:
            assert self._registry is not None
            assert self._client is not None
            text = self._registry.schema(self._client, schema_id)
            self._writers[schema_id] = (
                None
                if text is None
                else parse_schema(without_logical_types(json.loads(text)), named_schemas={})
            )
        if self._writers[schema_id] is None:
            raise NotFramed(f"the Schema Registry has no schema {schema_id}")
        return self._writers[schema_id]


def _bad_bytes() -> tuple[type[Exception], ...]:
    """What fastavro raises on bytes that are not of the schema: whatever they cause."""
    from fastavro.read import SchemaResolutionError

    return (
        ArithmeticError,
        AssertionError,
        EOFError,
        LookupError,
        SchemaResolutionError,
        TypeError,
        ValueError,
    )


def parsed_json(schema: str) -> AvroSchema:
    """Raises ConfigurationError when *schema* is no JSON."""
    try:
        return json.loads(schema)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"the Avro schema is no JSON: {error}") from error
