"""What Catalyst knows to answer otherwise is refused where its answer is needed twice."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import polars as pl
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.determinism import CLOCKS, DRAWS, PLACES
from sluice.declaration.pipeline import Stream
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.spark.checking import check_pipeline
from tests.examples import slow
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows_of(job: FolderJob) -> Stream:
    job.write("1.parquet", pl.DataFrame({"u": [1, 2, 3], "g": [0, 0, 0], "v": [1, 2, 3]}))
    return job.rows()


def newest(rows: Stream) -> Stream:
    return rows.key_by("u").latest("newest", by="v")


def a_ticket() -> str:
    return str(uuid.uuid4())


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    spark.udf.register("a_ticket", F.udf(a_ticket).asNondeterministic())
    spark.udf.register("a_constant", F.udf(lambda: "a"))


def drawn(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return rows.withColumn("v", F.rand(7))


def ticketed(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return rows.withColumn("id", F.udf(a_ticket).asNondeterministic()())


def stamped(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("*", "now() AS seen")


def tried(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("*", "TRY_CAST('now' AS timestamp) AS seen")


def computing(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("*", "date(concat('to', 'day')) AS seen")


def numbered(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return rows.withColumn("number", F.monotonically_increasing_id())


def plain(rows: DataFrame) -> DataFrame:
    between = "CASE WHEN u BETWEEN 1 AND 2 THEN replace('x', 'x', 'now') END AS c"
    texts = "struct(nullif('x', 'now'), date(concat('2026', '-01-01')), date(left('now', u))) AS d"
    known = "v AS `rand()`", "a_constant() AS a", "'rand()' AS b"
    return rows.selectExpr("*", *known, between, texts)


def by(rows: Stream, key: str) -> Stream:
    return rows.key_by(k=key).aggregate("a", n=agg.count())


def two_of_a_source(rows: Stream) -> None:
    named = rows.select("*", "a_ticket() AS id")
    named.transform("one", plain)
    named.where("u > 1").transform("other", plain)


DECLARED = "a function that is declared with asNondeterministic()"
REFUSED: dict[str, tuple[Callable[[Stream], object], str]] = {
    "a draw over updates": (
        lambda rows: newest(rows).transform("t", drawn),
        "the function of stage 't' has rand(), which answers otherwise when a row is taken back",
    ),
    "a function over updates": (
        lambda rows: newest(rows).transform("t", ticketed),
        f"the function of stage 't' has {DECLARED}, which answers otherwise when",
    ),
    "the clock over updates": (
        lambda rows: newest(rows).transform("t", stamped),
        "the function of stage 't' has now(), which answers otherwise when",
    ),
    "an argument over updates": (
        lambda rows: newest(rows).key_by("g").aggregate("a", n=agg.count_distinct("a_ticket()")),
        f"stage 'a' has {DECLARED}, which answers otherwise when a row is taken back",
    ),
    "a key": (
        lambda rows: rows.key_by(id="a_ticket()").aggregate("a", n=agg.count()),
        f"stage 'a' computes the key 'id' with {DECLARED} in 'a_ticket()', which answers otherwise",
    ),
    "a clock without parentheses in a key": (
        lambda rows: rows.key_by(day="current_date").aggregate("a", n=agg.count()),
        "stage 'a' computes the key 'day' with current_date() in 'current_date', which answers",
    ),
    "a time without parentheses over updates": (
        lambda rows: newest(rows).key_by("g").aggregate("a", n=agg.max("string(current_time)")),
        "stage 'a' has current_time(), which answers otherwise when a row is taken back",
    ),
    "a text that is the clock beside a day": (
        lambda rows: by(rows, "date_from_unix_date(u) < 'today'"),
        "stage 'a' computes the key 'k' with 'today' as a day or an instant in",
    ),
    "texts that are the clock around a day": (
        lambda rows: by(rows, "date_from_unix_date(u) BETWEEN 'Yesterday' AND 'Tomorrow'"),
        "stage 'a' computes the key 'k' with 'yesterday' as a day or an instant in",
    ),
    "a text that is computed beside a day": (
        lambda rows: by(rows, "date_from_unix_date(u) < lower(trim(' TODAY '))"),
        "stage 'a' computes the key 'k' with lower(trim( TODAY , None)) as a day or an instant in",
    ),
    "a computed text in a function": (
        lambda rows: newest(rows).transform("t", computing),
        "the function of stage 't' has concat(to, day) as a day or an instant, which answers",
    ),
    "a day that is null today": (
        lambda rows: by(rows, "nullif(date_from_unix_date(u), 'today')"),
        "stage 'a' computes the key 'k' with 'today' as a day or an instant in",
    ),
    "a text that a function tries to make an instant": (
        lambda rows: newest(rows).transform("t", tried),
        "the function of stage 't' has 'now' as a day or an instant, which answers otherwise when",
    ),
    "two readers": (two_of_a_source, f"has {DECLARED}, which answers otherwise for each reader"),
    "a number of Spark's": (
        lambda rows: rows.transform("t", numbered),
        "the function of stage 't' has monotonically_increasing_id(), which tells how Spark cut",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_answer_that_is_needed_twice_is_refused(
    job: FolderJob, spark: SparkSession, name: str
) -> None:
    declare, sentence = REFUSED[name]
    declare(rows_of(job))

    with pytest.raises(ConfigurationError) as refused:
        check_pipeline(job.pipeline, spark, {}, None)

    assert sentence in str(refused.value)


@slow  # Its like: each of them that is refused.
def test_the_functions_that_draw_are_those_of_spark(spark: SparkSession) -> None:
    names = [row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]
    drawing = {name for name in names if any(not found for found in _answers(spark, name))}

    # To Catalyst aes_encrypt() is a call in Java, which draws a vector.
    assert drawing | {"aes_encrypt"} == DRAWS | PLACES
    assert {*names} >= CLOCKS


def _answers(spark: SparkSession, name: str) -> Iterator[bool]:
    """Whether Catalyst calls the examples of Spark's function *name* deterministic."""
    described = spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()
    text = "\n".join(row[0] for row in described)
    for example in re.findall(r"> (SELECT .*?);", text, re.DOTALL):
        try:
            rows = spark.sql(example)
        except Exception:  # noqa: BLE001, S112 - it needs another library, a file, or a setting
            continue
        yield rows._jdf.queryExecution().analyzed().deterministic()  # noqa: SLF001 - no API knows


def test_an_answer_that_is_kept_is_taken(job: FolderJob, spark: SparkSession) -> None:
    rows = rows_of(job)
    once = rows.select("*", "a_ticket() AS ticket").transform("once", ticketed)
    once.key_by("g").aggregate("tickets", n=agg.count_distinct("a_ticket()"))
    newest(rows).transform("t", plain)

    assert set(check_pipeline(job.pipeline, spark, {}, None)) == {"once", "tickets", "newest", "t"}


def test_readers_of_a_stage_see_what_it_drew_once(job: FolderJob) -> None:
    once = rows_of(job).select("u", "uuid() AS id").transform("once", ticketless)
    once.sink("one", FilesTable())
    once.key_by("id").aggregate("each", n=agg.count()).sink("other", FilesTable(upsert_key=("id",)))

    job.epoch()

    assert set(job.table("one")["id"]) == set(job.table("other")["id"])
    assert job.table("one")["id"].n_unique() == 3


def ticketless(rows: DataFrame) -> DataFrame:
    return rows
