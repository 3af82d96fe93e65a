"""Keying: rows are hashed, pre-aggregated where keys repeat, and sent to their subtasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import polars as pl

from sluice.connectors.contracts.source import MALFORMED_COLUMN, RAW
from sluice.core.plan import TaskPlan
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import WindowTopN
from sluice.declaration.windows import Attached, Tumbling
from sluice.errors import ConfigurationError
from sluice.spark.names import columns_named, quoted
from sluice.spark.partitions import Frame, Partitions
from sluice.subtask.operators.build import build_operator
from sluice.subtask.operators.computed import to_compute, wanted
from sluice.subtask.operators.operator import COMPUTED, ROW_COUNT, WEIGHT, Operator, SparkPartial
from sluice.subtask.side_rows import SOURCE
from sluice.subtask.snapshot import SIDE, column_of
from sluice.subtask.state.schema import StateSchema
from sluice.subtask.state.segments import HASH

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SUBTASK = "_subtask"  # The subtask of a row; Spark's partitioner reads it.

# From this many rows per key, grouping in the JVM before the shuffle is faster than without.
# Measured with 5 million rows on two cores: 2.9 s instead of 5.5 s at 50 rows per key, 7.3 s
# instead of 5.5 s at 5 rows per key.
PRE_AGGREGATED_ROWS_PER_GROUP = 10.0

# The same for Python, where it hashes the groups alone.  Measured with 5 rows per key: 1.8 CPU s
# in Python instead of 2.2.
GROUPED_ROWS_PER_GROUP = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRows:
    """Rows, placed on the subtasks that own their keys.

    ``schemas`` are the serialized Arrow schemas of each input's rows, as a subtask gets them;
    ``tables`` the operator's keyed state, and ``result`` the columns that it yields.  With
    ``is_exchanged`` the rows are blocks of rows.
    """

    rows: Partitions
    schemas: tuple[bytes, ...]
    result: pl.Schema
    is_pre_aggregated: bool = False
    is_exchanged: bool = False
    tables: Mapping[str, StateSchema] = field(default_factory=dict[str, StateSchema])


def keyed_rows(
    inputs: Sequence[DataFrame], node: StageNode, task: TaskPlan, rows_per_group: float | None
) -> KeyedRows:
    """The rows of *inputs*, each placed on the subtask that owns its key group.

    *rows_per_group* is the mean number of rows of a key in the epoch before; None without one.

    Raises:
        ConfigurationError: the stage cannot compute what it declares of these columns.
    """
    sides = [prepared(rows, node, given) for rows, given in zip(inputs, node.shuffled, strict=True)]
    operator = build_operator(node, [polars_schema(side) for side in sides])
    sides = [
        side.select(*columns_named(needed_columns(side.columns, given, operator)))
        for side, given in zip(sides, node.shuffled, strict=True)
    ]
    schemas = tuple(_arrow_schema(side) for side in sides)
    partial = _partial_for(operator, sides, rows_per_group)
    if partial is not None:
        hashed = _hashed(_pre_aggregated(sides[0], partial), node, node.inputs[0])
        return KeyedRows(
            rows=Frame(_placed(hashed, task)),
            schemas=schemas,
            result=operator.output_schema,
            is_pre_aggregated=True,
            tables=operator.tables,
        )
    rows = sides[0] if len(sides) == 1 else _both(sides)
    placed = _placed(rows, task)
    if operator.is_order_sensitive:
        # Sums of floats depend on the order of their terms, and a shuffle does not keep it.
        placed = placed.sortWithinPartitions(*columns_named(placed.columns))
    return KeyedRows(
        rows=Frame(placed), schemas=schemas, result=operator.output_schema, tables=operator.tables
    )


def hash_of_keys(node: StageNode, given: Input) -> Column:
    """The hash that decides a row's key group: Spark's xxhash64 of its key, or of its window."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    if given.keys:
        return F.xxhash64(*columns_named(given.keys))
    assert isinstance(node.operation, WindowTopN), "only windows may go without a key"
    match node.operation.window:
        case Attached():
            return F.xxhash64("window_start")
        case Tumbling(size=size):
            micros = F.unix_micros(*columns_named([given.event_time or ""]))
            width = F.lit(size // timedelta(microseconds=1))
            return F.xxhash64(micros - F.pmod(micros, width))
        case _:
            return F.lit(0).cast("bigint")  # A row is in several windows: all go to one subtask.


def prepared(rows: DataFrame, node: StageNode, given: Input) -> DataFrame:
    """*rows* with the columns that the declaration computes."""
    from pyspark.sql.functions import expr

    for name, expression in given.key_expressions.items():
        rows = rows.withColumn(name, expr(expression))
    for one in to_compute(wanted(node.operation), rows.columns):
        rows = rows.withColumn(one.column, expr(one.sql))
    return _hashed(rows, node, given)


def _hashed(rows: DataFrame, node: StageNode, given: Input) -> DataFrame:
    if HASH in (name.lower() for name in rows.columns):
        raise ConfigurationError(
            f"stage {node.uid!r} reads a column {HASH!r} of {given.producer!r}, a name that sluice "
            f"gives to a column of its own; rename it before: select('{HASH} AS ...')"
        )
    return rows.withColumn(HASH, hash_of_keys(node, given))


def needed_columns(columns: Sequence[str], given: Input, operator: Operator) -> list[str]:
    """Those of *columns* that the stage uses; a shuffle would move the others for nothing."""
    needed = operator.needed_columns()
    mine = [HASH, WEIGHT, *(name for name in columns if name.startswith(COMPUTED))]
    if MALFORMED_COLUMN in columns:
        mine += [MALFORMED_COLUMN, RAW, SOURCE]
    if needed is None:
        return [name for name in columns if name != SOURCE or name in mine]
    wanted = dict.fromkeys((*given.keys, *needed, *mine))
    return [name for name in wanted if name in columns]


def is_pre_aggregated(rows_per_group: float | None, *, hashes_groups: bool = False) -> bool:
    """Whether an epoch with so many rows per key is grouped before the shuffle.

    With *hashes_groups* by Python, which then need not hash each row.
    """
    least = GROUPED_ROWS_PER_GROUP if hashes_groups else PRE_AGGREGATED_ROWS_PER_GROUP
    return rows_per_group is not None and rows_per_group >= least


def _partial_for(
    operator: Operator, sides: Sequence[DataFrame], rows_per_group: float | None
) -> SparkPartial | None:
    is_worth_it = is_pre_aggregated(rows_per_group)
    may_be_malformed = MALFORMED_COLUMN in sides[0].columns
    if not is_worth_it or may_be_malformed or len(sides) > 1 or operator.is_order_sensitive:
        return None
    return operator.spark_partial()


def _pre_aggregated(rows: DataFrame, partial: SparkPartial) -> DataFrame:
    from pyspark.sql.functions import expr

    for name, expression in partial.expressions.items():
        rows = rows.withColumn(name, expr(expression))
    folded = [expr(expression).alias(name) for name, expression in partial.columns.items()]
    return rows.groupBy(*columns_named(partial.by)).agg(*folded, expr("count(*)").alias(ROW_COUNT))


def _both(sides: Sequence[DataFrame]) -> DataFrame:
    """Both inputs of a join as one DataFrame: a row has nulls in the columns of the other input."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    tagged = [
        rows.select(
            F.lit(side).cast("tinyint").alias(SIDE),
            HASH,
            *(
                (
                    F.col(quoted(field.name)) if other == side else F.lit(None).cast(field.dataType)
                ).alias(column_of(other, field.name))
                for other, frame in enumerate(sides)
                for field in frame.schema.fields
                if field.name != HASH
            ),
        )
        for side, rows in enumerate(sides)
    ]
    return tagged[0].union(tagged[1])


def _placed(hashed: DataFrame, task: TaskPlan) -> DataFrame:
    """*hashed* rows on the subtasks of their key groups: ``core.key_groups``, in SQL."""
    from pyspark.sql.functions import expr

    maximum, parallelism = task.max_parallelism, task.parallelism
    group = f"shiftright((shiftrightunsigned({HASH}, 32) ^ 2147483648L) * {maximum}L, 32)"
    owner = f"CAST({group} * {parallelism}L DIV {maximum}L AS INT)"
    placed = hashed.withColumn(SUBTASK, expr(owner))
    return placed.repartitionById(parallelism, SUBTASK).drop(SUBTASK)


def _arrow_schema(rows: DataFrame) -> bytes:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(rows.schema, timezone="UTC")
    body: bytes = schema.serialize().to_pybytes()
    return body


def polars_schema(rows: DataFrame) -> pl.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    frame = pl.from_arrow(to_arrow_schema(rows.schema, timezone="UTC").empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.drop(SOURCE, MALFORMED_COLUMN, RAW, strict=False).schema
