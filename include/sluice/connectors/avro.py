"""Avro: the column of each of its types, and the codecs of its blocks.

``map_schema`` maps the schema that a file was written with, or the one that Kafka's values are
resolved to.  Types are those that Spark's own Avro reader gives, and times are UTC, as with Parquet
files:

    int, long, float, double, boolean    as they are; a union of int and long is a long, one of
                                         float and double a double
    string, enum, uuid                   string
    bytes, fixed                         binary
    date; timestamp-*, local-timestamp-* date; microseconds in UTC, finer times are truncated
    decimal                              decimal, to 38 digits
    array, map, record                   list, map, struct
    a union of null and one of these     that, with nulls

Every other type is refused with the name of its field.  Times are decoded as numbers, which Arrow
then casts to times, a column at once.

``decompressed`` uses Arrow and Python: ``fastavro`` would need further libraries for snappy, which
Spark writes, and for zstandard.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.connectors.columns import MAX_DECIMAL_DIGITS, cast_exactly, is_list
from sluice.errors import ConfigurationError
from sluice.extras import require_installed

if TYPE_CHECKING:
    import pyarrow as pa

CODECS = ("null", "deflate", "snappy", "zstandard", "bzip2", "xz")

# Three bytes of snappy expand to 64 at most.  No memory is allocated for a block that claims more.
SNAPPY_MAX_RATIO = 64

WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
TIMES = {
    f"{local}timestamp-{unit}": short
    for local in ("", "local-")
    for unit, short in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
}

AvroSchema: TypeAlias = Any  # JSON: a name, a list that is a union, or an object.


@dataclass(frozen=True, slots=True)
class AvroColumn:
    """A type of Avro, and its column.

    ``plain`` is the Avro schema without logical times, and ``decoded`` the Arrow type of values
    decoded with it; ``exact`` has times in the unit of the schema; ``column`` is the type of rows.
    """

    plain: AvroSchema
    decoded: pa.DataType
    exact: pa.DataType
    column: pa.DataType

    def array_of(self, name: str, values: Sequence[object]) -> pa.Array:
        """The column of the field *name* of this record; ``plain`` decoded the *values*.

        Raises:
            pyarrow.ArrowInvalid, OverflowError: a value has no place in the column.
        """
        import pyarrow as pa

        decoded = pa.array(values, self.decoded.field(name).type)
        exact = decoded.cast(self.exact.field(name).type)  # Of numbers in its unit.
        return cast_exactly(exact, self.column.field(name).type)

    def held(self, given: pa.ChunkedArray) -> pa.ChunkedArray:
        """The column *given*, which Avro is to write as a value of this type, with all its values
        as they are there: fastavro makes others of some in silence.

        Times are in UTC, and numbers where Python's times are not as fine.

        Raises:
            pyarrow.ArrowInvalid: one is another there.
        """
        found = cast_exactly(given, _held_type(given.type, self.exact))
        if found.type == self.column and has_nanoseconds(self.exact):
            found = cast_exactly(found, self.exact).cast(self.decoded)
        return found


def _held_type(given: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """The type in which values of *given* are written as *wanted*; what fastavro refuses, stays."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_struct(given) and types.is_struct(wanted):
        there = [(one, wanted.get_field_index(one.name)) for one in given]
        return pa.struct(
            [
                one if at < 0 else one.with_type(_held_type(one.type, wanted.field(at).type))
                for one, at in there
            ]
        )
    if is_list(given) and types.is_list(wanted):
        return pa.list_(_held_type(given.value_type, wanted.value_type))
    if types.is_map(given) and types.is_map(wanted):
        return pa.map_(given.key_type, _held_type(given.item_type, wanted.item_type))
    if types.is_timestamp(given) and types.is_timestamp(wanted):
        return pa.timestamp(given.unit, "UTC")
    is_number = types.is_integer(given) or types.is_floating(given) or types.is_decimal(given)
    is_number_there = types.is_integer(wanted) or types.is_floating(wanted)
    is_text = types.is_boolean(wanted) and not types.is_boolean(given)
    is_day = types.is_timestamp(given) and types.is_date(wanted)
    return wanted if (is_number and is_number_there) or is_text or is_day else given


def map_schema(schema: AvroSchema, what: str) -> AvroColumn:
    """The mapping of a record's *schema*; *what* names the file, or the values, in errors.

    Raises:
        ConfigurationError: a type has no column; the message names the field.
    """
    if not isinstance(schema, dict) or schema.get("type") not in {"record", "error"}:
        raise ConfigurationError(
            f"{what} has rows of type {_name_of(schema)!r}; write records, whose fields are "
            "the columns"
        )
    return _Mapping(what).map(schema, "", ())


def map_fields(schema: AvroSchema) -> Mapping[str, AvroColumn]:
    """The mapping of each field of a record's *schema* that has a column."""
    mapping, found = _Mapping(""), dict[str, AvroColumn]()
    _, space = _full_name(schema, "")
    for field in schema["fields"]:
        with suppress(ConfigurationError):
            found[field["name"]] = mapping.map(field["type"], "", (), space)
    return found


def time_of_another_unit(written: AvroSchema, read: AvroSchema) -> str:
    """The field whose times are in another unit in the schema *read*; empty if there is none.

    Resolution compares numbers, and not what they mean.
    """
    is_record = isinstance(written, dict) and "fields" in written
    before, after = map_fields(written) if is_record else {}, map_fields(read)
    both = (name for name in after if name in before)
    return next((one for one in both if _differs(before[one].exact, after[one].exact)), "")


def _differs(one: pa.DataType, other: pa.DataType) -> bool:
    from pyarrow import types

    if types.is_struct(one) and types.is_struct(other):
        both = (field.name for field in one if other.get_field_index(field.name) >= 0)
        return any(_differs(one.field(name).type, other.field(name).type) for name in both)
    if types.is_nested(one) and one.id == other.id:
        both_at = range(one.num_fields)
        return any(_differs(one.field(at).type, other.field(at).type) for at in both_at)
    return bool(types.is_timestamp(one) and types.is_timestamp(other) and one.unit != other.unit)


class _Mapping:
    def __init__(self, what: str) -> None:
        self._what = what
        self._named: dict[str, Any] = {}

    def map(
        self, schema: AvroSchema, path: str, within: tuple[str, ...], space: str = ""
    ) -> AvroColumn:
        match schema:
            case str() if schema in _primitives():
                return _same(schema, _primitives()[schema])
            case str():
                return self._map_named(schema, path, within, space)
            case list():
                return self._map_union(schema, path, within, space)
            case {"logicalType": str(logical)} if (
                mapped := self._map_logical(schema, logical, path, space)
            ) is not None:
                return mapped
            case {"type": "record" | "error"}:
                return self._map_record(schema, path, within, space)
            case {"type": "array", "items": items}:
                return _list_of(self.map(items, f"{path}[]", within, space))
            case {"type": "map", "values": values}:
                return _map_of(self.map(values, f"{path}{{}}", within, space))
            case {"type": "enum"}:
                return self._define(schema, space, _same(schema, _primitives()["string"]))
            case {"type": "fixed"}:
                return self._define(schema, space, _same(schema, _primitives()["bytes"]))
            case {"type": inner}:
                return self.map(inner, path, within, space)
            case _:
                raise self._cannot(path, schema)

    def _map_named(self, name: str, path: str, within: tuple[str, ...], space: str) -> AvroColumn:
        full = name if "." in name or not space else f"{space}.{name}"
        full = full if full in self._named or full in within else name
        if full in within:
            raise ConfigurationError(
                f"field {path!r} of {self._what} is a record {full!r} within itself, which no "
                "column can hold; write it flat, or as text"
            )
        if full not in self._named:
            raise self._cannot(path, name)
        mapped: AvroColumn = self._named[full]
        return replace(mapped, plain=full)  # A reference to a type by its name.

    def _map_union(
        self, union: list[AvroSchema], path: str, within: tuple[str, ...], space: str
    ) -> AvroColumn:
        others = [branch for branch in union if branch != "null"]
        names = frozenset(branch for branch in others if isinstance(branch, str))
        if len(others) == 2 and names in WIDER:
            return replace(_same(union, _primitives()[WIDER[names]]), plain=union)
        if len(others) != 1:
            raise ConfigurationError(
                f"field {path!r} of {self._what} is a union of "
                f"{', '.join(map(_name_of, union))}, which no column can hold; a union may have "
                "null and one other type, or int and long, or float and double"
            )
        mapped = self.map(others[0], path, within, space)
        plain = ["null" if branch == "null" else mapped.plain for branch in union]
        return replace(mapped, plain=plain)

    def _map_logical(
        self, schema: Mapping[str, Any], logical: str, path: str, space: str
    ) -> AvroColumn | None:
        """The mapping of a logical type; None for an unknown one, which Avro ignores."""
        import pyarrow as pa

        kind = schema["type"]
        if logical in TIMES and kind == "long":
            exact = pa.timestamp(TIMES[logical], tz="UTC")
            return AvroColumn("long", pa.int64(), exact, pa.timestamp("us", tz="UTC"))
        if logical == "date" and kind == "int":
            return AvroColumn("int", pa.int32(), pa.date32(), pa.date32())
        if logical == "decimal" and kind in {"bytes", "fixed"}:
            digits, scale = schema.get("precision", 0), schema.get("scale", 0)
            if not 0 < digits <= MAX_DECIMAL_DIGITS:
                raise ConfigurationError(
                    f"field {path!r} of {self._what} is a decimal of {digits} digits; at most "
                    f"{MAX_DECIMAL_DIGITS} fit a column: write it with fewer, or as text"
                )
            mapped = _same(dict(schema), pa.decimal128(digits, scale))
            return mapped if kind == "bytes" else self._define(schema, space, mapped)
        if logical in {"time-millis", "time-micros"} or (
            logical in {"duration", "uuid"} and (kind == "fixed")
        ):
            raise self._cannot(path, f"{logical} ({kind})")
        return None

    def _map_record(
        self, schema: Mapping[str, Any], path: str, within: tuple[str, ...], space: str
    ) -> AvroColumn:
        import pyarrow as pa

        full, space = _full_name(schema, space)
        fields = [
            (field, self.map(field["type"], _below(path, field["name"]), (*within, full), space))
            for field in schema["fields"]
        ]
        if not fields:
            raise self._cannot(path, "a record without a field")
        plain = {
            "type": "record",
            "name": full,
            "fields": [{"name": field["name"], "type": mapped.plain} for field, mapped in fields],
        }
        decoded, exact, column = (
            pa.struct([(field["name"], getattr(mapped, which)) for field, mapped in fields])
            for which in ("decoded", "exact", "column")
        )
        mapped = AvroColumn(plain, decoded, exact, column)
        self._named[full] = mapped
        return mapped

    def _define(self, schema: Mapping[str, Any], space: str, mapped: AvroColumn) -> AvroColumn:
        full, _ = _full_name(schema, space)
        plain = {key: value for key, value in schema.items() if key not in {"namespace", "doc"}}
        mapped = replace(mapped, plain=plain | {"name": full})
        self._named[full] = mapped
        return mapped

    def _cannot(self, path: str, schema: AvroSchema) -> ConfigurationError:
        return ConfigurationError(
            f"field {path!r} of {self._what} is {_name_of(schema)}, which has no column type here; "
            "write it as text, a number or bytes"
        )


def _primitives() -> dict[str, pa.DataType]:
    import pyarrow as pa

    return {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "bytes": pa.binary(),
        "string": pa.string(),
    }


def _same(plain: AvroSchema, column: pa.DataType) -> AvroColumn:
    return AvroColumn(plain, column, column, column)


def _list_of(item: AvroColumn) -> AvroColumn:
    import pyarrow as pa

    return AvroColumn(
        {"type": "array", "items": item.plain},
        pa.list_(item.decoded),
        pa.list_(item.exact),
        pa.list_(item.column),
    )


def _map_of(value: AvroColumn) -> AvroColumn:
    import pyarrow as pa

    text = pa.string()
    return AvroColumn(
        {"type": "map", "values": value.plain},
        pa.map_(text, value.decoded),
        pa.map_(text, value.exact),
        pa.map_(text, value.column),
    )


def _full_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """A definition's full name, and the namespace of the names within it (Avro's rule)."""
    name: str = schema["name"]
    if "." not in name:
        space = schema.get("namespace", space)
        return (f"{space}.{name}" if space else name), space
    return name, name.rpartition(".")[0]


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name_of(schema: AvroSchema) -> str:
    if isinstance(schema, dict):
        return str(schema.get("logicalType", schema.get("type")))
    return ", ".join(map(_name_of, schema)) if isinstance(schema, list) else str(schema)


def as_numbers(schema: AvroSchema) -> AvroSchema:
    """*schema* without the logical types that ``AvroColumn.plain`` leaves out.

    Defaults and aliases stay, as schema resolution needs them.  Both schemas decode the same bytes
    to the same numbers, texts and decimals.
    """
    if isinstance(schema, list):
        return [as_numbers(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: as_numbers(schema[key]) for key in ("type", "items", "values") if key in schema}
    if "fields" in schema:
        inner["fields"] = [as_numbers(field) for field in schema["fields"]]
    changed = {**schema, **inner}
    if changed.get("logicalType") != "decimal":
        changed.pop("logicalType", None)
    return changed


def has_nanoseconds(kind: pa.DataType) -> bool:
    """Whether *kind* is, or contains, a timestamp of nanoseconds."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "ns")
    return any(has_nanoseconds(kind.field(index).type) for index in range(kind.num_fields))


def decompressed(codec: str, body: bytes, what: str) -> bytes:
    """The bytes of a block's rows; *what* names the block in errors.

    Raises:
        ConfigurationError: the block is damaged.
    """
    try:
        return _decompress(codec, body)
    except (zlib.error, OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise ConfigurationError(f"{what} is damaged ({error}); restore it") from error


def _decompress(codec: str, body: bytes) -> bytes:
    match codec:
        case "null":
            return body
        case "deflate":
            return zlib.decompress(body, -zlib.MAX_WBITS)
        case "snappy":
            return _unsnap(body[:-4])  # A checksum of the text follows.
        case "zstandard":
            require_installed("zstandard", who="Avro compressed with zstandard")
            import zstandard

            try:
                return zstandard.ZstdDecompressor().decompressobj().decompress(body)
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from error
        case "bzip2":
            return bz2.decompress(body)
        case _:
            return lzma.decompress(body)


def _unsnap(body: bytes) -> bytes:
    """Decompress snappy's block format, which begins with the size of the text."""
    import pyarrow as pa

    size = shift = 0
    for byte in body:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > len(body) * SNAPPY_MAX_RATIO:
        raise ValueError(f"{len(body)} bytes cannot be {size} of text")
    return bytes(pa.Codec("snappy").decompress(body, decompressed_size=size))
