"""Savepoints on Spark: of a changed pipeline, native, canonical, edited and bootstrapped.

After a stop with a savepoint, a change and a restore, what was counted before still counts.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from sluice.connectors.nexmark.source import NexmarkSource
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.submission import configure, reconfigure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.ids import CheckpointId
from sluice.core.restoring import RestoreOptions
from sluice.core.transitions import Consent
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Pipeline
from sluice.errors import RestoreError
from sluice.job.job import Job, open_job
from sluice.job.places import open_result_table, open_sinks, open_source
from sluice.local.driver import run_epochs
from sluice.sinks import FilesTable
from sluice.sources import Files, Nexmark
from sluice.spark.stage import run_stage
from sluice.state.segments import to_frame
from sluice.state_processor import SavepointWriter, open_state, state_tables
from sluice.store.open import StoreLocation
from tests.spark.folder_job import FolderJob, a_submitted_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        ranked = events.key_by(lot="bid_auction % 3").top_n("ranked", 2, by="price")
        ranked.sink("ranking", FilesTable(upsert_key=("lot", "rank")))
    else:
        counted = per_auction.aggregate("per_auction", n=agg.count())
        events.key_by("bidder").aggregate("per_bidder", n=agg.count())
    counted.sink("counts", FilesTable(upsert_key=("bid_auction",)))
    return open_job(pipeline, StoreLocation(root=f"file://{root}"))


def stop_with_savepoint(job: Job, spark: SparkSession) -> None:
    kind = CheckpointType.SAVEPOINT_SUSPEND
    complete(job, spark, type=kind, savepoint_name="before")


def complete(job: Job, spark: SparkSession, **request: Any) -> None:
    """One checkpoint, and no compaction behind it."""
    outcome = trigger(job, is_periodic=False, **request)
    assert isinstance(outcome, Triggered)
    checkpoint_id = outcome.plan.checkpoint_id
    for stage in job.pipeline.stages:
        run_stage(job, spark, checkpoint_id, stage, attempt=1)
    finalize(job, checkpoint_id)
    commit(job, checkpoint_id)


def all_events() -> pl.DataFrame:
    source = NexmarkSource(EVENTS, columns=COLUMNS)
    (piece,) = source.plan((), max_records=None, parallelism=1).slices
    return to_frame(pa.Table.from_batches(source.read(piece)))


def table(job: Job, sink: str) -> pl.DataFrame:
    return to_frame(open_sinks(job, {})[sink].read())  # type: ignore[attr-defined]


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
    with pytest.raises(RestoreError, match=r"column 'paid' is new, sum\(price\);.*paid"):
        restore(after, target, configuration=rescaled)
    consent = Consent(begun=("per_auction.paid",))
    options = RestoreOptions(allow_non_restored_state=True, consent=consent)
    restore(after, target, options, configuration=rescaled)
    status = run_epochs(after, spark, epochs=None, drain=True, report=lambda _: None)

    counts = table(after, "counts").drop_nulls("bid_auction").sort("bid_auction")
    events = all_events()
    bids = events.drop_nulls("bid_auction").group_by("bid_auction").agg(n=pl.len().cast(pl.Int64))
    assert status is JobStatus.FINISHED
    assert counts.select("bid_auction", "n").equals(bids.sort("bid_auction"))
    assert counts["paid"].sum() == events.slice(EPOCH)["price"].sum()  # New: of what came since.
    ranking = table(after, "ranking").drop_nulls("lot").sort("lot", "rank")
    since = events.slice(EPOCH).drop_nulls("bid_auction")
    best = since.group_by(lot=pl.col("bid_auction") % 3).agg(pl.col("price").max()).sort("lot")
    assert ranking.filter(pl.col("rank") == 1)["price"].to_list() == best["price"].to_list()


# So many groups a run that none is merged for being small.
MANY_EVENTS, LARGE_EPOCH = 200_000, 50_000


def a_job(root: Path) -> Job:
    pipeline = Pipeline("bids", parallelism=1)
    bids = Nexmark(MANY_EVENTS, columns=COLUMNS)
    events = pipeline.source("events", bids, induced=True)
    counted = events.key_by(*COLUMNS).aggregate("count", n=agg.count())
    counted.sink("counts", FilesTable(upsert_key=COLUMNS))
    return a_submitted_job(pipeline, root)


def take(job: Job, spark: SparkSession, until: int | None, **request: Any) -> None:
    """One checkpoint of the events before *until*, or of none."""
    source = open_source(job, "events", {})
    partition = source.plan((), max_records=1, parallelism=1).position[0].partition
    barriers = {} if until is None else {"events": {partition: until}}
    complete(job, spark, barriers=barriers, **request)


def a_savepoint(
    job: Job, spark: SparkSession, until: int | None, name: str, **form: Any
) -> CheckpointMetadata:
    take(job, spark, until, type=CheckpointType.SAVEPOINT, savepoint_name=name, **form)
    return job.savepoint_metadata(name)


def runs_of(metadata: CheckpointMetadata) -> int:
    stage = metadata.stage("count")
    assert stage is not None
    return max(len({handle.run for handle in subtask.state}) for subtask in stage.subtasks)


def test_a_canonical_savepoint_has_one_run_and_gives_the_same_result(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = a_job(tmp_path)
    take(job, spark, LARGE_EPOCH)
    take(job, spark, 2 * LARGE_EPOCH)
    native = a_savepoint(job, spark, 3 * LARGE_EPOCH, "native")
    canonical = a_savepoint(job, spark, None, "canonical", is_canonical=True)

    restore(job, savepoint_target(job, "canonical"))
    take(job, spark, MANY_EVENTS)
    counted = open_result_table(job, {}).read()

    assert [runs_of(one) for one in (native, canonical)] == [3, 1]
    assert job.state().status is JobStatus.FINISHED
    assert sum(counted["n"].to_pylist()) == MANY_EVENTS
    assert counted.group_by([*COLUMNS]).aggregate([]).num_rows == len(counted)


def test_a_full_checkpoint_has_files_of_its_own_and_the_same_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = a_job(tmp_path)
    take(job, spark, LARGE_EPOCH)
    take(job, spark, 2 * LARGE_EPOCH)

    take(job, spark, 3 * LARGE_EPOCH, is_full=True)
    second, full = (job.metadata(CheckpointId(n)) for n in (2, 3))
    take(job, spark, MANY_EVENTS)

    files = [{handle.key for handle in one.files} for one in (second, full)]
    assert files[0]
    assert not files[0] & files[1]
    assert runs_of(full) == 3
    counted = open_result_table(job, {}).read()
    assert sum(counted["n"].to_pylist()) == MANY_EVENTS


START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "word string, lot bigint, day date, n bigint, at timestamp"
KEY = ["word", "lot", "day"]
DAYS = [date(1969, 12, 31), date(2026, 1, 1), None]
Totals = dict[tuple[Any, ...], int]


def a_row(word: str | None, second: int, *, lot: int = 1, n: int = 1) -> dict[str, Any]:
    day = DAYS[lot % 3]
    return {
        "word": word,
        "lot": lot,
        "day": None if day is None else day.isoformat(),
        "n": n,
        "at": (START + timedelta(seconds=second)).isoformat(),
    }


def positive(rows: DataFrame) -> DataFrame:
    """What it yields, only Spark can tell."""
    return rows.where("n > 0")


@pytest.fixture(name="job")
def _job(spark: SparkSession, tmp_path: Path) -> FolderJob:
    """Totals for ever, and windows of ten seconds."""
    job = FolderJob(spark, tmp_path)
    files = Files(str(job.files), format="json", schema=SCHEMA, bounded=False)
    rows = job.pipeline.source("rows", files, event_time="at").transform("positive", positive)
    totals = rows.key_by(*KEY).aggregate("totals", n=agg.sum("n"), rows=agg.count())
    totals.sink("totals_table", FilesTable(upsert_key=tuple(KEY)))
    windows = rows.key_by("word").window("tens", Tumbling(timedelta(seconds=10)), n=agg.sum("n"))
    windows.sink("tens_table", FilesTable())
    return job


def totals(frame: pl.DataFrame) -> Totals:
    return {tuple(row[name] for name in KEY): row["n"] for row in frame.to_dicts()}


def windows(job: FolderJob) -> list[tuple[str, int, int]]:
    return sorted(
        (row["word"], int((row["window_start"] - START).total_seconds()), row["n"])
        for row in job.table("tens_table").to_dicts()
    )


def test_windows_and_totals_go_on_from_a_savepoint_that_was_edited(
    spark: SparkSession, job: FolderJob
) -> None:
    first = [a_row("x", 1), a_row("y", 2), a_row("x", 11, n=5), a_row("y", 12, n=7), a_row("z", 13)]
    job.append("a.json", first)
    job.epoch()
    writer = SavepointWriter.from_existing_savepoint(
        job.job, "latest", session=lambda: nullcontext(spark)
    )

    (panes,) = writer.tables("tens")
    writer.transform("tens", lambda rows: rows.filter(pl.col("word") != "x"), panes)
    writer.transform("totals", lambda rows: rows.with_columns(pl.col("n") * 100))
    writer.write("edited")
    restore(job.job, savepoint_target(job.job, "edited"))
    job.append("a.json", [a_row("x", 15, n=3), a_row("y", 16, n=30), a_row("y", 27)])
    job.epoch()

    assert windows(job) == [("x", 0, 1), ("x", 10, 3), ("y", 0, 1), ("y", 10, 37), ("z", 10, 1)]
    edited = {("x", 1): 603, ("y", 1): 831, ("z", 1): 1}  # Of z nothing was read since then.
    assert {key[:2]: n for key, n in totals(job.table("totals_table")).items()} == edited
    kept = totals(open_state(job.job, "latest", "totals").frame())
    assert {key[:2]: n for key, n in kept.items()} == edited | {("z", 1): 100}


def test_totals_go_on_from_parquet_and_the_rows_behind_a_start(
    spark: SparkSession, job: FolderJob, tmp_path: Path
) -> None:
    old: Totals = {(f"word {n}", n, DAYS[n % 3]): 1_000 * n for n in range(500)}
    old[None, 1, DAYS[1]] = 7
    rows = [dict(zip(KEY, key, strict=True)) | {"n": n, "rows": 1} for key, n in old.items()]
    (schema,) = state_tables(job.job, ["totals"], session=lambda: nullcontext(spark))[
        "totals"
    ].values()
    pl.DataFrame(rows, schema=schema.columns).write_parquet(tmp_path / "totals.parquet")
    behind = [a_row(f"word {n}", n, lot=n) for n in range(0, 600, 2)] + [a_row(None, 1)]
    before = [a_row("word 3", 0, lot=3, n=999_999), a_row("word 5", 0, lot=5, n=999_999)]
    job.append("a.json", [*before, *behind])
    skipped = sum(len(f"{json.dumps(row)}\n") for row in before)

    writer = SavepointWriter.new_savepoint(
        job.job,
        starts={"rows": {"a.json": skipped}},
        session=lambda: nullcontext(spark),
    )
    writer.bootstrap("totals", tmp_path / "totals.parquet").write("made")
    restore(job.job, savepoint_target(job.job, "made"))
    job.epoch()

    news = {(row["word"], row["lot"], DAYS[row["lot"] % 3]): 1 for row in behind}
    every = old | {key: n + old.get(key, 0) for key, n in news.items()}
    assert totals(job.table("totals_table")) == {key: every[key] for key in news}
    assert totals(open_state(job.job, "latest", "totals").frame()) == every
