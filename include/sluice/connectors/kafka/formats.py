"""Decoding of Avro and Protobuf values, whose fields become columns, and the Schema Registry.

The registry's wire format: a zero byte, the schema's id in four bytes, the value.  See
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html
"""

from __future__ import annotations

import importlib
import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.connectors.avro import (
    AvroColumn,
    AvroSchema,
    as_numbers,
    map_schema,
    time_of_another_unit,
)
from sluice.connectors.kafka.values import Decoded, DecodedValues, arrays_of, tombstones
from sluice.declaration.params import Env, value_of
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.extras import require_installed

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka.schema_registry import SchemaRegistryClient

# Of Protobuf, for which no type stubs are installed.
MessageClass: TypeAlias = Any
MessageDescriptor: TypeAlias = Any
Field: TypeAlias = Any  # A FieldDescriptor.

MAGIC = 0
HEADER_BYTES = 5
HTTP_NOT_FOUND = 404
HTTP_SERVER_ERROR = 500
HTTP_TOO_MANY = 429
TIMEOUT_S = 10
TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)


@dataclass(frozen=True, slots=True)
class AvroValues(DecodedValues):
    """*schema* is the reader's schema, as JSON.

    With a *registry* each value begins with the id of its writer's schema, and is resolved to the
    reader's; without one *schema* is the writer's, too.
    """

    schema: str
    registry: Registry | None = None

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
        columns = arrays_of(records, partial(_columns, mapped), malformed)
        return Decoded([tombstones(raw), *columns], malformed)

    def _mapped(self) -> AvroColumn:
        schema = parsed_json(self.schema)
        try:
            return map_schema(schema, "the Avro schema of the values")
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}; or read the values with Raw() and decode them in a transform"
            ) from error
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"the Avro schema of the values is invalid: {type(error).__name__} {error}; "
                "correct it"
            ) from error


def _columns(mapped: AvroColumn, records: Sequence[Mapping[str, object] | None]) -> list[pa.Array]:
    return [
        mapped.array_of(field.name, [None if one is None else one[field.name] for one in records])
        for field in mapped.column
    ]


class _Reader:
    """A decoder that caches the writers' schemas by their ids, or why one cannot be read."""

    def __init__(self, schema: AvroSchema, registry: Registry | None) -> None:
        require_installed("fastavro", who="Avro")
        from fastavro import parse_schema, schemaless_reader

        self._registry = registry
        self._client = registry.client() if registry is not None else None
        self._reads: Any = schemaless_reader
        self._declared = schema
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
        if schema_id not in self._writers:
            assert self._registry is not None
            assert self._client is not None
            text = self._registry.schema(self._client, schema_id)
            self._writers[schema_id] = (
                ValueError(f"the Schema Registry has no schema {schema_id}")
                if text is None
                else self._resolvable(json.loads(text))
            )
        writer = self._writers[schema_id]
        if isinstance(writer, ValueError):
            raise writer
        return writer

    def _resolvable(self, schema: AvroSchema) -> AvroSchema | ValueError:
        """The parsed writer's *schema*, or why no value of it can be read."""
        from fastavro import parse_schema

        if name := time_of_another_unit(schema, self._declared):
            return ValueError(
                f"field {name!r} was written with times of another unit than it is declared with"
            )
        return parse_schema(as_numbers(schema), named_schemas={})


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


class NotFramed(ValueError):
    """A value without the header of the registry's serializers."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A Schema Registry at *url*; *user* and *password* are for HTTP's basic authentication."""

    url: str | Env
    user: str | Env = ""
    password: str | Env = field(default="", repr=False)

    def client(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        properties: dict[str, object] = {"url": self.place, "timeout": TIMEOUT_S, "max.retries": 2}
        if user := value_of(self.user, {}):
            properties["basic.auth.user.info"] = f"{user}:{value_of(self.password, {})}"
        try:
            return SchemaRegistryClient(properties)
        except ValueError as error:
            raise ConfigurationError(
                f"the Schema Registry {self.place!r} cannot be used: {error}"
            ) from None

    @property
    def place(self) -> str:
        return value_of(self.url, {})

    def schema(self, client: SchemaRegistryClient, schema_id: int) -> str | None:
        """The text of a schema; None when the registry has none of this id.

        Raises:
            ConfigurationError: the registry refuses us.
            StoreUnavailable: it does not answer.
        """
        import httpx2
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        what = f"the Schema Registry at {self.place}"
        try:
            return str(client.get_schema(schema_id).schema_str)
        except SchemaRegistryError as error:
            code = error.http_status_code
            if code == HTTP_NOT_FOUND:
                return None
            if code >= HTTP_SERVER_ERROR or code == HTTP_TOO_MANY:
                raise StoreUnavailable(f"{what} answers {code} for schema {schema_id}") from None
            raise ConfigurationError(
                f"{what} answers {code} for schema {schema_id}; correct its user and password"
            ) from None
        except httpx2.HTTPError as error:
            raise StoreUnavailable(f"{what} did not answer: {type(error).__name__}") from None


def unframed(raw: bytes) -> tuple[int, bytes]:
    """The id of the schema, and the value behind it.  Raises NotFramed."""
    if len(raw) < HEADER_BYTES or raw[0] != MAGIC:
        raise NotFramed("the value is not in the Schema Registry's wire format")
    return int.from_bytes(raw[1:HEADER_BYTES], "big"), raw[HEADER_BYTES:]


def framed(schema_id: int, body: bytes) -> bytes:
    return struct.pack(">bI", MAGIC, schema_id) + body


@dataclass(frozen=True, slots=True)
class ProtobufValues(DecodedValues):
    """A Protobuf message as the value.

    A field without presence has its default where a message does not set it; a field with presence,
    a message or an ``optional`` one, is null.

    *message* is ``package.module:Class`` of a generated class, or a message's full name in
    *descriptors*, the file that ``protoc --include_imports --descriptor_set_out`` writes.
    *framed* values have the header of the Schema Registry's serializers.
    """

    message: str
    descriptors: bytes = field(default=b"", repr=False)
    framed: bool = False

    def fields(self) -> list[pa.Field]:
        import pyarrow as pa

        return [
            pa.field(one.name, protobuf_column_type(one, (), self.message))
            for one in self.message_class().DESCRIPTOR.fields
        ]

    def decode(self, raw: Sequence[bytes | None]) -> Decoded:
        import pyarrow as pa
        from google.protobuf.message import DecodeError

        class_ = self.message_class()
        index = _message_index(class_.DESCRIPTOR)
        messages: list[Any] = []
        malformed: dict[int, str] = {}
        for row, value in enumerate(raw):
            try:
                body = value
                if value is not None and self.framed:
                    body = _body(value, index)
                messages.append(None if body is None else class_.FromString(body))
            except (DecodeError, NotFramed, ValueError) as error:
                messages.append(None)
                malformed[row] = f"not Protobuf of {class_.DESCRIPTOR.full_name}: {error}"
        pairs = zip(class_.DESCRIPTOR.fields, self.fields(), strict=True)
        readers = [(reader_of(one), field_.type) for one, field_ in pairs]

        def columns(some: Sequence[Any]) -> list[pa.Array]:
            return [
                pa.array([None if one is None else read(one) for one in some], type_)
                for read, type_ in readers
            ]

        return Decoded([tombstones(raw), *arrays_of(messages, columns, malformed)], malformed)

    def message_class(self) -> MessageClass:
        if self.descriptors:
            return _class_in(self.descriptors, self.message)
        module, separator, name = self.message.partition(":")
        try:
            found = getattr(importlib.import_module(module), name) if separator else None
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"the Protobuf class {self.message!r} cannot be imported: {error}; Airflow's tasks "
                "and Spark's workers both need its module"
            ) from error
        if not hasattr(found, "DESCRIPTOR"):
            raise ConfigurationError(
                f"{self.message!r} is no Protobuf class; write package.module_pb2:Class, or give "
                "descriptors="
            )
        return found


def _class_in(descriptors: bytes, message: str) -> MessageClass:
    require_installed("google.protobuf", who="Protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors)
        pool = descriptor_pool.DescriptorPool()
        for one in files.file:
            pool.Add(one)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except (DecodeError, TypeError) as error:
        raise ConfigurationError(
            f"descriptors= of {message!r} is no descriptor set with all that it imports: {error}; "
            "write it with protoc --include_imports --descriptor_set_out=FILE"
        ) from error
    except KeyError as error:
        raise ConfigurationError(f"descriptors= has no message {message!r}") from error


def _message_index(descriptor: MessageDescriptor) -> tuple[int, ...]:
    """The indexes of a message in its file, from the outermost message to itself."""
    outer = descriptor.containing_type
    if outer is None:
        return ([*descriptor.file.message_types_by_name].index(descriptor.name),)
    return (*_message_index(outer), [*outer.nested_types_by_name].index(descriptor.name))


def _body(value: bytes, index: tuple[int, ...]) -> bytes:
    indexes, body = without_message_indexes(unframed(value)[1])
    if indexes != index:
        raise NotFramed(f"the value is message {list(indexes)} of its file, not {list(index)}")
    return body


def without_message_indexes(raw: bytes) -> tuple[tuple[int, ...], bytes]:
    """The message indexes of a Protobuf value, and the value behind them.

    They name the message by its place in the file, as zigzag varints; a single zero byte is the
    first message.
    """
    count, at = _varint(raw, 0)
    if count == 0:
        return (0,), raw[at:]
    indexes: list[int] = []
    for _ in range(count):
        index, at = _varint(raw, at)
        indexes.append(index)
    return tuple(indexes), raw[at:]


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(raw) or shift > 28:
            raise NotFramed("the value's message indexes are cut off")
        byte = raw[at]
        at += 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at


def protobuf_column_type(field: Field, inside: tuple[str, ...], place: str) -> pa.DataType:
    """The column's type; raises ConfigurationError for a recursive message."""
    import pyarrow as pa

    place = f"{place}.{field.name}"
    if _is_map(field):
        of_key, of_value = field.message_type.fields_by_name.values()
        return pa.map_(
            protobuf_column_type(of_key, inside, place), _type_of_one(of_value, inside, place)
        )
    one = _type_of_one(field, inside, place)
    return pa.list_(one) if field.is_repeated else one


def reader_of(field: Field) -> Callable[[Any], Any]:
    """A function from a message to the cell of *field*, in a form that pyarrow accepts."""
    name = field.name
    to_cell = _cell_of_one(field)
    if _is_map(field):
        value_cell = _cell_of_one(field.message_type.fields_by_name["value"])
        if value_cell is None:
            return lambda message: list(getattr(message, name).items())
        return lambda message: [(k, value_cell(v)) for k, v in getattr(message, name).items()]
    if field.is_repeated:
        if to_cell is None:
            return lambda message: list(getattr(message, name))
        return lambda message: [to_cell(one) for one in getattr(message, name)]
    if field.has_presence:
        if to_cell is None:
            return lambda message: getattr(message, name) if message.HasField(name) else None
        return lambda message: to_cell(getattr(message, name)) if message.HasField(name) else None
    if to_cell is None:
        return lambda message: getattr(message, name)
    return lambda message: to_cell(getattr(message, name))


def _type_of_one(field: Field, inside: tuple[str, ...], place: str) -> pa.DataType:
    import pyarrow as pa

    if field.message_type is None:
        return _scalar(field)
    message = field.message_type
    name = message.full_name
    if name == TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    if name in WRAPPERS:
        return _scalar(message.fields_by_name["value"])
    if name in inside:
        raise ConfigurationError(
            f"{place} is a {name} inside another, which no column can hold; read it with Raw() and "
            "decode it in a transform"
        )
    return pa.struct(
        [
            pa.field(one.name, protobuf_column_type(one, (*inside, name), place))
            for one in message.fields
        ]
    )


def _scalar(field: Field) -> pa.DataType:
    import pyarrow as pa
    from google.protobuf.descriptor import FieldDescriptor as Kind

    types = {
        Kind.CPPTYPE_BOOL: pa.bool_(),
        Kind.CPPTYPE_DOUBLE: pa.float64(),
        Kind.CPPTYPE_ENUM: pa.string(),
        Kind.CPPTYPE_FLOAT: pa.float32(),
        Kind.CPPTYPE_INT32: pa.int32(),
        Kind.CPPTYPE_INT64: pa.int64(),
        Kind.CPPTYPE_UINT32: pa.int64(),  # Spark has no unsigned numbers.
        Kind.CPPTYPE_UINT64: pa.decimal128(20, 0),
    }
    if field.cpp_type == Kind.CPPTYPE_STRING:
        return pa.binary() if field.type == Kind.TYPE_BYTES else pa.string()
    return types[field.cpp_type]


def _cell_of_one(field: Field) -> Callable[[Any], Any] | None:
    """The conversion of one value to a cell; None when none is needed."""
    from decimal import Decimal

    from google.protobuf.descriptor import FieldDescriptor as Kind

    if field.message_type is not None:
        name = field.message_type.full_name
        if name == TIMESTAMP:
            return lambda value: value.seconds * 1_000_000 + value.nanos // 1_000
        if name in WRAPPERS:
            inner = _cell_of_one(field.message_type.fields_by_name["value"])
            return lambda value: inner(value.value) if inner else value.value
        readers = [(one.name, reader_of(one)) for one in field.message_type.fields]
        return lambda value: {name: read(value) for name, read in readers}
    if field.cpp_type == Kind.CPPTYPE_UINT64:
        return Decimal
    if field.cpp_type == Kind.CPPTYPE_ENUM:
        names = {one.number: one.name for one in field.enum_type.values}
        # An open enum may hold a number that this schema does not know yet.
        return lambda value: names.get(value, str(value))
    return None


def _is_map(field: Field) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
