"""Stages of Spark code against a plain loop of the same function, over kills, restores, rescales.

The loop is what the old script did: ``previous = function(increment, previous)``.  Functions are
drawn from a grammar, and every version that a run publishes is compared with the loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from sluice import Append, Pipeline, Replace, ReplacePartitions, Upsert, current
from sluice.declaration import aggregates as agg
from sluice.declaration.results import Result
from sluice.local.run_local import session_of
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.testing import Kill, LocalRun, Restore, run_local
from tests.examples import IS_CHECK, slow_but

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = list[Row]
Version: TypeAlias = list[tuple[Any, ...]]
Increment: TypeAlias = "Callable[[DataFrame], DataFrame]"
Combined: TypeAlias = "Callable[[DataFrame, DataFrame], DataFrame]"

ORDERS = "customer string, item string, amount bigint"
TOTALS = "customer string, spent bigint"
EPOCHS = 4
# One of each kind of result in a check; ``make properties`` plays all.
SEEDS = (6, 7, 9, 11, 13) if IS_CHECK else range(5, 14)
CUSTOMERS = [f"customer {number}" for number in range(40)]


def grouped(orders: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return orders.groupBy("customer").agg(F.sum("amount").alias("spent"))


def without_duplicates(orders: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    ordered = orders.groupBy("customer", "amount").agg(F.max("item"))
    least = ordered.groupBy("customer").agg(F.min("amount").alias("amount"))
    return least.dropDuplicates(["customer"]).withColumnRenamed("amount", "spent")


def ranked(orders: DataFrame) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    best = Window.partitionBy("customer").orderBy(F.desc("amount"), "item")
    first = orders.withColumn("n", F.row_number().over(best)).where("n = 1")
    return first.selectExpr("customer", "amount AS spent")


def in_sql(orders: DataFrame) -> DataFrame:
    return orders.sparkSession.sql(
        "SELECT customer, count(DISTINCT item) + max(amount) AS spent FROM {orders} "
        "GROUP BY customer",
        orders=orders,
    )


def in_python(orders: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    def summed(rows: pd.DataFrame) -> pd.DataFrame:
        sums = rows.groupby("customer", as_index=False).agg(spent=("amount", "sum"))
        return sums[["customer", "spent"]]

    def positive(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for rows in frames:
            yield rows[rows["amount"] > 0]

    doubled = F.udf(lambda amount: 2 * amount, "bigint")
    rows = orders.withColumn("amount", doubled("amount")).mapInPandas(positive, ORDERS)
    return rows.groupBy("customer").applyInPandas(summed, TOTALS)


def alone(increment: DataFrame, _: DataFrame) -> DataFrame:
    return increment


def added_up(increment: DataFrame, previous: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    both = previous.select("customer", "spent").unionByName(increment)
    return both.groupBy("customer").agg(F.sum("spent").alias("spent"))


def joined(increment: DataFrame, previous: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    before = previous.select("customer", F.col("spent").alias("old"))
    total = F.coalesce("old", F.lit(0)) + F.col("spent")
    return increment.join(before, "customer", "left").select("customer", total.alias("spent"))


def first_ones(increment: DataFrame, previous: DataFrame) -> DataFrame:
    new = increment.join(previous, "customer", "left_anti")
    return previous.select("customer", "spent").unionByName(new)


def best_three(increment: DataFrame, previous: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    return added_up(increment, previous).orderBy(F.desc("spent"), "customer").limit(3)


def swapped(increment: DataFrame, previous: DataFrame) -> DataFrame:
    """Every row of the result changes, and a key is gone in each second epoch."""
    both = added_up(increment, previous)
    return both.selectExpr("customer", "spent + 1 AS spent").where("spent % 2 = 1")


def beside(increment: DataFrame, previous: DataFrame) -> DataFrame:
    """A customer that comes has all its former rows and a new one, but for those that are old."""
    old = previous.join(increment.select("customer"), "customer", "left_semi").where("spent < 60")
    return old.select("customer", "spent").union(increment.select("customer", "spent")).distinct()


def repeated(increment: DataFrame, previous: DataFrame) -> DataFrame:
    """Each row as often as it was, and twice if it came; a few are gone."""
    kept = previous.select("customer", "spent").where("spent % 5 <> 0")
    return kept.unionAll(increment.select("customer", "spent")).unionAll(increment)


INCREMENTS: Sequence[Increment] = (grouped, without_duplicates, ranked, in_sql, in_python)
# What a result is combined with decides which faults show: rows that leave it, or are there twice.
PLAYS: Sequence[tuple[Result, Sequence[Combined], bool]] = (
    (Append(), (alone,), False),
    (Upsert("customer"), (alone, joined), False),
    (Upsert("customer"), (added_up, joined), True),
    (Replace("customer"), (alone, best_three, swapped), False),
    (Replace("customer"), (added_up, first_ones), False),
    (ReplacePartitions("customer", key="spent"), (beside,), False),
    (ReplacePartitions("customer"), (repeated,), False),
    (Replace(), (repeated,), False),
    (Replace(), (alone,), False),
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A function of the grammar, what its answer does, and what happens to the run."""

    increment: Increment
    combined: Combined
    result: Result
    deletes: bool
    chunks: list[Rows]
    script: tuple[Kill | Restore, ...]

    def function(self) -> Callable[..., DataFrame]:
        increment, combined, deletes = self.increment, self.combined, self.deletes

        def appended(orders: DataFrame) -> DataFrame:
            return increment(orders)

        def answer(orders: DataFrame, previous: DataFrame) -> DataFrame:
            rows = combined(increment(orders), previous)
            return rows.selectExpr("*", "spent % 3 = 0 AS _deleted") if deletes else rows

        return appended if isinstance(self.result, Append) else answer


def drawn(seed: int) -> Drawn:
    random = Random(seed)
    result, combined, deletes = PLAYS[seed % len(PLAYS)]
    chunks = [
        [
            {
                "customer": random.choice(CUSTOMERS),
                "item": random.choice("xyz"),
                "amount": random.randrange(1, 20),
            }
            for _ in range(random.choice([0, 10, 20, 60]))
        ]
        for _ in range(EPOCHS)
    ]
    kills = [Kill(stage="code", epoch=epoch) for epoch in random.sample(range(1, EPOCHS + 1), 2)]
    after = random.randrange(2, EPOCHS)
    back = Restore(
        to_epoch=random.randrange(1, after),
        after_epoch=after,
        parallelism=random.choice([1, 3]),
    )
    return Drawn(
        increment=random.choice(INCREMENTS),
        combined=random.choice(combined),
        result=result,
        deletes=deletes,
        chunks=chunks,
        script=(*kills, back),
    )


def pipeline_of(
    function: Callable[..., DataFrame], result: Result, schema: str = TOTALS
) -> Pipeline:
    pipeline = Pipeline("chain")
    orders = pipeline.source("orders", Files("x", format="json", schema=ORDERS))
    code = pipeline.spark("code", function, reads={"orders": orders}, schema=schema, result=result)
    if isinstance(result, Append):
        code.sink("out", FilesTable())
    else:
        if result.columns:
            code.sink("out", FilesTable(upsert_key=result.columns))
        code.sink("changes", FilesTable(changelog=True))
    counted = code.key_by("spent").aggregate("behind", n=agg.count())
    counted.sink("by_spent", FilesTable(upsert_key=("spent",)))
    return pipeline


@pytest.fixture(name="spark", scope="module")
def _spark() -> Any:
    with session_of(None) as spark:
        yield spark


def played_plainly(spark: SparkSession, case: Drawn) -> list[Version]:
    """The version of the result behind each epoch, by a loop over the function."""
    function, versions = case.function(), list[Version]()
    rows: Rows = []
    for chunk in case.chunks:
        orders = spark.createDataFrame([tuple(row.values()) for row in chunk], ORDERS)
        given = {"orders": orders}
        if not isinstance(case.result, Append):
            before = [(row["customer"], row["spent"]) for row in rows]
            given["previous"] = spark.createDataFrame(before, TOTALS)
        answer = [row.asDict() for row in function(**given).collect()]
        rows = [*kept_beside(answer, rows, case.result), *answer]
        rows = [row for row in rows if not row.pop("_deleted", False)]
        versions.append(version_of(rows))
    return versions


def kept_beside(answer: Rows, rows: Rows, result: Result) -> Rows:
    """Those of *rows* that an *answer* does not replace."""
    match result:
        case Append():
            return rows
        case Replace():
            return []
        case Upsert() | ReplacePartitions():
            come = {row["customer"] for row in answer}
            return [row for row in rows if row["customer"] not in come]


def version_of(rows: Sequence[Mapping[str, Any]]) -> Version:
    return sorted((row["customer"], row["spent"]) for row in rows)


def published(run: LocalRun, sink: str, result: Result) -> list[tuple[int, Version]]:
    """The version that readers of *sink* see behind each epoch, with the epoch's number."""
    found: list[tuple[int, Version]] = []
    at: dict[int, Version] = {0: []}
    for epoch in run.epochs:
        rows, version = epoch.published(sink).to_dicts(), [*at[epoch.number - 1]]
        if sink == "changes":
            version = added_up_changes(rows, version)
        elif isinstance(result, Append):
            version += version_of(rows)
        else:
            by = [("customer", "spent").index(name) for name in result.columns]
            live = {tuple(row[place] for place in by): row for row in version}
            for row in sorted(rows, key=lambda row: not row["_deleted"]):
                pair = (row["customer"], row["spent"])
                live.pop(tuple(pair[place] for place in by), None)
                if not row["_deleted"]:
                    live[tuple(pair[place] for place in by)] = pair
            version = [*live.values()]
        at[epoch.number] = sorted(version)
        found.append((epoch.number, at[epoch.number]))
    return found


@pytest.mark.spark
@pytest.mark.parametrize("seed", SEEDS)
def test_every_version_is_that_of_a_plain_loop_over_kills_restores_and_rescales(
    spark: SparkSession, seed: int
) -> None:
    case = drawn(seed)
    expected = played_plainly(spark, case)

    run = run_local(
        pipeline_of(case.function(), case.result),
        {"orders": case.chunks},
        script=case.script,
        spark=spark,
    )

    is_bag = not isinstance(case.result, Append) and not case.result.columns
    found = published(run, "changes" if is_bag else "out", case.result)
    assert found == [(number, expected[number - 1]) for number, _ in found], case
    assert len(found) > EPOCHS  # Some were repeated.
    behind = {row["spent"]: row["n"] for row in run.table("by_spent").to_dicts()}
    spent = [spent for _, spent in expected[-1]]
    assert behind == {value: spent.count(value) for value in {*spent}}
    if not is_bag:
        assert version_of(run.table("out").to_dicts()) == expected[-1]
    if not isinstance(case.result, Append):
        assert added_up_changes(run.table("changes").to_dicts(), []) == expected[-1]
    if not isinstance(case.result, Append) and not is_bag:
        assert version_of(run.state("code").to_dicts()) == expected[-1]


def added_up_changes(rows: Rows, before: Version) -> Version:
    """The rows that are there behind the changes *rows* of a changelog."""
    there = [*before]
    for row in sorted(rows, key=lambda row: row["kind"] in ("-U", "-D")):
        pair = (row["customer"], row["spent"])
        if row["kind"] in ("+I", "+U"):
            there.append(pair)
        else:
            there.remove(pair)
    return sorted(there)


ANSWERS = ("totals", "best", "seen", "sums")
RESULTS: Mapping[str, tuple[str, Result]] = {
    "totals": (TOTALS, Upsert("customer")),
    "best": (TOTALS, Replace("customer")),
    "seen": (TOTALS, Append()),
    "copy": (TOTALS, Replace("customer")),
}


def several(increment: Increment, *, deletes: bool) -> Callable[..., dict[str, DataFrame]]:
    """A function of four results, of which one is made of another one's previous rows, and one is
    what there is of sums.
    """

    def answers(
        orders: DataFrame, sums: DataFrame, previous: Mapping[str, DataFrame]
    ) -> dict[str, DataFrame]:
        rows = increment(orders)
        mark = "spent % 3 = 0 AS _deleted" if deletes else "CAST(NULL AS boolean) AS _deleted"
        return {
            "totals": joined(rows, previous["totals"]).selectExpr("*", mark),
            "best": best_three(rows, previous["best"].unionByName(previous["totals"])),
            "seen": rows,
            "copy": sums.select("customer", "spent"),
        }

    return answers


@pytest.mark.spark
@pytest.mark.parametrize("seed", slow_but(range(2), 0))
def test_several_results_are_those_of_a_plain_loop_over_kills_restores_and_rescales(
    spark: SparkSession, seed: int
) -> None:
    case = drawn(seed)
    random = Random(seed)
    function = several(random.choice(INCREMENTS), deletes=seed % 2 == 1)
    expected: list[dict[str, Version]] = []
    rows: dict[str, Rows] = {name: [] for name in RESULTS}
    spent_by: dict[str, int] = {}
    for chunk in case.chunks:
        for order in chunk:
            spent_by[order["customer"]] = spent_by.get(order["customer"], 0) + order["amount"]
        there = [(customer, spent) for customer, spent in spent_by.items() if spent % 3]
        sums = spark.createDataFrame(there, TOTALS)
        orders = spark.createDataFrame([tuple(row.values()) for row in chunk], ORDERS)
        before = {
            name: spark.createDataFrame([tuple(row.values()) for row in of], TOTALS)
            for name, of in rows.items()
        }
        for name, frame in function(orders, sums, before).items():
            answer = [row.asDict() for row in frame.collect()]
            kept = [*kept_beside(answer, rows[name], RESULTS[name][1]), *answer]
            rows[name] = [row for row in kept if not row.pop("_deleted", False)]
        expected.append({name: version_of(of) for name, of in rows.items()})
    pipeline = Pipeline("chain")
    source = pipeline.source("orders", Files("x", format="json", schema=ORDERS))
    summed = source.key_by("customer").aggregate("summed", spent=agg.sum("amount"))
    streams = pipeline.spark_results(
        "code",
        function,
        reads={"orders": source, "sums": current(summed.where("spent % 3 <> 0"))},
        results=RESULTS,
    )
    for name, (_, result) in RESULTS.items():
        key = () if isinstance(result, Append) else ("customer",)
        streams[name].sink(f"{name}_out", FilesTable(upsert_key=key))
    streams["best"].key_by("spent").aggregate("behind", n=agg.count()).sink(
        "by_spent", FilesTable(upsert_key=("spent",))
    )
    kills = [Kill(stage=f"code_{random.choice(ANSWERS)}", epoch=random.randrange(1, EPOCHS + 1))]

    run = run_local(pipeline, {"orders": case.chunks}, script=(*kills, *case.script), spark=spark)

    for name, (_, result) in RESULTS.items():
        found = published(run, f"{name}_out", result)
        assert found == [(number, expected[number - 1][name]) for number, _ in found], case
        assert len(found) > EPOCHS  # Some were repeated.
    behind = {row["spent"]: row["n"] for row in run.table("by_spent").to_dicts()}
    spent = [spent for _, spent in expected[-1]["best"]]
    assert behind == {value: spent.count(value) for value in {*spent}}
    assert version_of(run.state("code_totals").to_dicts()) == expected[-1]["totals"]
