"""Columns of sluice's own are the runtime's: a function keeps them, and computes none."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from sluice.declaration.columns import OF_STAGES
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.declaration.results import Append
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.checking import check_pipeline
from sluice.testing import run_local
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


def computed(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("k", "upper(s) AS _raw")


def of_another(rows: DataFrame) -> DataFrame:
    return rows.withColumnRenamed("_raw", "text").withColumnRenamed("s", "_raw")


def joined(rows: DataFrame) -> DataFrame:
    theirs = rows.sparkSession.createDataFrame([(1, "A")], "k bigint, _raw string")
    return rows.drop("_raw").join(theirs, on="k", how="left")


def raw_kept(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("_raw", "k", "_malformed", "_source", "s")


def same(frames: Any) -> Any:
    yield from frames


def in_python(rows: DataFrame) -> DataFrame:
    return rows.mapInPandas(same, "k bigint, _raw string")


@pytest.mark.parametrize("function", [computed, of_another, joined, in_python])
def test_a_text_of_ones_own_is_refused_over_lines_that_may_be_malformed(
    spark: SparkSession, function: Callable[[DataFrame], DataFrame]
) -> None:
    pipeline = Pipeline("p")
    files = Files("/rows", format="json", schema="k bigint, s string")
    pipeline.source("rows", files).transform("t", function).sink("out", FilesTable())

    with pytest.raises(ConfigurationError, match="the result of stage 't' has a column '_raw', a"):
        check_pipeline(pipeline, spark, {}, None)


@pytest.mark.parametrize("function", [raw_kept, lambda rows: rows.mapInPandas(same, rows.schema)])
def test_the_text_of_a_line_may_be_kept(
    spark: SparkSession, function: Callable[[DataFrame], DataFrame]
) -> None:
    pipeline = Pipeline("p")
    files = Files("/rows", format="json", schema="k bigint, s string")
    pipeline.source("rows", files).transform("t", function).sink("out", FilesTable())

    assert check_pipeline(pipeline, spark, {}, None)["t"].columns.names() == ["k", "s"]


OF_ANOTHER_TYPE: dict[str, Callable[[DataFrame], DataFrame]] = {
    "'_malformed' as boolean": lambda rows: rows.selectExpr("*", "v > 3 AS _malformed"),
    "'_malformed' as int": lambda rows: rows.selectExpr("*", "0 AS _malformed"),
    "'_source' as string": lambda rows: rows.mapInPandas(same, "k bigint, _source string"),
}


@pytest.mark.parametrize("told", OF_ANOTHER_TYPE)
def test_a_column_of_ours_of_another_type_is_refused(
    job: FolderJob, spark: SparkSession, told: str
) -> None:
    job.write("1.parquet", ROWS)
    job.rows().transform("t", OF_ANOTHER_TYPE[told]).sink("out", FilesTable())

    with pytest.raises(ConfigurationError, match=f"the function of stage 't' yields {told}, and"):
        check_pipeline(job.pipeline, spark, {}, None)


# A source may have what a stage calls its own columns, and each reader gives them another name.
NAMES = sorted(OF_STAGES)
RENAMED = [f"`{name}` AS c{place}" for place, name in enumerate(NAMES)]
READERS: dict[str, Callable[[Stream, Stream], Stream]] = {
    "selected": lambda rows, _: rows.select("k", *RENAMED).transform("selected", lambda rows: rows),
    "filtered": lambda rows, _: (
        rows.where(" AND ".join(f"`{name}` > 0" for name in NAMES))
        .select("k", *RENAMED)
        .key_by("k")
        .latest("filtered", by="k")
    ),
    "transformed": lambda rows, _: rows.transform(
        "transformed", lambda rows: rows.selectExpr("k", *RENAMED)
    ),
    "matched": lambda rows, table: rows.select("k", *RENAMED).lookup("matched", table, on="k"),
    "looked_up": lambda rows, table: rows.select("k").lookup(
        "looked_up",
        table,
        on="k",
        add={f"c{place}": f"`{name}`" for place, name in enumerate(NAMES)},
    ),
    "computed": lambda rows, table: rows.pipeline.spark(
        "computed",
        lambda rows, table: rows.join(table.selectExpr("k", *RENAMED), on="k").select(
            "k", *(f"c{place}" for place in range(len(NAMES)))
        ),
        reads={"rows": rows},
        tables={"table": table},
        schema=", ".join(["k bigint", *(f"c{place} bigint" for place in range(len(NAMES)))]),
        result=Append(),
    ),
}


def test_columns_of_a_source_that_are_called_as_those_of_a_stage_are_carried_unharmed() -> None:
    pipeline = Pipeline("p")
    schema = ", ".join(["k bigint", *(f"`{name}` bigint" for name in NAMES)])
    files = Files("/rows", format="json", schema=schema)
    rows, table = pipeline.source("rows", files), pipeline.source("table", files, table=True)
    for name, read in READERS.items():
        sink = FilesTable(upsert_key=("k",)) if name == "filtered" else FilesTable()
        read(rows, table).sink(f"{name}_rows", sink)
    one = {"k": 1, **{name: place for place, name in enumerate(NAMES, start=1)}}

    found = run_local(pipeline, {"rows": [json.dumps(one), "{"], "table": [one]})

    expected = {"k": 1, **{f"c{place}": place + 1 for place in range(len(NAMES))}}
    for name in READERS:
        assert found.table(f"{name}_rows").select(*expected).to_dicts() == [expected], name
    assert found.side_output("selected", "malformed").height == 1
