"""KeyedProcessFunction and `process` against plain lists and dictionaries, whatever the cuts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from random import Random
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.declaration import operations as ops
from sluice.declaration.keyed_functions import BEGINNING_OF_TIME, END_OF_TIME
from sluice.declaration.keyed_states import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    StateTtlConfig,
    ValueState,
)
from sluice.operators.keyed_function import ProcessKeyedOperator, ProcessOperator
from sluice.operators.operator import EpochTime
from tests.examples import examples
from tests.property.operators.played import (
    EPOCH,
    a_stage,
    histories,
    ids,
    names,
    play,
    rising,
    seeds,
    times_of,
)
from tests.property.operators.subtask import (
    INPUT,
    Epoch,
    Subtask,
    a_hash,
    check_content_alone_decides,
)
from tests.property.state.keyed_script import MS, RESULT, Script, Spread, repr_of

TTL_MS = 100
WRITE = StateTtlConfig.UpdateType.OnCreateAndWrite
READ = StateTtlConfig.UpdateType.OnReadAndWrite
ONCE_MORE = StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
instants = st.none() | st.integers(-20, 20).map(lambda ms: EPOCH + ms * MS)

# What a row or a timer does: the name of an act, and a number.
ACTS = (
    "set", "set", "unset", "add", "add", "replace", "empty", "put", "put", "remove", "wipe",
    "reduce", "reduce", "irreducible", "aggregate", "aggregate", "forget",
    "event", "event", "event", "clock", "clock", "no event", "no clock", "chain",
)  # fmt: skip
KEYED = pl.Schema(
    {
        "id": pl.Int64(),
        "name": pl.String(),
        "at": pl.Datetime("us", "UTC"),
        "acts": pl.List(pl.Struct({"act": pl.String(), "n": pl.Int64()})),
    }
)
acts = st.builds(lambda act, n: {"act": act, "n": n}, st.sampled_from(ACTS), st.integers(-15, 25))
keyed_rows = st.tuples(ids, names, instants, st.lists(acts, min_size=1, max_size=4))


@st.composite
def timed_histories(draw: st.DrawFn) -> tuple[list[Epoch], list[EpochTime]]:
    history = draw(st.lists(st.lists(keyed_rows, max_size=8), min_size=1, max_size=4))
    return history, draw(rising(len(history), first_ms=-25))


class Model:
    """The model of one key: the same acts on a list and two dictionaries."""

    def __init__(self) -> None:
        self.last: int | None = None
        self.stamp: datetime | None = None
        self.numbers: list[int] = []
        self.counts: dict[str, float] = {}
        self.reduced: int | None = None
        self.spread: list[int] = []
        self.timers: set[tuple[int, str]] = set()

    def play(self, act: str, n: int) -> None:
        match act:
            case "set":
                self.last, self.stamp = (self.last or 0) + n, EPOCH + n * MS
            case "unset":
                self.last = None
            case "add":
                self.numbers.append(n)
            case "replace":
                self.numbers[:1] = [n]
            case "empty":
                self.numbers = []
            case "put":
                self.counts[f"k{n % 3}"] = n / 2
            case "remove":
                self.counts.pop(f"k{n % 3}", None)
            case "wipe" | "chain":
                self.counts = {**self.counts, "chain": 3.0} if act == "chain" else {}
            case "reduce" | "irreducible" | "aggregate" | "forget":
                self.accumulate(act, n)
            case "event" | "no event":
                self.change_timer(n, "event", exists=act == "event")
            case "":
                pass
            case _:
                assert act in ("clock", "no clock")
                self.change_timer(n, "processing", exists=act == "clock")

    def accumulate(self, act: str, n: int) -> None:
        match act:
            case "reduce":
                self.reduced = n if self.reduced is None else 2 * self.reduced - n
            case "irreducible":
                self.reduced = None
            case "aggregate":
                self.spread.append(n)
            case _:
                assert act == "forget"
                self.spread = []

    def change_timer(self, ms: int, domain: str, *, exists: bool) -> None:
        self.timers.discard((ms, domain))
        if exists:
            self.timers.add((ms, domain))

    def epoch(self, rows: Epoch, time: EpochTime) -> Iterable[tuple[Any, ...]]:
        """The results of the key: kind, timestamp, watermark and holdings."""
        for row in sorted(rows, key=lambda r: (r[2] is not None, r[2], key_of_acts(r[3]))):
            for act in row[3]:
                self.play(act["act"], act["n"])
            yield ("row", row[2], instant_of(time.previous_watermark_ms), self.holds())
        reached = {"event": time.watermark_ms, "processing": time.processing_time_ms}
        while due := [timer for timer in self.timers if timer[0] <= reached[timer[1]]]:
            ms, domain = min(due)
            self.timers.remove((ms, domain))
            if "chain" in self.counts:
                self.counts["chain"] -= 1
                if self.counts["chain"] >= 0:
                    self.timers |= {(ms + 2, "event"), (ms + 2, "processing")}
            yield (domain, instant_of(ms), instant_of(time.watermark_ms), self.holds())

    def holds(self) -> str:
        spread = 0.0
        for value in self.spread:
            spread = value - spread
        result = len(self.spread) + spread if self.spread else None
        counts = sorted(self.counts.items())
        return repr_of((self.last, self.stamp, self.numbers, counts, self.reduced, result))

    @property
    def has_values(self) -> bool:
        return bool(self.spread) or any(
            value is not None for value in (self.last, self.stamp, self.reduced)
        )


def key_of_acts(acts: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Polars orders lists as Python does, and structs by their fields."""
    return [(act["act"], act["n"]) for act in acts]


def instant_of(ms: int) -> datetime:
    if ms in (MIN_WATERMARK, MAX_WATERMARK):
        return BEGINNING_OF_TIME if ms < 0 else END_OF_TIME
    return EPOCH + ms * MS


class Mortal(Script):
    """Its states expire within a history, each in another way."""

    last = ValueState(int, ttl=10 * MS)
    numbers = ListState(int, ttl=StateTtlConfig(10 * MS, READ, ONCE_MORE))
    counts = MapState(str, float, ttl=StateTtlConfig(10 * MS, READ))
    reduced = ReducingState(max, int, ttl=StateTtlConfig(8 * MS, WRITE, ONCE_MORE))
    spread = AggregatingState(Spread(), tuple[int, float], ttl=StateTtlConfig.DISABLED)


def a_script(ttl_ms: int | None = None, function: Script | None = None) -> ProcessKeyedOperator:
    operation = ops.ProcessKeyed(function=function or Script(), result=RESULT)
    return ProcessKeyedOperator(a_stage(operation, ttl_ms=ttl_ms), KEYED)


@examples(25)
@given(timed_histories(), seeds)
def test_a_keyed_function_sees_its_state_and_timers_as_if_it_ran_alone(
    played: tuple[list[Epoch], list[EpochTime]], random: Random
) -> None:
    subtask = Subtask(a_script(), [KEYED])
    models: dict[Any, Model] = defaultdict(Model)

    for epoch, time in zip(*played, strict=True):
        for row in epoch:
            models[row[:2]].play("", 0)  # So that it is known.
        expected = []
        for key in sorted(models, key=lambda k: (a_hash(k), *((v is not None, v) for v in k))):
            results = models[key].epoch([row for row in epoch if row[:2] == key], time)
            expected += [(*key, *result) for result in results]

        outcome = play(subtask, epoch, random, time)

        assert outcome.output.rows() == expected
    state = {name: table.scan() for name, table in subtask.state().items()}
    kept = [model for model in models.values() if model.has_values]
    assert state["values"].height == len(kept)
    assert state["list:numbers"].height == sum(len(m.numbers) for m in models.values())
    assert state["map:counts"].height == sum(len(m.counts) for m in models.values())
    timers = [domain for model in models.values() for _, domain in model.timers]
    assert state["event_timers"].height == timers.count("event")
    assert state["processing_timers"].height == timers.count("processing")


@examples(16)
@given(timed_histories(), st.sampled_from([None, TTL_MS, 10]), st.sampled_from([Script, Mortal]))
def test_a_keyed_function_does_not_depend_on_chunks_order_or_subtasks(
    played: tuple[list[Epoch], list[EpochTime]], ttl_ms: int | None, kind: type[Script]
) -> None:
    history, times = played

    check_content_alone_decides(a_script(ttl_ms, kind()), [KEYED], [[e] for e in history], times)


def total_and_last(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Sums ``value`` per key and keeps the last; a key whose total is 0 is forgotten."""
    key = ["id", "name"]
    new = rows.group_by(key, maintain_order=True).agg(
        pl.col("value").sum().alias("more"), pl.col("value").last().alias("seen")
    )
    both = state.join(new, on=key, nulls_equal=True, maintain_order="left").with_columns(
        (pl.col("total").fill_null(0) + pl.col("more")).alias("total")
    )
    result = both.select(*key, "total", pl.col("last").alias("before"))
    is_kept = pl.col("total") != 0
    after = both.select(
        *key,
        pl.when(is_kept).then("total").alias("total"),
        pl.when(is_kept).then("seen").alias("last"),
    )
    return result, after


def a_process(ttl_ms: int | None = None) -> ProcessOperator:
    columns = {"total": int, "last": pl.Int32()}
    key = {"id": int, "name": str}
    declared = ops.Process(
        function=total_and_last,
        state=columns,
        result={**key, "total": int, "before": pl.Int32()},
    )
    return ProcessOperator(a_stage(declared, ttl_ms=ttl_ms), INPUT)


def by_time(rows: Iterable[Any]) -> list[Any]:
    """By time, then by content, nulls first."""
    return sorted(rows, key=lambda row: [(v is not None, v) for v in (row[3], *row)])


@examples(20)
@given(histories, seeds)
def test_process_applies_the_function_to_the_rows_and_the_state_of_their_keys(
    history: list[Epoch], random: Random
) -> None:
    subtask = Subtask(a_process(), [INPUT])
    state: dict[Any, tuple[int, int | None]] = {}

    for epoch, time in zip(history, times_of([0] * len(history)), strict=True):
        expected = []
        before = dict(state)
        for key in {row[:2] for row in epoch}:
            rows = by_time(row for row in epoch if row[:2] == key)
            total, last = state.get(key, (0, None))
            total += sum(row[2] or 0 for row in rows)
            expected.append((*key, total, last))
            state[key] = (total, rows[-1][2])
            if total == 0:
                del state[key]

        outcome = play(subtask, epoch, random, time)

        assert Counter(outcome.output.rows()) == Counter(expected)
        kept = {row[:2]: row[2:] for row in subtask.state()["state"].scan().drop("_hash").rows()}
        assert kept == state
        written = {row[1:3] for row in outcome.changes["state"].upserts.rows()}
        deleted = {row[1:3] for row in outcome.changes["state"].deletes.rows()}
        assert written == {key for key in state if state[key] != before.get(key)}
        assert deleted == before.keys() - state.keys()


@examples(8)
@given(histories, st.sampled_from([None, TTL_MS]))
def test_process_does_not_depend_on_chunks_order_or_subtasks(
    history: list[Epoch], ttl_ms: int | None
) -> None:
    times = times_of([0] * len(history))

    check_content_alone_decides(a_process(ttl_ms), [INPUT], [[e] for e in history], times)
