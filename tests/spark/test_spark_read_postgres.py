"""A real PostgreSQL that Spark reads by JDBC: every type, and times in a JVM of any time zone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from harness import postgres_jdbc
from harness.postgres_database import Database, running_postgres
from sluice.connectors.spark_read.declared import rows_since
from sluice.sinks import FilesTable
from sluice.sources import Column, SparkRead
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.skipif(not postgres_jdbc.is_here(), reason=postgres_jdbc.MISSING)

Place = Callable[["SparkSession"], "DataFrame"]

# Times of New York's autumn, of an hour that comes twice there, and of its spring, of one left out.
HOURS = {"autumn": "2026-11-01 04:30:00Z", "spring": "2026-03-08 01:30:00Z"}
LAST = 6

WHO = "7d444840-9dc0-11d1-b245-5ffdce74fad2"


def moment(hour: int, minute: int, second: int = 0, microsecond: int = 0) -> datetime:
    return datetime(2026, 3, 29, hour, minute, second, microsecond, tzinfo=UTC)


@pytest.fixture(scope="module", name="database")
def _database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with running_postgres(tmp_path_factory.mktemp("postgres")) as database:
        for table, first in HOURS.items():
            database.run(
                f"CREATE TABLE {table} AS SELECT i AS id, at, at AT TIME ZONE 'UTC' AS bare FROM "  # noqa: S608
                f"(SELECT i, timestamptz '{first}' + i * interval '30 minutes' AS at"
                f" FROM generate_series(0, {LAST}) AS i) AS hours"
            )
        yield database


@pytest.fixture(name="reading")
def _reading(database: Database) -> Callable[[str], Place]:
    """How a user's function reads a table, in two partitions, in whatever session it is called."""
    options = {
        "url": f"jdbc:postgresql://127.0.0.1:{database.port}/airflow",
        "user": "airflow",
        "password": database.password,
        "driver": postgres_jdbc.CLASS,
        "partitionColumn": "id",
        "lowerBound": "0",
        "upperBound": "9",
        "numPartitions": "2",
    }

    def of(table: str) -> Place:
        def place(spark: SparkSession) -> DataFrame:
            spark.sql(f"ADD JAR '{postgres_jdbc.JAR}'")
            return spark.read.format("jdbc").options(**options).option("dbtable", table).load()

        return place

    return of


@pytest.fixture(name="jvm_in")
def _jvm_in(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[union-attr] # noqa: SLF001
    before = zones.getDefault()
    yield lambda name: zones.setDefault(zones.getTimeZone(name))
    zones.setDefault(before)


def missed(table: str, column: str, spark: SparkSession, place: Place) -> dict[int, list[int]]:
    """By the newest row of a reading, the later rows that the next reading does not find."""
    rows = place(spark).select("id", column).localCheckpoint()
    found = {}
    for newest in range(LAST):
        previous = rows.where(f"id <= {newest}")
        again = rows_since(place, Column(column, "id"), previous, previous).collect()
        found[newest] = sorted({*range(newest, LAST + 1)} - {row.id for row in again})
    return {newest: ids for newest, ids in found.items() if ids}


@pytest.mark.parametrize(("table", "column"), [("autumn", "at"), ("spring", "bare")])
def test_no_row_is_missed_in_an_hour_that_a_time_zone_has_twice_or_not_at_all(
    spark: SparkSession,
    reading: Callable[[str], Place],
    jvm_in: Callable[[str], None],
    table: str,
    column: str,
) -> None:
    jvm_in("America/New_York")

    assert missed(table, column, spark, reading(table)) == {}


# Of each column PostgreSQL's type, Spark's, and the value as PostgreSQL is given it and as read.
TYPES: dict[str, tuple[str, str, str, object]] = {
    "n": (
        "numeric(20, 4)",
        "decimal(20, 4)",
        "12345678901234.5678",
        Decimal("12345678901234.5678"),
    ),
    "at": ("timestamptz", "timestamp", "2026-03-29 02:30:00.123456+00", moment(2, 30, 0, 123456)),
    "bare": ("timestamp", "timestamp", "2026-03-29 02:30:00.5", moment(2, 30, 0, 500000)),
    "day": ("date", "date", "1969-12-31", date(1969, 12, 31)),
    "price": ("float8", "double", "-0.5", -0.5),
    "yes": ("boolean", "boolean", "true", True),
    "raw": ("bytea", "binary", "\\x00ff", b"\x00\xff"),
    "note": ("jsonb", "string", '{"a": [1, null]}', '{"a": [1, null]}'),
    "who": ("uuid", "string", WHO, WHO),
    "tags": ("text[]", "array<string>", "{a,NULL}", ["a", None]),
}


def test_rows_of_every_type_are_read_once_and_again_when_they_change(
    job: FolderJob, database: Database, reading: Callable[[str], Place]
) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in TYPES.items())
    values = ", ".join(f"'{text}'" for _, _, text, _ in TYPES.values())
    database.run(f"CREATE TABLE typed (id bigint PRIMARY KEY, {columns})")
    database.run(f"INSERT INTO typed VALUES (1, {values}), (2{', NULL' * len(TYPES)})")  # noqa: S608
    schema = ", ".join(f"{name} {kind}" for name, (_, kind, *_) in TYPES.items())
    by = Column("at", "id", lag=timedelta(minutes=1))
    every = timedelta(milliseconds=1)
    spec = SparkRead(reading("typed"), f"id bigint, {schema}", by=by, every=every, version="1")
    rows = job.pipeline.source("typed", spec)
    rows.sink("out", FilesTable(upsert_key=("id",)))
    rows.sink("changes", FilesTable(changelog=True))
    job.epoch()
    database.run("UPDATE typed SET at = '2026-03-29 03:30Z', yes = false WHERE id = 1")
    database.run("INSERT INTO typed (id, at) VALUES (3, '2026-03-29 03:29:30Z'), (4, '2026-03-29')")
    job.epoch()
    job.epoch()

    nothing = dict.fromkeys(TYPES)
    first = {"id": 1} | {name: value for name, (*_, value) in TYPES.items()}
    newest = first | {"at": moment(3, 30), "yes": False}
    within_the_lag = {"id": 3} | nothing | {"at": moment(3, 29, 30)}
    assert job.table("out").sort("id").to_dicts() == [newest, {"id": 2} | nothing, within_the_lag]
    assert job.table("changes").sort("id", "kind").to_dicts() == [
        {"kind": "+I"} | first,
        {"kind": "+U"} | newest,
        {"kind": "-U"} | first,
        {"kind": "+I", "id": 2} | nothing,
        {"kind": "+I"} | within_the_lag,
    ]
