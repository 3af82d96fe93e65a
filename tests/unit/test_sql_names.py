"""Which words of a text of SQL are columns; the words are those that Spark calls keywords."""

from __future__ import annotations

import re

import polars as pl
import pytest

from sluice.runtime.row_sql import applied
from sluice.sql_names import LITERAL, unknown_column
from sluice.steps import Filter, Projection

# Those of Spark 4.3's sql_keywords() that its parser, or Polars', gives a meaning in an expression.
KEYWORDS = re.findall(
    r"\w+",
    """
    all and any array as asc at between both by case cast collate count cross current current_date
    current_time current_timestamp current_user data date day day_of_week days decimal default
    delete desc distinct div drop else end escape except exclude exists extract false fetch filter
    first float for from full function group grouping having hour identifier if ilike in index
    inner insert int integer intersect interval into is join last lateral leading left like limit
    list local localtime localtimestamp long map match minute minus month name natural no not null
    nulls of offset on only or order outer over overlaps partition percent position primary qualify
    range rank regexp replace right rlike row rows second select semi session session_user set some
    start string struct symmetric table then time timestamp to top trailing trim true truncate type
    union unique unknown update user using value values view week when where window with within year
    zone
    """,
)
NAMES = ["a", "at", "b", "price"]


@pytest.mark.parametrize("word", [word for word in KEYWORDS if not LITERAL.fullmatch(word)])
def test_a_column_of_any_name_is_filtered_and_selected(word: str) -> None:
    rows = pl.DataFrame({word: ["ann", "x", None], "b": [1, 2, 3]})
    columns = (word, f"upper({word}) AS loud", f"CASE WHEN {word} IS NULL THEN b END AS gone")

    kept = applied(Filter(f"b > 0 AND {word} = 'ann'"), rows)
    there = applied(Filter(f"{word} IS NOT NULL"), rows)
    selected = applied(Projection((*columns, f"b + 1 AS {word}2")), rows)
    renamed = applied(Projection((f"b AS {word}",)), rows.select("b"))

    assert kept.rows() == [("ann", 1)]
    assert there.height == 2
    assert selected.rows() == [("ann", "ANN", None, 2), ("x", "X", None, 3), (None, None, 3, 4)]
    assert renamed.columns == [word]


@pytest.mark.parametrize("word", ["true", "false", "null"])
def test_a_literal_stays_one_unless_it_is_quoted(word: str) -> None:
    rows = pl.DataFrame({word: ["ann", "x"]})

    assert applied(Filter(f"\"{word}\" = 'ann'"), rows).rows() == [("ann",)]
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
        "`strange` = 1",
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
        ("date_trunc('hour', att)", "att"),
        ("bidd.price > 3", "bidd"),
        ("CASE WHEN a THEN bb END", "bb"),
    ],
)
def test_a_misspelt_column_is_found(sql: str, name: str) -> None:
    assert unknown_column(sql, NAMES) == name
