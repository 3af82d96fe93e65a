"""Declared pipelines of a shop, whose places do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sluice.connectors.kafka.declared import Json
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import ValueState
from sluice.declaration.operations import Tumbling
from sluice.declaration.params import env, param
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.sinks import FilesTable, KafkaTopic, PostgresTable
from sluice.sources import Files, Kafka
from sluice.sources import PostgresTable as PostgresSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MINUTE = timedelta(minutes=1)
ORDERS = Kafka(
    env("SHOP_BROKERS"),
    param("topic"),
    value=Json("shop string, price bigint, at timestamp"),
    columns=("offset",),
)


def totals() -> Pipeline:
    """Orders from Kafka, the newest total of each shop to PostgreSQL."""
    pipeline = Pipeline("totals", checkpointing=Checkpointing(interval=MINUTE))
    orders = pipeline.source("orders", ORDERS)
    orders.key_by("shop").aggregate("per_shop", total=agg.sum("price"), n=agg.count()).sink(
        "totals", PostgresTable(env("SHOP_DSN"), param("table"), upsert_key=("shop",))
    )
    return pipeline


def takings(lateness: timedelta = timedelta(0)) -> Pipeline:
    """The takings of each shop in a minute, sent to a topic of Kafka."""
    pipeline = Pipeline("takings", checkpointing=Checkpointing(interval=MINUTE))
    orders = pipeline.source("orders", ORDERS, event_time="at", out_of_orderness=lateness)
    orders.key_by("shop").window("per_minute", Tumbling(MINUTE), taken=agg.sum("price")).sink(
        "takings", KafkaTopic(env("SHOP_BROKERS"), "takings", key="shop")
    )
    return pipeline


def named() -> Pipeline:
    """Orders that are worth it, with the name of the shop from a table."""
    pipeline = Pipeline("named")
    orders = pipeline.source("orders", ORDERS)
    names = pipeline.source(
        "names",
        Files(param("names"), format="csv", schema="id string, name string", header=True),
        table=True,
    )
    least = param("least", help="what an order is worth")
    orders.transform("worth_it", worth_it, least=least).lookup(
        "with_name", names, on={"shop": "id"}, add={"name": "name"}, keep="all"
    ).sink("out", FilesTable(param("out"), partition_by=("shop",)))
    return pipeline


def worth_it(rows: DataFrame, *, least: str) -> DataFrame:
    return rows.where(f"price >= {int(least)}")


def visits(uid: str) -> Stream:
    """The source of a new pipeline; only its place knows the columns."""
    return Pipeline(uid).source("visits", PostgresSource(env("DSN"), "public.visits", "id"))


def order(shop: str, price: int | None, at: str | datetime | None = None) -> dict[str, Any]:
    return {"shop": shop, "price": price, "at": f"2026-01-01T{at}" if isinstance(at, str) else at}


class EveryThird(KeyedProcessFunction):
    """The third order of a shop, the sixth, and so on, as one that costs nothing."""

    seen = ValueState(int)

    def process(self, row: Row, context: Context) -> Iterator[Row]:
        seen = self.seen.get(0) + 1
        self.seen.set(seen)
        if seen % 3 == 0:
            yield {"shop": context.key["shop"], "price": row["price"]}


def presents() -> Pipeline:
    pipeline = Pipeline("presents")
    orders = pipeline.source("orders", ORDERS, event_time="at")
    orders.key_by("shop").process_keyed(
        "every_third", EveryThird(), result={"shop": str, "price": int}
    ).sink("presents", FilesTable())
    return pipeline
