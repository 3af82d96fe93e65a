"""``Kernel``: one aggregate as a fold of rows, groups and state; here, counts, sums and means.

Counts are int64.  Sums are computed in a wider type than the result: integers as decimals of 38
digits, which no number of rows can overflow, and only the result has to be a BIGINT; decimals as
the widest decimal, floats as float64.  Only the last bits of a sum of floats depend on the order of
rows.  Null values do not count; the sum of nulls alone is null, as in SQL.

In a changelog every row has a weight, 1 or -1, which is summed instead of the row being counted;
then a sum keeps its number of values, to know when none is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import polars as pl

from sluice.subtask.operators.argument import Argument, sql_type, sql_zero

BEFORE = "before this epoch: "  # The suffix of a second state column of one aggregate.

_WIDEST_DECIMAL = 38
# The sum of 10^10 decimals of this many digits has 38, the most that a decimal can have.
_SUMMED_BY_SPARK = 28


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Narrow:
    """A kernel's ``partial`` and ``combine`` for numbers so small that their sum is an Int64.

    Nearly all numbers are, and adding them takes a fifth less time.  The values of the column
    ``reads`` in rows, and ``state`` in groups, decide whether it can be used.
    """

    reads: str
    state: str
    partial: tuple[pl.Expr, ...]
    combine: tuple[pl.Expr, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kernel:
    """One aggregate of one stage.

    ``partial`` folds rows and ``combine`` groups, both within a ``group_by`` and to the columns
    ``states``; ``merge`` adds a group's state to that of before the epoch, which is null for a new
    group; ``final`` reads the result.  ``sql`` is ``partial`` for Spark, if Spark can compute it.
    ``label`` is the aggregate as it was declared, for messages.  ``kept`` are the columns that a
    running aggregate keeps in a narrower type than its groups have: its result is read at every
    barrier, so they fit it.
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


def total_type(dtype: pl.DataType) -> pl.DataType | None:
    """The type in which values of *dtype* are added up; None if they cannot be added."""
    if dtype.is_integer():
        return pl.Decimal(_WIDEST_DECIMAL, 0)
    if dtype.is_float():
        return pl.Float64()
    if isinstance(dtype, pl.Decimal):
        return pl.Decimal(_WIDEST_DECIMAL, dtype.scale)
    return None


def sum_type(dtype: pl.DataType) -> pl.DataType | None:
    """The type of a sum of values of *dtype*."""
    return pl.Int64() if dtype.is_integer() else total_type(dtype)


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
        final=pl.col(name),
        sql=None if is_changelog else {name: _count_sql(argument)},
        reads=argument.reads,
    )


def summed(argument: Argument, total: pl.DataType) -> Kernel:
    name = argument.name
    state, before = pl.col(name), pl.col(BEFORE + name)
    result = sum_type(argument.dtype)
    assert result is not None, "there is a type to add up in"
    return Kernel(
        name=name,
        label=argument.label,
        states={name: total},
        result_type=result,
        partial=(_sum_or_null(argument.addend(total)).cast(total).alias(name),),
        combine=(_sum_or_null(state).cast(total).alias(name),),
        merge=(pl.coalesce(state + before, state, before).cast(total).alias(name),),
        final=state.cast(result),  # A strict cast: a sum that does not fit is an error.
        sql=_with_sum_sql(argument, total, lambda added: {name: added}),
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
        with_sql=True,
    )


def weighed(argument: Argument, total: pl.DataType, *, is_mean: bool) -> Kernel:
    """The sum, or the mean, of a changelog."""
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
        with_sql=False,
    )


def _sum_and_count(
    argument: Argument,
    total: pl.DataType,
    *,
    partial: tuple[pl.Expr, pl.Expr],
    narrow: pl.Expr,
    is_mean: bool,
    with_sql: bool,
) -> Kernel:
    """A sum, and the number of its values: null values alone sum to zero, and count as none."""
    name = argument.name
    added, count = f"_sum_{name}", f"_count_{name}"
    result = pl.Float64() if is_mean else sum_type(argument.dtype)
    assert result is not None, "there is a type to add up in"
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
        sql=_with_sum_sql(
            argument,
            total,
            lambda sql: {
                added: f"COALESCE({sql}, {sql_zero(total)})",
                count: _count_sql(argument),
            },
        )
        if with_sql
        else None,
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


def _narrow(
    argument: Argument,
    state: str,
    *,
    partial: tuple[pl.Expr, ...],
    combine: tuple[pl.Expr, ...],
) -> Narrow | None:
    if argument.column is None or not argument.dtype.is_integer():
        return None
    return Narrow(reads=argument.column, state=state, partial=partial, combine=combine)


def _sum_or_null(column: pl.Expr) -> pl.Expr:
    return pl.when(column.count() > 0).then(column.sum())  # Polars' sum of nulls is zero.


def _added(name: str) -> pl.Expr:
    return (pl.col(name) + pl.col(BEFORE + name).fill_null(0)).alias(name)


def _int64(count: pl.Expr, name: str) -> pl.Expr:
    return count.cast(pl.Int64).alias(name)


def _count_sql(argument: Argument) -> str:
    return f"COUNT({argument.sql_value}){argument.sql_where}"


def _with_sum_sql(
    argument: Argument, total: pl.DataType, columns: Callable[[str], Mapping[str, str]]
) -> Mapping[str, str] | None:
    sql = _sum_sql(argument, total)
    return None if sql is None else columns(sql)


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
        added = f"SUM(CAST({argument.sql_value} AS {sql_type(total)})){argument.sql_where}"
    # Spark widens the sum of a decimal again.
    return f"CAST({added} AS {sql_type(total)})"
