"""Names that some layer may decode, expand or split: rows of such files go to keyed stages once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.pending import FIRST_ATTEMPT
from sluice.declaration import aggregates as agg
from sluice.errors import StageFailed
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.stage import run_stage
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where a name is a pattern, or is another one encoded, what it would match is beside it.
DECODED = ["2024-01-01T00+01.parquet", "c++ data/a%20b.parquet", "c++ data/a b.parquet"]
EXPANDED = ["a[1].parquet", "a1.parquet", "b*.parquet", "bc.parquet", "d?.parquet", "de.parquet"]
EXPANDED += ["{x,y}.parquet", "x.parquet"]
SPLIT = ["k=1/12:30.parquet", "k=2/ü#1.parquet", "back\\slash", "new\nline"]
NAMES = [*DECODED, *EXPANDED, *SPLIT]


@pytest.mark.parametrize("way", ["abs(n) % 1 + 0 AS k", "k"])  # Through Spark's SQL, and past it.
def test_rows_of_files_with_any_name_are_read_once(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    job = FolderJob(spark, tmp_path)
    job.limit(6 * len(NAMES) - 8)  # The barrier is within a file.
    rows = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    counts = (
        rows.select("n", way).key_by("k").aggregate("counts", n=agg.count(), total=agg.sum("n"))
    )
    counts.sink("out", FilesTable(upsert_key=("k",)))
    for number, name in enumerate(NAMES):
        (job.files / name).parent.mkdir(parents=True, exist_ok=True)
        job.write(name, pl.DataFrame({"n": range(number * 6, number * 6 + 6), "k": [0] * 6}))
    total = 6 * len(NAMES)

    job.epoch()
    job.epoch()

    assert job.table("out").to_dicts() == [{"k": 0, "n": total, "total": total * (total - 1) // 2}]


@pytest.mark.parametrize(
    ("stage", "rows"), [("unkeyed", range(3)), ("past", range(1, 6)), ("through", range(9))]
)
def test_a_file_that_is_replaced_after_the_plan_fails_the_stage_that_reads_it(
    spark: SparkSession, tmp_path: Path, stage: str, rows: range
) -> None:
    """By a shorter one, one as long, a longer one."""
    job = FolderJob(spark, tmp_path)
    source = job.pipeline.source("rows", Files(str(job.files), format="parquet", bounded=False))
    match stage:
        case "unkeyed":
            result = source.transform(stage, lambda frame: frame)
        case "past":
            result = source.key_by("n").deduplicate(stage)
        case _:
            result = source.where("abs(n) >= 0").key_by("n").deduplicate(stage)
    result.sink("out", FilesTable())
    job.write("a+b", pl.DataFrame({"n": range(5)}))
    planned = trigger(job.job)
    assert isinstance(planned, Triggered)
    job.write("new", pl.DataFrame({"n": rows}))
    (job.files / "new").replace(job.files / "a+b")

    with pytest.raises(
        StageFailed,
        match=rf"'{stage}' failed .*: a\+b of .* was replaced after this epoch was planned",
    ):
        run_stage(job.job, spark, planned.plan.checkpoint_id, stage, attempt=FIRST_ATTEMPT)
