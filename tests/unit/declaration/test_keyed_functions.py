"""The function of a stage is checked when it is declared, not by the worker that calls it."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import ValueState
from sluice.declaration.pipeline import KeyedStream, Pipeline
from sluice.errors import ConfigurationError
from sluice.sources import Nexmark


class Visits(KeyedProcessFunction):
    def process(self, row: Row, context: Context) -> None: ...


class Lookalike:
    def process(self, row: Row, context: Context) -> None: ...


def rows_and_state(rows: Any, state: Any) -> tuple[Any, Any]:
    return rows, state


def a_keyed_stream() -> KeyedStream:
    return Pipeline("auctions").source("bids", Nexmark(1)).key_by("bid_auction")


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (Visits, r"process_keyed\(\) is given the class Visits; give it an instance, Visits\(\)$"),
        (rows_and_state, r"rows_and_state, which is no KeyedProcessFunction; .*process\(\)"),
        (Lookalike, r"is given Lookalike, which is no KeyedProcessFunction"),
        (Lookalike(), r"is given <.*Lookalike object at .*>, which is no KeyedProcessFunction"),
        (None, r"is given None, which is no KeyedProcessFunction"),
    ],
)
def test_what_is_no_instance_of_a_keyed_function_is_refused(function: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        a_keyed_stream().process_keyed("visits", function, result={"user": int})


def test_a_state_that_no_checkpoint_would_keep_is_refused() -> None:
    class Counting(Visits):
        def __init__(self) -> None:
            self.count = ValueState(int)

    said = (
        r"Counting sets the ValueState 'count' on self, .* in the class: count = ValueState\(...\)"
    )
    with pytest.raises(ConfigurationError, match=said):
        a_keyed_stream().process_keyed("visits", Counting(), result={"user": int})


def test_another_name_of_a_state_is_taken() -> None:
    class Counting(Visits):
        count = ValueState(int)

        def __init__(self) -> None:
            self.counted = self.count

    keyed = a_keyed_stream().process_keyed("visits", Counting(), result={"user": int})

    assert [*keyed.pipeline.stages] == ["visits"]


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (Visits(), r"function is .*; write process_keyed\(..., Visits\(\), ...\): it sees a row"),
        (Visits, r"a KeyedProcessFunction, Visits, .*process_keyed\(..., Visits\(\), ...\)"),
        (
            "rows_and_state",
            r"process\('visits'\): function is 'rows_and_state' \(str\); use a function",
        ),
    ],
)
def test_what_is_no_function_of_frames_is_refused(function: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        a_keyed_stream().process("visits", function, state={}, result={"user": int})


def test_an_instance_and_a_function_are_taken() -> None:
    stream = a_keyed_stream()

    keyed = stream.process_keyed("keyed", Visits(), result={"user": int})
    framed = stream.process("framed", rows_and_state, state={}, result={"user": int})

    assert [*keyed.pipeline.stages] == [*framed.pipeline.stages] == ["keyed", "framed"]
