"""What answers otherwise when it is asked again is refused where its answer is needed twice."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sluice import Append
from sluice.declaration import aggregates as agg
from sluice.declaration.determinism import nondeterministic, of_spark, unpinned
from sluice.declaration.operations import SparkCode, Tumbling
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Files

MINUTE = Tumbling(timedelta(minutes=1))


def rows_of(event_time: str | None = None) -> Stream:
    return Pipeline("orders").source("rows", Files("/rows"), event_time=event_time)


def newest(stream: Stream) -> Stream:
    return stream.key_by("u").latest("newest", by="n")


def same(rows: Any) -> Any:
    return rows


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("rand() < 0.5", "rand()"),
        ("RAND(7) < 0.5", "rand()"),
        ("cast(1 + rand (7) * 1000 as int)", "rand()"),
        ("concat(a, `uuid`())", "uuid()"),
        ("system.builtin.uuid()", "uuid()"),
        ("shuffle(tags)[0]", "shuffle()"),
        ("uniform(1, 6)", "uniform()"),
        ("reflect('java.util.UUID', 'randomUUID')", "reflect()"),
        ("at > current_timestamp() - interval 1 hour", "current_timestamp()"),
        ("at > current_timestamp", None),
        ("n < now()", "now()"),
        ("unix_timestamp() - n", "unix_timestamp()"),
        ("at < timestamp 'now'", "TIMESTAMP 'now'"),
        ("at < TIMESTAMP_LTZ ' Tomorrow '", "TIMESTAMP_LTZ 'tomorrow'"),
        ("transform(a, x -> x + rand())", "rand()"),
        ("struct(date 'now' AS d)", "DATE 'now'"),
        ("cast('now' AS timestamp)", "CAST('now' AS timestamp)"),
        ("try_to_timestamp('now')", "try_to_timestamp('now')"),
        ("day = to_date(' Today ')", "to_date(' Today ')"),
        ("year(date('now'))", "CAST('now' AS date)"),
        ("cast('now' AS string)", None),
        ("cast('2026-01-01' AS date)", None),
        ("transform(a, rand -> rand + 1)", None),
        ("map('now()', 'uuid()')['rand()']", None),
        ("day = date'today'", "DATE 'today'"),
        ("n + 1", None),
        ("rand > 0", None),
        ("row.current_date", None),
        ("at AS current_timestamp", None),
        ("`current_date`", None),
        ("'rand()'", None),
        ("n -- rand()", None),
        ("unix_timestamp(at)", None),
        ("to_timestamp('2026-01-01')", None),
        ("timestamp '2026-01-01'", None),
        ("name = 'now'", None),
        ("cast(lower('TODAY') AS date)", "CAST(lower('TODAY') AS date)"),
        ("cast(coalesce(NULL, 'today') AS date)", "CAST(coalesce(NULL, 'today') AS date)"),
        (
            "cast(if(true, lower('NOW'), '') AS timestamp)",
            "CAST(CASE WHEN TRUE THEN lower('NOW') ELSE '' END AS timestamp)",
        ),
        ("cast(coalesce(x, 'today') AS date)", None),
        ("cast(coalesce(NULL, '2026-01-01') AS date)", None),
        ("to_timestamp('to' || 'day')", "to_timestamp(concat('to', 'day'))"),
        ("date(upper(name))", None),
        ("date(concat('2026', '-01-01'))", None),
        ("date(substring('today', n))", None),
        ("cast(lower('TODAY') AS string)", None),
    ],
)
def test_what_draws_or_reads_the_clock_is_found_in_sql(sql: str, found: str | None) -> None:
    assert nondeterministic(sql) == found


def test_a_clock_without_parentheses_is_a_column_if_there_is_one() -> None:
    assert nondeterministic("day = CURRENT_DATE", ["day"]) == "CURRENT_DATE"
    assert nondeterministic("day = CURRENT_DATE", ["day", "current_date"]) is None
    assert nondeterministic("day = `Current_Time`", ["day"]) == "Current_Time"
    assert nondeterministic("row.current_date = day AND at = `localtime`", ["LocalTime"]) is None
    assert nondeterministic("struct(current_date AS d)", ["day"]) == "current_date"
    assert nondeterministic("localtimestamp", ["day"]) is None


def test_what_tells_how_spark_cut_the_rows_is_found_in_sql() -> None:
    assert of_spark("monotonically_increasing_id() AS id") == "monotonically_increasing_id()"
    assert of_spark("input_file_name") is None


def a_sum(of: str, **how: Any) -> Callable[[], object]:
    return lambda: newest(rows_of()).key_by("g").aggregate("sums", s=agg.sum(of, **how))


def two_of_a_source() -> None:
    half = rows_of().where("n > 0").where("rand() < 0.5")
    half.key_by("k").aggregate("few", n=agg.count())
    half.select("k").transform("all_of_it", same)


def a_stage_that_reads_it_twice() -> None:
    drawn = rows_of().select("k", "uuid() AS id")
    drawn.key_by("k").join("both", drawn.select("k AS j", "id AS other").key_by("j"))


def a_table_that_is_drawn() -> None:
    rows = rows_of()
    table = rows.pipeline.source("towns", Files("/towns"), table=True).where("rand() < 0.5")
    rows.lookup("found", table, on="k")


def found_by_a_draw() -> None:
    rows = rows_of()
    table = rows.pipeline.source("towns", Files("/towns"), table=True)
    rows.lookup("found", table, on={"k": "int(rand() * 3)"})


def valid_by_a_draw() -> None:
    rows = rows_of("at")
    table = rows.pipeline.source("towns", Files("/towns"), table=True)
    rows.lookup("found", table, on="k", valid_from="timestamp_seconds(rand() * 3)")


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "an argument over updates": (
        a_sum("cast(1 + rand(7) * 1000 as int)"),
        (
            "'s' of stage 'sums' has rand() in 'cast(1 + rand(7) * 1000 as int)', which answers "
            "otherwise when a row is taken back, and that would not be the row it sent: 'newest' "
            "takes rows back; compute it before, of appended rows, such as in a select() of the "
            "source"
        ),
    ),
    "a filter of an aggregate over updates": (a_sum("v", where="at > now()"), "has now() in"),
    "a filter over updates": (
        lambda: newest(rows_of()).where("rand() < 0.5"),
        "where() of 'newest' has rand() in 'rand() < 0.5', which answers otherwise when a row is",
    ),
    "a projection over updates": (
        lambda: newest(rows_of()).select("u", "current_timestamp() AS seen"),
        "select() of 'newest' has current_timestamp() in 'current_timestamp() AS seen'",
    ),
    "a key": (
        lambda: rows_of().key_by(r="rand()"),
        (
            "key_by() of 'rows' computes the key 'r' with rand() in 'rand()', which answers "
            "otherwise each time, so no row would find the state of its key; key by what the "
            "rows have, such as r='hash(id) % 8'"
        ),
    ),
    "two readers of a source": (
        two_of_a_source,
        (
            "'rows' behind where('n > 0').where('rand() < 0.5') has rand(), which answers "
            "otherwise for each reader, and stage 'few' and stage 'all_of_it' both read it; have "
            "a stage answer once for both: .transform('drawn', lambda rows: rows)"
        ),
    ),
    "a stage that reads it twice": (a_stage_that_reads_it_twice, "stage 'both' reads it twice"),
    "a clock behind a stage": (
        lambda: rows_of().transform("parse", same).where("at > now()"),
        "where() of 'parse' has 'now()' in 'at > now()', which only Spark knows; behind a stage",
    ),
    "a table": (a_table_that_is_drawn, "lookup 'found' finds rows of 'towns' by rand() in"),
    "since when a table's row is valid": (
        valid_by_a_draw,
        "rows of 'towns' by rand()",
    ),
    "a table's column": (found_by_a_draw, "by rand() in 'int(rand() * 3)'"),
    "an event time": (
        lambda: (
            rows_of("at")
            .select("k", "at + make_interval(0, 0, 0, 0, 0, 0, rand()) AS at")
            .key_by("k")
            .window("w", MINUTE, n=agg.count())
        ),
        "stage 'w' goes by the event time 'at' of 'rows', which is drawn with rand()",
    ),
    "a number of Spark's": (
        lambda: rows_of().select("monotonically_increasing_id() AS id"),
        (
            "select() of 'rows' has monotonically_increasing_id() in "
            "'monotonically_increasing_id() AS id', which tells how Spark cut an epoch, and "
            "begins anew with the next; number rows by a column of theirs, or name each with "
            "uuid()"
        ),
    ),
    "a partition of Spark's in a key": (
        lambda: rows_of().key_by(p="spark_partition_id()"),
        "key_by() of 'rows' has spark_partition_id() in",
    ),
    "a partition of Spark's in an aggregate": (
        lambda: rows_of().key_by("k").aggregate("n", n=agg.max("spark_partition_id()")),
        "'n' of stage 'n' has spark_partition_id() in",
    ),
    "a file as Spark reads it": (
        lambda: rows_of().where("input_file_name() LIKE '%a%'"),
        "which is empty, as Spark does not read the files; in a transform() the column",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_answer_that_is_needed_twice_is_refused(name: str) -> None:
    declare, sentence = REFUSED[name]

    with pytest.raises(ConfigurationError) as refused:
        declare()

    assert sentence in str(refused.value)


def test_an_answer_that_is_kept_is_taken() -> None:
    rows = rows_of()
    drawn = rows.select("*", "uuid() AS id", "current_timestamp() AS seen").where("rand() < 0.5")
    once = drawn.transform("once", same)

    once.key_by("k").aggregate("sums", n=agg.count(), s=agg.sum("rand()", where="at < now()"))
    once.sink("every_row", FilesTable())
    rows.select("uuid() AS other").transform("others", same)

    assert [*rows.pipeline.stages] == ["once", "sums", "others"]


def test_what_a_stage_draws_is_drawn_once_for_all_of_its_readers() -> None:
    drawn = rows_of().select("*", "rand() AS lot").transform("parse", same)

    drawn.where("lot < 0.5").sink("one", FilesTable())
    drawn.where("lot >= 0.5").sink("other", FilesTable())

    assert [*drawn.pipeline.sinks] == ["one", "other"]


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
        f"spark.read reads what no checkpoint pins, at test_determinism.py line {line}"
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
