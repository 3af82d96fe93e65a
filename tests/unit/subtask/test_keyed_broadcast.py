"""Broadcast rows come in the order of their event time, whatever the order they were read in."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random

import polars as pl
import pytest

from sluice.declaration import operations as ops
from sluice.declaration.keyed_functions import (
    BEGINNING_OF_TIME,
    BroadcastContext,
    BroadcastState,
    Context,
    KeyedBroadcastProcessFunction,
    Row,
)
from sluice.declaration.nodes import Input, StageNode
from sluice.local.savepoint_tables import bootstrapped
from sluice.operators.keyed_function import BROADCAST_HASH, BroadcastSide
from sluice.operators.operator import EpochTime
from sluice.state.keyed import Changes, KeyedState, delta_table
from sluice.state.runs import Run
from sluice.state.segments import HASH

START = datetime(2026, 1, 1, tzinfo=UTC)
TABLE = "broadcast:seen"


class Seen(KeyedBroadcastProcessFunction):
    """Keeps the names of the rows that came, in their order, and when the first of them was."""

    seen = BroadcastState(str, str)

    def process_broadcast(self, row: Row, context: BroadcastContext) -> None:
        assert (context.current_watermark, context.processing_time) == (BEGINNING_OF_TIME, START)
        self.seen.put("names", self.seen.get("names", "") + row["name"])
        if not self.seen.contains("first"):
            self.seen.put("first", str(context.timestamp))
        self.seen.put("gone", "")
        self.seen.remove("gone")

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        return ()


def received(event_time: str | None, rows: list[tuple[str, datetime]], *runs: Run) -> Changes:
    inputs = (
        Input(producer="bids", keys=("user",)),
        Input(producer="rules", event_time=event_time, is_broadcast=True),
    )
    operation = ops.ProcessKeyed(function=Seen(), result={"told": str})
    side = BroadcastSide(StageNode(uid="told", operation=operation, inputs=inputs))
    frame = pl.DataFrame(rows, {"name": pl.String(), "at": pl.Datetime("us", "UTC")}, orient="row")
    state = {TABLE: KeyedState(side.tables[TABLE], runs)}
    time = EpochTime(processing_time_ms=int(START.timestamp() * 1000))
    changes = side.received(frame, state, time)[TABLE]
    assert changes.upserts.schema == side.tables[TABLE].live
    assert set(changes.upserts[HASH]) <= {BROADCAST_HASH}
    return changes


def kept(changes: Changes) -> dict[str, str]:
    return dict(changes.upserts.select("_map_key", "_value").rows())


ROWS = [(name, START + timedelta(seconds=second)) for second, name in enumerate("dcba")]


@pytest.mark.parametrize("seed", range(3))
def test_rows_come_in_the_order_of_event_time_or_else_of_their_columns(seed: int) -> None:
    shuffled = Random(seed).sample(ROWS, len(ROWS))

    assert kept(received("at", shuffled)) == {"names": "dcba", "first": str(START)}
    assert kept(received(None, shuffled)) == {"names": "abcd", "first": "None"}


def test_only_what_changed_is_written_and_what_was_not_there_is_not_deleted() -> None:
    first = received("at", ROWS)
    side = BroadcastSide(
        StageNode(
            uid="told",
            operation=ops.ProcessKeyed(function=Seen(), result={"told": str}),
            inputs=(Input(producer="bids", keys=("user",)),),
        )
    )
    run = Run(table=delta_table(side.tables[TABLE], first.upserts, first.deletes))

    second = received("at", ROWS[:1], run)

    assert kept(second) == {"names": "dcbad"}
    assert first.deletes.is_empty()
    assert second.deletes.is_empty()


def test_bootstrapped_broadcast_state_is_where_the_function_writes_it() -> None:
    operation = ops.ProcessKeyed(function=Seen(), result={"told": str})
    inputs = (Input(producer="bids", keys=("user",)),)
    schema = BroadcastSide(StageNode(uid="told", operation=operation, inputs=inputs)).tables[TABLE]
    given = pl.DataFrame({"_map_key": ["names", "first"], "_value": ["z", "never"]})

    rows = bootstrapped(schema, given, now_ms=0, what="state of 'told'")
    none = schema.live.to_frame()
    run = Run(table=delta_table(schema, rows.select(*schema.live), none))

    assert kept(received("at", ROWS[:1], run)) == {"names": "zd"}
