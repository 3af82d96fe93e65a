"""The columns of Protobuf's types, and the conversion of a message's field to a cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

Field: TypeAlias = Any  # A FieldDescriptor; no type stubs are installed.

TIMESTAMP = "google.protobuf.Timestamp"
WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)


def column_type(field: Field, inside: tuple[str, ...], place: str) -> pa.DataType:
    """The column's type; raises ConfigurationError for a recursive message."""
    import pyarrow as pa

    place = f"{place}.{field.name}"
    if _is_map(field):
        of_key, of_value = field.message_type.fields_by_name.values()
        return pa.map_(column_type(of_key, inside, place), _type_of_one(of_value, inside, place))
    one = _type_of_one(field, inside, place)
    return pa.list_(one) if _is_repeated(field) else one


def reader_of(field: Field) -> Callable[[Any], Any]:
    """A function from a message to the cell of *field*, in a form that pyarrow accepts."""
    name = field.name
    to_cell = _cell_of_one(field)
    if _is_map(field):
        value_cell = _cell_of_one(field.message_type.fields_by_name["value"])
        if value_cell is None:
            return lambda message: list(getattr(message, name).items())
        return lambda message: [(k, value_cell(v)) for k, v in getattr(message, name).items()]
    if _is_repeated(field):
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
        [pa.field(one.name, column_type(one, (*inside, name), place)) for one in message.fields]
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


def _is_repeated(field: Field) -> bool:
    return bool(field.is_repeated)
