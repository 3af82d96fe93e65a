"""The kernels that keep values: minimum, maximum, first, last, distinct and collected values.

``min`` and ``max`` have the column's own type, ``collect`` a sorted list; ``first`` and ``last``
keep the value and the instant that it was ordered by.  NaN is larger than any number, as in Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from sluice.subtask.operators.argument import Argument, quoted
from sluice.subtask.operators.kernels import BEFORE, Kernel, counted
from sluice.subtask.operators.readings import Reading


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
        final=state.list.len().cast(pl.Int64),
        sql=None,
        reads=argument.reads,
    )


def distinct_count(argument: Argument) -> Kernel:
    """``count_distinct`` whose values are in a table, which yields the number of new ones."""
    kernel = counted(argument, is_changelog=False)
    return Kernel(
        name=kernel.name,
        label=argument.label,
        states=kernel.states,
        result_type=kernel.result_type,
        partial=(),
        combine=(),
        merge=kernel.merge,
        final=kernel.final,
        sql=None,
        reads=kernel.reads,
    )


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
        final=reading.of(state),
        sql=None,
        reads=argument.reads,
    )


def kept(
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


def is_ordered(dtype: pl.DataType) -> bool:
    """Whether values can be compared by Polars and by Spark alike."""
    return dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.String(), pl.Boolean())


def _together(before: pl.Expr, state: pl.Expr) -> pl.Expr:
    return pl.concat_list(before.fill_null([]), state)


def _edge(column: pl.Expr, dtype: pl.DataType, *, smallest: bool) -> pl.Expr:
    if smallest:
        return column.min()  # Polars ignores NaN, unless all values are NaN.
    return column.nan_max() if dtype.is_float() else column.max()


def _outermost_sql(argument: Argument, by: str, *, first: bool) -> dict[str, str]:
    function = "MIN" if first else "MAX"
    pair = f"NAMED_STRUCT('by', {quoted(by)}, 'value', {argument.sql_value})"
    counts = f"{argument.sql_value} IS NOT NULL AND {quoted(by)} IS NOT NULL"
    where = f"{argument.sql_passes} AND {counts}" if argument.has_where else counts
    outer = f"({function}({pair}) FILTER (WHERE {where}))"
    return {argument.name: f"{outer}.value", f"_by_{argument.name}": f"{outer}.by"}
