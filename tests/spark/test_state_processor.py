"""A job goes on from a savepoint that was edited, and from one that Parquet was made into."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from sluice.coordinator.restore import restore, savepoint_target
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Tumbling
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.state_processor import SavepointWriter, open_state, state_tables
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
