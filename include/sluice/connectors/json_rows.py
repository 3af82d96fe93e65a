"""The JSON of rows: one form of every type, in every sink, and its way back.

    boolean, integers, text    themselves
    floats                     numbers; NaN and infinities as text: NaN, Infinity, -Infinity
    decimals                   text with all digits
    bytes                      text, base64
    dates, times, durations    ISO 8601; an instant in UTC, with a Z
    list                       an array
    struct                     an object of its fields
    map                        an object; its keys are the text of the key

Null is null everywhere.  These are the forms of Spark's ``to_json`` but for decimals, of which many
readers would make floats.  A type of which values would be lost is refused: nanoseconds, and maps
whose keys are no text, whole numbers, decimals, booleans, dates or instants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from sluice.connectors.columns import check_years, is_bytes, is_text
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

Convert: TypeAlias = Callable[[Any], Any]

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FIX = "convert it to text, a number or a timestamp of microseconds"


def check_json_types(schema: pa.Schema, who: str) -> None:
    """Check that JSON holds all values of the columns, which *who* writes.

    Raises:
        ConfigurationError: it does not; it names the column.
    """
    for field in schema:
        if (found := _without_form(field.type)) is not None:
            within = "" if found == field.type else f", within it {found},"
            raise ConfigurationError(
                f"{who} cannot write column {field.name!r} of type {field.type}{within} as JSON; "
                f"{_FIX}, or write another format"
            )


def json_objects(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as dicts of what JSON has a form for.

    Raises:
        ConfigurationError: a map has a key twice, or a time is outside of the years 1 to 9999.
    """
    columns = [json_values(table.column(n), name) for n, name in enumerate(table.column_names)]
    return named_rows(table, columns)


def named_rows(table: pa.Table, columns: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows of *table*, whose values are in *columns*, as dicts; without columns empty ones."""
    rows = zip(*columns, strict=True) if columns else repeat((), table.num_rows)
    return [dict(zip(table.column_names, row, strict=True)) for row in rows]


def json_values(column: pa.ChunkedArray, name: str) -> list[Any]:
    """The values of the column *name*; see ``json_objects``."""
    import pyarrow as pa

    type_ = column.type
    if pa.types.is_dictionary(type_):
        return json_values(column.cast(type_.value_type), name)
    if pa.types.is_timestamp(type_) and type_.tz is not None:
        column = column.cast(pa.timestamp(type_.unit, "UTC"))
    check_years(column, name, "")
    convert = None if _is_finite(column) else _converter(type_, name)
    try:
        values = python_values(column)
    except (ValueError, OverflowError) as error:  # A year within a list, a struct or a map.
        raise ConfigurationError(
            f"column {name!r} has a value that JSON cannot hold: {error}; replace it in the stage"
        ) from error
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def encoded(value: object) -> bytes:
    """The JSON of what ``json_objects`` or ``json_values`` yields."""
    import msgspec

    return msgspec.json.encode(value)


def encode_lines(table: pa.Table) -> bytes:
    """A line with an object for each row; see ``json_objects``."""
    import msgspec

    return msgspec.json.Encoder().encode_lines(json_objects(table))


def decode_lines(body: bytes, schema: pa.Schema) -> pa.Table:
    """The rows that ``encode_lines`` wrote of a table of *schema*.

    Raises:
        pyarrow.ArrowInvalid: these are other bytes.
    """
    import pyarrow as pa

    if not any(_needs_python(field.type) for field in schema):
        try:
            return _parsed(body, schema)
        except pa.ArrowInvalid:
            if not any(_has_floats(field.type) for field in schema):
                raise
    return _decoded(body, schema)


def _without_form(type_: pa.DataType) -> pa.DataType | None:
    """The type within *type_*, or itself, that has no form; None if there is none."""
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(type_):
        return _without_form(type_.value_type)
    if types.is_map(type_):
        return type_ if _key_of(type_.key_type) is None else _without_form(type_.item_type)
    if _is_list(type_):
        return _without_form(type_.value_type)
    if types.is_struct(type_):
        found = (_without_form(field.type) for field in type_)
        return next((inner for inner in found if inner is not None), None)
    if types.is_timestamp(type_) or types.is_time(type_) or types.is_duration(type_):
        return type_ if type_.unit == "ns" else None
    if types.is_decimal128(type_) or types.is_decimal256(type_):
        return type_ if type_.scale < 0 else None
    is_plain = (
        types.is_boolean(type_)
        or types.is_integer(type_)
        or types.is_float32(type_)
        or types.is_float64(type_)
        or types.is_date32(type_)
        or types.is_null(type_)
        or is_text(type_)
        or is_bytes(type_)
    )
    return None if is_plain else type_


def _is_list(type_: pa.DataType) -> bool:
    from pyarrow import types

    is_varying = types.is_list(type_) or types.is_large_list(type_)
    return bool(is_varying or types.is_fixed_size_list(type_))


def _key_of(type_: pa.DataType) -> Convert | None:
    """The text of a map's key; None where keys of the type have none that can be read back."""
    from pyarrow import types

    if is_text(type_):
        return str
    if types.is_boolean(type_):
        return lambda key: "true" if key else "false"
    is_decimal = types.is_decimal128(type_) or types.is_decimal256(type_)
    if types.is_integer(type_) or is_decimal:
        return str
    if types.is_date32(type_) or (types.is_timestamp(type_) and type_.unit != "ns"):
        return lambda key: encoded(key)[1:-1].decode()
    return None


def python_values(
    column: pa.ChunkedArray, *, maps_as_pydicts: Literal["strict"] | None = None
) -> list[Any]:
    """Polars is several times faster than Arrow here, but for maps and decimals of 76 digits."""
    import polars as pl
    import pyarrow as pa

    type_ = column.type
    if _is_within(type_, lambda one: pa.types.is_map(one) or pa.types.is_decimal256(one)):
        rows: list[Any] = column.to_pylist(maps_as_pydicts=maps_as_pydicts)
        return rows
    values = pl.from_arrow(column)
    assert isinstance(values, pl.Series)
    return values.to_list()


def _is_finite(column: pa.ChunkedArray) -> bool:
    """Whether these are floats, all of which JSON has as numbers."""
    import pyarrow.compute as pc
    from pyarrow import types

    return bool(
        types.is_floating(column.type) and pc.all(pc.is_finite(column)).as_py() is not False
    )


def _converter(type_: pa.DataType, name: str) -> Convert | None:
    """The function that makes a value that is not null fit for JSON; None if it is as it is."""
    from pyarrow import types

    if types.is_floating(type_):
        return _finite
    if types.is_map(type_):
        key, item = _key_of(type_.key_type), _converter(type_.item_type, name)
        assert key is not None, "checked with the columns"
        return lambda entries: _object(entries, key, item, name)
    if _is_list(type_):
        item = _converter(type_.value_type, name)
        if item is None:
            return None
        return lambda values: [None if value is None else item(value) for value in values]
    if types.is_struct(type_):
        inner = [(field.name, _converter(field.type, name)) for field in type_]
        changed = [(field, convert) for field, convert in inner if convert is not None]
        return (lambda row: _struct(row, changed)) if changed else None
    return None


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _object(
    entries: Sequence[tuple[Any, Any]], key: Convert, item: Convert | None, name: str
) -> dict[str, Any]:
    found = {
        key(one): value if value is None or item is None else item(value) for one, value in entries
    }
    if len(found) != len(entries):
        raise ConfigurationError(
            f"column {name!r} has a map with a key that is there twice, which an object of JSON "
            "cannot hold; take one of them in the stage"
        )
    return found


def _struct(row: dict[str, Any], changed: Sequence[tuple[str, Convert]]) -> dict[str, Any]:
    for field, convert in changed:
        if row[field] is not None:
            row[field] = convert(row[field])
    return row


def _is_within(type_: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    if is_wanted(type_):
        return True
    inner = (type_.field(number).type for number in range(type_.num_fields))
    return any(_is_within(one, is_wanted) for one in inner)


def _has_floats(type_: pa.DataType) -> bool:
    from pyarrow import types

    return _is_within(type_, types.is_floating)


def _needs_python(type_: pa.DataType) -> bool:
    """Whether Arrow's reader of JSON lacks the type; it has times and decimals only as texts."""
    from pyarrow import types

    is_in_us = types.is_timestamp(type_) and type_.unit == "us"  # All texts have six digits.
    if is_in_us or types.is_date32(type_) or types.is_decimal128(type_):
        return False
    return _is_within(
        type_,
        lambda one: (
            types.is_map(one)
            or types.is_temporal(one)
            or types.is_decimal(one)
            or is_bytes(one)
            or types.is_fixed_size_list(one)
            or types.is_dictionary(one)
            or types.is_null(one)
        ),
    )


def _parsed(body: bytes, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa
    import pyarrow.json as pj

    read = pa.schema([pa.field(field.name, _as_parsed(field.type)) for field in schema])
    table = pj.read_json(
        pa.BufferReader(body),
        # One block for all, as a line longer than a block cannot be read.
        read_options=pj.ReadOptions(block_size=max(1, len(body)), use_threads=False),
        parse_options=pj.ParseOptions(explicit_schema=read, unexpected_field_behavior="error"),
    )
    return table.cast(schema)


def _as_parsed(type_: pa.DataType) -> pa.DataType:
    """The type as which Arrow's reader parses *type_*; others need a cast."""
    import pyarrow as pa

    types = pa.types
    if types.is_temporal(type_) or types.is_decimal(type_):
        return pa.string()
    if types.is_struct(type_):
        return pa.struct([pa.field(one.name, _as_parsed(one.type)) for one in type_])
    # The reader has lists and texts with 32-bit offsets only.
    if _is_list(type_):
        return pa.list_(_as_parsed(type_.value_type))
    return pa.string() if types.is_large_string(type_) or types.is_string_view(type_) else type_


def _decoded(body: bytes, schema: pa.Schema) -> pa.Table:
    import msgspec
    import pyarrow as pa

    try:
        rows = msgspec.json.Decoder(dict[str, Any]).decode_lines(body)
        if any(row.keys() != set(schema.names) for row in rows):
            raise pa.ArrowInvalid("a line has other fields than the table")
        columns = [
            pa.array([_read(row[field.name], _reader(field.type)) for row in rows], field.type)
            for field in schema
        ]
    except (ValueError, TypeError, AttributeError, ArithmeticError, msgspec.MsgspecError) as error:
        raise pa.ArrowInvalid(f"a line is not of the table's types: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def _read(value: object, reader: Convert | None) -> object:
    return value if value is None or reader is None else reader(value)


def _reader(type_: pa.DataType) -> Convert | None:
    """The way back of a value: from what JSON has to what Arrow takes; None if it is the same."""
    from base64 import b64decode

    import msgspec
    from pyarrow import types

    if types.is_dictionary(type_):
        return _reader(type_.value_type)
    if types.is_floating(type_):
        return lambda value: _NOT_FINITE[value] if isinstance(value, str) else float(value)
    if types.is_decimal(type_):
        return Decimal
    if is_bytes(type_):
        return lambda value: b64decode(value, validate=True)
    if types.is_date32(type_):
        return date.fromisoformat
    if types.is_timestamp(type_):
        return datetime.fromisoformat
    if types.is_time(type_):
        return time.fromisoformat
    if types.is_duration(type_):
        return lambda value: msgspec.convert(value, timedelta)
    if _is_list(type_):
        item = _reader(type_.value_type)
        return lambda values: [_read(value, item) for value in values]
    if types.is_struct(type_):
        inner = {field.name: _reader(field.type) for field in type_}
        return lambda row: {name: _read(row[name], inner[name]) for name in inner}
    if types.is_map(type_):
        key, item = _key_reader(type_.key_type), _reader(type_.item_type)
        return lambda row: [(_read(one, key), _read(value, item)) for one, value in row.items()]
    return None


def _key_reader(type_: pa.DataType) -> Convert | None:
    from pyarrow import types

    if types.is_boolean(type_):
        return {"true": True, "false": False}.__getitem__
    return int if types.is_integer(type_) else _reader(type_)
