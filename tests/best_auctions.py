"""The expected result of the demo's pipeline: one query over all events in memory."""

from __future__ import annotations

import polars as pl

from sluice.connectors.nexmark.source import NexmarkSource


def best_auctions(number_of_events: int) -> list[dict[str, object]]:
    """The three auctions with the most bids of every category, in the order of rank."""
    source = NexmarkSource(number_of_events)
    (piece,) = source.plan((), max_records=None, parallelism=1).slices
    events = pl.concat(
        [
            frame
            for batch in source.read(piece)
            if isinstance(frame := pl.from_arrow(batch), pl.DataFrame)
        ]
    )
    statistics = (
        events.with_columns(auction=pl.coalesce("auction_id", "bid_auction"))
        .filter(pl.col("auction").is_not_null())
        .group_by("auction")
        .agg(
            category=pl.col("category").max(),
            bids=pl.col("price").count(),
            highest_bid=pl.col("price").max(),
        )
        .filter(pl.col("category").is_not_null(), pl.col("bids") > 0)
    )
    return (
        statistics.sort("category", "bids", "auction", descending=[False, True, False])
        .with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("category"))
        .filter(pl.col("rank") <= 3)
        .select("category", "rank", "auction", "bids", "highest_bid")
        .to_dicts()
    )
