"""The arguments of a keyed function, and the results that it may yield."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import polars as pl
import pytest

from sluice.core.event_time import MAX_WATERMARK
from sluice.declaration.keyed_functions import (
    BEGINNING_OF_TIME,
    END_OF_TIME,
    Context,
    KeyedProcessFunction,
    Row,
)
from sluice.errors import ConfigurationError, StageFailed
from tests.unit.subtask.keyed import START, START_MS, Everything, Played, a_row, at


def test_a_late_row_is_processed_and_can_tell_by_the_watermark() -> None:
    def act(_: Everything, _row: Row, context: Context) -> Any:
        context.timers.register_event_time(at(0))
        return context.timestamp is not None and context.timestamp <= context.current_watermark

    played = Played(Everything(act, lambda _f, _t, context: context.current_watermark))

    assert played.told(a_row(ms=5), watermark_ms=START_MS + 5) == ["False", str(at(5))]
    outcome = played.epoch(a_row(ms=5), watermark_ms=MAX_WATERMARK)
    assert outcome.output["told"].to_list() == ["True", str(END_OF_TIME)]
    assert outcome.late[0].is_empty()


def test_without_event_time_rows_come_in_the_order_of_their_columns() -> None:
    def act(_: Everything, row: Row, context: Context) -> Any:
        assert context.timestamp is None
        assert context.current_watermark == BEGINNING_OF_TIME
        return row["text"]

    played = Played(Everything(act), event_time=None)

    assert played.told(a_row(text="b", ms=0), a_row(text="a", ms=9)) == ["a", "b"]


class Yields(KeyedProcessFunction):
    def __init__(self, *rows: Any) -> None:
        self.rows = rows

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        yield from self.rows


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"n": 1},
            r"key .*: what process\(\) yields lacks column 'at'; its columns must be: n, at",
        ),
        ({"n": 1, "at": None, "x": 1}, "has column 'x', which is not declared"),
        ("n", "what process.. yields is 'n' of type str; rows are dicts"),
        ({"n": 1.5, "at": None}, "result has .1.5. in column 'n', which is declared as Int64"),
        ({"n": 1, "at": datetime(2026, 1, 1)}, "in column 'at', which is declared as Datetime"),  # noqa: DTZ001
        ({"n": 1, "at": "now"}, "result has .'now'. in column 'at'"),
    ],
)
def test_what_is_yielded_is_checked_by_name(row: Any, message: str) -> None:
    good = {"n": 1, "at": START}
    played = Played(Yields(good, row), result={"n": int, "at": datetime})

    with pytest.raises(ConfigurationError, match=f"stage 'alerts'.*{message}"):
        played.epoch(a_row())


def test_rows_are_taken_when_they_are_yielded() -> None:
    class Reuses(KeyedProcessFunction):
        def process(self, row: Row, context: Context) -> Iterable[Row]:
            told = {"told": "one"}
            yield told
            told["told"] = "two"
            yield told

    assert Played(Reuses()).told(a_row()) == ["one", "two"]


def test_an_exception_names_the_stage_and_the_key() -> None:
    def fail(*_: Any) -> Any:
        raise LookupError("no such thing")

    played = Played(Everything(fail))

    message = r"stage 'alerts', key {'user': 1}: process\(\) raised LookupError: no such thing"
    with pytest.raises(StageFailed, match=message):
        played.epoch(a_row())


def test_a_function_without_state_or_timers_needs_neither() -> None:
    played = Played(Yields({"told": "x"}))

    assert played.told(a_row(), a_row(2)) == ["x", "x"]
    assert played.epoch().output.schema == {"told": pl.String()}
    assert set(played.operator.tables) == {"event_timers", "processing_timers"}
