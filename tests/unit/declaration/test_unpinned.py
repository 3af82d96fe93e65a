"""What Spark code reads by itself, and what answers otherwise each time, is found in its source."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from sluice import Append, Pipeline
from sluice.declaration.determinism import unpinned
from sluice.declaration.operations import SparkCode
from sluice.sources import Files

READS, DIFFERS = "reads what no checkpoint pins", "answers otherwise each time"


def by_reader(rows: Any) -> Any:
    rates = rows.sparkSession.read.parquet("rates")
    return rows.join(rates, "k")


def by_table(rows: Any, spark: Any = None) -> Any:
    return rows.join(spark.table("rates"), "k")


def by_query(rows: Any) -> Any:
    spark = rows.sparkSession
    return spark.sql("SELECT * FROM {rows} JOIN lake.rates USING (k)", rows=rows)


def by_draw(rows: Any) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return rows.withColumn("n", F.monotonically_increasing_id()).withColumn("r", F.rand())


def by_expression(rows: Any) -> Any:
    return rows.selectExpr("k", "uuid() AS id", "current_date AS today", "extract(YEAR FROM at)")


def by_python(rows: Any) -> Any:
    now = dt.datetime.now(tz=dt.UTC)
    return rows.selectExpr(f"'{now} {uuid.uuid4()} {random.random()}' AS x")


def by_helper(rows: Any) -> Any:
    return by_table(rows)


def pinned(rows: Any) -> Any:
    spark = rows.sparkSession
    counted = rows.groupBy("k").count().selectExpr("k", "count AS rand", "trim(BOTH FROM s)")
    return spark.sql("WITH one AS (SELECT * FROM {counted}) SELECT * FROM one", counted=counted)


FOUND: dict[Callable[..., Any], list[tuple[str, str]]] = {
    by_reader: [("spark.read", READS)],
    by_table: [("spark.table", READS)],
    by_query: [("the table lake.rates", READS)],
    by_draw: [("monotonically_increasing_id()", DIFFERS), ("rand()", DIFFERS)],
    by_expression: [("current_date", DIFFERS), ("uuid()", DIFFERS)],
    by_python: [
        ("dt.datetime.now", DIFFERS),
        ("random.random", DIFFERS),
        ("uuid.uuid4", DIFFERS),
    ],
    by_helper: [("spark.table", READS)],
    pinned: [],
}


@pytest.mark.parametrize("function", FOUND)
def test_what_a_function_reads_by_itself_is_found(function: Callable[..., Any]) -> None:
    code = code_of(
        lambda pipeline, rows: pipeline.spark(
            "code", function, reads={"rows": rows}, schema="k int", result=Append()
        )
    )

    found = [(code, what) for code, what, _ in unpinned(code)]

    assert sorted(found) == FOUND[function]


def test_it_is_named_with_its_line() -> None:
    code = code_of(
        lambda pipeline, rows: pipeline.spark(
            "code", by_reader, reads={"rows": rows}, schema="k int", result=Append()
        )
    )
    line = by_reader.__code__.co_firstlineno + 1

    assert [*map(str, unpinned(code))] == [
        f"spark.read reads what no checkpoint pins, at test_unpinned.py line {line}"
    ]


def test_a_name_around_the_function_need_not_be_bound_yet() -> None:
    def function(rows: Any) -> Any:
        return late(by_table(rows))

    code = code_of(
        lambda pipeline, rows: pipeline.spark(
            "code", function, reads={"rows": rows}, schema="k int", result=Append()
        )
    )

    assert [found.code for found in unpinned(code)] == ["spark.table"]
    late = pinned


def test_a_text_of_sql_is_read_as_well() -> None:
    text = """
        WITH new AS (SELECT *, now() AS at FROM rows r)
        SELECT * FROM new JOIN range(3) JOIN `lake`.rates ON r.k IS DISTINCT FROM rates.k
    """
    code = code_of(
        lambda pipeline, rows: pipeline.spark_sql(
            "code", text, reads={"rows": rows}, schema="k int", result=Append()
        )
    )

    assert [*map(str, unpinned(code))] == [
        "the table lake.rates reads what no checkpoint pins, at its text",
        "now() answers otherwise each time, at its text",
    ]


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        (
            "SELECT * FROM rows r, lake.rates AS f, `names` WHERE r.k IN (1, 2)",
            ["lake.rates", "names"],
        ),
        ("SELECT * FROM rows JOIN a USING (k, v), b ORDER BY k, v", ["a", "b"]),
        ("SELECT * FROM (SELECT k, v FROM a, rows) s, b GROUP BY k, v", ["a", "b"]),
        ("SELECT * FROM rows, LATERAL explode(x), range(3), a LIMIT 3", ["a"]),
        ("SELECT * FROM rows LATERAL VIEW explode(m) t AS k, v", []),
        ("FROM rows, a SELECT k, v", ["a"]),
        ("SELECT k, extract(day FROM at), v FROM rows", []),
        ("SELECT k FROM rows UNION SELECT k, v FROM a, b", ["a", "b"]),
    ],
)
def test_tables_of_a_text_are_those_behind_commas_too(text: str, tables: list[str]) -> None:
    code = code_of(
        lambda pipeline, rows: pipeline.spark_sql(
            "code", text, reads={"rows": rows}, schema="k int", result=Append()
        )
    )

    assert [found.code for found in unpinned(code)] == [f"the table {name}" for name in tables]


def code_of(declare: Callable[[Pipeline, Any], object]) -> SparkCode:
    pipeline = Pipeline("p")
    declare(pipeline, pipeline.source("rows", Files("x", format="parquet")))
    code = pipeline.stages["code"].operation
    assert isinstance(code, SparkCode)
    return code
