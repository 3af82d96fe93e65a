"""Columns that a user declares: their types, and rows that conform to them.

Columns are declared as Python types, which stand for their usual column types (a ``datetime`` is an
instant in UTC, with microseconds), or as Polars types.  Only types that Spark, Arrow and Polars
share are accepted, so that all three read the same row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import polars as pl
from polars.datatypes import DataTypeClass

from sluice.errors import ConfigurationError
from sluice.state.segments import instance_of

_OF_PYTHON: Mapping[object, pl.DataType] = {
    datetime: pl.Datetime("us", "UTC"),
    timedelta: pl.Duration("us"),
}
_SHARED = (
    pl.Boolean,
    pl.Int8,
    pl.Int16,
    pl.Int32,
    pl.Int64,
    pl.Float32,
    pl.Float64,
    pl.String,
    pl.Binary,
    pl.Date,
    pl.Decimal,
)

# The integer types that each integer type holds without loss, and so accepts.
_WIDER: Mapping[pl.DataType, frozenset[pl.DataType]] = {
    pl.Int8(): frozenset({pl.Int16(), pl.Int32(), pl.Int64(), pl.Float32(), pl.Float64()}),
    pl.UInt8(): frozenset({pl.Int16(), pl.Int32(), pl.Int64(), pl.Float32(), pl.Float64()}),
    pl.Int16(): frozenset({pl.Int32(), pl.Int64(), pl.Float32(), pl.Float64()}),
    pl.UInt16(): frozenset({pl.Int32(), pl.Int64(), pl.Float32(), pl.Float64()}),
    pl.Int32(): frozenset({pl.Int64(), pl.Float64()}),
    pl.UInt32(): frozenset({pl.Int64(), pl.Float64()}),  # The type of Polars' counts.
    pl.Float32(): frozenset({pl.Float64()}),
    pl.Datetime("ms", "UTC"): frozenset({pl.Datetime("us", "UTC")}),
}


def declared_schema(uid: str, columns: Mapping[str, object]) -> pl.Schema:
    """The types that *columns* of stage *uid* are declared to have.

    Raises:
        ConfigurationError: a type is not a type, or state cannot keep it.
    """
    return pl.Schema({name: declared_type(uid, name, of) for name, of in columns.items()})


def declared_type(uid: str, name: str, declared: object) -> pl.DataType:
    """The type of one column; see ``declared_schema``."""
    try:
        # Any object may have been declared: Polars decides whether it is a type.
        found = pl.Schema({name: _OF_PYTHON.get(declared, declared)})[name]  # type: ignore[arg-type]
    except TypeError:
        found = None
    if found is None or not _is_shared(found):
        raise ConfigurationError(
            f"stage {uid!r} declares column {name!r} as {_described(declared)}, which is no type "
            "that a row can keep; use int, float, str, bool, bytes, date, datetime, or a Polars "
            "type such as pl.Int32() or pl.List(pl.String())"
        )
    return found


def _is_shared(dtype: pl.DataType | DataTypeClass) -> bool:
    match dtype() if isinstance(dtype, DataTypeClass) else dtype:
        case pl.List(inner=inner):
            return _is_shared(inner)
        case pl.Struct(fields=fields):
            return all(_is_shared(field.dtype) for field in fields)
        case pl.Datetime(time_unit=unit) | pl.Duration(time_unit=unit):
            return unit == "us"
        case shared:
            return isinstance(shared, _SHARED)


def _described(declared: object) -> str:
    return declared.__name__ if isinstance(declared, type) else repr(declared)


def conformed(frame: pl.DataFrame, schema: pl.Schema, what: str) -> pl.DataFrame:
    """*frame* with the columns of *schema* in its order, cast where nothing can be lost.

    Raises:
        ConfigurationError: a column is missing, is too many, or has another type; the message
            begins with *what* the frame is.
    """
    _check_names(frame.columns, schema, what)
    for name, declared in schema.items():
        actual = frame.schema[name]
        takes = actual == pl.Null() or declared in _WIDER.get(actual, frozenset())
        if actual != declared and not takes:
            raise ConfigurationError(
                f"{what} has column {name!r} of type {actual}, but it is declared as {declared}; "
                "cast it, or declare what it is"
            )
    return frame.select(pl.col(name).cast(declared) for name, declared in schema.items())


def row_values(row: object, schema: pl.Schema, what: str) -> tuple[object, ...]:
    """The values of a mapping that has exactly the columns of *schema*, in its order.

    Raises:
        ConfigurationError: it has not; the message begins with *what* the row is.
    """
    if not isinstance(row, Mapping):
        raise ConfigurationError(
            f"{what} is {row!r} of type {type(row).__name__}; rows are dicts, column -> value"
        )
    if row.keys() != schema.keys():
        _check_names(list(row), schema, what)
    return tuple(row[name] for name in schema)


def frame_of_rows(rows: Sequence[tuple[object, ...]], schema: pl.Schema, what: str) -> pl.DataFrame:
    """*rows* of values in the order of *schema*.

    Raises:
        ConfigurationError: a value is not of its column's type, or a part of it would be lost; the
            message begins with *what* the rows are.
    """
    return pl.DataFrame(
        [
            _series(pl.Series(name, (), declared), [row[index] for row in rows], what)
            for index, (name, declared) in enumerate(schema.items())
        ]
    )


def _series(empty: pl.Series, values: list[object], what: str) -> pl.Series:
    cause: Exception | None = None
    try:
        series = pl.Series(empty.name, values, empty.dtype, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        cause = error
    else:
        if series.dtype == empty.dtype and _are_kept(values, series):
            return series
    if len(values) > 1:
        for value in values:
            _series(empty, [value], what)  # Raises for the first value that does not fit.
    raise ConfigurationError(
        f"{what} has {values!r} in column {empty.name!r}, which is declared as {empty.dtype}; "
        "convert it (an instant has a time zone), or declare what it is"
    ) from cause


def _are_kept(values: list[object], series: pl.Series) -> bool:
    """Whether *series* has all of each value: Polars rounds decimals, and cuts what is nested."""
    kept = series.to_list()
    if not series.dtype.is_nested() and kept == values:
        return True
    return all(_is_kept(one, of, series.dtype) for one, of in zip(values, kept, strict=True))


def _is_kept(value: Any, kept: Any, dtype: pl.DataType) -> bool:  # noqa: ANN401 - a user's value
    if kept is None:
        return value is None or bool(value != value)  # Not a time, of pandas.
    match dtype:
        case pl.List():
            inner = instance_of(dtype.inner)
            pairs = zip(value, kept, strict=True)
            return not isinstance(value, str) and all(_is_kept(a, b, inner) for a, b in pairs)
        case pl.Struct() if isinstance(value, Mapping):
            types = {field.name: instance_of(field.dtype) for field in dtype.fields}
            return value.keys() <= types.keys() and all(
                _is_kept(one, kept[name], types[name]) for name, one in value.items()
            )
        case pl.Datetime() if isinstance(value, datetime):
            if (value.tzinfo is None) != (dtype.time_zone is None):
                return False
            # Of an hour that is there twice Python says that no two are equal.
            return bool(value - kept == timedelta())
        case pl.Float32():
            return math.isinf(kept) <= math.isinf(value)  # Its digits are fewer, as declared.
        case pl.Float64() if isinstance(value, Decimal):
            return bool(float(value) == kept)
        case pl.Decimal() if isinstance(value, float):
            return bool(float(kept) == value)
        case pl.Struct():
            return True
        case _:
            return bool(kept == value or (kept != kept and value != value))  # NaN is itself.


def _check_names(columns: list[str], schema: pl.Schema, what: str) -> None:
    missing = [name for name in schema if name not in columns]
    surplus = [name for name in columns if name not in schema]
    if missing or surplus:
        differences = [f"lacks column {name!r}" for name in missing]
        differences += [f"has column {name!r}, which is not declared" for name in surplus]
        raise ConfigurationError(
            f"{what} {' and '.join(differences)}; its columns must be: {', '.join(schema)}"
        )
