"""What is particular about floats: NaN, the sign of zero, and the order of a sum's terms."""

from __future__ import annotations

import polars as pl
import pytest

from sluice import aggregates as agg
from sluice.aggregates import Aggregate
from sluice.operations import KeyedAggregate as Declared
from sluice.runtime.operators.aggregate import KeyedAggregate
from sluice.runtime.operators.operator import EpochTime
from tests.property.runtime.played import a_stage
from tests.property.runtime.subtask import INPUT, Subtask

NAN = float("nan")
FLOATS = pl.Schema({"id": pl.Int64(), "value": pl.Float64()})


def one(aggregate: Aggregate, schema: pl.Schema) -> Subtask:
    stage = a_stage(Declared(aggregates={"result": aggregate}), keys=["id"])
    return Subtask(KeyedAggregate(stage, schema), [schema], key_count=1)


@pytest.mark.parametrize("order", [[[1.0], [NAN], [0.0]], [[NAN, 0.0], [1.0]], [[0.0, 1.0, NAN]]])
@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [(agg.min("value"), 0.0), (agg.max("value"), NAN), (agg.collect("value"), [0.0, 1.0, NAN])],
)
def test_nan_is_larger_than_any_number(
    aggregate: Aggregate, expected: object, order: list[list[float]]
) -> None:
    subtask = one(aggregate, FLOATS)

    for epoch in order:
        subtask.play([[(1, value)] for value in epoch], time=EpochTime())

    assert repr(subtask.state()["groups"].scan()["result"].to_list()) == repr([expected])


def test_zero_has_no_sign() -> None:
    subtask = one(agg.max("value"), FLOATS)

    outcome = subtask.play([[(1, -0.0)]], time=EpochTime())

    assert repr(outcome.output["result"].item()) == "0.0"


def test_only_sums_of_floats_depend_on_the_order_of_rows() -> None:
    assert one(agg.avg("value"), FLOATS).operator.is_order_sensitive
    assert one(agg.sum("value"), FLOATS).operator.is_order_sensitive
    assert not one(agg.max("value"), FLOATS).operator.is_order_sensitive
    assert not one(agg.sum("value"), INPUT).operator.is_order_sensitive
