"""The declarations that the joins refuse, by name, and what they tell about themselves."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from sluice.declaration import operations as ops
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import Attached, Session, Tumbling
from sluice.errors import ConfigurationError
from sluice.operators.joins import RegularJoinOperator
from sluice.operators.operator import EpochTime
from sluice.operators.timed_joins import IntervalJoinOperator, WindowJoinOperator
from tests.property.subtask.subtask import Subtask
from tests.unit.subtask.auctions import INSTANT, LEFT, MS, RIGHT, a_stage, interval


def refuses(message: str, build: Any, *arguments: Any) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(*arguments)


def test_keys_of_other_types_never_meet() -> None:
    right = pl.Schema({**RIGHT, "item": pl.Int32()})

    refuses(
        "stage 'bids' joins 'id' of type Int64 with 'item' of type Int32, whose hashes never meet",
        RegularJoinOperator,
        a_stage(ops.RegularJoin()),
        LEFT,
        right,
    )


def test_keys_are_as_many_on_both_sides() -> None:
    stage = a_stage(ops.RegularJoin(), keys=("item", "price"))

    refuses(
        r"joins 1 key columns \(id\) with 2 \(item, price\)",
        RegularJoinOperator,
        stage,
        LEFT,
        RIGHT,
    )


def test_a_column_on_both_sides_must_be_renamed_unless_only_the_left_goes_out() -> None:
    right = pl.Schema({**RIGHT, "until": pl.Int64()})

    refuses(
        "column 'until' on both sides", RegularJoinOperator, a_stage(ops.RegularJoin()), LEFT, right
    )
    semi = RegularJoinOperator(a_stage(ops.RegularJoin(how="semi")), LEFT, right)
    assert semi.output_schema == LEFT


def test_joins_in_time_need_instants() -> None:
    declared = ops.IntervalJoin(lower_ms=0, upper_ms=1)
    window = ops.WindowJoin(window=Tumbling(MS), how="inner")
    untimed = a_stage(declared, event_time=None)
    wrong = a_stage(window, event_time="price")

    refuses("needs an input with event time", IntervalJoinOperator, untimed, LEFT, RIGHT)
    refuses(
        "cannot use column 'price' of type Int64 as event time",
        WindowJoinOperator,
        wrong,
        LEFT,
        RIGHT,
    )
    refuses(
        "no column 'untill'.*did you mean 'until'",
        IntervalJoinOperator,
        a_stage(ops.IntervalJoin(lower_ms=0, upper_column="untill")),
        LEFT,
        RIGHT,
    )


def test_an_interval_has_bounds_in_order_and_in_reach() -> None:
    refuses("from 5 ms to 4 ms, which is empty; swap the bounds", interval, 5, 4)
    refuses("interval bound of 9000000000000000 ms", interval, 0, 9 * 10**15)


def test_windows_of_a_join_are_equal_on_both_sides() -> None:
    session = ops.WindowJoin(window=Session(MS), how="inner")
    attached = ops.WindowJoin(window=Attached(), how="inner")
    windowed = pl.Schema({**LEFT, "window_start": INSTANT, "window_end": INSTANT})

    refuses("cannot join in session windows", WindowJoinOperator, a_stage(session), LEFT, RIGHT)
    refuses("no column 'window_start'", WindowJoinOperator, a_stage(attached), windowed, RIGHT)


def test_an_attached_window_is_no_key_and_a_computed_one_takes_its_names() -> None:
    windowed = pl.Schema({**LEFT, "window_start": INSTANT, "window_end": INSTANT})
    given = Input(producer="windows", keys=("window_start",))
    attached = StageNode(
        uid="bids",
        operation=ops.WindowJoin(window=Attached(), how="inner"),
        inputs=(given, given),
    )
    tumbling = a_stage(ops.WindowJoin(window=Tumbling(MS), how="semi"))

    refuses("cannot be keyed by 'window_start'", WindowJoinOperator, attached, windowed, windowed)
    refuses(
        "column 'window_start' that is there twice", WindowJoinOperator, tumbling, windowed, RIGHT
    )


def test_a_join_reads_all_columns_in_any_order_and_leaves_nothing_to_spark() -> None:
    operator = RegularJoinOperator(a_stage(ops.RegularJoin()), LEFT, RIGHT)

    assert operator.needed_columns() is None
    assert not operator.is_order_sensitive
    assert operator.spark_partial() is None  # type: ignore[func-returns-value]


def test_an_epoch_without_groups_has_its_types() -> None:
    for operator in (
        RegularJoinOperator(a_stage(ops.RegularJoin()), LEFT, RIGHT),
        RegularJoinOperator(a_stage(ops.RegularJoin(how="semi")), LEFT, RIGHT),
        interval(0, 1, how="left"),
        WindowJoinOperator(a_stage(ops.WindowJoin(window=Tumbling(MS), how="semi")), LEFT, RIGHT),
    ):
        subtask = Subtask(operator, (LEFT, RIGHT), key_count=1)

        outcome = operator.process({}, subtask.state(), EpochTime(watermark_ms=5))

        assert outcome.output.schema == operator.output_schema
        for name, changes in outcome.changes.items():
            assert changes.upserts.schema == operator.tables[name].live
