"""Columns of sluice's own are the runtime's: a function keeps them, and computes none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import polars as pl
import pytest

from sluice.declaration.pipeline import Stream
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.spark.checking import check_pipeline
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = pl.DataFrame({"k": [1, 2], "v": [3, 4], "s": ["a", "b"]}).with_columns(
    at=pl.datetime(2026, 1, 1, time_zone="UTC")
)


def newest(rows: Stream) -> Stream:
    return rows.key_by("k").latest("newest", by="v")


def relocated(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("k", "at", "struct('x' AS partition, 1L AS record) AS _source")


def relocated_beside_many(rows: DataFrame) -> DataFrame:
    """Of more than 25 columns Spark prints some."""
    many = [f"v AS v{number}" for number in range(60)]
    return rows.selectExpr(
        "k", "at", *many, "struct('x' AS partition, 1L AS record) AS _source", "v"
    )


def placed_beside_many(rows: DataFrame) -> DataFrame:
    many = [f"v AS v{number}" for number in range(60)]
    return rows.selectExpr("*", *many, "spark_partition_id() AS place", "s AS s2")


def renamed(rows: DataFrame) -> DataFrame:
    origin = rows.selectExpr("k", "at", "struct(s AS partition, v AS record) AS origin")
    return origin.withColumnRenamed("origin", "_source")


def weighed(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("k", "v", "CAST(5 AS tinyint) AS _weight")


def chosen(rows: DataFrame) -> DataFrame:
    return rows.select("k", "at")


def timeless(rows: DataFrame) -> DataFrame:
    return rows.select("k", "_source")


def of_text(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("k", "s AS at", "_source")


def raw(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("*", "s AS _raw")


def kept(rows: DataFrame) -> DataFrame:
    both = rows.where("v > 3").unionByName(rows.where("v <= 3"))
    return both.selectExpr("*", "_source.partition AS place")


def kept_updates(rows: DataFrame) -> DataFrame:
    return rows.where("v > 3").unionByName(rows.where("v <= 3")).selectExpr("*", "v AS w")


REFUSED: dict[str, tuple[Callable[[Stream], object], str]] = {
    "an origin of one's own": (
        lambda rows: rows.transform("t", relocated),
        "the function of stage 't' computes the column '_source', which is sluice's own",
    ),
    "an origin of one's own beside many columns": (
        lambda rows: rows.transform("t", relocated_beside_many),
        "the function of stage 't' computes the column '_source'",
    ),
    "a place in Spark beside many columns": (
        lambda rows: rows.transform("t", placed_beside_many),
        "the function of stage 't' has spark_partition_id()",
    ),
    "another column as the origin": (
        lambda rows: rows.transform("t", renamed),
        "the function of stage 't' computes the column '_source'",
    ),
    "a weight of one's own": (
        lambda rows: newest(rows).transform("t", weighed),
        "the function of stage 't' computes the column '_weight'",
    ),
    "an origin that was dropped": (
        lambda rows: rows.transform("t", chosen),
        "stage 't' dropped the column '_source'; keep it, the watermark of 'at' is measured",
    ),
    "an event time that was dropped": (
        lambda rows: rows.transform("t", timeless),
        "stage 't' yields no column 'at', the event time that its source names; it yields k",
    ),
    "an event time that is none": (
        lambda rows: rows.transform("t", of_text),
        "stage 't' cannot use column 'at' of type string as event time",
    ),
    "a text of one's own": (
        lambda rows: rows.transform("t", raw),
        "the result of stage 't' has a column '_raw', a name that sluice gives to a column of its",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_has_a_column_of_ours_is_refused_by_check(
    job: FolderJob, spark: SparkSession, name: str
) -> None:
    job.write("1.parquet", ROWS)
    declare, sentence = REFUSED[name]
    declare(job.rows(event_time="at"))

    with pytest.raises(ConfigurationError) as refused:
        check_pipeline(job.pipeline, spark, {}, None)

    assert sentence in str(refused.value)


def test_a_function_keeps_them_through_filters_and_unions(
    job: FolderJob, spark: SparkSession
) -> None:
    job.write("1.parquet", ROWS)
    rows = job.rows(event_time="AT")
    rows.transform("appended", kept)
    newest(rows).transform("updated", kept_updates)

    found = check_pipeline(job.pipeline, spark, {}, None)

    assert {*found["updated"].columns} == {"k", "v", "s", "AT", "w"}


def test_a_select_of_a_source_keeps_what_the_runtime_needs(job: FolderJob) -> None:
    job.write("1.parquet", ROWS)
    rows = job.rows(event_time="at").select("k", "at", "_source.record AS place")
    rows.transform("parse", lambda rows: rows).sink("out", FilesTable())

    job.epoch()

    assert sorted(job.table("out").select("k", "place").rows()) == [(1, 0), (2, 1)]
