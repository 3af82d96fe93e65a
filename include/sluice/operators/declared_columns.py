"""Columns that a user declares: their types, and rows that conform to them.

Columns are declared as Python types, which stand for their usual column types (a ``datetime`` is an
instant in UTC, with microseconds), or as Polars types.  Only types that Spark, Arrow and Polars
share are accepted, so that all three read the same row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import polars as pl
from polars.datatypes import DataTypeClass

from sluice.errors import ConfigurationError

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
        ConfigurationError: a value is not of its column's type; the message begins with *what* the
            rows are.
    """
    return pl.DataFrame(
        [
            _series(pl.Series(name, (), declared), [row[index] for row in rows], what)
            for index, (name, declared) in enumerate(schema.items())
        ]
    )


def _series(empty: pl.Series, values: list[object], what: str) -> pl.Series:
    has_zone = isinstance(empty.dtype, pl.Datetime) and empty.dtype.time_zone is not None
    cause: Exception | None = None
    if not (has_zone and any(isinstance(v, datetime) and v.tzinfo is None for v in values)):
        try:
            series = pl.Series(empty.name, values, empty.dtype, strict=True)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            cause = error
        else:
            if series.dtype == empty.dtype:
                return series
    if len(values) > 1:
        for value in values:
            _series(empty, [value], what)  # Raises for the first value that does not fit.
    raise ConfigurationError(
        f"{what} has {values!r} in column {empty.name!r}, which is declared as {empty.dtype}; "
        "convert it (an instant has a time zone), or declare what it is"
    ) from cause


def _check_names(columns: list[str], schema: pl.Schema, what: str) -> None:
    missing = [name for name in schema if name not in columns]
    surplus = [name for name in columns if name not in schema]
    if missing or surplus:
        differences = [f"lacks column {name!r}" for name in missing]
        differences += [f"has column {name!r}, which is not declared" for name in surplus]
        raise ConfigurationError(
            f"{what} {' and '.join(differences)}; its columns must be: {', '.join(schema)}"
        )
