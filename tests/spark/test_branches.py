"""A stream is a value: each that is derived of it has the rows that its own steps say, whatever
else is derived, and whoever reads them.

The tables of pipelines with branches are compared with the same computed of all rows at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.keyed_functions import (
    BroadcastContext,
    BroadcastState,
    Context,
    KeyedBroadcastProcessFunction,
    Row,
)
from sluice.declaration.pipeline import Stream
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.checking import check_pipeline
from tests.examples import slow_but
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = {"user": pl.Int64(), "seat": pl.String(), "price": pl.Int64()}
EPOCHS = 3


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> FolderJob:
    return FolderJob(spark, tmp_path)


def same(rows: DataFrame) -> DataFrame:
    return rows


def in_order(rows: pl.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(rows.rows(), key=repr)


def by(*columns: str) -> FilesTable:
    return FilesTable(upsert_key=columns)


def some_rows(seed: int) -> list[pl.DataFrame]:
    """The rows of each epoch."""
    drawn = random.Random(seed)
    return [
        pl.DataFrame(
            [
                (drawn.randrange(8), drawn.choice("AB"), drawn.randrange(-40, 60))
                for _ in range(drawn.randrange(1, 20))
            ],
            schema=SCHEMA,
            orient="row",
        )
        for _ in range(EPOCHS)
    ]


Expected = Callable[[pl.DataFrame], pl.DataFrame]


def branches_of_updates(rows: Stream) -> dict[str, Expected]:
    """Branches of a stream whose rows are replaced; the sinks with their batch results."""
    totals = rows.key_by("user").aggregate("totals", spent=agg.sum("price"), n=agg.count())
    big, small = totals.where("spent > 20"), totals.where("spent <= 20")
    totals.where("spent = 12345").select("n")  # Nobody reads it.
    totals.sink("all_of_them_out", by("user"))
    big.sink("big_out", by("user"))
    small.sink("small_out", by("user"))
    twice = totals.select("user AS who", "spent * 2 AS twice")
    twice.where("twice > 10").sink("twice_out", by("who"))
    twice.where("who % 2 = 0").select("twice").key_by("twice").aggregate(
        "per_twice", n=agg.count()
    ).sink("per_twice_out", by("twice"))
    big.transform("passed", same).select("spent", "user").sink("passed_out", by("user"))
    totals.select("user", "n % 2 AS odd").transform("parity", same).sink("parity_out", by("user"))
    small.key_by(half="user % 2").aggregate("halves", s=agg.sum("spent")).sink(
        "halves_out", by("half")
    )
    either = big.select("user").union("either", small.select("user"))
    either.key_by("user").aggregate("once", n=agg.count()).sink("once_out", by("user"))
    joined = (
        totals.where("n > 1")
        .key_by("user")
        .join("joined", big.select("user AS u", "spent AS s").key_by("u"))
    )
    joined.key_by("user").aggregate("joins", s=agg.max("s")).sink("joins_out", by("user"))

    def spent(of: pl.DataFrame) -> pl.DataFrame:
        return of.group_by("user").agg(spent=pl.col("price").sum(), n=pl.len().cast(pl.Int64))

    def of_twice(of: pl.DataFrame) -> pl.DataFrame:
        return spent(of).select(who="user", twice=pl.col("spent") * 2)

    is_big = pl.col("spent") > 20
    return {
        "all_of_them": spent,
        "big": lambda of: spent(of).filter(is_big),
        "small": lambda of: spent(of).filter(~is_big),
        "twice": lambda of: of_twice(of).filter(pl.col("twice") > 10),
        "per_twice": lambda of: (
            of_twice(of).filter(pl.col("who") % 2 == 0).group_by("twice").agg(n=pl.len())
        ),
        "passed": lambda of: spent(of).filter(is_big).select("spent", "user"),
        "parity": lambda of: spent(of).select("user", odd=pl.col("n") % 2),
        "halves": lambda of: (
            spent(of).filter(~is_big).group_by(half=pl.col("user") % 2).agg(s=pl.col("spent").sum())
        ),
        "once": lambda of: spent(of).select("user", n=pl.lit(1)),
        "joins": lambda of: spent(of).filter(is_big, pl.col("n") > 1).select("user", s="spent"),
    }


def branches_of_appended(rows: Stream) -> dict[str, Expected]:
    """The same of a stage without state, of a join, and of a source."""
    passed = rows.transform("passed", same)
    passed.where("price > 0").sink("gains_out", FilesTable())
    passed.where("price <= 0").select("seat", "price").sink("losses_out", FilesTable())
    passed.where("price > 0").select("seat").key_by("seat").aggregate("seats", n=agg.count()).sink(
        "seats_out", by("seat")
    )
    passed.select("price + user AS x").union("xs", passed.select("price AS x")).sink(
        "xs_out", FilesTable()
    )
    others = rows.select("user AS other", "seat AS own").where("own = 'A'")
    joined = rows.where("seat = 'B'").key_by("user").join("joined", others.key_by("other"))
    joined.where("price > 20").select("user", "own").sink("dear_out", FilesTable())
    joined.where("price <= 20").sink("cheap_out", FilesTable())

    def of_join(of: pl.DataFrame) -> pl.DataFrame:
        own = of.filter(pl.col("seat") == "A").select("user", own="seat")
        return of.filter(pl.col("seat") == "B").join(own, on="user")

    return {
        "gains": lambda of: of.filter(pl.col("price") > 0),
        "losses": lambda of: of.filter(pl.col("price") <= 0).select("seat", "price"),
        "seats": lambda of: of.filter(pl.col("price") > 0).group_by("seat").agg(n=pl.len()),
        "xs": lambda of: pl.concat(
            [of.select(x=pl.col("price") + pl.col("user")), of.select(x="price")]
        ),
        "dear": lambda of: of_join(of).filter(pl.col("price") > 20).select("user", "own"),
        "cheap": lambda of: of_join(of).filter(pl.col("price") <= 20),
    }


@pytest.mark.parametrize("seed", slow_but([1, 2], 1))
@pytest.mark.parametrize("declare", [branches_of_updates, branches_of_appended])
def test_each_branch_equals_its_batch_result(
    job: FolderJob, declare: Callable[[Stream], dict[str, Expected]], seed: int
) -> None:
    epochs = some_rows(seed)
    job.write("0.parquet", epochs[0])
    expected = declare(job.rows())

    for number, rows in enumerate(epochs):
        job.write(f"{number}.parquet", rows)
        job.epoch()

    whole = pl.concat(epochs)
    for sink, result in expected.items():
        found, right = job.table(f"{sink}_out"), result(whole)
        assert in_order(found.select(sorted(right.columns))) == in_order(
            right.select(sorted(right.columns))
        ), f"{sink} of seed {seed}"


def test_a_chained_stage_reads_the_branch_that_it_was_given(job: FolderJob) -> None:
    totals = job.rows().key_by("user").aggregate("totals", spent=agg.sum("price"))
    totals.where("spent > 20").select("spent % 10 AS last").key_by("last").aggregate(
        "lasts", n=agg.count()
    ).sink("lasts_out", by("last"))
    totals.sink("all_of_them_out", by("user"))
    job.write("1.parquet", pl.DataFrame([(1, "A", 35), (2, "A", 5)], schema=SCHEMA, orient="row"))

    job.epoch()

    assert in_order(job.table("lasts_out")) == [(5, 1)]
    assert in_order(job.table("all_of_them_out")) == [(1, 35), (2, 5)]


def test_a_lookup_sees_the_rows_of_the_table_that_it_was_given(
    job: FolderJob, tmp_path: Path
) -> None:
    (tmp_path / "names").mkdir()
    (tmp_path / "names/1.csv").write_text("1,ann\n2,bob\n")
    schema = "id bigint, name string"
    files = Files(str(tmp_path / "names"), format="csv", schema=schema)
    names = job.pipeline.source("names", files, table=True)
    known = names.where("name LIKE 'a%'").select("id AS user", "upper(name) AS name")
    rows = job.rows()
    rows.lookup("some", known, on="user", add=("name",)).sink("some_out", FilesTable())
    rows.lookup("any", names, on={"user": "id"}, add=("name",)).sink("any_out", FilesTable())
    job.write("1.parquet", pl.DataFrame([(1, "A", 0), (2, "A", 0)], schema=SCHEMA, orient="row"))

    job.epoch()

    assert in_order(job.table("some_out").select("user", "name")) == [(1, "ANN")]
    assert in_order(job.table("any_out").select("user", "name")) == [(1, "ann"), (2, "bob")]


class Seen(KeyedBroadcastProcessFunction):
    """Each row with how many rules there are."""

    rules = BroadcastState(str, int)

    def process_broadcast(self, row: Row, context: BroadcastContext) -> None:
        self.rules.put(str(row["price"]), 1)

    def process(self, row: Row, context: Context) -> Iterable[Row]:
        yield {
            "user": row["user"],
            "n": sum(self.rules.contains(str(price)) for price in range(99)),
        }


def test_every_subtask_sees_the_branch_that_is_broadcast(job: FolderJob) -> None:
    passed = job.rows().transform("passed", same)
    rules, rows = passed.where("price > 5"), passed.where("price <= 5")
    passed.sink("all_of_them_out", FilesTable())
    rows.key_by("user").process_keyed(
        "seen", Seen(), result={"user": int, "n": int}, broadcast=rules
    ).sink("seen_out", FilesTable())
    given = [(1, "A", 0), (1, "A", 7), (2, "A", 8), (3, "A", 1)]
    job.write("1.parquet", pl.DataFrame(given, schema=SCHEMA, orient="row"))

    job.epoch()

    assert in_order(job.table("seen_out")) == [(1, 2), (3, 2)]


def test_a_check_knows_the_columns_of_each_branch(job: FolderJob, spark: SparkSession) -> None:
    job.write("1.parquet", some_rows(1)[0])
    passed = job.rows().transform("passed", same)
    passed.sink("all_of_them_out", FilesTable())
    dear = passed.select("user", "price > 3 AS dear").transform("dear", same)
    dear.select("dear").sink("out_out", FilesTable())

    results = check_pipeline(job.pipeline, spark, {}, None)

    assert results["passed"].columns.names() == ["user", "seat", "price"]
    assert results["dear"].columns == pl.Schema({"dear": pl.Boolean()})
    passed.select("user").sink("lost_out", FilesTable(partition_by=("seat",)))
    refusal = "'lost_out' is partitioned by 'seat', which 'passed' does not yield"
    with pytest.raises(ConfigurationError, match=refusal):
        check_pipeline(job.pipeline, spark, {}, None)
