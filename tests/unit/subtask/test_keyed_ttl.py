"""The TTL that a state of a keyed function declares, whatever that of its stage is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest

from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateTtlConfig,
    ValueState,
)
from sluice.errors import ConfigurationError, RestoreError
from tests.property.subtask.subtask import Subtask
from tests.unit.subtask.keyed import INPUT, Played, a_row
from tests.unit.subtask.test_keyed_accumulating import Mean

# An epoch is a second; what is written in one is gone in the third that follows.
TTL = timedelta(milliseconds=2_500)
WRITE = StateTtlConfig.UpdateType.OnCreateAndWrite
READ = StateTtlConfig.UpdateType.OnReadAndWrite
NEVER = StateTtlConfig.StateVisibility.NeverReturnExpired
ONCE_MORE = StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp

Act = Callable[[Any], object]
WRITES: dict[str, Act] = {
    "value": lambda f: f.value.set(1),
    "list": lambda f: f.list.add(1),
    "map": lambda f: f.map.put("k", 1),
    "reduced": lambda f: f.reduced.add(1),
    "mean": lambda f: f.mean.add(1),
}
READS: dict[str, Act] = {
    "value": lambda f: f.value.get(),
    "list": lambda f: f.list.get(),
    "map": lambda f: f.map.get("k"),
    "reduced": lambda f: f.reduced.get(),
    "mean": lambda f: f.mean.get(),
}


def a_function(config: StateTtlConfig | timedelta | None) -> Any:
    class Remembering(KeyedProcessFunction):
        """Writes and reads as its row says: "write value read map …"."""

        value = ValueState(int, ttl=config)
        list = ListState(int, ttl=config)
        map = MapState(str, int, ttl=config)
        reduced = ReducingState(max, int, ttl=config)
        mean = AggregatingState(Mean(), tuple[float, int], ttl=config)
        plain = ValueState(int)

        def process(self, row: Row, context: Context) -> Iterable[Row]:
            words = row["text"].split()
            for act, name in zip(words[::2], words[1::2], strict=True):
                if act == "write":
                    WRITES[name](self)
                elif act == "contains":
                    yield {"told": str(self.map.contains("k"))}
                elif name == "plain":
                    self.plain.set(self.plain.get(0) + 1)
                    yield {"told": str(self.plain.get())}
                else:
                    yield {"told": str(READS[name](self) or "gone")}

    return Remembering()


def told(played: Played, *texts: str) -> list[str]:
    """What the read of each epoch tells; "" is an epoch without a row of the key."""
    return [" ".join(played.told(*([a_row(text=text)] if text else []))) for text in texts]


def told_by_each(played: Played, *epochs: str) -> Iterator[tuple[str, list[str]]]:
    """The same of each kind of state: the row of an epoch of "write read" does both to all."""
    told: dict[str, list[str]] = {name: [] for name in WRITES}
    for words in map(str.split, epochs):
        text = " ".join(f"{word} {name}" for name in told for word in words)
        said = iter(played.told(*([a_row(text=text)] if words else [])))
        for mine in told.values():
            mine.append(" ".join(islice(said, words.count("read"))))
    yield from told.items()


def test_an_entry_is_forgotten_when_it_was_not_written_for_its_own_ttl() -> None:
    for name, first in told_by_each(Played(a_function(TTL)), "write", *["read"] * 3):
        assert first[1] == first[2] != "gone", name
        assert first[3] == "gone", name

    for name, again in told_by_each(Played(a_function(TTL)), *["write"] * 2, *["read"] * 3):
        assert "gone" not in again[2:4], name
        assert again[4] == "gone", name


def test_a_read_begins_a_ttl_anew_where_it_is_declared_so() -> None:
    config = StateTtlConfig(TTL, READ)

    for name, reads in told_by_each(Played(a_function(config)), "write", *["read"] * 4):
        assert "gone" not in reads, name

    for name, pause in told_by_each(Played(a_function(config)), "write", "read", "", "", "read"):
        assert pause[1] != "gone", name
        assert pause[4] == "gone", name


def test_whether_a_map_contains_a_key_is_a_read() -> None:
    told_so = told(
        Played(a_function(StateTtlConfig(TTL, READ))), "write map", *(["contains map"] * 5)
    )

    assert told_so[1:] == ["True"] * 5


def test_a_read_refreshes_only_what_was_read() -> None:
    played = Played(a_function(StateTtlConfig(TTL, READ)))

    told(played, "write value write map", "read map", "read map")
    changes = played.epoch(a_row(text="read map read value")).changes

    assert changes["map:map"].upserts["_value"].to_list() == [1]
    assert changes["value:value"].upserts.is_empty()


def test_a_disabled_ttl_keeps_what_the_stage_would_forget() -> None:
    epochs = ("write", "", "", "read")

    for name, kept in told_by_each(Played(a_function(StateTtlConfig.DISABLED), ttl_ms=1), *epochs):
        assert kept[3] != "gone", name

    for name, lost in told_by_each(Played(a_function(None), ttl_ms=1), *epochs):
        assert lost[3] == "gone", name


def test_the_ttl_of_the_stage_is_that_of_states_that_declare_none() -> None:
    played = Played(a_function(timedelta(days=1)), ttl_ms=1_500)

    tables = {name: schema.ttl_ms for name, schema in played.operator.tables.items()}

    assert tables["values"] == 1_500
    assert tables["value:value"] == tables["list:list"] == tables["map:map"] == 86_400_000
    assert tables["event_timers"] is None
    assert told(played, "write value read plain", "", "read plain read value") == ["1", "", "1 1"]


@pytest.mark.parametrize("update", [WRITE, READ], ids=lambda one: str(one.name))
def test_an_expired_entry_is_returned_once_more_where_it_is_declared_so(
    update: StateTtlConfig.UpdateType,
) -> None:
    def told_after(*epochs: str) -> dict[str, list[str]]:
        function = a_function(StateTtlConfig(TTL, update, ONCE_MORE))
        return dict(told_by_each(Played(function), "write", "", "", *epochs))

    late = told_after("", "read", "read")
    too_late = told_after("", "", "read")
    twice = told_after("", "read read")

    for name in WRITES:
        assert late[name][4] != "gone", name
        assert late[name][5] == "gone", name
        assert too_late[name][5] == "gone", name
        assert twice[name][4] == f"{late[name][4]} gone", name


def test_an_expired_entry_that_is_written_lives_again() -> None:
    played = Played(a_function(StateTtlConfig(TTL, WRITE, ONCE_MORE)))

    late = told(played, "write mean", "", "", "write mean read mean read mean", "read mean")
    asked = told(
        Played(a_function(StateTtlConfig(TTL, WRITE, ONCE_MORE))),
        *("write map", "", "", "contains map contains map read map contains map"),
    )

    assert late[3:] == ["1.0 1.0", "1.0"]
    assert asked[3] == "True True 1 False"


def test_elements_of_a_list_expire_one_by_one() -> None:
    played = Played(a_function(TTL))

    told(played, "write list", "write list")
    lengths = [len(told(played, "write list read list")[0].split(",")) for _ in range(3)]

    assert lengths == [3, 3, 3]


def moved(before: Any, now: Any) -> Played:
    """*now* on the state that an epoch of *before* left."""
    first = Played(before)
    first.epoch(a_row(text="write value write list"))
    second = Played(now)
    second.subtask = Subtask(second.operator, [INPUT], key_count=1, runs=first.subtask.runs)
    return second


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (None, TTL, "state 'mean' had the TTL of its stage and now has its own, and its values"),
        (TTL, None, "state 'mean' had a TTL of its own and now has that of its stage, and its"),
    ],
)
def test_a_value_that_gets_or_loses_a_ttl_of_its_own_is_refused_by_name(
    before: Any, now: Any, said: str
) -> None:
    with pytest.raises(RestoreError, match=f"cannot read its state: {said}"):
        moved(a_function(before), a_function(now)).epoch(a_row(text="read list"))


def test_where_a_value_would_be_with_another_ttl_is_no_table_that_is_written() -> None:
    tables = Played(a_function(None)).operator.tables

    former = {name for name, schema in tables.items() if schema.is_former}
    assert former == {"value:value", "value:reduced", "value:mean", "value:plain"}


def test_a_ttl_may_become_another_one_and_be_disabled() -> None:
    longer = moved(a_function(TTL), a_function(2 * TTL))
    disabled = moved(a_function(TTL), a_function(StateTtlConfig.DISABLED))
    longer.checkpoints, disabled.checkpoints = 4, 1_000

    assert told(longer, "read value", "read value") == ["1", "gone"]
    assert told(disabled, "read value") == ["1"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (lambda: StateTtlConfig(timedelta(0)), "TTL of datetime.timedelta.0.; use a timedelta of"),
        (lambda: StateTtlConfig(5), "given a TTL of 5; use a timedelta of 1 ms or more"),  # type: ignore[arg-type]
        (
            lambda: StateTtlConfig(TTL, "OnReadAndWrite"),  # type: ignore[arg-type]
            "'OnReadAndWrite' as UpdateType; use one of: StateTtlConfig.UpdateType.Disabled, Stat",
        ),
        (
            lambda: StateTtlConfig(TTL, READ, READ),  # type: ignore[arg-type]
            "as StateVisibility; use one of: StateTtlConfig.StateVisibility.ReturnExpiredIfNot",
        ),
        (lambda: ValueState(int, ttl=5), "ValueState is given ttl=5; use a timedelta or a"),  # type: ignore[arg-type]
        (lambda: MapState(str, int, ttl=timedelta(0)), "use a timedelta of 1 ms or more"),
    ],
    ids=["zero", "number", "update", "visibility", "state", "shorthand"],
)
def test_a_ttl_that_is_none_is_refused_where_it_is_declared(
    config: Callable[[], object], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        config()
