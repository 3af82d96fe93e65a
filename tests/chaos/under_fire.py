"""The pipelines of the failure matrix: one for each point at which something is broken.

All are the same two keyed stages over a bounded input of ``EVENTS``, cut into three epochs, and all
run at the same time on one Airflow, so that one kill meets every point at once.  They are chained,
but for the point between them.
"""

from __future__ import annotations

import os
from datetime import timedelta

from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.params import param
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.schedules import OnAsset, Watcher
from sluice.sinks import FilesTable
from sluice.sources import Files, Nexmark

POINTS = ("trigger", "snapshot", "await", "finalize", "commit", "restore")
EVENTS = 15_000
EPOCHS = 3
TIMEOUT = timedelta(seconds=180)
FOLDER_VARIABLE = "SLUICE_TEST_FOLDER"
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
    statistics = (
        events.key_by(auction="coalesce(auction_id, bid_auction)")
        .aggregate(
            FIRST_STAGE,
            category=agg.max("category"),
            bids=agg.count("price"),
            highest_bid=agg.max("price"),
        )
        .where("category IS NOT NULL AND bids > 0")
    )
    if point == "await":
        statistics.disable_chaining()
    ranking = statistics.key_by("category").top_n(SECOND_STAGE, 3, by="bids", unique="auction")
    ranking.sink("ranking", FilesTable(upsert_key=("category", "rank")))
    return pipeline


def on_files() -> Pipeline:
    """Its checkpoints follow the files that arrive in a folder; nothing breaks it."""
    folder = os.environ.get(FOLDER_VARIABLE, "/nonexistent")
    watcher = Watcher(
        trigger="sluice_airflow.due.NewFilesTrigger",
        arguments={"uri": f"file://{folder}", "poll_s": 1.0},
    )
    schedule = OnAsset(uri=f"file://{folder}", watcher=watcher)
    pipeline = Pipeline("on_files", checkpointing=Checkpointing(schedule=schedule), parallelism=1)
    lines = pipeline.source("lines", Files(folder, bounded=False))
    counts = lines.key_by("line").aggregate("count", n=agg.count())
    counts.sink("counts", FilesTable(upsert_key=("line",)))
    return pipeline


def load() -> dict[str, Pipeline]:
    return {uid_of(point): pipeline_at(point) for point in POINTS} | {"on_files": on_files()}
