"""The rules of a keyed function, one by one: what it may keep and yield, timers, broadcast rows,
operator lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from math import nan
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from sluice.core.event_time import MAX_WATERMARK
from sluice.core.plan import TaskPlan
from sluice.declaration import operations as ops
from sluice.declaration.declared_states import with_own_states
from sluice.declaration.keyed_functions import (
    BEGINNING_OF_TIME,
    END_OF_TIME,
    BroadcastContext,
    BroadcastState,
    Context,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    OnTimerContext,
    OperatorListState,
    Row,
    UnionListState,
)
from sluice.declaration.keyed_states import MapState, ValueState
from sluice.declaration.nodes import Input, StageNode
from sluice.errors import CheckpointDeclined, ConfigurationError, StageFailed
from sluice.local.savepoint_tables import bootstrapped
from sluice.operators import keyed_function
from sluice.operators.keyed_function import (
    BROADCAST_HASH,
    BroadcastSide,
    OperatorLists,
    list_tables,
)
from sluice.operators.operator import EpochTime
from sluice.state.keyed import Changes, KeyedState, delta_table
from sluice.state.runs import Run
from sluice.state.segments import HASH
from tests.unit.operators.keyed import MS, START, START_MS, Everything, Played, a_row, at

# What an act returns does not count.
Act = Callable[[Any], object]


def test_state_is_that_of_the_key_and_lasts() -> None:
    def count(self: Everything, row: Row, context: Context) -> Any:
        self.value.set(self.value.get(0) + 1)
        return f"{context.key['user']}: {self.value.get()} {row['text']}"

    played = Played(Everything(count))

    first = played.results(a_row(1, "b", 5), a_row(2, "c"), a_row(1, "a", 7), a_row(None, "d"))
    second = played.results(a_row(1, "e"))

    # By hash (null and even keys first), key, and time.
    assert first == ["None: 1 d", "2: 1 c", "1: 1 b", "1: 2 a"]
    assert second == ["1: 3 e"]


def test_what_is_remembered_on_the_function_itself_is_lost_between_epochs() -> None:
    played = Played(Everything(lambda self, _row, _context: self.rows))

    assert played.results(a_row(), a_row(2)) == ["1", "2"]
    assert played.results(a_row()) == ["1"]


def test_a_value_can_be_cleared_and_a_key_without_values_is_forgotten() -> None:
    acts: dict[str, Act] = {
        "set": lambda f: (f.value.set(1), f.ratio.set(2)),
        "clear": lambda f: f.value.clear(),
        "clear more": lambda f: (f.ratio.clear(), f.ratio.clear()),
    }
    played = Played(Everything(lambda f, row, _: acts[row["text"]](f) and None))

    played.epoch(a_row(text="set"))
    played.epoch(a_row(text="clear"))
    kept = played.subtask.state()["values"].scan().rows()
    played.epoch(a_row(text="clear more"))

    assert kept == [(1, 1, 2.0, None, None)]
    assert played.subtask.state()["values"].scan().is_empty()


def test_a_list_appends_and_is_replaced_and_writes_only_what_changed() -> None:
    acts: dict[str, Act] = {
        "add": lambda f: [f.numbers.add(n) for n in (7, 8, 9)],
        "again": lambda f: f.numbers.add(10),
        "update": lambda f: f.numbers.update([7, 5]),
        "clear": lambda f: f.numbers.clear(),
    }

    def act(self: Everything, row: Row, _: Context) -> Any:
        acts[row["text"]](self)
        return self.numbers.get()

    played = Played(Everything(act))
    outcomes = [played.epoch(a_row(text=text)) for text in ("add", "again", "update", "clear")]

    results = [outcome.output["result"].item() for outcome in outcomes]
    assert results == ["[7, 8, 9]", "[7, 8, 9, 10]", "[7, 5]", "[]"]
    changes = [outcome.changes["list:numbers"] for outcome in outcomes]
    assert [c.upserts.select("_index", "_value").rows() for c in changes] == [
        [(0, 7), (1, 8), (2, 9)],
        [(3, 10)],
        [(1, 5)],
        [],
    ]
    assert [c.deletes["_index"].to_list() for c in changes] == [[], [], [2, 3], [0, 1]]


def test_a_map_is_iterated_in_the_order_of_its_keys_whenever_they_came() -> None:
    def act(self: Everything, row: Row, _: Context) -> Any:
        for key in row["text"]:
            self.counts.put(key, self.counts.get(key, 0) + 1)
        self.counts.remove("x")
        self.counts.remove("y")
        return self.counts.items(), self.counts.contains("x"), self.counts.get("a")

    played = Played(Everything(act))

    assert played.results(a_row(text="bxa")) == ["([('a', 1), ('b', 1)], False, 1)"]
    assert played.results(a_row(text="a_")) == ["([('_', 1), ('a', 2), ('b', 1)], False, 2)"]


def test_values_are_read_back_as_they_are_now() -> None:
    plus_two = timezone(timedelta(hours=2))

    def act(self: Everything, row: Row, _: Context) -> Any:
        if row["text"] == "write":
            self.ratio.set(1)
            self.seen_at.set(START.astimezone(plus_two))
            self.days.put(date(2026, 1, 2), 3 * MS)
        return self.ratio.get(), str(self.seen_at.get()), self.days.items()

    played = Played(Everything(act))

    assert played.results(a_row(text="write")) == played.results(a_row(text="read"))


def test_what_was_written_again_is_kept_for_another_ttl() -> None:
    acts: dict[str, Act] = {"set": lambda f: f.value.set(5), "get": lambda f: None}

    def act(self: Everything, row: Row, _: Context) -> Any:
        acts[row["text"]](self)
        return self.value.get()

    touched = Played(Everything(act), ttl_ms=2_000)
    read = Played(Everything(act), ttl_ms=2_000)

    assert [touched.results(a_row(text=t))[0] for t in ("set", "set", "get")] == ["5", "5", "5"]
    assert [read.results(a_row(text=t)) for t in ("set", "get", "get")] == [["5"], ["5"], []]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda f: f.value.set("1"), "state 'value' holds int, not '1' of type str; convert it"),
        (lambda f: f.value.set(True), "state 'value' holds int, not True of type bool"),
        (lambda f: f.value.set(None), "state 'value' holds int, not None"),
        (lambda f: f.value.set(2**63), "state 'value' holds int, not 9223372036854775808"),
        (lambda f: f.numbers.update([1, 1.5]), "state 'numbers' holds int, not 1.5"),
        (lambda f: f.counts.get(1), "state 'counts' holds str, not 1"),
        (lambda f: f.days.put(START, MS), "state 'days' holds date, not datetime"),
        (lambda f: f.seen_at.set(datetime(2026, 1, 1)), "has no time zone; use UTC"),  # noqa: DTZ001
        (lambda f: setattr(f, "value", 1), "state 'value' is not assigned to; use its methods"),
        (lambda f: f.counts.put("\ud83d", 1), r"state 'counts' holds str, not .*half a character"),
        (lambda f: f.days.put(date(2026, 1, 2), timedelta.max), "'days' holds timedelta, not"),
        (
            lambda f: f.seen_at.set(datetime.max.replace(tzinfo=timezone(-timedelta(hours=2)))),
            "state 'seen_at' holds datetime, not",
        ),
    ],
)
def test_a_value_of_another_type_is_refused_where_it_is_written(act: Any, message: str) -> None:
    played = Played(Everything(lambda f, _row, _context: act(f)))

    with pytest.raises(ConfigurationError, match=f"stage 'alerts', key {{'user': 1}}: .*{message}"):
        played.epoch(a_row())


def test_a_function_may_decline_the_checkpoint() -> None:
    def declines(*_: object) -> None:
        raise CheckpointDeclined("too early", reason="CHECKPOINT_DECLINED_TASK_CLOSING")

    with pytest.raises(CheckpointDeclined, match="too early"):
        Played(Everything(declines)).epoch(a_row())


def test_state_outside_of_a_key_is_refused() -> None:
    function = Everything(lambda *_: None)

    with pytest.raises(ConfigurationError, match=r"'value' is that of a key; use it inside proc"):
        function.value.get()


def test_a_type_that_cannot_be_kept_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ConfigurationError, match="state cannot hold <class 'list'> here; use one"):
        ValueState(list)
    with pytest.raises(ConfigurationError, match="state cannot hold <class 'float'> here"):
        MapState(float, int)


def test_states_are_inherited_and_may_be_replaced() -> None:
    class More(Everything):
        value = ValueState(str)  # type: ignore[arg-type]  # on purpose
        other = ValueState(bool)

    operator = Played(More(lambda *_: None)).operator

    columns = operator.tables["values"].columns
    assert columns.names() == ["user", "other", "ratio", "seen_at", "value"]
    assert columns["value"] == pl.String()


def test_a_state_is_not_called_like_a_key() -> None:
    class Clash(Everything):
        user = ValueState(int)

    with pytest.raises(ConfigurationError, match="column 'user' that is there twice; rename it"):
        Played(Clash(lambda *_: None))


def test_a_late_row_is_processed_and_can_tell_by_the_watermark() -> None:
    def act(_: Everything, _row: Row, context: Context) -> Any:
        context.timers.register_event_time(at(0))
        return context.timestamp is not None and context.timestamp <= context.current_watermark

    played = Played(Everything(act, lambda _f, _t, context: context.current_watermark))

    assert played.results(a_row(ms=5), watermark_ms=START_MS + 5) == ["False", str(at(5))]
    outcome = played.epoch(a_row(ms=5), watermark_ms=MAX_WATERMARK)
    assert outcome.output["result"].to_list() == ["True", str(END_OF_TIME)]
    assert outcome.late[0].is_empty()


def test_without_event_time_rows_come_in_the_order_of_their_columns() -> None:
    def act(_: Everything, row: Row, context: Context) -> Any:
        assert context.timestamp is None
        assert context.current_watermark == BEGINNING_OF_TIME
        return row["text"]

    played = Played(Everything(act), event_time=None)

    assert played.results(a_row(text="b", ms=0), a_row(text="a", ms=9)) == ["a", "b"]


# --- results


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


PRICE, TOTALS = pl.Decimal(10, 2), pl.Struct({"n": pl.Int64(), "at": pl.Datetime("us", "UTC")})
SUMMER = datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - what is refused


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (PRICE, Decimal("1.239")),
        (PRICE, 1.239),
        (pl.List(PRICE), [Decimal("1.50"), Decimal("1.239")]),
        (pl.Float64(), 2**53 + 1),
        (pl.Float32(), 1e300),
        (TOTALS, {"n": 1.5}),
        (TOTALS, {"n": 1, "when": None}),
        (TOTALS, {"at": NAIVE}),
        (pl.List(pl.Datetime("us", "UTC")), [NAIVE]),
        (pl.List(pl.Date()), [SUMMER]),
        (pl.List(pl.String()), "abc"),
    ],
)
def test_a_value_of_which_a_part_would_be_lost_is_refused(
    declared: pl.DataType, value: object
) -> None:
    played = Played(Yields({"it": None}, {"it": value}), result={"it": declared})

    with pytest.raises(ConfigurationError, match=r"has .* in column 'it', which is declared"):
        played.epoch(a_row())


@pytest.mark.parametrize(
    ("declared", "value", "kept"),
    [
        (PRICE, 1.1, Decimal("1.10")),
        (PRICE, 3, Decimal("3.00")),
        (pl.Float64(), 2**53, 2.0**53),
        (pl.Float64(), Decimal("0.1"), 0.1),
        (pl.Float32(), 0.5, 0.5),
        (pl.Float32(), float("inf"), float("inf")),
        (pl.Datetime("us", "UTC"), SUMMER, SUMMER),
        (pl.List(pl.Float64()), (1, 2), [1.0, 2.0]),
        (pl.List(pl.List(pl.Int64())), [None, [None, 1]], [None, [None, 1]]),
        (TOTALS, {"at": SUMMER}, {"n": None, "at": SUMMER}),
        (pl.List(TOTALS), [{"n": 1, "at": None}, None], [{"n": 1, "at": None}, None]),
    ],
)
def test_a_value_of_another_type_that_loses_nothing_is_taken(
    declared: pl.DataType, value: object, kept: object
) -> None:
    found = Played(Yields({"it": value}, {"it": None}), result={"it": declared}).epoch(a_row())

    assert found.output["it"].to_list() == [kept, None]


def test_floats_and_hours_that_are_there_twice_are_kept_as_they_are() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    hours = [datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1)]
    rows = [{"x": nan, "y": 0.1, "at": at} for at in hours]
    declared = {"x": float, "y": pl.Float32(), "at": datetime}

    found = Played(Yields(*rows), result=declared).epoch(a_row()).output

    assert found["x"].is_nan().all()
    assert found["y"].cast(pl.Float64).round(6).to_list() == [0.1, 0.1]
    assert found["at"].dt.hour().to_list() == [0, 1]


def test_a_row_that_is_returned_is_no_list_of_rows() -> None:
    class Returns(KeyedProcessFunction):
        def process(self, row: Row, context: Context) -> Any:
            return {"result": "one"}

    with pytest.raises(ConfigurationError, match=r"process\(\) returns .*'one'.*, one row; yield"):
        Played(Returns()).results(a_row())


def test_rows_are_taken_when_they_are_yielded() -> None:
    class Reuses(KeyedProcessFunction):
        def process(self, row: Row, context: Context) -> Iterable[Row]:
            row = {"result": "one"}
            yield row
            row["result"] = "two"
            yield row

    assert Played(Reuses()).results(a_row()) == ["one", "two"]


def test_an_exception_names_the_stage_and_the_key() -> None:
    def fail(*_: Any) -> Any:
        raise LookupError("no such thing")

    played = Played(Everything(fail))

    message = r"stage 'alerts', key {'user': 1}: process\(\) raised LookupError: no such thing"
    with pytest.raises(StageFailed, match=message):
        played.epoch(a_row())


def test_a_function_without_state_or_timers_needs_neither() -> None:
    played = Played(Yields({"result": "x"}))

    assert played.results(a_row(), a_row(2)) == ["x", "x"]
    assert played.epoch().output.schema == {"result": pl.String()}
    assert set(played.operator.tables) == {"event_timers", "processing_timers"}


# --- timers


def test_a_timer_fires_once_at_the_barrier_that_reaches_it_after_the_rows() -> None:
    def register(_: Everything, row: Row, context: Context) -> Any:
        context.timers.register_event_time(at(10))
        context.timers.register_event_time(at(10.9))  # Whole milliseconds: the same timer.
        return row["text"]

    played = Played(Everything(register, lambda _f, timestamp, _c: timestamp))

    assert played.results(a_row(text="a"), watermark_ms=START_MS + 9) == ["a"]
    assert played.results(a_row(text="b"), watermark_ms=START_MS + 10) == ["b", str(at(10))]
    assert played.results(watermark_ms=START_MS + 11) == []


def test_timers_fire_in_the_order_of_their_instants_of_both_domains() -> None:
    def register(_: Everything, _row: Row, context: Context) -> Any:
        for ms in (30, 10):
            context.timers.register_event_time(at(ms))
        for ms in (20, 10):
            context.timers.register_processing_time(at(ms))

    def describe(_: Everything, timestamp: datetime, context: OnTimerContext) -> Any:
        assert context.timestamp == timestamp
        return f"{context.time_domain} {(timestamp - START) // MS}"

    played = Played(Everything(register, describe))

    results = played.results(a_row(1), a_row(2), watermark_ms=MAX_WATERMARK)

    assert results == ["event 10", "processing 10", "processing 20", "event 30"] * 2


def test_a_timer_that_is_set_while_another_fires_fires_too_if_it_is_due() -> None:
    def again(_: Everything, timestamp: datetime, context: OnTimerContext) -> Any:
        context.timers.register_event_time(timestamp + 5 * MS)
        return (timestamp - START) // MS

    played = Played(
        Everything(lambda _f, _r, context: context.timers.register_event_time(at(0)), again)
    )

    assert played.results(a_row(), watermark_ms=START_MS + 12) == ["0", "5", "10"]
    assert played.subtask.state()["event_timers"].scan()["_time_ms"].to_list() == [START_MS + 15]
    assert played.results(watermark_ms=START_MS + 15) == ["15"]


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

    assert played.results(a_row(text="unset"), watermark_ms=START_MS + 10) == []
    assert played.results(a_row(text="set", ms=0), a_row(text="unset", ms=1)) == []
    assert played.subtask.state()["processing_timers"].scan().is_empty()
    assert [played.results() for _ in range(3)] == [[], [], []]


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

    assert played.results(a_row()) == [str(at(1_000))]
    assert [played.results() for _ in range(3)] == [[], ["processing"], []]


def test_a_timer_outlives_the_ttl_of_the_state() -> None:
    def act(self: Everything, row: Row, context: Context) -> Any:
        self.value.set(1)
        context.timers.register_processing_time(at(4_000))

    played = Played(Everything(act, lambda f, *_: f"value {f.value.get()}"), ttl_ms=1_000)
    played.epoch(a_row())

    assert [played.results() for _ in range(3)] == [[], [], ["value None"]]


def test_a_timer_that_fired_in_an_epoch_before_is_not_searched_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def set_two(_: Everything, _row: Row, context: Context) -> Any:
        for ms in (10, 30):
            context.timers.register_event_time(at(ms))

    played = Played(Everything(set_two))
    played.epoch(a_row(), watermark_ms=START_MS)
    searched: list[list[int]] = []
    find = KeyedState.find

    def noting(state: KeyedState, wanted: pl.DataFrame) -> pl.DataFrame:
        if "_time_ms" in wanted.columns:
            searched.append([ms - START_MS for ms in wanted["_time_ms"]])
        return find(state, wanted)

    monkeypatch.setattr(KeyedState, "find", noting)

    assert played.results(watermark_ms=START_MS + 10) == ["event"]
    searched.clear()
    assert played.results(watermark_ms=START_MS + 30) == ["event"]
    assert all(10 not in instants for instants in searched)


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


# --- broadcast rows

SEEN = "broadcast:seen"


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


def a_side(event_time: str | None = None) -> BroadcastSide:
    inputs = (
        Input(producer="bids", keys=("user",)),
        Input(producer="rules", event_time=event_time, is_broadcast=True),
    )
    operation = ops.ProcessKeyed(function=Seen(), result={"result": str})
    return BroadcastSide(StageNode(uid="alerts", operation=operation, inputs=inputs))


def received(event_time: str | None, rows: list[tuple[str, datetime]], *runs: Run) -> Changes:
    side = a_side(event_time)
    frame = pl.DataFrame(rows, {"name": pl.String(), "at": pl.Datetime("us", "UTC")}, orient="row")
    state = {SEEN: KeyedState(side.tables[SEEN], runs)}
    time = EpochTime(processing_time_ms=START_MS)
    changes = side.received(frame, state, time)[SEEN]
    assert changes.upserts.schema == side.tables[SEEN].live
    assert set(changes.upserts[HASH]) <= {BROADCAST_HASH}
    return changes


def kept(changes: Changes) -> dict[str, str]:
    return dict(changes.upserts.select("_map_key", "_value").rows())


ROWS = [(name, at(ms)) for ms, name in enumerate("dcba")]


@pytest.mark.parametrize("seed", range(3))
def test_rows_come_in_the_order_of_event_time_or_else_of_their_columns(seed: int) -> None:
    shuffled = Random(seed).sample(ROWS, len(ROWS))

    assert kept(received("at", shuffled)) == {"names": "dcba", "first": str(START)}
    assert kept(received(None, shuffled)) == {"names": "abcd", "first": "None"}


def test_only_what_changed_is_written_and_what_was_not_there_is_not_deleted() -> None:
    first = received("at", ROWS)
    run = Run(table=delta_table(a_side().tables[SEEN], first.upserts, first.deletes))

    second = received("at", ROWS[:1], run)

    assert kept(second) == {"names": "dcbad"}
    assert first.deletes.is_empty()
    assert second.deletes.is_empty()


def test_bootstrapped_broadcast_state_is_where_the_function_writes_it() -> None:
    schema = a_side().tables[SEEN]
    given = pl.DataFrame({"_map_key": ["names", "first"], "_value": ["z", "never"]})

    rows = bootstrapped(schema, given, now_ms=0, what="state of 'alerts'")
    none = schema.live.to_frame()
    run = Run(table=delta_table(schema, rows.select(*schema.live), none))

    assert kept(received("at", ROWS[:1], run)) == {"names": "zd"}


# --- operator lists

WAITING = "operator:waiting"


class Waits(KeyedProcessFunction):
    waiting = OperatorListState(str)
    seen = UnionListState(tuple[int, str])

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        return ()


OPERATION = ops.ProcessKeyed(function=Waits(), result={"n": int})
TABLES = list_tables(StageNode(uid="waits", operation=OPERATION, inputs=(Input(producer="in"),)))
Rows = dict[str, pl.DataFrame]


def opened(rows: Rows, parallelism: int, subtask: int) -> tuple[OperatorLists, Waits]:
    task = TaskPlan(uid="waits", parallelism=parallelism, max_parallelism=8)
    lists = OperatorLists(TABLES, rows, task, subtask)
    own = with_own_states(Waits())
    lists.bind(own.lists)
    return lists, own.function


def applied(rows: Rows, opened_lists: Iterable[OperatorLists]) -> Rows:
    """The rows after the changes of all subtasks."""
    found = dict(rows)
    for lists in opened_lists:
        for name, changes in lists.changes().items():
            identity = [*TABLES[name].identity]
            changed = pl.concat([changes.deletes, changes.upserts.select(identity)])
            kept = found[name].join(changed, on=identity, how="anti", nulls_equal=True)
            found[name] = pl.concat([kept, changes.upserts])
    return found


def none() -> Rows:
    return {name: schema.live.to_frame() for name, schema in TABLES.items()}


def played(rows: Rows, parallelism: int) -> tuple[Rows, list[list[str]]]:
    """An epoch in which nothing is written; its rows, and what each subtask has."""
    all_of = [opened(rows, parallelism, n) for n in range(parallelism)]
    return applied(rows, (lists for lists, _ in all_of)), [one.waiting.get() for _, one in all_of]


def test_elements_stay_where_they_are_until_the_parallelism_is_another_one() -> None:
    first = [opened(none(), 2, subtask) for subtask in (0, 1)]
    first[0][1].waiting.update("abcde")
    rows = applied(none(), (lists for lists, _ in first))

    same, two = played(rows, 2)
    four_rows, four = played(same, 4)
    again, settled = played(four_rows, 4)
    _, back = played(again, 1)

    assert two == [[*"abcde"], []]
    assert same[WAITING].equals(rows[WAITING])
    assert four == settled == [["a", "b"], ["c"], ["d"], ["e"]]
    assert_frame_equal(again[WAITING], four_rows[WAITING], check_row_order=False)
    assert back == [[*"abcde"]]


def test_what_is_cleared_and_replaced_leaves_no_row() -> None:
    lists, function = opened(none(), 1, 0)
    function.waiting.update("abc")
    function.seen.add((1, "x"))
    rows = applied(none(), [lists])

    lists, function = opened(rows, 1, 0)
    assert function.seen.get() == [(1, "x")]
    function.waiting.update("z")
    function.waiting.add("y")
    function.seen.clear()
    rows = applied(rows, [lists])

    assert rows[WAITING].sort("_index")["_value"].to_list() == ["z", "y"]
    assert rows["operator:seen"].is_empty()


@pytest.mark.parametrize("subtask", [0, 1, 7, None])
@pytest.mark.parametrize("parallelism", [0, 2, None])
def test_rows_that_were_bootstrapped_are_dealt_out(
    subtask: int | None, parallelism: int | None
) -> None:
    given = pl.DataFrame(
        {"_subtask": subtask, "_index": [0, 1, 2], "_value": [*"abc"], "_parallelism": parallelism},
        TABLES[WAITING].columns,
    )
    made = bootstrapped(TABLES[WAITING], given, now_ms=0, what="state of 'waits'")
    rows = none() | {WAITING: made.select(*TABLES[WAITING].live)}

    dealt_rows, dealt = played(rows, 2)
    _, again = played(dealt_rows, 2)

    assert dealt == again == [["a", "b"], ["c"]]
    assert dealt_rows[WAITING].height == 3
