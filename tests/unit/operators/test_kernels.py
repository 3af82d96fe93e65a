"""The special cases of numbers: NaN, the sign of zero, the order of terms, and overflow."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import polars as pl
import pytest

from sluice.core.event_time import MAX_WATERMARK
from sluice.declaration import aggregates as agg
from sluice.declaration.aggregates import Aggregate
from sluice.declaration.operations import Hopping, Session, Tumbling, Window, WindowAggregate
from sluice.errors import ConfigurationError, RestoreError
from sluice.operators.build import build_operator
from sluice.operators.operator import EpochTime
from sluice.state.evolution import Evolution
from sluice.state.segments import HASH
from tests.property.operators.changelogs import with_weight
from tests.property.operators.played import a_stage, at, one_aggregate
from tests.property.operators.subtask import INPUT, Subtask

NAN = float("nan")
SECOND = timedelta(seconds=1)
FLOATS = pl.Schema({"id": pl.Int64(), "value": pl.Float64()})
LONGS = pl.Schema({"id": pl.Int64(), "value": pl.Int64()})


@pytest.mark.parametrize("order", [[[1.0], [NAN], [0.0]], [[NAN, 0.0], [1.0]], [[0.0, 1.0, NAN]]])
@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [(agg.min("value"), 0.0), (agg.max("value"), NAN), (agg.collect("value"), [0.0, 1.0, NAN])],
)
def test_nan_is_larger_than_any_number(
    aggregate: Aggregate, expected: object, order: list[list[float]]
) -> None:
    subtask = one_aggregate(aggregate, FLOATS)

    for epoch in order:
        subtask.play([[(1, value)] for value in epoch], time=EpochTime())

    assert repr(subtask.state()["groups"].scan()["result"].to_list()) == repr([expected])


def test_zero_has_no_sign() -> None:
    subtask = one_aggregate(agg.max("value"), FLOATS)

    outcome = subtask.play([[(1, -0.0)]], time=EpochTime())

    assert repr(outcome.output["result"].item()) == "0.0"


@pytest.mark.parametrize("aggregate", [agg.min("value"), agg.max("value"), agg.collect("value")])
def test_the_order_of_zeros_decides_nothing(aggregate: Aggregate) -> None:
    found = set()
    for zeros in ([0.0, -0.0], [-0.0, 0.0]):
        rows = [(1, zero) for zero in zeros]
        outcome = one_aggregate(aggregate, FLOATS).play([rows], time=EpochTime())
        found.add(repr(outcome.output["result"].item()))

    assert len(found) == 1
    assert "-" not in found.pop()


@pytest.mark.parametrize("window", [None, Session(SECOND)])
@pytest.mark.parametrize(
    ("value", "count", "fraction"), [(0.1, 3, 0.1), (19.99, 8, 0.99), (1.7e308, 3, 0.1)]
)
def test_a_percentile_of_equal_values_is_that_value(
    value: float, count: int, fraction: float, window: Window | None
) -> None:
    """As Spark's is, which interpolates between different values only."""
    schema = FLOATS if window is None else pl.Schema({**FLOATS, "at": pl.Datetime("us", "UTC")})
    aggregate = agg.percentile("value", fraction)
    subtask = one_aggregate(aggregate, schema)
    if window is not None:
        windowed = WindowAggregate(window=window, aggregates={"result": aggregate})
        subtask = Subtask(build_operator(a_stage(windowed, keys=["id"]), [schema]), [schema])
    row = (1, value) if window is None else (1, value, at(0))

    outcome = subtask.play([[row] * count], time=EpochTime(watermark_ms=MAX_WATERMARK))

    assert outcome.output["result"].to_list() == [value]


@pytest.mark.parametrize("window", [None, Tumbling(SECOND), Session(SECOND)])
@pytest.mark.parametrize("order", [[[-0.0, 0.0], [-0.0]], [[0.0, -0.0], [0.0]], [[-0.0], [-0.0]]])
def test_a_key_of_zero_has_no_sign(order: list[list[float]], window: Window | None) -> None:
    schema = pl.Schema({"id": pl.Float64(), "at": pl.Datetime("us", "UTC")})
    subtask = one_aggregate(agg.count(), schema)
    if window is not None:
        counted = WindowAggregate(window=window, aggregates={"result": agg.count()})
        stage = a_stage(counted, keys=["id"])
        subtask = Subtask(build_operator(stage, [schema]), [schema], key_count=1)

    outputs = [
        subtask.play([[(key, at(0)) for key in epoch]], time=EpochTime()).output for epoch in order
    ]
    outputs.append(subtask.play([[]], time=EpochTime(watermark_ms=MAX_WATERMARK)).output)

    found = pl.concat(outputs, how="vertical")
    assert {repr(key) for key in found["id"]} == {"0.0"}
    assert found["result"].max() == sum(map(len, order))


def test_only_sums_of_floats_depend_on_the_order_of_rows() -> None:
    assert one_aggregate(agg.avg("value"), FLOATS).operator.is_order_sensitive
    assert one_aggregate(agg.sum("value"), FLOATS).operator.is_order_sensitive
    assert not one_aggregate(agg.max("value"), FLOATS).operator.is_order_sensitive
    assert not one_aggregate(agg.sum("value"), INPUT).operator.is_order_sensitive
    assert not one_aggregate(agg.sum("value"), with_weight(FLOATS)).operator.is_order_sensitive


def test_state_that_kept_a_sum_of_updates_as_one_float_is_refused() -> None:
    kept = pl.Schema({HASH: pl.Int64(), "id": pl.Int64(), "_sum_result": pl.Float64()})
    for aggregate in (agg.sum("value"), agg.avg("value")):
        schema = one_aggregate(aggregate, with_weight(FLOATS)).operator.tables["groups"]

        with pytest.raises(RestoreError, match=r"'value'.* over updates was kept as one float"):
            Evolution(schema, kept.to_frame().to_arrow(), "totals")


DECIMALS = pl.Schema({"id": pl.Int64(), "value": pl.Decimal(38, 2)})
LONGEST = 2**63 - 1
WIDEST = Decimal("9" * 36 + ".99")
WINDOWS = [Tumbling(SECOND), Hopping(SECOND, SECOND / 2), Session(SECOND)]


def windowed(aggregate: Aggregate, window: Window, values: pl.Schema) -> Subtask:
    schema = pl.Schema({**values, "at": pl.Datetime("us", "UTC")})
    stage = a_stage(WindowAggregate(window=window, aggregates={"result": aggregate}), keys=["id"])
    return Subtask(build_operator(stage, [schema]), [schema], key_count=1)


def test_a_sum_that_is_no_bigint_is_an_error_that_names_the_column() -> None:
    subtask = one_aggregate(agg.sum("value"), LONGS)
    message = (
        r"stage 'stage' cannot compute 'result': sum\('value'\) of some group does not fit bigint; "
        r"aggregate a wider type, CAST\(... AS DECIMAL\(38, 0\)\)"
    )
    subtask.play([[(1, LONGEST)]], time=EpochTime())

    with pytest.raises(ConfigurationError, match=message):
        subtask.play([[(1, 1)]], time=EpochTime())


def test_what_is_added_on_the_way_to_a_bigint_may_be_larger() -> None:
    subtask = one_aggregate(agg.sum("value"), LONGS)

    outcome = subtask.play(
        [[(1, LONGEST), (1, LONGEST)], [(1, -LONGEST), (1, -5)]], time=EpochTime()
    )

    assert outcome.output.rows() == [(1, LONGEST - 5)]


def test_the_mean_of_large_numbers_is_right() -> None:
    subtask = one_aggregate(agg.avg("value"), LONGS)

    outcome = subtask.play([[(1, LONGEST), (1, LONGEST)]], time=EpochTime())

    assert outcome.output["result"].item() == pytest.approx(2.0**63)


def test_a_sum_of_decimals_that_has_more_than_38_digits_names_the_column() -> None:
    for aggregate in (agg.sum("value"), agg.avg("value")):
        subtask = one_aggregate(aggregate, DECIMALS)
        subtask.play([[(1, WIDEST)]], time=EpochTime())

        with pytest.raises(ConfigurationError, match=r"'result': (sum|avg)\('value'\) of some"):
            subtask.play([[(1, WIDEST)]], time=EpochTime())


@pytest.mark.parametrize("window", WINDOWS)
def test_an_overflow_in_a_window_names_the_column(window: Window) -> None:
    subtask = windowed(agg.sum("value"), window, LONGS)

    with pytest.raises(
        ConfigurationError, match=r"'result': sum\('value'\) of some group does not"
    ):
        subtask.play(
            [[(1, LONGEST, at(100)), (1, LONGEST, at(700))]],
            time=EpochTime(watermark_ms=MAX_WATERMARK),
        )


@pytest.mark.parametrize("window", WINDOWS)
def test_distinct_booleans_are_counted_in_windows(window: Window) -> None:
    booleans = pl.Schema({"id": pl.Int64(), "value": pl.Boolean()})
    subtask = windowed(agg.count_distinct("value"), window, booleans)
    subtask.play([[(1, True, at(10)), (1, None, at(10))]], time=EpochTime())

    again = subtask.play([[(1, True, at(20))]], time=EpochTime())
    outcome = subtask.play([[(1, False, at(30))]], time=EpochTime(watermark_ms=MAX_WATERMARK))

    assert again.output.is_empty()
    assert set(outcome.output["result"]) == {2}


NESTED: list[tuple[pl.DataType, list[object]]] = [
    (pl.List(pl.Int64()), [[1], [1, 2], [], [None]]),
    (pl.Struct({"f": pl.Float64()}), [{"f": 0.0}, {"f": NAN}, {"f": None}, {"f": 1.0}]),
    (pl.List(pl.Struct({"f": pl.Float64()})), [[{"f": NAN}], [], [None], [{"f": 0.0}] * 2]),
]


@pytest.mark.parametrize(("of", "values"), NESTED, ids=lambda of: str(of)[:12])
@pytest.mark.parametrize("window", [None, *WINDOWS])
def test_arrays_and_structs_are_counted_by_what_is_in_them(
    window: Window | None, of: pl.DataType, values: list[object]
) -> None:
    schema = pl.Schema({"id": pl.Int64(), "value": of})
    aggregate = agg.count_distinct("value")
    more: tuple[object, ...] = () if window is None else (at(10),)
    subtask = (
        one_aggregate(aggregate, schema) if window is None else windowed(aggregate, window, schema)
    )
    first, second = values[:3], [*values[1:], None]
    if of == pl.Struct({"f": pl.Float64()}):
        second.append({"f": -0.0})

    subtask.play([[(1, value, *more) for value in first]], time=EpochTime())
    outcome = subtask.play(
        [[(1, value, *more) for value in second]], time=EpochTime(watermark_ms=MAX_WATERMARK)
    )

    assert set(outcome.output["result"]) == {4}


@pytest.mark.parametrize(("of", "values"), NESTED, ids=lambda of: str(of)[:12])
def test_arrays_and_structs_that_are_taken_back_are_no_longer_counted(
    of: pl.DataType, values: list[object]
) -> None:
    schema = pl.Schema({"id": pl.Int64(), "value": of})
    subtask = one_aggregate(agg.count_distinct("value"), with_weight(schema))

    subtask.play([[(1, value, 1) for value in (*values, values[0], values[1])]], time=EpochTime())
    outcome = subtask.play(
        [[(1, values[0], -1), (1, values[1], -1), (1, values[1], -1)]], time=EpochTime()
    )

    assert set(outcome.output["result"]) == {3}


def test_a_running_sum_of_integers_is_kept_as_the_bigint_that_it_is() -> None:
    subtask = one_aggregate(agg.sum("value"), LONGS)

    subtask.play([[(1, 2**62), (1, -(2**62))], [(1, 5)]], time=EpochTime())
    subtask.play([[(1, 2)]], time=EpochTime())

    kept = subtask.state()["groups"].scan()["result"]
    assert (kept.dtype, kept.to_list()) == (pl.Int64(), [7])
