"""SQL of one row, computed by Polars as Spark computes it under ANSI.

    compiled(parsed("i * 2"), rows.schema).of(rows)

A compiler of our own from the tree of ``sluice.declaration.sql`` to Polars' expressions: with
Spark's types of results and coercions, three-valued logic, and checked arithmetic.  Beside the
value each part has the rows in which Spark would stop (an overflow, a division by zero), where
Spark would compute it at all: not behind a condition that is false, and not where the other operand
decides.  Such a row is an error that names the expression and the row's values.

It knows what ``FUNCTIONS`` lists, and refuses everything else with its piece of text.  Rows of a
source that it refuses, or in which something fails, are Spark's (``sluice.exchange.reading``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache, reduce
from typing import TypeAlias, TypeVar

import polars as pl

from sluice.declaration.arguments import nearest_word
from sluice.declaration.column_types import ColumnType
from sluice.declaration.sql import Sql, parsed
from sluice.declaration.sql_functions import CASTS, has_arity
from sluice.declaration.sql_regexes import Regex, RegexError, Search, searched
from sluice.declaration.sql_tree import (
    Call,
    Case,
    Cast,
    Column,
    Expression,
    Literal,
    Star,
    parts_of,
    spelled,
)
from sluice.errors import ConfigurationError
from sluice.operators.sql_casts import (
    BY_SPARK,
    DAY,
    DAYS,
    INTEGERS,
    LEAST,
    LONG,
    MOST_DIGITS,
    OVERFLOW,
    RANGE,
    TIMESTAMP,
    Converted,
    converted,
    decimal_of,
    formatted,
    half_up,
    instant_in,
    near,
    negated,
    outside,
    quotient,
    unscaled,
    wide,
)
from sluice.state.segments import instance_of

# Where else SQL is computed.
ELSEWHERE = "compute it in a transform(), or in what is read of a source"

COMPILED_KEPT = 1024  # Expressions over the columns that they read.
SCHEMAS_KEPT = 64  # Those of the streams that one process reads.

# What Spark computes with as what Polars has.
TYPES: Mapping[str, pl.DataType] = {
    "boolean": pl.Boolean(),
    "tinyint": pl.Int8(),
    "smallint": pl.Int16(),
    "int": pl.Int32(),
    "bigint": pl.Int64(),
    "float": pl.Float32(),
    "double": pl.Float64(),
    "date": pl.Date(),
    "timestamp": TIMESTAMP,
    "string": pl.String(),
}
_TYPES: Mapping[str, pl.DataType] = {**TYPES, "void": pl.Null()}
_UNSIGNED: Mapping[pl.DataType, pl.DataType] = {  # As Spark reads them.
    pl.UInt8(): pl.Int16(),
    pl.UInt16(): pl.Int32(),
    pl.UInt32(): pl.Int64(),
}
_DIGITS = dict(zip(INTEGERS, (3, 5, 10, 20), strict=True))  # As decimals.

_BESIDE = "_beside"

ZERO = "divides by zero"
_NO_PATTERN = "its pattern is no literal"


class NotCompiledError(Exception):
    """A piece of SQL that Polars cannot compute as Spark does, and why."""


@dataclass(frozen=True, slots=True, eq=False)
class StoppedRows:
    """The rows in which a part of an expression has no value; null is no."""

    part: Expression
    what: str
    rows: pl.Expr


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A part of an expression: its value and type, and the rows in which Spark would stop."""

    expr: pl.Expr
    dtype: pl.DataType
    fails: tuple[StoppedRows, ...] = ()
    literal: Literal | None = None

    def cast(self, dtype: pl.DataType) -> Value:
        if self.dtype == dtype:
            return self
        return replace(self, expr=self.expr.cast(dtype, strict=False), dtype=dtype)


Path: TypeAlias = tuple[str, ...]  # A column, or the column and its field.


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """An expression over rows of one schema, and the columns and fields that it ``reads``."""

    sql: Sql
    value: Value
    reads: tuple[Path, ...]

    @property
    def dtype(self) -> pl.DataType:
        return self.value.dtype

    def check(self, rows: pl.DataFrame) -> None:
        """Raises ConfigurationError for a row of *rows* in which Spark would stop."""
        for failure in self.value.fails:
            failing = rows.filter(failure.rows)
            if failing.height:
                read = {column.parts[0].lower() for column in self.sql.paths}
                names = [name for name in rows.columns if name.lower() in read]
                where = ", ".join(f"{name} = {_shown(failing[name].head(1))}" for name in names)
                raise ConfigurationError(
                    f"{spelled(failure.part)} {failure.what} in a row with {where or 'no columns'}"
                )


def _shown(value: pl.Series) -> str:
    """The only *value*, for an error; Python has no days and instants beyond the year 9999."""
    if value.dtype in (pl.Date(), TIMESTAMP):
        found = near(pl.col(value.name), value.dtype)
        if value.to_frame().select(found.stops[0].rows).item() is True:
            unit = "days" if value.dtype == pl.Date() else "microseconds"
            return f"{value.to_physical().item()} {unit} after 1970-01-01"
    return repr(value.to_list()[0])


@lru_cache(COMPILED_KEPT)
def _compiled(sql: Sql, columns: tuple[tuple[str, tuple[str, pl.DataType]], ...]) -> Compiled:
    if sql.tree is None:
        raise NotCompiledError(f"only Spark knows {sql.unread!r}; {ELSEWHERE}")
    compiler = _Compiler(dict(columns))
    value = compiler.value(sql.tree)
    return Compiled(sql, value, tuple(dict.fromkeys(map(compiler.path, sql.paths))))


def compiled(sql: Sql, schema: Mapping[str, pl.DataType]) -> Compiled:
    """*sql* over rows of *schema*.

    Raises:
        NotCompiledError: it names no column of theirs, or has no meaning without Spark.
    """
    spelt = _spelt(tuple(schema))
    read: dict[str, tuple[str, pl.DataType]] = {}
    for name in dict.fromkeys(path.parts[0] for path in sql.paths):
        found = spelt.get(name.lower(), ())
        if len(found) != 1:
            close = None if found else nearest_word(name, [*schema])
            several = f"is {' or '.join(found)}" if found else "is no column"
            hint = f"; did you mean {close!r}?" if close else ";"
            raise NotCompiledError(f"{name!r} {several}{hint} there are {', '.join(schema)}")
        read[name.lower()] = (found[0], schema[found[0]])
    return _compiled(sql, tuple(read.items()))


@lru_cache(SCHEMAS_KEPT)
def _spelt(names: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """Names in small letters, each as it is spelt, or as several are."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        found[name.lower()] = (*found.get(name.lower(), ()), name)
    return found


def whole_column(name: str, dtype: pl.DataType) -> Compiled:
    """The column that is spelt *name*, as it is."""
    sql = Sql(name, Column((name,)), name)
    return Compiled(sql, Value(pl.col(name), dtype), ((name,),))


def condition(text: str, schema: Mapping[str, pl.DataType]) -> Compiled:
    """A condition over rows of *schema*; raises as ``compiled`` does, and for other types."""
    found = compiled(parsed(text), schema)
    if found.dtype not in (pl.Boolean(), pl.Null()):
        raise NotCompiledError(f"{text!r} is {spark_type(found.dtype)}, and no condition")
    return replace(found, value=found.value.cast(pl.Boolean()))


def computed(
    rows: pl.DataFrame, values: Sequence[tuple[str, Compiled]], kept: Sequence[str] = ()
) -> pl.DataFrame:
    """The columns *values* of *rows* by their names, and the columns *kept*.

    Raises:
        ConfigurationError: a value cannot be computed for one of the rows.
    """
    fails = [failure.rows for _, one in values for failure in one.value.fails]
    exprs = [one.value.expr.alias(name) for name, one in values] + [pl.col(name) for name in kept]
    has_column = bool(kept) or any(isinstance(one.sql.tree, Column) for _, one in values)
    if not rows.width or (has_column and not fails):
        return rows.select(exprs)
    # Literals alone would be one row.
    beside = pl.nth(0)
    if fails:
        beside = pl.any_horizontal(fails) & (beside.is_null() | pl.lit(value=True))
    selected = rows.select(*exprs, beside.alias(_BESIDE))
    found = selected.drop_in_place(_BESIDE)
    if fails and found.any():
        for _, one in values:
            one.check(rows)
    return selected


def filtered(rows: pl.DataFrame, holds: Compiled) -> pl.DataFrame:
    """The *rows* for which *holds* is true; raises as ``computed`` does."""
    if not holds.value.fails:
        return rows.filter(holds.value.expr)
    return rows.filter(computed(rows, [("holds", holds)])["holds"])


_Function: TypeAlias = Callable[[Call, tuple[Value, ...]], Value]


@dataclass(frozen=True, slots=True)
class _Compiler:
    columns: Mapping[str, tuple[str, pl.DataType]]  # In small letters -> as it is spelt, and type.

    def value(self, tree: Expression) -> Value:
        match tree:
            case Column(parts=parts):
                return self._column(parts)
            case Literal():
                return self._literal(tree)
            case Call():
                return self._call(tree)
            case Cast():
                return self._cast(tree)
            case Case(branches=branches, otherwise=otherwise):
                return self._case(tree, list(branches), otherwise)
            case Star():
                raise not_compiled(tree)

    def _call(self, tree: Call) -> Value:
        match tree:
            case Call(function="and" | "or"):
                return self._logic(tree)
            case Call(function="coalesce", arguments=(_, *_) as arguments):
                return self._coalesce(tree, [self.value(one) for one in arguments])
            case Call(function="nvl2", arguments=(value, there, null)):
                is_null = Call("is_null", (value,))
                return self._case(tree, [(is_null, null)], there)
            case Call(function="between", arguments=(value, low, high)):
                return self.value(
                    Call("and", (Call(">=", (value, low)), Call("<=", (value, high))))
                )
            case Call("+" | "-", (value, Literal() as by)) if by.type.name in _INTERVALS:
                return _moved(tree, self.value(value), by)
            case Call("+", (Literal() as by, value)) if by.type.name in _INTERVALS:
                return _moved(tree, self.value(value), by)
            case Call("to_date" | "to_timestamp" | "try_to_timestamp" as function, (value,)):
                is_try = function == "try_to_timestamp"
                to = ColumnType("date" if function == "to_date" else "timestamp")
                return self._cast(Cast(value, to, is_try=is_try))
            case Call("ilike", (text, *others)):
                check_arity(tree)
                return _like(tree, tuple(map(self.value, (Call("lower", (text,)), *others))))
            case Call("lower" | "upper" as case, (Call("lower" | "upper", (text,)),)):
                # Spark's optimizer leaves the inner one out, which differs for 'ß'.
                return self.value(Call(case, (text,)))
            case Call(function=function, arguments=arguments):
                compile_ = _FUNCTIONS.get(function)
                if compile_ is None:
                    raise not_compiled(tree)
                check_arity(tree)
                return compile_(tree, tuple(self.value(one) for one in arguments))

    def _column(self, parts: tuple[str, ...]) -> Value:
        name, *inner = parts
        spelt, dtype = self.columns[name.lower()]
        expr = pl.col(spelt)
        for part in inner:
            field, dtype = _field(name, dtype, part)
            expr = expr.struct.field(field)
        return Value(expr, dtype)

    def path(self, column: Column) -> Path:
        """The path to be read for *column*: its first field, or all of it."""
        name, *inner = column.parts
        spelt, dtype = self.columns[name.lower()]
        field = _field(name, dtype, inner[0])[0] if inner else "."
        return (spelt,) if "." in field else (spelt, field)  # A dot would lead to a field of it.

    def _literal(self, literal: Literal) -> Value:
        if isinstance(literal.value, str) and literal.type.name != "string":
            raise not_compiled(literal)
        if literal.type.name == "decimal":
            dtype: pl.DataType = pl.Decimal(*literal.type.arguments)
        elif literal.type.name in _TYPES:
            dtype = _TYPES[literal.type.name]
        else:
            raise not_compiled(literal)
        return Value(pl.lit(literal.value, dtype), dtype, literal=literal)

    def _logic(self, tree: Call) -> Value:
        """AND and OR: the right operand is computed where the left one does not decide."""
        left, right = (self.value(one) for one in tree.arguments)
        for one, part in zip((left, right), tree.arguments, strict=True):
            if one.dtype not in (pl.Boolean(), pl.Null()):
                raise not_compiled(
                    tree, f"{spelled(part)} is {spark_type(one.dtype)} and no boolean"
                )
        left, right = left.cast(pl.Boolean()), right.cast(pl.Boolean())
        is_and = tree.function == "and"
        decides = left.expr if is_and else ~left.expr
        fails = (*left.fails, *_where(decides.fill_null(value=True), right.fails))
        both = left.expr & right.expr if is_and else left.expr | right.expr
        return Value(both, pl.Boolean(), fails)

    def _coalesce(self, tree: Call, values: list[Value]) -> Value:
        values = _with_texts_read(tree.arguments, values)
        dtype = _common_type(tree, values)
        fails: list[StoppedRows] = []
        are_null = pl.lit(value=True)
        cast = [coerced(one, dtype) for one in values]
        for one in cast:
            fails += _where(are_null, one.fails)
            are_null = are_null & one.expr.is_null()
        return Value(pl.coalesce(one.expr for one in cast), dtype, tuple(fails))

    def _case(
        self, tree: Expression, branches: list[tuple[Expression, Expression]], otherwise: Expression
    ) -> Value:
        conditions = [self.value(condition) for condition, _ in branches]
        parts = [*(part for _, part in branches), otherwise]
        *values, last = _with_texts_read(parts, [self.value(part) for part in parts])
        dtype = _common_type(tree, [*values, last])
        fails: list[StoppedRows] = []
        is_open = pl.lit(value=True)
        chosen = coerced(last, dtype).expr
        for condition, (part, _) in zip(conditions, branches, strict=True):
            if condition.dtype not in (pl.Boolean(), pl.Null()):
                raise not_compiled(tree, f"{spelled(part)} is {spark_type(condition.dtype)}")
        for condition, value in zip(conditions, values, strict=True):
            fails += _where(is_open, condition.fails)
            is_true = condition.cast(pl.Boolean()).expr.fill_null(value=False)
            fails += _where(is_open & is_true, value.fails)
            is_open = is_open & ~is_true
        fails += _where(is_open, last.fails)
        for condition, value in zip(reversed(conditions), reversed(values), strict=True):
            is_true = condition.cast(pl.Boolean()).expr
            chosen = pl.when(is_true).then(coerced(value, dtype).expr).otherwise(chosen)
        return Value(chosen, dtype, tuple(fails))

    def _cast(self, tree: Cast) -> Value:
        is_instant = tree.type.name in {"date", "timestamp"}
        if is_instant and not isinstance(tree.value, Literal) and is_constant(tree.value):
            raise not_compiled(tree)  # Spark reads 'now' and 'tomorrow' there.
        value = self.value(tree.value)
        if tree.type.name == "decimal":
            to: pl.DataType | None = pl.Decimal(*(tree.type.arguments or (10, 0)))
        else:
            to = None if tree.type.arguments else _TYPES.get(tree.type.name)
        if to is None:
            raise not_compiled(tree)
        return _cast_to(tree, signed(value), to)


def _field(column: str, of: pl.DataType, name: str) -> tuple[str, pl.DataType]:
    """The field *name* of a column of type *of*, as it is spelt, and its type."""
    fields = of.fields if isinstance(of, pl.Struct) else []
    found = [one for one in fields if one.name.lower() == name.lower()]
    if len(found) != 1:
        raise NotCompiledError(f"{column!r} has no field {name!r}")
    dtype = found[0].dtype
    return found[0].name, dtype if isinstance(dtype, pl.DataType) else dtype()


def _cast_to(tree: Cast, value: Value, to: pl.DataType) -> Value:
    of = value.dtype
    if of == to or of == pl.Null():
        return replace(value.cast(to), literal=None)
    if _kind(to) not in CASTS.get(_kind(of), ()):
        raise not_compiled(tree, f"from {spark_type(of)}")
    if value.literal is not None and to in (pl.Date(), TIMESTAMP):
        return _read_once(tree, value, to)
    found = converted(value.expr, of, to)
    return _of_conversion(tree, value, found.or_null() if tree.is_try else found, to)


def _read_once(tree: Cast, literal: Value, to: pl.DataType) -> Value:
    """The value of a *literal*'s text; refused if it is none, or Spark's alone, as 'now'."""
    found = converted(literal.expr, literal.dtype, to)
    stops = [stop.rows.alias(str(place)) for place, stop in enumerate(found.stops)]
    value, *stopped = pl.select(found.value.alias("value"), *stops).row(0)
    if True in stopped:
        raise not_compiled(tree, f"{spelled(tree.value)} is no {spark_type(to)}")
    return Value(pl.lit(value, to), to)


def _of_conversion(tree: Expression, of: Value, found: Converted, to: pl.DataType) -> Value:
    fails = (StoppedRows(tree, stop.what, stop.rows) for stop in found.stops)
    return Value(found.value, to, (*of.fails, *fails))


def _kind(dtype: pl.DataType) -> str:
    """Spark's name of *dtype*, without digits of decimals."""
    return spark_type(dtype).partition("(")[0]


def _day(value: Value) -> pl.Expr:
    return value.expr.dt.date() if value.dtype == TIMESTAMP else value.expr


def _where(condition: pl.Expr, fails: Sequence[StoppedRows]) -> list[StoppedRows]:
    return [replace(failure, rows=condition & failure.rows) for failure in fails]


def _one_by_one(values: Sequence[Value]) -> tuple[StoppedRows, ...]:
    """The failures of operands of which each is computed where those before it are not null."""
    fails: list[StoppedRows] = []
    known = pl.lit(value=True)
    for one in values:
        fails += _where(known, one.fails) if one.fails else []
        known = known & one.expr.is_not_null()
    return tuple(fails)


def spark_type(dtype: pl.DataType) -> str:
    """Spark's name of *dtype*."""
    match dtype:
        case pl.Decimal():
            return f"decimal({dtype.precision},{dtype.scale})"
        case pl.List():
            return f"array<{spark_type(instance_of(dtype.inner))}>"
        case pl.Map():
            key, value = map(instance_of, (dtype.key, dtype.value))
            return f"map<{spark_type(key)},{spark_type(value)}>"
        case pl.Struct():
            fields = (f"{of.name}:{spark_type(instance_of(of.dtype))}" for of in dtype.fields)
            return f"struct<{','.join(fields)}>"
        case pl.Binary():
            return "binary"
        case pl.Datetime(time_zone=None):
            return "timestamp_ntz"
        case _:
            return next((name for name, of in _TYPES.items() if of == dtype), str(dtype))


def not_compiled(tree: Expression, why: str = "") -> NotCompiledError:
    """The error for a piece of SQL that only Spark can compute."""
    behind = f" ({why})" if why else ""
    return NotCompiledError(f"only Spark knows {spelled(tree)!r}{behind}; {ELSEWHERE}")


def check_arity(tree: Call) -> None:
    """Raises NotCompiledError if *tree* has too few arguments, or too many."""
    if not has_arity(tree):
        raise not_compiled(tree, f"with {len(tree.arguments)} arguments")


def signed(value: Value) -> Value:
    """Spark has no unsigned integers, which Polars counts with."""
    return value.cast(_UNSIGNED.get(value.dtype, value.dtype))


def as_decimal(tree: Expression, value: Value) -> pl.Decimal:
    """The type of an operand beside a decimal."""
    if isinstance(value.dtype, pl.Decimal):
        return value.dtype
    if value.dtype not in _DIGITS:
        raise not_compiled(tree, f"{spark_type(value.dtype)} beside a decimal; cast one of them")
    if value.literal is not None and value.dtype != pl.Int8():  # Spark counts no digits of it.
        return pl.Decimal(len(str(value.literal.value).lstrip("-")), 0)
    return pl.Decimal(_DIGITS[value.dtype], 0)


def _too_long(tree: Expression, digits: int) -> NotCompiledError:
    most = f"of {digits} digits, and there are {MOST_DIGITS}"
    return not_compiled(
        tree, f"{most}; cast its decimals to fewer, as CAST(total AS decimal(18,2))"
    )


def _common_type(tree: Expression, values: Sequence[Value]) -> pl.DataType:
    """The type to which Spark coerces *values*.

    Raises:
        NotCompiledError: Spark would read a text as something else, or has none.
    """
    found: pl.DataType = pl.Null()
    for value in with_floats(values):
        found = _wider(tree, found, signed(value).dtype)
    return found


def _with_texts_read(parts: Sequence[Expression], values: Sequence[Value]) -> list[Value]:
    """*values* of *parts*, of which Spark reads the texts as what the others are.

    A text beside a date or timestamp is one, beside an integer a bigint, beside a float or decimal
    a double.
    """
    texts = [one.dtype == pl.String() for one in values]
    others = [one for one in values if one.dtype not in (pl.String(), pl.Null())]
    to = _read_beside([signed(one).dtype for one in others]) if any(texts) else None
    if to is None:
        return list(values)
    of = ColumnType(spark_type(to))
    found: list[Value] = []
    for part, one, is_text in zip(parts, values, texts, strict=True):
        reads = _cast_to if one.literal is None else _read_once
        found.append(reads(Cast(part, of), one, to) if is_text else one)
    return found


def _read_beside(types: Sequence[pl.DataType]) -> pl.DataType | None:
    """The type that a text beside values of *types* is read as; None if it stays one."""
    days = [of for of in types if of in (pl.Date(), TIMESTAMP)]
    if days and len(days) == len(types):
        return TIMESTAMP if TIMESTAMP in days else pl.Date()
    if types and all(of in INTEGERS for of in types):
        return pl.Int64()
    if types and all(of.is_float() or isinstance(of, pl.Decimal) for of in types):
        return pl.Float64()
    return pl.Boolean() if types and all(of == pl.Boolean() for of in types) else None


def with_floats(values: Sequence[Value]) -> list[Value]:
    """*values*, in which a decimal that is a literal is a double beside a float or double."""
    if not any(one.dtype.is_float() for one in values):
        return list(values)
    return [_as_double(one) for one in values]


def _as_double(value: Value) -> Value:
    if value.literal is None or not isinstance(value.literal.value, Decimal):
        return value
    number = float(value.literal.value)
    literal = Literal(number, ColumnType("double"))
    return Value(pl.lit(number, pl.Float64()), pl.Float64(), literal=literal)


def _wider(tree: Expression, one: pl.DataType, other: pl.DataType) -> pl.DataType:
    found = wider_type(one, other)
    if found is not None:
        return found
    digits = _digits_of_both(one, other)
    if digits is not None:
        raise _too_long(tree, digits[0])
    raise not_compiled(tree, f"{spark_type(one)} beside {spark_type(other)}; cast one of them")


def wider_type(one: pl.DataType, other: pl.DataType) -> pl.DataType | None:
    """The type to which Spark coerces values of both; None if it would read a text as something
    else, cut a decimal's digits, or has none.  Beside a float it takes a double, which has fewer
    digits than a bigint or a decimal may have.
    """
    if one == other or other == pl.Null():
        return one
    if one == pl.Null():
        return other
    if one in INTEGERS and other in INTEGERS:
        return max(one, other, key=INTEGERS.index)
    numbers = (*INTEGERS, pl.Float32(), pl.Float64())
    if one in numbers and other in numbers:
        return pl.Float64()
    if isinstance(one, pl.Decimal) or isinstance(other, pl.Decimal):
        if one.is_float() or other.is_float():
            return pl.Float64()
        digits = _digits_of_both(one, other)
        return pl.Decimal(*digits) if digits is not None and digits[0] <= MOST_DIGITS else None
    if {type(one), type(other)} == {pl.Date, pl.Datetime} and TIMESTAMP in (one, other):
        return TIMESTAMP
    return None


def _digits_of_both(one: pl.DataType, other: pl.DataType) -> tuple[int, int] | None:
    """The precision and scale of what holds both, if each is an integer or a decimal."""
    types = [of if isinstance(of, pl.Decimal) else _DIGITS.get(of) for of in (one, other)]
    decimals = [pl.Decimal(of, 0) if isinstance(of, int) else of for of in types]
    known = [of for of in decimals if of is not None]
    if len(known) < len(decimals):
        return None
    scale = max(of.scale for of in known)
    return max(of.precision - of.scale for of in known) + scale, scale


def coerced(value: Value, dtype: pl.DataType) -> Value:
    if dtype.is_float():
        value = _as_double(value)
        if isinstance(value.dtype, pl.Decimal):
            return _of_conversion(
                Column(()), value, converted(value.expr, value.dtype, dtype), dtype
            )
    if value.dtype == pl.Date() and dtype == TIMESTAMP:
        return _cast_to(Cast(Column(("date",)), ColumnType("timestamp")), value, dtype)
    return signed(value).cast(dtype)


def _of_type(tree: Call, value: Value, *types: pl.DataType) -> Value:
    if value.dtype not in types:
        raise not_compiled(tree, f"of {spark_type(value.dtype)}")
    return value


def _known(tree: Call, value: Value) -> Value:
    """*value*, if we know what Spark does with its type."""
    found = signed(value)
    is_known = found.dtype in _TYPES.values() or isinstance(found.dtype, pl.Decimal)
    if not is_known:
        raise not_compiled(tree, f"of {spark_type(value.dtype)}")
    return found


def _numbers(tree: Call, values: Sequence[Value], wanted: Sequence[pl.DataType]) -> pl.DataType:
    dtype = _common_type(tree, values)
    if dtype not in wanted:
        raise not_compiled(tree, f"of {spark_type(dtype)}")
    return dtype


_FLOATS: Sequence[pl.DataType] = (pl.Float32(), pl.Float64())
_NUMBERS = (*INTEGERS, *_FLOATS)


# --- Arithmetic


_BETWEEN: Mapping[pl.DataType, str] = {
    TIMESTAMP: "unix_micros({}) - unix_micros({})",
    pl.Date(): "datediff({}, {})",
}
_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def _arithmetic(tree: Call, given: tuple[Value, ...]) -> Value:
    left, right = with_floats([_known(tree, one) for one in given])
    if _are_decimals(left, right):
        return _of_decimals(tree, left, right)
    between = _BETWEEN.get(left.dtype) if left.dtype == right.dtype else None
    if tree.function == "-" and between is not None:
        instead = between.format(*map(spelled, tree.arguments))
        raise not_compiled(tree, f"an interval, which no column holds; write {instead}")
    dtype = _numbers(tree, (left, right), _NUMBERS)
    compute = _ARITHMETIC[tree.function]
    fails = _one_by_one((left, right))
    if dtype in _FLOATS:
        x, y = coerced(left, dtype).expr, coerced(right, dtype).expr
        # Polars takes x + 0.0 for x, which differs for -0.0, if it sees the number.
        if is_constant(tree.arguments[0]):
            x = pl.when(y.is_not_null()).then(x)
        elif is_constant(tree.arguments[1]):
            y = pl.when(x.is_not_null()).then(y)
        return Value(compute(x, y), dtype, fails)
    a, b = left.cast(pl.Int64()).expr, right.cast(pl.Int64()).expr
    wide = compute(a, b)
    if dtype != pl.Int64():
        overflow = StoppedRows(tree, f"{OVERFLOW} {spark_type(dtype)}", outside(wide, dtype))
        return Value(wide.cast(dtype, strict=False), dtype, (*fails, overflow))
    # Where a bigint wraps around, its double is 2^64 or more away from that of the exact result.
    exact = compute(a.cast(pl.Float64()), b.cast(pl.Float64()))
    overflow = StoppedRows(
        tree, f"{OVERFLOW} bigint", (wide.cast(pl.Float64()) - exact).abs() > 2.0**62
    )
    return Value(wide, dtype, (*fails, overflow))


def _are_decimals(left: Value, right: Value) -> bool:
    """Whether they are computed as decimals: one is, and none is a float or double."""
    types = (left.dtype, right.dtype)
    return any(isinstance(of, pl.Decimal) for of in types) and not any(
        of.is_float() for of in types
    )


def _of_decimals(tree: Call, left: Value, right: Value) -> Value:
    """Spark's DecimalPrecision, where no digit is dropped."""
    one, other = as_decimal(tree, left), as_decimal(tree, right)
    if tree.function == "*":
        precision, scale = one.precision + other.precision + 1, one.scale + other.scale
    else:
        scale = max(one.scale, other.scale)
        whole = max(one.precision - one.scale, other.precision - other.scale)
        precision = whole + scale + 1
    if precision == MOST_DIGITS + 1 and tree.function != "*" and scale <= _SURE_SCALE:
        return _sum_of_most_digits(tree, left, right, scale)
    if precision > MOST_DIGITS:
        raise _too_long(tree, precision)
    compute = _ARITHMETIC[tree.function]
    # Polars computes at the larger scale of the two.
    wide = [one.cast(pl.Decimal(MOST_DIGITS, scale)).expr for one in (left, right)]
    dtype = pl.Decimal(precision, scale)
    return Value(compute(*wide).cast(dtype), dtype, _one_by_one((left, right)))


_SURE_SCALE = 6  # So many digits behind the point Spark keeps where there are too many.


def _sum_of_most_digits(tree: Call, left: Value, right: Value, scale: int) -> Value:
    """A total and another: the sum may have a digit more than there are."""
    one, other = (
        unscaled(value.expr, of) * wide(10 ** (scale - of.scale))
        for value in (left, right)
        for of in [as_decimal(tree, value)]
    )
    found = _ARITHMETIC[tree.function](one, other)
    dtype = pl.Decimal(MOST_DIGITS, scale)
    # Where 128 bits wrap around, the number is 1.4e38 or more away from 0.
    most = 10**MOST_DIGITS - 1
    is_inside = found.is_between(wide(-most), wide(most))
    overflow = StoppedRows(tree, f"{OVERFLOW} {spark_type(dtype)}", ~is_inside)
    digits = pl.when(is_inside).then(found)
    return Value(decimal_of(digits, dtype), dtype, (*_one_by_one((left, right)), overflow))


def is_constant(tree: Expression) -> bool:
    """Whether *tree* reads no column."""
    return not any(isinstance(part, Column) for part in parts_of(tree))


def _quotient(tree: Call, given: tuple[Value, ...]) -> Value:
    left, right = with_floats([_known(tree, one) for one in given])
    if _are_decimals(left, right):
        return _quotient_of_decimals(tree, left, right)
    _numbers(tree, (left, right), _NUMBERS)
    a, b = coerced(left, pl.Float64()).expr, coerced(right, pl.Float64()).expr
    zero = StoppedRows(tree, ZERO, a.is_not_null() & (b == 0))
    if is_constant(tree.arguments[1]):
        # By one number Polars multiplies with its reciprocal, which is rounded; by a column never.
        b = a.is_null().cast(pl.Float64()) + b
    return Value(a / b, pl.Float64(), (*_one_by_one((right, left)), zero))


def _quotient_of_decimals(tree: Call, left: Value, right: Value) -> Value:
    """Spark divides to 38 digits behind the point, and rounds that to those of the result."""
    one, other = as_decimal(tree, left), as_decimal(tree, right)
    scale = max(6, one.scale + other.precision + 1)
    whole = one.precision - one.scale + other.scale
    scale = min(scale, max(MOST_DIGITS - whole, 6))
    more = scale - one.scale + other.scale
    is_rounded_once = scale + other.precision <= MOST_DIGITS  # No quotient is as near to a tie.
    is_over = whole + scale > MOST_DIGITS
    if more < 0 or (not is_rounded_once and (is_over or other.precision > scale)):
        raise _too_long(tree, whole + scale)
    dtype = pl.Decimal(min(whole + scale, MOST_DIGITS), scale)
    divisor = unscaled(right.expr, right.dtype)
    zero = StoppedRows(tree, ZERO, left.expr.is_not_null() & (divisor == 0))
    by: pl.Expr = pl.when(divisor != 0).then(divisor)
    digits = unscaled(left.expr, left.dtype)
    fails = (*_one_by_one((right, left)), zero)
    if is_over:  # On the way Spark has more digits; the quotient has fewer than the dividend.
        most = 10 ** (MOST_DIGITS - more) - 1
        has_room = digits.is_between(wide(-most), wide(most))
        digits = pl.when(has_room).then(digits)
        fails = (*fails, StoppedRows(tree, BY_SPARK, ~has_room & (divisor != 0)))
    digits = digits * wide(10**more)
    digits = pl.when(by < 0).then(negated(digits)).otherwise(digits)
    by = by.abs()
    if is_rounded_once:
        found = quotient(digits, by, is_rounded=True)
    else:
        size = digits.abs()
        found = size // by
        rest = quotient(
            (size - found * by) * wide(10 ** (MOST_DIGITS - scale)), by, is_rounded=True
        )
        found = found + (rest >= wide(5 * 10 ** (MOST_DIGITS - scale - 1))).cast(pl.Int128())
        found = pl.when(digits < 0).then(negated(found)).otherwise(found)
    return Value(decimal_of(found, dtype), dtype, fails)


def _whole(
    tree: Call, given: tuple[Value, ...]
) -> tuple[pl.Expr, pl.Expr, pl.DataType, tuple[StoppedRows, ...]]:
    """The operands of an integer division, as bigints; a divisor that fails is null."""
    left, right = (_known(tree, one) for one in given)
    dtype = _numbers(tree, (left, right), INTEGERS)
    a, b = left.cast(pl.Int64()).expr, right.cast(pl.Int64()).expr
    zero = StoppedRows(tree, ZERO, a.is_not_null() & (b == 0))
    return a, pl.when(b != 0).then(b), dtype, (*_one_by_one((right, left)), zero)


def _remainder(tree: Call, given: tuple[Value, ...]) -> Value:
    a, b, dtype, fails = _whole(tree, given)
    by = pl.when(b == -1).then(1).otherwise(b)  # The least bigint by -1 would overflow.
    floored = a % by
    # Spark's remainder has the sign of the dividend.
    is_other = (floored != 0) & ((a < 0) != (by < 0))
    found = pl.when(is_other).then(floored - by).otherwise(floored)
    return Value(found.cast(dtype, strict=False), dtype, fails)


def _div(tree: Call, given: tuple[Value, ...]) -> Value:
    a, b, _dtype, fails = _whole(tree, given)
    overflows = (b == -1) & (a == LEAST[pl.Int64()])
    by = pl.when(~overflows).then(b)
    floored = a // by
    is_other = (a % pl.when(by == -1).then(1).otherwise(by) != 0) & ((a < 0) != (by < 0))
    found = pl.when(is_other).then(floored + 1).otherwise(floored)
    return Value(found, pl.Int64(), (*fails, StoppedRows(tree, f"{OVERFLOW} bigint", overflows)))


_SCALAS = 34  # Digits, to which Scala rounds a decimal whose sign it turns.


def _signed(tree: Call, given: tuple[Value, ...]) -> Value:
    """``-value`` and ``abs(value)``."""
    value = _known(tree, given[0])
    if isinstance(value.dtype, pl.Decimal):
        digits = unscaled(value.expr, value.dtype)
        signed_ = negated(digits) if tree.function == "negate" else digits.abs()
        fails = value.fails
        if tree.function == "negate" and value.dtype.precision > _SCALAS:
            has_room = digits.abs() < wide(10**_SCALAS)
            fails = (*fails, StoppedRows(tree, BY_SPARK, ~has_room))
        return Value(decimal_of(signed_, value.dtype), value.dtype, fails)
    dtype = _numbers(tree, (value,), _NUMBERS)
    found = -value.expr if tree.function == "negate" else value.expr.abs()
    if dtype in _FLOATS:
        return Value(found, dtype, value.fails)
    least = StoppedRows(tree, f"{OVERFLOW} {spark_type(dtype)}", value.expr == LEAST[dtype])
    return Value(found, dtype, (*value.fails, least))


def _rounded(tree: Call, given: tuple[Value, ...]) -> Value:
    """``ceil``, ``floor`` and ``round``."""
    value = _known(tree, given[0])
    if isinstance(value.dtype, pl.Decimal):
        return _rounded_decimal(tree, value, value.dtype, given[1:])
    dtype = _numbers(tree, (value,), _NUMBERS)
    if len(given) > 1:
        return _rounded_to(tree, value, given[1])
    if tree.function == "round":
        if dtype in INTEGERS:
            return replace(value, literal=None)
        x = value.expr
        whole = pl.when(x < 0).then(x.ceil()).otherwise(x.floor())
        away = pl.when(x < 0).then(-1.0).otherwise(1.0)
        rounded = pl.when((x - whole).abs() >= 0.5).then(whole + away).otherwise(whole)
        is_special = x.is_nan() | x.is_infinite()
        rounded = pl.when(rounded == 0).then(0.0).otherwise(rounded)  # BigDecimal has no -0.
        found = pl.when(is_special).then(x).otherwise(rounded).cast(dtype)
        return Value(found, dtype, value.fails)
    if dtype in INTEGERS:
        return replace(value.cast(pl.Int64()), literal=None)
    wide = value.cast(pl.Float64()).expr
    whole = wide.floor() if tree.function == "floor" else wide.ceil()
    is_inside = whole.is_nan() | ((whole >= -LONG) & (whole < LONG))
    found = pl.when(whole.is_nan()).then(0).otherwise(whole.cast(pl.Int64(), strict=False))
    fails = (*value.fails, StoppedRows(tree, f"{OVERFLOW} bigint", ~is_inside))
    return Value(found, pl.Int64(), fails)


def _rounded_decimal(tree: Call, value: Value, of: pl.Decimal, places: Sequence[Value]) -> Value:
    literal = places[0].literal if places else Literal(0, ColumnType("int"))
    kept = None if literal is None or literal.value is None else int(str(literal.value))
    if kept is None or kept < 0:
        raise not_compiled(tree, "to other than a number of places that is written")
    if tree.function != "round" and not of.scale:
        return replace(value, literal=None)
    scale = min(of.scale, kept)
    precision = of.precision - of.scale + 1 + scale
    if precision > MOST_DIGITS:
        raise _too_long(tree, precision)
    dtype = pl.Decimal(precision, scale)
    digits, unit = unscaled(value.expr, of), wide(10**of.scale)
    if tree.function == "floor":
        found = digits // unit
    elif tree.function == "ceil":
        found = negated(negated(digits) // unit)
    else:
        found = half_up(digits, of.scale - scale)
    return Value(decimal_of(found, dtype), dtype, value.fails)


# Spark rounds the decimal digits that a number is written with, of which a double has up to 1,075.
_EXACTLY = Context(prec=1_200)


def _rounded_to(tree: Call, value: Value, places: Value) -> Value:
    if value.dtype not in _FLOATS or places.literal is None:
        raise not_compiled(tree, "of other than a double to a number of places that is written")
    digits = int(str(places.literal.value))
    unit = Decimal(1).scaleb(-digits)

    def rounded(x: float) -> float:
        if not math.isfinite(x):
            return x
        return float(Decimal(repr(x)).quantize(unit, ROUND_HALF_UP, _EXACTLY)) + 0.0

    x = value.cast(pl.Float64()).expr
    expr = _rounded_surely(x, digits) if 0 <= digits <= _SURE_DIGITS else pl.lit(None, pl.Float64())
    left = pl.when(expr.is_null()).then(x)  # A row at a time: ties, and what is very large.
    expr = pl.coalesce(expr, left.map_elements(rounded, return_dtype=pl.Float64()))
    return replace(Value(expr, pl.Float64(), value.fails).cast(value.dtype), literal=None)


_SURE_DIGITS = 15  # 10^15 is a double, exactly.


def _rounded_surely(x: pl.Expr, digits: int) -> pl.Expr:
    """*x* rounded where it is so far from a tie that errors in its last bits do not matter.

    Of two whole numbers below 2^53 the quotient is the double that is nearest to the result.
    """
    scale = x.is_null().cast(pl.Float64()) + 10.0**digits  # By one number Polars multiplies.
    wide = x.abs() * scale
    whole = wide.floor()
    is_sure = (wide < 2.0**51) & ((wide - whole - 0.5).abs() > wide * 2.0**-50)
    found = pl.when(wide - whole > 0.5).then(whole + 1).otherwise(whole) / scale
    signed_ = pl.when(x < 0).then(-found).otherwise(found)
    return pl.when(is_sure).then(pl.when(found == 0).then(0.0).otherwise(signed_))


def _power(tree: Call, given: tuple[Value, ...]) -> Value:
    """A power by a number for which both round once; by others the last bit is not Java's."""
    value = _known(tree, given[0])
    _numbers(tree, (value,), _NUMBERS)
    by = None if given[1].literal is None else given[1].literal.value
    x = value.cast(pl.Float64()).expr
    powers: Mapping[float, pl.Expr] = {
        2.0: x * x,
        1.0: x,
        0.0: pl.when(x.is_not_null()).then(1.0),
        -1.0: pl.lit(1.0) / x,
        0.5: pl.when(x == -math.inf).then(math.inf).when(x == 0).then(0.0).otherwise(x.sqrt()),
    }
    found = powers.get(float(by)) if isinstance(by, int | float | Decimal) else None
    if found is None:
        raise not_compiled(tree, "to other than -1, 0, 0.5, 1 and 2; write x * x * x")
    return Value(found, pl.Float64(), value.fails)


def _sqrt(tree: Call, given: tuple[Value, ...]) -> Value:
    value = _known(tree, given[0])
    _numbers(tree, (value,), _NUMBERS)
    return Value(value.cast(pl.Float64()).expr.sqrt(), pl.Float64(), value.fails)


# --- Comparisons and logic


def _compared(tree: Call, given: tuple[Value, ...]) -> Value:
    left, right = _alike(tree, [_known(tree, one) for one in given])
    compare: dict[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
        "=": operator.eq,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "<=>": lambda a, b: a.eq_missing(b),
    }
    # Both operands of <=> are computed always.
    fails = (*left.fails, *right.fails) if tree.function == "<=>" else _one_by_one((left, right))
    return Value(compare[tree.function](left.expr, right.expr), pl.Boolean(), fails)


def _alike(tree: Call, values: list[Value]) -> list[Value]:
    values = with_floats(_with_texts_read(tree.arguments, values))
    types = [one.dtype for one in values]
    if not any(isinstance(of, pl.Decimal) for of in types) or any(of.is_float() for of in types):
        dtype = _common_type(tree, values)
        return [coerced(one, dtype) for one in values]
    decimals = [as_decimal(tree, one) for one in values if one.dtype != pl.Null()]
    scale = max(of.scale for of in decimals)
    if max(of.precision - of.scale for of in decimals) + scale > MOST_DIGITS:
        raise _too_long(tree, max(of.precision - of.scale for of in decimals) + scale)
    return [one.cast(pl.Decimal(MOST_DIGITS, scale)) for one in values]


def _not(tree: Call, given: tuple[Value, ...]) -> Value:
    value = _of_type(tree, given[0], pl.Boolean(), pl.Null()).cast(pl.Boolean())
    return Value(~value.expr, pl.Boolean(), value.fails)


def _is_null(tree: Call, given: tuple[Value, ...]) -> Value:
    found = given[0].expr.is_null()
    return Value(~found if tree.function == "isnotnull" else found, pl.Boolean(), given[0].fails)


def _is_nan(tree: Call, given: tuple[Value, ...]) -> Value:
    value = _known(tree, given[0])
    _numbers(tree, (value,), _FLOATS)
    return Value(value.expr.is_nan().fill_null(value=False), pl.Boolean(), value.fails)


def _in(tree: Call, given: tuple[Value, ...]) -> Value:
    """The list is computed up to the first that is equal, if there is a value to look for."""
    value, *listed = _alike(tree, [_known(tree, one) for one in given])
    is_open = value.expr.is_not_null()
    found: pl.Expr = pl.lit(value=False)
    fails = list(value.fails)
    for one in listed:
        fails += _where(is_open, one.fails)
        is_equal = value.expr == one.expr
        found = found | is_equal
        is_open = is_open & ~is_equal.fill_null(value=False)
    return Value(pl.when(value.expr.is_not_null()).then(found), pl.Boolean(), tuple(fails))


def _nullif(tree: Call, given: tuple[Value, ...]) -> Value:
    left, right = _alike(tree, [_known(tree, one) for one in given])
    value = _known(tree, given[0])
    is_equal = (left.expr == right.expr).fill_null(value=False)
    return Value(pl.when(~is_equal).then(value.expr), value.dtype, _one_by_one((left, right)))


def _extreme(tree: Call, given: tuple[Value, ...]) -> Value:
    """``greatest`` and ``least``, which leave nulls out."""
    values = [_known(tree, one) for one in given]
    dtype = _common_type(tree, values)
    best, *others = [coerced(one, dtype).expr for one in values]
    for other in others:
        is_better = other > best if tree.function == "greatest" else other < best
        takes = other.is_not_null() & (best.is_null() | is_better)
        best = pl.when(takes).then(other).otherwise(best)
    return Value(best, dtype, tuple(failure for one in values for failure in one.fails))


# --- Texts


def _texts(tree: Call, given: Sequence[Value]) -> list[Value]:
    for one in given:
        if one.dtype not in (pl.String(), pl.Null()):
            raise not_compiled(tree, f"of {spark_type(one.dtype)}; cast it")
    return [one.cast(pl.String()) for one in given]


def _of_text(compute: Callable[[pl.Expr], pl.Expr], dtype: pl.DataType) -> _Function:
    def compile_(tree: Call, given: tuple[Value, ...]) -> Value:
        (value,) = _texts(tree, given)
        return Value(compute(value.expr), dtype, value.fails)

    return compile_


def _of_two_texts(compute: Callable[[pl.Expr, pl.Expr], pl.Expr]) -> _Function:
    def compile_(tree: Call, given: tuple[Value, ...]) -> Value:
        one, other = _texts(tree, given)
        are_known = one.expr.is_not_null() & other.expr.is_not_null()
        found = pl.when(are_known).then(compute(one.expr, other.expr))
        return Value(found, pl.Boolean(), _one_by_one((one, other)))

    return compile_


def _concat(tree: Call, given: tuple[Value, ...]) -> Value:
    values = [_known(tree, one) for one in given]
    for one in values:
        if one.dtype not in (pl.String(), pl.Null(), pl.Boolean(), *INTEGERS):
            raise not_compiled(tree, f"of {spark_type(one.dtype)}; cast it")
    texts = [one.cast(pl.String()) for one in values]
    joined = pl.concat_str([one.expr for one in texts])
    fails = tuple(failure for one in texts for failure in one.fails)  # Spark computes all of them.
    return Value(joined, pl.String(), fails)


def _substring(tree: Call, given: tuple[Value, ...]) -> Value:
    """``substring``, ``left`` and ``right``: UTF8String.substringSQL."""
    (text,) = _texts(tree, given[:1])
    numbers = [_known(tree, one) for one in given[1:]]
    for one in numbers:
        if one.dtype not in (*INTEGERS[:3], pl.Null()):
            raise not_compiled(tree, f"of {spark_type(one.dtype)}; cast it to int")
    counts = [one.cast(pl.Int64()).expr for one in numbers]
    length = text.expr.str.len_chars().cast(pl.Int64())
    most = 2**31 - 1
    fails = _one_by_one((text, *numbers))
    if tree.function == "right":
        start = pl.when(counts[0] > 0).then(length - counts[0]).otherwise(length)
        end: pl.Expr = length
    else:
        position = pl.lit(1, pl.Int64()) if tree.function == "left" else counts[0]
        start = (
            pl.when(position > 0)
            .then(position - 1)
            .when(position < 0)
            .then(length + position)
            .otherwise(0)
        )
        has_count = tree.function == "left" or len(counts) > 1
        end = (start + (counts[-1] if has_count else most)).clip(-most - 1, most)
    offset = pl.max_horizontal(start, pl.lit(0, pl.Int64()))
    count = pl.when(end > offset).then(end - offset).otherwise(0)
    found = text.expr.str.slice(offset, count)
    are_known = reduce(operator.and_, (one.is_not_null() for one in (text.expr, *counts)))
    return Value(pl.when(are_known).then(found), pl.String(), fails)


def _like(tree: Call, given: tuple[Value, ...]) -> Value:
    (text,) = _texts(tree, given[:1])
    pattern, *others = (_literal_of(tree, one, str, _NO_PATTERN) for one in given[1:])
    escape = others[0] if others else "\\"
    if tree.function == "ilike":
        if escape.isalpha():
            raise not_compiled(tree, "its pattern is in small letters, and so what escapes in it")
        pattern = pl.Series([pattern]).str.to_lowercase()[0]
    regex = _like_regex(tree, pattern, escape)
    return Value(text.expr.str.contains(regex), pl.Boolean(), text.fails)


def _like_regex(tree: Call, pattern: str, escape: str) -> str:
    found, signs = "", iter(pattern)
    for sign in signs:
        if sign == escape:
            escaped = next(signs, "")
            if escaped not in {"%", "_", escape} or not escaped:
                raise not_compiled(tree, "its pattern escapes nothing")
            found += rf"\x{{{ord(escaped):x}}}"
        else:
            found += {"%": ".*", "_": "."}.get(sign, rf"\x{{{ord(sign):x}}}")
    return f"(?s)^(?:{found})$" if not found else rf"(?s)\A{found}\z"


def _searched(tree: Call, given: Sequence[Value]) -> tuple[Value, Search]:
    (text,) = _texts(tree, given[:1])
    try:
        return text, searched(tree)
    except RegexError as error:
        raise not_compiled(tree, f"its pattern {error}") from error


def _by_its_end(text: pl.Expr, regex: Regex, search: Callable[[str], pl.Expr]) -> pl.Expr:
    """The result of *search* with the regex of Rust that is for *text*."""
    others, *of_crlf = regex.ways()
    if not of_crlf:
        return search(others)
    ends = text.str.ends_with("\r\n")
    return pl.when(ends).then(search(of_crlf[0])).otherwise(search(others))


def _rlike(tree: Call, given: tuple[Value, ...]) -> Value:
    text, search = _searched(tree, given)
    return Value(
        _by_its_end(text.expr, search.regex, text.expr.str.contains), pl.Boolean(), text.fails
    )


def _regexp_extract(tree: Call, given: tuple[Value, ...]) -> Value:
    text, search = _searched(tree, given)
    found = _by_its_end(text.expr, search.regex, lambda regex: text.expr.str.extract(regex, 1))
    whole = pl.when(text.expr.is_not_null()).then(found.fill_null(""))
    return Value(whole, pl.String(), text.fails)


def _regexp_replace(tree: Call, given: tuple[Value, ...]) -> Value:
    text, search = _searched(tree, given)
    groups = sorted({one for one in search.by if isinstance(one, int)})
    by = "".join(
        one.replace("$", "$$") if isinstance(one, str) else f"${{{groups.index(one) + 1}}}"
        for one in search.by
    )
    (regex,) = search.regex.ways(is_kept=True)
    if search.regex.has_end:
        by += f"${{{len(groups) + 1}}}"
    return Value(text.expr.str.replace_all(regex, by), pl.String(), text.fails)


def _split(tree: Call, given: tuple[Value, ...]) -> Value:
    text, search = _searched(tree, given)
    literal = search.regex.literal
    by = search.regex.body if literal is None else literal
    pieces = text.expr.str.split(by, literal=literal is not None)
    return Value(pieces, pl.List(pl.String()), text.fails)


def _split_part(tree: Call, given: tuple[Value, ...]) -> Value:
    (text,) = _texts(tree, given[:1])
    by, part = _literal_of(tree, given[1], str), _literal_of(tree, given[2], int)
    if not part:
        raise not_compiled(tree, "its parts are 1 and more, or -1 and less")
    if not by:
        return replace(text, literal=None) if abs(part) == 1 else _none_of(text)
    place = part - 1 if part > 0 else part
    found = text.expr.str.split(by, literal=True).list.get(place, null_on_oob=True)
    whole = pl.when(text.expr.is_not_null()).then(found.fill_null(""))
    return Value(whole, pl.String(), text.fails)


def _substring_index(tree: Call, given: tuple[Value, ...]) -> Value:
    (text,) = _texts(tree, given[:1])
    by, count = _literal_of(tree, given[1], str), _literal_of(tree, given[2], int)
    if any(by[:size] == by[-size:] for size in range(1, len(by))):
        raise not_compiled(tree, "by what may begin in itself")
    if not by or not count:
        return _none_of(text)
    pieces = text.expr.str.split(by, literal=True)
    found = pieces.list.head(count) if count > 0 else pieces.list.tail(-count)
    return Value(found.list.join(by), pl.String(), text.fails)


def _none_of(text: Value) -> Value:
    return Value(pl.when(text.expr.is_not_null()).then(pl.lit("")), pl.String(), text.fails)


def _concat_ws(tree: Call, given: tuple[Value, ...]) -> Value:
    between, texts = _literal_of(tree, given[0], str), _texts(tree, given[1:])
    joined = pl.concat_str([one.expr for one in texts], separator=between, ignore_nulls=True)
    return Value(joined, pl.String(), tuple(failure for one in texts for failure in one.fails))


MOST_PADDED = 10_000  # Signs of a text, of which the padding is one in memory.


def _padded(tree: Call, given: tuple[Value, ...]) -> Value:
    """``lpad`` and ``rpad``, which also cut a text that is too long."""
    (text,) = _texts(tree, given[:1])
    size = max(0, _literal_of(tree, given[1], int))
    by = _literal_of(tree, given[2], str) if len(given) > 2 else " "
    if size > MOST_PADDED:
        raise not_compiled(tree, f"to more than {MOST_PADDED} signs")
    cut = text.expr.str.slice(0, size)
    if not by:
        return Value(cut, pl.String(), text.fails)
    lacking = (pl.lit(size, pl.Int64()) - text.expr.str.len_chars().cast(pl.Int64())).clip(0)
    around = pl.lit((by * size)[:size]).str.slice(0, lacking)
    parts = (around, cut) if tree.function == "lpad" else (cut, around)
    return Value(pl.concat_str(parts), pl.String(), text.fails)


def _place_of(tree: Call, given: tuple[Value, ...]) -> Value:
    """``instr(text, part)`` and ``locate(part, text, from)``: from 1, and 0 if it is not there."""
    one, other = _texts(tree, given[:2])
    text, part = (one, other) if tree.function == "instr" else (other, one)
    if len(given) > 2:
        return _place_behind(tree, text, part, _known(tree, given[2]))
    place = _place(text.expr, part.expr)
    are_known = text.expr.is_not_null() & part.expr.is_not_null()
    return Value(pl.when(are_known).then(place), pl.Int32(), _one_by_one((one, other)))


def _place(text: pl.Expr, part: pl.Expr) -> pl.Expr:
    # A literal alone is split by the first part only.
    whole = pl.when(part.is_not_null()).then(text)
    before = whole.str.splitn(part, 2).struct.field("field_0").str.len_chars()
    found = text.str.contains(part, literal=True)
    place = pl.when(part == "").then(1).when(found).then(before.cast(pl.Int32()) + 1).otherwise(0)
    return place.cast(pl.Int32())


def _place_behind(tree: Call, text: Value, part: Value, start: Value) -> Value:
    """The place of *part* from *start* on; 0 for a start that is null or less than 1."""
    if start.dtype not in (*INTEGERS[:3], pl.Null()):
        raise not_compiled(tree, f"from a {spark_type(start.dtype)}; cast it to int")
    before = start.cast(pl.Int64()).expr - 1
    rest = text.expr.str.slice(pl.when(before >= 0).then(before).otherwise(0))
    place = _place(rest, part.expr)
    found = pl.when((place > 0) & (part.expr != "")).then(place + before).otherwise(place)
    are_known = text.expr.is_not_null() & part.expr.is_not_null()
    found = pl.when(before < 0).then(0).otherwise(found)
    whole = pl.when(start.expr.is_null()).then(0).when(are_known).then(found)
    texts = _one_by_one((part, text))
    fails = (*start.fails, *_where(start.expr.is_not_null(), texts))
    return Value(whole.cast(pl.Int32()), pl.Int32(), fails)


L = TypeVar("L", str, int)


def _literal_of(
    tree: Call, value: Value, wanted: type[L], why: str = "with other than literals"
) -> L:
    found = None if value.literal is None else value.literal.value
    if type(found) is not wanted:
        raise not_compiled(tree, why)
    return found


def _replace(tree: Call, given: tuple[Value, ...]) -> Value:
    (text,) = _texts(tree, given[:1])
    why = "what it replaces is no literal"
    search, *others = (_literal_of(tree, one, str, why) for one in given[1:])
    by = others[0] if others else ""
    if not search:
        return replace(text, literal=None)
    return Value(text.expr.str.replace_all(search, by, literal=True), pl.String(), text.fails)


# --- Arrays


def _array(tree: Call, value: Value) -> pl.DataType:
    """The type of an element."""
    if not isinstance(value.dtype, pl.List):
        raise not_compiled(tree, f"of {spark_type(value.dtype)}")
    of = instance_of(value.dtype.inner)
    if isinstance(of, pl.Struct) and [one.name for one in of.fields] == ["key", "value"]:
        raise not_compiled(tree, "of a map")
    return of


def _size(tree: Call, given: tuple[Value, ...]) -> Value:
    if not isinstance(given[0].dtype, pl.List):
        raise not_compiled(tree, f"of {spark_type(given[0].dtype)}")
    return Value(given[0].expr.list.len().cast(pl.Int32()), pl.Int32(), given[0].fails)


def _item(tree: Call, given: tuple[Value, ...]) -> Value:
    """``array[place]`` and ``get`` from 0, and ``element_at`` from 1 or from the end.

    Of a map both ``map[key]`` and ``element_at`` are null where there is no such key.
    """
    array, place = given[0], _known(tree, given[1])
    if isinstance(array.dtype, pl.Map) and tree.function != "get":
        return _value_of_key(tree, array, array.dtype, place)
    of = _array(tree, array)
    if place.dtype not in INTEGERS[:3]:
        raise not_compiled(tree, f"at a {spark_type(place.dtype)}; cast it to int")
    at, size = place.cast(pl.Int64()).expr, array.expr.list.len().cast(pl.Int64())
    is_there = (at >= 0) & (at < size)
    if tree.function == "element_at":
        is_there = (at != 0) & (at.abs() <= size)
        at = pl.when(at > 0).then(at - 1).otherwise(at)
    found = pl.when(is_there).then(array.expr.list.get(at, null_on_oob=True))
    if is_constant(tree.arguments[1]) and _certainly_fails(place):
        raise not_compiled(tree, "its place cannot be computed")  # Spark does when it plans.
    fails = _one_by_one((array, place))
    if tree.function != "get":
        fails = (
            *fails,
            StoppedRows(tree, "is beyond the array", array.expr.is_not_null() & ~is_there),
        )
    return Value(found, of, fails)


def _value_of_key(tree: Call, entries: Value, of: pl.Map, key: Value) -> Value:
    key_type, dtype = map(instance_of, (of.key, of.value))
    is_known = key_type == pl.String() or key_type in INTEGERS
    if not is_known or _common_type(tree, [replace(key, dtype=key_type), key]) != key_type:
        raise not_compiled(tree, f"of {spark_type(of)} and {spark_type(key.dtype)}")
    found = entries.expr.map.get(key.cast(key_type).expr)
    known = pl.when(key.expr.is_not_null()).then(found)
    return Value(known, dtype, _one_by_one((entries, key)))


def _inner(tree: Call, given: tuple[Value, ...]) -> Value:
    """A field of a struct that is computed: ``places[0].town``."""
    value, names = given[0], [_literal_of(tree, one, str) for one in given[1:]]
    expr, dtype = value.expr, value.dtype
    for name in names:
        field, dtype = _field(spelled(tree.arguments[0]), dtype, name)
        expr = expr.struct.field(field)
    return Value(expr, dtype, value.fails)


def _certainly_fails(constant: Value) -> bool:
    fails = [one.rows for one in constant.fails]
    return bool(fails) and pl.select(pl.any_horizontal(fails)).item() is True


def _array_contains(tree: Call, given: tuple[Value, ...]) -> Value:
    array, value = given[0], _known(tree, given[1])
    of = _array(tree, array)
    if (
        of not in (pl.String(), *INTEGERS)
        or _common_type(tree, [replace(value, dtype=of), value]) != of
    ):
        raise not_compiled(tree, f"of {spark_type(array.dtype)} and {spark_type(value.dtype)}")
    sought = value.cast(of).expr
    has_null = array.expr.list.contains(pl.lit(None, of), nulls_equal=True)
    found = array.expr.list.contains(sought, nulls_equal=False)
    known = pl.when(found | ~has_null).then(found)
    are_known = array.expr.is_not_null() & sought.is_not_null()
    whole = pl.when(are_known).then(known)
    return Value(whole, pl.Boolean(), _one_by_one((array, value)))


# --- Days and instants


def _days(tree: Call, value: Value) -> Value:
    return _of_type(tree, value, pl.Date(), TIMESTAMP)


def _near(tree: Call, value: Value) -> Value:
    """A day or an instant for a calendar, which Polars has of fewer years than values."""
    found = near(value.expr, value.dtype)
    return _of_conversion(tree, value, found, value.dtype)


_PART: Mapping[str, Callable[[pl.Expr], pl.Expr]] = {
    "year": lambda at: at.dt.year(),
    "quarter": lambda at: at.dt.quarter(),
    "month": lambda at: at.dt.month(),
    "weekofyear": lambda at: at.dt.week(),
    "dayofmonth": lambda at: at.dt.day(),
    "dayofweek": lambda at: at.dt.weekday().cast(pl.Int32()) % 7 + 1,
    "dayofyear": lambda at: at.dt.ordinal_day(),
    "weekday": lambda at: at.dt.weekday().cast(pl.Int32()) - 1,
    "hour": lambda at: at.dt.hour(),
    "minute": lambda at: at.dt.minute(),
    "second": lambda at: at.dt.second(),
}
_EXTRACTED = {
    **{name: name for name in ("year", "quarter", "month", "hour", "minute", "dayofweek")},
    "week": "weekofyear",
    "day": "dayofmonth",
    "dow": "dayofweek",
    "doy": "dayofyear",
}


def _part(tree: Call, given: tuple[Value, ...]) -> Value:
    types = [TIMESTAMP] if tree.function in {"hour", "minute", "second"} else [pl.Date(), TIMESTAMP]
    value = _of_type(tree, given[0], *types)
    return Value(_PART[tree.function](value.expr).cast(pl.Int32()), pl.Int32(), value.fails)


def _extract(tree: Call, given: tuple[Value, ...]) -> Value:
    literal = given[0].literal
    part = None if literal is None else _EXTRACTED.get(str(literal.value).lower())
    if part is None:
        raise not_compiled(tree)
    return _part(replace(tree, function=part), given[1:])


_TRUNCATED = {
    "year": "1y",
    "quarter": "1q",
    "month": "1mo",
    "week": "1w",
    "day": "1d",
    "hour": "1h",
    "minute": "1m",
    "second": "1s",
}


def _date_trunc(tree: Call, given: tuple[Value, ...]) -> Value:
    value = coerced(_days(tree, given[1]), TIMESTAMP)
    every = _TRUNCATED.get(_literal_of(tree, given[0], str).lower())
    if every is None:
        raise not_compiled(tree)
    value = _near(tree, value)
    return Value(value.expr.dt.truncate(every), TIMESTAMP, value.fails)


def _trunc(tree: Call, given: tuple[Value, ...]) -> Value:
    day, unit = given[0], _literal_of(tree, given[1], str).lower()
    if day.dtype != pl.Date() or unit not in {"year", "quarter", "month", "week"}:
        raise not_compiled(tree)
    day = _near(tree, day)
    return Value(day.expr.dt.truncate(_TRUNCATED[unit]), pl.Date(), day.fails)


def _last_day(tree: Call, given: tuple[Value, ...]) -> Value:
    day = _near(tree, _of_type(tree, given[0], pl.Date()))
    return Value(day.expr.dt.month_end(), pl.Date(), day.fails)


def _date(tree: Call, given: tuple[Value, ...]) -> Value:
    value = _days(tree, given[0])
    return Value(_day(value), pl.Date(), value.fails)


def _date_add(tree: Call, given: tuple[Value, ...]) -> Value:
    day, number = given
    if day.dtype != pl.Date() or number.dtype not in INTEGERS[:3]:
        raise not_compiled(tree, f"of {spark_type(day.dtype)} and {spark_type(number.dtype)}")
    days, by = day.expr.cast(pl.Int32()), number.expr.cast(pl.Int32())
    found = days + by if tree.function == "date_add" else days - by
    fails = (*_one_by_one((day, number)), StoppedRows(tree, RANGE, ~found.is_between(*DAYS)))
    return Value(found.cast(pl.Date()), pl.Date(), fails)


def _datediff(tree: Call, given: tuple[Value, ...]) -> Value:
    end, start = given
    if (end.dtype, start.dtype) != (pl.Date(), pl.Date()):
        raise not_compiled(tree, f"of {spark_type(end.dtype)} and {spark_type(start.dtype)}")
    found = end.expr.cast(pl.Int32()) - start.expr.cast(pl.Int32())
    return Value(found, pl.Int32(), _one_by_one((end, start)))


# Months, or microseconds and whether a date stays one.
_INTERVALS: Mapping[str, tuple[int, int, bool]] = {
    "interval year": (12, 0, True),
    "interval month": (1, 0, True),
    "interval week": (0, 7 * DAY, True),
    "interval day": (0, DAY, True),
    "interval hour": (0, 3_600_000_000, False),
    "interval minute": (0, 60_000_000, False),
    "interval second": (0, 1_000_000, False),
}
_MOST_MICROS = 2**62


def _moved(tree: Call, value: Value, by: Literal) -> Value:
    """A day or an instant and an interval, before or behind it."""
    value = _days(tree, value)
    months, micros, is_day = _INTERVALS[by.type.name]
    number = int(str(by.value)) * (-1 if tree.function == "-" else 1)
    months, micros = months * number, micros * number
    if abs(micros) > _MOST_MICROS or abs(months) > 12 * 10_000:
        raise not_compiled(tree, "of more than ten thousand years")
    stays = value.dtype == pl.Date() and is_day
    value = _near(tree, value)
    at = value.expr
    if months:
        found = at.dt.offset_by(f"{months}mo")
    elif stays:
        found = (at.cast(pl.Int32()).cast(pl.Int64()) + micros // DAY).cast(pl.Date(), strict=False)
    else:
        found = (at.cast(TIMESTAMP).dt.epoch("us") + micros).cast(TIMESTAMP)
    dtype = value.dtype if months or stays else TIMESTAMP
    return _near(tree, Value(found, dtype, value.fails))


def _date_format(tree: Call, given: tuple[Value, ...]) -> Value:
    value, pattern = _days(tree, given[0]), _literal_of(tree, given[1], str, _NO_PATTERN)
    found = formatted(value.expr, value.dtype, pattern)
    if found is None:
        raise not_compiled(tree, f"the pattern {pattern!r}")
    return _of_conversion(tree, value, found, pl.String())


def _parsed(tree: Call, given: tuple[Value, ...]) -> Value:
    """``to_date`` and ``to_timestamp`` of a text by a pattern."""
    (text,), pattern = _texts(tree, given[:1]), _literal_of(tree, given[1], str, _NO_PATTERN)
    found = instant_in(text.expr, pattern)
    if found is None:
        raise not_compiled(tree, f"the pattern {pattern!r}")
    value = _of_conversion(tree, text, found, TIMESTAMP)
    if tree.function == "to_date":
        return replace(value, expr=value.expr.dt.date(), dtype=pl.Date())
    return value


def _from_unixtime(tree: Call, given: tuple[Value, ...]) -> Value:
    at = _timestamp(replace(tree, function="timestamp_seconds"), given[:1])
    pattern = given[1] if len(given) > 1 else _SECONDS_WRITTEN
    fails = (replace(one, part=tree) if one.what == RANGE else one for one in at.fails)
    return _date_format(tree, (replace(at, fails=tuple(fails)), pattern))


def _unix_timestamp(tree: Call, given: tuple[Value, ...]) -> Value:
    value = given[0]
    if value.dtype in (pl.String(), pl.Null()):
        pattern = given[1] if len(given) > 1 else _SECONDS_WRITTEN
        value = _parsed(tree, (value, pattern))
    elif len(given) > 1:
        raise not_compiled(tree, f"of {spark_type(value.dtype)} by a pattern")
    value = coerced(_days(tree, value), TIMESTAMP)  # A day beyond the calendar would panic.
    micros = value.expr.dt.epoch("us")
    seconds = micros.abs().floordiv(1_000_000)  # Toward 1970, other than unix_seconds().
    return Value(pl.when(micros < 0).then(-seconds).otherwise(seconds), pl.Int64(), value.fails)


_SECONDS_WRITTEN = Value(
    pl.lit(None), pl.String(), literal=Literal("yyyy-MM-dd HH:mm:ss", ColumnType("string"))
)
_PER_SECOND = {"seconds": 1, "millis": 1000, "micros": 1_000_000}


def _unix(tree: Call, given: tuple[Value, ...]) -> Value:
    value = _of_type(tree, given[0], TIMESTAMP)
    by = 1_000_000 // _PER_SECOND[tree.function.removeprefix("unix_")]
    return Value(value.expr.dt.epoch("us").floordiv(by), pl.Int64(), value.fails)


def _timestamp(tree: Call, given: tuple[Value, ...]) -> Value:
    value = _known(tree, given[0])
    _numbers(tree, (value,), INTEGERS)
    by = 1_000_000 // _PER_SECOND[tree.function.removeprefix("timestamp_")]
    number = value.cast(pl.Int64()).expr
    least, most = (day * DAY // by for day in (DAYS[0], DAYS[1] + 1))
    is_inside = (number >= least) & (number < most)
    fails = (*value.fails, StoppedRows(tree, RANGE, ~is_inside))
    return Value((number * by).cast(TIMESTAMP), TIMESTAMP, fails)


_FUNCTIONS: Mapping[str, _Function] = {
    **dict.fromkeys(("+", "-", "*"), _arithmetic),
    "/": _quotient,
    "%": _remainder,
    "div": _div,
    **dict.fromkeys(("negate", "abs"), _signed),
    **dict.fromkeys(("ceil", "floor", "round"), _rounded),
    "sqrt": _sqrt,
    "power": _power,
    **dict.fromkeys(("=", "<=>", "<", "<=", ">", ">="), _compared),
    "not": _not,
    **dict.fromkeys(("is_null", "isnull", "isnotnull"), _is_null),
    "isnan": _is_nan,
    "in": _in,
    "nullif": _nullif,
    **dict.fromkeys(("greatest", "least"), _extreme),
    "upper": _of_text(lambda text: text.str.to_uppercase(), pl.String()),
    "lower": _of_text(lambda text: text.str.to_lowercase(), pl.String()),
    "length": _of_text(lambda text: text.str.len_chars().cast(pl.Int32()), pl.Int32()),
    "trim": _of_text(lambda text: text.str.strip_chars(" "), pl.String()),
    "ltrim": _of_text(lambda text: text.str.strip_chars_start(" "), pl.String()),
    "rtrim": _of_text(lambda text: text.str.strip_chars_end(" "), pl.String()),
    "concat": _concat,
    "concat_ws": _concat_ws,
    **dict.fromkeys(("lpad", "rpad"), _padded),
    **dict.fromkeys(("instr", "locate"), _place_of),
    "rlike": _rlike,
    "regexp_extract": _regexp_extract,
    "regexp_replace": _regexp_replace,
    "split": _split,
    "split_part": _split_part,
    "substring_index": _substring_index,
    "size": _size,
    "array_contains": _array_contains,
    **dict.fromkeys(("[]", "get", "element_at"), _item),
    "field": _inner,
    **dict.fromkeys(("substring", "left", "right"), _substring),
    "startswith": _of_two_texts(lambda one, other: one.str.starts_with(other)),
    "endswith": _of_two_texts(lambda one, other: one.str.ends_with(other)),
    "contains": _of_two_texts(lambda one, other: one.str.contains(other, literal=True)),
    "like": _like,
    "replace": _replace,
    "date": _date,
    **dict.fromkeys(_PART, _part),
    "extract": _extract,
    "date_trunc": _date_trunc,
    "trunc": _trunc,
    "last_day": _last_day,
    **dict.fromkeys(("date_add", "date_sub"), _date_add),
    "datediff": _datediff,
    "date_format": _date_format,
    **dict.fromkeys(("to_date", "to_timestamp"), _parsed),
    "from_unixtime": _from_unixtime,
    "unix_timestamp": _unix_timestamp,
    **dict.fromkeys(("unix_micros", "unix_millis", "unix_seconds"), _unix),
    **dict.fromkeys(("timestamp_micros", "timestamp_millis", "timestamp_seconds"), _timestamp),
}
