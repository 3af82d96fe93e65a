"""Stages of Spark code over real places: what they are given, what is refused, and what it says."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, cast

import polars as pl
import pytest
from deltalake import DeltaTable as Delta

from sluice import Append, Replace, ReplacePartitions, Upsert, current
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Choice, RestoreOptions
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.operations import SparkCode
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.declaration.results import Result
from sluice.errors import ConfigurationError
from sluice.job.analysis import analyse
from sluice.job.places import open_side_table
from sluice.sinks import DeltaTable, FilesTable
from sluice.sources import Files
from sluice.spark.checking import check_pipeline
from sluice.state.segments import to_frame
from sluice.surface.state import open_state
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(name="job")
def _job(spark: SparkSession, tmp_path: Path) -> FolderJob:
    return FolderJob(spark, tmp_path)


def newest(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").max("v").withColumnRenamed("max(v)", "v")


def declared(
    job: FolderJob,
    function: Callable[..., DataFrame] = newest,
    *,
    result: Result,
    schema: str = "k bigint, v bigint",
    version: str | None = None,
) -> Stream:
    code = job.pipeline.spark(
        "code",
        function,
        reads={"rows": job.rows()},
        schema=schema,
        result=result,
        version=version,
    )
    key = () if isinstance(result, Append) else result.columns
    code.sink("out", FilesTable(upsert_key=key))
    return code


def rows_of(*pairs: tuple[int | None, int]) -> pl.DataFrame:
    return pl.DataFrame({"k": [k for k, _ in pairs], "v": [v for _, v in pairs]})


def test_increments_are_joined_and_malformed_lines_pass_the_function_by(
    job: FolderJob, spark: SparkSession
) -> None:
    def priced(orders: DataFrame, rates: DataFrame, previous: DataFrame) -> DataFrame:
        both = orders.join(rates, "item").selectExpr("customer", "amount * factor AS spent")
        return (
            both.unionByName(previous)
            .groupBy("customer")
            .agg({"spent": "sum"})
            .toDF("customer", "spent")
        )

    folders = {name: job.files / name for name in ("orders", "rates")}
    for folder in folders.values():
        folder.mkdir()
    sources = {
        name: job.pipeline.source(
            name, Files(str(folders[name]), format="json", schema=schema, bounded=False)
        )
        for name, schema in {
            "orders": "customer string, item string, amount bigint",
            "rates": "item string, factor bigint",
        }.items()
    }
    code = job.pipeline.spark(
        "code",
        priced,
        reads=sources,
        schema="customer string, spent bigint",
        result=Replace("customer"),
    )
    code.sink("out", FilesTable(upsert_key=("customer",)))
    job.append("rates/1.json", [{"item": "x", "factor": 2}])
    job.append("orders/1.json", [{"customer": "a", "item": "x", "amount": 1}])
    with (folders["orders"] / "1.json").open("a") as file:
        file.write("{not json\n")
    job.epoch()
    job.append("orders/2.json", [{"customer": c, "item": "x", "amount": 5} for c in "abb"])
    job.append("rates/2.json", [{"item": "x", "factor": 10}])

    job.epoch()

    assert sorted(job.table("out").rows()) == [("a", 52), ("b", 100)]
    malformed = to_frame(open_side_table(job.job, "code.malformed").read())
    (line,) = malformed.select("partition", "record_number", "line").rows()
    assert line == ("1.json", 2, "{not json")


def test_a_whole_result_may_become_empty_and_its_rows_are_taken_back(job: FolderJob) -> None:
    def current(rows: DataFrame) -> DataFrame:
        return newest(rows.where("k > 0"))

    declared(job, current, result=Replace("k"))
    job.write("1.parquet", rows_of((1, 1), (2, 2)))
    job.epoch()
    assert sorted(job.table("out").rows()) == [(1, 1), (2, 2)]
    job.write("2.parquet", rows_of((0, 3)))

    job.epoch()

    assert job.table("out").is_empty()


def test_an_answer_that_spark_knows_to_be_empty_takes_the_rows_back_too(job: FolderJob) -> None:
    def none_from_the_second_epoch(rows: DataFrame, previous: DataFrame) -> DataFrame:
        return newest(rows).where("true" if previous.isEmpty() else "false")

    declared(job, none_from_the_second_epoch, result=Replace("k"))
    job.write("1.parquet", rows_of((1, 1), (2, 2)))
    job.epoch()
    job.write("2.parquet", rows_of((3, 3)))

    job.epoch()

    assert job.table("out").is_empty()


def test_rows_that_did_not_change_are_not_sent_again(job: FolderJob) -> None:
    def kept(rows: DataFrame, previous: DataFrame) -> DataFrame:
        return newest(rows.unionByName(previous))

    code = declared(job, kept, result=Replace("k"))
    code.sink("changes", FilesTable(changelog=True))
    job.write("1.parquet", rows_of(*((k, 1) for k in range(1000))))
    job.epoch()
    job.write("2.parquet", rows_of((7, 2), (8, 0)))

    job.epoch()

    changes = job.table("changes").filter(pl.col("kind") != "+I")
    assert sorted(changes.rows()) == [("+U", 7, 2), ("-U", 7, 1)]
    assert sorted(job.table("out").rows())[7:9] == [(7, 2), (8, 1)]


def test_an_answer_that_would_be_another_each_time_is_one(job: FolderJob) -> None:
    def ticketed(rows: DataFrame, previous: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

        keys = rows.select("k").union(previous.select("k")).distinct()
        return keys.withColumn("v", (F.rand() * 1e9).cast("bigint"))

    code = declared(job, ticketed, result=Replace("k"))
    code.key_by(one="1").aggregate("behind", n=agg.count(), v=agg.sum("v")).sink(
        "sums", FilesTable(upsert_key=("one",))
    )
    for number in (1, 2, 3):
        job.write(f"{number}.parquet", rows_of(*((k, 0) for k in range(10 * number))))
        job.epoch()

        out = job.table("out")
        assert sorted(out["k"]) == [*range(10 * number)]
        assert job.table("sums").rows() == [(1, 10 * number, out["v"].sum())]


def test_partitions_of_the_answer_are_replaced_and_others_stay(job: FolderJob) -> None:
    def of_days(rows: DataFrame, previous: DataFrame) -> DataFrame:
        days = previous.join(rows.select("k").distinct(), "k", "left_semi")
        kept = days.where("v % 2 = 0").selectExpr("k", "v + 10 AS v")
        return kept.unionByName(rows)

    code = declared(job, of_days, result=ReplacePartitions("k", key="v"))
    code.sink("changes", FilesTable(changelog=True))
    job.write("1.parquet", rows_of((1, 1), (1, 2), (2, 1), (3, 4)))
    job.epoch()
    job.write("2.parquet", rows_of((1, 1), (2, 7)))

    job.epoch()

    assert sorted(job.table("out").rows()) == [(1, 1), (1, 12), (2, 7), (3, 4)]
    changes = job.table("changes").rows()
    assert sorted(changes[4:]) == [("+I", 1, 12), ("+I", 2, 7), ("-D", 1, 2), ("-D", 2, 1)]


def test_partitions_of_a_delta_table_are_replaced_once_and_go_back(
    job: FolderJob, tmp_path: Path
) -> None:
    code = declared(job, lambda rows: rows, result=ReplacePartitions("k", key="v"))
    table = tmp_path / "lake"
    code.sink("lake", DeltaTable(f"file://{table}", ("k", "v"), create=True, partition_by=("k",)))
    job.write("1.parquet", rows_of((1, 1), (1, 2), (2, 1), (3, 4)))
    job.epoch()
    first = {*Delta(table).file_uris()}
    job.write("2.parquet", rows_of((1, 2), (1, 3), (2, 1)))

    completed = job.epoch()
    commit(job.job, completed.checkpoint_id)  # Again, as a task that was retried.

    assert sorted(pl.read_delta(str(table)).rows()) == [(1, 2), (1, 3), (2, 1), (3, 4)]
    gone = first - {*Delta(table).file_uris()}
    assert {Path(file).parent.name for file in gone} == {"k=1"}  # In k=2 nothing changed.
    assert [one["sluice.checkpoint-id"] for one in Delta(table).history()] == [2, 1]
    restore(job.job, Choice(CheckpointId(1)), RestoreOptions(roll_back_tables=True))
    assert {*Delta(table).file_uris()} == first
    job.epoch()
    assert sorted(pl.read_delta(str(table)).rows()) == [(1, 2), (1, 3), (2, 1), (3, 4)]


@pytest.mark.parametrize("result", [Replace(), ReplacePartitions("k")])
def test_a_result_without_a_key_is_a_bag_with_equal_rows(
    job: FolderJob, result: Replace | ReplacePartitions
) -> None:
    def twice(rows: DataFrame, previous: DataFrame) -> DataFrame:
        return previous.where("k > 1").union(rows).union(rows)

    code = job.pipeline.spark(
        "code", twice, reads={"rows": job.rows()}, schema="k bigint, v bigint", result=result
    )
    code.sink("changes", FilesTable(changelog=True))
    code.key_by("k").aggregate("behind", n=agg.count(), v=agg.sum("v")).sink(
        "sums", FilesTable(upsert_key=("k",))
    )
    job.write("1.parquet", rows_of((1, 1), (2, 2), (3, 3)))
    job.epoch()
    job.write("2.parquet", rows_of((2, 2)))

    job.epoch()

    left = [] if isinstance(result, Replace) else [(1, 2, 2)]  # Of a partition without an answer.
    assert sorted(job.table("sums").rows()) == [*left, (2, 4, 8), (3, 2, 6)]
    there: list[tuple[int, int]] = []
    for kind, k, v in job.table("changes").rows():
        there.append((k, v)) if kind == "+I" else there.remove((k, v))
    assert sorted(there) == [*((k, 1) for k, _, _ in left * 2), *[(2, 2)] * 4, *[(3, 3)] * 2]


def test_a_table_is_as_the_barrier_pinned_it(job: FolderJob, tmp_path: Path) -> None:
    names = tmp_path / "names.json"

    def named(rows: DataFrame, names: DataFrame) -> DataFrame:
        found = newest(rows).join(names, "k").selectExpr("k", "name")
        names_file.write_text("")  # What it reads was pinned before.
        return found

    names_file = names
    table = job.pipeline.source(
        "names", Files(str(names), format="json", schema="k bigint, name string"), table=True
    )
    code = job.pipeline.spark(
        "code",
        named,
        reads={"rows": job.rows()},
        tables={"names": table.where("k < 3")},
        schema="k bigint, name string",
        result=Upsert("k"),
        version="1",
    )
    code.sink("out", FilesTable(upsert_key=("k",)))
    for number, name in enumerate("ab"):
        names.write_text("".join(f'{{"k": {k}, "name": "{name}{k}"}}\n' for k in (1, 2, 3)))
        job.write(f"{number}.parquet", rows_of((1 + number, 1), (3, 1)))
        job.epoch()

    assert sorted(job.table("out").rows()) == [(1, "a1"), (2, "b2")]


def test_a_bag_may_have_maps_beside_other_columns(job: FolderJob) -> None:
    def mapped(rows: DataFrame, previous: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

        new = rows.select("k", F.create_map(F.lit("v"), "v").alias("m"))
        return previous.where("m['v'] < 3").unionAll(new)

    code = job.pipeline.spark(
        "code",
        mapped,
        reads={"rows": job.rows()},
        schema="k bigint, m map<string,bigint>",
        result=Replace(),
    )
    code.sink("changes", FilesTable(changelog=True))
    job.write("1.parquet", rows_of((1, 1), (1, 1), (1, 2), (2, 3)))
    job.epoch()
    job.write("2.parquet", rows_of((1, 2), (3, 4)))

    job.epoch()

    changes = [(kind, k, dict(m)) for kind, k, m in job.table("changes").rows()]
    assert sorted(changes[4:], key=str) == [
        ("+I", 1, {"v": 2}),
        ("+I", 3, {"v": 4}),
        ("-D", 2, {"v": 3}),
    ]


def test_a_view_is_that_of_the_call_beside_other_stages_with_one_of_that_name(
    job: FolderJob,
) -> None:
    came = [Event(), Event()]

    def seen(number: int, rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("rows")
        came[number].set()
        came[1 - number].wait(1)  # Or the other one is not called yet.
        return rows.sparkSession.table("rows").groupBy("k").count()

    rows = job.rows()
    for number, name in enumerate(("even", "odd")):
        job.pipeline.spark(
            name,
            partial(seen, number),
            reads={"rows": rows.where(f"k % 2 = {number}")},
            schema="k bigint, count bigint",
            result=Replace("k"),
            version="1",
        ).sink(f"{name}_out", FilesTable(upsert_key=("k",)))
    job.write("1.parquet", rows_of((1, 1), (2, 2), (2, 3)))

    job.epoch()

    assert job.table("even_out").rows() == [(2, 2)]
    assert job.table("odd_out").rows() == [(1, 1)]


def test_a_view_of_a_transform_is_that_of_the_call_beside_other_stages(job: FolderJob) -> None:
    came = [Event(), Event()]

    def seen(number: int, rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("rows")
        came[number].set()
        came[1 - number].wait(1)  # Or the other one is not called yet.
        return rows.sparkSession.table("rows")

    rows = job.rows()
    for number, name in enumerate(("even", "odd")):
        odd_or_even = rows.where(f"k % 2 = {number}")
        stage = odd_or_even.transform(name, partial(seen, number), version="1")
        stage.select("k", "v").sink(f"{name}_out", FilesTable())
    job.write("1.parquet", rows_of((1, 1), (2, 2)))

    job.epoch()

    assert job.table("even_out").rows() == [(2, 2)]
    assert job.table("odd_out").rows() == [(1, 1)]


def test_how_rows_are_computed_is_not_the_functions_to_say(
    job: FolderJob, spark: SparkSession
) -> None:
    def adaptive(rows: DataFrame) -> DataFrame:
        rows.sparkSession.conf.set("spark.sql.adaptive.enabled", "true")
        return newest(rows)

    declared(job, adaptive, result=Replace("k"))
    job.write("1.parquet", rows_of((1, 1), (2, 2)))

    job.epoch()

    assert sorted(job.table("out").rows()) == [(1, 1), (2, 2)]
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"


def test_a_bag_has_rows_of_declared_partitions_alone(job: FolderJob) -> None:
    code = job.pipeline.spark(
        "code",
        lambda rows: rows,
        reads={"rows": job.rows()},
        schema="k bigint, v bigint",
        result=ReplacePartitions(("k", "v"), where="k IN (1, v)"),
        version="1",
    )
    code.sink("changes", FilesTable(changelog=True))
    job.write("1.parquet", rows_of((1, 1), (1, 1), (1, 2), (3, 3)))
    job.epoch()
    job.write("2.parquet", rows_of((1, 2), (4, 5)))

    with suppress(ConfigurationError):  # As the driver raises what a declaration has to mend.
        job.failure()

    assert sorted(job.table("changes")["k"]) == [1, 1, 1, 3]
    (failed,) = job.job.state().failed
    assert "'code' has a row of the partition k = 4, v = 5, and its result is" in failed.message


def test_partitions_that_are_declared_by_no_column_are_refused_by_the_check(
    job: FolderJob, spark: SparkSession
) -> None:
    declared(job, lambda rows: rows, result=ReplacePartitions("k", key="v", where="day > 1"))
    job.write("1.parquet", rows_of((1, 1)))

    with pytest.raises(ConfigurationError) as refused:
        check_pipeline(job.pipeline, spark, {}, None)

    (said,) = refused.value.args
    assert said == (
        "the result of stage 'code' is declared by where='day > 1': 'day' is no column; there are "
        "k, v"
    )


def test_changes_say_what_is_left_of_an_epoch(job: FolderJob) -> None:
    seen: list[list[tuple[Any, ...]]] = []

    def added_up(totals: DataFrame, previous: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

        seen.append(sorted(map(tuple, totals.select("_change", "k", "v").collect())))
        signed = totals.selectExpr("v % 2 AS k", "IF(_change = 'insert', v, -v) AS v")
        both = signed.unionByName(previous)
        return both.groupBy("k").agg(F.sum("v").alias("v"))

    totals = job.rows().key_by("k").aggregate("totals", v=agg.sum("v"))
    code = job.pipeline.spark(
        "code",
        added_up,
        changes={"totals": totals},
        schema="k bigint, v bigint",
        result=Upsert("k"),
        version="1",
    )
    code.sink("out", FilesTable(upsert_key=("k",)))
    job.write("1.parquet", rows_of((1, 1), (2, 2), (3, 3)))
    job.epoch()
    job.write("2.parquet", rows_of((1, 4), (2, 0)))

    job.epoch()

    assert seen[0] == [("insert", 1, 1), ("insert", 2, 2), ("insert", 3, 3)]
    assert seen[-1] == [("delete", 1, 1), ("insert", 1, 5)]
    assert sorted(job.table("out").rows()) == [(0, 2), (1, 8)]


def test_of_a_current_stream_all_rows_are_there_as_of_this_epoch(job: FolderJob) -> None:
    rows = job.rows()
    totals = rows.key_by("k").aggregate("totals", v=agg.sum("v")).where("v > 0")
    code = job.pipeline.spark_sql(
        "code",
        """
        SELECT rows.k, totals.v - rows.v AS v, (SELECT count(*) FROM totals) AS n
        FROM rows JOIN totals ON rows.k = totals.k
        """,
        reads={"rows": rows, "totals": current(totals)},
        schema="k bigint, v bigint, n bigint",
        result=Append(),
    )
    code.sink("out", FilesTable())
    job.write("1.parquet", rows_of((1, 1), (2, 2), (3, 3)))
    job.epoch()
    assert sorted(job.table("out").rows()) == [(1, 0, 3), (2, 0, 3), (3, 0, 3)]
    job.write("2.parquet", rows_of((1, 4), (2, -2)))

    job.epoch()

    assert sorted(job.table("out").rows())[1:2] == [(1, 1, 2)]
    assert job.table("out").height == 4


def test_of_a_partition_that_is_replaced_the_changes_are_what_differs(job: FolderJob) -> None:
    seen: list[list[tuple[Any, ...]]] = []

    def kept(rows: DataFrame, previous: DataFrame) -> DataFrame:
        seen.append(sorted(map(tuple, rows.select("_change", "k", "v").collect())))
        gone = rows.where("_change = 'delete'").select("k", "v")
        there = previous.select("k", "v").exceptAll(gone)
        return there.unionAll(rows.where("_change = 'insert'").select("k", "v"))

    spec = Files(str(job.files), format="parquet", bounded=False, replaced="by partition")
    code = job.pipeline.spark(
        "code",
        kept,
        changes={"rows": job.pipeline.source("rows", spec)},
        schema="k bigint, v bigint",
        result=Replace(),
        version="1",
    )
    code.sink("changes", FilesTable(changelog=True))
    for number, rows in enumerate((rows_of((1, 1), (1, 1), (2, 2)), rows_of((1, 1), (3, 3)))):
        (job.files / "day=1").mkdir(exist_ok=True)
        for file in (job.files / "day=1").iterdir():
            file.unlink()
        job.write(f"day=1/{number}.parquet", rows)
        job.epoch()

    assert seen[0] == [("insert", 1, 1), ("insert", 1, 1), ("insert", 2, 2)]
    assert seen[-1] == [("delete", 1, 1), ("delete", 2, 2), ("insert", 3, 3)]
    changes = sorted(job.table("changes").rows()[3:])
    assert changes == [("+I", 3, 3), ("-D", 1, 1), ("-D", 2, 2)]


def split(rows: DataFrame, previous: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    newer = newest(rows.where("v > 0").unionByName(previous["good"]))
    return {
        "good": newer.selectExpr("*", "v = 9 AS _deleted"),
        "bad": rows.where("v <= 0").selectExpr("k", "array(v) AS why"),
        "size": previous["good"].groupBy().count().selectExpr("1 AS one", "count AS n"),
    }


SPLIT: dict[str, tuple[str, Result]] = {
    "good": ("k bigint, v bigint", Upsert("k")),
    "bad": ("k bigint, why array<bigint>", Append()),
    "size": ("one int, n bigint", Replace("one")),
}


def test_several_results_are_streams_by_name_of_one_call(job: FolderJob) -> None:
    streams = job.pipeline.spark_results("code", split, reads={"rows": job.rows()}, results=SPLIT)
    streams["good"].sink("good", FilesTable(upsert_key=("k",)))
    streams["bad"].sink("bad", FilesTable())
    streams["size"].sink("size", FilesTable(upsert_key=("one",)))
    streams["good"].key_by(one="1").aggregate("sum", v=agg.sum("v")).sink(
        "sums", FilesTable(upsert_key=("one",))
    )
    job.write("1.parquet", rows_of((1, 1), (2, 2), (3, 0)))
    job.epoch()
    assert job.table("size").rows() == [(1, 0)]
    job.write("2.parquet", rows_of((2, 9), (4, 4), (5, -1)))

    job.epoch()

    assert sorted(job.table("good").rows()) == [(1, 1), (4, 4)]
    assert sorted(job.table("bad").rows()) == [(3, [0]), (5, [-1])]
    assert job.table("size").rows() == [(1, 2)]
    assert job.table("sums").rows() == [(1, 5)]
    job.write("3.parquet", pl.DataFrame({"k": [None], "v": [7]}, {"k": pl.Int64, "v": pl.Int64}))
    assert "stage 'code_good' has 'k' null in a row with k = None, v = 7" in job.failure()


WRONG_RESULTS: dict[str, tuple[Callable[[DataFrame], object], str]] = {
    "one frame": (
        lambda rows: rows,
        (
            "the function of stage 'code' returns DataFrame, and not a dict of its results by "
            "name; return one of bad, good, size"
        ),
    ),
    "a result less": (
        lambda rows: {"good": rows, "bad": rows},
        (
            "the function of stage 'code' answers without the result 'size', and its results are "
            "bad, good, size: return a DataFrame of each, one without rows where there are none"
        ),
    ),
    "a result more": (
        lambda rows: {"good": rows, "bad": rows, "size": rows, "ugly": rows},
        "the function of stage 'code' answers with 'ugly', and its results are bad, good, size",
    ),
    "a column less": (
        lambda rows: {"good": rows.select("k"), "bad": rows, "size": rows},
        (
            "the function of stage 'code', in its result 'bad', answers without 'why', which its "
            "schema has"
        ),
    ),
}


@pytest.mark.parametrize("name", WRONG_RESULTS)
def test_several_results_are_checked_each_before_a_row_is_read(
    job: FolderJob, spark: SparkSession, name: str
) -> None:
    function, sentence = WRONG_RESULTS[name]
    rows = {"rows": job.rows()}
    job.pipeline.spark_results("code", cast("Any", function), reads=rows, results=SPLIT)
    job.write("1.parquet", rows_of((1, 1)))

    with pytest.raises(ConfigurationError) as refused:
        check_pipeline(job.pipeline, spark, {}, None)

    assert sentence in str(refused.value)


QUERIES = {
    "names": """
        SELECT coalesce(rows.k, previous.k) AS k, coalesce(rows.v, 0) + coalesce(previous.v, 0) AS v
        FROM (SELECT k, sum(v) AS v FROM rows GROUP BY k) AS rows
        FULL JOIN previous ON rows.k = previous.k -- {braces}
    """,
    "expressions": """
        WITH both AS (SELECT * FROM rows UNION ALL SELECT * FROM Previous),
             summed AS (SELECT k, sum(v) AS v FROM both GROUP BY k)
        SELECT k, v FROM summed WHERE '{k}' <> '{' || k || '}}'
    """,
}


@pytest.mark.parametrize("name", QUERIES)
def test_one_text_is_a_stage(job: FolderJob, name: str) -> None:
    code = job.pipeline.spark_sql(
        "code",
        QUERIES[name],
        reads={"rows": job.rows()},
        schema="k bigint, v bigint",
        result=Replace("k"),
    )
    code.sink("out", FilesTable(upsert_key=("k",)))
    job.write("1.parquet", rows_of((1, 1), (1, 2), (2, 3)))
    job.epoch()
    job.write("2.parquet", rows_of((1, 5), (3, 3)))

    job.epoch()

    assert sorted(job.table("out").rows()) == [(1, 8), (2, 3), (3, 3)]


VALUES: dict[str, tuple[str, Any]] = {
    "t": ("timestamp", datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
    "n": ("timestamp_ntz", datetime(2026, 1, 2, 3, 4, 5, 678901)),  # noqa: DTZ001 - it has none
    "d": ("date", date(1969, 12, 31)),
    "x": ("decimal(20,3)", Decimal("12345678901234567.891")),
    "b": ("binary", b"\x00\xff"),
    "f": ("double", float("nan")),
    "s": ("struct<a:int,b:array<string>>", {"a": 1, "b": ["x", None]}),
    "y": ("tinyint", -3),
    "o": ("boolean", None),
}


def test_the_previous_result_has_the_declared_types_and_the_values_that_were_answered(
    job: FolderJob, spark: SparkSession
) -> None:
    schema = ", ".join(["k bigint", *(f"{name} {of}" for name, (of, _) in VALUES.items())])
    answer = spark.createDataFrame([(1, *(value for _, value in VALUES.values()))], schema)
    seen: list[DataFrame] = []

    def valued(rows: DataFrame, previous: DataFrame) -> DataFrame:
        seen.append(previous.limit(9 + rows.count()))
        return answer

    declared(job, valued, schema=schema, result=Upsert("k"), version="1")
    job.write("1.parquet", rows_of((1, 1)))
    job.epoch()
    job.write("2.parquet", rows_of((1, 1)))

    job.epoch()

    first, second = seen
    assert first.collect() == []
    assert first.schema.simpleString() == second.schema.simpleString()
    assert repr(second.collect()) == repr(answer.collect())


def test_an_answer_may_delete_rows_by_their_keys(job: FolderJob) -> None:
    def marked(rows: DataFrame) -> DataFrame:
        return newest(rows).selectExpr("k", "v", "nullif(v < 0, false) AS _deleted")

    declared(job, marked, result=Upsert("k"))
    job.write("1.parquet", rows_of((1, 1), (2, 2)))
    job.epoch()
    job.write("2.parquet", rows_of((1, -1), (3, -3)))

    job.epoch()

    assert job.table("out").rows() == [(2, 2)]


def test_rows_that_are_only_added_are_all_there(job: FolderJob) -> None:
    declared(job, result=Append())
    for number in (1, 2):
        job.write(f"{number}.parquet", rows_of((1, number), (1, 0), (2, 5)))
        job.epoch()

    assert sorted(job.table("out").rows()) == [(1, 1), (1, 2), (2, 5), (2, 5)]


def broken(rows: DataFrame) -> DataFrame:
    raise ValueError(f"no rates for {rows.columns}")


def shared(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceGlobalTempView("shared")
    return rows.sparkSession.table("global_temp.shared")


def zoned(rows: DataFrame) -> DataFrame:
    rows.sparkSession.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    return newest(rows)


def misspelt(rows: DataFrame) -> DataFrame:
    return rows.select("k", "value")


def dividing(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return rows.withColumn(
        "v",
        F.udf(lambda value: 1 // (value - 1), "bigint")("v"),
    )


LINES = {
    name: number
    for number, text in enumerate(Path(__file__).read_text().splitlines(), start=1)
    for name, piece in (
        ("broken", 'raise ValueError(f"no'),
        ("misspelt", 'return rows.select("k", "value")'),
        ("dividing", "F.udf(lambda value: 1 //"),
    )
    if text.strip().startswith(piece)
}
FAILED: dict[str, tuple[Callable[..., DataFrame], Result, str]] = {
    "two rows of a key": (
        lambda rows: rows,
        Upsert("k"),
        (
            "the answer of stage 'code' has 2 rows with k = 1, and its result has one row a key; "
            "choose one of them, dropDuplicates(['k']) or a row_number(), or name more columns as "
            "the key"
        ),
    ),
    "two rows of a key, whole": (
        lambda rows: rows.union(rows),
        Replace(("k", "v")),
        (
            "the answer of stage 'code' has 2 rows with k = 1, v = 1, and its result has one row a "
            "key; choose one of them, dropDuplicates(['k', 'v']) or a row_number(), or name more "
            "columns as the key"
        ),
    ),
    "a null key": (
        lambda rows: newest(rows).selectExpr("nullif(k, 2) AS k", "v"),
        Replace("k"),
        (
            "the answer of stage 'code' has 'k' null in a row with k = None, v = 3, and its "
            "result is kept by that key; leave such rows out, where('k IS NOT NULL'), or fill it"
        ),
    ),
    "another partition": (
        lambda rows: rows,
        ReplacePartitions("k", key="v", where="k < 2"),
        (
            "the answer of stage 'code' has a row of the partition k = 2, and its result is "
            "declared to replace those where k < 2; leave such rows out, or declare their "
            "partition, too"
        ),
    ),
    "another type": (
        lambda rows: newest(rows).selectExpr("k", "CAST(v AS int) AS v"),
        Replace("k"),
        (
            "the function of stage 'code' answers with 'v' as int, and its schema says bigint; "
            "cast it, F.col('v').cast('bigint'), or declare it as int"
        ),
    ),
    "a column less": (
        lambda rows: newest(rows).select("k"),
        Upsert("k"),
        (
            "the function of stage 'code' answers without 'v', which its schema has; it answers "
            "with k: add it, or take it out of the schema"
        ),
    ),
    "a column more": (
        lambda rows: newest(rows).selectExpr("*", "v AS w"),
        Append(),
        (
            "the function of stage 'code' answers with 'w', which its schema does not have: drop "
            "it, or add it to the schema"
        ),
    ),
    "a mark where none is read": (
        lambda rows: newest(rows).selectExpr("*", "false AS _deleted"),
        Replace("k"),
        (
            "the function of stage 'code' answers with '_deleted', which its schema does not have: "
            "drop it, or add it to the schema, or declare the result as Upsert"
        ),
    ),
    "a mark that is no boolean": (
        lambda rows: newest(rows).selectExpr("*", "0 AS _deleted"),
        Upsert("k"),
        (
            "the function of stage 'code' answers with '_deleted' as int; it says of a row "
            "whether it is taken away, so it is a boolean: cast it, or rename it"
        ),
    ),
    "a view of all sessions": (
        shared,
        Upsert("k"),
        "the function of stage 'code' makes a global temporary view, which stages of all jobs ",
    ),
    "a setting of all stages": (
        zoned,
        Upsert("k"),
        (
            "the function of stage 'code' sets spark.sql.session.timeZone to 'Europe/Berlin', and "
            "all stages of a job compute with 'UTC'; leave it out"
        ),
    ),
    "no answer": (
        lambda rows: rows.count(),
        Upsert("k"),
        "the function of stage 'code' returns int, and not a DataFrame of Spark's; return one",
    ),
    "an exception": (
        broken,
        Upsert("k"),
        f"spark/test_spark_code.py line {LINES['broken']}: ValueError: no rates for ['k', 'v']",
    ),
    "a column that is not there": (
        misspelt,
        Upsert("k"),
        f"spark/test_spark_code.py line {LINES['misspelt']}: UNRESOLVED_COLUMN: ",
    ),
    "an exception in a worker": (
        dividing,
        Append(),
        f"spark/test_spark_code.py line {LINES['dividing']}: ZeroDivisionError: ",
    ),
}

# What the data alone can show: the others are found by the check, too.
IS_CHECKED = {
    name: not {"key", "worker", "partition"} & {*re.findall(r"\w+", name)} for name in FAILED
}


@pytest.mark.parametrize("name", FAILED)
def test_a_wrong_answer_fails_the_stage_with_one_sentence_and_nothing_is_acknowledged(
    job: FolderJob, name: str
) -> None:
    function, result, sentence = FAILED[name]
    declared(job, function, result=result)
    job.write("1.parquet", rows_of((1, 1), (1, 2), (2, 3)))

    with suppress(ConfigurationError):  # As the driver raises what a declaration has to mend.
        job.failure()

    state = job.job.state()
    (failed,) = state.failed
    assert sentence in failed.message
    assert state.completed == ()
    assert job.table("out").is_empty()


@pytest.mark.parametrize("what", ["rows", "previous"])
def test_an_answer_of_rows_that_an_earlier_call_was_given_is_refused(
    job: FolderJob, what: str
) -> None:
    kept: list[DataFrame] = []

    def keeping(rows: DataFrame, previous: DataFrame) -> DataFrame:
        kept.append({"rows": newest(rows), "previous": previous}[what])
        return newest(rows).union(kept[0].where("k > 1"))

    job.pipeline.spark(
        "code",
        keeping,
        reads={"rows": job.rows()},
        schema="k bigint, v bigint",
        result=Replace(),
        version="1",
    ).sink("changes", FilesTable(changelog=True))
    job.write("1.parquet", rows_of((1, 1)))
    job.epoch()
    job.write("2.parquet", rows_of((2, 2)))

    with suppress(ConfigurationError):  # As the driver raises what a declaration has to mend.
        job.failure()

    (failed,) = job.job.state().failed
    assert (
        "the function of stage 'code' answers with rows of a DataFrame that it kept from an "
        "earlier call; use those of this call, and 'previous' for earlier results"
    ) in failed.message


@pytest.mark.parametrize("name", [name for name in FAILED if IS_CHECKED[name]])
def test_the_check_says_the_same_before_a_row_is_read(
    job: FolderJob, spark: SparkSession, name: str
) -> None:
    function, result, sentence = FAILED[name]
    declared(job, function, result=result)
    job.write("1.parquet", rows_of((1, 1)))

    with pytest.raises(ConfigurationError) as refused:
        check_pipeline(job.pipeline, spark, {}, None)

    assert sentence in str(refused.value)


REFUSED: dict[str, tuple[Callable[[FolderJob, Stream], object], str]] = {
    "no such parameter": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={"orders": rows}, schema="k bigint", result=Append()
        ),
        "the function of stage 'code' takes rows, and is given orders: ",
    ),
    "a previous result that is kept nowhere": (
        lambda job, rows: job.pipeline.spark(
            "code",
            lambda rows, previous: previous.union(rows),
            reads={"rows": rows},
            schema="k bigint",
            result=Append(),
        ),
        (
            "the function of stage 'code' takes 'previous', and a result of Append() is kept "
            "nowhere; give the result a key, Upsert('id') or Replace('id')"
        ),
    ),
    "a stream as the previous result": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={"previous": rows}, schema="k bigint", result=Append()
        ),
        (
            "stage 'code' gives 'previous' a stream, and the parameter of that name gets the "
            "stage's own result; give the stream another name"
        ),
    ),
    "a key that the schema has not": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={"rows": rows}, schema="k bigint", result=Replace("id")
        ),
        "stage 'code' keeps its result by 'id', which its schema does not have; it has k",
    ),
    "a type of tables alone": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={"rows": rows}, schema="k varchar(5)", result=Append()
        ),
        (
            "stage 'code' declares 'k' as varchar(5), and no column of a DataFrame is of that "
            "type; declare it as string"
        ),
    ),
    "a map as a key": (
        lambda job, rows: job.pipeline.spark(
            "code",
            newest,
            reads={"rows": rows},
            schema="k bigint, m array<map<string,int>>",
            result=ReplacePartitions("k", key="m"),
        ),
        (
            "stage 'code' keeps its result by 'm', which is array<map<string,int>>, and Spark does "
            "not tell maps apart; keep it by another column, or declare an array of structs, "
            "map_entries()"
        ),
    ),
    "maps alone": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={"rows": rows}, schema="m map<string,int>", result=Replace()
        ),
        "stage 'code' keeps its result by 'm', which is map<string,int>, and Spark does not tell",
    ),
    "no key": (
        lambda job, rows: Upsert(()),
        (
            "Upsert(key=()) names no column, or one twice; name the columns in which no two rows "
            "of the result are equal"
        ),
    ),
    "a type that Spark has not": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={"rows": rows}, schema="k bigant", result=Append()
        ),
        "stage 'code' has the schema 'k bigant', which gives 'k' the type 'bigant'",
    ),
    "rows that are taken back": (
        lambda job, rows: job.pipeline.spark(
            "code",
            newest,
            reads={"rows": rows.key_by("k").aggregate("counted", v=agg.count())},
            schema="k bigint, v bigint",
            result=Append(),
        ),
        (
            "stage 'code' reads 'counted', whose rows replace earlier ones with the same k, and "
            "Spark code, which is given the rows that came, cannot take a row back; give it to the "
            "function as one of changes={...}, where a column _change says what a row does, or as "
            "current(stream), the rows that are there, or use aggregate(), top_n(), latest() or "
            "join()"
        ),
    ),
    "a table source": (
        lambda job, rows: job.pipeline.spark(
            "code",
            newest,
            reads={
                "rows": job.pipeline.source(
                    "names", Files(str(job.files), format="parquet"), table=True
                )
            },
            schema="k bigint",
            result=Append(),
        ),
        (
            "stage 'code' is Spark code, and 'names' is a table source, of which there are no rows "
            "of an epoch; give it as one of tables={...}"
        ),
    ),
    "a stream as a table": (
        lambda job, rows: job.pipeline.spark(
            "code",
            lambda rows, names: rows.join(names, "k"),
            reads={"rows": rows},
            tables={"names": rows},
            schema="k bigint",
            result=Append(),
        ),
        (
            "stage 'code' is given 'rows' as one of tables={...}, and it is no table source; "
            "declare it as a source with table=True, or give the function its rows as they come, "
            "reads={...}"
        ),
    ),
    "a name twice": (
        lambda job, rows: job.pipeline.spark(
            "code",
            newest,
            reads={"rows": rows},
            changes={"rows": rows},
            schema="k bigint",
            result=Append(),
        ),
        "stage 'code' gives 'rows' two streams; give each a name of its own",
    ),
    "a partition that the schema has not": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={"rows": rows}, schema="k int", result=ReplacePartitions("day")
        ),
        "stage 'code' keeps its result by 'day', which its schema does not have; it has k",
    ),
    "no partition": (
        lambda job, rows: ReplacePartitions(()),
        (
            "ReplacePartitions(()) names no column, or one twice; name the columns whose values "
            "say which rows are replaced together"
        ),
    ),
    "a text that is no query": (
        lambda job, rows: job.pipeline.spark_sql(
            "code",
            "INSERT INTO t SELECT * FROM rows",
            reads={"rows": rows},
            schema="k int",
            result=Append(),
        ),
        (
            "stage 'code' has the text 'INSERT INTO t SELECT * FROM rows', which is not one query; "
            "write one SELECT, which may begin WITH, without a semicolon"
        ),
    ),
    "a stream that the text does not name": (
        lambda job, rows: job.pipeline.spark_sql(
            "code", "SELECT 1 AS k", reads={"rows": rows}, schema="k int", result=Append()
        ),
        (
            "stage 'code' is given 'rows', which its text does not name; name it, as a table, or "
            "leave it out"
        ),
    ),
    "no stream": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={}, schema="k bigint", result=Append()
        ),
        (
            "stage 'code' reads nothing; name the streams by the function's parameters: "
            "reads={'orders': orders}"
        ),
    ),
    "a name of sluice's": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={"rows": rows}, schema="k bigint, _hash int", result=Append()
        ),
        (
            "the schema of stage 'code' has a column '_hash', a name that sluice gives to a "
            "column of its own; rename it, to 'hash' or the like"
        ),
    ),
    "no results": (
        lambda job, rows: job.pipeline.spark_results(
            "code", cast("Any", newest), reads={"rows": rows}, results={}
        ),
        (
            "stage 'code' has no result; name those of its function: "
            "results={'good': ('id bigint', Upsert('id'))}"
        ),
    ),
    "previous results that are kept nowhere": (
        lambda job, rows: job.pipeline.spark_results(
            "code", split, reads={"rows": rows}, results={"bad": SPLIT["bad"]}
        ),
        "the function of stage 'code' takes 'previous', and a result of Append() is kept nowhere",
    ),
    "a schema of one of several results": (
        lambda job, rows: job.pipeline.spark_results(
            "code", split, reads={"rows": rows}, results={"bad": ("k bigant", Upsert("k"))}
        ),
        "result 'bad' of stage 'code' has the schema 'k bigant', which gives 'k' the type 'bigant'",
    ),
    "current rows of a stream that only adds": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={"rows": current(rows)}, schema="k bigint", result=Append()
        ),
        (
            "stage 'code' is given current(rows), and 'rows' only adds rows; name the key and "
            "which of its rows is there: current(stream.key_by('id').latest('newest', "
            "by='updated_at'))"
        ),
    ),
    "current rows of a stream without a key": (
        lambda job, rows: job.pipeline.spark(
            "code",
            newest,
            reads={
                "rows": current(rows.key_by("k").aggregate("counted", v=agg.count()).select("v"))
            },
            schema="k bigint",
            result=Append(),
        ),
        "stage 'code' is given current(counted), and 'counted' has no key; name the key",
    ),
    "a result that is no result": (
        lambda job, rows: job.pipeline.spark(
            "code", newest, reads={"rows": rows}, schema="k bigint", result=cast("Any", "append")
        ),
        "spark('code'): result is 'append'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_where_it_is_declared(job: FolderJob, name: str) -> None:
    declare, sentence = REFUSED[name]
    rows = job.rows()

    with pytest.raises(ConfigurationError) as refused:
        declare(job, rows)

    assert sentence in str(refused.value)


def test_unaligned_checkpoints_are_refused(tmp_path: Path) -> None:
    pipeline = Pipeline("late", checkpointing=Checkpointing(unaligned=True))
    rows = pipeline.source("rows", Files(str(tmp_path), format="parquet"))

    with pytest.raises(ConfigurationError) as refused:
        pipeline.spark("code", newest, reads={"rows": rows}, schema="k int", result=Append())

    assert str(refused.value) == (
        "stage 'code' is Spark code, which is given all rows of an epoch at once, and pipeline "
        "'late' declares unaligned=True, in which a stage does not wait for them; leave unaligned "
        "out"
    )


def test_a_type_that_no_state_keeps_is_refused_by_the_check(
    job: FolderJob, spark: SparkSession
) -> None:
    declared(job, newest, result=Append(), schema="k bigint, v variant")
    job.write("1.parquet", rows_of((1, 1)))

    with pytest.raises(ConfigurationError, match="stage 'code' declares 'v' as variant"):
        check_pipeline(job.pipeline, spark, {}, None)


def test_a_check_leaves_spark_code_to_spark(job: FolderJob) -> None:
    declared(job, newest, result=Replace("k"))
    job.write("1.parquet", rows_of((1, 1)))

    assert analyse(job.pipeline, {}, None) == {"code": None}


def test_a_column_that_is_added_to_the_result_is_null_in_the_previous_one(job: FolderJob) -> None:
    def dated(rows: DataFrame, previous: DataFrame) -> DataFrame:
        old = previous.selectExpr("k", "coalesce(w, 'before') AS w", "v")
        return old.unionByName(newest(rows).selectExpr("k", "'now' AS w", "v"))

    dated.__name__ = newest.__name__  # Of the same version: it means the same.
    code = job.pipeline.spark(
        "code",
        newest,
        reads={"rows": job.rows()},
        schema="k bigint, v bigint",
        result=Upsert("k"),
        version="1",
    )
    code.select("k", "v").sink("out", FilesTable(upsert_key=("k",)))
    job.write("1.parquet", rows_of((1, 1), (2, 2)))
    job.epoch()
    node = job.pipeline.stages["code"]
    assert isinstance(node.operation, SparkCode)
    schema = "k bigint, w string, v bigint"
    later = replace(node.operation, function=dated, schema=schema, takes_previous=True)
    job.pipeline.stages["code"] = replace(node, operation=later)
    job.write("2.parquet", rows_of((3, 3)))

    metadata = job.epoch()

    state = open_state(job.job, str(metadata.checkpoint_id), "code").frame()
    assert sorted(state.select("k", "v", "w").rows()) == [
        (1, 1, "before"),
        (2, 2, "before"),
        (3, 3, "now"),
    ]
