"""The Nexmark queries, over the people, auctions and bids of an auction site.

    sluice run nexmark_q5 --param events=/data/nexmark

``events`` are files in the reference generator's format: JSON lines, or Parquet of that schema.
They have no schedule, as there are many of them; each is a pipeline like any other.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from sluice import Attached, Checkpointing, Hopping, Pipeline, Session, Stream, Tumbling, param
from sluice import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT = (
    "event_type int, "
    "person struct<id: bigint, name: string, city: string, state: string, dateTime: bigint>, "
    "auction struct<id: bigint, itemName: string, seller: bigint, category: bigint, "
    "dateTime: bigint, expires: bigint>, "
    "bid struct<auction: bigint, bidder: bigint, price: bigint, dateTime: bigint>"
)
BID = ("auction", "bidder", "price", "dateTime")
TEN_SECONDS = timedelta(seconds=10)
CHEAP, MEDIUM, DEAR = "price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000"


def query(number: int, description: str) -> tuple[Pipeline, Stream]:
    """A pipeline without stages yet, and the stream of events that it reads."""
    pipeline = Pipeline(
        f"nexmark_q{number}",
        checkpointing=Checkpointing(interval=None),
        description=f"Nexmark query {number}: {description}.",
    )
    files = Files(
        param("events", is_path=True, help="a folder or an s3:// URI of Nexmark events"),
        format=param("format", default="json", help="json or parquet"),
        schema=EVENT,
    )
    late = timedelta(seconds=4)  # As in the reference's SQL.
    return pipeline, pipeline.source("events", files, event_time="at", out_of_orderness=late)


def of_kind(events: Stream, kind: str, *columns: str) -> Stream:
    """The people, auctions or bids among the events, with the given columns and ``at``."""
    number = ("person", "auction", "bid").index(kind)
    return events.where(f"event_type = {number}").select(
        *(f"{kind}.{column}" for column in columns), f"timestamp_millis({kind}.dateTime) AS at"
    )


def in_euros(bids: DataFrame) -> DataFrame:
    from pyspark.sql.functions import expr

    return bids.withColumn("price", expr("price * 908 DIV 1000"))


q1, events = query(1, "bids in euros")
euros = of_kind(events, "bid", *BID).transform("euros", in_euros)
euros.select("auction", "bidder", "price", "dateTime").sink("bids", FilesTable())

q2, events = query(2, "bids on some auctions")
some = of_kind(events.where("bid.auction % 123 = 0"), "bid", "auction", "price")
some.transform("some", lambda bids: bids).select("auction", "price").sink("bids", FilesTable())

q3, events = query(3, "who sells in three states, in category 10")
sellers = events.where("event_type = 0 AND person.state IN ('OR', 'ID', 'CA')").select(
    "person.id", "person.name", "person.city", "person.state"
)
sold = events.where("event_type = 1 AND auction.category = 10").select(
    "auction.id AS auction", "auction.seller"
)
local_auctions = sold.key_by("seller").join("local_auctions", sellers.key_by("id"))
local_auctions.select("name", "city", "state", "auction AS id").sink("auctions", FilesTable())

q4, events = query(4, "average closing price per category")
open_auctions = events.where("event_type = 1").select(
    *("auction.id", "auction.category", "timestamp_millis(auction.dateTime) AS at"),
    "timestamp_millis(auction.expires) AS expires_at",
)
bids = of_kind(events, "bid", "auction", "price")
closing_prices = (
    open_auctions.key_by("id")
    .interval_join("bids_in_time", bids.key_by("auction"), upper="expires_at")
    .key_by("id", "category")
    .aggregate("closing_price", final=agg.max("price"))
)
averages = closing_prices.key_by("category").aggregate(
    "per_category", sum_final=agg.sum("final"), auctions=agg.count(), average=agg.avg("final")
)
averages.sink("categories", FilesTable(upsert_key=("category",)))

q5, events = query(5, "the auctions with the most bids in the last ten seconds")
hot_items = (
    of_kind(events, "bid", "auction")
    .key_by("auction")
    .window("bids_per_auction", Hopping(TEN_SECONDS, timedelta(seconds=2)), num=agg.count())
    .window_top_n("hottest", Attached(), 1, by="num", ties=True)
)
hot_items.select("auction", "num", "window_start AS starttime").sink("items", FilesTable())

q7, events = query(7, "the highest bids of every ten seconds")
highest = of_kind(events, "bid", *BID).window_top_n(
    "highest", Tumbling(TEN_SECONDS), 1, by="price", ties=True
)
highest.select("auction", "bidder", "price", "dateTime").sink("bids", FilesTable())

q8, events = query(8, "people who sell as soon as they have come")
newcomers = (
    of_kind(events, "person", "id", "name")
    .key_by("id")
    .window_join(
        "newcomers",
        of_kind(events, "auction", "seller").key_by("seller"),
        Tumbling(TEN_SECONDS),
        how="semi",
    )
)
newcomers.select("id", "name", "window_start AS starttime").sink("people", FilesTable())

q11, events = query(11, "how many bids a person makes in a session")
sessions = (
    of_kind(events, "bid", "bidder")
    .key_by("bidder")
    .window("sessions", Session(TEN_SECONDS), bid_count=agg.count())
)
sessions.select("bidder", "bid_count", "window_start AS starttime", "window_end AS endtime").sink(
    "results", FilesTable()
)

q15, events = query(15, "bids, bidders and auctions of a day, by price")
days = (
    of_kind(events, "bid", "auction", "bidder", "price")
    .key_by(day="date_format(at, 'yyyy-MM-dd')")
    .aggregate(
        "days",
        total_bids=agg.count(),
        rank1_bids=agg.count(where=CHEAP),
        rank2_bids=agg.count(where=MEDIUM),
        rank3_bids=agg.count(where=DEAR),
        total_bidders=agg.count_distinct("bidder"),
        rank1_bidders=agg.count_distinct("bidder", where=CHEAP),
        rank2_bidders=agg.count_distinct("bidder", where=MEDIUM),
        rank3_bidders=agg.count_distinct("bidder", where=DEAR),
        total_auctions=agg.count_distinct("auction"),
        rank1_auctions=agg.count_distinct("auction", where=CHEAP),
        rank2_auctions=agg.count_distinct("auction", where=MEDIUM),
        rank3_auctions=agg.count_distinct("auction", where=DEAR),
    )
)
days.sink("results", FilesTable(upsert_key=("day",)))

q17, events = query(17, "the bids of an auction and a day")
auction_days = (
    of_kind(events, "bid", "auction", "price")
    .key_by("auction", day="date_format(at, 'yyyy-MM-dd')")
    .aggregate(
        "auction_days",
        total_bids=agg.count(),
        rank1_bids=agg.count(where=CHEAP),
        rank2_bids=agg.count(where=MEDIUM),
        rank3_bids=agg.count(where=DEAR),
        min_price=agg.min("price"),
        max_price=agg.max("price"),
        sum_price=agg.sum("price"),
    )
)
auction_days.sink("results", FilesTable(upsert_key=("auction", "day")))

q18, events = query(18, "everybody's last bid on every auction")
last_bids = (
    of_kind(events, "bid", *BID)
    .key_by("bidder", "auction")
    .latest("last", by=("dateTime", "price"))
)
last_bids.select("auction", "bidder", "price", "dateTime").sink(
    "bids", FilesTable(upsert_key=("bidder", "auction"))
)

q19, events = query(19, "the ten highest bids on every auction")
top_bids = (
    of_kind(events, "bid", *BID)
    .key_by("auction")
    .top_n("top", 10, by="price", ties_by=("dateTime", "bidder"))
)
top_bids.select("auction", "bidder", "price", "dateTime", "rank AS rank_number").sink(
    "bids", FilesTable(upsert_key=("auction", "rank_number"))
)

q20, events = query(20, "bids with their auction, in category 10")
bids = events.where("event_type = 2").select(
    *("bid.auction", "bid.bidder", "bid.price", "bid.dateTime AS bid_dateTime")
)
auctions = events.where("event_type = 1 AND auction.category = 10").select(
    *("auction.id", "auction.itemName", "auction.seller", "auction.category"),
    *("auction.dateTime AS auction_dateTime", "auction.expires"),
)
expanded = bids.key_by("auction").join("expanded", auctions.key_by("id"))
expanded.select(
    *("auction", "bidder", "price", "bid_dateTime", "itemName", "seller", "category"),
    *("auction_dateTime", "expires"),
).sink("bids", FilesTable())
