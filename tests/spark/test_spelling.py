"""A declaration names columns in any case, as Spark SQL does, and its result has its spelling."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sluice import Append, Pipeline, Tumbling
from sluice import aggregates as agg
from sluice.declaration import changelog
from sluice.declaration.pipeline import Stream
from sluice.declaration.places import SourceSpec
from sluice.errors import ConfigurationError
from sluice.job.analysis import analyse
from sluice.sinks import FilesTable
from sluice.sources import Files, Json, Kafka
from sluice.spark.checking import check_pipeline
from sluice.testing import run_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

A_SOURCE = Files("/r", format="json", schema="k string, Betrag bigint, at timestamp")
HOUR = Tumbling(timedelta(hours=1))


def at(minute: int) -> datetime:
    return datetime(2026, 1, 1, 12, minute, tzinfo=UTC)


ROWS = [
    {"k": "a", "Betrag": 3, "at": at(0)},
    {"k": "a", "Betrag": 4, "at": at(5)},
    {"k": "b", "Betrag": 5, "at": at(7)},
]
OTHERS = [{"Ok": "a", "name": "A", "At": at(1)}, {"Ok": "c", "name": "C", "At": at(2)}]
TOWNS = [{"Code": "a", "town": "Ulm"}]


def same(rows: DataFrame) -> DataFrame:
    return rows


def behind_a_stage(rows: Stream) -> Stream:
    return rows.transform("parse", same)


def sinking(result: Stream, *key: str) -> None:
    result.sink("out", FilesTable(upsert_key=key))


def totals(rows: Stream) -> None:
    sums = rows.key_by("K").aggregate(
        "sums", spent=agg.sum("BETRAG"), last=agg.last("betrag", by="AT")
    )
    sinking(sums, "k")


def windows(rows: Stream) -> None:
    sinking(rows.key_by("K").window("sums", HOUR, spent=agg.sum("betrag")))


def newest(rows: Stream) -> None:
    sinking(rows.key_by("K").latest("newest", by="AT").select("k", "BETRAG"), "K")


def best(rows: Stream) -> None:
    sinking(rows.key_by("K").top_n("best", 1, by="BETRAG", ties_by="AT"), "k", "Rank")


def first(rows: Stream) -> None:
    sinking(rows.key_by("K").deduplicate("first", by="BETRAG").select("k", "betrag AS v"))


def joined(rows: Stream) -> None:
    others = rows.pipeline.source("others", others_of(), event_time="at").select("*")
    sinking(rows.key_by("K").join("both", others.key_by("OK")).select("k", "NAME", "betrag"))


def near(rows: Stream) -> None:
    others = rows.pipeline.source("others", others_of(), event_time="at")
    both = rows.key_by("K").interval_join("both", others.key_by("oK"), upper=timedelta(minutes=2))
    sinking(both.select("k", "name", "RIGHT_AT", "at"))


def found(rows: Stream) -> None:
    places = Files("/towns", format="parquet", bounded=False)
    towns = rows.pipeline.source("towns", places, table=True)
    sinking(rows.lookup("found", towns, on={"K": "CODE"}, add={"Town": "upper(TOWN)"}))


def others_of() -> Files:
    return Files("/others", format="parquet", bounded=False)


CASES: dict[str, tuple[Callable[[Stream], None], list[dict[str, Any]]]] = {
    "an aggregate": (
        totals,
        [{"K": "a", "spent": 7, "last": 4}, {"K": "b", "spent": 5, "last": 5}],
    ),
    "a window": (windows, [{"K": "a", "spent": 7}, {"K": "b", "spent": 5}]),
    "the newest": (newest, [{"k": "a", "BETRAG": 4}, {"k": "b", "BETRAG": 5}]),
    "the best": (best, [{"K": "a", "BETRAG": 4}, {"K": "b", "BETRAG": 5}]),
    "the first": (first, [{"k": "a", "v": 3}, {"k": "b", "v": 5}]),
    "a join": (
        joined,
        [{"k": "a", "NAME": "A", "betrag": 3}, {"k": "a", "NAME": "A", "betrag": 4}],
    ),
    "an interval join": (near, [{"k": "a", "name": "A", "RIGHT_AT": at(1), "at": at(0)}]),
    "a lookup": (
        found,
        [{"K": "a", "Betrag": 3, "Town": "ULM"}, {"K": "a", "Betrag": 4, "Town": "ULM"}],
    ),
}
SOURCES: dict[str, SourceSpec] = {
    "files": Files("/rows", format="parquet", bounded=False),
    "json": Kafka("broker:9092", "rows", value=Json("k string, Betrag bigint, at timestamp")),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("before", [lambda rows: rows, behind_a_stage])
@pytest.mark.parametrize("name", CASES)
def test_a_column_is_named_in_any_case(
    spark: SparkSession, name: str, before: Callable[[Stream], Stream], source: str
) -> None:
    declare, expected = CASES[name]
    pipeline = Pipeline("spelt")
    declare(before(pipeline.source("rows", SOURCES[source], event_time="AT")))
    given = {"rows": ROWS, "others": OTHERS, "towns": TOWNS}

    result = run_local(pipeline, {uid: given[uid] for uid in pipeline.sources}, spark=spark)

    table = result.table("out")
    rows = [{of: row[of] for of in expected[0]} for row in table.iter_rows(named=True)]
    assert sorted(rows, key=str) == sorted(expected, key=str)


def test_one_column_is_spelt_one_way_by_one_stage() -> None:
    rows = Pipeline("spelt").source("rows", SOURCES["files"])

    with pytest.raises(ConfigurationError) as refused:
        rows.key_by("K").latest("newest", by=("at", "k"))

    assert "stage 'newest' names one column 'K' and 'k'; spell it one way" in str(refused.value)


def table(rows: Stream) -> Stream:
    files = Files("/t", format="json", schema="k string, town string")
    return rows.pipeline.source("t", files, table=True)


# Each argument that names a column, misspelt.
MISSPELT: dict[str, Callable[[Stream], Stream]] = {
    "a key": lambda rows: rows.key_by("Kk").latest("s", by="betrag"),
    "a computed key": lambda rows: rows.key_by(x="upper(kk)").latest("s", by="betrag"),
    "by of latest": lambda rows: rows.key_by("k").latest("s", by="betragg"),
    "by of top_n": lambda rows: rows.key_by("k").top_n("s", 1, by="betragg"),
    "ties_by": lambda rows: rows.key_by("k").top_n("s", 1, by="betrag", ties_by="att"),
    "unique": lambda rows: rows.key_by("k").top_n("s", 1, by="betrag", unique="kk"),
    "by of deduplicate": lambda rows: rows.key_by("k").deduplicate("s", by="att"),
    "by of a window": lambda rows: rows.window_top_n("s", HOUR, 1, by="betragg"),
    "a sum": lambda rows: rows.key_by("k").aggregate("s", n=agg.sum("betragg")),
    "where of an aggregate": lambda rows: rows.key_by("k").aggregate("s", n=agg.count(where="kk")),
    "by of an aggregate": lambda rows: rows.key_by("k").aggregate("s", n=agg.last("k", by="att")),
    "a sum of a window": lambda rows: rows.key_by("k").window("s", HOUR, n=agg.sum("betragg")),
    "select": lambda rows: rows.select("kk", "at").transform("s", same),
    "where": lambda rows: rows.where("kk = 'a'").transform("s", same),
    "select of a result": lambda rows: (
        rows.key_by("k").aggregate("s", n=agg.count()).select("kk", "n")
    ),
    "where of a result": lambda rows: (
        rows.key_by("k").aggregate("s", n=agg.count()).where("nn > 1")
    ),
    "a key of a join": lambda rows: rows.key_by("kk").join(
        "s", rows.select("k AS j", "betrag AS b").key_by("j")
    ),
    "on of a lookup": lambda rows: rows.lookup("s", table(rows), on="kk"),
    "the rows' side of on": lambda rows: rows.lookup("s", table(rows), on={"kk": "k"}),
    "the table's side of on": lambda rows: rows.lookup("s", table(rows), on={"k": "upper(kk)"}),
    "what a lookup adds": lambda rows: rows.lookup("s", table(rows), on="k", add=("tow",)),
    "what a lookup computes": lambda rows: rows.lookup(
        "s", table(rows), on="k", add={"t": "upper(tow)"}
    ),
    "where of a table": lambda rows: rows.lookup("s", table(rows).where("tow = ''"), on="k"),
    "on of a lookup of updates": lambda rows: (
        rows.key_by("k").latest("l", by="betrag").lookup("s", table(rows), on="kk")
    ),
    "a table of Spark code": lambda rows: rows.pipeline.spark(
        "s",
        lambda rows, t: rows,
        reads={"rows": rows},
        tables={"t": table(rows).where("tow = ''")},
        schema="k string",
        result=Append(),
    ),
}


@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_column_is_told_with_the_nearest_one(
    spark: SparkSession, name: str, is_behind: bool
) -> None:
    rows = Pipeline("p").source("rows", A_SOURCE, event_time="at")
    found = MISSPELT[name](behind_a_stage(rows) if is_behind else rows)
    is_append = isinstance(found.kind, changelog.Append)
    found.sink("out", FilesTable() if is_append else FilesTable(changelog=True))

    with pytest.raises(ConfigurationError, match=r"did you mean '(k|at|Betrag|town|n)'\? ") as told:
        check_pipeline(rows.pipeline, spark, {}, None)

    assert "UNRESOLVED" not in str(told.value)
    assert "_weight" not in str(told.value)
    if not is_behind:
        with pytest.raises(ConfigurationError, match="did you mean"):
            analyse(rows.pipeline, {}, None)
