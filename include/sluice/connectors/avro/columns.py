"""The columns of an Avro schema: of the schema that a file was written with, and of the one that
Kafka's values are resolved to.

Types are those that Spark's own Avro reader gives, and times are UTC, as with Parquet files:

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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sluice.connectors.avro.mapped import AvroSchema, Mapped, list_of, map_of, same
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

MAX_DIGITS = 38  # The digits of Arrow's decimal128, and of Spark's decimals.

WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
TIMES = {
    f"{local}timestamp-{unit}": short
    for local in ("", "local-")
    for unit, short in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
}


def map_schema(schema: AvroSchema, what: str) -> Mapped:
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


class _Mapping:
    def __init__(self, what: str) -> None:
        self._what = what
        self._named: dict[str, Any] = {}

    def map(
        self, schema: AvroSchema, path: str, within: tuple[str, ...], space: str = ""
    ) -> Mapped:
        match schema:
            case str() if schema in _primitives():
                return same(schema, _primitives()[schema])
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
                return list_of(self.map(items, f"{path}[]", within, space))
            case {"type": "map", "values": values}:
                return map_of(self.map(values, f"{path}{{}}", within, space))
            case {"type": "enum"}:
                return self._define(schema, space, same(schema, _primitives()["string"]))
            case {"type": "fixed"}:
                return self._define(schema, space, same(schema, _primitives()["bytes"]))
            case {"type": inner}:
                return self.map(inner, path, within, space)
            case _:
                raise self._cannot(path, schema)

    def _map_named(self, name: str, path: str, within: tuple[str, ...], space: str) -> Mapped:
        full = name if "." in name or not space else f"{space}.{name}"
        full = full if full in self._named or full in within else name
        if full in within:
            raise ConfigurationError(
                f"field {path!r} of {self._what} is a record {full!r} within itself, which no "
                "column can hold; write it flat, or as text"
            )
        if full not in self._named:
            raise self._cannot(path, name)
        mapped: Mapped = self._named[full]
        return replace(mapped, plain=full)  # A reference to a type by its name.

    def _map_union(
        self, union: list[AvroSchema], path: str, within: tuple[str, ...], space: str
    ) -> Mapped:
        others = [one for one in union if one != "null"]
        names = frozenset(one for one in others if isinstance(one, str))
        if len(others) == 2 and names in WIDER:
            return replace(same(union, _primitives()[WIDER[names]]), plain=union)
        if len(others) != 1:
            raise ConfigurationError(
                f"field {path!r} of {self._what} is a union of "
                f"{', '.join(map(_name_of, union))}, which no column can hold; a union may have "
                "null and one other type, or int and long, or float and double"
            )
        mapped = self.map(others[0], path, within, space)
        plain = ["null" if one == "null" else mapped.plain for one in union]
        return replace(mapped, plain=plain)

    def _map_logical(
        self, schema: Mapping[str, Any], logical: str, path: str, space: str
    ) -> Mapped | None:
        """The mapping of a logical type; None for an unknown one, which Avro ignores."""
        import pyarrow as pa

        kind = schema["type"]
        if logical in TIMES and kind == "long":
            exact = pa.timestamp(TIMES[logical], tz="UTC")
            return Mapped("long", pa.int64(), exact, pa.timestamp("us", tz="UTC"))
        if logical == "date" and kind == "int":
            return Mapped("int", pa.int32(), pa.date32(), pa.date32())
        if logical == "decimal" and kind in {"bytes", "fixed"}:
            digits, scale = schema.get("precision", 0), schema.get("scale", 0)
            if not 0 < digits <= MAX_DIGITS:
                raise ConfigurationError(
                    f"field {path!r} of {self._what} is a decimal of {digits} digits; at most "
                    f"{MAX_DIGITS} fit a column: write it with fewer, or as text"
                )
            mapped = same(dict(schema), pa.decimal128(digits, scale))
            return mapped if kind == "bytes" else self._define(schema, space, mapped)
        if logical in {"time-millis", "time-micros"} or (
            logical in {"duration", "uuid"} and (kind == "fixed")
        ):
            raise self._cannot(path, f"{logical} ({kind})")
        return None

    def _map_record(
        self, schema: Mapping[str, Any], path: str, within: tuple[str, ...], space: str
    ) -> Mapped:
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
        mapped = Mapped(plain, decoded, exact, column)
        self._named[full] = mapped
        return mapped

    def _define(self, schema: Mapping[str, Any], space: str, mapped: Mapped) -> Mapped:
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
    """*schema*, whatever it holds, without the logical types that ``Mapped.plain`` is without, and
    with all that resolution needs: defaults and aliases.  By either the same bytes are decoded to
    the same numbers, texts and decimals.
    """
    if isinstance(schema, list):
        return [as_numbers(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: as_numbers(schema[key]) for key in ("type", "items", "values") if key in schema}
    if "fields" in schema:
        inner["fields"] = [as_numbers(one) for one in schema["fields"]]
    changed = {**schema, **inner}
    if changed.get("logicalType") != "decimal":
        changed.pop("logicalType", None)
    return changed
