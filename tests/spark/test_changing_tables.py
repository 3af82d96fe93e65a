"""Tables that others change: what stages make of them is what SQL makes of the table as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable as Delta
from deltalake import write_deltalake

from sluice.declaration import aggregates as agg
from sluice.declaration.places import SourceSpec
from sluice.sinks import FilesTable
from sluice.sources import DeltaTable, IcebergTable
from tests.examples import slow_but
from tests.iceberg_catalog import (
    TABLE,
    a_table,
    compact,
    delete_places,
    loaded,
    places_of,
    properties,
)
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema([("id", pa.int64()), ("shop", pa.string()), ("price", pa.float64())])


def orders(first: int, count: int) -> pa.Table:
    rows = [{"id": n, "shop": "abc"[n % 3], "price": n / 4} for n in range(first, first + count)]
    return pa.Table.from_pylist(rows, SCHEMA)


class DeltaOrders:
    def __init__(self, folder: Path, *, feeds: bool) -> None:
        self.place = str(folder / "orders")
        setting = {"delta.enableChangeDataFeed": str(feeds).lower()}
        Delta.create(self.place, SCHEMA, configuration=setting)

    def spec(self) -> SourceSpec:
        return DeltaTable(f"file://{self.place}", changes="rows")

    def append(self, rows: pa.Table) -> None:
        write_deltalake(self.place, rows, mode="append")

    def move(self) -> None:
        Delta(self.place).update(updates={"shop": "'z'"}, predicate="id % 4 = 0")

    def delete(self) -> None:
        Delta(self.place).delete("id % 3 = 1")

    def merge(self, rows: pa.Table) -> None:
        merge = Delta(self.place).merge(rows, "s.id = t.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def compact(self) -> None:
        Delta(self.place).optimize.compact()

    def overwrite(self, rows: pa.Table) -> None:
        write_deltalake(self.place, rows, mode="overwrite")

    def rows(self) -> pa.Table:
        return Delta(self.place).to_pyarrow_table()


class IcebergOrders:
    """Updates are copied on write, deletes are merged on read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        a_table(folder, SCHEMA)

    def spec(self) -> SourceSpec:
        return IcebergTable(TABLE, properties(self.folder), changes="rows")

    def append(self, rows: pa.Table) -> None:
        loaded(self.folder).append(rows)

    def move(self) -> None:
        rows = self.rows()
        moved = rows.filter(pc.is_in(rows["id"], pa.array(range(0, 99, 4))))
        shops = pa.array(["z"] * moved.num_rows, pa.string())
        self.merge(moved.set_column(1, "shop", shops).cast(SCHEMA))

    def delete(self) -> None:
        delete_places(loaded(self.folder), places_of(loaded(self.folder), "id", 11)[::2])

    def merge(self, rows: pa.Table) -> None:
        loaded(self.folder).overwrite(
            rows, f"id IN ({', '.join(map(str, rows['id'].to_pylist()))})"
        )

    def compact(self) -> None:
        compact(loaded(self.folder))

    def overwrite(self, rows: pa.Table) -> None:
        loaded(self.folder).overwrite(rows)

    def rows(self) -> pa.Table:
        return loaded(self.folder).scan().to_arrow()


TABLES: dict[str, Callable[[Path], DeltaOrders | IcebergOrders]] = {
    "delta": lambda folder: DeltaOrders(folder, feeds=False),
    "delta feed": lambda folder: DeltaOrders(folder, feeds=True),
    "iceberg": IcebergOrders,
}


def a_job(spark: SparkSession, folder: Path, spec: SourceSpec) -> FolderJob:
    """Aggregates past Spark's JVM and through it, the newest row of a key, and a join."""
    job = FolderJob(spark, folder)
    orders = job.pipeline.source("orders", spec)
    for way, condition in (("past", "price >= 0"), ("through", "length(hex(id)) >= 0")):
        totals = (
            orders.where(condition)
            .key_by("shop")
            .aggregate(way, rows=agg.count(), total=agg.sum("price"), least=agg.min("price"))
        )
        totals.sink(f"{way}_out", FilesTable(upsert_key=("shop",)))
    totals = orders.key_by("shop").aggregate("shops", most=agg.max("price"))
    joined = orders.key_by("shop").join("joined", totals.key_by("shop"))
    joined.where("price = most").sink("joined_out", FilesTable(changelog=True))
    return job


TOTALS = "SELECT shop, count(*) AS rows, sum(price) AS total, min(price) AS least FROM t GROUP BY 1"
BEST = "SELECT id, price FROM t QUALIFY price = max(price) OVER (PARTITION BY shop)"


def check(job: FolderJob, rows: pa.Table) -> None:
    """Compare every table with what DuckDB makes of *rows*."""
    connection = duckdb.connect()
    connection.register("t", rows)
    expected = connection.sql(TOTALS).pl().sort("shop")
    for way in ("past", "through"):
        found = job.table(f"{way}_out").select(expected.columns).sort("shop")
        assert found.rows() == expected.rows(), way
    changes = job.table("joined_out").with_columns(
        weight=pl.when(pl.col("kind").is_in(["-D", "-U"])).then(-1).otherwise(1)
    )
    net = changes.group_by("id", "price", "most").agg(pl.col("weight").sum())
    assert sorted(net.filter(pl.col("weight") != 0).select("id", "price", "weight").rows()) == [
        (*row, 1) for row in sorted(connection.sql(BEST).fetchall())
    ]


@pytest.mark.parametrize("kind", slow_but(TABLES, "delta feed", "iceberg"))
def test_what_was_changed_or_deleted_is_taken_back(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    table = TABLES[kind](tmp_path)
    table.append(orders(0, 12))
    job = a_job(spark, tmp_path, table.spec())
    job.epoch()
    check(job, table.rows())

    changes: list[Callable[[], Any]] = [
        table.move,
        table.compact,
        lambda: table.merge(orders(9, 8)),
        table.delete,
        lambda: table.overwrite(orders(40, 5)),
    ]
    for number, change in enumerate(changes):
        change()
        if number % 2 == 0:
            job.epoch()
            check(job, table.rows())
