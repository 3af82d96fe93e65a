"""A pipeline of three stages without a schedule, for ``bench.airflow_run``."""

from __future__ import annotations

from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Nexmark

EPOCH = 100_000


def three_stages() -> Pipeline:
    pipeline = Pipeline(
        "three_stages", checkpointing=Checkpointing(interval=None, max_records_per_epoch=EPOCH)
    )
    events = pipeline.source("events", Nexmark(columns=("bid_auction", "bidder", "price")))
    per_bidder = events.key_by("bid_auction", "bidder").aggregate(
        "per_bidder", bids=agg.count(), paid=agg.sum("price")
    )
    per_auction = per_bidder.key_by("bid_auction").aggregate("per_auction", bids=agg.sum("bids"))
    best = per_auction.key_by(lot="bid_auction % 10").top_n(
        "best", 3, by="bids", unique="bid_auction"
    )
    best.sink("best_auctions", FilesTable(upsert_key=("lot", "rank")))
    return pipeline
