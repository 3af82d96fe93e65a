"""States of a keyed function: values that are added to, tuples, former types, a state's TTL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, timedelta
from itertools import islice
from typing import Any

import polars as pl
import pytest

from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    StateTtlConfig,
    ValueState,
)
from sluice.errors import ConfigurationError, RestoreError, StageFailed
from sluice.operators.operator import EpochTime
from tests.property.operators.subtask import Subtask
from tests.unit.operators.keyed import INPUT, Played, a_row


class Mean(AggregateFunction[float, tuple[float, int], float]):
    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: float, accumulator: tuple[float, int]) -> tuple[float, int]:
        total, count = accumulator
        return total + value, count + 1

    def get_result(self, accumulator: tuple[float, int]) -> float:
        total, count = accumulator
        return total / count


def longer(left: str, right: str) -> str:
    return left if len(left) >= len(right) else right


class Accumulating(KeyedProcessFunction):
    """Gives each row to a function of the test's."""

    largest = ReducingState(max, int)
    longest = ReducingState(longer, str)
    mean = AggregatingState(Mean(), tuple[float, int])
    plain = ValueState(int)
    pair = ValueState(tuple[str, int])
    pairs = ListState(tuple[int, timedelta])
    places = MapState(str, tuple[float, float])

    def __init__(self, on_row: Callable[..., Any]) -> None:
        self.on_row = on_row

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        yield {"result": str(self.on_row(self, row))}


def add_length(function: Accumulating, row: Row) -> Any:
    if row["text"]:
        function.largest.add(len(row["text"]))
        function.longest.add(row["text"])
        function.mean.add(len(row["text"]))
    return function.largest.get(), function.longest.get(), function.mean.get()


def test_values_are_reduced_and_aggregated_over_rows_and_epochs() -> None:
    played = Played(Accumulating(add_length))

    first = played.results(a_row(2), a_row(1, "abc"), a_row(1, "z", 1))
    second = played.results(a_row(1, "xyz"), a_row(1, "", 1), a_row(2, "ab"))

    assert first == ["(None, None, None)", "(3, 'abc', 3.0)", "(3, 'abc', 2.0)"]
    mean = 7 / 3
    assert second == ["(2, 'ab', 2.0)", f"(3, 'abc', {mean})", f"(3, 'abc', {mean})"]


def test_what_is_kept_is_one_value_a_key_beside_the_others() -> None:
    played = Played(Accumulating(add_length))

    played.epoch(a_row(1, "abc"), a_row(1, "z", 1))

    kept = played.subtask.state()["values"].scan()
    assert kept.select("user", "largest", "longest", "mean", "plain").rows() == [
        (1, 3, "abc", {"f0": 4.0, "f1": 2}, None)
    ]


def test_what_was_cleared_begins_anew() -> None:
    def act(function: Accumulating, row: Row) -> Any:
        if row["text"] == "clear":
            function.largest.clear()
            function.mean.clear()
            function.longest.clear()
            return None
        return add_length(function, row)

    played = Played(Accumulating(act))

    played.epoch(a_row(text="abc"))
    played.epoch(a_row(text="clear"))
    is_empty = played.subtask.state()["values"].scan().is_empty()

    assert is_empty
    assert played.results(a_row(text="b")) == ["(1, 'b', 1.0)"]


def test_a_value_that_changes_nothing_is_not_written() -> None:
    def act(function: Accumulating, row: Row) -> None:
        function.largest.add(len(row["text"]))

    played = Played(Accumulating(act))
    written = [
        played.epoch(a_row(text=text)).changes["values"].upserts.height
        for text in ("abc", "a", "abcd")
    ]

    assert written == [1, 0, 1]


def test_tuples_are_read_back_as_they_were_written() -> None:
    def act(function: Accumulating, row: Row) -> Any:
        if row["text"] == "write":
            function.pair.set(("a", 1))
            function.pairs.update([(1, timedelta(1)), (2, timedelta(2))])
            function.places.put("here", (1, -0.0))
        return function.pair.get(), function.pairs.get(), function.places.items()

    played = Played(Accumulating(act))

    written = played.results(a_row(text="write"))

    assert written == played.results(a_row(text="read"))
    assert "('here', (1.0, 0.0))" in written[0]


def test_zero_is_one_value_whenever_it_is_read() -> None:
    class Zero(KeyedProcessFunction):
        zero = ValueState(float)

        def process(self, row: Row, context: Context) -> Iterable[Row]:
            if row["text"]:
                self.zero.set(float(row["text"]))
            yield {"result": str(self.zero.get())}

    played = Played(Zero())

    results = [played.results(a_row(text=text))[0] for text in ("0.0", "-0.0", "")]

    assert results == ["0.0", "0.0", "0.0"]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda f: f.largest.add(1.5), "state 'largest' holds int, not 1.5 of type float"),
        (lambda f: f.pair.set(("a",)), r"holds tuple\[str, int\], not \('a',\) of type tuple"),
        (lambda f: f.pair.set(("a", "b")), "state 'pair' holds int, not 'b' of type str"),
        (lambda f: f.pair.set(["a", 1]), r"'pair' holds tuple\[str, int\], not \['a', 1\] of"),
        (lambda f: f.pair.set(("a", None)), "state 'pair' holds int, not None"),
    ],
)
def test_a_value_of_another_type_is_refused_where_it_is_added(act: Any, message: str) -> None:
    played = Played(Accumulating(lambda f, _row: act(f)))

    with pytest.raises(ConfigurationError, match=f"stage 'alerts', key {{'user': 1}}: .*{message}"):
        played.epoch(a_row())


def test_what_a_function_makes_of_values_is_checked_like_a_value() -> None:
    class Halved(KeyedProcessFunction):
        half = ReducingState(lambda a, b: (a + b) / 2, int)  # type: ignore[arg-type,return-value]

        def process(self, row: Row, context: Context) -> None:
            self.half.add(1)

    with pytest.raises(ConfigurationError, match=r"state 'half' holds int, not 1.0 of type float"):
        Played(Halved()).epoch(a_row(), a_row())


def test_a_function_that_raises_fails_the_stage_and_names_the_key() -> None:
    played = Played(Accumulating(lambda f, _row: f.mean.add("x")))

    with pytest.raises(StageFailed, match=r"key {'user': 1}: process\(\) raised TypeError"):
        played.epoch(a_row())


def test_what_cannot_reduce_or_aggregate_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ConfigurationError, match=r"reduce is 5 \(int\); use a function"):
        ReducingState(5, int)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigurationError, match=r"function is Mean .*; write an instance of it, Mean\("
    ):
        AggregatingState(Mean, tuple[float, int])  # type: ignore[arg-type]


@pytest.mark.parametrize("of", [tuple, tuple[int, ...], tuple[list[int], int], tuple[()]], ids=repr)
def test_a_tuple_names_the_types_of_all_its_fields(of: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"or a tuple of them, such as tuple\[int, float"):
        ValueState(of)
    with pytest.raises(ConfigurationError, match=r"state cannot hold .* here; use one of: bool"):
        MapState(of, int)


def test_a_tuple_is_a_struct_of_numbered_fields() -> None:
    tables = Played(Accumulating(add_length)).operator.tables

    assert tables["values"].columns["pair"] == pl.Struct({"f0": pl.String(), "f1": pl.Int64()})
    assert tables["list:pairs"].columns["_value"] == pl.Struct(
        {"f0": pl.Int64(), "f1": pl.Duration("us")}
    )


Act = Callable[[Any], object]


def a_function(declared: State[Any, Any], write: Act) -> KeyedProcessFunction:
    """Keeps ``kept``, which is *declared*; a row "write" writes it, and any row yields it."""

    class Keeping(KeyedProcessFunction):
        kept = declared
        other = ValueState(int)

        def process(self, row: Row, context: Context) -> Iterable[Row]:
            if row["text"] == "write":
                write(self)
            self.other.set(1)
            read = self.kept.items if isinstance(declared, MapState) else self.kept.get  # type: ignore[attr-defined]
            yield {"result": str(read())}

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


# --- former types


class Sum(AggregateFunction[float, float, float]):
    def create_accumulator(self) -> float:
        return 0.0

    def add(self, value: float, accumulator: float) -> float:
        return accumulator + value

    def get_result(self, accumulator: float) -> float:
        return accumulator


@pytest.mark.parametrize(
    ("before", "write", "now", "result"),
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
    before: State[Any, Any], write: Act, now: State[Any, Any], result: str
) -> None:
    played = after(before, write, now)

    first = played.results(a_row(1))

    assert first == [result]
    assert played.results(a_row(1)) == [result]
    assert played.results(a_row(3)) in (["None"], ["[]"])
    assert played.results(a_row(4)) in (["None"], ["[]"])


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
    ("now", "message"),
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
    now: State[Any, Any], message: str
) -> None:
    played = after(ValueState(int), lambda f: f.kept.set(7), now)

    with pytest.raises(RestoreError, match=f"a stage cannot read its state: .*{message}"):
        played.epoch(a_row(1))


@pytest.mark.parametrize(
    ("before", "write", "now", "message"),
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
    before: State[Any, Any], write: Act, now: State[Any, Any], message: str
) -> None:
    with pytest.raises(RestoreError, match=message):
        after(before, write, now).epoch(a_row(1))


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: ValueState(int, migrations={int: abs}), "ValueState migrates from int, which is"),
        (lambda: ListState(int, migrations={list: len}), "state cannot hold <class 'list'> here"),
        (
            lambda: ReducingState(max, int, migrations={str: 5}),  # type: ignore[dict-item]
            "migrations is {.*: 5} .dict.; use a dict of functions or None",
        ),
    ],
    ids=["same", "no type", "no function"],
)
def test_a_migration_that_is_none_is_refused_where_it_is_declared(
    declare: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declare()


# --- TTLs of a state

# An epoch is a second; what is written in one is gone in the third that follows.
TTL = timedelta(milliseconds=2_500)
WRITE = StateTtlConfig.UpdateType.OnCreateAndWrite
READ = StateTtlConfig.UpdateType.OnReadAndWrite
NEVER = StateTtlConfig.StateVisibility.NeverReturnExpired
ONCE_MORE = StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
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


def remembering(config: StateTtlConfig | timedelta | None) -> Any:
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
                    yield {"result": str(self.map.contains("k"))}
                elif name == "plain":
                    self.plain.set(self.plain.get(0) + 1)
                    yield {"result": str(self.plain.get())}
                else:
                    yield {"result": str(READS[name](self) or "gone")}

    return Remembering()


def results(played: Played, *texts: str) -> list[str]:
    """What is read in each epoch; "" is an epoch without a row of the key."""
    return [" ".join(played.results(*([a_row(text=text)] if text else []))) for text in texts]


def of_each_kind(
    config: StateTtlConfig | timedelta | None, *epochs: str, ttl_ms: int | None = None
) -> Iterable[tuple[str, list[str]]]:
    """The same of each kind of state: the row of an epoch of "write read" does both to all."""
    played = Played(remembering(config), ttl_ms=ttl_ms)
    found: dict[str, list[str]] = {name: [] for name in WRITES}
    for words in map(str.split, epochs):
        text = " ".join(f"{word} {name}" for name in found for word in words)
        yielded = iter(played.results(*([a_row(text=text)] if words else [])))
        for of_kind in found.values():
            of_kind.append(" ".join(islice(yielded, words.count("read"))))
    return found.items()


def test_an_entry_is_forgotten_when_it_was_not_written_for_its_own_ttl() -> None:
    for name, first in of_each_kind(TTL, "write", *["read"] * 3):
        assert first[1] == first[2] != "gone", name
        assert first[3] == "gone", name

    for name, again in of_each_kind(TTL, *["write"] * 2, *["read"] * 3):
        assert "gone" not in again[2:4], name
        assert again[4] == "gone", name


def test_a_read_begins_a_ttl_anew_where_it_is_declared_so() -> None:
    config = StateTtlConfig(TTL, READ)

    for name, reads in of_each_kind(config, "write", *["read"] * 4):
        assert "gone" not in reads, name

    for name, pause in of_each_kind(config, "write", "read", "", "", "read"):
        assert pause[1] != "gone", name
        assert pause[4] == "gone", name


def test_whether_a_map_contains_a_key_is_a_read() -> None:
    played = Played(remembering(StateTtlConfig(TTL, READ)))

    assert results(played, "write map", *(["contains map"] * 5))[1:] == ["True"] * 5


def test_a_read_refreshes_only_what_was_read() -> None:
    played = Played(remembering(StateTtlConfig(TTL, READ)))

    results(played, "write value write map", "read map", "read map")
    changes = played.epoch(a_row(text="read map read value")).changes

    assert changes["map:map"].upserts["_value"].to_list() == [1]
    assert changes["value:value"].upserts.is_empty()


def test_a_disabled_ttl_keeps_what_the_stage_would_forget() -> None:
    epochs = ("write", "", "", "read")

    for name, kept in of_each_kind(StateTtlConfig.DISABLED, *epochs, ttl_ms=1):
        assert kept[3] != "gone", name

    for name, lost in of_each_kind(None, *epochs, ttl_ms=1):
        assert lost[3] == "gone", name


def test_the_ttl_of_the_stage_is_that_of_states_that_declare_none() -> None:
    played = Played(remembering(timedelta(days=1)), ttl_ms=1_500)

    tables = {name: schema.ttl_ms for name, schema in played.operator.tables.items()}

    assert tables["values"] == 1_500
    assert tables["value:value"] == tables["list:list"] == tables["map:map"] == 86_400_000
    assert tables["event_timers"] is None
    texts = ("write value read plain", "", "read plain read value")
    assert results(played, *texts) == ["1", "", "1 1"]


@pytest.mark.parametrize("update", [WRITE, READ], ids=lambda one: str(one.name))
def test_an_expired_entry_is_returned_once_more_where_it_is_declared_so(
    update: StateTtlConfig.UpdateType,
) -> None:
    config = StateTtlConfig(TTL, update, ONCE_MORE)

    late = dict(of_each_kind(config, "write", "", "", "", "read", "read"))
    too_late = dict(of_each_kind(config, "write", "", "", "", "", "read"))
    twice = dict(of_each_kind(config, "write", "", "", "", "read read"))

    for name in WRITES:
        assert late[name][4] != "gone", name
        assert late[name][5] == "gone", name
        assert too_late[name][5] == "gone", name
        assert twice[name][4] == f"{late[name][4]} gone", name


def test_an_expired_entry_that_is_written_lives_again() -> None:
    played = Played(remembering(StateTtlConfig(TTL, WRITE, ONCE_MORE)))

    late = results(played, "write mean", "", "", "write mean read mean read mean", "read mean")
    asked = results(
        Played(remembering(StateTtlConfig(TTL, WRITE, ONCE_MORE))),
        *("write map", "", "", "contains map contains map read map contains map"),
    )

    assert late[3:] == ["1.0 1.0", "1.0"]
    assert asked[3] == "True True 1 False"


def test_elements_of_a_list_expire_one_by_one() -> None:
    played = Played(remembering(TTL))

    results(played, "write list", "write list")
    lengths = [len(results(played, "write list read list")[0].split(",")) for _ in range(3)]

    assert lengths == [3, 3, 3]


def moved(before: Any, now: Any) -> Played:
    """*now* on the state that an epoch of *before* left."""
    first = Played(before)
    first.epoch(a_row(text="write value write list"))
    second = Played(now)
    second.subtask = Subtask(second.operator, [INPUT], key_count=1, runs=first.subtask.runs)
    return second


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (None, TTL, "state 'mean' had the TTL of its stage and now has its own, and its values"),
        (TTL, None, "state 'mean' had a TTL of its own and now has that of its stage, and its"),
    ],
)
def test_a_value_that_gets_or_loses_a_ttl_of_its_own_is_refused_by_name(
    before: Any, now: Any, message: str
) -> None:
    with pytest.raises(RestoreError, match=f"cannot read its state: {message}"):
        moved(remembering(before), remembering(now)).epoch(a_row(text="read list"))


def test_where_a_value_would_be_with_another_ttl_is_no_table_that_is_written() -> None:
    tables = Played(remembering(None)).operator.tables

    former = {name for name, schema in tables.items() if schema.is_former}
    assert former == {"value:value", "value:reduced", "value:mean", "value:plain"}


def test_a_ttl_may_become_another_one_and_be_disabled() -> None:
    longer = moved(remembering(TTL), remembering(2 * TTL))
    disabled = moved(remembering(TTL), remembering(StateTtlConfig.DISABLED))
    longer.checkpoints, disabled.checkpoints = 4, 1_000

    assert results(longer, "read value", "read value") == ["1", "gone"]
    assert results(disabled, "read value") == ["1"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: StateTtlConfig(timedelta(0)), "ttl is 0; use 1 ms or more"),
        (lambda: StateTtlConfig(5), r"ttl is 5 \(int\); write timedelta\(seconds=5\)"),  # type: ignore[arg-type]
        (
            lambda: StateTtlConfig(TTL, "OnReadAndWrite"),  # type: ignore[arg-type]
            "'OnReadAndWrite' .str.; write StateTtlConfig.UpdateType.OnReadAndWrite",
        ),
        (
            lambda: StateTtlConfig(TTL, READ, READ),  # type: ignore[arg-type]
            "use StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp or StateTtl",
        ),
        (lambda: ValueState(int, ttl=5), r"ttl is 5 \(int\); write timedelta\(seconds=5\)"),  # type: ignore[arg-type]
        (lambda: MapState(str, int, ttl=timedelta(0)), "ttl is 0; use 1 ms or more"),
    ],
    ids=["zero", "number", "update", "visibility", "state", "shorthand"],
)
def test_a_ttl_that_is_none_is_refused_where_it_is_declared(
    config: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        config()
