"""Mistakes of declarations, and of places of one's own: each is refused with the fix."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from sluice.connectors.offsets import OffsetSource
from sluice.connectors.staged_sink import Target, TargetDefaults
from sluice.declaration import aggregates as agg
from sluice.declaration import results
from sluice.declaration.changelog import Retract, Upsert
from sluice.declaration.expressions import Filter, Projection
from sluice.declaration.operations import (
    Hopping,
    KeyedAggregate,
    Session,
    TopN,
    Tumbling,
    WindowAggregate,
)
from sluice.declaration.params import Param, param
from sluice.declaration.pipeline import KeyedStream, Pipeline, Stream
from sluice.declaration.places import Barrier, Sink, SinkDefaults, Source, SourceDefaults
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Files, Nexmark

MINUTE = Tumbling(timedelta(minutes=1))
SESSIONS: Any = Session(timedelta(seconds=1))


def same(rows: Any) -> Any:
    return rows


def a_stream(event_time: str | None = "at") -> Stream:
    pipeline = Pipeline("auctions")
    return pipeline.source("events", Nexmark(10), event_time=event_time)


def a_stage() -> Stream:
    return a_stream().transform("parse", same)


def windowed(stream: Stream) -> Stream:
    return stream.key_by("a").window("sums", MINUTE, n=agg.count())


# For declarations by a person who runs no type checker.
AnyPipeline: Any = Pipeline
any_pipeline: Callable[[], Any] = partial(Pipeline, "a")
any_stream: Callable[[], Any] = a_stream
any_stage: Callable[[], Any] = a_stage


def declared_again(uid: str) -> None:
    stream = a_stage()
    stream.sink("results", FilesTable())
    stream.key_by("a").aggregate(uid, n=agg.count())


def looked_up(**how: object) -> Stream:
    stream = a_stage()
    names = stream.pipeline.source("names", Files("/names"), table=True)
    return stream.lookup("known", names, **{"on": "a", **how})  # type: ignore[arg-type]


def a_table_of_another_pipeline() -> None:
    """Which is called as one of its own, and would be taken for that."""
    tables = [Pipeline(uid).source("names", Files("/names"), table=True) for uid in ("a", "b")]
    rows = tables[0].pipeline.source("rows", Nexmark())
    rows.lookup("known", tables[1], on="a", add=("b",))


def a_join_with(*, bounded: bool, event_time: str | None = None) -> Stream:
    events = a_stream()
    spec = Files("/names", bounded=bounded)
    names = events.pipeline.source("names", spec, event_time=event_time).select("b")
    joined = events.key_by("a").join("both", names.key_by("b"))
    return joined.transform("passed", same) if bounded else joined


def a_table_is_streamed() -> None:
    names = a_stream().pipeline.source("names", Files("/names"), table=True)
    names.transform("read", same)


def a_sink_twice() -> None:
    stream = a_stage()
    stream.sink("results", FilesTable())
    stream.sink("results", FilesTable())


def a_hook_first() -> None:
    stream = any_stream()
    stream.pipeline.hook("parse", trigger=same, restore=same)
    stream.transform("parse", same)


def two_limits(first: Param, second: Param) -> Pipeline:
    pipeline = Pipeline("a")
    pipeline.source("first", Nexmark(events=first))
    pipeline.source("second", Nexmark(events=second))
    return pipeline


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "pipeline uid": (lambda: Pipeline("My Job"), "uid 'My Job' is not usable; use up to 63 of a-z"),
    "source uid": (
        lambda: Pipeline("a").source("1st", Nexmark()), "uid '1st' is not usable; use up to 63"
    ),
    "long uid": (lambda: a_stage().transform("a" * 64, same), "is not usable; use up to 63"),
    "sink uid": (lambda: a_stage().sink("Out", FilesTable()), "uid 'Out' is not usable"),
    "stage twice": (
        lambda: declared_again("parse"),
        "uid 'parse' is declared twice in pipeline 'auctions': it is that of a stage already; ",
    ),
    "stage as source": (lambda: declared_again("events"), "uid 'events' is declared twice"),
    "stage as sink": (lambda: declared_again("results"), "uid 'results' is declared twice"),
    "source twice": (
        lambda: a_stream().pipeline.source("events", Nexmark()), "uid 'events' is declared twice"
    ),
    "hook as stage": (
        lambda: any_stage().pipeline.hook("parse", trigger=same, restore=same),
        "uid 'parse' is declared twice",
    ),
    "stage as hook": (a_hook_first, "uid 'parse' is declared twice"),
    "source as stage": (
        lambda: a_stage().pipeline.source("parse", Nexmark()), "uid 'parse' is declared twice"
    ),
    "sink twice": (a_sink_twice, "uid 'results' is declared twice"),
    "sink as stage": (
        lambda: a_stage().sink("parse", FilesTable()), "uid 'parse' is declared twice"
    ),
    "window without event time": (
        lambda: a_stream(None).transform("parse", same).key_by("a").window(
            "sums", MINUTE, n=agg.count()
        ),
        r"'sums' reads 'parse', which has no event time; name it: source\('events', \.\.\., event_",
    ),
    "window behind a window": (
        lambda: a_stage().key_by("a").window("one", MINUTE, n=agg.count()).key_by("n").window(
            "two", MINUTE, m=agg.count()
        ),
        "reads 'one', .* may come after the watermark of what 'one' read: event_time",
    ),
    "event time that a select leaves out": (
        lambda: windowed(a_stream().select("a", "b")),
        r"'sums' goes by event time, and select\('a', 'b'\) of 'events' leaves out 'at'; select ",
    ),
    "event time that is left out before a function": (
        lambda: windowed(a_stream().select("a").transform("parse", same)),
        r"and select\('a'\) of 'events' leaves out 'at'; select it, too$",
    ),
    "event time that is left out before a union": (
        lambda: windowed((one := a_stream()).select("a").union("all", one.select("a"))),
        r"and select\('a'\) of 'events' leaves out 'at'; select it, too$",
    ),
    "event time that is left out behind a stage": (
        lambda: windowed(a_stage().select("a", "at AS then").where("a > 1")),
        r"and select\('a', 'at AS then'\) of 'parse' leaves out 'at'; select it, too$",
    ),
    "event time that is left out behind first rows": (
        lambda: windowed(a_stage().select("a").key_by("a").deduplicate("first", by="a")),
        r"and select\('a'\) of 'parse' leaves out 'at'; select it, too$",
    ),
    "event time that a side of a join leaves out": (
        lambda: (one := a_stage()).key_by("a").interval_join(
            "both", one.select("a AS b").key_by("b"), upper=timedelta(1)
        ),
        r"stage 'both' goes by event time, and select\('a AS b'\) of 'parse' leaves out 'at'; ",
    ),
    "event time of a source": (
        lambda: a_stream().event_time("at"),
        "'events' is a source, which measures its event time; name it there",
    ),
    "event time ahead": (
        lambda: a_stage().event_time("at", out_of_orderness=timedelta(seconds=-1)),
        r"event_time\('at'\): out_of_orderness is -1 s; use 0 or more",
    ),
    "event time beside a source without": (
        lambda: a_join_with(bounded=False).event_time("at"),
        "'both' reads 'names' without event time, and that source never ends, so .* give it one: ",
    ),
    "event time beside a source whose own is left out": (
        lambda: a_join_with(bounded=False, event_time="since").event_time("at"),
        "'both' reads 'names' without event time, .*; its select.* leaves out 'since': select it, ",
    ),
    "hops that do not fit": (
        lambda: Hopping(timedelta(seconds=3), timedelta(seconds=10)),
        "a hopping window of 3 s cannot slide by 10 s, as rows between two windows would be in",
    ),
    "a key in backticks": (
        lambda: a_stage().key_by("`unit price`"),
        "has a column '`unit price`'; a name that stands alone has no backticks",
    ),
    "a key with a backtick, in backticks": (
        lambda: a_stage().key_by("`a``b`"),
        "a name that stands alone has no backticks: write 'a`b'",
    ),
    "a mean by hand": (
        lambda: a_stage().key_by("a").aggregate("mean", m=agg.sum("n") / agg.count()),
        r"sum\('n'\) has no value where it is declared; give each aggregate a name, and compute",
    ),
    "half a millisecond": (
        lambda: Session(timedelta(microseconds=1_500)),
        "gap is 1.5 ms; use whole milliseconds, such as 1 ms or 2 ms",
    ),
    "ranks in sessions of everybody": (
        lambda: a_stage().window_top_n("best", SESSIONS, 1, by="n"),
        r"window_top_n\('best'\): window is a Session; use Tumbling\(.*, Hopping\(.* or Attached",
    ),
    "ranks in sessions": (
        lambda: a_stage().key_by("a").window_top_n("best", SESSIONS, 1, by="n"),
        r"window_top_n\('best'\): window is a Session; use Tumbling\(.*, Hopping\(.* or Attached",
    ),
    "a union of other times": (
        lambda: (one := a_stream()).union(
            "all", one.pipeline.source("more", Nexmark(1), event_time="then")
        ),
        "union 'all' reads streams of different event time, 'at' and 'then'",
    ),
    "a union with what leaves its event time out": (
        lambda: (one := a_stage()).select("a").union("all", one),
        r"event time, None and 'at'; select\('a'\) of 'parse' leaves out 'at'; select it, too$",
    ),
    "a union of two pipelines": (
        lambda: a_stage().union("all", a_stage()), "union 'all' reads streams of two pipelines"
    ),
    "a table of another pipeline": (
        a_table_of_another_pipeline, "lookup 'known' reads streams of two pipelines, 'a' and 'b'"
    ),
    "a join of unequal keys": (
        lambda: (one := a_stage()).key_by("a").join("both", one.key_by("a", "b")),
        "stage 'both' joins 1 key columns with 2",
    ),
    "a join of two pipelines": (
        lambda: a_stage().key_by("a").join("both", a_stage().key_by("a")),
        "stage 'both' reads streams of two pipelines",
    ),
    "an interval that ends before it begins": (
        lambda: (one := a_stage()).key_by("a").interval_join(
            "both", one.key_by("a"), lower=timedelta(1), upper=timedelta(0)
        ),
        "goes from 1 d to 0; the upper bound comes first",
    ),
    "an interval of no event time": (
        lambda: (one := a_stream(None)).key_by("a").interval_join(
            "both", one.key_by("a"), upper=timedelta(1)
        ),
        "stage 'both' reads 'events', which has no event time",
    ),
    "no TTL": (
        lambda: a_stage().key_by("a").aggregate("n", ttl=timedelta(0), n=agg.count()),
        r"aggregate\('n'\): ttl is 0; use 1 ms or more",
    ),
    "a lookup that adds what it has not": (
        lambda: looked_up(keep="unmatched", add=("b",)),
        "lookup 'known' keeps the rows that the table has not, so it cannot add b",
    ),
    "a lookup that adds nothing": (
        lambda: looked_up(keep="all"),
        r"lookup 'known' keeps all rows and adds nothing; name the columns: add=",
    ),
    "a lookup by nothing": (
        lambda: looked_up(on={}),
        "lookup 'known' compares no column; name one: on=",
    ),
    "a parameter with two defaults": (
        lambda: two_limits(param("limit", 5), param("limit", 6)),
        "parameter 'limit' of 'second' is declared before, otherwise: .* declare it once",
    ),
    "a parameter that is required and is not": (
        lambda: two_limits(param("limit"), param("limit", required=False)),
        "parameter 'limit' of 'second' is declared before, otherwise",
    ),
    "a table with event time": (
        lambda: Pipeline("a").source("s", Nexmark(), event_time="at", table=True),
        "source 's' is a table, .* event_time has no effect: leave it out, or table=True",
    ),
    "a table that is idle, out of order and induced": (
        lambda: Pipeline("a").source(
            "s",
            Nexmark(),
            idle_after=timedelta(1),
            out_of_orderness=timedelta(1),
            induced=True,
            table=True,
        ),
        "source 's' .* out_of_orderness, idle_after and induced have no effect: leave them out",
    ),
    "out of orderness of no event time": (
        lambda: Pipeline("a").source("s", Nexmark(), out_of_orderness=timedelta(seconds=5)),
        "source 's' has out_of_orderness, and no event_time that could be out of order; name",
    ),
    "a lookup by an empty text": (
        lambda: looked_up(on={"a": " "}),
        "lookup 'known' has an empty text for 'a'; name a column of the table",
    ),
    "a condition that is empty": (
        lambda: a_stream().where(" "),
        r"where\(\) of 'events' has ' ', which computes nothing; name a column, or write SQL",
    ),
    "a column that is a comment": (
        lambda: a_stage().select("a", "/* b */"),
        r"select\(\) of 'parse' has '/\* b \*/', which computes nothing",
    ),
    "a key of an empty text": (
        lambda: a_stream().key_by(a=""),
        r"key_by\(\) of 'events' has '', which computes nothing",
    ),
    "an aggregate of an empty text": (
        lambda: a_stream().key_by("a").aggregate("n", s=agg.sum("")),
        "'s' of stage 'n' has '', which computes nothing",
    ),
    "an aggregate of rows with an empty text": (
        lambda: a_stream().key_by("a").aggregate("n", s=agg.count(where="")),
        "'s' of stage 'n' has '', which computes nothing",
    ),
    "the latest by one column twice": (
        lambda: a_stream().key_by("a").latest("n", by=("at", "At")),
        r"latest 'n' has by=\('at', 'At'\), which names a column twice; name each once",
    ),
    "the latest by no column": (
        lambda: a_stream().key_by("a").latest("n", by=()),
        "latest 'n' goes by no column; name one: by='at'",
    ),
    "more rows than a rank counts": (
        lambda: a_stream().key_by("a").top_n("n", 2**31, by="b"),
        r"top_n\('n'\): n is 2147483648; use 1 to 2147483647",
    ),
    "ties by an empty text": (
        lambda: a_stream().key_by("a").top_n("n", 3, by="b", ties_by=""),
        "top_n 'n' has ties_by='', which names no column; name each once",
    ),
    "rows that one column identifies twice": (
        lambda: a_stream().key_by("a").top_n("n", 3, by="b", unique=("c", "c")),
        r"top_n 'n' has unique=\('c', 'c'\), which names a column twice",
    ),
    "a function of states alone": (
        lambda: a_keyed_stream().process("n", same, state={"n": int}, result={}),
        "stage 'n' has no column in its result, which no sink could write; name one",
    ),
    "a result by a key of an empty text": (
        lambda: results.Upsert(""), r"Upsert\(key=''\) names no column, or one twice"
    ),
    "a result by partitions of an empty text": (
        lambda: results.ReplacePartitions(("day", "")),
        r"ReplacePartitions\(\('day', ''\)\) names no column, or one twice",
    ),
    "a result of an empty condition": (
        lambda: results.ReplacePartitions("day", where=" "),
        r"ReplacePartitions\(\) has where=' ', which computes nothing; write a condition",
    ),
    "idle at once": (
        lambda: Pipeline("a").source("s", Nexmark(), idle_after=timedelta(0)),
        r"source\('s'\): idle_after is 0; use 1 ms or more",
    ),
    "a deduplication whose order was left out": (
        lambda: a_stream().select("a", "b").key_by("a").deduplicate("first"),
        r"deduplicate 'first' takes the first row by event time, and the select\(\) of 'events'",
    ),
    "nothing selected": (
        lambda: a_stream().select(),
        r"select\(\) of 'events' needs at least one column",
    ),
    "an aggregate in a select": (
        lambda: a_stage().select("max(a) AS m"),
        r"select\(\) of 'parse' has the aggregate max\(\) in 'max\(a\) AS m', which sees one",
    ),
    "an aggregate in a where of a source": (
        lambda: a_stream().where("a > avg (a)"),
        r"where\(\) of 'events' has the aggregate avg\(\) in 'a > avg \(a\)'",
    ),
    "a window function": (
        lambda: a_stream().select("a", "ROW_NUMBER() OVER (ORDER BY a) AS n"),
        r"'events' has the window function row_number\(\)",
    ),
    "anything over a window": (
        lambda: a_stage().select("ntile_of(a) over (partition by b) AS n"),
        "'parse' has a window function in",
    ),
    "a key over a window": (
        lambda: a_stream().key_by(place="row_number() over (order by a)"),
        r"key_by\(\) of 'events' has the window function row_number\(\) in",
    ),
    "a key of a query": (
        lambda: a_stream().key_by(k="(select max(a) from t)"),
        r"key_by\(\) of 'events' has the aggregate max\(\)",
    ),
    "an aggregate over a window": (
        lambda: a_stream().key_by("b").aggregate("n", n=agg.sum("sum(a) over (partition by b)")),
        r"'n' of stage 'n' has the aggregate sum\(\) in",
    ),
    "a condition of an aggregate over a window": (
        lambda: a_stream().key_by("b").window(
            "n", MINUTE, n=agg.count(where="row_number() over (order by a) = 1")
        ),
        r"'n' of stage 'n' has the window function row_number\(\) in",
    ),
    "an order of an aggregate over a window": (
        lambda: a_stream().key_by("b").aggregate(
            "n", n=agg.last("a", by="lag(a) over (order by a)")
        ),
        r"'n' of stage 'n' has the window function lag\(\) in",
    ),
    "an aggregate over rows of its own making": (
        lambda: a_stream().key_by("b").aggregate("n", n=agg.sum("explode(a)"), all=agg.count()),
        r"'n' of stage 'n' has explode\(\) in 'explode\(a\)', which makes many rows of one",
    ),
    "a key of many values": (
        lambda: a_stream().key_by(k="stack(2, a, b)"),
        r"key_by\(\) of 'events' has stack\(\) in .* make them in a select\(\) before",
    ),
    "a condition of many values": (
        lambda: a_stream().where("posexplode_outer(a) > 1"),
        r"where\(\) of 'events' has posexplode_outer\(\) in",
    ),
    "a query in a where": (
        lambda: a_stream().where("a in (select a from t)"),
        "'events' has a query in",
    ),
    "short window": (
        lambda: Tumbling(timedelta(microseconds=1)),
        r"Tumbling\(\): size is 0.001 ms; use 1 ms or more",
    ),
    "table streamed": (
        a_table_is_streamed,
        r"stage 'read' streams the table source 'names'; pass it to lookup\(\)",
    ),
    "lookup of a stream": (
        lambda: a_stage().lookup("join", a_stage(), on="a"),
        "lookup 'join' needs a table source; declare 'parse' with table=True",
    ),
    "lookup of a stream source": (
        lambda: a_stage().lookup("join", a_stream(), on="a"),
        "lookup 'join' needs a table source; declare 'events' with table=True",
    ),
    "versions without event time": (
        lambda: (stream := a_stream(None)).lookup(
            "known",
            stream.pipeline.source("names", Files("/names"), table=True),
            on="a",
            valid_from="since",
        ),
        "lookup 'known' reads 'events', which has no event time; name it: source",
    ),
    "empty key": (lambda: a_stage().key_by(), r"key_by\(\) needs at least one column"),
    "top 0": (
        lambda: a_stage().key_by("a").top_n("best", 0, by="n", unique="a"),
        r"top_n\('best'\): n is 0; use 1 to 2147483647",
    ),
    "no aggregate": (
        lambda: a_stage().key_by("a").aggregate("sums"),
        r"stage 'sums' computes nothing; pass name=count\(\)",
    ),
    "no window aggregate": (
        lambda: a_stage().key_by("a").window("sums", MINUTE), "stage 'sums' computes nothing"
    ),
    "sink on a source": (
        lambda: a_stream().sink("out", FilesTable()),
        "sink 'out' reads the source 'events' itself; put a stage between them",
    ),
    "parallelism": (
        lambda: Pipeline("auctions", parallelism=0),
        r"Pipeline\('auctions'\): parallelism is 0; use 1 to 32768"
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_the_things_name_and_the_fix(mistake: str) -> None:
    declare, message = MISTAKES[mistake]

    with pytest.raises(ConfigurationError, match=message):
        declare()


def a_keyed_stream() -> Any:
    return a_stage().key_by("a")


FORGOTTEN: dict[str, tuple[Callable[[], object], str]] = {
    "Pipeline": (lambda: AnyPipeline(description="x"), r'Pipeline("my_pipeline", ...)'),
    "source": (lambda: any_pipeline().source(Nexmark()), '.source("my_source", spec, ...)'),
    "hook": (lambda: any_pipeline().hook(trigger=same, restore=same), '.hook("my_hook", ...)'),
    "transform": (
        lambda: any_stream().transform(same), '.transform("my_transform", function, ...)'
    ),
    "sink": (lambda: any_stage().sink(FilesTable()), '.sink("my_sink", spec)'),
    "lookup": (lambda: any_stage().lookup(a_stream(), on="a"), '.lookup("my_lookup", table, ...)'),
    "union": (lambda: any_stage().union(a_stage()), '.union("my_union", ...)'),
    "window_top_n": (
        lambda: any_stage().window_top_n(MINUTE, 3, by="n"),
        '.window_top_n("my_window_top_n", window, n, ...)',
    ),
    "aggregate": (
        lambda: a_keyed_stream().aggregate(n=agg.count()), '.aggregate("my_aggregate", ...)'
    ),
    "window": (
        lambda: a_keyed_stream().window(MINUTE, n=agg.count()), '.window("my_window", window, ...)'
    ),
    "top_n": (lambda: a_keyed_stream().top_n(3, by="n"), '.top_n("my_top_n", n, ...)'),
    "latest": (lambda: a_keyed_stream().latest(by="n"), '.latest("my_latest", ...)'),
    "deduplicate": (lambda: a_keyed_stream().deduplicate(), '.deduplicate("my_deduplicate", ...)'),
    "join": (lambda: a_keyed_stream().join(a_keyed_stream()), '.join("my_join", other, ...)'),
    "interval_join": (
        lambda: a_keyed_stream().interval_join(a_keyed_stream(), upper=timedelta(1)),
        '.interval_join("my_interval_join", other, ...)',
    ),
    "window_join": (
        lambda: a_keyed_stream().window_join(a_keyed_stream(), MINUTE),
        '.window_join("my_window_join", other, window, ...)',
    ),
    "process": (
        lambda: a_keyed_stream().process(same, state={}, result={}),
        '.process("my_process", function, ...)',
    ),
    "process_keyed": (
        lambda: a_keyed_stream().process_keyed(same, result={}),
        '.process_keyed("my_process_keyed", function, ...)',
    ),
    "spark": (
        lambda: any_stream().pipeline.spark(
            same, reads={}, schema="a int", result=results.Append()
        ),
        '.spark("my_spark", function, ...)',
    ),
    "spark_results": (
        lambda: any_stream().pipeline.spark_results(same, reads={}, results={}),
        '.spark_results("my_spark_results", function, ...)',
    ),
    "spark_sql": (
        lambda: any_stream().pipeline.spark_sql(
            reads={}, schema="a int", result=results.Append()
        ),
        '.spark_sql("my_spark_sql", text, ...)',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_forgotten_uid_is_refused_with_what_to_write(name: str) -> None:
    declare, written = FORGOTTEN[name]

    with pytest.raises(ConfigurationError) as caught:
        declare()

    assert str(caught.value) == f"{name} needs a uid first: {written}; state is recovered by it"


def test_every_method_that_declares_something_is_among_them() -> None:
    declaring = {
        name
        for kind in (Pipeline, Stream, KeyedStream)
        for name, method in vars(kind).items()
        if "uid" in getattr(method, "__annotations__", {}) and not name.startswith("_")
    }

    reading = {"parallelism_of", "sinks_of", "consumers_of", "sources_of", "upstream_of"}
    assert declaring - reading - {"stage"} == FORGOTTEN.keys() - {"Pipeline"}


def test_a_uid_may_be_given_by_name() -> None:
    stream = a_stream().transform(uid="parse", function=same)

    assert stream.producer == "parse"


def test_a_declaration_reads_like_the_drawing() -> None:
    pipeline = Pipeline("ssh_threats", parallelism=4)
    names = pipeline.source("names", Files(param("names")), table=True)
    log = pipeline.source(
        "log", Files(param("input")), event_time="at", out_of_orderness=timedelta(seconds=5)
    )
    (
        log.transform("parse", same, year=param("year", 2015))
        .lookup("known", names, on="name", keep="unmatched")
        .key_by("name", day="date(at)")
        .window("window_rule", MINUTE, parallelism=2, failed=agg.count(), users=agg.sum("users"))
        .where("failed >= 5")
        .where("users > 1")
        .select("name", "failed")
        .sink("alerts", FilesTable(param("output", required=False)))
    )

    window = pipeline.stages["window_rule"]
    assert list(pipeline.stages) == ["parse", "known", "window_rule"]
    assert [s.producers for s in pipeline.stages.values()] == [("log",), ("parse",), ("known",)]
    assert [s.inputs[0].event_time for s in pipeline.stages.values()] == ["at"] * 3
    assert isinstance(window.operation, WindowAggregate)
    assert window.keys == ("name", "day")
    assert window.inputs[0].key_expressions == {"day": "date(at)"}
    assert window.steps == (
        Filter("failed >= 5"),
        Filter("users > 1"),
        Projection(("name", "failed")),
    )
    assert [p.name for p in pipeline.params] == ["input", "names", "output", "year"]
    assert [source.uid for source in pipeline.stream_sources()] == ["log"]
    assert pipeline.sources["log"].out_of_orderness_ms == 5_000
    assert pipeline.sinks_of("window_rule") == (pipeline.sinks["alerts"],)
    assert pipeline.sources_of("parse") == (pipeline.sources["log"],)
    assert pipeline.sources_of("known") == ()
    assert (pipeline.upstream_of("parse"), pipeline.upstream_of("known")) == ((), ("parse",))


def test_the_nearest_parallelism_counts() -> None:
    pipeline = Pipeline("auctions", parallelism=4)
    pipeline.source("events", Nexmark()).transform("own", same, parallelism=3).transform("a", same)

    assert pipeline.parallelism_of("own", override=8) == 3
    assert pipeline.parallelism_of("a", override=8) == 8
    assert pipeline.parallelism_of("a") == 4


def test_chaining_is_disabled_of_a_stage_alone() -> None:
    pipeline = Pipeline("p")
    source = pipeline.source("rows", Files("/rows"))
    ones = source.key_by("k").aggregate("ones", n=agg.count()).where("n = 1").disable_chaining()
    ones.key_by("n").aggregate("of_ones", m=agg.count())

    assert [stage.chained for stage in pipeline.stages.values()] == [False, True]
    with pytest.raises(ConfigurationError, match="'rows' is a source, and is never chained"):
        source.disable_chaining()


def test_filters_and_projections_of_a_source_cost_no_stage() -> None:
    events = a_stream()
    bids = events.where("price > 0").where("a < 9").select("a", "bid.price AS price", "x.at")
    bids.key_by("a").aggregate("sums", total=agg.sum("price"))
    events.select("a").key_by("a").aggregate("counts", n=agg.count())

    stages = events.pipeline.stages
    assert stages["sums"].inputs[0].steps == (
        Filter("price > 0"),
        Filter("a < 9"),
        Projection(("a", "bid.price AS price", "x.at")),
    )
    assert stages["sums"].inputs[0].event_time == "at"
    assert stages["counts"].inputs[0].event_time is None  # It is not among what was selected.


def test_a_stream_that_is_derived_changes_no_other() -> None:
    stage = a_stage()
    pipeline = stage.pipeline
    stage.where("a = 9").select("b")  # Nobody reads it.
    big, small = stage.where("a > 1"), stage.where("a <= 1").select("a")
    stage.sink("all", FilesTable())
    big.sink("big", FilesTable())
    small.key_by("a").aggregate("sums", n=agg.count())

    assert pipeline.stages["parse"].steps == ()
    assert pipeline.sinks["all"].steps == ()
    assert pipeline.sinks["big"].steps == (Filter("a > 1"),)
    assert pipeline.stages["sums"].inputs[0].steps == (Filter("a <= 1"), Projection(("a",)))


def test_a_stage_carries_out_the_steps_with_which_all_its_readers_begin() -> None:
    stage = a_stage()
    pipeline = stage.pipeline
    some = stage.where("a > 1")
    some.where("b > 1").where("c > 1").sink("first", FilesTable())
    alone = pipeline.stages["parse"].steps, pipeline.sinks["first"].steps
    few = some.where("b > 1")
    few.key_by("a").join("both", few.select("a", "c").key_by("a"))
    shared = pipeline.stages["parse"].steps
    some.sink("last", FilesTable())

    assert alone == ((Filter("a > 1"), Filter("b > 1"), Filter("c > 1")), ())
    assert shared == (Filter("a > 1"), Filter("b > 1"))
    assert pipeline.stages["parse"].steps == (Filter("a > 1"),)
    assert pipeline.sinks["first"].steps == (Filter("b > 1"), Filter("c > 1"))
    assert pipeline.sinks["last"].steps == ()
    assert [given.steps for given in pipeline.stages["both"].inputs] == [
        (Filter("b > 1"),),
        (Filter("b > 1"), Projection(("a", "c"))),
    ]


def test_a_reader_that_is_refused_changes_no_other() -> None:
    totals = a_stage().key_by("a").aggregate("totals", n=agg.count())
    totals.where("n > 1").sink("big", FilesTable(upsert_key=("a",)))

    with pytest.raises(ConfigurationError, match="sink 'all' appends"):
        totals.sink("all", FilesTable())

    assert totals.pipeline.stages["totals"].steps == (Filter("n > 1"),)


def test_the_kind_of_a_branch_is_its_own() -> None:
    totals = a_stage().key_by("a").aggregate("totals", n=agg.count())
    totals.sink("all", FilesTable(upsert_key=("a",)))
    totals.select("n").transform("bag", same)

    assert totals.pipeline.stages["totals"].kind == Upsert(("a",))
    assert totals.pipeline.stages["bag"].kind == Retract()
    with pytest.raises(ConfigurationError, match="no columns identify a row of 'totals'"):
        totals.select("n").sink("lost", FilesTable(upsert_key=("n",)))


def test_a_star_keeps_event_time_and_a_later_select_may_bring_it_back() -> None:
    events = a_stream()

    assert events.select("*", "a + 1 AS b").time_column == "at"
    assert events.select("a", "ms").time_column is None
    assert events.select("a", "ms").select("*").time_column is None
    assert events.select("a", "ms").select("a", "timestamp_millis(ms) AS at").time_column == "at"


def test_event_time_is_assigned_behind_any_stage_and_changes_no_other_stream() -> None:
    joined = a_join_with(bounded=True)
    timed = joined.event_time("at", out_of_orderness=timedelta(seconds=5)).where("a > 1")
    timed.key_by("a").window("sums", MINUTE, n=agg.count())
    timed.union("all", joined.event_time("at")).key_by("a").window("more", MINUTE, n=agg.count())

    stages = joined.pipeline.stages
    assert (joined.time_column, joined.out_of_orderness_ms) == (None, 0)
    read = stages["sums"].inputs[0]
    assert (read.event_time, read.out_of_orderness_ms) == ("at", 5_000)
    assert stages["all"].out_of_orderness_ms("passed") == 5_000
    assert (stages["more"].inputs[0].event_time, stages["more"].out_of_orderness_ms("all")) == (
        "at",
        0,
    )


def test_a_join_tells_two_event_times_of_one_name_apart() -> None:
    events = a_stream()
    events.key_by("a").interval_join("both", events.key_by("b"), upper=timedelta(seconds=1))

    left, right = events.pipeline.stages["both"].inputs
    assert (left.keys, left.event_time, left.renames) == (("a",), "at", {})
    assert (right.keys, right.event_time, right.renames) == (("b",), "right_at", {"at": "right_at"})
    assert events.pipeline.sources_of("both") == (events.pipeline.sources["events"],)


def test_operations_are_declared_by_name() -> None:
    keyed = a_stage().key_by("a")
    pipeline = keyed.stream.pipeline
    keyed.aggregate("sums", n=agg.count(), ttl=timedelta(minutes=1))
    keyed.top_n("best", 3, by="price", ties_by="b", unique=("a", "b"))

    assert isinstance(pipeline.stages["sums"].operation, KeyedAggregate)
    assert pipeline.stages["sums"].ttl_ms == 60_000
    assert pipeline.stages["parse"].keys == ()
    assert not pipeline.stages["parse"].is_stateful
    assert pipeline.stages["best"].operation == TopN(
        n=3, by="price", ties_by=("b",), unique=("a", "b")
    )


def test_an_aggregate_of_values_needs_their_column() -> None:
    with pytest.raises(ConfigurationError, match=r"sum\(\) needs the name of a column"):
        agg.Aggregate(kind=agg.AggregateKind.SUM)


def test_the_name_of_a_type_is_refused_where_it_is_declared() -> None:
    keyed = a_stage().key_by("a")

    with pytest.raises(ConfigurationError, match="stage 'p' declares column 'n' as the text 'big"):
        keyed.process(
            "p", lambda rows, state: (rows, state), state={"n": "bigint"}, result={"a": int}
        )


def left_by(protocol: type, defaults: type) -> set[str]:
    """The members of *protocol* for which *defaults* has nothing."""
    members = {name for name in vars(protocol) if not name.startswith("_")}
    return members - set(vars(defaults))


def test_of_a_source_at_most_five_methods_have_to_be_written() -> None:
    assert left_by(Source, SourceDefaults) == {"bounded", "schema", "plan", "read"}
    assert OffsetSource.__abstractmethods__ == {"bounded", "name", "schema", "readable", "read"}


def test_of_a_sink_at_most_six_methods_have_to_be_written() -> None:
    whole = {"stage", "commit", "is_published", "compare", "recover", "abort"}
    assert left_by(Sink, SinkDefaults) == whole
    assert left_by(Target, TargetDefaults) == {"publish", "timeline", "recover"}


def test_a_partition_that_waits_without_an_entry_is_refused() -> None:
    """It would not hold the watermark back: its rows would be late, and lost."""
    with pytest.raises(ValueError, match="a waiting partition has an entry in the position"):
        Barrier(position=(), slices=(), exhausted=False, waiting=("new",))
