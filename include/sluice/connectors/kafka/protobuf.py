"""Decoding of Protobuf values: the fields of a message become columns.

A field without presence has its default where a message does not set it; a field with presence, a
message or an ``optional`` one, is null.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.connectors.kafka.framing import NotFramed, unframed, without_message_indexes
from sluice.connectors.kafka.protobuf_types import column_type, reader_of
from sluice.connectors.kafka.values import Decoded, held, tombstone_fields, tombstones
from sluice.errors import ConfigurationError
from sluice.extras import require

if TYPE_CHECKING:
    import pyarrow as pa


MessageClass: TypeAlias = Any  # No type stubs of Protobuf are installed.
MessageDescriptor: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class ProtobufValues:
    """A Protobuf message as the value.

    *message* is ``package.module:Class`` of a generated class, or a message's full name in
    *descriptors*, the file that ``protoc --include_imports --descriptor_set_out`` writes.
    *framed* values have the header of the Schema Registry's serializers.
    """

    message: str
    descriptors: bytes = field(default=b"", repr=False)
    framed: bool = False

    @property
    def text_schema(self) -> str | None:
        return None

    def kept(self) -> list[pa.Field]:
        return tombstone_fields()

    def fields(self) -> list[pa.Field]:
        import pyarrow as pa

        return [
            pa.field(one.name, column_type(one, (), self.message))
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

        return Decoded([tombstones(raw), *held(messages, columns, malformed)], malformed)

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
    require("google.protobuf", who="Protobuf")
    from google.protobuf import (
        descriptor_pb2,
        descriptor_pool,
        message_factory,
    )
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
