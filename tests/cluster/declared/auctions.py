"""The demo's two keyed stages, with all of their state in files, which executors cache."""

from __future__ import annotations

from sluice import Checkpointing, Pipeline, param
from sluice import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Nexmark

pipeline = Pipeline("auctions", checkpointing=Checkpointing(interval=None, data_inline_threshold=0))
events = pipeline.source(
    "events",
    Nexmark(
        events=param("events", default=8_000, help="how many events the generator makes"),
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
