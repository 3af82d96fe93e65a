"""The kernels of ``sluice.aggregates``: per kind, how to fold rows, groups and state.

Every kind keeps one state column, named as its result: counts and sums as int64 (sums of floats as
float64, of decimals as the widest decimal), extremes as their own type, distinct values as a sorted
list.  Nothing depends on the order of rows, but the last bits of a sum of floats.  Null values do
not count; a group of nothing but nulls has a null sum and null extremes, as in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import polars as pl

from sluice.aggregates import Aggregate, AggregateKind
from sluice.runtime.operators.operator import column_type, wrong_type
from sluice.runtime.state.keyed import KeyedState, newest_per_identity
from sluice.runtime.state.segments import HASH

_BEFORE = "before this epoch: "  # Marks a state column beside the group's own.
_WIDEST_DECIMAL = 38


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One aggregate of one stage.

    ``partial`` folds rows and ``combine`` groups, both within a group by; ``merge`` adds a group's
    state to that of before the epoch, which is null for a new group; ``final`` reads the result.
    """

    name: str
    state_type: pl.DataType
    result_type: pl.DataType
    partial: pl.Expr
    combine: pl.Expr
    merge: pl.Expr
    final: pl.Expr


def kernels(uid: str, aggregates: Mapping[str, Aggregate], schema: pl.Schema) -> tuple[Kernel, ...]:
    """The kernels of a declaration, in its order.

    Raises:
        ConfigurationError: a column is missing, or is of a type that cannot be aggregated so.
    """
    return tuple(_kernel(uid, name, agg, schema) for name, agg in aggregates.items())


def group_rows(
    rows: pl.DataFrame, by: Sequence[str], expressions: Sequence[pl.Expr]
) -> pl.DataFrame:
    """Fold rows or groups; *by* starts with the key columns, whose function the hash is.

    So the hash need not be part of the group, which is twice as fast for a key of one column.
    """
    groups = rows.group_by(by).agg(pl.col(HASH).first(), *expressions)
    return groups.select(HASH, pl.exclude(HASH))


def changed_groups(
    kernels: Sequence[Kernel], groups: pl.DataFrame, state: KeyedState
) -> pl.DataFrame:
    """The new state rows of those groups that are new or changed, sorted by identity."""
    names = [kernel.name for kernel in kernels]
    groups = newest_per_identity(groups, state.schema.identity)
    before = state.find(groups).select(HASH, *names).select(pl.all().name.prefix(_BEFORE))
    both = pl.concat([groups, before], how="horizontal")
    changed = pl.any_horizontal(
        pl.col(_BEFORE + HASH).is_null(),
        *(pl.col(name).ne_missing(pl.col(_BEFORE + name)) for name in names),
    )
    merged = both.with_columns(kernel.merge.alias(kernel.name) for kernel in kernels)
    return merged.filter(changed).select(state.schema.live.names())


def _kernel(uid: str, name: str, aggregate: Aggregate, schema: pl.Schema) -> Kernel:
    purpose = f"for {aggregate.kind.value}() as {name!r}"
    if aggregate.column is None:
        return _count(name, pl.len())
    dtype = column_type(uid, schema, aggregate.column, purpose)
    column = pl.col(aggregate.column)
    match aggregate.kind:
        case AggregateKind.COUNT:
            return _count(name, column.count())
        case AggregateKind.SUM:
            total = _sum_type(dtype)
            if total is None:
                raise wrong_type(uid, schema, aggregate.column, purpose)
            return _sum(name, column, total)
        case AggregateKind.MIN | AggregateKind.MAX:
            if not _is_ordered(dtype):
                raise wrong_type(uid, schema, aggregate.column, purpose)
            return _extreme(name, column, dtype, smallest=aggregate.kind is AggregateKind.MIN)
        case AggregateKind.COUNT_DISTINCT:
            if not _is_ordered(dtype):
                raise wrong_type(uid, schema, aggregate.column, purpose)
            return _count_distinct(name, column, dtype)
        case _:
            assert_never(aggregate.kind)


def _count(name: str, counted: pl.Expr) -> Kernel:
    state = pl.col(name)
    return Kernel(
        name=name,
        state_type=pl.Int64(),
        result_type=pl.Int64(),
        partial=counted.cast(pl.Int64).alias(name),
        combine=state.sum(),
        merge=state + pl.col(_BEFORE + name).fill_null(0),
        final=state,
    )


def _sum(name: str, column: pl.Expr, total: pl.DataType) -> Kernel:
    state, before = pl.col(name), pl.col(_BEFORE + name)
    return Kernel(
        name=name,
        state_type=total,
        result_type=total,
        partial=_sum_or_null(column.cast(total)).cast(total).alias(name),
        combine=_sum_or_null(state).cast(total).alias(name),
        merge=pl.coalesce(state + before, state, before).cast(total),
        final=state,
    )


def _sum_or_null(column: pl.Expr) -> pl.Expr:
    return pl.when(column.count() > 0).then(column.sum())  # Polars sums nothing to zero.


def _extreme(name: str, column: pl.Expr, dtype: pl.DataType, *, smallest: bool) -> Kernel:
    state = pl.col(name)
    both = (state, pl.col(_BEFORE + name))
    return Kernel(
        name=name,
        state_type=dtype,
        result_type=dtype,
        partial=(column.min() if smallest else column.max()).alias(name),
        combine=state.min() if smallest else state.max(),
        merge=pl.min_horizontal(*both) if smallest else pl.max_horizontal(*both),
        final=state,
    )


def _count_distinct(name: str, column: pl.Expr, dtype: pl.DataType) -> Kernel:
    state = pl.col(name)
    before = pl.col(_BEFORE + name).fill_null([])
    return Kernel(
        name=name,
        state_type=pl.List(dtype),
        result_type=pl.Int64(),
        partial=column.drop_nulls().unique().sort().alias(name),
        combine=state.explode().drop_nulls().unique().sort(),
        merge=before.list.set_union(state).list.sort(),
        final=state.list.len().cast(pl.Int64),
    )


def _sum_type(dtype: pl.DataType) -> pl.DataType | None:
    if dtype.is_integer():
        return pl.Int64()
    if dtype.is_float():
        return pl.Float64()
    if isinstance(dtype, pl.Decimal):
        return pl.Decimal(_WIDEST_DECIMAL, dtype.scale)
    return None


def _is_ordered(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.String(), pl.Boolean())
