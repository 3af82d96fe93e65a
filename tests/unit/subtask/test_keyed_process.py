"""The rules of a keyed function's state: values, lists and maps that belong to a key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import polars as pl
import pytest

from sluice.declaration.keyed_functions import Context, Row
from sluice.declaration.keyed_states import MapState, ValueState
from sluice.errors import CheckpointDeclined, ConfigurationError
from tests.unit.subtask.keyed import MS, START, Everything, Played, a_row

# What it returns is never looked at.
Act = Callable[[Any], object]


def test_state_is_that_of_the_key_and_lasts() -> None:
    def count(self: Everything, row: Row, context: Context) -> Any:
        self.value.set(self.value.get(0) + 1)
        return f"{context.key['user']}: {self.value.get()} {row['text']}"

    played = Played(Everything(count))

    first = played.told(a_row(1, "b", 5), a_row(2, "c"), a_row(1, "a", 7), a_row(None, "d"))
    second = played.told(a_row(1, "e"))

    # By hash (null and even keys first), key, and time.
    assert first == ["None: 1 d", "2: 1 c", "1: 1 b", "1: 2 a"]
    assert second == ["1: 3 e"]


def test_what_is_remembered_on_the_function_itself_is_lost_between_epochs() -> None:
    played = Played(Everything(lambda self, _row, _context: self.rows))

    assert played.told(a_row(), a_row(2)) == ["1", "2"]
    assert played.told(a_row()) == ["1"]


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

    told = [outcome.output["told"].item() for outcome in outcomes]
    assert told == ["[7, 8, 9]", "[7, 8, 9, 10]", "[7, 5]", "[]"]
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

    assert played.told(a_row(text="bxa")) == ["([('a', 1), ('b', 1)], False, 1)"]
    assert played.told(a_row(text="a_")) == ["([('_', 1), ('a', 2), ('b', 1)], False, 2)"]


def test_values_are_read_back_as_they_are_now() -> None:
    plus_two = timezone_of(2)

    def act(self: Everything, row: Row, _: Context) -> Any:
        if row["text"] == "write":
            self.ratio.set(1)
            self.seen_at.set(START.astimezone(plus_two))
            self.days.put(date(2026, 1, 2), 3 * MS)
        return self.ratio.get(), str(self.seen_at.get()), self.days.items()

    played = Played(Everything(act))

    assert played.told(a_row(text="write")) == played.told(a_row(text="read"))


def timezone_of(hours: int) -> Any:
    return datetime.fromisoformat(f"2026-01-01T00:00:00+{hours:02}:00").tzinfo


def test_what_was_written_again_is_kept_for_another_ttl() -> None:
    acts: dict[str, Act] = {"set": lambda f: f.value.set(5), "get": lambda f: None}

    def act(self: Everything, row: Row, _: Context) -> Any:
        acts[row["text"]](self)
        return self.value.get()

    touched = Played(Everything(act), ttl_ms=2_000)
    read = Played(Everything(act), ttl_ms=2_000)

    assert [touched.told(a_row(text=t))[0] for t in ("set", "set", "get")] == ["5", "5", "5"]
    assert [read.told(a_row(text=t)) for t in ("set", "get", "get")] == [["5"], ["5"], []]


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
