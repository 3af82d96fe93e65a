"""Columns of every type give the same rows past Spark's JVM and through it."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest

from sluice.declaration import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.checking import check_pipeline
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
NAIVE = AT.replace(tzinfo=None)
TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "nanos": (pa.timestamp("ns"), NAIVE, AT),
    "micros": (pa.timestamp("us"), NAIVE, AT),
    "zoned": (pa.timestamp("ms", tz="Europe/Berlin"), AT, AT.replace(microsecond=678_000)),
    "u32": (pa.uint32(), 2**32 - 1, 2**32 - 1),
    "u64": (pa.uint64(), 2**64 - 1, Decimal(2**64 - 1)),
    "half": (pa.float16(), 1.5, 1.5),
    "list": (pa.list_(pa.int64()), [2, 1], [2, 1]),
    "struct": (pa.struct([("a", pa.uint8()), ("b", pa.string())]), {"a": 1, "b": None}, None),
    "structs": (pa.list_(pa.struct([("at", pa.timestamp("ns"))])), [{"at": NAIVE}], [{"at": AT}]),
    "map": (pa.map_(pa.string(), pa.int64()), [("b", 1), ("a", None)], {"b": 1, "a": None}),
    "maps": (
        pa.map_(pa.int32(), pa.list_(pa.struct([("at", pa.timestamp("ns"))]))),
        [(1, [{"at": NAIVE}]), (2, None)],
        {1: [{"at": AT}], 2: None},
    ),
    "truth": (pa.bool_(), True, True),
}


def a_table() -> pa.Table:
    columns = {name: pa.array([one[1]] * 2, one[0]) for name, one in TYPES.items()}
    return pa.table({"k": pa.array([1, 1], pa.int64()), **columns})


@pytest.mark.parametrize("condition", ["k = 1", "k + 0 = 1"])  # Past the JVM, and through it.
def test_a_row_is_the_same_either_way(spark: SparkSession, tmp_path: Path, condition: str) -> None:
    job = FolderJob(spark, tmp_path)
    source = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    keyed = source.where(condition).key_by("k")
    keyed.latest("latest", by="nanos").sink("latest_out", FilesTable(upsert_key=("k",)))
    keyed.deduplicate("first").sink("first_out", FilesTable())
    keyed.join("pairs", source.select("k AS other").key_by("other")).sink("out", FilesTable())
    keyed.aggregate("counts", n=agg.count("structs"), last=agg.max("u64")).sink(
        "counts_out", FilesTable(upsert_key=("k",))
    )
    job.write("1.parquet", a_table())
    expected = {name: one[2] for name, one in TYPES.items()} | {"struct": {"a": 1, "b": None}}

    check_pipeline(job.pipeline, spark, {}, None)
    job.epoch()

    assert job.table("latest_out").to_dicts() == [{"k": 1, **expected}]
    assert job.table("first_out").to_dicts() == [{"k": 1, **expected}]
    assert job.table("out").drop("other").to_dicts() == [{"k": 1, **expected}] * 4
    assert job.table("counts_out").rows() == [(1, 2, Decimal(2**64 - 1))]


def test_a_list_of_a_stage_before_passes_through_the_jvm(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A running variance of a stage's doubles is computed behind Spark's own shuffle."""
    job = FolderJob(spark, tmp_path)
    folder = job.files / "rows"
    folder.mkdir()
    rows = job.pipeline.source("rows", Files(str(folder), format="parquet", bounded=False))
    lists = rows.transform("same", lambda frame: frame).key_by("k")
    lists.aggregate("spread", spread=agg.variance("v"), last=agg.max("nested[0].tags[0]")).sink(
        "out", FilesTable(upsert_key=("k",))
    )
    nested = [{"tags": ["a", None]}]
    job.write(
        "rows/1.parquet", pl.DataFrame({"k": [1, 1], "v": [1.0, 3.0], "nested": [nested] * 2})
    )

    job.epoch()

    assert job.table("out").to_dicts() == [{"k": 1, "spread": 2.0, "last": "a"}]
