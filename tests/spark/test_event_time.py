"""Event time is that of a source's rows: filters and files that are complete do not hold it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl
import pytest

from sluice.core.completed import CheckpointMetadata
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Stream
from sluice.job.places import open_side_table
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.surface.checkpoints import job_skew
from sluice.surface.key_lookup import look_up_key
from tests.spark.folder_job import FolderJob, stage_of
from tests.spark.spark_jobs import spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
HOUR_MS = 3_600_000
SCHEMA = "k bigint, type int, at timestamp, ms bigint"


def rows(*seconds: int, kind: int = 1, k: int = 1) -> list[dict[str, Any]]:
    return [
        {
            "k": k,
            "type": kind,
            "at": (START + timedelta(seconds=second)).isoformat(),
            "ms": START_MS + second * 1000,
        }
        for second in seconds
    ]


def a_job(spark: SparkSession, folder: Path, **files: Any) -> tuple[FolderJob, Stream]:
    job = FolderJob(spark, folder)
    spec = Files(str(job.files), format="json", schema=SCHEMA, **({"bounded": False} | files))
    return job, job.pipeline.source("rows", spec, event_time="at")


def counted(stream: Stream, size: timedelta) -> None:
    stream.key_by("k").window("counts", Tumbling(size), n=agg.count()).sink("out", FilesTable())


def seconds_of(metadata: CheckpointMetadata, stage: str = "counts") -> float:
    return (stage_of(metadata, stage).watermark_ms + 1 - START_MS) / 1000


def starts(job: FolderJob) -> list[tuple[int, int]]:
    """Second and number of rows of each window that fired."""
    return sorted(
        (int((row["window_start"] - START).total_seconds()), row["n"])
        for row in job.table("out").to_dicts()
    )


def only_ones(rows: DataFrame) -> DataFrame:
    return rows.where("type = 1")


@pytest.mark.parametrize("how", ["where", "where and select", "transform", "lookup"])
def test_a_file_no_row_of_which_is_kept_does_not_hold_the_windows_of_others(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    job, source = a_job(spark, tmp_path)
    match how:
        case "where":
            kept = source.where("type = 1")
        case "where and select":
            kept = source.where("type = 1").select("k", "timestamp_millis(ms) AS at")
        case "lookup":
            (tmp_path / "types").write_text("1\n")
            types = job.pipeline.source("types", Files(str(tmp_path / "types")), table=True)
            kept = source.lookup("known", types, on={"type": "cast(trim(line) AS int)"})
        case _:
            kept = source.transform("ones", only_ones)
    counted(kept, timedelta(seconds=10))

    for epoch in range(2):
        job.append("a.json", rows(10 * epoch, 10 * epoch + 9))
        job.append("b.json", rows(10 * epoch, 10 * epoch + 9, kind=2))
        metadata = job.epoch()

    assert seconds_of(metadata) == 19
    assert starts(job) == [(0, 2)]


def test_the_slower_of_two_files_decides_though_none_of_its_rows_is_kept(
    spark: SparkSession, tmp_path: Path
) -> None:
    job, source = a_job(spark, tmp_path)
    counted(source.where("type = 1"), timedelta(seconds=10))
    job.append("a.json", rows(0, 35))
    job.append("b.json", rows(4, 12, kind=2))

    assert seconds_of(job.epoch()) == 12


@pytest.mark.parametrize("last_line", ["whole", "half"])
def test_hourly_files_fire_their_windows_as_they_come(
    spark: SparkSession, tmp_path: Path, last_line: Literal["whole", "half"]
) -> None:
    job, source = a_job(spark, tmp_path)
    counted(source, timedelta(hours=1))
    known = []
    for hour in range(3):
        job.append(f"{hour:02d}.json", rows(3600 * hour, 3600 * hour + 1800))
        if last_line == "half":
            with (job.files / f"{hour:02d}.json").open("a") as file:
                file.write('{"k": ')
        metadata = job.epoch()
        known.append(len(stage_of(metadata, "counts").event_times_ms))

    assert starts(job) == [(0, 2), (3600, 2)]
    assert known == [1, 2, 2]


@pytest.mark.parametrize(
    ("bounded", "seconds"), [(True, [3600, 7200, 10800]), (False, [1800, 5400, 9000])]
)
def test_a_backlog_of_hourly_files_fires_its_windows_as_it_is_read(
    spark: SparkSession, tmp_path: Path, bounded: bool, seconds: list[int]
) -> None:
    """A bounded source's file is complete once it is read; of another one more lines may come."""
    job, source = a_job(spark, tmp_path, bounded=bounded)
    counted(source, timedelta(hours=1))
    job.limit(2)
    for hour in range(4):
        job.append(f"{hour:02d}.json", rows(3600 * hour, 3600 * hour + 1800))

    watermarks = [seconds_of(job.epoch()) for _ in range(3)]

    assert watermarks == seconds
    assert starts(job) == [(0, 2), (3600, 2), (7200, 2)][: 3 if bounded else 2]


@pytest.mark.parametrize("how", ["keyed", "transform"])
def test_files_of_the_same_hours_wait_for_each_other(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    job, source = a_job(spark, tmp_path)
    counted(
        source if how == "keyed" else source.transform("ones", only_ones), timedelta(seconds=10)
    )
    job.limit(3)
    for host in "ab":
        job.append(f"{host}.json", rows(5, 15, 25))

    first, second = job.epoch(), job.epoch()

    assert [seconds_of(first), seconds_of(second)] == [5, 25]
    assert starts(job) == [(0, 2), (10, 2)]
    assert open_side_table(job.job, "counts.late").row_count() == 0


@pytest.mark.parametrize(
    "selected", ["at", "at + INTERVAL 0 SECOND AS at"]
)  # Past the JVM, or not.
def test_of_files_that_are_read_nothing_is_remembered(job: FolderJob, selected: str) -> None:
    files = Files(str(job.files), format="parquet", bounded=False, ordered=True)
    source = job.pipeline.source("rows", files, event_time="at")
    counted(source.where("k > 0").select("k", selected), timedelta(seconds=1))
    for second in range(3):
        at = pl.Series("at", [START + timedelta(seconds=second)] * 2, pl.Datetime("us", "UTC"))
        job.write(f"{second}.parquet", pl.DataFrame({"k": [1, 0], "at": at}))
        metadata = job.epoch()
        assert stage_of(metadata, "counts").event_times_ms == {"rows/": START_MS + 1000 * second}

    assert starts(job) == [(0, 1), (1, 1)]


def test_a_row_without_event_time_is_told_apart_from_a_late_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    job, source = a_job(spark, tmp_path)
    counted(source, timedelta(seconds=10))
    job.append("a.json", rows(100, 200))
    job.epoch()
    job.append("a.json", [*rows(5), {"k": 7, "type": 1}, *rows(300)])

    metadata = job.epoch()

    [timeless] = open_side_table(job.job, "counts.no_event_time").read().to_pylist()
    [late] = open_side_table(job.job, "counts.late").read().to_pylist()
    assert {name: timeless[name] for name in ("partition", "record_number", "reason", "k")} == {
        "partition": "a.json",
        "record_number": 4,
        "reason": "no event time",
        "k": 7,
    }
    assert late["k"] == 1
    assert seconds_of(metadata) == 300
    [counts] = job_skew(job.job).stages  # The watermark was a millisecond before second 200.
    assert {of: (one.rows, one.within) for of, one in counts.late.items()} == {
        "rows": (1, (0, 0, 0, 1, 1, 1))
    }
    assert 150_000 < counts.late["rows"].most_ms < 195_000


def test_event_time_past_the_jvm_is_measured_in_the_job_that_joins(
    job: FolderJob, spark: SparkSession
) -> None:
    stream = job.rows(event_time="at")
    left, right = (stream.where(f"type = {kind}").select("k", "at").key_by("k") for kind in (1, 2))
    left.interval_join("pairs", right, upper=timedelta(1)).sink("out", FilesTable())
    job.write("1.parquet", pl.DataFrame({"k": [1, 1], "type": [1, 2], "at": [START, START]}))
    before = spark_jobs(spark)

    metadata = job.epoch()

    assert spark_jobs(spark) - before == 1
    assert stage_of(metadata, "pairs").event_times_ms == {"rows/": START_MS}


@pytest.mark.parametrize("is_chained", [True, False])
def test_rows_are_enriched_and_then_windowed(
    spark: SparkSession, tmp_path: Path, *, is_chained: bool
) -> None:
    job, orders = a_job(spark, tmp_path)
    names = job.pipeline.source(
        "names",
        Files(
            str(tmp_path / "names"),
            format="json",
            schema="id bigint, town string, at timestamp",
            bounded=False,
        ),
        event_time="at",
    )
    (tmp_path / "names").mkdir()

    def name(number: int, second: int) -> None:
        row = {"id": number, "town": f"t{number}", "at": str(START + timedelta(seconds=second))}
        (tmp_path / f"names/{number}.json").write_text(json.dumps(row) + "\n")

    enriched = orders.key_by("k").join("enriched", names.key_by("id"))
    if not is_chained:
        enriched.sink("all_of_them", FilesTable())
    timed = enriched.event_time("at", out_of_orderness=timedelta(seconds=10))
    timed.key_by("town").window("counts", Tumbling(timedelta(seconds=10)), n=agg.count()).sink(
        "out", FilesTable()
    )

    name(1, 14)
    job.append("a.json", [*rows(1, 2, 14), *rows(3, k=2), *rows(4, k=3)])
    first = job.epoch()
    name(2, 31)  # The order of second 3 has waited for it, and is not late yet.
    job.append("a.json", rows(31))
    second = job.epoch()
    name(3, 60)  # This one was waited for too long.
    job.append("a.json", rows(60))
    third = job.epoch()

    found = job.table("out").select("town", "window_start", "n").to_dicts()
    counts = sorted((r["town"], int((r["window_start"] - START).seconds), r["n"]) for r in found)
    assert counts == [("t1", 0, 2), ("t1", 10, 1), ("t1", 30, 1), ("t2", 0, 1)]
    assert [seconds_of(one, "enriched") for one in (first, second, third)] == [14, 31, 60]
    assert [seconds_of(one) for one in (first, second, third)] == [4, 21, 50]
    late = open_side_table(job.job, "counts.late").read().to_pylist()
    assert [row["town"] for row in late] == ["t3"]


def test_a_key_is_looked_up_in_a_table_that_has_no_rows_any_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = FolderJob(spark, tmp_path)
    stream = job.rows(event_time="at")
    left, right = (stream.where(f"side = '{side}'").select("k", "at").key_by("k") for side in "LR")
    joined = left.window_join("joined", right, Tumbling(timedelta(minutes=1)), how="left")
    joined.sink("out", FilesTable())
    for hour, sides in enumerate(("LR", "R")):
        at = datetime(2026, 1, 1, hour, tzinfo=UTC)
        of = {"k": [hour] * len(sides), "side": [*sides], "at": [at] * len(sides)}
        job.write(f"{hour}.parquet", pl.DataFrame(of))
        job.epoch()

    found = {table.table: table.versions for table in look_up_key(job.job, ["k=0"]).tables}

    assert {
        name: [(one.first, len(one.rows)) for one in versions] for name, versions in found.items()
    } == {"left": [(2, 0), (1, 1)], "right": [(2, 0), (1, 1)]}


def test_the_hottest_key_group_is_named_with_its_key(job: FolderJob, spark: SparkSession) -> None:
    stream = job.rows(event_time="at")
    left, right = (stream.where(f"type = {kind}").select("k", "at").key_by("k") for kind in (1, 2))
    left.interval_join("pairs", right, upper=timedelta(1)).sink("out", FilesTable())
    keys = [4711] * 3_000 + [*range(500)]
    job.write("1.parquet", pl.DataFrame({"k": keys, "type": [1] * 3_500, "at": [START] * 3_500}))

    job.epoch()

    [pairs] = job_skew(job.job).stages
    [hot] = pairs.hot_groups
    assert hot.keys[0] == "k=4711"
    assert 3_000 <= hot.rows <= 3_100
    assert pairs.rows_in == 3_500
