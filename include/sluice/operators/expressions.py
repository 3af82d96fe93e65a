"""SQL and column types of a declaration, in Polars.

Plain SQL, which is columns, fields and comparisons, selects rows and columns of a source; Polars
computes it exactly as Spark does.  Any other SQL over a source is refused with None or with
``NotPlainError``, and the rows go through Spark's JVM.  The filters and projections of a stage's
result are computed by Polars alone (``sluice.operators.sql``).

An argument of an aggregate is the name of a column or SQL, and names come first: ``user`` is the
column, where there is one, and never Spark's ``current_user()``.  A name that no column has is a
mistake, which the operator reports.

Columns are declared as Python types, which stand for their usual column types (a ``datetime`` is an
instant in UTC, with microseconds), or as Polars types.  Only types that Spark, Arrow and Polars
share are accepted, so that all three read the same row.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

import polars as pl
from polars.datatypes import DataTypeClass

from sluice.declaration.expressions import Filter, Projection, Step
from sluice.declaration.operations import KeyedAggregate, Operation, WindowAggregate
from sluice.declaration.sql import parsed
from sluice.declaration.sql_tree import Call, Column, Expression, Literal
from sluice.errors import ConfigurationError
from sluice.operators.operator import ARGUMENT, FILTER, ORDER

_COMPARE: Mapping[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MAX_LONG = 2**63 - 1
_MAX_MILLIS = _MAX_LONG // 1000

_NAME = re.compile(r"[A-Za-z_]\w*")
_WORD = re.compile(r"\w+")

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

SCHEMAS_KEPT = 64  # Those of a declaration's streams: each of their columns is looked up.


@dataclass(frozen=True, slots=True, eq=False)
class PlainSql:
    """An expression, and the columns or their fields that it ``reads``, such as ``bid.price``."""

    expression: pl.Expr
    reads: tuple[str, ...]


def plain_column(text: str, schema: pl.Schema) -> PlainSql | None:
    """One item of a SELECT over rows of *schema*, with the name that Spark gives it.

    None if it is not plain.
    """
    sql = parsed(text)
    match sql.tree:
        case Column() as column:
            return _named(_path(column, schema), sql.name)
        case Call(function="timestamp_millis", arguments=(Column() as column,)):
            found = _path(column, schema)
            if found is None or not found.dtype.is_integer():
                return None
            millis = found.expression.cast(pl.Int64)
            is_instant = millis.is_between(-_MAX_MILLIS, _MAX_MILLIS)
            micros = pl.when(is_instant).then(millis) * 1000
            instants = micros.cast(pl.Datetime("us", "UTC"))
            return _named(replace(found, expression=instants), sql.name)
        case _:
            return None


def _named(found: _Path | None, name: str | None) -> PlainSql | None:
    if found is None or name is None:  # Spark would generate a name.
        return None
    return PlainSql(found.expression.alias(name), (found.path,))


def plain_condition(text: str, schema: pl.Schema) -> PlainSql | None:
    """A condition over rows of *schema*: comparisons with literals, joined by AND.

    None if it is not plain.
    """
    tree = parsed(text).tree
    return None if tree is None else _plain_condition(tree, schema)


def _plain_condition(tree: Expression, schema: pl.Schema) -> PlainSql | None:
    match tree:
        case Call(function="and", arguments=(left, right)):
            one, other = _plain_condition(left, schema), _plain_condition(right, schema)
            if one is None or other is None:
                return None
            return PlainSql(one.expression & other.expression, (*one.reads, *other.reads))
        case Call(function="not", arguments=(Call(function="is_null" | "=") as inner,)):
            found = _plain_condition(inner, schema)
            return None if found is None else PlainSql(~found.expression, found.reads)
        case Call(function="is_null", arguments=(Column() as column,)):
            path = _path(column, schema)
            return None if path is None else PlainSql(path.expression.is_null(), (path.path,))
        case Call(function=sign, arguments=(Column() as column, Literal() as literal)) if (
            sign in _COMPARE
        ):
            return _comparison(sign, _path(column, schema), literal)
        case _:
            return None


def _comparison(sign: str, path: _Path | None, literal: Literal) -> PlainSql | None:
    if path is None:
        return None
    is_integer = literal.type.name in {"tinyint", "smallint", "int", "bigint"}
    if is_integer and path.dtype.is_integer():
        value = path.expression.cast(pl.Int64)
    elif literal.type.name == "string" and path.dtype == pl.String():
        value = path.expression
    else:  # Spark would cast one of the two.
        return None
    return PlainSql(_COMPARE[sign](value, pl.lit(literal.value)), (path.path,))


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """A column or a field of one."""

    path: str
    expression: pl.Expr
    dtype: pl.DataType


def _path(column: Column, schema: pl.Schema) -> _Path | None:
    """A column or a field of one by its exact name; None if the name is ambiguous to Spark."""
    name, *fields = column.parts
    are_words = all(map(_NAME.fullmatch, column.parts))  # A path is a text, with dots in it.
    if len(fields) > 1 or not are_words or not _is_unique(name, schema):
        return None
    dtype = schema[name]
    if not fields:
        return _Path(name, pl.col(name), dtype)
    (inner,) = fields
    if not isinstance(dtype, pl.Struct):
        return None
    types = {field.name: field.dtype for field in dtype.fields}
    if not _is_unique(inner, types):
        return None
    of_field = types[inner]
    known = of_field if isinstance(of_field, pl.DataType) else of_field()
    return _Path(f"{name}.{inner}", pl.col(name).struct.field(inner), known)


def _is_unique(name: str, names: Iterable[str]) -> bool:
    return _spelt(tuple(names)).get(name.lower()) == name


@lru_cache(maxsize=SCHEMAS_KEPT)
def _spelt(names: tuple[str, ...]) -> Mapping[str, str | None]:
    """Names in small letters, each as it is spelt; None where several differ in case alone."""
    found: dict[str, str | None] = {}
    for name in names:
        found[name.lower()] = None if name.lower() in found else name
    return found


_Selected: TypeAlias = dict[str, PlainSql]  # A projection: its columns by name.


class NotPlainError(Exception):
    """SQL that only Spark can compute."""


@dataclass(frozen=True, slots=True)
class PlainSteps:
    """Filters and projections of a source's rows, all plain, in the order in which they apply.

    ``schema`` is that of their result.
    """

    steps: tuple[PlainSql | _Selected, ...]
    schema: pl.Schema

    def narrowed(self, wanted: Iterable[str]) -> tuple[PlainSteps, set[str]]:
        """The steps that *wanted* columns need, and the paths that are read for them."""
        needed = {path.partition(".")[0]: None for path in wanted}
        reads = set(wanted)
        kept: list[PlainSql | _Selected] = []
        for step in reversed(self.steps):
            if isinstance(step, PlainSql):
                reads |= set(step.reads)
                kept.append(step)
            else:
                selected = {name: item for name, item in step.items() if name in needed}
                reads = {path for item in selected.values() for path in item.reads}
                kept.append(selected)
            needed = {path.partition(".")[0]: None for path in reads}
        return PlainSteps(tuple(reversed(kept)), self.schema), reads

    def apply(self, rows: pl.DataFrame) -> pl.DataFrame:
        for step in self.steps:
            rows = _applied(step, rows)
        return rows


def plain_steps(steps: Sequence[Step], schema: pl.Schema) -> PlainSteps:
    """The steps over rows of *schema*.

    Raises:
        NotPlainError: only Spark can compute one of them.
    """
    rows = schema.to_frame()
    plain: list[PlainSql | _Selected] = []
    for step in steps:
        plain.append(
            condition(step.condition, rows.schema)
            if isinstance(step, Filter)
            else _selected(step, rows.schema)
        )
        rows = _applied(plain[-1], rows)
    return PlainSteps(tuple(plain), rows.schema)


def column(text: str, schema: pl.Schema) -> PlainSql:
    """``plain_column``, or NotPlainError."""
    found = plain_column(text, schema)
    if found is None:
        raise NotPlainError(text)
    return found


def whole_column(name: str, schema: pl.Schema) -> PlainSql:
    """The column called *name*, which is no SQL.

    Raises:
        NotPlainError: Spark may read the name in another way.
    """
    found = _named(_path(Column((name,)), schema), name)
    if found is None:
        raise NotPlainError(name)
    return found


def condition(text: str, schema: pl.Schema) -> PlainSql:
    """``plain_condition``, or NotPlainError."""
    found = plain_condition(text, schema)
    if found is None:
        raise NotPlainError(text)
    return found


def _selected(step: Projection, schema: pl.Schema) -> _Selected:
    items: list[PlainSql] = []
    for text in step.columns:
        if parsed(text).is_star:
            items += [whole_column(name, schema) for name in schema]
        else:
            items.append(column(text, schema))
    named = {item.expression.meta.output_name(): item for item in items}
    if len(named) < len(items):
        raise NotPlainError("two columns of one name")
    return named


def _applied(step: PlainSql | _Selected, rows: pl.DataFrame) -> pl.DataFrame:
    if isinstance(step, PlainSql):
        return rows.filter(step.expression)
    return rows.select(item.expression.alias(name) for name, item in step.items())


@dataclass(frozen=True, slots=True)
class Computed:
    """A column that is computed for an aggregate before it reads the rows, and its Spark SQL."""

    column: str
    sql: str
    is_condition: bool = False


def aggregate_arguments(operation: Operation) -> tuple[Computed, ...]:
    """The arguments of the aggregates of *operation*: SQL, or names of columns."""
    if not isinstance(operation, KeyedAggregate | WindowAggregate):
        return ()
    found: list[Computed] = []
    for name, aggregate in operation.aggregates.items():
        if aggregate.where is not None:
            found.append(Computed(FILTER + name, aggregate.where, is_condition=True))
        if aggregate.column is not None:
            found.append(Computed(ARGUMENT + name, aggregate.column))
        if aggregate.by is not None:
            found.append(Computed(ORDER + name, aggregate.by))
    return tuple(found)


def to_compute(arguments: Collection[Computed], columns: Collection[str]) -> list[Computed]:
    """The *arguments* that are SQL, and not the name of one of *columns*."""
    return [one for one in arguments if one.is_condition or is_sql(one.sql, columns)]


def is_sql(text: str, columns: Collection[str]) -> bool:
    """Whether *text* is an expression over *columns*, and not the name of one."""
    return text not in columns and _WORD.fullmatch(text) is None


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
