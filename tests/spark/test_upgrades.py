"""Stop with a savepoint, change the pipeline, restore: what was counted before still counts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from sluice.connectors.nexmark.source import NexmarkSource
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.submission import configure, reconfigure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.restoring import RestoreOptions
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.errors import RestoreError
from sluice.job.job import Job, open_job
from sluice.job.places import open_sinks
from sluice.local.driver import run_epochs
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.spark.stage import run_stage
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS, EPOCH = 30_000, 10_000
COLUMNS = ("bid_auction", "bidder", "price")


def the_job(root: Path, *, is_changed: bool) -> Job:
    """Before: bids per auction and per bidder.  After: no more per bidder, what was paid beside the
    bids, and a stage that ranks.
    """
    pipeline = Pipeline("bids", parallelism=2)
    events = pipeline.source("events", Nexmark(EVENTS, columns=COLUMNS))
    per_auction = events.key_by("bid_auction")
    if is_changed:
        counted = per_auction.aggregate("per_auction", n=agg.count(), paid=agg.sum("price"))
        ranked = counted.key_by(lot="bid_auction % 3").top_n(
            "ranked", 2, by="n", unique="bid_auction"
        )
        ranked.sink("ranking", FilesTable(upsert_key=("lot", "rank")))
    else:
        counted = per_auction.aggregate("per_auction", n=agg.count())
        events.key_by("bidder").aggregate("per_bidder", n=agg.count())
    counted.sink("counts", FilesTable(upsert_key=("bid_auction",)))
    return open_job(pipeline, StoreLocation(root=f"file://{root}"))


def stop_with_savepoint(job: Job, spark: SparkSession) -> None:
    kind = CheckpointType.SAVEPOINT_SUSPEND
    outcome = trigger(job, type=kind, savepoint_name="before", is_periodic=False)
    assert isinstance(outcome, Triggered)
    for stage in job.pipeline.stages:
        run_stage(job, spark, outcome.plan.checkpoint_id, stage, attempt=1)
    finalize(job, outcome.plan.checkpoint_id)
    commit(job, outcome.plan.checkpoint_id)


def all_events() -> pl.DataFrame:
    source = NexmarkSource(EVENTS, columns=COLUMNS)
    (piece,) = source.plan((), max_records=None, parallelism=1).slices
    frames = [pl.from_arrow(batch) for batch in source.read(piece)]
    return pl.concat([frame for frame in frames if isinstance(frame, pl.DataFrame)])


def table(job: Job, sink: str) -> pl.DataFrame:
    found = pl.from_arrow(open_sinks(job, {})[sink].read())  # type: ignore[attr-defined]
    assert isinstance(found, pl.DataFrame)
    return found


def test_state_survives_another_shape_of_the_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    before = the_job(tmp_path, is_changed=False)
    submit(before, configure(before.pipeline, {}, max_records_per_epoch=EPOCH))
    stop_with_savepoint(before, spark)
    after = the_job(tmp_path, is_changed=True)
    target = savepoint_target(after, "before")
    rescaled = reconfigure(
        after.pipeline, after.state().configuration, {}, stage_parallelism={"per_auction": 3}
    )

    with pytest.raises(RestoreError, match="'per_bidder' has state but is not in the pipeline"):
        restore(after, target, configuration=rescaled)
    consent = RestoreOptions(allow_non_restored_state=True)
    restore(after, target, consent, configuration=rescaled)
    status = run_epochs(after, spark, epochs=None, drain=True, report=lambda _: None)

    counts = table(after, "counts").drop_nulls("bid_auction").sort("bid_auction")
    events = all_events()
    bids = events.drop_nulls("bid_auction").group_by("bid_auction").agg(n=pl.len().cast(pl.Int64))
    assert status is JobStatus.FINISHED
    assert counts.select("bid_auction", "n").equals(bids.sort("bid_auction"))
    assert counts["paid"].sum() == events.slice(EPOCH)["price"].sum()  # New: of what came since.
    ranking = table(after, "ranking").drop_nulls("lot").sort("lot", "rank")
    since = events.slice(EPOCH).drop_nulls("bid_auction")["bid_auction"].unique()
    seen = counts.filter(pl.col("bid_auction").is_in(since.implode()))
    best = seen.group_by(lot=pl.col("bid_auction") % 3).agg(n=pl.col("n").max()).sort("lot")
    assert ranking.filter(pl.col("rank") == 1)["n"].to_list() == best["n"].to_list()
