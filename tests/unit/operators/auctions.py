"""Auctions and their prices: the two inputs that unit tests of joins play."""

from __future__ import annotations

from typing import Any

import polars as pl

from sluice.core.event_time import MIN_WATERMARK
from sluice.declaration import operations as ops
from sluice.declaration.nodes import Input, StageNode
from sluice.operators.joins import IntervalJoinOperator
from sluice.operators.operator import EpochTime, Outcome
from tests.property.operators.subtask import Row, Subtask
from tests.unit.operators.keyed import START_MS

INSTANT = pl.Datetime("us", "UTC")
LEFT = pl.Schema({"id": pl.Int64(), "at": INSTANT, "until": INSTANT})
RIGHT = pl.Schema({"item": pl.Int64(), "seen": INSTANT, "price": pl.Int64()})


def a_stage(operation: ops.Operation, **changed: Any) -> StageNode:
    right: dict[str, Any] = {"keys": ("item",), "event_time": "seen", **changed}
    return StageNode(
        uid="bids",
        operation=operation,
        inputs=(
            Input(producer="auctions", keys=("id",), event_time="at"),
            Input(producer="prices", **right),
        ),
    )


class Played:
    """Plays epochs that each have a watermark, in milliseconds after ``START``."""

    def __init__(self, operator: Any, schemas: tuple[pl.Schema, pl.Schema] = (LEFT, RIGHT)) -> None:
        self.subtask = Subtask(operator, schemas, key_count=1)
        self.watermark_ms = MIN_WATERMARK
        self.checkpoints = 0

    def epoch(self, left: list[Row], right: list[Row], watermark: int, at_ms: int = 0) -> Outcome:
        self.checkpoints += 1
        time = EpochTime(
            checkpoint_id=self.checkpoints,
            previous_watermark_ms=self.watermark_ms,
            watermark_ms=START_MS + watermark,
            processing_time_ms=at_ms,
        )
        self.watermark_ms = time.watermark_ms
        return self.subtask.play([left], [right], time=time)

    def kept(self, table: str) -> int:
        return self.subtask.state()[table].scan().height


def interval(lower: int, upper: int, **more: Any) -> IntervalJoinOperator:
    declared = ops.IntervalJoin(lower_ms=lower, upper_ms=upper, **more)
    return IntervalJoinOperator(a_stage(declared), LEFT, RIGHT)
