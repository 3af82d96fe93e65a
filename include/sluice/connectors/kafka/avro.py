"""Decoding of Avro values: the fields of a record become columns."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sluice.connectors.avro.columns import as_numbers, map_schema
from sluice.connectors.avro.mapped import AvroSchema, Mapped
from sluice.connectors.kafka.framing import NotFramed, Registry, unframed
from sluice.connectors.kafka.values import Decoded, held, tombstone_fields, tombstones
from sluice.errors import ConfigurationError
from sluice.extras import require

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class AvroValues:
    """*schema* is the reader's schema, as JSON.

    With a *registry* each value begins with the id of its writer's schema, and is resolved to the
    reader's; without one *schema* is the writer's, too.
    """

    schema: str
    registry: Registry | None = None

    @property
    def text_schema(self) -> str | None:
        return None

    def kept(self) -> list[pa.Field]:
        return tombstone_fields()

    def fields(self) -> list[pa.Field]:
        return list(self._mapped().column)

    def decode(self, raw: Sequence[bytes | None]) -> Decoded:
        """Raises StoreUnavailable or ConfigurationError when the registry does not answer."""
        mapped = self._mapped()
        reader = _Reader(parsed_json(self.schema), self.registry)
        bad_bytes = _bad_bytes()
        records: list[Mapping[str, object] | None] = []
        malformed: dict[int, str] = {}
        for row, value in enumerate(raw):
            try:
                records.append(None if value is None else reader.read(value))
            except bad_bytes as error:
                records.append(None)
                malformed[row] = f"not Avro of the schema: {error or type(error).__name__}"
        columns = held(records, partial(_columns, mapped), malformed)
        return Decoded([tombstones(raw), *columns], malformed)

    def _mapped(self) -> Mapped:
        schema = parsed_json(self.schema)
        try:
            return map_schema(schema, "the Avro schema of the values")
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}; or read the values with Raw() and decode them in a transform"
            ) from error
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"the Avro schema of the values is none of Avro's: {type(error).__name__} {error}; "
                "correct it"
            ) from error


def _columns(mapped: Mapped, records: Sequence[Mapping[str, object] | None]) -> list[pa.Array]:
    return [
        mapped.array_of(field.name, [None if one is None else one[field.name] for one in records])
        for field in mapped.column
    ]


class _Reader:
    """A decoder that caches the writers' schemas."""

    def __init__(self, schema: AvroSchema, registry: Registry | None) -> None:
        require("fastavro", who="Avro")
        from fastavro import parse_schema, schemaless_reader

        self._registry = registry
        self._client = registry.client() if registry is not None else None
        self._reads: Any = schemaless_reader
        self._schema = parse_schema(as_numbers(schema), named_schemas={})
        self._writers: dict[int, Any] = {}

    def read(self, value: bytes) -> Mapping[str, object]:
        if self._registry is None:
            writer, reader, body = self._schema, None, value
        else:
            schema_id, body = unframed(value)
            writer, reader = self._writer(schema_id), self._schema
        stream = io.BytesIO(body)
        record: Mapping[str, object] = self._reads(stream, writer, reader)
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
                else parse_schema(as_numbers(json.loads(text)), named_schemas={})
            )
        if self._writers[schema_id] is None:
            raise NotFramed(f"the Schema Registry has no schema {schema_id}")
        return self._writers[schema_id]


def _bad_bytes() -> tuple[type[Exception], ...]:
    """The errors that fastavro raises for bytes that do not match the schema."""
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
