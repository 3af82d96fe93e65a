"""The columns of a table whose files differ: each has the type that holds all of its values.

A column may be added or left out, and is then null.  Its type may become a wider one, which holds
every value exactly:

    integers          those that hold both         uint8 and int8: int16
    floats            the wider; with integers     int32 and float: double; int64 and double: none
    decimals          digits before and after      38 of them; with integers, too
    text, bytes       with 32 or 64-bit offsets
    lists, structs    what is in them, likewise; a struct has the fields of both
    null              any

Anything else has no common type: a whole number is no text, and an instant is no local time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sluice.connectors.contracts.sink import DELETED
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

MOST_DIGITS = 38
_FLOAT_BITS = {"float": 24, "double": 53}  # The bits of whole numbers that floats hold exactly.


def united(schemas: Iterable[pa.Schema], table: str) -> pa.Schema:
    """The columns of all *schemas*, in the order of their first appearance.

    Raises:
        ConfigurationError: a column has two types without a common one; it names *table*.
    """
    import pyarrow as pa

    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            if field.name == DELETED:
                continue
            before = types.get(field.name, field.type)
            wide = wider(before, field.type)
            if wide is None:
                raise ConfigurationError(
                    f"column {field.name!r} of {table} is {before}, and the rows to be added have "
                    f"{field.type}, which no type holds both of; cast it to {before} in the stage, "
                    "give the column another name, or begin a table elsewhere"
                )
            types[field.name] = wide
    return pa.schema([pa.field(name, type_) for name, type_ in types.items()])


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """*table* with the columns and types of *schema*, which has all its columns; others are null.

    The mark of deleted rows is kept as it is.
    """
    import pyarrow as pa

    arrays = [
        table.column(field.name).cast(field.type)
        if field.name in table.column_names
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in schema
    ]
    whole = pa.Table.from_arrays(arrays, schema=schema)
    if DELETED not in table.column_names:
        return whole
    return whole.append_column(DELETED, table.column(DELETED))


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds every value of both; None if there is none."""
    import pyarrow as pa

    types = pa.types
    one, other = _plain(one), _plain(other)
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if _is_number(one) and _is_number(other):
        return _wider_number(one, other)
    for small, large in ((pa.string(), pa.large_string()), (pa.binary(), pa.large_binary())):
        if {one, other} == {small, large}:
            return large
    if types.is_struct(one) and types.is_struct(other):
        return _wider_struct(one, other)
    if types.is_map(one) and types.is_map(other):
        key, item = wider(one.key_type, other.key_type), wider(one.item_type, other.item_type)
        return None if key is None or item is None else pa.map_(key, item)
    if _is_list(one) and _is_list(other):
        item = wider(one.value_type, other.value_type)
        is_large = types.is_large_list(one) or types.is_large_list(other)
        return None if item is None else (pa.large_list if is_large else pa.list_)(item)
    return None


def _plain(type_: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _is_list(type_: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def _is_number(type_: pa.DataType) -> bool:
    import pyarrow as pa

    is_float = str(type_) in _FLOAT_BITS
    return is_float or bool(pa.types.is_integer(type_) or pa.types.is_decimal128(type_))


def _wider_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    floats = [kind for kind in (one, other) if str(kind) in _FLOAT_BITS]
    decimals = [kind for kind in (one, other) if pa.types.is_decimal128(kind)]
    if floats and decimals:
        return None
    if len(floats) == 2:
        return pa.float64()
    if floats:
        (whole,) = (kind for kind in (one, other) if kind not in floats)
        bits = whole.bit_width - pa.types.is_signed_integer(whole)
        fitting = (n for n, exact in _FLOAT_BITS.items() if exact >= max(bits, _exact(floats[0])))
        name = next(fitting, None)
        return None if name is None else {"float": pa.float32(), "double": pa.float64()}[name]
    if decimals:
        (before, after), (more_before, more_after) = _digits(one), _digits(other)
        before, after = max(before, more_before), max(after, more_after)
        return pa.decimal128(before + after, after) if before + after <= MOST_DIGITS else None
    return _wider_integer(one, other)


def _exact(type_: pa.DataType) -> int:
    return _FLOAT_BITS[str(type_)]


def _wider_integer(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    import pyarrow as pa

    signed = [pa.types.is_signed_integer(kind) for kind in (one, other)]
    if signed[0] == signed[1]:
        return max(one, other, key=lambda kind: kind.bit_width)
    with_sign, without = (one, other) if signed[0] else (other, one)
    bits = max(with_sign.bit_width, 2 * without.bit_width)
    sizes = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
    return sizes.get(bits)


def _digits(type_: pa.DataType) -> tuple[int, int]:
    """The number of digits before and after the point."""
    import pyarrow as pa

    if pa.types.is_decimal128(type_):
        return type_.precision - type_.scale, type_.scale
    return {8: 3, 16: 5, 32: 10, 64: 19 + pa.types.is_unsigned_integer(type_)}[type_.bit_width], 0


def _wider_struct(one: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    import pyarrow as pa

    fields: dict[str, pa.DataType] = {}
    for field in (*one, *other):
        wide = wider(fields.get(field.name, field.type), field.type)
        if wide is None:
            return None
        fields[field.name] = wide
    return pa.struct([pa.field(name, type_) for name, type_ in fields.items()])
