"""The fingerprint of an operation: what is another meaning, and what is another spelling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import polars as pl
import pytest

from sluice.connectors.kafka.declared import Json
from sluice.core.transitions import SINK, SOURCE, Fingerprint
from sluice.declaration import aggregates as agg
from sluice.declaration import change_events
from sluice.declaration.fingerprints import fingerprints, meaning, shorter_ttls_ms
from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.keyed_states import ListState, MapState, StateTtlConfig, ValueState
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Attached, Hopping, ProcessKeyed, Session, Tumbling
from sluice.declaration.params import Param, env, param
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.declaration.places import Source, SourceSpec
from sluice.declaration.results import Upsert
from sluice.sinks import FilesTable
from sluice.sources import Debezium, DeltaTable, Files, IcebergTable, Kafka, Nexmark, PostgresTable

HOUR = timedelta(hours=1)
RETURNED = StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
BY_K, BY_U = FilesTable(upsert_key=("k",)), FilesTable(upsert_key=("u",))
Declare = Callable[[Stream], object]


def unchanged(rows: Any, limit: str = "") -> Any:
    return rows


def doubled(rows: Any) -> Any:
    return rows.union(rows)


def of(declare: Declare, uid: str = "stage", *, time: str = "at", **params: str) -> Fingerprint:
    return all_of(declare, time=time, **params)[uid]


def all_of(declare: Declare, *, time: str = "at", **params: str) -> dict[str, Fingerprint]:
    pipeline = Pipeline("p")
    schema = "u bigint, k bigint, x bigint, y bigint, at timestamp, then timestamp"
    spec = Files("in", format="json", schema=schema)
    declare(pipeline.source("rows", spec, event_time=time))
    return fingerprints(pipeline, params)


def total(stream: Stream) -> Stream:
    return stream.key_by("k").aggregate("stage", s=agg.sum("x"))


def chosen(stream: Stream, *columns: str) -> Stream:
    return total(stream.select(*columns))


def kept_by(stream: Stream, key: str) -> Stream:
    return stream.pipeline.spark(
        "stage",
        unchanged,
        reads={"rows": stream},
        schema=f"{key} bigint",
        result=Upsert(key),
        version="1",
    )


SPELLINGS: list[tuple[Declare, Declare]] = [
    (lambda s: kept_by(s, "k"), lambda s: kept_by(s, "K")),
    (lambda s: total(s.where("x > 1")), lambda s: total(s.where("X>1  -- of them"))),
    (lambda s: total(s.where("x != 1")), lambda s: total(s.where("x <> 1"))),
    (lambda s: total(s.where("x == 1")), lambda s: total(s.where("x = 1"))),
    (lambda s: chosen(s, "k", "x"), lambda s: chosen(s, "x", "K", "y * 2 AS z", "at")),
    (lambda s: chosen(s, "*"), total),
    (total, lambda s: s.key_by("K").aggregate("stage", s=agg.sum("x"))),
    (lambda s: chosen(s, "*", "y AS x"), lambda s: chosen(s, "k", "y  as  X")),
    (
        lambda s: total(s.transform("one", unchanged).where("x > 1")),
        lambda s: total(s.transform("other", unchanged).where("x > 1")),
    ),
    (
        lambda s: s.key_by("k").aggregate("stage", s=agg.sum("x"), n=agg.count()),
        lambda s: s.key_by("k").aggregate("stage", n=agg.count(), s=agg.sum(" X")),
    ),
    (
        lambda s: total(s).disable_chaining(),
        lambda s: s.key_by("k").aggregate("stage", parallelism=4, s=agg.sum("x")),
    ),
    (
        lambda s: total(s.transform("t", unchanged, version="1")),
        lambda s: total(s.transform("t", lambda rows: rows, version="1")),
    ),
    (
        lambda s: s.key_by(g="k % 2 + u").aggregate("stage", s=agg.sum("x")),
        lambda s: (
            s.select("x", "k % 2 AS odd", "*")
            .select("x", "odd+U AS g")
            .key_by("g")
            .aggregate("stage", s=agg.sum("x"))
        ),
    ),
]


@pytest.mark.parametrize("number", range(len(SPELLINGS)))
def test_another_spelling_is_the_same(number: int) -> None:
    first, second = map(of, SPELLINGS[number])

    assert second == first


def keyed(declare: Callable[[Any], object]) -> Declare:
    return lambda stream: declare(stream.key_by("k"))


MEANINGS: list[tuple[Declare, Declare, str]] = [
    (total, lambda s: total(s.where("x > 1")), "input"),
    (total, lambda s: chosen(s, "k", "x + 1 AS x"), "input"),
    (lambda s: total(s.where("x > 1")), lambda s: total(s.where("x > 2")), "input"),
    (
        lambda s: total(s.where("y > 1")),
        lambda s: total(s.select("*", "x AS y").where("y > 1")),
        "input",
    ),
    (total, lambda s: total(s.transform("t", unchanged)), "input"),
    (
        lambda s: total(s.transform("t", unchanged, limit="3")),
        lambda s: total(s.transform("t", unchanged, limit="4")),
        "input",
    ),
    (
        lambda s: total(s.transform("t", unchanged, limit=3)),
        lambda s: total(s.transform("t", unchanged, limit="3")),
        "input",
    ),
    (
        lambda s: total(s.transform("t", unchanged, version="1")),
        lambda s: total(s.transform("t", unchanged, version="2")),
        "input",
    ),
    (
        lambda s: total(s.where("x > 1").union("both", s.where("x < 9"))),
        lambda s: total(s.where("x > 1").union("both", s.where("x < 8"))),
        "input",
    ),
    (
        keyed(lambda k: k.aggregate("stage", n=agg.count())),
        lambda s: s.key_by(k="k % 2").aggregate("stage", n=agg.count()),
        "keys",
    ),
    (
        keyed(lambda k: k.latest("stage", by="x")),
        keyed(lambda k: k.latest("stage", by=("x", "y"))),
        "by",
    ),
    (
        keyed(lambda k: k.latest("stage", by="x")),
        keyed(lambda k: k.latest("stage", by="x", ttl=HOUR)),
        "ttl",
    ),
    (
        keyed(lambda k: k.deduplicate("stage", by="x")),
        keyed(lambda k: k.deduplicate("stage", by="y")),
        "by",
    ),
    (
        keyed(lambda k: k.window("stage", Tumbling(HOUR), n=agg.count())),
        keyed(lambda k: k.window("stage", Hopping(2 * HOUR, HOUR), n=agg.count())),
        "window",
    ),
    (
        keyed(lambda k: k.window("stage", Session(HOUR), n=agg.count())),
        keyed(lambda k: k.window("stage", Session(2 * HOUR), n=agg.count())),
        "window",
    ),
    (
        keyed(lambda k: k.window_top_n("stage", Tumbling(HOUR), 2, by="x")),
        keyed(lambda k: k.window_top_n("stage", Tumbling(HOUR), 2, by="x", ties=True)),
        "ties",
    ),
    (
        lambda s: (
            s.select("k", "x", "at")
            .key_by("k")
            .interval_join("stage", s.select("k", "at").key_by("k"), upper=HOUR)
        ),
        lambda s: (
            s.select("k", "x", "at")
            .key_by("k")
            .interval_join("stage", s.select("k", "at").key_by("k"), upper="then")
        ),
        "bounds",
    ),
    (
        lambda s: s.key_by("k").window_join(
            "stage", s.select("k", "y", "at").key_by("k"), Tumbling(HOUR)
        ),
        lambda s: s.key_by("k").window_join(
            "stage", s.select("k", "y", "at").key_by("k"), Tumbling(HOUR), how="left"
        ),
        "how",
    ),
]


@pytest.mark.parametrize("number", range(len(MEANINGS)))
def test_another_meaning_shows_in_its_part_alone(number: int) -> None:
    one, other, part = MEANINGS[number]
    before, now = of(one), of(other)

    names = {*before.parts, *now.parts}
    assert {n for n in names if before.parts.get(n) != now.parts.get(n)} == {part}
    assert before.columns == now.columns


def selected(text: str) -> Declare:
    """Totals by the key ``k``, which is *text*."""
    return lambda stream: chosen(stream, f"{text} AS k", "x")


def firsts_of(text: str) -> Declare:
    """Totals by the key of other stages with state, which is *text*."""

    def declare(stream: Stream) -> None:
        first = stream.select(f"{text} AS j", "x", "at").key_by("j").deduplicate("first", by="x")
        total(first.select("j + 1 AS k", "x"))

    return declare


def window_of(text: str) -> Declare:
    def declare(stream: Stream) -> None:
        first = stream.key_by(j=text).window("first", Tumbling(HOUR), x=agg.count())
        total(first.select("j AS k", "x"))

    return declare


def highest(column: str) -> Declare:
    def declare(stream: Stream) -> None:
        first = stream.key_by("u").window("first", Tumbling(HOUR), x=agg.count(), k=agg.max(column))
        total(first)

    return declare


def found_as(name: str, of: str = "upper(name)") -> Declare:
    def declare(stream: Stream) -> None:
        spec = Files("names", format="json", schema="id bigint, name string")
        names = stream.pipeline.source("names", spec, table=True)
        rows = stream.select(f"{name} AS id", "x").lookup("look", names, on="id", add={"k": of})
        total(rows)

    return declare


def joined(left: str, right: str = "k", **options: Any) -> Declare:
    def declare(stream: Stream) -> None:
        one = stream.select(f"{left} AS j", "x").key_by("j")
        other = stream.select(f"{right} AS i", "y AS z").key_by("i")
        total(one.join("first", other, **options).select("j AS k", "z AS x"))

    return declare


def both_of(one: str, other: str) -> Declare:
    def declare(stream: Stream) -> None:
        first, second = (stream.select(f"{text} AS k", "x") for text in (one, other))
        total(first.union("both", second))

    return declare


KEYS: dict[str, tuple[Declare, Declare, str]] = {
    "selected": (selected("y"), selected("u"), "k = y"),
    "computed": (selected("y % 2"), selected("y % 3"), "k = y % 2"),
    "only selected": (selected("k"), selected("y"), "k"),
    "in two steps": (
        lambda s: chosen(s.select("y + 1 AS a", "x"), "a * 2 AS k", "x"),
        lambda s: chosen(s.select("y + 2 AS a", "x"), "a * 2 AS k", "x"),
        "k = (y + 1) * 2",
    ),
    "of a key's expression": (
        lambda s: s.select("y AS a", "x").key_by(k="a % 2").aggregate("stage", s=agg.sum("x")),
        lambda s: s.select("u AS a", "x").key_by(k="a % 2").aggregate("stage", s=agg.sum("x")),
        "k = y % 2",
    ),
    "a field": (
        lambda s: chosen(s.select("named_struct('a', y, 'b', u) AS t", "x"), "t.a AS k", "x"),
        lambda s: chosen(s.select("named_struct('a', u, 'b', y) AS t", "x"), "t.a AS k", "x"),
        "k = field(named_struct('a', y, 'b', u), 'a')",
    ),
    "that only Spark reads": (
        selected("transform(array(y), v -> v + 1)[0]"),
        selected("transform(array(u), v -> v + 1)[0]"),
        "k = unread('transform ( array ( y ) , v - > v + 1 ) [ 0 ]')",
    ),
    "behind a function": (
        lambda s: total(s.select("y AS k", "x").transform("t", unchanged, version="1")),
        lambda s: total(s.select("u AS k", "x").transform("t", unchanged, version="1")),
        "k = y",
    ),
    "behind a stage": (firsts_of("y"), firsts_of("u"), "k = y + 1"),
    "behind a window": (window_of("y % 2"), window_of("y % 3"), "k = y % 2"),
    "an aggregate": (highest("x"), highest("y"), "k = max(x)"),
    "looked up": (found_as("u"), found_as("y"), "k = looked_up('upper(name) of names by id', u)"),
    "looked up as another": (
        found_as("u", "name"), found_as("u"), "k = looked_up('name of names by id', u)"
    ),
    "of a join": (joined("u"), joined("y"), "k = any_of(k, u)"),
    "of a join's other side": (
        joined("u", "k", how="full"), joined("u", "y", how="full"), "k = any_of(k, u)"
    ),
    "of one of two": (both_of("u", "y"), both_of("u", "k"), "k = any_of(u, y)"),
    "of a row": (
        lambda s: s.select("y AS k", "x").key_by("k").latest("stage", by="x"),
        lambda s: s.select("u AS k", "x").key_by("k").latest("stage", by="x"),
        "k = y",
    ),
    "of updates": (
        lambda s: total(newest(s).select("y AS k", "x")),
        lambda s: total(newest(s).select("u AS k", "x")),
        "k = y",
    ),
}  # fmt: skip

# What else is computed of the same column, or whole rows are kept.
ALSO_READ = ("behind a function", "looked up", "looked up as another", "of one of two", "of a row")


def test_what_sql_says_when_it_fails_is_no_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = change_events.ChangeEvents(
        {"k": "bigint"},
        ("k",),
        op="u",
        kinds={"1": "insert", "2": "truncate"},
        order={"x": "x"},
    )
    now = of(lambda rows: changes.table("stage", rows))
    monkeypatch.setattr(change_events, "TRUNCATED", "begin anew, it's lost")

    assert of(lambda rows: changes.table("stage", rows)) == now
    assert "WHEN u IN ('2') THEN raise_error()" in now.parts["input"]


def test_which_of_two_streams_has_which_key_is_told() -> None:
    def some_of(one: str, other: str) -> Declare:
        def declare(stream: Stream) -> None:
            first = stream.where("x > 1").select(f"{one} AS k", "x")
            total(first.union("both", stream.where("x < 1").select(f"{other} AS k", "x")))

        return declare

    assert of(some_of("u", "y")) != of(some_of("y", "u"))


@pytest.mark.parametrize("name", KEYS)
def test_a_key_is_what_it_is_computed_of(name: str) -> None:
    one, other, keys = KEYS[name]
    before, now = of(one), of(other)

    changed = {n for n in before.parts if before.parts[n] != now.parts.get(n)}
    assert "keys" in changed
    assert changed == ({"keys", "input"} if name in ALSO_READ else {"keys"})
    assert before.parts["keys"] == keys


ROWS = "a bigint, k bigint, x bigint"
CSV = partial(Files, "in", format="csv")
PG = partial(PostgresTable, env("DSN"), "shop.orders", "id")
# What a record is, and what is no part of it.
READ: dict[str, tuple[SourceSpec, SourceSpec]] = {
    "a format": (Files("in", format="json", schema=ROWS), CSV(schema=ROWS)),
    "a delimiter": (CSV(schema=ROWS), CSV(schema=ROWS, delimiter=";")),
    "a null": (CSV(schema=ROWS), CSV(schema=ROWS, null_value="-")),
    "a header": (CSV(schema=ROWS), CSV(schema=ROWS, header=True)),
    "an option": (
        Files("in", format="json", schema=ROWS),
        Files("in", format="json", schema=ROWS, options={"dateFormat": "dd.MM.yyyy"}),
    ),
    "a field's place": (CSV(schema=ROWS), CSV(schema="k bigint, a bigint, x bigint")),
    "a column in front": (CSV(schema=ROWS), CSV(schema=f"z string, {ROWS}")),
    "a message": (Kafka("h:1", "t"), Kafka("h:1", "t", Json(ROWS))),
    "what Kafka says": (
        Kafka("h:1", "t", Json("x bigint"), columns=("offset as k",)),
        Kafka("h:1", "t", Json("x bigint"), columns=("partition as k",)),
    ),
    "a condition": (PG(), PG(where="x > 1")),
    "a cast": (PG(), PG(columns=("k", "x::bigint"))),
    "a rate": (Nexmark(9), Nexmark(9, events_per_second=9)),
}  # fmt: skip
OF_THE_KEY = {
    "a format": {"keys", "input"}, "a field's place": {"keys"},
    "a column in front": {"keys", "input"}, "what Kafka says": {"keys"},
}  # fmt: skip
SAME: dict[str, tuple[SourceSpec, SourceSpec]] = {
    "a column behind": (CSV(schema=ROWS), CSV(schema=f"{ROWS}, z string")),
    "a column that is not read": (CSV(schema=ROWS), CSV(schema="z string, k bigint, x bigint")),
    "columns by name": (
        Files("in", format="json", schema=ROWS),
        Files("in", format="json", schema="x bigint, k bigint"),
    ),
    "how long to wait": (CSV(schema=ROWS), CSV(schema=ROWS, bounded=False, give_up_after_s=5)),
    "a server": (
        Kafka("h:1", "t", Json(ROWS)), Kafka("other:2", "t", Json(ROWS), on_expired="skip")
    ),
    "a database that goes on": (
        PG(), PostgresTable("host=other", "shop.orders", "id", continues="database 1 timeline 2")
    ),
    "a catalog": (
        IcebergTable("shop.t", {"type": "rest", "token": env("TOKEN")}),
        IcebergTable("shop.t", {"type": "glue"}, skip_overwrites=True),
    ),
}  # fmt: skip


def read_as(spec: SourceSpec, **params: str) -> dict[str, Fingerprint]:
    pipeline = Pipeline("p")
    total(pipeline.source("rows", spec))
    return fingerprints(pipeline, params)


@pytest.mark.parametrize("name", READ)
def test_how_a_record_is_read_is_of_the_input_of_those_that_read_it(name: str) -> None:
    before, now = map(read_as, READ[name])

    parts = before["stage"].parts
    changed = {n for n in parts if parts[n] != now["stage"].parts.get(n)}
    assert changed == OF_THE_KEY.get(name, {"input"})
    assert before["rows"] == now["rows"]


@pytest.mark.parametrize("name", SAME)
def test_what_is_no_part_of_a_record_is_the_same(name: str) -> None:
    before, now = map(read_as, SAME[name])

    assert before == now


def test_the_place_of_a_source_is_where_its_positions_are() -> None:
    def places(spec: SourceSpec, **params: str) -> tuple[str, ...]:
        return read_as(spec, **params)["rows"].places

    located = Files(param("folder", "in"))
    assert places(located) == ("files in",)
    assert places(located, folder="file:///in/") == ("files /in",)
    assert places(Files("s3://b/in/")) == places(Files("s3://b/in"))
    assert places(Files(env("FOLDER"))) == ("files ${FOLDER}",)
    assert places(Kafka("h:1", param("topics", "b, a"))) == ("topic a", "topic b")
    assert places(PG()) == ("table shop.orders by id",)
    assert places(IcebergTable("shop.t", {})) == ("table shop.t",)
    assert places(DeltaTable("s3://lake/t")) == ("rows of s3://lake/t",)
    assert places(DeltaTable("s3://lake/t", changes=True)) == ("changes of s3://lake/t",)
    assert places(Nexmark(9)) == ("Nexmark",)
    assert places(Unknown()) == ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A source that does not say what it declares."""

    params: tuple[Param, ...] = ()

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        raise NotImplementedError


def test_a_table_of_a_lookup_has_no_position() -> None:
    found = all_of(lambda s: total(looked_up(s, "matched")))

    assert "names" not in found
    assert found["rows"].operator == SOURCE


def test_the_event_time_counts_where_something_goes_by_it() -> None:
    windowed = keyed(lambda k: k.window("stage", Tumbling(HOUR), n=agg.count()))
    ordered = keyed(lambda k: k.aggregate("stage", x=agg.first("x")))

    assert of(total, time="at") == of(total, time="then")
    for declare in (windowed, ordered, keyed(lambda k: k.deduplicate("stage"))):
        assert of(declare, time="at").parts["event time"] == "at"
        assert of(declare, time="at") == of(declare, time="At")
        assert of(declare, time="then").parts["event time"] == "then"


def test_the_bound_of_event_time_is_that_of_all_sources() -> None:
    def behind(stream: Stream) -> None:
        newest = stream.key_by("u").latest("newest", by="x")
        late = newest.event_time("then", out_of_orderness=HOUR)
        late.key_by("k").aggregate("stage", x=agg.first("x"))

    assert of(behind).parts["out of orderness"] == "0 and 1 h"
    assert "out of orderness" not in of(total).parts


AGGREGATES = {
    "count": agg.count(), "count_x": agg.count("x"), "sum": agg.sum("x * y"), "avg": agg.avg("x"),
    "sum_some": agg.sum("x", where="y  > 1"), "last": agg.last("x", by="y"),
    "latest": agg.last("x"), "half": agg.percentile("x", 0.5), "most": agg.percentile("x", 0.95),
    "words": agg.string_agg("x"), "lines": agg.string_agg("x", "\n"),
}  # fmt: skip


def test_each_aggregate_has_its_meaning() -> None:
    found = of(keyed(lambda k: k.aggregate("stage", **AGGREGATES)))

    assert found.columns["sum_some"] == "sum(x) where y > 1"
    assert found.columns["last"] == "last(x) by y"
    assert len({*found.columns.values()}) == len(AGGREGATES)


def test_updates_are_followed_to_the_stages_that_send_them() -> None:
    def declare(stream: Stream) -> None:
        newest = stream.key_by("u").latest("newest", by="x")
        seen = newest.transform("seen", unchanged)
        total(seen).where("s > 1").sink("out", FilesTable(upsert_key=("k",)))
        total_again = seen.key_by("k").aggregate("again", n=agg.count())
        total_again.sink("log", FilesTable(changelog=True))

    found = all_of(declare)

    assert found["stage"].updates_from == ("newest",)
    assert found["newest"].updates_from == ()
    assert (found["out"].updates_from, found["out"].keeps_changes) == (("stage",), False)
    assert (found["log"].updates_from, found["log"].keeps_changes) == (("again",), True)
    assert found["out"].parts == {
        "rows": "stage.where(s > 1) as upsert by k",
        "columns": "stage.where(s > 1)",
    }


def test_a_table_that_only_grows_has_rows_of_any_meaning() -> None:
    def declare(stream: Stream) -> None:
        stream.transform("t", unchanged).where("x > 1").sink("out", FilesTable())

    assert all_of(declare) == {
        "rows": Fingerprint(operator=SOURCE, places=("files in",)),
        "out": Fingerprint(operator=SINK, parts={"rows": "appended"}),
    }


def firsts(stream: Stream, *keys: str) -> Stream:
    return stream.key_by(*keys).deduplicate("stage")


KEYED: list[tuple[Declare, str]] = [
    (lambda s: firsts(s, "k").sink("out", BY_K), "stage as upsert by k"),
    (
        lambda s: firsts(s, "k").where("x > 1").select("k", "x").sink("out", BY_K),
        "stage as upsert by k",
    ),
    (
        lambda s: firsts(s, "u").where("x > 1").select("u AS k", "x").sink("out", BY_K),
        "stage.select(k = u) as upsert by k",
    ),
    (
        lambda s: (
            firsts(s, "u")
            .select("u AS g", "x")
            .transform("t", unchanged)
            .select("g AS k")
            .sink("out", BY_K)
        ),
        "stage.select(g = u).select(k = g) as upsert by k",
    ),
    (lambda s: firsts(s, "k").sink("out", FilesTable()), "appended"),
    (lambda s: firsts(s, "k").sink("out", FilesTable(changelog=True)), "as changelog"),
]


@pytest.mark.parametrize("number", range(len(KEYED)))
def test_a_table_with_a_row_a_key_says_what_its_key_is(number: int) -> None:
    declare, rows = KEYED[number]

    assert of(declare, "out").parts == {"rows": rows}


def test_a_parameter_enters_with_its_value() -> None:
    def declare(stream: Stream) -> None:
        total(stream.transform("t", unchanged, version="1", limit=param("limit", "3")))

    assert of(declare).parts["input"] == "rows.json.transform(version 1, limit='3')"
    assert of(declare, limit="4").parts["input"] == "rows.json.transform(version 1, limit='4')"


def test_a_lookup_is_told_with_its_table_wherever_it_is() -> None:
    def declare(is_updated: bool) -> Declare:
        def inner(stream: Stream) -> None:
            spec = Files("names", format="json", schema="id bigint, name string")
            names = stream.pipeline.source("names", spec, table=True)
            rows = stream.key_by("u").latest("newest", by="x") if is_updated else stream
            found = rows.lookup("look", names, on={"k": "id"}, keep="all", add={"n": "upper(name)"})
            found.key_by("n").aggregate("stage", s=agg.count())

        return inner

    said = "all of names on k = id add n = upper(name)"
    assert of(declare(False)).parts["input"] == f"rows.json.lookup({said})"
    assert of(declare(True), "look").parts["table"] == said
    assert of(declare(True)).updates_from == ("look",)


def test_a_lookup_of_versions_is_told_with_the_times_that_it_compares() -> None:
    def declare(stream: Stream) -> None:
        spec = Files("names", format="json", schema="k bigint, since timestamp")
        names = stream.pipeline.source("names", spec, table=True)
        found = stream.lookup("look", names, on="k", valid_from="SINCE")
        found.key_by("k").aggregate("stage", s=agg.count())

    for time in ("at", "then"):
        told = of(declare, time=time).parts["input"]
        assert told == f"rows.json.lookup(matched of names on k = k as of {time} by since)"


class Seen(KeyedProcessFunction):
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def process(self, row: Row, context: Context) -> None: ...


def passed(rows: pl.DataFrame, state: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    return rows, state


def test_each_aggregate_tells_what_it_reads_beside_what_all_do() -> None:
    found = of(
        lambda s: (
            s.where("u > 1")
            .select("k", "x + 1 AS x", "y * 2 AS y", "at")
            .key_by("k")
            .aggregate("stage", n=agg.count(), s=agg.sum("x"), m=agg.max("y", where="x > 3"))
        )
    )

    assert found.reads == {
        "": "rows.json.where(u > 1)",
        "s": "rows.json.where(u > 1).select(x = x + 1)",
        "m": "rows.json.where(u > 1).select(x = x + 1, y = y * 2)",
    }
    assert found.parts["input"] == found.reads["m"]


def test_a_function_of_a_user_is_its_source_or_its_version() -> None:
    def keyed_function(limit: int, version: str | None = None) -> Declare:
        return keyed(
            lambda k: k.process_keyed("stage", Seen(limit), result={"k": int}, version=version)
        )

    def process(version: str | None) -> Declare:
        return keyed(
            lambda k: k.process("stage", passed, state={}, result={"k": int}, version=version)
        )

    assert of(keyed_function(1)) == of(keyed_function(1))
    assert of(keyed_function(1)) != of(keyed_function(2))
    assert of(keyed_function(1, "a")) == of(keyed_function(2, "a"))
    assert of(process(None)).parts["function"].startswith("source ")
    assert of(process("3")).parts["function"] == "version 3"


def test_windows_that_rows_carry_are_read() -> None:
    def declare(stream: Stream) -> None:
        first = stream.key_by("k").window("first", Tumbling(HOUR), n=agg.count())
        first.key_by("k").window("stage", Attached(), n=agg.sum("n"))

    assert of(declare).parts["window"] == "that of the rows"


@pytest.mark.parametrize(
    ("sql", "is_now"),
    [
        ("Sum( X )+ 1", "sum(x) + 1"),
        ("a.b IN (1,2)", "a.b IN (1, 2)"),
        ("not (a) AND 'It''s'  = b", "(NOT a) AND (b = 'It\\'s')"),
        ("a<=1 OR a >=2 or a||b", "(a <= 1) OR (a >= 2) OR concat(a, b)"),
        ("a /* no */ < > b", "a < > b"),
    ],
)
def test_sql_is_told_in_one_spelling(sql: str, is_now: str) -> None:
    assert meaning(sql) == is_now


def counted(stream: Stream, **options: Any) -> Stream:
    return stream.key_by("k").aggregate("stage", **options, v=agg.count())


def newest(stream: Stream, **options: Any) -> Stream:
    return stream.key_by("u").latest("newest", by="at", **options)


def also(stream: Stream, *others: Callable[[Stream], object]) -> Stream:
    for other in others:
        other(stream)
    return stream


def looked_up(stream: Stream, keep: Any) -> Stream:
    spec = Files("names", format="json", schema="k bigint, name string")
    names = stream.pipeline.source("names", spec, table=True)
    return stream.lookup("look", names, on="k", keep=keep)


def windowed(stream: Stream, late: timedelta) -> Stream:
    keyed = stream.key_by("k").window("stage", Tumbling(HOUR), allowed_lateness=late, v=agg.count())
    return keyed.where("v > 1")


BY_WINDOW = FilesTable(upsert_key=("k", "window_start"))
# What a table is told of a stage whose state begins anew.
REPLACED: dict[str, Declare] = {
    "all rows": lambda s: counted(s).sink("out", BY_K),
    "a filter by the key": lambda s: counted(s).where("K > 1").sink("out", BY_K),
    "by the key's new name": lambda s: (
        counted(s)
        .select("k AS g", "v")
        .where("g > 1 AND g < 9")
        .sink("out", FilesTable(upsert_key=("g",), partition_by=("g",)))
    ),
    "windows that have passed": lambda s: windowed(s, timedelta(0)).sink("out", BY_WINDOW),
    "every row": lambda s: firsts(s, "k").where("x > 1").sink("out", FilesTable()),
    "every change": lambda s: (
        counted(s).where("v > 1").sink("out", FilesTable(changelog=True))
    ),
}  # fmt: skip
LEFT: dict[str, Declare] = {
    "a filter": lambda s: counted(s).where("v > 1").sink("out", BY_K),
    "a filter of the sink": lambda s: (
        also(counted(s), lambda c: c.sink("all", BY_K)).where("v > 1").sink("out", BY_K)
    ),
    "a filter of what is computed": lambda s: (
        counted(s).select("*", "k % 2 AS odd").where("odd = 1").sink("out", BY_K)
    ),
    "a filter of another column's name": lambda s: (
        counted(s).select("k AS g", "v AS k").where("k > 1").sink(
            "out", FilesTable(upsert_key=("g",))
        )
    ),
    "a function": lambda s: counted(s).transform("t", unchanged).sink("out", BY_K),
    "a wider key": lambda s: counted(s).sink("out", FilesTable(upsert_key=("k", "v"))),
    "folders": lambda s: (
        counted(s).sink("out", FilesTable(upsert_key=("k",), partition_by=("v",)))
    ),
    "first rows": lambda s: firsts(s, "k").where("x > 1").sink("out", BY_K),
    "windows that fire again": lambda s: windowed(s, HOUR).sink("out", BY_WINDOW),
    "looked up": lambda s: looked_up(firsts(s, "k"), "matched").sink("out", BY_K),
}  # fmt: skip


@pytest.mark.parametrize("name", REPLACED)
def test_rows_of_before_are_replaced_when_their_key_comes_again(name: str) -> None:
    assert of(REPLACED[name], "out").leaves_rows_of == ()


@pytest.mark.parametrize("name", LEFT)
def test_rows_of_before_would_stay_in_a_table(name: str) -> None:
    found = of(LEFT[name], "out")

    assert found.leaves_rows_of == ("stage",)
    assert found.deletes_by_key == name.startswith("a filter")


def test_a_lookup_of_updates_leaves_out_rows() -> None:
    found = of(lambda s: looked_up(newest(s), "unmatched").sink("out", BY_U), "out")

    assert found.leaves_rows_of == ("look",)


FOLLOWS: dict[str, Declare] = {
    "a count": lambda s: counted(newest(s)),
    "behind filters and projections": lambda s: counted(newest(s).where("x > 1").select("k", "x")),
    "into a table": lambda s: counted(newest(s)).sink("out", BY_K),
    "under another name": lambda s: (
        counted(newest(s))
        .where("v > 1")
        .select("K AS kk", "v")
        .select("*", "kk AS g")
        .sink("out", FilesTable(upsert_key=("kk",), partition_by=("kk",)))
    ),
    "beside another": lambda s: counted(
        also(newest(s), lambda n: n.key_by("x").top_n("other", 3, by="x"))
    ),
    "before another": lambda s: counted(newest(s)).key_by("v").latest("behind", by="k"),
    "best rows": lambda s: (
        newest(s)
        .key_by("k")
        .top_n("stage", 2, by="x")
        .sink("out", FilesTable(upsert_key=("k", "rank")))
    ),
}  # fmt: skip
CANNOT: dict[str, Declare] = {
    "rows that only come": counted,
    "a sender that forgets": lambda s: counted(newest(s, ttl=HOUR)),
    "one that forgets": lambda s: counted(newest(s), ttl=HOUR),
    "an anti join, which lacks rows without a key": lambda s: counted(both_sides(s, "anti")),
    "a join that forgets": lambda s: counted(both_sides(s, "left", ttl=HOUR)),
    "a join whose rows only come": lambda s: counted(
        s.key_by("k").join("both", s.select("k", "u AS w").key_by("k"))
    ),
    "two senders": lambda s: newest(s).key_by("k").join("stage", newest_of(s, "y").key_by("k")),
    "by way of another stage": lambda s: counted(newest(s).union("all", newest_of(s, "x"))),
    "beside one that cannot": lambda s: counted(
        also(newest(s), lambda n: n.key_by("x").latest("other", by="k", ttl=HOUR))
    ),
    "before one that cannot": lambda s: (
        counted(newest(s)).key_by("v").latest("behind", by="k", ttl=HOUR)
    ),
    "a table of changes": lambda s: counted(newest(s)).sink("out", FilesTable(changelog=True)),
    "a table in folders": lambda s: (
        counted(newest(s)).sink("out", FilesTable(upsert_key=("k",), partition_by=("v",)))
    ),
    "a table by more than its key": lambda s: (
        counted(newest(s)).sink("out", FilesTable(upsert_key=("k", "v")))
    ),
}  # fmt: skip


def both_sides(stream: Stream, how: Any, ttl: timedelta | None = None) -> Stream:
    left, right = newest(stream).key_by("k"), newest_of(stream, "y").select("k", "u AS w")
    return left.join("both", right.key_by("k"), how=how, ttl=ttl)


def newest_of(stream: Stream, key: str) -> Stream:
    return stream.key_by(key).latest(f"newest_{key}", by="at")


@pytest.mark.parametrize("name", FOLLOWS)
def test_a_stage_follows_rows_that_are_held_and_sent_again(name: str) -> None:
    found = of(FOLLOWS[name])

    assert found.recomputed_from == "newest"
    assert found.holds == (("k", "rank") if name == "best rows" else ("k",))


@pytest.mark.parametrize(
    ("how", "is_updated"),
    [("left", False), ("right", False), ("full", True), ("anti", False), ("semi", True)],
)
def test_a_join_with_a_ttl_remembers_partners(how: Any, *, is_updated: bool) -> None:
    def joined_for(ttl: timedelta | None) -> str | None:
        found = all_of(lambda s: counted((both_sides if is_updated else appended)(s, how, ttl)))
        return found["both"].parts.get("partners")

    assert (joined_for(HOUR), joined_for(None)) == ("remembered", None)


@pytest.mark.parametrize(("how", "is_updated"), [("inner", True), ("semi", False)])
def test_a_join_that_does_not_go_by_partners_remembers_none(how: Any, *, is_updated: bool) -> None:
    sides = both_sides if is_updated else appended

    assert "partners" not in all_of(lambda s: counted(sides(s, how, HOUR)))["both"].parts


def appended(stream: Stream, how: Any, ttl: timedelta | None = None) -> Stream:
    right = stream.select("k", "u AS w").key_by("k")
    return stream.key_by("k").join("both", right, how=how, ttl=ttl)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi"])
def test_a_stage_follows_a_join_that_has_both_sides(how: str) -> None:
    found = all_of(lambda s: counted(both_sides(s, how)))

    assert found["stage"].recomputed_from == "both"
    assert found["both"].holds == ()


@pytest.mark.parametrize("name", CANNOT)
def test_a_stage_follows_no_rows_that_it_or_another_could_not(name: str) -> None:
    assert of(CANNOT[name]).recomputed_from == ""


def joined_by(time: str) -> Fingerprint:
    pipeline, spec = Pipeline("p"), Files("in", format="json", schema="k bigint, at timestamp")
    one, other = (pipeline.source(uid, spec, event_time=time) for uid in ("one", "other"))
    both = one.key_by("k").interval_join("both", other.key_by("k"), upper=timedelta(0))
    both.sink("out", FilesTable())
    return fingerprints(pipeline, {})["both"]


def test_a_column_that_a_join_renames_is_the_same_in_any_case() -> None:
    assert joined_by("at") == joined_by("At")


def of_debezium(*columns: str, before: bool, kind: str = "bigint") -> Fingerprint:
    types = {name: "bigint" if name == "k" else kind for name in columns}
    table = Debezium(types, ("k",), before=before, payload=False)
    pipeline = Pipeline("p")
    events = pipeline.source("rows", Files("in", format="json", schema=table.schema))
    table.table("stage", events)
    return fingerprints(pipeline, {})["stage"]


def test_a_row_that_is_kept_as_a_hash_has_the_columns_that_it_had() -> None:
    before, now, turned = ("k", "x"), ("k", "x", "y"), ("x", "k")

    assert of_debezium(*before, before=True).operator != of_debezium(*now, before=True).operator
    assert of_debezium(*before, before=False).operator == of_debezium(*now, before=False).operator
    for is_image in (True, False):
        assert of_debezium(*before, before=is_image) == of_debezium(*turned, before=is_image)


@pytest.mark.parametrize(
    ("was", "now", "is_same"),
    [
        ("int", "string", False),
        ("float", "double", False),
        ("date", "timestamp", False),
        ("decimal(10, 2)", "decimal(12,4)", False),
        ("DECIMAL(10,2)", "decimal(12,2)", True),
        ("int", "BIGINT", True),
    ],
)
def test_a_row_that_is_kept_as_a_hash_has_the_types_by_which_it_was_hashed(
    was: str, now: str, is_same: bool
) -> None:
    operators = {of_debezium("k", "x", before=True, kind=kind).operator for kind in (was, now)}

    assert len(operators) == (1 if is_same else 2)
    assert (
        len({of_debezium("k", "x", before=False, kind=kind).operator for kind in (was, now)}) == 1
    )


class Remembering(KeyedProcessFunction):
    count = ValueState(int)
    first = ValueState(int, ttl=2 * HOUR)
    days = MapState(str, int, ttl=StateTtlConfig(HOUR, state_visibility=RETURNED))
    recent = ListState(int)
    all_of_them = ListState(int, ttl=StateTtlConfig.DISABLED)

    def process(self, row: Row, context: Context) -> None: ...


@pytest.mark.parametrize(
    ("before", "now", "shorter_ms"),
    [
        ("90 min", "2 h", {"": 5_400_000}),
        ("1500 ms", "2 s", {"": 1_500}),
        ("3,000 d", "", {"": 259_200_000_000}),
        ("2 h", "90 min", {}),
        ("2 h", "2 h", {}),
        ("", "2 h", {}),
        (None, "2 h", {}),
        ("1 h; 2 h of map:days", "2 h; 3 h of map:days", {"": 3_600_000, "map:days": 7_200_000}),
        ("1 h; 1 h of list:recent", "1 h", {"list:recent": 3_600_000}),
        ("1 h; 1 h of list:gone", "1 h", {}),
        ("1 h", "1 h; 2 h of map:days", {}),  # As it was told before tables had theirs.
    ],
)
def test_a_ttl_that_was_shorter_is_known(
    before: str | None, now: str, shorter_ms: dict[str, int]
) -> None:
    def of(ttl: str) -> Fingerprint:
        return Fingerprint(operator="aggregate", parts={"ttl": ttl} if ttl else {})

    stage = StageNode(
        uid="stage", operation=ProcessKeyed(function=Remembering(), result={}), inputs=()
    )
    was = None if before is None else of(before)
    assert shorter_ttls_ms(stage, was, of(now)) == shorter_ms


def test_the_states_of_a_function_are_told_with_the_ttl_of_each() -> None:
    declare = keyed(
        lambda k: k.process_keyed(
            "stage", Remembering(), result={"k": int}, ttl=3 * HOUR, version="1"
        )
    )

    told = "3 h; 3 h of list:recent; 2 h of map:days; 2 h of value:first"
    assert of(declare).parts["ttl"] == told
