"""The workloads as Structured Streaming queries, and their results.

In update mode nothing is written: the result is read from the state once everything was measured.
In append mode, which windows need, the rows are written as Parquet: they are few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bench.nexmark_files import EVENT_DDL
from bench.workloads import Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Within a micro-batch no row is late, and the next one starts where this one ends, but for the
# disorder of the generator.
WATERMARK = "1 second"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """*result* is applied to the state, or to the rows that were written."""

    schema: str
    mode: Literal["update", "append"]
    rows: Callable[[DataFrame], DataFrame]
    result: Callable[[DataFrame], DataFrame]


def query_of(workload: Workload) -> Query:
    if workload.kind != "nexmark":
        key = "string" if workload.text_keys else "bigint"
        schema = f"key {key}, value bigint, ts timestamp"
        return Query(schema=schema, mode="update", rows=_keyed, result=_keyed_result)
    return {
        "q5": Query(schema=EVENT_DDL, mode="append", rows=_q5, result=_q5_result),
        "q11": Query(schema=EVENT_DDL, mode="append", rows=_q11, result=_q11_result),
        "q18": Query(schema=EVENT_DDL, mode="update", rows=_q18, result=_q18_result),
    }[workload.query]


def write_result(spark: SparkSession, query: Query, checkpoint: Path, rows: Path, to: Path) -> None:
    found = (
        spark.read.format("statestore").load(str(checkpoint))
        if query.mode == "update"
        else spark.read.parquet(str(rows))
    )
    query.result(found).write.parquet(str(to))


def _keyed(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    return rows.groupBy("key").agg(
        F.count("*").alias("count"), F.sum("value").alias("sum"), F.max("value").alias("max")
    )


def _keyed_result(state: DataFrame) -> DataFrame:
    return state.selectExpr("key.key", "value.count", "value.sum", "value.max")


def _q5(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    counts = (
        _bids(events)
        .groupBy(F.window("at", "10 seconds", "2 seconds"), "auction")
        .agg(F.count("*").alias("num"))
    )
    # Ties are kept, so the window's auctions are collected, and only the best come out.
    return (
        counts.groupBy(F.window(F.window_time("window"), "2 seconds").alias("end"))
        .agg(F.max("num").alias("best"), F.collect_list(F.struct("auction", "num")).alias("all"))
        .selectExpr("end.end as end", "explode(filter(all, one -> one.num = best)) as one")
        .selectExpr("one.auction", "one.num", "unix_millis(end) - 10000 as starttime")
    )


def _q5_result(rows: DataFrame) -> DataFrame:
    return rows.where("auction >= 0")


def _q11(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    return (
        _bids(events)
        .groupBy(F.session_window("at", "10 seconds").alias("session"), "bidder")
        .agg(F.count("*").alias("bid_count"))
        .selectExpr(
            "bidder",
            "bid_count",
            "unix_millis(session.start) as starttime",
            "unix_millis(session.end) as endtime",
        )
    )


def _q11_result(rows: DataFrame) -> DataFrame:
    return rows.where("bidder >= 0")


def _q18(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's custom

    newest = F.max(F.struct("dateTime", "price")).alias("newest")
    return _bids(events).groupBy("auction", "bidder").agg(newest)


def _q18_result(state: DataFrame) -> DataFrame:
    return (
        state.selectExpr("key.auction", "key.bidder", "value.*")
        .selectExpr("auction", "bidder", "max.price", "max.dateTime")
        .where("bidder >= 0")
    )


def _bids(events: DataFrame) -> DataFrame:
    bids = events.where("event_type = 2").selectExpr("bid.*", "timestamp_millis(bid.dateTime) at")
    return bids.withWatermark("at", WATERMARK)
