"""The rules of the states of a keyed function to which values are added, and of tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from sluice.errors import ConfigurationError, StageFailed
from tests.unit.subtask.keyed import Played, a_row


class Mean(AggregateFunction[float, tuple[float, int], float]):
    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: float, accumulator: tuple[float, int]) -> tuple[float, int]:
        total, count = accumulator
        return total + value, count + 1

    def get_result(self, accumulator: tuple[float, int]) -> float:
        total, count = accumulator
        return total / count


def longer(left: str, right: str) -> str:
    return left if len(left) >= len(right) else right


class Accumulating(KeyedProcessFunction):
    """Gives each row to a function of the test's."""

    largest = ReducingState(max, int)
    longest = ReducingState(longer, str)
    mean = AggregatingState(Mean(), tuple[float, int])
    plain = ValueState(int)
    pair = ValueState(tuple[str, int])
    pairs = ListState(tuple[int, timedelta])
    places = MapState(str, tuple[float, float])

    def __init__(self, on_row: Callable[..., Any]) -> None:
        self.on_row = on_row

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        yield {"told": str(self.on_row(self, row))}


def add_length(function: Accumulating, row: Row) -> Any:
    if row["text"]:
        function.largest.add(len(row["text"]))
        function.longest.add(row["text"])
        function.mean.add(len(row["text"]))
    return function.largest.get(), function.longest.get(), function.mean.get()


def test_values_are_reduced_and_aggregated_over_rows_and_epochs() -> None:
    played = Played(Accumulating(add_length))

    first = played.told(a_row(2), a_row(1, "abc"), a_row(1, "z", 1))
    second = played.told(a_row(1, "xyz"), a_row(1, "", 1), a_row(2, "ab"))

    assert first == ["(None, None, None)", "(3, 'abc', 3.0)", "(3, 'abc', 2.0)"]
    mean = 7 / 3
    assert second == ["(2, 'ab', 2.0)", f"(3, 'abc', {mean})", f"(3, 'abc', {mean})"]


def test_what_is_kept_is_one_value_a_key_beside_the_others() -> None:
    played = Played(Accumulating(add_length))

    played.epoch(a_row(1, "abc"), a_row(1, "z", 1))

    kept = played.subtask.state()["values"].scan()
    assert kept.select("user", "largest", "longest", "mean", "plain").rows() == [
        (1, 3, "abc", {"f0": 4.0, "f1": 2}, None)
    ]


def test_what_was_cleared_begins_anew() -> None:
    def act(function: Accumulating, row: Row) -> Any:
        if row["text"] == "clear":
            function.largest.clear()
            function.mean.clear()
            function.longest.clear()
            return None
        return add_length(function, row)

    played = Played(Accumulating(act))

    played.epoch(a_row(text="abc"))
    played.epoch(a_row(text="clear"))
    is_empty = played.subtask.state()["values"].scan().is_empty()

    assert is_empty
    assert played.told(a_row(text="b")) == ["(1, 'b', 1.0)"]


def test_a_value_that_changes_nothing_is_not_written() -> None:
    def act(function: Accumulating, row: Row) -> None:
        function.largest.add(len(row["text"]))

    played = Played(Accumulating(act))
    written = [
        played.epoch(a_row(text=text)).changes["values"].upserts.height
        for text in ("abc", "a", "abcd")
    ]

    assert written == [1, 0, 1]


def test_tuples_are_read_back_as_they_were_written() -> None:
    def act(function: Accumulating, row: Row) -> Any:
        if row["text"] == "write":
            function.pair.set(("a", 1))
            function.pairs.update([(1, timedelta(1)), (2, timedelta(2))])
            function.places.put("here", (1, -0.0))
        return function.pair.get(), function.pairs.get(), function.places.items()

    played = Played(Accumulating(act))

    told = played.told(a_row(text="write"))

    assert told == played.told(a_row(text="read"))
    assert "('here', (1.0, 0.0))" in told[0]


def test_zero_is_one_value_whenever_it_is_read() -> None:
    class Zero(KeyedProcessFunction):
        zero = ValueState(float)

        def process(self, row: Row, context: Context) -> Iterable[Row]:
            if row["text"]:
                self.zero.set(float(row["text"]))
            yield {"told": str(self.zero.get())}

    played = Played(Zero())

    told = [played.told(a_row(text=text))[0] for text in ("0.0", "-0.0", "")]

    assert told == ["0.0", "0.0", "0.0"]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda f: f.largest.add(1.5), "state 'largest' holds int, not 1.5 of type float"),
        (lambda f: f.pair.set(("a",)), r"holds tuple\[str, int\], not \('a',\) of type tuple"),
        (lambda f: f.pair.set(("a", "b")), "state 'pair' holds int, not 'b' of type str"),
        (lambda f: f.pair.set(["a", 1]), r"'pair' holds tuple\[str, int\], not \['a', 1\] of"),
        (lambda f: f.pair.set(("a", None)), "state 'pair' holds int, not None"),
    ],
)
def test_a_value_of_another_type_is_refused_where_it_is_added(act: Any, message: str) -> None:
    played = Played(Accumulating(lambda f, _row: act(f)))

    with pytest.raises(ConfigurationError, match=f"stage 'alerts', key {{'user': 1}}: .*{message}"):
        played.epoch(a_row())


def test_what_a_function_makes_of_values_is_checked_like_a_value() -> None:
    class Halved(KeyedProcessFunction):
        half = ReducingState(lambda a, b: (a + b) / 2, int)  # type: ignore[arg-type,return-value]

        def process(self, row: Row, context: Context) -> None:
            self.half.add(1)

    with pytest.raises(ConfigurationError, match=r"state 'half' holds int, not 1.0 of type float"):
        Played(Halved()).epoch(a_row(), a_row())


def test_a_function_that_raises_fails_the_stage_and_names_the_key() -> None:
    played = Played(Accumulating(lambda f, _row: f.mean.add("x")))

    with pytest.raises(StageFailed, match=r"key {'user': 1}: process\(\) raised TypeError"):
        played.epoch(a_row())


def test_what_cannot_reduce_or_aggregate_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ConfigurationError, match="given 5, which cannot be called; give it a func"):
        ReducingState(5, int)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="which is no AggregateFunction; give it an inst"):
        AggregatingState(Mean, tuple[float, int])  # type: ignore[arg-type]


@pytest.mark.parametrize("of", [tuple, tuple[int, ...], tuple[list[int], int], tuple[()]], ids=repr)
def test_a_tuple_names_the_types_of_all_its_fields(of: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"or a tuple of them, such as tuple\[int, float"):
        ValueState(of)
    with pytest.raises(ConfigurationError, match=r"state cannot hold .* here; use one of: bool"):
        MapState(of, int)


def test_a_tuple_is_a_struct_of_numbered_fields() -> None:
    tables = Played(Accumulating(add_length)).operator.tables

    assert tables["values"].columns["pair"] == pl.Struct({"f0": pl.String(), "f1": pl.Int64()})
    assert tables["list:pairs"].columns["_value"] == pl.Struct(
        {"f0": pl.Int64(), "f1": pl.Duration("us")}
    )
