"""A column of Spark Connect in a declaration is its text; ``tests/testing/test_remote_run.py`` has
Spark compute both.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.connect import functions

from sluice import Pipeline, Tumbling
from sluice import aggregates as agg
from sluice.declaration.fingerprints import fingerprints
from sluice.declaration.spark_columns import sql_text
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Nexmark

f: Any = functions  # Its types are those of a running Spark's.


def declared(columns: Any, condition: Any, key: Any, summed: Any, counted: Any) -> Pipeline:
    pipeline = Pipeline("p")
    bids = pipeline.source("bids", Nexmark(100), event_time="at")
    totals = (
        bids.select(*columns)
        .where(condition)
        .key_by("auction", even=key)
        .window(
            "totals",
            Tumbling(timedelta(seconds=10)),
            total=agg.sum(summed),
            n=agg.count(where=counted),
        )
    )
    totals.where(condition if isinstance(condition, str) else f.col("total") > 0).sink(
        "out", FilesTable()
    )
    return pipeline


def test_a_declaration_of_columns_is_that_of_their_texts() -> None:
    columns = declared(
        (f.col("bid.auction"), f.col("bid.price").alias("price"), "at"),
        f.col("price") > 100,
        f.col("auction") % 2,
        f.col("price") * 2,
        f.col("price").isNotNull(),
    )
    texts = declared(
        ("bid.auction", "bid.price AS price", "at"),
        "price > 100",
        "auction % 2",
        "price * 2",
        "price IS NOT NULL",
    )

    assert fingerprints(columns, {}) == fingerprints(texts, {})


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (f.col("price"), "price"),
        (f.col("a b"), "`a b`"),
        (f.col("bid.price"), "bid.price"),
        (f.col("`bid.price`"), "`bid.price`"),
        (f.col("*"), "*"),
        (f.expr("a > 1 OR b"), "a > 1 OR b"),
        (f.expr("a > 1 OR b") & f.col("c"), "((a > 1 OR b) AND `c`)"),
        ("price > 1", "price > 1"),
    ],
)
def test_a_name_stays_a_name_and_a_text_as_it_is(column: Any, text: str) -> None:
    assert sql_text(column) == text


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (lambda: f.udf(len)("a"), "has len(a), which is not SQL of one row"),
        (lambda: f.col("a").asc(), "has a ASC NULLS FIRST, which"),
        (lambda: f.count_distinct("a"), "has count(distinct a), which"),
        (lambda: f.lit(timedelta(days=1)), "has the literal 86400000000 of type DayTimeInterval"),
        (lambda: f.transform("a", lambda x: x + 1), "which is not SQL of one row; write what"),
    ],
)
def test_what_no_text_says_is_refused_by_its_piece(column: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        sql_text(column())

    assert said in str(refused.value)


def test_a_column_of_a_running_spark_is_refused() -> None:
    classic: Any = SimpleNamespace(alias=str, isNotNull=str)

    with pytest.raises(ConfigurationError, match=r"functions from pyspark\.sql\.connect"):
        sql_text(classic)


def test_what_is_neither_is_named() -> None:
    with pytest.raises(ConfigurationError, match="use a text or a column of pyspark"):
        Pipeline("p").source("bids", Nexmark(100)).where(3)  # type: ignore[arg-type]
