"""``Kernel``: one aggregate as a fold of rows, of groups, and of groups into their state.

Null values do not count; of nulls alone, or of no rows, a result is null, as in SQL, but a count is
zero and ``collect`` the empty list.  NaN is larger than any number, as in Spark.

Counts are int64.  Sums are computed in a wider type than the result: integers as decimals of 38
digits, which no number of rows can overflow, and only the result has to be a BIGINT; decimals as
the widest decimal, floats as float64.  ``min``, ``max``, ``first`` and ``last`` have the column's
own type, ``collect`` is a sorted list.  No result depends on the order of rows, but the last bits
of what is computed of sums of floats over appended rows.

In a changelog every row has a weight, 1 or -1, which is summed instead of the row being counted;
then a sum keeps its number of values, to know when none is left.  Floats are added exactly there,
see ``_weighed_floats``: what was taken back leaves nothing behind.

``grouped`` is Polars' group by, each time in the way that takes the least time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from math import inf, isfinite, isnan, nan
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sluice.declaration.aggregates import Aggregate, AggregateKind
from sluice.operators.operator import FILTER, WEIGHT

BEFORE = "before this epoch: "  # Prefix of a state column as it was before the epoch.

_WIDEST_DECIMAL = 38
_INT64_VALUES = 2**63  # The number of an Int64's values in either direction from zero.

# The sum of 10^10 decimals of this many digits has 38, the most that a decimal can have.
_SUMMED_BY_SPARK = 28

# From this many rows on the streaming engine takes less time, down to half; it takes 0.5 ms to
# start (1,000 rows: 0.6 ms, not 0.06 ms).
_STREAMED_ROWS = 100_000

# Columns that ``grouped`` adds; no column of an input is called so.
_UUID, _PLACE = "\0uuid", "\0place"

# The form of a UUID as text.
_LENGTH = 36
_HYPHENS = (8, 18)  # Where two of the four are, five places apart.
_FOURS = (0, 4, 9, 14, 19, 24, 28, 32)  # Where each four of the 32 digits begin.

_BLOCK = 4_096  # Rows that are packed at a time: intermediate arrays stay in the caches.

# Measured: packing gains from half a million rows on, if they have some 300,000 UUIDs or more, of
# which nearly all of a sample are different.
_MANY_ROWS = 500_000
_SAMPLE = 20_000
_DISTINCT = 0.97


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernel:
    """One aggregate of one stage.

    ``partial`` folds rows and ``combine`` groups, both within a ``group_by`` and to the columns
    ``states``; ``merge`` adds a group's state to that of before the epoch, which is null for a new
    group; ``final`` reads the result.  ``sql`` is ``partial`` for Spark, if Spark can compute it.
    ``label`` is the aggregate as it was declared, for messages.  ``kept`` are the columns that a
    running aggregate keeps in a narrower type than its groups have: its result is read at every
    barrier, so they fit it.  ``refused`` are columns of an earlier form, with the reason why state
    that has them cannot be read.
    """

    name: str
    label: str
    states: Mapping[str, pl.DataType]
    result_type: pl.DataType
    partial: tuple[pl.Expr, ...]
    combine: tuple[pl.Expr, ...]
    merge: tuple[pl.Expr, ...]
    final: pl.Expr
    sql: Mapping[str, str] | None
    reads: tuple[str, ...]  # Columns of the input.
    is_order_sensitive: bool = False
    narrow: Narrow | None = None
    kept: Mapping[str, pl.DataType] = field(default_factory=dict[str, pl.DataType])
    refused: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Narrow:
    """A kernel's ``partial`` and ``combine`` for values that can be added in less time.

    Nearly all are: numbers so small that their sum is an Int64 take a fifth less.  It can be used
    where ``rows_are`` is true of the column ``reads`` of rows, and ``groups_are`` of ``state``.
    """

    reads: str
    state: str
    rows_are: Callable[[pl.Series], bool]
    groups_are: Callable[[pl.Series], bool]
    partial: tuple[pl.Expr, ...]
    combine: tuple[pl.Expr, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """The values that the aggregate *name* of a stage reads, in Polars and in Spark's SQL.

    ``column`` is None for rows alone.  For an aggregate that ``has_where`` the rows carry a column
    that says whether they count.  ``label`` is the aggregate as it was declared.
    """

    name: str
    label: str
    column: str | None
    dtype: pl.DataType
    has_where: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        return () if self.column is None else (self.column,)

    @property
    def value(self) -> pl.Expr:
        """Null where the row does not count."""
        if self.column is None:
            return self._counted(pl.lit(True))  # noqa: FBT003 - a value
        is_float = self.dtype.is_float()
        value = without_negative_zero(self.column) if is_float else pl.col(self.column)
        return self._counted(value)

    def addend(self, total: pl.DataType) -> pl.Expr:
        """The value as it is added up to a *total* of that type.

        Adding numbers of 128 bits takes half as long as adding decimals.
        """
        return self.value.cast(pl.Int128() if self.dtype.is_integer() else total)

    @property
    def weight(self) -> pl.Expr:
        weight = self._counted(pl.col(WEIGHT).cast(pl.Int64))
        if self.column is None:
            return weight
        return pl.when(pl.col(self.column).is_not_null()).then(weight)

    @property
    def sql_value(self) -> str:
        if self.column is None:
            return "*"
        column = _quoted(self.column)
        return f"({column} + {_sql_zero(self.dtype)})" if self.dtype.is_float() else column

    @property
    def sql_where(self) -> str:
        return f" FILTER (WHERE {self.sql_passes})" if self.has_where else ""

    @property
    def sql_passes(self) -> str:
        return _quoted(FILTER + self.name)

    def _counted(self, value: pl.Expr) -> pl.Expr:
        return pl.when(pl.col(FILTER + self.name)).then(value) if self.has_where else value


def without_negative_zero(column: str) -> pl.Expr:
    """A column of floats with 0.0 for -0.0: equal values must not depend on the order of rows.

    Adding 0.0 does not do it, as Polars optimizes that away.
    """
    value = pl.col(column)
    return pl.when(value == 0).then(value.abs()).otherwise(value).alias(column)


def total_type(dtype: pl.DataType) -> pl.DataType | None:
    """The type in which values of *dtype* are added up; None if they cannot be added."""
    if dtype.is_integer():
        return pl.Decimal(_WIDEST_DECIMAL, 0)
    if dtype.is_float():
        return pl.Float64()
    if isinstance(dtype, pl.Decimal):
        return pl.Decimal(_WIDEST_DECIMAL, dtype.scale)
    return None


def _sum_type(dtype: pl.DataType, total: pl.DataType) -> pl.DataType:
    """The type of a sum of values of *dtype*, which are added up in the type *total*."""
    return pl.Int64() if dtype.is_integer() else total


def is_ordered(dtype: pl.DataType) -> bool:
    """Whether values can be compared by Polars and by Spark alike."""
    return dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.String(), pl.Boolean())


def counted(argument: Argument, *, is_changelog: bool) -> Kernel:
    name = argument.name
    if is_changelog:
        count = argument.weight.sum()
    elif argument.column is None and not argument.has_where:
        count = pl.len()
    else:
        count = argument.value.count()
    return Kernel(
        name=name,
        label=argument.label,
        states={name: pl.Int64()},
        result_type=pl.Int64(),
        partial=(_int64(count, name),),
        combine=(pl.col(name).sum(),),
        merge=(_added(name),),
        final=pl.col(name).fill_null(0),  # A column that began anew has counted nothing yet.
        sql=None if is_changelog else {name: _count_sql(argument)},
        reads=argument.reads,
    )


def summed(argument: Argument, total: pl.DataType) -> Kernel:
    name = argument.name
    state, before = pl.col(name), pl.col(BEFORE + name)
    result = _sum_type(argument.dtype, total)
    added = _sum_sql(argument, total)
    return Kernel(
        name=name,
        label=argument.label,
        states={name: total},
        result_type=result,
        partial=(_sum_or_null(argument.addend(total)).cast(total).alias(name),),
        combine=(_sum_or_null(state).cast(total).alias(name),),
        merge=(pl.coalesce(state + before, state, before).cast(total).alias(name),),
        final=state.cast(result),  # A strict cast: a sum that does not fit is an error.
        sql=None if added is None else {name: added},
        reads=argument.reads,
        is_order_sensitive=total.is_float(),
        kept={name: result},
        narrow=_narrow(
            argument,
            name,
            partial=(_sum_or_null(argument.value.cast(pl.Int64)).cast(total).alias(name),),
            combine=(_sum_or_null(state.cast(pl.Int64)).cast(total).alias(name),),
        ),
    )


def averaged(argument: Argument, total: pl.DataType) -> Kernel:
    return _sum_and_count(
        argument,
        total,
        partial=(argument.addend(total).sum(), argument.value.count()),
        narrow=argument.value.cast(pl.Int64).sum(),
        is_mean=True,
        sum_sql=_sum_sql(argument, total),
    )


def weighed(argument: Argument, total: pl.DataType, *, is_mean: bool) -> Kernel:
    """The sum, or the mean, of a changelog."""
    if total.is_float():
        return _weighed_floats(argument, is_mean=is_mean)
    weight = argument.weight

    def signed(dtype: pl.DataType) -> pl.Expr:
        value = argument.value.cast(dtype)
        return pl.when(weight > 0).then(value).when(weight < 0).then(-value).sum()

    return _sum_and_count(
        argument,
        total,
        partial=(signed(total), weight.sum()),
        narrow=signed(pl.Int64()),
        is_mean=is_mean,
        sum_sql=None,
    )


def _sum_and_count(
    argument: Argument,
    total: pl.DataType,
    *,
    partial: tuple[pl.Expr, pl.Expr],
    narrow: pl.Expr,
    is_mean: bool,
    sum_sql: str | None,
) -> Kernel:
    """A sum, and the number of its values: null values alone sum to zero, and count as none.

    *partial* is both of a group's rows, and *narrow* the sum of small numbers, see ``Narrow``.
    """
    name = argument.name
    added, count = f"_sum_{name}", f"_count_{name}"
    result = pl.Float64() if is_mean else _sum_type(argument.dtype, total)
    found = pl.when(pl.col(count) > 0).then(pl.col(added)).cast(result)
    return Kernel(
        name=name,
        label=argument.label,
        states={added: total, count: pl.Int64()},
        result_type=result,
        partial=(partial[0].cast(total).alias(added), _int64(partial[1], count)),
        combine=(pl.col(added).sum().cast(total), pl.col(count).sum()),
        merge=(_added(added).cast(total), _added(count)),
        final=(found / pl.col(count) if is_mean else found).alias(name),
        sql=None
        if sum_sql is None
        else {
            added: f"COALESCE({sum_sql}, {_sql_zero(total)})",
            count: _count_sql(argument),
        },
        reads=argument.reads,
        is_order_sensitive=total.is_float(),
        kept={} if is_mean else {added: result},
        narrow=_narrow(
            argument,
            added,
            partial=(narrow.cast(total).alias(added), _int64(partial[1], count)),
            combine=(pl.col(added).cast(pl.Int64).sum().cast(total), pl.col(count).sum()),
        ),
    )


def _weighed_floats(argument: Argument, *, is_mean: bool) -> Kernel:
    """The sum, or the mean, of the floats of a changelog, from which any row can be taken back.

    Doubles are whole multiples of powers of two.  A value from 2**-53 to 2**64 is added as two
    numbers of 128 bits, its multiple of 2**-20 and, of what is left, that of 2**-105: both are
    exact, for 2**42 rows.  Any other value, NaN and the infinities among them, is kept apart with
    the number of its copies, and what is apart is put together by ``_folded_apart``.  So the state
    is a function of the values that are there, and the result, which has an error of at most two
    units in the last place, is too.
    """
    name = argument.name
    high, low, apart, count = (f"_{part}_{name}" for part in ("high", "low", "apart", "count"))
    total = pl.Decimal(_WIDEST_DECIMAL, 0)
    value, weight = argument.value.cast(pl.Float64), argument.weight
    size = value.abs()
    is_near = (size >= _NEAR[0]) & (size < _NEAR[1]) | (value == 0)

    def digits(value: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
        scaled = pl.when(weight > 0).then(value).when(weight < 0).then(-value) * 2.0**_HIGH_BITS
        whole = scaled.round()
        rest = (scaled - whole) * 2.0**_LOW_BITS  # Exact: it has no digit that *scaled* has not.
        return (
            whole.cast(pl.Int128).sum().cast(total).alias(high),
            rest.cast(pl.Int128).sum().cast(total).alias(low),
        )

    copies = pl.struct(value.alias("value"), weight.alias("copies"))
    nothing = pl.lit(None, _APART).alias(apart)
    summed_high, summed_low = pl.col(high).sum().cast(total), pl.col(low).sum().cast(total)
    counted, count_of_rows = pl.col(count).sum(), _int64(weight.sum(), count)
    narrow = None
    if argument.column is not None:
        narrow = Narrow(
            reads=argument.column,
            state=apart,
            rows_are=_are_near,
            groups_are=lambda lists: lists.null_count() == len(lists),
            partial=(*digits(value), nothing, count_of_rows),
            combine=(summed_high, summed_low, nothing, counted),
        )
    carry = (pl.col(low).cast(pl.Int128) + 2 ** (_LOW_BITS - 1)) // 2**_LOW_BITS
    # Each part is rounded once; that of *low* is at most half a unit of *high*.
    near = (pl.col(high).cast(pl.Int128) + carry).cast(pl.Float64) * 2.0**-_HIGH_BITS + (
        pl.col(low).cast(pl.Int128) - carry * 2**_LOW_BITS
    ).cast(pl.Float64) * 2.0 ** -(_HIGH_BITS + _LOW_BITS)
    found = pl.when(pl.col(count) > 0).then(near / pl.col(count) if is_mean else near)
    parts = [found.alias(name), *map(pl.col, (high, low, apart, count))]
    return Kernel(
        name=name,
        label=argument.label,
        states={high: total, low: total, apart: _APART, count: pl.Int64()},
        result_type=pl.Float64(),
        partial=(
            *digits(pl.when(is_near).then(value)),
            copies.filter(value.is_not_null() & ~is_near).alias(apart),
            count_of_rows,
        ),
        combine=(summed_high, summed_low, pl.col(apart).explode().drop_nulls(), counted),
        merge=(
            _added(high).cast(total),
            _added(low).cast(total),
            pl.map_batches([apart, BEFORE + apart], _folded_apart, _APART).alias(apart),
            _added(count),
        ),
        final=pl.map_batches(parts, partial(_with_apart, is_mean=is_mean), pl.Float64()),
        sql=None,
        reads=argument.reads,
        narrow=narrow,
        refused={
            f"_sum_{name}": f"{argument.label} over updates was kept as one float, from which a "
            "NaN, an infinity or a large value could not be taken back"
        },
    )


# The values that two numbers of 128 bits hold exactly, but for zero, and the bits of both parts:
# that of a value has 84 bits, which leaves 42 for the number of rows.
_NEAR = (2.0**-53, 2.0**64)
_HIGH_BITS, _LOW_BITS = 20, 85
_APART = pl.List(pl.Struct({"value": pl.Float64(), "copies": pl.Int64()}))

# Any double is a whole multiple of the least one; the sum of many can be beyond the largest.
_LEAST_BITS = 1_074
_BEYOND_BITS = 1_023


def _are_near(values: pl.Series) -> bool:
    size = values.abs()
    is_near = (size >= _NEAR[0]) & (size < _NEAR[1]) | (size == 0)
    return bool(is_near.all())  # Polars ignores nulls.


def _folded_apart(both: Sequence[pl.Series]) -> pl.Series:
    """The two lists of values that each row has apart, as one list: the same for the same values.

    It has the special values with their copies, and the sum of the others in as few pieces as hold
    it exactly; it is null where nothing is left.
    """
    first, second = both
    if first.null_count() + second.null_count() == 2 * len(first):
        return first
    pairs = zip(first.to_list(), second.to_list(), strict=True)
    lists = [_pieces([*(one or ()), *(other or ())]) for one, other in pairs]
    return pl.Series(first.name, lists, _APART)


def _pieces(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, float]] | None:
    special, total = _counted_apart(entries)
    pieces = [{"value": value, "copies": n} for value, n in special.items() if n]
    if beyond := int(total / _unit(_BEYOND_BITS)) if abs(total) >= _unit(_BEYOND_BITS) else 0:
        pieces.append({"value": 2.0**_BEYOND_BITS, "copies": beyond})
        total -= beyond * _unit(_BEYOND_BITS)
    while total:
        piece = total / _unit(0)  # The nearest double.
        pieces.append({"value": piece, "copies": 1})
        total -= _multiple(piece)
    return pieces or None


def _counted_apart(entries: Sequence[Mapping[str, Any]]) -> tuple[dict[float, int], int]:
    """The copies of NaN and both infinities, and the sum of the others in units of the least."""
    special = {nan: 0, inf: 0, -inf: 0}
    total = 0
    for entry in entries:
        value, copies = entry["value"], entry["copies"]
        if isfinite(value):
            total += copies * _multiple(value)
        else:
            special[nan if isnan(value) else value] += copies
    return special, total


def _multiple(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator * (_unit(0) // denominator)


def _unit(bits: int) -> int:
    """2**bits in units of the least double."""
    return 1 << (_LEAST_BITS + bits)


def _with_apart(parts: Sequence[pl.Series], *, is_mean: bool) -> pl.Series:
    """The results of sums without what is apart, the first of *parts*, with it."""
    found, highs, lows, lists, counts = parts
    if lists.null_count() == len(lists):
        return found
    places = lists.is_not_null().arg_true()
    rows = zip(*(one.gather(places).to_list() for one in (highs, lows, lists, counts)), strict=True)
    results = [
        _result(int(high), int(low), entries, count if is_mean else 1) if count > 0 else None
        for high, low, entries, count in rows
    ]
    return found.scatter(places, pl.Series(results, dtype=pl.Float64))


def _result(high: int, low: int, entries: Sequence[Mapping[str, Any]], parts: int) -> float:
    special, total = _counted_apart(entries)
    if special[nan] or (special[inf] and special[-inf]):
        return nan
    if special[inf] or special[-inf]:
        return inf if special[inf] else -inf
    total += high * _unit(-_HIGH_BITS) + low * _unit(-_HIGH_BITS - _LOW_BITS)
    try:
        return total / (_unit(0) * parts)
    except OverflowError:
        return inf if total > 0 else -inf


def extreme(argument: Argument, *, smallest: bool) -> Kernel:
    name, dtype = argument.name, argument.dtype
    state, before = pl.col(name), pl.col(BEFORE + name)
    # Not min_horizontal, which ignores NaN.
    wins = state < before if smallest else state > before
    function = "MIN" if smallest else "MAX"
    return Kernel(
        name=name,
        label=argument.label,
        states={name: dtype},
        result_type=dtype,
        partial=(_edge(argument.value, dtype, smallest=smallest).alias(name),),
        combine=(_edge(state, dtype, smallest=smallest),),
        merge=(pl.when(wins).then(state).otherwise(pl.coalesce(before, state)).alias(name),),
        final=state,
        sql={name: f"{function}({argument.sql_value}){argument.sql_where}"},
        reads=argument.reads,
    )


def outermost(argument: Argument, by: str, by_type: pl.DataType, *, first: bool) -> Kernel:
    """The kernel of ``first`` or ``last``; a row with a null value or null *by* does not count."""
    name, moment = argument.name, f"_by_{argument.name}"
    value, instant = pl.col(name), pl.col(moment)
    value_before, instant_before = pl.col(BEFORE + name), pl.col(BEFORE + moment)
    row_by = pl.when(argument.value.is_not_null()).then(pl.col(by))
    row_value = pl.when(row_by.is_not_null()).then(argument.value)

    def fold(value: pl.Expr, instant: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
        ordered = value.sort_by(instant, value, nulls_last=first)
        outer = ordered.first() if first else ordered.last()
        return outer.alias(name), _edge(instant, by_type, smallest=first).alias(moment)

    if first:
        is_beyond, wins_tie = instant < instant_before, value < value_before
    else:
        is_beyond, wins_tie = instant > instant_before, value > value_before
    wins = instant_before.is_null() | is_beyond | ((instant == instant_before) & wins_tie)
    return Kernel(
        name=name,
        label=argument.label,
        states={name: argument.dtype, moment: by_type},
        result_type=argument.dtype,
        partial=fold(row_value, row_by),
        combine=fold(value, instant),
        merge=(
            pl.when(wins).then(value).otherwise(value_before).alias(name),
            pl.when(wins).then(instant).otherwise(instant_before).alias(moment),
        ),
        final=value,
        sql=_outermost_sql(argument, by, first=first),
        reads=tuple(dict.fromkeys((*argument.reads, by))),
    )


def distinct_list(argument: Argument) -> Kernel:
    """``count_distinct`` of a window, whose state is short-lived: values are kept as a list."""
    name = argument.name
    state, before = pl.col(name), pl.col(BEFORE + name)
    return Kernel(
        name=name,
        label=argument.label,
        states={name: pl.List(argument.dtype)},
        result_type=pl.Int64(),
        partial=(argument.value.drop_nulls().unique().sort().alias(name),),
        combine=(state.explode().drop_nulls().unique().sort(),),
        # Polars has no union of lists of booleans.
        merge=(_together(before, state).list.unique().list.sort().alias(name),),
        final=state.list.len().fill_null(0).cast(pl.Int64),
        sql=None,
        reads=argument.reads,
    )


def distinct_count(argument: Argument) -> Kernel:
    """``count_distinct`` whose values are in a table, which yields the number of new ones."""
    return replace(counted(argument, is_changelog=False), partial=(), combine=(), sql=None)


def collected(argument: Argument, reading: Reading) -> Kernel:
    """An aggregate of a window, whose state is short-lived: values are kept as a sorted list."""
    name = argument.name
    state, before = pl.col(name), pl.col(BEFORE + name)
    return Kernel(
        name=name,
        label=argument.label,
        states={name: pl.List(argument.dtype)},
        result_type=reading.result_type,
        partial=(argument.value.drop_nulls().sort().alias(name),),
        combine=(state.explode().drop_nulls().sort(),),
        merge=(_together(before, state).list.sort().alias(name),),
        final=reading.of(state.fill_null([])),
        sql=None,
        reads=argument.reads,
    )


def kept_values(
    argument: Argument,
    states: Mapping[str, pl.DataType],
    result: pl.DataType,
    also_reads: Iterable[str] = (),
) -> Kernel:
    """An aggregate whose values are in a table, from which its state is computed.

    The table reads the argument, and the columns *also_reads*.
    """
    return Kernel(
        name=argument.name,
        label=argument.label,
        states=states,
        result_type=result,
        partial=(),
        combine=(),
        merge=tuple(pl.col(name) for name in states),
        final=pl.col(argument.name),
        sql=None,
        reads=tuple(dict.fromkeys((*argument.reads, *also_reads))),
    )


def moments(argument: Argument, *, is_root: bool) -> Kernel:
    """The variance of a sample, or its root, the standard deviation; null of fewer than two values.

    It is computed of count, mean and the sum of squared distances from the mean (Welford), and two
    groups are combined by Chan's formula, so that large values that differ little keep their
    precision.
    """
    names = [f"_{part}_{argument.name}" for part in ("count", "mean", "squares")]
    states = dict(zip(names, (pl.Int64(), pl.Float64(), pl.Float64()), strict=True))
    value = argument.value.cast(pl.Float64)
    count, mean, squares = map(pl.col, names)
    counts, means, all_squares = (
        (pl.col(name), pl.col(BEFORE + name).fill_null(0)) for name in names
    )

    number = count.sum()
    middle = _or_zero(number, (mean * count).sum() / number)
    distance = mean - middle
    both = counts[0] + counts[1]
    apart = means[0] - means[1]
    shifted = means[1] + _or_zero(both, apart * counts[0] / both)
    between = _or_zero(both, apart * apart * counts[0] * counts[1] / both)

    variance = squares / (count - 1)
    return Kernel(
        name=argument.name,
        label=argument.label,
        states=states,
        result_type=pl.Float64(),
        partial=_named(
            names,
            value.count().cast(pl.Int64),
            value.mean().fill_null(0.0),
            (value.var(ddof=0) * value.count()).fill_null(0.0),
        ),
        combine=_named(names, number, middle, squares.sum() + (count * distance * distance).sum()),
        merge=_named(names, both, shifted, all_squares[0] + all_squares[1] + between),
        final=pl.when(count > 1).then(variance.sqrt() if is_root else variance),
        sql=None,
        reads=argument.reads,
        is_order_sensitive=True,
    )


def _narrow(
    argument: Argument,
    state: str,
    *,
    partial: tuple[pl.Expr, ...],
    combine: tuple[pl.Expr, ...],
) -> Narrow | None:
    if argument.column is None or not argument.dtype.is_integer():
        return None
    return Narrow(
        reads=argument.column,
        state=state,
        rows_are=_are_small,
        groups_are=_are_small,
        partial=partial,
        combine=combine,
    )


def _are_small(values: pl.Series) -> bool:
    """Whether no sum of these values can overflow an Int64."""
    ends = [end for end in (values.min(), values.max()) if isinstance(end, int | Decimal)]
    return all(abs(int(end)) * len(values) < _INT64_VALUES for end in ends)


def _sum_or_null(column: pl.Expr) -> pl.Expr:
    return pl.when(column.count() > 0).then(column.sum())  # Polars' sum of nulls is zero.


def _added(name: str) -> pl.Expr:
    return (pl.col(name) + pl.col(BEFORE + name).fill_null(0)).alias(name)


def _int64(count: pl.Expr, name: str) -> pl.Expr:
    return count.cast(pl.Int64).alias(name)


def _edge(column: pl.Expr, dtype: pl.DataType, *, smallest: bool) -> pl.Expr:
    if smallest:
        return column.min()  # Polars ignores NaN, unless all values are NaN.
    return column.nan_max() if dtype.is_float() else column.max()


def _together(before: pl.Expr, state: pl.Expr) -> pl.Expr:
    return pl.concat_list(before.fill_null([]), state)


def _or_zero(number: pl.Expr, value: pl.Expr) -> pl.Expr:
    return pl.when(number > 0).then(value).otherwise(0.0)


def _named(names: list[str], *expressions: pl.Expr) -> tuple[pl.Expr, ...]:
    return tuple(e.alias(name) for name, e in zip(names, expressions, strict=True))


def _count_sql(argument: Argument) -> str:
    return f"COUNT({argument.sql_value}){argument.sql_where}"


def _sum_sql(argument: Argument, total: pl.DataType) -> str | None:
    """The sum in Spark SQL; None where it might overflow, as Spark's error names no column."""
    dtype = argument.dtype
    if isinstance(dtype, pl.Decimal) and dtype.precision > _SUMMED_BY_SPARK:
        return None
    if dtype.is_integer():
        value = f"CAST({argument.sql_value} AS BIGINT)"
        low, high = f"{value} & {2**32 - 1}", f"SHIFTRIGHT({value}, 32)"
        # Two sums of BIGINTs, neither of which can overflow, are far cheaper than one of decimals.
        low, high = (f"SUM({half}){argument.sql_where}" for half in (low, high))
        added = f"CAST({high} AS DECIMAL(38, 0)) * {2**32} + CAST({low} AS DECIMAL(38, 0))"
    else:
        added = f"SUM(CAST({argument.sql_value} AS {_sql_type(total)})){argument.sql_where}"
    # Spark widens the sum of a decimal again.
    return f"CAST({added} AS {_sql_type(total)})"


def _outermost_sql(argument: Argument, by: str, *, first: bool) -> dict[str, str]:
    function = "MIN" if first else "MAX"
    pair = f"NAMED_STRUCT('by', {_quoted(by)}, 'value', {argument.sql_value})"
    counts = f"{argument.sql_value} IS NOT NULL AND {_quoted(by)} IS NOT NULL"
    where = f"{argument.sql_passes} AND {counts}" if argument.has_where else counts
    outer = f"({function}({pair}) FILTER (WHERE {where}))"
    return {argument.name: f"{outer}.value", f"_by_{argument.name}": f"{outer}.by"}


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _sql_zero(dtype: pl.DataType) -> str:
    return f"CAST(0 AS {_sql_type(dtype)})"


def _sql_type(dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.Decimal):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    if dtype.is_float():
        return "FLOAT" if dtype == pl.Float32() else "DOUBLE"
    return "BIGINT"


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of an aggregate that keeps its values: ``of`` takes a column of sorted lists.

    A list has no nulls; it is empty where no value counts.
    """

    of: Callable[[pl.Expr], pl.Expr]
    result_type: pl.DataType


def reading_of(aggregate: Aggregate, dtype: pl.DataType) -> Reading:
    """The reading of an aggregate that keeps values of *dtype*."""
    match aggregate.kind:
        case AggregateKind.COLLECT:
            return Reading(lambda values: values, pl.List(dtype))
        case AggregateKind.STRING_AGG:
            separator = aggregate.separator
            assert separator is not None, "string_agg() always has one"
            return Reading(lambda values: _or_null(values, values.list.join(separator)), dtype)
        case AggregateKind.PERCENTILE:
            fraction = aggregate.fraction
            assert fraction is not None, "percentile() always has one"
            return Reading(lambda values: _percentile(values, fraction), pl.Float64())
        case AggregateKind.VARIANCE:
            return Reading(lambda values: _numbers(values).list.var(), pl.Float64())
        case AggregateKind.STDDEV:
            return Reading(lambda values: _numbers(values).list.std(), pl.Float64())
        case kind:
            raise AssertionError(f"{kind.value} keeps no values")


def _percentile(values: pl.Expr, fraction: float) -> pl.Expr:
    """The percentile, interpolated between the two nearest values (SQL's PERCENTILE_CONT)."""
    numbers = _numbers(values)
    place = (numbers.list.len().cast(pl.Int64) - 1) * fraction
    below = place.floor().cast(pl.Int64)
    low = numbers.list.get(below, null_on_oob=True)
    high = numbers.list.get(place.ceil().cast(pl.Int64), null_on_oob=True)
    share = place - below
    # Not low + share * (high - low), which makes NaN of two infinities.
    between = low * (1 - share) + high * share
    # Of equal values the sum may differ from them in its last bit.
    return _or_null(values, pl.when((share == 0) | (low == high)).then(low).otherwise(between))


def _numbers(values: pl.Expr) -> pl.Expr:
    return values.list.eval(pl.element().cast(pl.Float64))


def _or_null(values: pl.Expr, result: pl.Expr) -> pl.Expr:
    return pl.when(values.list.len() > 0).then(result)


def grouped(
    rows: pl.DataFrame,
    by: Sequence[str],
    expressions: Sequence[pl.Expr],
    *,
    in_order: bool = False,
) -> pl.DataFrame:
    """*expressions* of each group of *rows* with the same *by*, which come first.

    With *in_order* they see a group's rows in their order: sums of floats depend on it.
    """
    uuids = packed_uuids(rows[by[0]]) if len(by) == 1 else None
    if uuids is None:
        return _collected(rows, by, expressions, in_order=in_order)
    numbered = rows.with_columns(uuids.alias(_UUID)).with_row_index(_PLACE)
    place = pl.col(_PLACE).min()
    found = _collected(numbered, [_UUID], [place, *expressions], in_order=in_order)
    return rows.select(by)[found[_PLACE]].hstack(found.drop(_UUID, _PLACE))


def _collected(
    rows: pl.DataFrame, by: Sequence[str], expressions: Sequence[pl.Expr], *, in_order: bool
) -> pl.DataFrame:
    # The streaming engine adds in the order in which its threads finish.
    is_streamed = rows.height >= _STREAMED_ROWS and not in_order
    groups = rows.lazy().group_by(by).agg(*expressions)
    return groups.collect(engine="streaming" if is_streamed else "in-memory")


def packed_uuids(texts: pl.Series) -> pl.Series | None:
    """The UUIDs *texts* as a number of 128 bits each, equal where the texts are.

    None if there are few, or if one is no UUID in lower case as RFC 9562, section 4, writes it:
    other texts for the same number are other keys.

    Rows of many UUIDs are grouped by these numbers: 2.5 million rows of 900,000 UUIDs take 0.33
    CPU s instead of 0.47.  The bytes of texts lie all over the memory, numbers do not; where the
    processor's caches hold the texts, packing takes longer.
    """
    if texts.dtype != pl.String or len(texts) < _MANY_ROWS or texts.null_count():
        return None
    sample = texts.gather_every(max(1, len(texts) // _SAMPLE))
    if sample.n_unique() < _DISTINCT * len(sample):
        return None
    packed = np.empty((len(texts), len(_FOURS)), np.uint16)
    room = np.empty((3, len(_FOURS), _BLOCK), np.uint32)
    for start in range(0, len(texts), _BLOCK):
        block = packed[start : start + _BLOCK]
        if not _pack(texts[start : start + _BLOCK], block, room[:, :, : len(block)]):
            return None
    # The type by which Arrow hands over 128 bits.
    numbers = pa.Array.from_buffers(pa.decimal128(38), len(texts), [None, pa.py_buffer(packed)])
    found = pl.from_arrow(numbers)
    assert isinstance(found, pl.Series)
    return found.to_physical()


def _pack(texts: pl.Series, packed: npt.NDArray[np.uint16], room: npt.NDArray[np.uint32]) -> bool:
    """Fill the rows *packed* with the numbers of *texts*; False if one is no UUID.

    *room* is for three intermediate arrays, each with four letters or digits of a text in 32 bits.
    """
    array = texts.to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, letters = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    if (np.diff(ends) != _LENGTH).any():
        return False
    first, shape, strides = int(ends[0]), (len(texts),), (_LENGTH,)
    for at in _HYPHENS:  # Eight letters hold two hyphens.
        both = np.ndarray(shape, "<u8", letters, first + at, strides) & 0x0000FF00000000FF
        if (both != 0x00002D000000002D).any():
            return False
    fours, digits, written = room
    for place, at in enumerate(_FOURS):
        fours[place] = np.ndarray(shape, "<u4", letters, first + at, strides)
    np.right_shift(fours, 6, out=digits)  # No byte carries, here and below.
    digits &= 0x01010101  # 1 for a letter from a on.
    digits *= 9
    digits += np.bitwise_and(fours, 0x0F0F0F0F, out=written)
    digits &= 0x0F0F0F0F
    np.add(digits, 0x06060606, out=written)
    written >>= 4
    written &= 0x01010101  # 1 for a digit above nine.
    written *= ord("a") - ord("9") - 1
    written += digits
    written += 0x30303030
    if (written != fours).any():
        return False
    np.left_shift(digits, 4, out=written)
    digits >>= 8
    digits |= written
    digits &= 0x00FF00FF  # Two bytes of two digits each.
    np.right_shift(digits, 8, out=written)
    np.bitwise_or(digits, written, out=packed.T, casting="unsafe")  # The upper half goes.
    return True
