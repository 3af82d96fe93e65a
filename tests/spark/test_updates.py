"""Streams whose rows are taken back, on Spark: operators, sinks, and what a check refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.changelog import Append, Retract, Upsert
from sluice.declaration.operations import Session, Tumbling
from sluice.declaration.pipeline import Stream
from sluice.errors import ConfigurationError
from sluice.job.analysis import Result
from sluice.operators.operator import WEIGHT
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.spark.checking import check_pipeline
from sluice.spark.frames import net_changes
from tests.property.operators.played import at, in_order
from tests.spark.folder_job import FolderJob

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def a_source(job: FolderJob, uid: str = "rows", event_time: str | None = "at") -> Stream:
    folder = job.files / uid
    folder.mkdir()
    files = Files(str(folder), format="parquet", bounded=False)
    return job.pipeline.source(uid, files, event_time=event_time)


def a_row(key: int, value: int, **more: Any) -> dict[str, Any]:
    return {"k": key, "v": value, "user": 7, "name": "n", "b": {"x": key}, "at": at(value), **more}


@pytest.mark.parametrize("is_plain", [True, False])  # Without Spark's JVM, and through it.
def test_an_aggregate_takes_a_column_a_field_or_sql(job: FolderJob, *, is_plain: bool) -> None:
    computed: dict[str, Any] = (
        {} if is_plain else {"product": agg.sum("v * k"), "dearest": agg.last("v", by="-v")}
    )
    rows = a_source(job).key_by("k")
    upserts = FilesTable(upsert_key=("k",))
    rows.aggregate("sums", user=agg.max("user"), x=agg.sum("b.x"), **computed).sink("out", upserts)
    rows.window("late", Tumbling(timedelta(seconds=1)), x=agg.avg("b.x"), **computed).sink(
        "windows", FilesTable()
    )
    job.write("rows/1.parquet", pl.DataFrame([a_row(1, 2), a_row(1, 3), a_row(2, 4)]))

    job.epoch()
    job.write("rows/2.parquet", pl.DataFrame([a_row(1, 2_000)]))
    job.epoch()  # The windows of the first second end.

    more = ((2_005, 2), (8, 4)) if computed else ((), ())
    assert in_order(job.table("out")) == [(1, 7, 3, *more[0]), (2, 7, 2, *more[1])]
    more = ((5, 2), (8, 4)) if computed else ((), ())
    assert in_order(job.table("windows").drop("window_start", "window_end")) == [
        (1, 1.0, *more[0]),
        (2, 2.0, *more[1]),
    ]


def test_a_balance_that_falls_makes_room_for_the_next(job: FolderJob) -> None:
    balances = a_source(job).key_by("k", "name").aggregate("balances", total=agg.sum("v"))
    named = balances.key_by("name")
    upserts = FilesTable(upsert_key=("name",))
    named.top_n("richest", 1, by="total").sink("top", FilesTable(upsert_key=("name", "rank")))
    named.latest("largest", by="total").sink("latest", upserts)
    named.aggregate("stats", most=agg.max("total"), who=agg.first("k", by="total")).sink(
        "stats_out", upserts
    )
    job.write("rows/1.parquet", pl.DataFrame([a_row(1, 100), a_row(2, 50)]))
    job.epoch()

    job.write("rows/2.parquet", pl.DataFrame([a_row(1, -90)]))
    job.epoch()

    assert job.table("top").rows() == [("n", 1, 2, 50)]
    assert job.table("latest").rows() == [(2, "n", 50)]
    assert job.table("stats_out").rows() == [("n", 50, 1)]


def test_a_row_that_stood_alone_leaves_when_its_partner_comes(job: FolderJob) -> None:
    lefts, rights = (a_source(job, uid, None).key_by("k") for uid in ("left", "right"))
    both = lefts.join("both", rights, how="full")
    both.sink("changes", FilesTable(changelog=True))
    both.key_by("k").aggregate("counts", n=agg.count(), most=agg.max("w")).sink(
        "out", FilesTable(upsert_key=("k",))
    )
    job.write("left/1.parquet", pl.DataFrame({"k": [1, 2, None], "v": [10, 20, 30]}))
    job.write("right/1.parquet", pl.DataFrame({"k": [3], "w": [300]}))
    job.epoch()

    job.write("left/2.parquet", pl.DataFrame({"k": [3], "v": [30]}))
    job.write("right/2.parquet", pl.DataFrame({"k": [1, 1], "w": [100, 101]}))
    job.epoch()

    assert in_order(job.table("changes").filter(pl.col("kind") == "-D")) == [
        ("-D", 1, 10, None),
        ("-D", 3, None, 300),
    ]
    assert in_order(job.table("out")) == [
        (1, 2, 101),
        (2, 1, None),
        (3, 1, 300),
        (None, 1, None),
    ]


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_sum_that_is_no_bigint_is_declined_with_its_name(
    job: FolderJob, *, is_plain: bool
) -> None:
    rows = a_source(job) if is_plain else a_source(job).where("k + 0 = 1")
    sums = rows.key_by("k").aggregate("sums", total=agg.sum("v"), mean=agg.avg("v"))
    sums.sink("out", FilesTable(upsert_key=("k",)))
    job.write("rows/1.parquet", pl.DataFrame([a_row(1, 1)] * 20))
    job.epoch()  # From the next one on, so many rows of a key are grouped before the shuffle.

    large = [a_row(1, 1) | {"v": 2**62} for _ in range(20)]
    job.write("rows/2.parquet", pl.DataFrame(large))
    failure = job.failure()

    assert "stage 'sums' cannot compute 'total': sum('v') of some group does not fit" in failure
    assert job.table("out").rows() == [(1, 20, 1.0)]


START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = {
    "user": pl.Int64(),
    "at": pl.Datetime("us", "UTC"),
    "seat": pl.String(),
    "price": pl.Int64(),
}


class World(FolderJob):
    """Files of events and of names appear one after the other."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        super().__init__(spark, folder)
        self._written = 0

    def events(self, event_time: str | None = None) -> Stream:
        stream = a_source(self, "events", event_time)
        self.add()
        return stream

    def names(self, *lines: str) -> Stream:
        (self.files / "names").mkdir()
        self.write_names(*lines)
        return self.pipeline.source("names", Files(str(self.files / "names")), table=True)

    def write_names(self, *lines: str) -> None:
        self._written += 1
        folder = self.files / "names"
        for old in folder.iterdir():
            old.unlink()
        (folder / f"{self._written}.csv").write_text("".join(f"{line}\n" for line in lines))

    def add(self, *rows: tuple[int, float, str, int]) -> None:
        """Rows of user, second, seat and price."""
        self._written += 1
        timed = [(user, START + timedelta(seconds=at), *rest) for user, at, *rest in rows]
        frame = pl.DataFrame(timed, schema=COLUMNS, orient="row")
        self.write(f"events/{self._written:04d}.parquet", frame)

    def shown(self, sink: str) -> list[tuple[Any, ...]]:
        return in_order(self.table(sink))


@pytest.fixture(name="world")
def _world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path)


def same(rows: DataFrame) -> DataFrame:
    return rows


def without_user(rows: DataFrame) -> DataFrame:
    return rows.drop("user")


def test_what_a_stage_replaces_is_taken_back_from_every_sink(world: World) -> None:
    seats = world.events().key_by("user").latest("seats", by="at").select("user", "seat")
    seats.sink("own", FilesTable(changelog=True))
    taken = seats.transform("taken", without_user)
    taken.sink("bag", FilesTable(changelog=True))
    taken.key_by("seat").aggregate("per_seat", n=agg.count()).sink(
        "counts", FilesTable(upsert_key=("seat",))
    )

    world.add((1, 0, "A", 0), (2, 0, "B", 0))
    world.epoch()
    world.add((1, 1, "C", 0), (2, 1, "B", 0))
    world.epoch()

    assert world.shown("own") == [("+I", 1, "A"), ("+I", 2, "B"), ("+U", 1, "C"), ("-U", 1, "A")]
    assert world.shown("bag") == [("+I", "A"), ("+I", "B"), ("+I", "C"), ("-D", "A")]
    assert world.shown("counts") == [("B", 1), ("C", 1)]


def test_streams_that_are_updated_are_united_with_others_and_with_sources(world: World) -> None:
    events = world.events()
    seats = events.key_by("user").latest("seats", by="at").select("seat")
    both = seats.union("both", events.select("seat"), parallelism=2)
    both.sink("changes", FilesTable(changelog=True))

    world.add((1, 0, "A", 0), (2, 0, "B", 0))
    world.epoch()
    world.add((1, 1, "C", 0), (2, 1, "B", 0))
    world.epoch()

    added = ["A", "A", "B", "B", "B", "C", "C"]  # Of the second seat B nothing is to be told.
    assert world.shown("changes") == [*(("+I", seat) for seat in added), ("-D", "A")]


def test_sessions_that_late_rows_merge_leave_the_table_that_they_were_in(world: World) -> None:
    sessions = (
        world.events(event_time="at")
        .key_by("user")
        .window(
            "sessions",
            Session(timedelta(seconds=10)),
            allowed_lateness=timedelta(hours=1),
            n=agg.count(),
        )
    )
    sessions.sink("table", FilesTable(upsert_key=("user", "window_start")))

    for seconds in ([100, 125, 200, 300], [95, 110, 118]):
        world.add(*((1, second, "A", 0) for second in seconds))
        world.epoch()

    def at(second: int) -> datetime:
        return START + timedelta(seconds=second)

    assert world.shown("table") == [(1, at(95), at(135), 5), (1, at(200), at(210), 1)]


def test_a_lookup_takes_back_what_it_sent_and_not_what_the_table_says_by_now(world: World) -> None:
    on, add = {"seat": "split(line, ',')[0]"}, {"city": "split(line, ',')[1]"}
    current = world.events().key_by("user").latest("current", by="at").select("user", "seat")
    names = world.names("A,Rome", "B,Bonn", "B,Bern")
    found = current.lookup("found", names, on=on, add=add)
    found.sink("changes", FilesTable(changelog=True))
    found.key_by("city").aggregate("per_city", n=agg.count()).sink(
        "cities", FilesTable(upsert_key=("city",))
    )
    unknown = current.lookup("unknown", names, on=on, keep="unmatched")
    unknown.sink("strangers", FilesTable(upsert_key=("user",)))

    world.add((1, 0, "A", 0), (2, 0, "B", 0), (3, 0, "X", 0))
    world.epoch()
    assert world.shown("cities") == [("Bern", 1), ("Bonn", 1), ("Rome", 1)]
    assert world.shown("strangers") == [("X", 3)]

    world.write_names("A,Oslo", "C,Oslo")
    world.add((1, 1, "C", 0), (2, 1, "X", 0), (3, 1, "A", 0))
    world.epoch()

    assert world.shown("cities") == [("Oslo", 2)]
    assert world.shown("strangers") == [("X", 2)]
    changes = world.shown("changes")
    assert [row[0] for row in changes].count("-D") == 3
    assert {row[1:] for row in changes if row[0] == "-D"} == {
        ("A", 1, "Rome"),
        ("B", 2, "Bern"),
        ("B", 2, "Bonn"),
    }


def checked(world: World, spark: SparkSession) -> dict[str, Result]:
    return check_pipeline(world.pipeline, spark, {}, None)


def test_the_analysis_tells_of_what_kind_a_stage_is(world: World, spark: SparkSession) -> None:
    events = world.events()
    seats = events.key_by("user").latest("seats", by="at")
    kept = seats.transform("kept", same)
    kept.lookup("known", world.names("A"), on={"seat": "line"}, add={"name": "line"})
    dropped = kept.transform("dropped", without_user)
    dropped.transform("passed", same).key_by("seat").aggregate("sums", paid=agg.sum("price"))
    events.transform("read", same)

    found = checked(world, spark)

    assert {uid: result.kind for uid, result in found.items()} == {
        "seats": Upsert(("user",)),
        "kept": Upsert(("user",)),
        "known": Retract(),
        "dropped": Retract(),
        "passed": Retract(),
        "sums": Upsert(("seat",)),
        "read": Append(),
    }
    assert list(found["known"].columns) == ["seat", "user", "at", "price", "name"]


def a_table_of_a_dropped_key(world: World) -> None:
    seats = world.events().key_by("user").latest("seats", by="at")
    dropped = seats.transform("dropped", without_user)
    dropped.transform("passed", same).sink("table", FilesTable(upsert_key=("user", "seat")))


def a_lookup_without_a_key(world: World) -> None:
    seats = world.events().key_by("user").latest("seats", by="at")
    seats.transform("dropped", without_user).lookup("known", world.names("A"), on={"seat": "line"})


def a_changelog_with_a_column_kind(world: World) -> None:
    seats = world.events().key_by("user").latest("seats", by="at").select("user", "seat AS kind")
    seats.sink("changes", FilesTable(changelog=True))


@pytest.mark.parametrize(
    ("declare", "refusal"),
    [
        (
            a_table_of_a_dropped_key,
            (
                "sink 'table' upserts by user, seat, but no columns identify a row of 'passed'; "
                "choose one with key_by('user', 'seat').latest(...), or write every change with "
                "changelog=True"
            ),
        ),
        (
            a_lookup_without_a_key,
            (
                "stage 'known' reads 'dropped', which takes rows back, and lookup() cannot take a "
                "row back; look up what that stage reads, before it, or give its rows a key with "
                "key_by(...).latest(...)"
            ),
        ),
        (
            a_changelog_with_a_column_kind,
            (
                "sink 'changes' writes a changelog, whose column 'kind' says what a row does, but "
                "'seats' has a column of that name; rename it: select('kind AS ...')"
            ),
        ),
    ],
)
def test_what_a_function_makes_impossible_is_refused_before_a_row_is_read(
    world: World, spark: SparkSession, declare: Callable[[World], None], refusal: str
) -> None:
    declare(world)

    with pytest.raises(ConfigurationError) as caught:
        checked(world, spark)

    assert caught.value.args == (refusal,)


def test_changes_of_several_epochs_are_settled_as_if_they_were_of_one(spark: SparkSession) -> None:
    def changes(rows: Iterable[tuple[str | None, int, int]]) -> DataFrame:
        return spark.createDataFrame(list(rows), f"user string, `a b` int, {WEIGHT} tinyint")

    waited = [("a", 1, -1), ("a", 2, 1), ("b", 1, 1), ("b", 1, 1), (None, 1, 1)]
    came = [("a", 2, -1), ("a", 3, 1), ("b", 1, 1), (None, 1, -1), ("c", 4, -1)]

    settled_ = net_changes(changes([*waited, *came]), 3)

    assert [(one.name, one.dataType) for one in settled_.schema] == [
        (one.name, one.dataType) for one in changes(waited).schema
    ]
    assert settled_.rdd.getNumPartitions() == 3
    assert sorted(tuple(row) for row in settled_.collect()) == [
        ("a", 1, -1),
        ("a", 3, 1),
        *[("b", 1, 1)] * 3,
        ("c", 4, -1),
    ]
