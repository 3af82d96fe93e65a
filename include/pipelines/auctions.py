"""The busiest auctions of every category, on the Nexmark generator's events.

events ─> bid_statistics ─> category_ranking ─> ranking

``auctions`` runs its stages in a session of Spark Connect, and ``auctions_submitted`` has each of
them submitted as a Spark application, to the master that an Airflow connection names.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from sluice import Checkpointing, Orchestration, Pipeline, Submit, param
from sluice import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Nexmark

DESCRIPTION = "Nexmark auctions: the three with the most bids in every category"


def rank(pipeline: Pipeline) -> None:
    """Declare the stages of *pipeline*."""
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


pipeline = Pipeline(
    "auctions",
    checkpointing=Checkpointing(interval=timedelta(seconds=5), max_records_per_epoch=200_000),
    description=f"{DESCRIPTION}.",
)
rank(pipeline)

submitted = Pipeline(
    "auctions_submitted",
    checkpointing=Checkpointing(interval=timedelta(minutes=1), max_records_per_epoch=200_000),
    description=f"{DESCRIPTION}, each stage an application.",
    orchestration=Orchestration(
        submit=Submit(
            connection="spark_standalone",
            application=str(Path(__file__).parents[2] / "spark_jobs" / "run_stage.py"),
            executor_memory="512m",
            conf={"spark.ui.enabled": "false"},
        )
    ),
)
rank(submitted)
