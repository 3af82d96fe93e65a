"""A lookup as of a row's event time, in a table whose rows are versions, beside a plain loop."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl
import pytest

from sluice.declaration.operations import Keep
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.declaration.places import MALFORMED_COLUMN
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.frames import transformed
from sluice.testing import Restore, run_local
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, RATES = "n bigint, k string, at timestamp", "code string, rate bigint, since timestamp"
START = datetime(2026, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    n: int
    k: str | None
    at: datetime | None


class Rate(NamedTuple):
    code: str | None
    rate: int
    since: datetime


def instant(random: Random) -> datetime:
    """One of few, so that rows are as old as a version, to the microsecond."""
    return START + timedelta(hours=random.randrange(12), microseconds=random.randrange(3))


def some_rows(random: Random, count: int, first: int = 0) -> list[Row]:
    return [
        Row(
            first + n,
            random.choice(["a", "b", "c", "none", None]),
            instant(random) if random.random() < 0.9 else None,
        )
        for n in range(count)
    ]


def some_rates(random: Random) -> list[Rate]:
    """Versions in any order; also of no key, where two of one instant are no mistake."""
    keys = [(k, instant(random)) for k in "abc" for _ in range(6)]
    rates = [Rate(k, random.randrange(99), at) for k, at in dict.fromkeys(keys)]
    nobodys = [Rate(None, rate, START) for rate in (1, 2)]
    return random.sample([*rates, *nobodys], k=len(rates) + 2)


def found_at(row: Row, rates: Iterable[Rate]) -> int | None:
    """The rate of the newest version of the row's key that is not newer than the row."""
    newest: Rate | None = None
    for rate in rates:
        if row.k is None or row.at is None or rate.code != row.k or rate.since > row.at:
            continue
        if newest is None or newest.since < rate.since:
            newest = rate
    return None if newest is None else newest.rate


class Declared:
    """A stream of rows and a table of rates."""

    def __init__(self) -> None:
        self.pipeline = Pipeline("priced")
        rows = Files("/rows", format="json", schema=ROWS, bounded=False)
        rates = Files("/rates", format="json", schema=RATES)
        self.rows = self.pipeline.source("rows", rows, event_time="at")
        self.rates = self.pipeline.source("rates", rates, table=True)

    def looked_up(self, uid: str, keep: Keep, *add: str, rows: Stream | None = None) -> Stream:
        rows = rows or self.rows
        return rows.lookup(
            uid, self.rates, on={"k": "code"}, keep=keep, add=add, valid_from="since"
        )


WHOLE: dict[str, tuple[Keep, tuple[str, ...]]] = {
    "all": ("all", ("rate",)),
    "matched": ("matched", ("rate",)),
    "only matched": ("matched", ()),
    "unmatched": ("unmatched", ()),
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("how", WHOLE)
def test_a_row_finds_the_newest_version_that_is_not_newer_than_it(
    spark: SparkSession, how: str, seed: int
) -> None:
    random, (keep, add) = Random(seed), WHOLE[how]
    rows, rates = some_rows(random, 200), some_rates(random)
    stage = Declared().looked_up("found", keep, *add)
    node = stage.pipeline.stages["found"]
    given, columns = spark.createDataFrame(rows, ROWS), ["k", "n", "at", *add]
    bad = Row(-1, "a", START + timedelta(days=1))
    if seed == 1:  # Every second time some row is malformed: it is kept, and finds nothing.
        given = given.union(spark.createDataFrame([bad], ROWS)).selectExpr(
            "*", f"if(n < 0, 'bad', null) AS {MALFORMED_COLUMN}"
        )
        columns.insert(3, MALFORMED_COLUMN)

    result = transformed(node, [given], spark.createDataFrame(rates, RATES), {})

    assert result.columns == columns
    expected = {row.n: found_at(row, rates) for row in rows}
    wanted = {
        row: rate
        for row, rate in expected.items()
        if keep == "all" or (rate is None) == (keep == "unmatched")
    } | ({-1: None} if seed == 1 else {})
    values = result.select("n", *add).collect()
    assert sorted(row.n for row in values) == sorted(wanted)
    if add:
        assert {row.n: row.rate for row in values} == wanted


def test_each_epoch_has_the_table_of_its_barrier_also_after_a_restore() -> None:
    """Rows that were sent stay as they are; those that are updated are looked up anew."""
    declared, random = Declared(), Random(5)
    declared.looked_up("all_rows", "all", "rate").sink("out", FilesTable())
    newest = declared.rows.key_by("k").latest("newest", by="n").event_time("at")
    current = declared.looked_up("current", "matched", "rate", rows=newest)
    current.sink("by_key", FilesTable(upsert_key=("k",)))  # A row has one version, or none.
    epochs = [some_rows(random, 12), [row for row in some_rows(random, 12, 12) if row.k != "b"]]
    tables = [some_rates(random), some_rates(random)]

    found = run_local(
        declared.pipeline,
        {
            "rows": [[*map(written, rows), "{"] for rows in epochs],
            "rates": [[rate._asdict() for rate in rates] for rates in tables],
        },
        script=[Restore(to_epoch=1, after_epoch=2, parallelism=3)],
        bounded=False,
    )

    expected = {
        row.n: found_at(row, rates)
        for rows, rates in zip(epochs, tables, strict=True)
        for row in rows
    }
    assert dict(found.table("out").select("n", "rate").iter_rows()) == expected
    last = {row.k: row.n for rows in epochs for row in rows}
    assert dict(found.table("by_key").select("n", "rate").iter_rows()) == {
        n: expected[n] for n in last.values() if expected[n] is not None
    }
    assert {n for n in last.values() if expected[n] is not None}, "no key has a version"


def written(row: Row) -> str:
    return json.dumps(row._asdict() | {"at": None if row.at is None else row.at.isoformat()})


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (
            [("a", 1, START), ("b", 2, START), ("a", 3, START)],
            (
                "lookup found finds two versions of code = a in the table rates that are valid "
                "from 2026-01-01 00:00:00; leave one of them out of the table, or name what tells "
                "them apart, too, in on="
            ),
        ),
        (
            [("a", 1, None)],
            (
                "lookup found finds a version of code = a in the table rates whose since is null; "
                "leave it out with where() of the table, or say since when it is valid: "
                "valid_from='coalesce(since, ...)'"
            ),
        ),
    ],
)
def test_versions_that_cannot_be_told_apart_are_named(
    job: FolderJob, rates: list[Any], message: str
) -> None:
    rates_file = job.files.parent / "rates.parquet"
    schema = [("code", pl.String()), ("rate", pl.Int64()), ("since", pl.Datetime("us", "UTC"))]
    pl.DataFrame(rates, pl.Schema(schema), orient="row").write_parquet(rates_file)
    table = job.pipeline.source("rates", Files(str(rates_file), format="parquet"), table=True)
    rows = job.rows(event_time="at")
    found = rows.lookup("found", table, on={"k": "code"}, valid_from="since")
    found.sink("out", FilesTable())
    job.write("1.parquet", pl.DataFrame([Row(1, "c", START)]))

    assert message in job.failure()
    assert not job.job.state().completed
