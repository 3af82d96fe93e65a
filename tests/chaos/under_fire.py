"""The pipelines of the failure matrix: one for each point at which something is broken.

All are the same two keyed stages over a bounded input of ``EVENTS``, cut into three epochs, and all
run at the same time on one Airflow, so that one kill meets every point at once.
"""

from __future__ import annotations

from datetime import timedelta

from sluice import aggregates as agg
from sluice.config import Checkpointing
from sluice.params import param
from sluice.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Nexmark

POINTS = ("trigger", "snapshot", "await", "finalize", "commit", "restore")
EVENTS = 15_000
EPOCHS = 3
TIMEOUT = timedelta(seconds=180)
FIRST_STAGE, SECOND_STAGE = "bid_statistics", "category_ranking"


def uid_of(point: str) -> str:
    return f"at_{point}"


def pipeline_at(point: str) -> Pipeline:
    pipeline = Pipeline(
        uid_of(point),
        checkpointing=Checkpointing(interval=timedelta(seconds=5), timeout=TIMEOUT),
        parallelism=1,
        description=f"The failure matrix breaks something at {point}.",
    )
    events = pipeline.source(
        "events",
        Nexmark(
            events=param("events", default=EVENTS, help="how many events the generator makes"),
            columns=("auction_id", "category", "bid_auction", "price"),
        ),
    )
    ranking = (
        events.key_by(auction="coalesce(auction_id, bid_auction)")
        .aggregate(
            FIRST_STAGE,
            category=agg.max("category"),
            bids=agg.count("price"),
            highest_bid=agg.max("price"),
        )
        .where("category IS NOT NULL AND bids > 0")
        .key_by("category")
        .top_n(SECOND_STAGE, 3, by="bids", unique="auction")
    )
    ranking.sink("ranking", FilesTable(upsert_key=("category", "rank")))
    return pipeline


def load() -> dict[str, Pipeline]:
    return {uid_of(point): pipeline_at(point) for point in POINTS}
