"""Places that only Spark reads: what changed since the reading before, over restores and kills."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from sluice import Append, Pipeline
from sluice.connectors.spark_read.declared import rows_since
from sluice.coordinator.restore import restore
from sluice.core.restoring import Choice, Latest
from sluice.declaration import aggregates as agg
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Column, Files, Snapshot, SparkRead
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY = timedelta(milliseconds=1)  # Each epoch reads.


class Derby:
    """A database in a folder, which Spark reads by JDBC in two partitions: it has the driver."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.url = f"jdbc:derby:{folder / 'db'};create=true"
        classes: Any = spark._jvm  # noqa: SLF001
        classes.java.lang.System.setProperty("derby.stream.error.file", str(folder / "derby.log"))
        self._connection = classes.java.sql.DriverManager.getConnection(self.url)

    def run(self, *statements: str) -> None:
        statement = self._connection.createStatement()
        for sql in statements:
            statement.execute(sql)
        statement.close()

    def rows(self, spark: SparkSession, table: str = "people", by: str = "id") -> DataFrame:
        options = {"partitionColumn": by, "lowerBound": "0", "upperBound": "9"}
        read = spark.read.format("jdbc").options(**options, numPartitions="2")
        names = read.option("url", self.url).option("dbtable", table).load()
        return names.toDF(*(name.lower() for name in names.columns))


@pytest.fixture(name="job")
def _job(spark: SparkSession, tmp_path: Path) -> FolderJob:
    return FolderJob(spark, tmp_path)


@pytest.fixture(name="people")
def _people(spark: SparkSession, tmp_path: Path) -> Derby:
    people = Derby(spark, tmp_path)
    people.run(
        "CREATE TABLE people (id BIGINT, name VARCHAR(9), changed BIGINT)",
        "INSERT INTO people VALUES (1, 'ann', 10), (2, 'bob', 20), (3, 'cid', NULL)",
    )
    return people


SCHEMA = "id bigint, name string, changed bigint"


def read(job: FolderJob, people: Derby, by: Snapshot | Column) -> None:
    spec = SparkRead(people.rows, SCHEMA, by=by, every=EVERY, version="1")
    rows = job.pipeline.source("people", spec)
    rows.sink("out", FilesTable(upsert_key=("id",)))
    rows.sink("changes", FilesTable(changelog=True))
    rows.key_by("name").aggregate("named", n=agg.count()).sink(
        "counted", FilesTable(upsert_key=("name",))
    )


def test_a_snapshot_is_compared_with_the_one_before(job: FolderJob, people: Derby) -> None:
    read(job, people, Snapshot("id"))
    job.epoch()
    people.run(
        "DELETE FROM people WHERE id = 1",
        "UPDATE people SET name = 'bert' WHERE id = 2",
        "INSERT INTO people VALUES (7, 'dan', 1)",
    )

    job.epoch()

    rows = [(2, "bert", 20), (3, "cid", None), (7, "dan", 1)]
    assert sorted(job.table("out").rows()) == rows
    assert sorted(job.table("changes").rows())[3:] == [
        ("+I", 7, "dan", 1),
        ("+U", 2, "bert", 20),
        ("-D", 1, "ann", 10),
        ("-U", 2, "bob", 20),
    ]
    assert sorted(job.table("counted").rows()) == [("bert", 1), ("cid", 1), ("dan", 1)]


def test_a_column_says_what_came_since_and_the_lag_what_may_come_late(
    job: FolderJob, people: Derby
) -> None:
    read(job, people, Column("changed", "id", lag=5))
    job.epoch()
    people.run(
        "DELETE FROM people WHERE id = 1",  # Is not seen.
        "UPDATE people SET name = 'bert', changed = 21 WHERE id = 2",
        "UPDATE people SET name = 'carl' WHERE id = 3",  # Without a value it is read each time.
        "INSERT INTO people VALUES (7, 'dan', 15), (8, 'eve', 14)",  # Eve is beyond the lag.
    )

    job.epoch()

    rows = [(1, "ann", 10), (2, "bert", 21), (3, "carl", None), (7, "dan", 15)]
    assert sorted(job.table("out").rows()) == rows
    assert job.table("changes").height == 3 + 5


@pytest.mark.parametrize(
    ("change", "row"),
    [
        ("INSERT INTO people VALUES (8, 'eve', 14)", "id = 8, changed = 14"),
        ("UPDATE people SET name = 'anna', changed = 12 WHERE id = 1", "id = 1, changed = 12"),
    ],
)
def test_a_row_behind_the_lag_fails_the_reading_until_the_lag_is_longer(
    job: FolderJob, spark: SparkSession, people: Derby, change: str, row: str
) -> None:
    read(job, people, Column("changed", "id", lag=5, checked_lag=12))
    job.epoch()
    before = sorted(job.table("out").rows())
    people.run("DELETE FROM people WHERE id = 3", change)

    with suppress(ConfigurationError):  # As the driver raises what a declaration has to mend.
        job.failure()

    (failed,) = job.job.state().failed
    assert (
        f"SparkRead finds a row with {row} that no reading had, and 'changed' was read up to 20, "
        "so the lag 5 is too short; declare a longer one, or read by Snapshot"
    ) in failed.message
    assert sorted(job.table("out").rows()) == before

    longer, previous = Column("changed", "id", 8, 12), spark.createDataFrame(before, SCHEMA)
    read_again = rows_since(people.rows, longer, previous, previous)
    assert row in {f"id = {one.id}, changed = {one.changed}" for one in read_again.collect()}


def test_a_reading_is_due_once_in_its_interval(job: FolderJob, people: Derby) -> None:
    spec = SparkRead(
        people.rows, SCHEMA, by=Snapshot("id"), every=timedelta(days=9999), version="1"
    )
    job.pipeline.source("people", spec).sink("out", FilesTable(upsert_key=("id",)))
    job.epoch()

    with pytest.raises(AssertionError, match="there was nothing to read"):
        job.epoch()


@pytest.mark.parametrize("by", [Snapshot("id"), Column("id", "id")])
def test_what_is_not_due_is_not_read_for_other_sources_and_stays(
    job: FolderJob, tmp_path: Path, by: Snapshot | Column
) -> None:
    readings: list[int] = []

    def place(spark: SparkSession) -> DataFrame:
        readings.append(1)
        return spark.range(2).selectExpr("id", "id AS v")

    spec = SparkRead(place, "id bigint, v bigint", by=by, every=timedelta(days=9999), version="1")
    job.pipeline.source("place", spec).sink("out", FilesTable(upsert_key=("id",)))
    lines = job.pipeline.source("lines", Files(f"{tmp_path}/lines", "text", bounded=False))
    lines.transform("copied", lambda lines: lines).sink("copies", FilesTable())
    (tmp_path / "lines").mkdir()
    for name in "ab":
        (tmp_path / "lines" / name).write_text("1\n")
        job.epoch()

    assert len(readings) == 1
    assert job.table("copies").height == 2
    assert sorted(job.table("out").rows()) == [(0, 0), (1, 1)]


def by_time(spark: SparkSession) -> DataFrame:
    return spark.sql(
        "SELECT id, at FROM VALUES (1, TIMESTAMP '2026-03-29 02:30:00'), (2, NULL) AS t(id, at)"
    )


def test_a_column_may_be_a_time(job: FolderJob) -> None:
    by = Column("at", "id", lag=timedelta(hours=1))
    spec = SparkRead(by_time, "id int, at timestamp", by=by, every=EVERY)
    job.pipeline.source("times", spec).sink("out", FilesTable(upsert_key=("id",)))
    for _ in range(2):
        job.epoch()

    assert sorted(job.table("out")["id"]) == [1, 2]


def test_what_else_a_source_may_have_is_refused() -> None:
    spec = SparkRead(by_time, "id int, at timestamp", by=Snapshot("id"), every=EVERY)

    with pytest.raises(
        ConfigurationError, match=r"name its event time behind it, with .event_time"
    ):
        Pipeline("p").source("times", spec, event_time="at")


def test_a_negative_lag_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Column\('at'\): lag is -1; use 0 or more"):
        Column("at", "id", lag=-1)


def test_a_column_and_a_lag_of_its_type_are_asked_for() -> None:
    def declare(by: Column) -> None:
        SparkRead(by_time, "id int, at date", by=by, every=EVERY)

    with pytest.raises(ConfigurationError, match=r"by the column 'on', .* it has id, at"):
        declare(Column("on", "id"))
    with pytest.raises(ConfigurationError, match=r"\('at'\) is date and has the lag 3; write"):
        declare(Column("at", "id", lag=3))
    with pytest.raises(ConfigurationError, match=r"\('id'\) is int and has the lag .*; write"):
        declare(Column("id", "id", checked_lag=timedelta(days=1)))
    with pytest.raises(ConfigurationError, match=r"the lag 5, and its checked_lag 5 looks no furt"):
        declare(Column("id", "id", lag=5, checked_lag=5))


@pytest.fixture(name="in_new_york")
def _in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
@pytest.mark.parametrize(
    ("largest", "lag"),
    [
        ("TIMESTAMP '2026-11-01 05:30:00'", timedelta()),  # 01:30 there, an hour before 01:30.
        ("TIMESTAMP_NTZ '2026-11-01 05:30:00'", timedelta(0, 0, 1)),
        ("DATE '2026-11-01'", timedelta(hours=36)),
        ("CAST(7 AS DOUBLE)", 2),
        ("CAST(7 AS DECIMAL(20, 5))", 0),
        ("'7\\\\\\''", 0),
    ],
)
def test_rows_of_the_largest_value_and_later_are_read_whatever_the_driver_has_as_its_time_zone(
    spark: SparkSession, largest: str, lag: timedelta | int
) -> None:
    previous = spark.sql(f"SELECT {largest} AS at UNION ALL SELECT NULL")
    if "DOUBLE" in largest:
        previous = previous.union(spark.sql("SELECT DOUBLE('NaN')"))
    sooner = f"INTERVAL {-(-lag // timedelta(days=1))} DAY" if isinstance(lag, timedelta) else lag
    if "TIMESTAMP" in largest:
        sooner = f"INTERVAL '{lag.microseconds / 1e6:f}' SECOND"  # type: ignore[union-attr]
    least = f"{largest} - {sooner}" if sooner else largest

    def place(spark: SparkSession) -> DataFrame:
        return spark.sql(f"SELECT 1 AS id, {least} AS at UNION ALL SELECT 2, {largest}")

    found = rows_since(place, Column("at", "id", lag), previous, previous)

    assert sorted(row.id for row in found.collect()) == [1, 2]


MERGE = """
MERGE INTO totals USING staged ON totals.k = staged."k"
WHEN MATCHED AND staged."left" = 0 THEN DELETE
WHEN MATCHED THEN UPDATE SET v = staged."v"
WHEN NOT MATCHED AND staged."left" = 1 THEN INSERT (k, v) VALUES (staged."k", staged."v")
"""


def test_what_a_function_merges_by_jdbc_is_there_at_once_and_right_after_failures_and_restores(
    job: FolderJob, people: Derby, spark: SparkSession
) -> None:
    people.run("CREATE TABLE totals (k BIGINT PRIMARY KEY, v BIGINT)")
    fails: list[str] = []

    def written(totals: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

        added = F.max(F.when(F.col("_change") == "insert", 1).otherwise(0))
        newest = totals.groupBy("k").agg(added.alias("left"), F.max_by("v", "_change").alias("v"))
        newest.write.jdbc(people.url, "staged", mode="overwrite")
        people.run(MERGE)
        if fails:
            raise RuntimeError(fails.pop())
        return totals.select("k").where("false")

    def table() -> list[tuple[Any, ...]]:
        return sorted(map(tuple, people.rows(spark, "totals", "k").collect()))

    kept = job.rows().where("v > 0").key_by("k").aggregate("totals", v=agg.max("v"))
    job.pipeline.spark(
        "written", written, changes={"totals": kept}, schema="k bigint", result=Append(),
        version="1",
    ).sink("none", FilesTable())  # fmt: skip
    job.write("1.parquet", pl.DataFrame({"k": [1, 2], "v": [1, 2]}))
    first = job.epoch()
    job.write("2.parquet", pl.DataFrame({"k": [1, 3], "v": [4, 5]}))
    fails.append("the connection was lost")

    assert "the connection was lost" in job.failure()
    assert table() == [(1, 4), (2, 2), (3, 5)]
    restore(job.job, Latest())
    job.epoch()
    assert table() == [(1, 4), (2, 2), (3, 5)]
    restore(job.job, Choice(first.checkpoint_id))
    assert table() == [(1, 4), (2, 2), (3, 5)]
    job.write("3.parquet", pl.DataFrame({"k": [2], "v": [9]}))
    job.epoch()
    assert table() == [(1, 4), (2, 9), (3, 5)]
