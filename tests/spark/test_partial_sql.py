"""``spark_partial``: Spark SQL folds rows to the very groups that ``partial`` does."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import polars as pl

from sluice.declaration import aggregates as agg
from sluice.declaration.operations import KeyedAggregate as Declared
from sluice.operators.aggregate import KeyedAggregateOperator
from sluice.operators.expressions import to_compute, wanted
from sluice.operators.operator import EpochTime, Operator
from sluice.spark.deployment import with_computed_columns
from sluice.state.segments import HASH
from tests.property.subtask.played import a_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "id INT, `odd ``name``` STRING, small SMALLINT, real DOUBLE, f FLOAT, price DECIMAL(10, 2), "
    "at TIMESTAMP, user BIGINT"
)
NAN = float("nan")
LONGEST = 2**63 - 1


def at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


ROWS: list[tuple[Any, ...]] = [
    (1, "a", 1, 1.5, 0.5, Decimal("1.25"), at(3), LONGEST),
    (1, "a", 3, NAN, -0.0, Decimal("-9.99"), at(1), LONGEST),
    (1, "b", 2, -0.0, NAN, None, at(1), -LONGEST - 1),
    (1, "b", None, 0.0, None, None, at(1), None),
    (1, None, 9, None, None, None, None, LONGEST),
    (2, None, None, None, None, None, None, None),
    (None, "c", 5, NAN, NAN, Decimal("0.01"), at(5), -5),
    (None, "c", -5, -1.0, 2.0, Decimal("99999999.99"), at(5), -LONGEST - 1),
]

AGGREGATES = {
    "rows": agg.count(),
    "big_rows": agg.count(where="small > 1"),
    "values": agg.count("real"),
    "total": agg.sum("small"),
    "big_total": agg.sum("small", where="small > 1"),
    "sum of prices": agg.sum("price"),
    "floats": agg.sum("f", where="NOT isnan(f)"),
    "mean": agg.avg("small"),
    "mean_price": agg.avg("price", where="small > 1"),
    "least": agg.min("real"),
    "largest": agg.max("real"),
    "largest_float": agg.max("f"),
    "last_seen": agg.max("at"),
    "opening": agg.first("small"),
    "closing": agg.last("odd `name`"),
    "big_closing": agg.last("real", where="small > 1"),
    "cheapest": agg.first("small", by="price"),
    "long_total": agg.sum("user"),
    "long_mean": agg.avg("user", where="small > 1"),
    "revenue": agg.sum("small * price"),
    "doubled": agg.max("user % 7 * 2", where="user > 0"),
    "dearest": agg.last("upper(`odd ``name```)", by="-price"),
}


def test_spark_folds_rows_to_the_groups_of_partial(spark: SparkSession) -> None:
    from pyspark.sql.functions import expr, lit

    stage = a_stage(Declared(aggregates=AGGREGATES), keys=["id"])
    rows = with_computed_columns(spark.createDataFrame(ROWS, SCHEMA), stage, stage.inputs[0])
    rows = rows.withColumn(HASH, lit(0).cast("bigint"))  # One, for all keys alike.
    frame = pl.from_arrow(rows.toArrow())
    assert isinstance(frame, pl.DataFrame)
    operator: Operator = KeyedAggregateOperator(stage, frame.schema)
    partial = operator.spark_partial()
    assert partial is not None

    columns = [expr(sql).alias(name) for name, sql in partial.columns.items()]
    by_spark = pl.from_arrow(rows.groupBy(*partial.by).agg(*columns).toArrow())

    assert isinstance(by_spark, pl.DataFrame)
    expected = operator.partial(frame, EpochTime()).groups["groups"]
    found = by_spark.with_columns(pl.lit(0, pl.Int64).alias(HASH)).select(expected.columns)
    assert found.schema == expected.schema
    assert repr(found.sort("id").rows()) == repr(expected.sort("id").rows())
    combined = operator.combine({"groups": pl.concat([found, expected])})["groups"]
    assert combined.sort("id")["rows"].to_list() == [4, 10, 2]


def test_a_name_is_a_column_where_there_is_one_and_sql_is_computed() -> None:
    stage = a_stage(Declared(aggregates=AGGREGATES), keys=["id"])

    computed = to_compute(wanted(stage.operation), ["id", "user", "odd `name`", "small", "price"])

    assert [one.column for one in computed if not one.is_condition] == [
        "_argument_revenue",
        "_argument_doubled",
        "_argument_dearest",
        "_order_dearest",
    ]


def test_what_sql_cannot_fold_is_left_to_partial() -> None:
    schema = pl.Schema({"id": pl.Int64(), "value": pl.Decimal(38, 2)})
    # Spark's own sum of decimals so long may overflow, and would not say which.
    for aggregate in (agg.count_distinct("value"), agg.collect("value"), agg.sum("value")):
        stage = a_stage(Declared(aggregates={"result": aggregate}), keys=["id"])

        assert KeyedAggregateOperator(stage, schema).spark_partial() is None
