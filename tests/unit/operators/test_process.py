"""The rules of ``Process``: what the function sees, and what it may return."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from sluice.declaration import operations as ops
from sluice.declaration.nodes import Input, StageNode
from sluice.errors import CheckpointDeclined, ConfigurationError, StageFailed
from sluice.operators.keyed_function import ProcessOperator
from sluice.operators.operator import EpochTime, Outcome
from tests.property.operators.subtask import Row, Subtask

INPUT = pl.Schema({"id": pl.Int64(), "value": pl.Int32(), "at": pl.Datetime("us", "UTC")})
START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def a_stage(operation: ops.Operation, ttl_ms: int | None = None) -> StageNode:
    return StageNode(
        uid="visits",
        operation=operation,
        inputs=(Input(producer="events", keys=("id",), event_time="at"),),
        ttl_ms=ttl_ms,
    )


def a_process(
    function: Any, state: Any = None, result: Any = None, ttl_ms: int | None = None
) -> ProcessOperator:
    declared = ops.Process(
        function=function,
        state={"count": int} if state is None else state,
        result={"id": int} if result is None else result,
    )
    return ProcessOperator(a_stage(declared, ttl_ms), INPUT)


def play(operator: ProcessOperator, *epochs: list[Row], at_ms: int = 0) -> Outcome:
    subtask = Subtask(operator, [INPUT], key_count=1)
    outcomes = [
        subtask.play([epoch], time=EpochTime(checkpoint_id=number, processing_time_ms=at_ms))
        for number, epoch in enumerate(epochs, 1)
    ]
    return outcomes[-1]


def row(key: int | None, value: int = 0, second: int = 0) -> Row:
    return (key, value, START + second * SECOND)


class Seen:
    """Remembers its arguments; returns the keys, and the state with the columns *state*."""

    def __init__(self, **state: pl.Expr) -> None:
        self.calls: list[tuple[pl.DataFrame, pl.DataFrame]] = []
        self._state = state

    def __call__(
        self, rows: pl.DataFrame, state: pl.DataFrame
    ) -> tuple[pl.DataFrame, pl.DataFrame]:
        self.calls.append((rows, state))
        return state.select("id"), state.with_columns(**self._state)


def test_the_function_sees_sorted_rows_and_a_row_of_state_per_key() -> None:
    seen = Seen(count=pl.lit(5, pl.Int64))

    play(a_process(seen), [row(2)], [row(3), row(2, 1, 9), row(2, 9, 1), row(None), row(2, 8, 1)])

    rows, state = seen.calls[1]
    # By hash (even keys first), key, event time, and all other columns.
    assert rows.rows() == [row(None), row(2, 8, 1), row(2, 9, 1), row(2, 1, 9), row(3)]
    assert rows.schema == INPUT
    assert state.rows() == [(None, None), (2, 5), (3, None)]
    assert state.schema == {"id": pl.Int64(), "count": pl.Int64()}


def test_the_function_is_not_called_when_no_row_came() -> None:
    seen = Seen()

    outcome = play(a_process(seen), [])

    assert seen.calls == []
    assert outcome.output.schema == {"id": pl.Int64()}


def test_only_state_that_changed_is_written_unless_it_has_a_ttl() -> None:
    seen = Seen(count=pl.lit(5, pl.Int64))

    without = play(a_process(seen), [row(1), row(2)], [row(1)])
    refreshed = play(a_process(seen, ttl_ms=100), [row(1), row(2)], [row(1)])

    assert without.changes["state"].upserts.is_empty()
    assert refreshed.changes["state"].upserts.rows() == [(1, 1, 5)]


def test_a_key_left_out_keeps_its_state_and_one_of_nulls_is_forgotten() -> None:
    def forgets_two(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        is_new = state["count"].is_null().all()
        after = state.with_columns(count=pl.lit(7)) if is_new else state.filter(pl.col("id") == 2)
        return rows.select("id"), after if is_new else after.with_columns(count=None)

    outcome = play(a_process(forgets_two), [row(1), row(2)], [row(1), row(2)])

    changes = outcome.changes["state"]
    assert changes.upserts.is_empty()
    assert changes.deletes.select("id").rows() == [(2,)]


def test_a_function_may_do_without_state() -> None:
    operator = a_process(lambda rows, state: (rows.select("id"), state), state={})

    outcome = play(operator, [row(1)], [row(1)])

    assert operator.tables == {}
    assert outcome.output.rows() == [(1,)]
    assert outcome.changes == {}


def test_a_result_with_the_key_is_sorted_by_its_hash_and_a_key_of_no_row_comes_last() -> None:
    def backwards(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        ids = rows["id"].reverse().append(pl.Series([None, 7], dtype=pl.Int64))
        return ids.to_frame(), state

    outcome = play(a_process(backwards), [row(1), row(2), row(3)])

    assert outcome.output["id"].to_list() == [2, 1, 3, None, 7]


def test_a_result_without_the_key_stays_in_the_order_of_the_function() -> None:
    def biggest_first(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        return rows.select("value").sort("value", descending=True), state

    operator = a_process(biggest_first, result={"value": pl.Int32()})

    assert play(operator, [row(1, 1), row(2, 3), row(3, 2)]).output.rows() == [(3,), (2,), (1,)]


def test_what_loses_nothing_is_cast_to_the_declared_type() -> None:
    def counts(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        result = rows.group_by("id").agg(pl.len().alias("n"), pl.col("value").sum().alias("v"))
        return result.with_columns(pl.lit(None).alias("s")), state.with_columns(count=None)

    outcome = play(
        a_process(counts, result={"n": int, "id": int, "v": float, "s": str}), [row(1, 3)]
    )

    assert outcome.output.rows() == [(1, 1, 3.0, None)]
    assert outcome.output.dtypes == [pl.Int64(), pl.Int64(), pl.Float64(), pl.String()]


def returning(result: Any, state: Any) -> ProcessOperator:
    return a_process(lambda rows, before: (result(rows), state(before)))


@pytest.mark.parametrize(
    ("result", "state", "message"),
    [
        (
            lambda r: r.select(pl.col("id").cast(pl.String)),
            lambda s: s,
            "'visits': what its function returns as the result has column 'id' of type String, but",
        ),
        (
            lambda r: r.select("value"),
            lambda s: s,
            "lacks column 'id' and has column 'value', which is not declared; its columns must",
        ),
        (
            lambda r: r.select("id"),
            lambda s: s.with_columns(count=pl.lit(1.5)),
            "as the new state has column 'count' of type Float64, but it is declared as Int64",
        ),
        (
            lambda r: r.select("id"),
            lambda s: s.with_columns(pl.col("id") + 1),
            r"has the key {'id': 2}, which no row has; return only keys that it was",
        ),
        (
            lambda r: r.select("id"),
            lambda s: pl.concat([s, s]),
            r"has the key {'id': 1} twice; return one row per key",
        ),
        (lambda r: r.lazy(), lambda s: s, "a tuple of LazyFrame, DataFrame; return two Polars"),
    ],
)
def test_what_the_function_returns_is_checked_by_name(
    result: Any, state: Any, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        play(returning(result, state), [row(1)])


def test_what_is_no_tuple_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="returns is a DataFrame; return two Polars"):
        play(a_process(lambda rows, state: rows), [row(1)])


def test_a_function_may_decline_the_checkpoint() -> None:
    def declines(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        raise CheckpointDeclined("too early", reason="CHECKPOINT_DECLINED_TASK_NOT_READY")

    with pytest.raises(CheckpointDeclined, match="too early"):
        play(a_process(declines), [row(1)])


def test_there_is_no_other_reason_to_decline() -> None:
    with pytest.raises(ConfigurationError, match="'EXPIRED'; use one of CHECKPOINT_DECLINED, "):
        CheckpointDeclined("no", reason="EXPIRED")  # type: ignore[arg-type]


def test_an_exception_of_the_function_names_the_stage() -> None:
    def fails(rows: pl.DataFrame, state: pl.DataFrame) -> Any:
        raise LookupError("no such thing")

    with pytest.raises(
        StageFailed, match="'visits': its function raised LookupError: no such"
    ) as e:
        play(a_process(fails), [row(1)])
    assert isinstance(e.value.__cause__, LookupError)


@pytest.mark.parametrize(
    ("declared", "described"),
    [
        ("int", "'int'"),
        (dict, "dict"),
        (list, "list"),
        (pl.UInt32, "UInt32"),
        (pl.Datetime("ns", "UTC"), "Datetime"),
        (pl.List(pl.Time), "List"),
        (object, "object"),
    ],
)
def test_a_type_that_no_row_can_keep_is_refused(declared: Any, described: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'visits' declares column 'x' as {described}"):
        a_process(Seen(), result={"x": declared})


def test_types_of_python_and_polars_may_be_declared() -> None:
    declared = {
        "a": datetime,
        "b": timedelta,
        "c": list[str],
        "d": pl.Struct({"x": pl.Int8, "y": pl.List(pl.Date)}),
        "e": pl.Decimal(10, 2),
        "f": bytes,
    }

    operator = a_process(Seen(), result=declared)

    assert operator.output_schema["a"] == pl.Datetime("us", "UTC")
    assert operator.output_schema["b"] == pl.Duration("us")
    assert operator.output_schema["c"] == pl.List(pl.String())


def test_state_is_not_called_like_a_key() -> None:
    with pytest.raises(ConfigurationError, match="column 'id' that is there twice; rename it"):
        a_process(Seen(), state={"id": int})
