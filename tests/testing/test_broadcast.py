"""A keyed function beside a broadcast stream, on a real Spark, past its JVM and through it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest

from sluice.declaration.keyed_functions import (
    BroadcastContext,
    BroadcastState,
    Context,
    KeyedBroadcastProcessFunction,
    Row,
)
from sluice.declaration.keyed_states import (
    AggregateFunction,
    AggregatingState,
    ReducingState,
    StateTtlConfig,
)
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.testing import run_local


class Mean(AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class AboveLimit(KeyedBroadcastProcessFunction):
    """Tells the orders above the limit of their shop's town, with what the shop has seen."""

    limits = BroadcastState(str, int)
    highest = ReducingState(max, int)
    mean = AggregatingState(Mean(), tuple[int, int], ttl=timedelta(days=1))
    lowest = ReducingState(min, int, ttl=StateTtlConfig.DISABLED)

    def process_broadcast(self, row: Row, context: BroadcastContext) -> None:
        if row["most"] is None:
            self.limits.remove(row["town"])
        else:
            self.limits.put(row["town"], row["most"])

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        for state in (self.highest, self.lowest, self.mean):
            state.add(row["price"])
        if row["price"] > self.limits.get(row["town"], 10):
            seen = f"{self.lowest.get()} {self.highest.get()} {self.mean.get()}"
            yield {"shop": row["shop"], "price": row["price"], "seen": seen}


def a_pipeline(way: str) -> Pipeline:
    pipeline = Pipeline("orders", parallelism=3)
    schema = "shop string, town string, price bigint"
    orders = pipeline.source("orders", Files("orders", format="json", schema=schema))
    limits = pipeline.source(
        "limits", Files("limits", format="json", schema="town string, most bigint")
    )
    every = orders.transform("every", lambda rows: rows)
    keyed = every.key_by("shop") if way == "plain" else every.key_by(shop_="upper(shop)")
    told = keyed.process_keyed(
        "above",
        AboveLimit(),
        result={"shop": str, "price": int, "seen": str},
        broadcast=limits.transform("known", lambda rows: rows),
    )
    told.sink("told", FilesTable())
    return pipeline


def order(shop: str, price: int) -> dict[str, object]:
    return {"shop": shop, "town": "xy"[ord(shop) % 2], "price": price}


@pytest.mark.parametrize("way", ["plain", "jvm"])
def test_every_subtask_knows_what_was_broadcast_up_to_its_epoch(way: str) -> None:
    shops = "abcdefgh"

    result = run_local(
        a_pipeline(way),
        {
            "orders": [
                [order(shop, 20) for shop in shops],
                [order(shop, 40) for shop in shops],
                [order(shop, 12) for shop in shops],
            ],
            "limits": [
                [{"town": "x", "most": 15}, {"town": "y", "most": 30}],
                [{"town": "y", "most": 50}],
                [{"town": "x", "most": None}],
            ],
        },
    )

    told = [sorted(one.published("told").rows()) for one in result.epochs]
    x = [shop for shop in shops if ord(shop) % 2 == 0]
    assert told == [
        [(shop, 20, "20 20 20.0") for shop in x],
        [(shop, 40, "20 40 30.0") for shop in x],
        [(shop, 12, "12 40 24.0") for shop in x],
    ]
    assert result.state("above", "broadcast:limits").rows() == [("y", 50)]
    assert result.state("above", "value:mean").height == len(shops)
