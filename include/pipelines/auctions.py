"""The busiest auctions of every category, on the Nexmark generator's events.

events ─> bid_statistics ─> category_ranking ─> ranking
"""

from __future__ import annotations

from datetime import timedelta

from sluice import Checkpointing, Pipeline, param
from sluice import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Nexmark

pipeline = Pipeline(
    "auctions",
    checkpointing=Checkpointing(interval=timedelta(seconds=5), max_records_per_epoch=200_000),
    description="Nexmark auctions: the three with the most bids in every category.",
)

events = pipeline.source(
    "events",
    Nexmark(
        events=param("events", default=1_000_000, help="how many events the generator makes"),
        columns=("auction_id", "category", "bid_auction", "price"),
    ),
)

ranking = (
    events.key_by(auction="coalesce(auction_id, bid_auction)")
    .aggregate(
        "bid_statistics",
        category=agg.max("category"),
        bids=agg.count("price"),
        highest_bid=agg.max("price"),
    )
    .where("category IS NOT NULL AND bids > 0")
    .key_by("category")
    .top_n("category_ranking", 3, by="bids", unique="auction")
)
ranking.sink("ranking", FilesTable(upsert_key=("category", "rank")))
