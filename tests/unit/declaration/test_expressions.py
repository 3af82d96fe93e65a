"""Texts of SQL and columns of Spark Connect in a declaration, and the columns that steps read."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from pyspark.sql.connect import functions

from sluice import Pipeline, Tumbling
from sluice import aggregates as agg
from sluice.declaration.expressions import (
    Filter,
    Projection,
    Step,
    columns_read,
    origin_of,
    result_name,
    unknown_column,
)
from sluice.declaration.fingerprints import fingerprints
from sluice.declaration.spark_columns import sql_text
from sluice.declaration.sql_tree import LITERAL
from sluice.errors import ConfigurationError
from sluice.operators.steps import applied
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from tests.sql_keywords import KEYWORDS

NAMES = ["a", "at", "b", "price"]


def test_a_column_of_any_name_is_filtered_and_selected() -> None:
    for word in KEYWORDS:
        if not LITERAL.fullmatch(word):
            check_filtered_and_selected(word)


def check_filtered_and_selected(word: str) -> None:
    rows = pl.DataFrame({word: ["ann", "x", None], "b": [1, 2, 3]})
    columns = (word, f"upper({word}) AS loud", f"CASE WHEN {word} IS NULL THEN b END AS gone")

    kept = applied(Filter(f"b > 0 AND {word} = 'ann'"), rows)
    there = applied(Filter(f"{word} IS NOT NULL"), rows)
    selected = applied(Projection((*columns, f"b + 1 AS {word}2")), rows)
    renamed = applied(Projection((f"b AS {word}",)), rows.select("b"))

    assert kept.rows() == [("ann", 1)], word
    assert there.height == 2, word
    expected = [("ann", "ANN", None, 2), ("x", "X", None, 3), (None, None, 3, 4)]
    assert selected.rows() == expected, word
    assert renamed.columns == [word]


@pytest.mark.parametrize("word", ["true", "false", "null"])
def test_a_literal_stays_one_unless_it_is_quoted(word: str) -> None:
    rows = pl.DataFrame({word: ["ann", "x"]})

    assert applied(Filter(f"`{word}` = 'ann'"), rows).rows() == [("ann",)]
    assert applied(Filter(f"{word} IS NOT NULL"), rows).height == (0 if word == "null" else 2)


@pytest.mark.parametrize(
    "sql",
    [
        "a > 1 AND b IS NOT NULL",
        "A > 1",
        "CASE WHEN a THEN b ELSE price END",
        "CAST(a AS date) = DATE '2026-01-01'",
        "extract(year FROM at)",
        "timestampdiff(HOUR, at, now())",
        "interval 5 days + at",
        "current_date > at AND user = b",
        "exists(tags, x -> x > 1)",
        "f(width => 3)",
        "at + INTERVAL '1' DAY",
        "a::int = 1 OR a.b.c = 1",
        "trim(BOTH 'x' FROM a)",
        "substring(a FROM 2)",
        "a IS DISTINCT FROM b",
        "struct(a AS x, b AS y)",
        "NOT (a NOT IN (1, 2))",
        "-- nothing\n a = /* nothing */ 'text'",
    ],
)
def test_what_may_be_right_is_no_mistake(sql: str) -> None:
    assert unknown_column(sql, NAMES) is None


@pytest.mark.parametrize(
    ("sql", "name"),
    [
        ("coalesce(a, bb)", "bb"),
        ("NOT aa", "aa"),
        ("a LIKE 'x' OR bbb = 1", "bbb"),
        ("a BETWEEN 1 AND pric", "pric"),
        ("-aa", "aa"),
        ("`strange` = 1", "strange"),
        ("date_trunc('hour', att)", "att"),
        ("bidd.price > 3", "bidd"),
        ("CASE WHEN a THEN bb END", "bb"),
    ],
)
def test_a_misspelt_column_is_found(sql: str, name: str) -> None:
    assert unknown_column(sql, NAMES) == name


COLUMNS = ["id", "price", "name", "größe", "of`f"]
ALWAYS = ["größe", "of`f"]  # Names that SQL can spell in more than one way are always read.


@pytest.mark.parametrize(
    ("steps", "read"),
    [
        ([Projection(("price * 2 AS double",))], ["price", *ALWAYS]),
        ([Filter("ID > 1"), Projection(("`name`",)), Filter("x")], ["id", "name", *ALWAYS]),
        ([Projection(("price AS p",)), Projection(("p * id",))], ["price", *ALWAYS]),
        ([Projection(("1 AS one",))], ALWAYS),
        ([Projection(("*", "1 AS one")), Projection(("name",))], ["name", *ALWAYS]),
        ([Projection(("/* all */ *",))], None),
        ([Projection(("struct( * ) AS all",))], None),
        ([Projection(("* EXCEPT (id)",))], None),
        ([Filter("id > 1")], None),
        ([], None),
    ],
)
def test_a_select_without_a_star_says_which_columns_are_read(
    steps: list[Step], read: list[str] | None
) -> None:
    assert columns_read(steps, COLUMNS) == read


def test_what_is_looked_at_behind_the_steps_is_read_with_what_they_name() -> None:
    steps = [Filter("id > 1")]

    assert columns_read(steps, COLUMNS, ["price"]) == ["id", "price", *ALWAYS]


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("price", "price"),
        (" it.price ", "price"),
        ("price * 2 AS double_price", "double_price"),
        ("`a b`", "a b"),
        ("it.`a.b`", "a.b"),
        ("`a` AS `b c` ", "b c"),
        ("`back``tick`", "back`tick"),
    ],
)
def test_a_selected_column_is_called_what_stands_last(column: str, name: str) -> None:
    assert result_name(column) == name


@pytest.mark.parametrize(
    ("column", "steps", "origin"),
    [
        ("k", (), "k"),
        ("K", (Filter("v > 1"), Projection(("v", "k"))), "k"),
        ("g", (Projection(("k AS h", "v")), Projection(("*", "h AS g"))), "k"),
        ("v", (Projection(("*", "h AS g")),), "v"),
        ("g", (Projection(("k + 0 AS g",)),), None),
        ("g", (Projection(("s.k AS g",)),), None),
        ("g", (Projection(("k",)),), None),
    ],
)
def test_a_column_is_what_it_was_before_steps(
    column: str, steps: tuple[Step, ...], origin: str | None
) -> None:
    assert origin_of(column, steps) == origin


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
