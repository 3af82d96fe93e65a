"""Folders that a real Spark wrote with ``partitionBy``: their columns, and their overwriting.

A plain read by Spark of the same folder is what each job's result is compared with.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from harness.s3_server import running_s3_server
from sluice.connectors.files.folders import NULL, FolderColumns
from sluice.connectors.files_table.table import ManifestTable
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import CheckpointType
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job, open_job
from sluice.job.places import open_side_table, open_sinks
from sluice.local.driver import run_epochs
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.stage import run_stage
from sluice.state.segments import to_frame
from sluice.store.open import StoreLocation, open_store
from tests.contract.conftest import create_bucket
from tests.examples import slow, slow_but
from tests.spark.folder_job import FolderJob, no_failure, stage_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The texts of one folder or of two, which are those of one column.
TEXTS = [
    *(("1",), ("01",), ("-5",), ("+7",), ("2147483648",), ("-2147483648",), ("9" * 20,)),
    *(("1.5",), ("1e3",), (".5",), ("5.",), ("1d",), ("2f",), ("NaN",), ("Infinity",), (" 1",)),
    *(("2026-03-01",), ("2026-3-1",), ("2026-02-30",), ("2026-03",), ("0001-01-01",)),
    *(("2026-03-01 10%3A00%3A00",), ("2026-03-01 10%3A00%3A00.5",), ("10000-01-01",)),
    *(("2026-03-01 10%3A00%3A00.123",), ("2026-03-01T10%3A00%3A00",), ("2026-03-01 10%3A00",)),
    *(("true",), ("de",), ("a%2Fb",), ("a%zz",), ("%C3%BC",), ("ü",), ("1_000",), ("1L",)),
    *(("-0",), ("1e-3",), ("9" * 39,), (NULL, "7"), ("x", NULL), ("1", "1.5"), ("01", "de")),
    *(("2147483648", "1.5"), ("1", "2147483648"), ("1", "9" * 20), ("1", "2026-03-01")),
    *(("2026-03-01", "2026-03-01 10%3A00%3A00"), ("1.5", "9" * 20), ("2026-03-01", NULL)),
    *(("9" * 20, "9" * 23), ("2147483648", "9" * 20), ("1", "2147483648.5")),
]


def test_columns_have_the_types_and_values_that_spark_gives_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    names = []
    for row in (0, -1):
        folders = "/".join(f"c{number}={texts[row]}" for number, texts in enumerate(TEXTS))
        names.append(f"{folders}/{row}.json")
        (tmp_path / folders).mkdir(parents=True, exist_ok=True)
        (tmp_path / names[-1]).write_text(f'{{"n": {row}}}\n')
    plain = spark.read.json(str(tmp_path))

    found = FolderColumns.inferred(names, "here")

    of_spark = {name: kind for name, kind in plain.dtypes if name != "n"}
    assert {name: str(kind) for name, kind in found.types} == of_spark
    for row, name in zip((0, -1), names, strict=True):
        expected = list(plain.where(f"n = {row}").drop("n").collect()[0])
        values = [as_collected(value) for value in found.values(name, "here")]
        assert repr(values) == repr([as_collected(value) for value in expected])


def as_collected(value: object) -> object:
    """A timestamp without its zone, which ``collect`` leaves out."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


ROWS: list[dict[str, Any]] = [
    {
        "n": n,
        "price": n / 4,
        "dt": date(2026, 3, 1 + n % 3),
        "country": [None, "de", "a b/c:é%", "_x", "=1"][n % 5],
        "hour": n % 2,
    }
    for n in range(60)
]
WRITTEN = "n bigint, price double, dt date, country string, hour int"
FORMATS: dict[str, dict[str, Any]] = {
    "parquet": {},
    "json": {"schema": "n bigint, price double"},
    "csv": {"schema": "n bigint, price double", "escape": "\\"},
}


def put(
    spark: SparkSession, folder: Path, rows: list[dict[str, Any]], kind: str, mode: str = "append"
) -> None:
    frame: DataFrame = spark.createDataFrame(rows, WRITTEN)
    writer = frame.repartition(2).write.format(kind).partitionBy("dt", "country", "hour")
    writer.mode(mode).option("partitionOverwriteMode", "dynamic").save(str(folder))


def a_job(spark: SparkSession, folder: Path, **how: Any) -> FolderJob:
    """Its rows are read unkeyed, past Spark's JVM, and through it."""
    job = FolderJob(spark, folder)
    rows = job.pipeline.source("rows", Files(str(job.files), bounded=False, **how))
    rows.transform("unkeyed", lambda found: found).sink("unkeyed_out", FilesTable())
    for way, condition in (("past", "n >= 0"), ("through", "length(hex(n)) >= 0")):
        keyed = rows.where(condition).where("hour = 1 AND dt < '2026-03-03'").key_by("dt")
        counts = keyed.aggregate(way, rows=agg.count(), total=agg.sum("n"))
        counts.sink(f"{way}_out", FilesTable(upsert_key=("dt",)))
    return job


def complete(job: Job, spark: SparkSession, **request: Any) -> None:
    outcome = trigger(job, is_periodic=False, **request)
    assert isinstance(outcome, Triggered)
    checkpoint_id = outcome.plan.checkpoint_id
    for stage in job.pipeline.stages:
        run_stage(job, spark, checkpoint_id, stage, attempt=1)
    finalize(job, checkpoint_id)
    commit(job, checkpoint_id)


def check(job: FolderJob, plain: DataFrame) -> None:
    columns = ["n", "price", "dt", "country", "hour"]
    rows = pl.DataFrame(plain.select(columns).toArrow())
    assert_frame_equal(job.table("unkeyed_out").select(columns).sort("n"), rows.sort("n"))
    of_hour = rows.filter((pl.col("hour") == 1) & (pl.col("dt") < date(2026, 3, 3)))
    expected = of_hour.group_by("dt").agg(pl.len().alias("rows"), pl.sum("n").alias("total"))
    for way in ("past", "through"):
        found = job.table(f"{way}_out")
        assert_frame_equal(found, expected, check_row_order=False, check_dtypes=False)


@pytest.mark.parametrize("kind", slow_but(FORMATS, "json"))
def test_what_spark_wrote_is_read_with_its_folders_columns_through_restore_and_rescale(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    job = a_job(spark, tmp_path, format=kind, **FORMATS[kind])
    put(spark, job.files, ROWS[:40], kind)
    for litter in (
        "_temporary/5/_temporary/attempt_1/dt=1",
        ".spark-staging-1/dt=1",
        ".hive-staging_1/dt=1",
    ):
        (job.files / litter).mkdir(parents=True)
        (job.files / litter / f"part-0.{kind}").write_text("half a file")
    (job.files / "dt=2026-03-01" / "up.json._COPYING_").write_text("half a file")

    def plain() -> DataFrame:
        return spark.read.format(kind).schema(WRITTEN).load(str(job.files))

    job.epoch()
    check(job, plain())
    put(spark, job.files, ROWS[40:50], kind)
    complete(job.job, spark, type=CheckpointType.SAVEPOINT, savepoint_name="before")
    put(spark, job.files, ROWS[50:], kind)
    job.epoch()
    check(job, plain())

    wider = replace(job.job.state().configuration, parallelism=3)
    restore(job.job, savepoint_target(job.job, "before"), configuration=wider)
    run_epochs(job.job, spark, epochs=1, drain=False, report=no_failure)

    check(job, plain())


@slow
@pytest.mark.usefixtures("bucket_keys")
def test_what_spark_wrote_is_read_from_a_bucket_through_restore_and_rescale(
    spark: SparkSession, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    with running_s3_server(tmp_path / "server") as endpoint:
        bucket = open_store(StoreLocation(root="s3://lake/sales", endpoint_url=endpoint))
        create_bucket(endpoint, "lake")

        def put_in_bucket(rows: list[dict[str, Any]]) -> None:
            put(spark, written, rows, "parquet")
            for path in written.rglob("*"):
                key = path.relative_to(written).as_posix()
                if path.is_file():
                    bucket.put(key, path.read_bytes())

        pipeline = Pipeline("lake", checkpointing=Checkpointing(interval=None), parallelism=2)
        sales = pipeline.source("sales", Files("s3://lake/sales/", "parquet", bounded=False))
        one_hour = sales.where("hour = 1").key_by("country")
        totals = one_hour.aggregate("totals", total=agg.sum("n"), last=agg.max("dt"))
        totals.sink("out", FilesTable(upsert_key=("country",)))
        job = open_job(pipeline, StoreLocation(root="s3://lake/root", endpoint_url=endpoint))
        submit(job, configure(pipeline, {}))
        put_in_bucket(ROWS[:30])
        complete(job, spark, type=CheckpointType.SAVEPOINT, savepoint_name="before")
        put_in_bucket(ROWS[30:])
        run_epochs(job, spark, epochs=1, drain=False, report=no_failure)
        wider = replace(job.state().configuration, parallelism=3)
        restore(job, savepoint_target(job, "before"), configuration=wider)

        run_epochs(job, spark, epochs=1, drain=False, report=no_failure)

        table = open_sinks(job, {})["out"]
        assert isinstance(table, ManifestTable)
        found = to_frame(table.read())
    rows = pl.DataFrame(spark.read.schema(WRITTEN).parquet(str(written)).toArrow())
    per_country = rows.filter(pl.col("hour") == 1).group_by("country")
    expected = per_country.agg(pl.sum("n").alias("total"), pl.max("dt").alias("last"))
    assert_frame_equal(found, expected, check_row_order=False)


def test_folders_that_a_filter_leaves_out_are_not_read_and_tell_their_times(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = FolderJob(spark, tmp_path)
    at = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [
        {"n": n, "at": at + timedelta(hours=n), "dt": date(2026, 3, 1 + n % 2)} for n in range(6)
    ]
    frame = spark.createDataFrame(rows, "n bigint, at timestamp, dt date")
    frame.repartition(1).write.partitionBy("dt").parquet(str(job.files), mode="append")
    source = job.rows(event_time="at")
    ways = {"pruned": "dt = '2026-03-01'", "all": "date_add(dt, 0) = '2026-03-01'"}
    ways["through"] = "dt = '2026-03-01' AND length(hex(n)) > 0"
    for way, condition in ways.items():
        windows = (
            source.where(condition)
            .key_by("dt")
            .window(way, Tumbling(timedelta(hours=1)), n=agg.count())
        )
        windows.sink(f"{way}_out", FilesTable())
    timeless = job.pipeline.source("timeless", Files(str(job.files), "parquet", bounded=False))
    alone = timeless.where("dt = '2026-03-01' AND n >= 0").transform("alone", lambda found: found)
    alone.sink("alone_out", FilesTable())
    job.limit(5)

    metadata = job.epoch()

    assert len({stage_of(metadata, way).watermark_ms for way in ways}) == 1
    tables = [job.table(f"{way}_out").sort("window_start") for way in ways]
    assert_frame_equal(tables[0], tables[1])
    assert_frame_equal(tables[0], tables[2])
    planned = trigger(job.job)
    assert isinstance(planned, Triggered)
    shutil.rmtree(job.files / "dt=2026-03-02")
    run_stage(job.job, spark, planned.plan.checkpoint_id, "alone", attempt=1)


def test_malformed_lines_of_all_folders_are_reported_where_several_stages_read_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = FolderJob(spark, tmp_path)
    spec = Files(str(job.files), format="json", schema="n bigint", bounded=False)
    rows = job.pipeline.source("rows", spec)
    rows.where("dt = '2026-03-01'").transform("first", lambda found: found).sink("a", FilesTable())
    rows.transform("second", lambda found: found).sink("b", FilesTable())
    for day in (1, 2):
        (job.files / f"dt=2026-03-0{day}").mkdir()
        job.append(f"dt=2026-03-0{day}/rows", [{"n": day}, {"n": "none"}])

    job.epoch()

    assert job.table("a")["n"].to_list() == [1]
    assert sorted(job.table("b")["n"].to_list()) == [1, 2]
    malformed = to_frame(open_side_table(job.job, "first.malformed").read())
    assert malformed.height == 2


@pytest.mark.parametrize("is_partitioned", [True, False])
def test_rows_that_spark_writes_anew_are_never_read_twice_in_silence(
    spark: SparkSession, tmp_path: Path, is_partitioned: bool
) -> None:
    def written(mode: str, days: int) -> None:
        rows = [{"n": day, "dt": date(2026, 3, day)} for day in range(1, days + 1)]
        writer = spark.createDataFrame(rows, "n bigint, dt date").coalesce(1).write.mode(mode)
        writer = writer.partitionBy("dt") if is_partitioned else writer
        writer.option("partitionOverwriteMode", "dynamic").parquet(str(job.files))

    job = FolderJob(spark, tmp_path)
    job.rows().transform("stage", lambda found: found).sink("out", FilesTable())
    written("append", 3)
    job.epoch()
    written("overwrite", 1)
    where = "dt=2026-03-01" if is_partitioned else "the folder"

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"{where} of .* was overwritten: .*part-"):
            trigger(job.job)

    assert sorted(job.table("out")["n"].to_list()) == [1, 2, 3]


def test_new_files_beside_those_that_are_gone_are_rows_if_that_is_declared(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = FolderJob(spark, tmp_path)
    spec = Files(str(job.files), format="parquet", bounded=False, replaced="append")
    job.pipeline.source("rows", spec).transform("s", lambda x: x).sink("out", FilesTable())
    (job.files / "dt=2026-03-01").mkdir()
    job.write("dt=2026-03-01/a", pl.DataFrame({"n": [1]}))
    job.epoch()
    (job.files / "dt=2026-03-01/a").unlink()
    job.write("dt=2026-03-01/b", pl.DataFrame({"n": [2]}))

    job.epoch()

    assert sorted(job.table("out")["n"].to_list()) == [1, 2]


def test_a_table_to_look_up_has_its_folders_columns(spark: SparkSession, tmp_path: Path) -> None:
    job = FolderJob(spark, tmp_path)
    rates = tmp_path / "rates"
    for country, rate in (("de", 19), ("fr", 20)):
        (rates / f"country={country}").mkdir(parents=True)
        (rates / f"country={country}" / "rate.json").write_text(f'{{"rate": {rate}}}\n')
    table = job.pipeline.source(
        "rates", Files(str(rates), format="json", schema="rate int"), table=True
    )
    looked_up = job.rows().lookup("with_rate", table, on="country", add=("rate",))
    looked_up.sink("out", FilesTable())
    job.write("rows", pl.DataFrame({"n": [1, 2], "country": ["fr", "de"]}))

    job.epoch()

    assert sorted(job.table("out")["rate"].to_list()) == [19, 20]
