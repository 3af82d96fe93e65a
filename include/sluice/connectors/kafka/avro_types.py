"""What Avro's types are as columns: https://avro.apache.org/docs/1.12.0/specification/."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

AvroSchema: TypeAlias = Any  # JSON: a name, a list that is a union, or an object.

# Read as the numbers and texts that they are, and made into columns all at once.
BY_NUMBER = frozenset(
    {
        "date",
        "local-timestamp-micros",
        "local-timestamp-millis",
        "time-micros",
        "time-millis",
        "timestamp-micros",
        "timestamp-millis",
        "uuid",
    }
)

MOST_DIGITS = 38  # Of a decimal, in Arrow and in Spark.


def without_logical_types(schema: AvroSchema) -> AvroSchema:
    """*schema* as the reader is to decode it: numbers where a logical type is but a number."""
    if isinstance(schema, list):
        return [without_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {
        name: without_logical_types(value) if name in {"type", "items", "values"} else value
        for name, value in schema.items()
        if not (name == "logicalType" and value in BY_NUMBER)
    }
    if "fields" in schema:
        changed["fields"] = [without_logical_types(one) for one in schema["fields"]]
    return changed


def record_fields(schema: AvroSchema, place: str) -> list[pa.Field]:
    """The columns of a record's *schema*.

    Raises:
        ConfigurationError: it is no record, or holds what no column can.
    """
    import pyarrow as pa

    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigurationError(
            f"the Avro schema of {place} is no record; its fields become the columns"
        )
    named: dict[str, Any] = {}
    return [
        pa.field(one["name"], type_) for one, type_ in _types_of_fields(schema, named, (), place)
    ]


def _types_of_fields(
    schema: dict[str, Any], named: dict[str, Any], inside: tuple[str, ...], place: str
) -> list[tuple[dict[str, Any], pa.DataType]]:
    name = _full_name(schema)
    if name in inside:
        raise ConfigurationError(
            f"the Avro schema of {place} has {name!r} inside itself, which no column can hold; "
            "read it with Raw() and decode it in a transform"
        )
    named[name] = schema
    return [
        (one, _type(one["type"], named, (*inside, name), f"{place}.{one['name']}"))
        for one in schema["fields"]
    ]


def _type(
    schema: AvroSchema, named: dict[str, Any], inside: tuple[str, ...], place: str
) -> pa.DataType:
    import pyarrow as pa

    if isinstance(schema, list):
        given = [one for one in schema if one != "null"]
        if len(given) != 1:
            raise ConfigurationError(
                f"{place} is an Avro union of {len(given)} types; a column has one, or null; read "
                "it with Raw() and decode it in a transform"
            )
        return _type(given[0], named, inside, place)
    if isinstance(schema, str):
        if schema in named:
            return _type(named[schema], named, inside, place)
        return _primitive(schema, place)
    if "name" in schema and schema["type"] in {"record", "enum", "fixed"}:
        named.setdefault(_full_name(schema), schema)
    if logical := _logical(schema, place):
        return logical
    match schema["type"]:
        case "record":
            pairs = _types_of_fields(schema, named, inside, place)
            return pa.struct([pa.field(one["name"], type_) for one, type_ in pairs])
        case "enum":
            return pa.string()
        case "fixed":
            return pa.binary()
        case "array":
            return pa.list_(_type(schema["items"], named, inside, place))
        case "map":
            return pa.map_(pa.string(), _type(schema["values"], named, inside, place))
        case other:
            return _type(other, named, inside, place)


def _logical(schema: dict[str, Any], place: str) -> pa.DataType | None:
    import pyarrow as pa

    match schema.get("logicalType"):
        case "decimal":
            if schema["precision"] > MOST_DIGITS:
                raise ConfigurationError(
                    f"{place} is a decimal of {schema['precision']} digits, and a column holds "
                    f"{MOST_DIGITS}; read it with Raw() and decode it in a transform"
                )
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        case "date":
            return pa.date32()
        case "timestamp-millis":
            return pa.timestamp("ms", tz="UTC")
        case "timestamp-micros":
            return pa.timestamp("us", tz="UTC")
        case "local-timestamp-millis":
            return pa.timestamp("ms")
        case "local-timestamp-micros":
            return pa.timestamp("us")
        case _:
            return None


def _primitive(name: str, place: str) -> pa.DataType:
    import pyarrow as pa

    types = {
        "null": pa.null(),
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "string": pa.string(),
    }
    if name not in types:
        raise ConfigurationError(f"{place} has the Avro type {name!r}, which is not declared")
    return types[name]


def _full_name(schema: dict[str, Any]) -> str:
    name = str(schema["name"])
    space = schema.get("namespace")
    return f"{space}.{name}" if space and "." not in name else name


def in_microseconds(type_: pa.DataType) -> pa.DataType:
    """As Spark has times: milliseconds become microseconds, wherever they are."""
    import pyarrow as pa

    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", tz=type_.tz)
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(one.name, in_microseconds(one.type)) for one in type_])
    if pa.types.is_map(type_):
        return pa.map_(pa.string(), in_microseconds(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(in_microseconds(type_.value_type))
    return type_
