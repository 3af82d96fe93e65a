"""``Reading``: the result of an aggregate, computed from the sorted list of its values.

A list has no nulls; it is empty where no value counts, and then the result is null, or for
``collect`` the empty list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from sluice.declaration.aggregates import Aggregate, AggregateKind


@dataclass(frozen=True, slots=True)
class Reading:
    """A result to compute: ``of`` takes a column of sorted lists."""

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
    return _or_null(values, pl.when(share == 0).then(low).otherwise(between))


def _numbers(values: pl.Expr) -> pl.Expr:
    return values.list.eval(pl.element().cast(pl.Float64))


def _or_null(values: pl.Expr, result: pl.Expr) -> pl.Expr:
    return pl.when(values.list.len() > 0).then(result)
