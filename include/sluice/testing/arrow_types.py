"""The Arrow types of Spark's columns, and the conversion of Python's values to them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from sluice.errors import ConfigurationError

INSTANT = pa.timestamp("us", tz="UTC")
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_LARGEST = pa.decimal128(20, 0)  # For unsigned integers of 64 bits.


def as_spark_has_it(dtype: pa.DataType) -> pa.DataType:
    """Spark's type that holds all values of *dtype*; instants are microseconds in UTC."""
    types = pa.types
    if types.is_dictionary(dtype):
        return as_spark_has_it(dtype.value_type)
    if types.is_null(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype):
        return pa.string()
    if types.is_large_binary(dtype) or types.is_binary_view(dtype):
        return pa.binary()
    if types.is_timestamp(dtype):
        return pa.timestamp("us") if dtype.tz is None else INSTANT
    if types.is_date64(dtype):
        return pa.date32()
    if types.is_uint64(dtype):
        return _LARGEST
    if types.is_struct(dtype):
        return pa.struct([field.with_type(as_spark_has_it(field.type)) for field in dtype])
    if _is_list(dtype):
        return pa.list_(as_spark_has_it(dtype.value_type))
    if types.is_map(dtype):
        return pa.map_(as_spark_has_it(dtype.key_type), as_spark_has_it(dtype.item_type))
    return _WIDER.get(dtype, dtype)


def column_of(values: Sequence[Any], dtype: pa.DataType, name: str, where: str) -> pa.Array:
    """*values* as a column; instants and days may be ISO texts, in UTC without a time zone.

    Raises:
        ConfigurationError: a value is of another type; it names the row, from 1, and the column.
    """
    values = [_parsed(value, dtype) for value in values]
    try:
        return pa.array(values, dtype)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError):
        for row, value in enumerate(values, 1):
            if not _fits(value, dtype):
                raise ConfigurationError(
                    f"row {row} of {where} has {value!r} in column {name!r}, which is "
                    f"{dtype}; give a value of that type, or None"
                ) from None
        raise


def cast_column(
    column: pa.ChunkedArray, dtype: pa.DataType, name: str, where: str
) -> pa.ChunkedArray:
    """*column* as *dtype*, without loss.

    Raises:
        ConfigurationError: a value does not fit; it names the row, if it is known.
    """
    if pa.types.is_dictionary(column.type):
        plain = as_spark_has_it(column.type)
        decoded = [chunk.dictionary.cast(plain).take(chunk.indices) for chunk in column.chunks]
        column = pa.chunked_array(decoded, plain)
    try:
        return column.cast(dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        given = column.type
        for row, value in enumerate(column, 1):
            try:
                value.cast(dtype)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise ConfigurationError(
                    f"row {row} of {where} has {value.as_py()!r} in column {name!r}, which is "
                    f"{given} where {dtype} is declared; cast it, or correct the value"
                ) from None
        raise


def _is_list(dtype: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(dtype)
        or types.is_large_list(dtype)
        or types.is_fixed_size_list(dtype)
        or types.is_list_view(dtype)
        or types.is_large_list_view(dtype)
    )


def _parsed(value: Any, dtype: pa.DataType) -> Any:  # noqa: ANN401 - a user's value
    if not isinstance(value, str):
        return value
    try:
        if pa.types.is_timestamp(dtype):
            return datetime.fromisoformat(value)
        if pa.types.is_date(dtype):
            return date.fromisoformat(value)
    except ValueError:
        pass  # The error names its row.
    return value


def _fits(value: Any, dtype: pa.DataType) -> bool:  # noqa: ANN401 - a user's value
    try:
        pa.array([value], dtype)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError):
        return False
    return True
