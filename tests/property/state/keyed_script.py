"""A keyed function that plays the acts of its rows, and yields all that their key holds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from sluice.declaration.keyed_functions import (
    Context,
    KeyedProcessFunction,
    OnTimerContext,
    Row,
    Timers,
)
from sluice.declaration.keyed_states import (
    AggregateFunction,
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from tests.property.operators.played import EPOCH

MS = timedelta(milliseconds=1)
RESULT = {"id": int, "name": str, "what": str, "at": datetime, "watermark": datetime, "holds": str}


class Spread(AggregateFunction[int, tuple[int, float], float]):
    """How many values there are, and how far each is from the one before it, all in all."""

    def create_accumulator(self) -> tuple[int, float]:
        return 0, 0.0

    def add(self, value: int, accumulator: tuple[int, float]) -> tuple[int, float]:
        return accumulator[0] + 1, value - accumulator[1]

    def get_result(self, accumulator: tuple[int, float]) -> float:
        return accumulator[0] + accumulator[1]


class Script(KeyedProcessFunction):
    last = ValueState(int)
    stamp = ValueState(datetime)
    numbers = ListState(int)
    counts = MapState(str, float)
    reduced = ReducingState(lambda kept, added: 2 * kept - added, int)
    spread = AggregatingState(Spread(), tuple[int, float])

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        for act in row["acts"]:
            self._play(act["act"], act["n"], context)
        yield self._held("row", context)

    def on_timer(self, timestamp: datetime, context: OnTimerContext) -> Iterable[Row]:
        assert timestamp == context.timestamp
        if self.counts.contains("chain"):
            left = self.counts.get("chain", 0.0)
            self.counts.put("chain", left - 1)
            if left > 0:
                context.timers.register_event_time(timestamp + 2 * MS)
                context.timers.register_processing_time(timestamp + 2 * MS)
        return [self._held(context.time_domain, context)]

    def _play(self, act: str, n: int, context: Context) -> None:
        match act:
            case "set":
                self.last.set(self.last.get(0) + n)
                self.stamp.set(EPOCH + n * MS)
            case "unset":
                self.last.clear()
            case "add":
                self.numbers.add(n)
            case "replace":
                self.numbers.update([n, *self.numbers.get()[1:]])
            case "empty":
                self.numbers.clear()
            case "put":
                self.counts.put(f"k{n % 3}", n / 2)
            case "remove":
                self.counts.remove(f"k{n % 3}")
            case "wipe":
                self.counts.clear()
            case "chain":
                self.counts.put("chain", 3)
            case _:
                self._play_other(act, n, context.timers)

    def _play_other(self, act: str, n: int, timers: Timers) -> None:
        instant = EPOCH + n * MS
        match act:
            case "reduce":
                self.reduced.add(n)
            case "irreducible":
                self.reduced.clear()
            case "aggregate":
                self.spread.add(n)
            case "forget":
                self.spread.clear()
            case "event":
                timers.register_event_time(instant + MS / 2)
            case "clock":
                timers.register_processing_time(instant)
            case "no event":
                timers.delete_event_time(instant)
            case _:
                assert act == "no clock"
                timers.delete_processing_time(instant)

    def _held(self, what: str, context: Context) -> Row:
        holds = (
            *(self.last.get(), self.stamp.get(), self.numbers.get(), self.counts.items()),
            *(self.reduced.get(), self.spread.get()),
        )
        return {
            **context.key,
            "what": what,
            "at": context.timestamp,
            "watermark": context.current_watermark,
            "holds": repr_of(holds),
        }


def repr_of(holds: Any) -> str:
    last, stamp, numbers, counts, reduced, spread = holds
    return f"{last} {stamp} {numbers} {counts} {reduced} {spread}"
