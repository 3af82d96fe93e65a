"""The analysis of a declaration without Spark, and the cases that are left to it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice import sources
from sluice.connectors.kafka.declared import Json
from sluice.declaration import aggregates as agg
from sluice.declaration.changelog import Append, Upsert
from sluice.declaration.nodes import SinkNode
from sluice.declaration.operations import Tumbling
from sluice.declaration.params import Env, Param, env, param
from sluice.declaration.pipeline import KeyedStream, Pipeline, Stream
from sluice.declaration.places import SinkSpec
from sluice.errors import ConfigurationError
from sluice.job.analysis import Result, analyse, check_sink_schema
from sluice.job.places import check_tables
from sluice.sinks import DeltaTable, FilesTable, IcebergTable, KafkaTopic, PostgresTable
from sluice.sources import Files, Kafka
from sluice.store.open import StoreLocation

ROOT = StoreLocation("s3://jobs")
COLUMNS = "user string, city string, n bigint, at timestamp"
UTC = pl.Datetime("us", "UTC")


class World:
    """A pipeline of a stream of clicks and a table of cities."""

    def __init__(self, folder: Path) -> None:
        (folder / "clicks.csv").write_text("ann,Rome,1,2026-01-01T00:00:00Z\n")
        pq.write_table(pa.table({"city": ["Rome"], "country": ["IT"]}), folder / "cities.parquet")
        clicks = Files(str(folder / "clicks.csv"), format="csv", schema=COLUMNS)
        cities = Files(str(folder / "cities.parquet"), format="parquet")
        self.pipeline = Pipeline("world")
        self.clicks = self.pipeline.source("clicks", clicks, event_time="at")
        self.cities = self.pipeline.source("cities", cities, table=True)

    def results(self) -> dict[str, Result | None]:
        return analyse(self.pipeline, {}, None)


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_plain_stages_are_known_with_their_types_and_kinds(world: World) -> None:
    located = world.clicks.where("n > 0").lookup(
        "located", world.cities, on="city", add=("country",)
    )
    totals = located.key_by("country").aggregate("totals", total=agg.sum("n", where="n < 9"))
    totals.select("country", "total").sink("out", FilesTable(upsert_key=("country",)))

    results = world.results()

    assert {uid: None if one is None else one.kind for uid, one in results.items()} == {
        "located": Append(),
        "totals": Upsert(("country",)),
    }
    located_result, totals_result = results["located"], results["totals"]
    assert located_result is not None
    assert totals_result is not None
    assert dict(located_result.columns) == {
        "city": pl.String(),
        "user": pl.String(),
        "n": pl.Int64(),
        "at": UTC,
        "country": pl.String(),
    }
    assert dict(totals_result.columns) == {"country": pl.String(), "total": pl.Int64()}
    assert list(totals_result.tables) == ["groups"]


def test_what_only_spark_knows_is_left_to_it_and_so_is_what_reads_it(world: World) -> None:
    world.clicks.transform("shouted", lambda rows: rows).key_by("anything").aggregate(
        "totals", total=agg.sum("whatever")
    ).sink("out", FilesTable(upsert_key=("anything",)))
    world.clicks.key_by(day="date_format(at, 'd')").aggregate("days", n=agg.count()).sink(
        "days_out", FilesTable(upsert_key=("day",))
    )

    assert world.results() == {"shouted": None, "totals": None, "days": None}


def test_the_types_of_what_is_computed_are_known(world: World) -> None:
    late = world.clicks.select("user", "date(at) AS day", "CASE WHEN n > 1 THEN n / 2 END AS half")
    late.key_by("day", who="upper(user)").aggregate(
        "days", most=agg.max("half * 2"), n=agg.count(where="half IS NOT NULL OR user LIKE 'a%'")
    ).sink("days_out", FilesTable(upsert_key=("day", "who")))

    (result,) = world.results().values()

    assert result is not None
    assert dict(result.columns) == {
        "day": pl.Date(),
        "who": pl.String(),
        "most": pl.Float64(),
        "n": pl.Int64(),
    }


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (
            lambda w: w.clicks.key_by("usr").aggregate("t", n=agg.count()),
            "no column 'usr' for its key",
        ),
        (
            lambda w: w.clicks.key_by("user").aggregate("t", n=agg.sum("nn")),
            "no column 'nn' for sum()",
        ),
        (lambda w: w.clicks.key_by("user").aggregate("t", n=agg.sum("m * n")), "no column 'm'"),
        (
            lambda w: w.clicks.key_by("user").aggregate("t", n=agg.count(where="nn > 1")),
            "no column 'nn' in where=, 'nn > 1'; did you mean 'n'?",
        ),
        (
            lambda w: w.clicks.where("cityy = 'x'").key_by("user").aggregate("t", n=agg.count()),
            "no column 'cityy' in what it reads of 'clicks'",
        ),
        (
            lambda w: w.clicks.key_by(day="date(att)").aggregate("t", n=agg.count()),
            "no column 'att' in its key 'day', 'date(att)'; did you mean 'at'?",
        ),
        (
            lambda w: w.clicks.lookup("t", w.cities, on="city", add=("contry",)),
            "no column 'contry' in the table 'cities', 'contry'; did you mean 'country'?",
        ),
        (lambda w: w.clicks.lookup("t", w.cities, on="town"), "no column 'town' to look up"),
        (
            lambda w: w.clicks.key_by("user").aggregate("t", n=agg.count()).where("m > 1"),
            "cannot keep m > 1 of its result",
        ),
        (
            lambda w: w.clicks.key_by("user").window(
                "t", Tumbling(timedelta(hours=1)), n=agg.sum("c")
            ),
            "no column 'c' for sum()",
        ),
        (
            lambda w: w.clicks.union("t", w.clicks.select("user", "at")),
            "no column 'city' in what it unites of 'clicks'",
        ),
    ],
)
def test_a_misspelt_column_is_named(
    world: World, declare: Callable[[World], Stream], expected: str
) -> None:
    declare(world).sink("out", FilesTable(changelog=True))

    with pytest.raises(ConfigurationError, match="stage 't'") as error:
        world.results()

    assert expected in str(error.value)


UNREADABLE = "CAST(n AS string) AS n"  # Of a bigint.


@pytest.mark.parametrize(
    ("other", "expected"),
    {
        UNREADABLE: "is bigint in 'clicks' and string in 'clicks'; cast one of them, for example "
        "'CAST(n AS string) AS n', in a select() before the union",
        "n > 1 AS n": "is bigint in 'clicks' and boolean in 'clicks'; cast one of them",
        "n / 2 AS n": "is bigint in 'clicks' and double in 'clicks'; cast one of them, for example "
        "'CAST(n AS double) AS n'",
        "at AS n": "is bigint in 'clicks' and timestamp in 'clicks'; cast one of them",
    }.items(),
)
@pytest.mark.parametrize("place", ["before", "between", "behind"])
def test_columns_that_no_type_holds_are_not_united(
    world: World, other: str, expected: str, place: str
) -> None:
    given, odd = world.clicks.select("user", "n"), world.clicks.select("user", other)
    unknown = given.transform("unknown", lambda rows: rows)
    match place:
        case "before":
            both = given.union("t", odd)
        case "between":
            both = given.union("t", unknown, odd)
        case _:
            first = given.where("n > 0").key_by("user").deduplicate("first", by="n")
            second = odd.key_by("user").deduplicate("second", by="user")
            both = first.select("user", "n").union("t", second)
            expected = expected.replace("in 'clicks' and", "in 'first' and")
            expected = expected.replace("in 'clicks'", "in 'second'")
    both.sink("out", FilesTable())

    with pytest.raises(ConfigurationError) as error:
        world.results()

    assert f"stage 't' unites column 'n', which {expected}" in str(error.value)


def test_columns_that_one_type_holds_are_united_as_that(world: World) -> None:
    small = world.clicks.select("CAST(n AS int) AS N", "date(at) AS at", "NULL AS x", "user AS U")
    world.clicks.select("n", "at", "user AS x", "user AS u").union("t", small).sink(
        "out", FilesTable()
    )

    (result,) = world.results().values()

    assert result is not None
    assert dict(result.columns) == {"n": pl.Int64(), "at": UTC, "x": pl.String(), "u": pl.String()}


@pytest.mark.parametrize("rows", ["known", "of which one column is not"])
def test_a_column_is_not_looked_up_as_what_no_type_holds(world: World, rows: str) -> None:
    more = () if rows == "known" else ("date_format(at, 'd') AS d",)
    clicks = world.clicks.select("n AS city", *more)
    clicks.lookup("t", world.cities, on="city", add=("country",)).sink("out", FilesTable())

    with pytest.raises(
        ConfigurationError,
        match="lookup 't' compares 'city', which is bigint, with what is string in the table "
        r"'cities'; cast one of them, for example 'CAST\(city AS string\) AS city', in on= for",
    ):
        world.results()


def test_versions_are_valid_from_what_has_the_type_of_the_event_time(world: World) -> None:
    found = world.clicks.lookup("t", world.cities, on="city", valid_from="country")
    found.sink("out", FilesTable())

    with pytest.raises(
        ConfigurationError,
        match="lookup 't' compares 'at', which is timestamp, with what is string in the table "
        r"'cities'; .* in valid_from= for the table or in a select",
    ):
        world.results()


@pytest.mark.parametrize(
    ("sink", "needs"),
    [
        (FilesTable(upsert_key=("user", "day")), "upserts by 'day'"),
        (FilesTable(upsert_key=("user",), partition_by=("day",)), "is partitioned by 'day'"),
    ],
)
def test_a_sink_without_a_column_that_it_needs_is_refused(
    world: World, sink: FilesTable, needs: str
) -> None:
    world.clicks.key_by("user").aggregate("totals", n=agg.count()).sink("out", sink)

    with pytest.raises(ConfigurationError) as error:
        world.results()

    (said,) = error.value.args
    assert said == f"sink 'out' {needs}, which 'totals' does not yield; it has user, n"


def test_columns_of_a_sink_are_found_in_any_case(world: World) -> None:
    sink = FilesTable(upsert_key=("USER",), partition_by=("USER",))
    world.clicks.key_by("user").aggregate("totals", n=agg.count()).sink("out", sink)

    assert world.results().keys() == {"totals"}


@pytest.mark.parametrize(
    ("of", "cast"), [("int", "CAST(n AS bigint) AS n"), ("string", "CAST(key AS string) AS key")]
)
def test_keys_of_a_join_that_have_two_types_are_refused_with_the_cast(
    world: World, of: str, cast: str
) -> None:
    keyed = world.clicks.select(f"CAST(n AS {of}) AS n").key_by("n")
    keyed.join("both", world.clicks.select("n AS key").key_by("key")).sink("out", FilesTable())

    with pytest.raises(
        ConfigurationError, match=re.escape(f"; cast one of them, for example '{cast}'")
    ):
        world.results()


@pytest.mark.parametrize(
    "sink",
    [
        FilesTable(format="json", changelog=True),
        KafkaTopic("localhost:1", "facts", changelog=True),
        PostgresTable("host=nowhere", "public.facts", changelog=True),
    ],
)
def test_a_column_that_the_json_of_a_sink_cannot_hold_is_refused(
    sink: FilesTable | KafkaTopic | PostgresTable,
) -> None:
    node = SinkNode(uid="out", spec=sink, input="facts")
    columns = pl.Schema({"id": pl.Int64(), "m": pl.Map(pl.Float64(), pl.Int64())})

    with pytest.raises(ConfigurationError, match="sink 'out' cannot write column 'm' of type map"):
        check_sink_schema(node, "facts", columns.to_frame())


@pytest.mark.parametrize("dtype", [pl.Float64(), pl.Datetime("us", "UTC"), pl.Binary()])
@pytest.mark.parametrize(
    "sink",
    [
        FilesTable(partition_by=("C",)),
        DeltaTable("file:///facts", create=True, partition_by=("c",)),
    ],
)
def test_folders_of_what_is_no_name_are_refused(
    sink: FilesTable | DeltaTable, dtype: pl.DataType
) -> None:
    node = SinkNode(uid="out", spec=sink, input="facts")
    columns = pl.Schema({"id": pl.Int64(), "c": dtype})

    with pytest.raises(ConfigurationError, match="sink 'out' cannot partition by 'c' of type"):
        check_sink_schema(node, "facts", columns.to_frame())


MAPS = "k string, n int, m map<string, int>, s struct<m: array<map<string, int>>>"


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda o: o.key_by("m"), "cannot use column 'm' of type map<string,int> for its key"),
        (lambda o: o.key_by("s"), "cannot use column 's' of type struct<m:array<map<string,int>>>"),
        (lambda o: o.key_by("upper(k)"), "its key; name what is computed, key_by(name='upper(k)')"),
        (lambda o: o.where("n").key_by("k"), "has 'n' as a condition in what it reads of 'rows', "),
        (lambda o: o.where("n + 1").key_by("k"), "which is int, not true or false; compare it"),
        (
            lambda o: o.select("*", "upper(k) AS k").key_by("n"),
            "in what it reads of 'rows', has two columns 'k', which no stage can tell apart",
        ),
        (
            lambda o: o.select("*", "upper(k) AS K").key_by("n"),
            "in what it reads of 'rows', has the columns 'k' and 'K', which differ only in case",
        ),
        (lambda o: o.select("*", "*").key_by("n"), "has two columns 'k', which no stage can tell"),
    ],
)
def test_a_key_or_a_condition_of_a_wrong_type_needs_no_spark(
    declare: Callable[[Stream], KeyedStream], said: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.json").touch()
    rows = Pipeline("p").source("rows", Files(f"{tmp_path}", format="json", schema=MAPS))
    keyed = declare(rows).aggregate("t", n=agg.count())
    keyed.sink("out", FilesTable(changelog=True))

    with pytest.raises(ConfigurationError, match="stage 't'") as error:
        analyse(keyed.pipeline, {}, None)

    assert said in str(error.value)


def test_a_pipeline_without_a_sink_is_refused(world: World) -> None:
    world.clicks.key_by("user").aggregate("totals", n=agg.count())

    with pytest.raises(ConfigurationError, match="pipeline 'world' has no sink"):
        world.results()


def at_kafka(topic: str, servers: str = "a:9092,b:9092") -> KafkaTopic:
    return KafkaTopic(servers, topic, key="user", upsert=True)


def in_postgres(dsn: str | Env, table: str = "public.t") -> PostgresTable:
    return PostgresTable(dsn, table, upsert_key=("user",))


def in_iceberg(uri: str = "http://rest", branch: str = "main") -> IcebergTable:
    return IcebergTable("db.t", {"type": "rest", "uri": uri}, ("user",), branch=branch)


def of_files(location: str | Param) -> FilesTable:
    return FilesTable(location, upsert_key=("user",))


@pytest.mark.parametrize(
    ("one", "other", "table"),
    [
        (of_files("s3://lake/t"), of_files("s3://lake/t/"), "s3://lake/t"),
        (of_files("s3://lake/t"), DeltaTable("s3://lake/t", ("user",)), "s3://lake/t"),
        (of_files(""), of_files("s3://jobs/world/tables/one/"), "s3://jobs/world/tables/one"),
        (of_files("s3://jobs/world/tables/other"), of_files(""), "s3://jobs/world/tables/other"),
        (of_files(param("where")), of_files("s3://lake/t"), "s3://lake/t"),
        (DeltaTable("file:///t", ("user",)), DeltaTable("file:///t/", ("user",)), "file:/t"),
        (in_iceberg(), in_iceberg(uri="http://rest/"), "db.t (main)"),
        (in_postgres("host=h dbname=d"), in_postgres("postgresql://me@h:5432/d"), "public.t"),
        (in_postgres(env("NOT_SET")), in_postgres(env("NOT_SET")), "public.t"),
        (at_kafka("t"), at_kafka("t", "b:9092, a:9092"), "t"),
    ],
)
def test_two_sinks_of_one_table_are_refused(
    world: World, one: SinkSpec, other: SinkSpec, table: str
) -> None:
    totals = world.clicks.key_by("user").aggregate("totals", n=agg.count())
    totals.sink("one", one)
    totals.sink("other", other)

    with pytest.raises(ConfigurationError) as refused:
        check_tables(world.pipeline, {"where": "s3://lake/t"}, ROOT)

    assert str(refused.value) == (
        f"sinks 'one' and 'other' write one table, {table}, whose versions are one sink's "
        "checkpoints; name another for one of them, or write the union() of their streams"
    )


def test_a_linked_folder_is_the_same_table(world: World, tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "table")
    totals = world.clicks.key_by("user").aggregate("totals", n=agg.count())
    totals.sink("one", of_files(f"file://{tmp_path}/table"))
    totals.sink("other", of_files(f"file://{tmp_path}/link"))

    with pytest.raises(ConfigurationError, match="sinks 'one' and 'other' write one table"):
        check_tables(world.pipeline, {}, ROOT)


def test_a_table_without_its_schema_or_namespace_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ConfigurationError, match="'t' is not written with its schema; write"):
        PostgresTable("host=h", "t", upsert_key=("user",))
    with pytest.raises(ConfigurationError, match="'t' is not written with its schema; write"):
        sources.PostgresTable("host=h", "t", "n")
    for declared in (IcebergTable, sources.IcebergTable):
        with pytest.raises(ConfigurationError, match="table 't' names no namespace; write namesp"):
            declared("t", {"type": "rest"})


@pytest.mark.parametrize("location", ["s3a://lake/t", "lake/t"])
def test_a_location_in_no_store_is_refused(world: World, location: str) -> None:
    world.clicks.key_by("user").aggregate("totals", n=agg.count()).sink("t", of_files(location))

    with pytest.raises(ConfigurationError, match=f"the root '{location}' .*; write s3://"):
        check_tables(world.pipeline, {}, ROOT)


def test_tables_apart_are_taken(world: World) -> None:
    totals = world.clicks.key_by("user").aggregate("totals", n=agg.count())
    apart: list[SinkSpec] = [
        *(FilesTable(upsert_key=("user",)), FilesTable(upsert_key=("user",))),
        *(of_files("s3://lake/t"), of_files("s3://lake/T")),
        *(in_iceberg(), in_iceberg(branch="audit"), in_iceberg(uri="http://other")),
        *(in_postgres("host=h dbname=d"), in_postgres("host=h dbname=e")),
        in_postgres(env("NOT_SET")),
        in_postgres("host=h dbname=d", "public.u"),
    ]
    for number, sink in enumerate(apart):
        totals.sink(f"s{number}", sink)

    check_tables(world.pipeline, {}, ROOT)


def test_any_source_may_be_a_table(world: World) -> None:
    rates = Kafka("localhost:1", "rates", value=Json("user string, rate bigint"))
    table = world.pipeline.source("rates", rates, table=True)
    located = world.clicks.lookup("located", table, on="user", add=("rate",))
    located.sink("out", FilesTable())

    located_columns = world.results()["located"]

    assert located_columns is not None
    assert located_columns.columns["rate"] == pl.Int64()


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (
            lambda w: w.clicks.key_by("user").join("t", w.clicks.key_by("user"), how="outer"),
            "join('t'): how is 'outer'; use 'inner', 'left', 'right', 'full', 'semi' or 'anti'",
        ),
        (
            lambda w: w.clicks.key_by("user").interval_join(
                "t", w.clicks.key_by("user"), upper=timedelta(hours=1), how="right"
            ),
            "interval_join('t'): how is 'right'; use 'inner' or 'left'",
        ),
        (
            lambda w: w.clicks.key_by("user").window_join(
                "t", w.clicks.key_by("user"), Tumbling(timedelta(hours=1)), how="full"
            ),
            "window_join('t'): how is 'full'; use 'inner', 'left', 'semi' or 'anti'",
        ),
        (
            lambda w: w.clicks.lookup("t", w.cities, on="city", keep="none"),
            "lookup('t'): keep is 'none'; use 'matched', 'unmatched' or 'all'",
        ),
    ],
)
def test_a_kind_of_join_that_is_none_is_refused_when_it_is_declared(
    world: World, declare: Callable[[World], Stream], expected: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        declare(world)

    assert str(error.value) == expected


def test_a_mistake_beside_nested_columns_needs_no_spark(tmp_path: Path) -> None:
    schema = "id bigint, tags array<string>, m map<string, struct<a: int>>"
    rows = Pipeline("p").source("rows", Files(str(tmp_path), format="json", schema=schema))
    rows.key_by("id").aggregate("a", n=agg.sum("idd")).sink("out", FilesTable(upsert_key=("id",)))

    with pytest.raises(ConfigurationError, match=r"stage 'a' has no column 'idd' .*mean 'id'"):
        analyse(rows.pipeline, {}, None)


def of_odd_columns(folder: Path) -> Stream:
    columns = {"id": [1], "x": pa.nulls(1), "mix": [2]}
    pq.write_table(pa.table(columns), folder / "odd.parquet")
    odd = Files(str(folder / "odd.parquet"), format="parquet")
    return Pipeline("odd").source("odd", odd)


@pytest.mark.parametrize(
    "read",
    [
        lambda odd: odd,
        lambda odd: odd.where("x IS NULL").select("id"),
        lambda odd: odd.select("id", "coalesce(`X`, 1) AS y"),
        lambda odd: odd.select("*"),
    ],
    ids=["all", "in a filter", "in another case", "with a star"],
)
def test_a_column_of_a_type_that_no_stage_knows_is_refused_where_it_is_read(
    tmp_path: Path, read: Callable[[Stream], Stream]
) -> None:
    odd = of_odd_columns(tmp_path)
    read(odd).key_by("id").aggregate("a", n=agg.count()).sink("out", FilesTable(upsert_key=("id",)))

    with pytest.raises(ConfigurationError, match=r"stage 'a': column 'x' of odd.* leave it out"):
        analyse(odd.pipeline, {}, None)


def test_a_column_of_a_type_that_no_stage_knows_may_be_left_out(tmp_path: Path) -> None:
    odd = of_odd_columns(tmp_path)
    odd.where("id > 0").select("id", "mix").key_by("id").aggregate("a", s=agg.sum("mix")).sink(
        "out", FilesTable(upsert_key=("id",))
    )

    result = analyse(odd.pipeline, {}, None)["a"]

    assert result is not None
    assert dict(result.columns) == {"id": pl.Int64(), "s": pl.Int64()}


def newest(world: World) -> Stream:
    return world.clicks.key_by("user").latest("newest", by="n")


CLOCKED: list[tuple[Callable[[World], object], str]] = [
    (
        lambda world: (
            newest(world)
            .where("at > current_timestamp")
            .sink("out", FilesTable(upsert_key=("user",)))
        ),
        "where() of 'newest' has current_timestamp in 'at > current_timestamp', which answers",
    ),
    (
        lambda world: (
            newest(world)
            .select("user", "current_date AS day")
            .sink("out", FilesTable(upsert_key=("user",)))
        ),
        "select() of 'newest' has current_date in",
    ),
]


@pytest.mark.parametrize("place", range(len(CLOCKED)))
def test_a_clock_over_updates_is_refused_once_columns_are_known(world: World, place: int) -> None:
    declare, sentence = CLOCKED[place]
    declare(world)

    with pytest.raises(ConfigurationError) as refused:
        world.results()

    assert sentence in str(refused.value)


def test_a_column_with_a_clocks_name_is_a_column(world: World) -> None:
    named = world.clicks.select("user", "n", "at AS current_timestamp")
    named.key_by("user").latest("newest", by="n").where("current_timestamp IS NOT NULL").sink(
        "out", FilesTable(upsert_key=("user",))
    )

    assert world.results()["newest"] is not None


def test_a_column_that_is_called_as_the_right_event_time_is_refused() -> None:
    files = Files("/rows", format="json", schema="k string, at timestamp, right_at timestamp")
    pipeline = Pipeline("p")
    one, other = (pipeline.source(uid, files, event_time="at") for uid in ("one", "other"))
    joined = (
        one.select("k", "at")
        .key_by("k")
        .interval_join("j", other.key_by("k"), upper=timedelta(minutes=1))
    )
    joined.sink("out", FilesTable())

    with pytest.raises(ConfigurationError, match="'other' has a column 'right_at', which is what"):
        analyse(pipeline, {}, None)
