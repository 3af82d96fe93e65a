"""Arguments of aggregates, looked up among the columns of the rows, or refused by name."""

from __future__ import annotations

import polars as pl

from sluice.declaration.aggregates import Aggregate, AggregateKind
from sluice.declaration.nodes import StageNode
from sluice.errors import ConfigurationError
from sluice.subtask.operators.argument import Argument
from sluice.subtask.operators.kernels import total_type
from sluice.subtask.operators.operator import (
    ARGUMENT,
    ORDER,
    column_type,
    input_schema,
    wrong_type,
)
from sluice.subtask.operators.value_kernels import is_ordered


def argument_of(uid: str, name: str, aggregate: Aggregate, schema: pl.Schema) -> Argument:
    """The argument of the aggregate called *name*: a column, or the result of its SQL.

    Raises:
        ConfigurationError: there is no such column, or its type cannot be aggregated so.
    """
    column, label = aggregate.column, str(aggregate)
    dtype: pl.DataType = pl.Null()
    if column is not None:
        column = _found(column, ARGUMENT + name, schema)
        purpose = f"for {aggregate.kind.value}() as {name!r}"
        if column not in schema:
            column_type(uid, input_schema(schema), column, purpose)  # Refuses it.
        dtype = schema[column]
        if not _can_take(aggregate.kind, dtype):
            raise wrong_type(uid, schema, column, purpose, called=aggregate.column)
    return Argument(
        name=name,
        label=label,
        column=column,
        dtype=dtype,
        has_where=aggregate.where is not None,
    )


def ordering_of(
    stage: StageNode, name: str, aggregate: Aggregate, schema: pl.Schema
) -> tuple[str, pl.DataType]:
    """The column that ``first`` or ``last`` is ordered by, and its type.

    Raises:
        ConfigurationError: there is none, or its values have no order.
    """
    by = aggregate.by or stage.inputs[0].event_time
    what = f"{aggregate.kind.value}() as {name!r}"
    if by is None:
        raise ConfigurationError(
            f"stage {stage.uid!r} reads a stream without event time, by which {what} could be "
            f"ordered; name a column: {aggregate.kind.value}({aggregate.column!r}, by=...)"
        )
    column = _found(by, ORDER + name, schema)
    if column not in schema:
        column_type(stage.uid, input_schema(schema), column, f"to order {what} by")  # Refuses it.
    if not is_ordered(schema[column]):
        raise wrong_type(stage.uid, schema, column, f"to order {what} by", called=by)
    return column, schema[column]


def _found(declared: str, computed: str, schema: pl.Schema) -> str:
    return computed if computed in schema and declared not in input_schema(schema) else declared


def _can_take(kind: AggregateKind, dtype: pl.DataType) -> bool:
    match kind:
        case AggregateKind.COUNT:
            return True
        case (
            AggregateKind.SUM
            | AggregateKind.AVG
            | AggregateKind.VARIANCE
            | AggregateKind.STDDEV
            | AggregateKind.PERCENTILE
        ):
            return total_type(dtype) is not None
        case AggregateKind.STRING_AGG:
            return dtype == pl.String()
        case _:
            return is_ordered(dtype)
