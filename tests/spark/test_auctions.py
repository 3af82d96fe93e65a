"""The demo's pipeline on a real local Spark, against one query over all events in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import polars as pl

from sluice.connectors.nexmark import NexmarkSource
from sluice.core.properties import JobStatus
from sluice.runner.job import Job
from sluice.spark.epochs import Epoch, run_epochs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = 40_000


def expected_ranking() -> list[dict[str, object]]:
    source = NexmarkSource(EVENTS)
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


def test_the_ranking_equals_one_query_over_all_events(
    spark: SparkSession, submitted: Callable[..., Job]
) -> None:
    job = submitted("auctions", parallelism=2, max_records=9_000, events=EVENTS)
    epochs: list[Epoch] = []

    status = run_epochs(job, spark, epochs=None, drain=False, report=epochs.append)

    table = job.result_table(job.state().configuration.params).read()
    ranking = table.sort_by([("category", "ascending"), ("rank", "ascending")]).to_pylist()
    assert status is JobStatus.FINISHED
    assert len(epochs) == 5
    assert ranking == expected_ranking()
