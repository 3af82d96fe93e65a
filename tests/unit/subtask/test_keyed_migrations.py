"""State of a keyed function whose type changed: migrated by what its state declares, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, timedelta
from typing import Any

import pytest

from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from sluice.errors import ConfigurationError, RestoreError
from sluice.operators.operator import EpochTime
from tests.property.subtask.subtask import Subtask
from tests.unit.subtask.keyed import INPUT, Played, a_row
from tests.unit.subtask.test_keyed_accumulating import Mean

Act = Callable[[Any], object]


def a_function(declared: State[Any, Any], write: Act) -> KeyedProcessFunction:
    """Keeps ``kept``, which is *declared*; a row "write" writes it, and any row tells it."""

    class Keeping(KeyedProcessFunction):
        kept = declared
        other = ValueState(int)

        def process(self, row: Row, context: Context) -> Iterable[Row]:
            if row["text"] == "write":
                write(self)
            self.other.set(1)
            read = self.kept.items if isinstance(declared, MapState) else self.kept.get  # type: ignore[attr-defined]
            yield {"told": str(read())}

    return Keeping()


def after(before: State[Any, Any], write: Act, now: State[Any, Any], again: Act = print) -> Played:
    """*now* on the state that two epochs of *before* left: of keys 1 and 2, and of key 2."""
    first = Played(a_function(before, write))
    first.epoch(a_row(1, "write"), a_row(2, "write"), a_row(3))
    first.epoch(a_row(2, "write"))
    second = Played(a_function(now, again))
    second.checkpoints = first.checkpoints
    second.subtask = Subtask(second.operator, [INPUT], key_count=1, runs=first.subtask.runs)
    return second


class Sum(AggregateFunction[float, float, float]):
    def create_accumulator(self) -> float:
        return 0.0

    def add(self, value: float, accumulator: float) -> float:
        return accumulator + value

    def get_result(self, accumulator: float) -> float:
        return accumulator


@pytest.mark.parametrize(
    ("before", "write", "now", "told"),
    [
        (ValueState(int), lambda f: f.kept.set(7), ValueState(str, migrations={int: str}), "7"),
        (
            ValueState(str),
            lambda f: f.kept.set("2026-01-02"),
            ValueState(date, migrations={int: date.fromordinal, str: date.fromisoformat}),
            "2026-01-02",
        ),
        (
            ListState(int),
            lambda f: f.kept.update([1, 2]),
            ListState(tuple[int, str], migrations={int: lambda n: (n, "?")}),
            "[(1, '?'), (2, '?')]",
        ),
        (
            MapState(str, tuple[int, int]),
            lambda f: f.kept.put("k", (2, 3)),
            MapState(str, int, migrations={tuple[int, int]: sum}),
            "[('k', 5)]",
        ),
        (
            ReducingState(max, int),
            lambda f: f.kept.add(7),
            ReducingState(max, float, migrations={int: float}),
            "7.0",
        ),
        (
            AggregatingState(Sum(), float),
            lambda f: f.kept.add(7),
            AggregatingState(Mean(), tuple[float, int], migrations={float: lambda n: (n, 2)}),
            "3.5",
        ),
        (
            ValueState(tuple[int, int]),
            lambda f: f.kept.set((1, 2)),
            ValueState(tuple[int, int, int], migrations={tuple[int, int]: lambda p: (*p, 0)}),
            "(1, 2, 0)",
        ),
        (
            ValueState(int, ttl=timedelta(days=1)),
            lambda f: f.kept.set(7),
            ValueState(bool, ttl=timedelta(days=2), migrations={int: bool}),
            "True",
        ),
    ],
    ids=["value", "one of several", "list", "map", "reduced", "aggregated", "tuple", "with a TTL"],
)
def test_a_value_of_a_former_type_is_migrated_as_it_is_read(
    before: State[Any, Any], write: Act, now: State[Any, Any], told: str
) -> None:
    played = after(before, write, now)

    first = played.told(a_row(1))

    assert first == [told]
    assert played.told(a_row(1)) == [told]
    assert played.told(a_row(3)) in (["None"], ["[]"])
    assert played.told(a_row(4)) in (["None"], ["[]"])


def test_rows_are_migrated_in_every_way_in_which_they_are_read() -> None:
    played = after(
        ValueState(int),
        lambda f: f.kept.set(7),
        ValueState(str, migrations={int: lambda n: f"was {n}"}),
        lambda f: f.kept.set(f"{f.kept.get()}!"),
    )

    played.epoch(a_row(1, "write"))

    state = played.subtask.state()["values"]
    expected = {1: "was 7!", 2: "was 7", 3: None}
    assert dict(state.scan().select("user", "kept").rows()) == expected
    assert dict(state.find(state.scan()).select("user", "kept").rows()) == expected
    pieces = [piece for piece in state.scan_pieces(1) if piece.height]
    assert {row[0]: row[1] for p in pieces for row in p.select("user", "kept").rows()} == expected
    time = EpochTime(
        checkpoint_id=9, previous_watermark_ms=0, watermark_ms=0, processing_time_ms=10**12
    )
    played.subtask.play([[a_row(4)]], time=time, merge=True)
    assert len(played.subtask.runs["values"]) == 1
    merged = dict(played.subtask.state()["values"].scan().select("user", "kept").rows())
    assert merged == {**expected, 4: None}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (
            ValueState(str),
            r"'kept' was Int64 and is now String, and has no migration .* migrations=\{int: ...\}",
        ),
        (ValueState(str, migrations={bytes: bytes.decode}), "'kept' was Int64 and is now String"),
        (
            ValueState(str, migrations={int: lambda n: 1 / (n - 7)}),
            "the migration of state 'kept' from int raised ZeroDivisionError",
        ),
        (
            ValueState(str, migrations={int: lambda n: n + 1}),
            "from int raised ConfigurationError: state 'kept' holds str, not 8 of type int",
        ),
    ],
    ids=["none", "of another type", "raises", "of a wrong type"],
)
def test_a_change_without_a_migration_that_works_is_refused_by_name(
    now: State[Any, Any], said: str
) -> None:
    played = after(ValueState(int), lambda f: f.kept.set(7), now)

    with pytest.raises(RestoreError, match=f"a stage cannot read its state: .*{said}"):
        played.epoch(a_row(1))


@pytest.mark.parametrize(
    ("before", "write", "now", "said"),
    [
        (
            ValueState(tuple[int, str]),
            lambda f: f.kept.set((1, "a")),
            ValueState(tuple[int, str, bool]),
            r"migrations=\{tuple\[int, str\]: ...\} at the state",
        ),
        (ListState(int), lambda f: f.kept.add(1), ListState(bool), r"migrations=\{int: ...\}"),
        (
            MapState(str, date),
            lambda f: f.kept.put("k", date(2026, 1, 1)),
            MapState(str, timedelta),
            r"migrations=\{date: ...\}",
        ),
        (
            MapState(str, int),
            lambda f: f.kept.put("k", 1),
            MapState(int, int, migrations={str: int}),
            "key column '_map_key' was String and is now Int64, but the columns of a key may",
        ),
    ],
    ids=["tuple", "list", "map", "key of a map"],
)
def test_what_changed_is_named_with_the_type_to_migrate_from(
    before: State[Any, Any], write: Act, now: State[Any, Any], said: str
) -> None:
    with pytest.raises(RestoreError, match=said):
        after(before, write, now).epoch(a_row(1))


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda: ValueState(int, migrations={int: abs}), "ValueState migrates from int, which is"),
        (lambda: ListState(int, migrations={list: len}), "state cannot hold <class 'list'> here"),
        (
            lambda: ReducingState(max, int, migrations={str: 5}),  # type: ignore[dict-item]
            "ReducingState migrates from str by 5, which cannot be called; give it a function",
        ),
    ],
    ids=["same", "no type", "no function"],
)
def test_a_migration_that_is_none_is_refused_where_it_is_declared(
    declare: Callable[[], object], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        declare()
