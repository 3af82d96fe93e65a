"""A keyed function that does what a test says, and the epochs it is played in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl

from sluice.core.event_time import MIN_WATERMARK
from sluice.declaration import operations as ops
from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, OnTimerContext, Row
from sluice.declaration.keyed_states import ListState, MapState, ValueState
from sluice.declaration.nodes import Input, StageNode
from sluice.operators.keyed_function import ProcessKeyedOperator
from sluice.operators.operator import EpochTime, Outcome
from tests.property.operators.subtask import Row as InputRow
from tests.property.operators.subtask import Subtask

INPUT = pl.Schema({"user": pl.Int64(), "text": pl.String(), "at": pl.Datetime("us", "UTC")})
START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
MS = timedelta(milliseconds=1)


class Everything(KeyedProcessFunction):
    """Gives each row and each timer to a function of the test's."""

    value = ValueState(int)
    ratio = ValueState(float)
    seen_at = ValueState(datetime)
    numbers = ListState(int)
    counts = MapState(str, int)
    days = MapState(date, timedelta)

    def __init__(
        self, on_row: Callable[..., Any], on_timer: Callable[..., Any] | None = None
    ) -> None:
        self.on_row = on_row
        self.when_due = on_timer
        self.rows = 0

    def process(self, row: Row, context: Context) -> Iterable[Row] | None:
        self.rows += 1
        result = self.on_row(self, row, context)
        return None if result is None else [{"result": str(result)}]

    def on_timer(self, timestamp: datetime, context: OnTimerContext) -> Iterable[Row] | None:
        result = self.when_due(self, timestamp, context) if self.when_due else context.time_domain
        return None if result is None else [{"result": str(result)}]


class Played:
    """Plays epochs, each triggered a second after the one before; its watermark may be given."""

    def __init__(
        self,
        function: KeyedProcessFunction,
        *,
        event_time: str | None = "at",
        ttl_ms: int | None = None,
        result: Any = None,
    ) -> None:
        operation = ops.ProcessKeyed(function=function, result=result or {"result": str})
        events = Input(producer="events", keys=("user",), event_time=event_time)
        stage = StageNode(uid="alerts", operation=operation, inputs=(events,), ttl_ms=ttl_ms)
        self.operator = ProcessKeyedOperator(stage, INPUT)
        self.subtask = Subtask(self.operator, [INPUT], key_count=1)
        self.watermark_ms = MIN_WATERMARK
        self.checkpoints = 0

    def epoch(self, *rows: InputRow, watermark_ms: int | None = None) -> Outcome:
        self.checkpoints += 1
        before = self.watermark_ms
        self.watermark_ms = before if watermark_ms is None else watermark_ms
        time = EpochTime(
            checkpoint_id=self.checkpoints,
            previous_watermark_ms=before,
            watermark_ms=self.watermark_ms,
            processing_time_ms=START_MS + self.checkpoints * 1_000,
        )
        return self.subtask.play([list(rows)], time=time)

    def results(self, *rows: InputRow, watermark_ms: int | None = None) -> list[str]:
        return self.epoch(*rows, watermark_ms=watermark_ms).output["result"].to_list()


def a_row(user: int | None = 1, text: str = "", ms: float | None = 0) -> InputRow:
    return (user, text, None if ms is None else at(ms))


def at(ms: float) -> datetime:
    return START + ms * MS
