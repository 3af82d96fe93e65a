"""The rules of a keyed function's timers, one by one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import polars as pl
import pytest

from sluice.core.event_time import MAX_WATERMARK
from sluice.declaration.keyed_functions import Context, OnTimerContext, Row
from sluice.errors import ConfigurationError
from sluice.operators import keyed_function
from sluice.state.keyed import KeyedState
from tests.unit.subtask.keyed import MS, START, START_MS, Everything, Played, a_row, at


def test_a_timer_fires_once_at_the_barrier_that_reaches_it_after_the_rows() -> None:
    def register(_: Everything, row: Row, context: Context) -> Any:
        context.timers.register_event_time(at(10))
        context.timers.register_event_time(at(10.9))  # Whole milliseconds: the same timer.
        return row["text"]

    played = Played(Everything(register, lambda _f, timestamp, _c: timestamp))

    assert played.told(a_row(text="a"), watermark_ms=START_MS + 9) == ["a"]
    assert played.told(a_row(text="b"), watermark_ms=START_MS + 10) == ["b", str(at(10))]
    assert played.told(watermark_ms=START_MS + 11) == []


def test_timers_fire_in_the_order_of_their_instants_of_both_domains() -> None:
    def register(_: Everything, _row: Row, context: Context) -> Any:
        for ms in (30, 10):
            context.timers.register_event_time(at(ms))
        for ms in (20, 10):
            context.timers.register_processing_time(at(ms))

    def tell(_: Everything, timestamp: datetime, context: OnTimerContext) -> Any:
        assert context.timestamp == timestamp
        return f"{context.time_domain} {(timestamp - START) // MS}"

    played = Played(Everything(register, tell))

    told = played.told(a_row(1), a_row(2), watermark_ms=MAX_WATERMARK)

    assert told == ["event 10", "processing 10", "processing 20", "event 30"] * 2


def test_a_timer_that_is_set_while_another_fires_fires_too_if_it_is_due() -> None:
    def again(_: Everything, timestamp: datetime, context: OnTimerContext) -> Any:
        context.timers.register_event_time(timestamp + 5 * MS)
        return (timestamp - START) // MS

    played = Played(
        Everything(lambda _f, _r, context: context.timers.register_event_time(at(0)), again)
    )

    assert played.told(a_row(), watermark_ms=START_MS + 12) == ["0", "5", "10"]
    assert played.subtask.state()["event_timers"].scan()["_time_ms"].to_list() == [START_MS + 15]
    assert played.told(watermark_ms=START_MS + 15) == ["15"]


def test_a_timer_can_be_deleted_in_a_later_epoch_or_in_its_own() -> None:
    def act(_: Everything, row: Row, context: Context) -> Any:
        if row["text"] == "set":
            context.timers.register_event_time(at(10))
            context.timers.register_processing_time(at(5_000))
        else:
            context.timers.delete_event_time(at(10))
            context.timers.delete_processing_time(at(5_000))

    played = Played(Everything(act))
    played.epoch(a_row(text="set"))

    assert played.told(a_row(text="unset"), watermark_ms=START_MS + 10) == []
    assert played.told(a_row(text="set", ms=0), a_row(text="unset", ms=1)) == []
    assert played.subtask.state()["processing_timers"].scan().is_empty()
    assert [played.told() for _ in range(3)] == [[], [], []]


def test_timers_that_are_there_already_or_were_never_are_not_written() -> None:
    def act(_: Everything, row: Row, context: Context) -> Any:
        context.timers.register_event_time(at(10))
        context.timers.delete_event_time(at(20))

    played = Played(Everything(act))
    played.epoch(a_row())

    changes = played.epoch(a_row()).changes["event_timers"]

    assert changes.upserts.is_empty()
    assert changes.deletes.is_empty()


def test_processing_time_is_that_of_the_barrier() -> None:
    def act(_: Everything, row: Row, context: Context) -> Any:
        context.timers.register_processing_time(context.processing_time + 1_500 * MS)
        return context.processing_time

    played = Played(Everything(act))

    assert played.told(a_row()) == [str(at(1_000))]
    assert [played.told() for _ in range(3)] == [[], ["processing"], []]


def test_a_timer_outlives_the_ttl_of_the_state() -> None:
    def act(self: Everything, row: Row, context: Context) -> Any:
        self.value.set(1)
        context.timers.register_processing_time(at(4_000))

    played = Played(Everything(act, lambda f, *_: f"value {f.value.get()}"), ttl_ms=1_000)
    played.epoch(a_row())

    assert [played.told() for _ in range(3)] == [[], [], ["value None"]]


def test_a_timer_that_fired_in_an_epoch_before_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def set_two(_: Everything, _row: Row, context: Context) -> Any:
        for ms in (10, 30):
            context.timers.register_event_time(at(ms))

    played = Played(Everything(set_two))
    played.epoch(a_row(), watermark_ms=START_MS)
    looked_at: list[list[int]] = []
    find = KeyedState.find

    def noting(state: KeyedState, wanted: pl.DataFrame) -> pl.DataFrame:
        if "_time_ms" in wanted.columns:
            looked_at.append([ms - START_MS for ms in wanted["_time_ms"]])
        return find(state, wanted)

    monkeypatch.setattr(KeyedState, "find", noting)

    assert played.told(watermark_ms=START_MS + 10) == ["event"]
    looked_at.clear()
    assert played.told(watermark_ms=START_MS + 30) == ["event"]
    assert all(10 not in instants for instants in looked_at)


def test_a_timer_needs_a_time_zone() -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    played = Played(Everything(lambda _f, _r, c: c.timers.register_event_time(naive)))

    with pytest.raises(ConfigurationError, match="a timer at 2026-01-01 00:00:00 has no time zone"):
        played.epoch(a_row())


def test_timers_that_set_each_other_for_ever_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_function, "MOST_FIRINGS", 100)

    def again(_: Everything, timestamp: datetime, context: OnTimerContext) -> Any:
        context.timers.register_event_time(timestamp + MS)

    played = Played(
        Everything(lambda _f, _r, context: context.timers.register_event_time(at(0)), again)
    )

    with pytest.raises(ConfigurationError, match="current_watermark is END_OF_TIME"):
        played.epoch(a_row(), watermark_ms=MAX_WATERMARK)
