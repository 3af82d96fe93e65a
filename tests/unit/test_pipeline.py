"""What a declaration can get wrong: each mistake is refused with the thing's name and the fix."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from sluice import aggregates as agg
from sluice.errors import ConfigurationError
from sluice.nodes import KeyedAggregate, TopN, WindowAggregate
from sluice.params import param
from sluice.pipeline import Pipeline, Stream
from sluice.sinks import FilesTable
from sluice.sources import Files, Nexmark
from sluice.windows import Tumbling

MINUTE = Tumbling(timedelta(minutes=1))


def same(rows: object) -> object:
    return rows


def a_stream(event_time: str | None = "at") -> Stream:
    pipeline = Pipeline("auctions")
    return pipeline.source("events", Nexmark(10), event_time=event_time)


def a_stage() -> Stream:
    return a_stream().transform("parse", same)


def declared_again(uid: str) -> None:
    stream = a_stage()
    stream.sink("results", FilesTable())
    stream.key_by("a").aggregate(uid, n=agg.count())


def a_table_is_streamed() -> None:
    names = a_stream().pipeline.source("names", Files("/names"), table=True)
    names.transform("read", same)


def where_after_a_consumer() -> None:
    stream = a_stage()
    stream.transform("next_one", same)
    stream.where("a > 1")


def where_after_a_sink() -> None:
    stream = a_stage()
    stream.sink("results", FilesTable())
    stream.where("a > 1")


def a_sink_of_another_uid_twice() -> None:
    stream = a_stage()
    stream.sink("parse", FilesTable())


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "pipeline uid": (lambda: Pipeline("My Job"), "uid 'My Job' is not usable; use up to 63 of a-z"),
    "source uid": (
        lambda: Pipeline("a").source("1st", Nexmark()), "uid '1st' is not usable; use up to 63"
    ),
    "long uid": (lambda: a_stage().transform("a" * 64, same), "is not usable; use up to 63"),
    "sink uid": (lambda: a_stage().sink("Out", FilesTable()), "uid 'Out' is not usable"),
    "stage twice": (
        lambda: declared_again("parse"),
        "uid 'parse' is declared twice in pipeline 'auctions'; .* needs its own",
    ),
    "stage as source": (lambda: declared_again("events"), "uid 'events' is declared twice"),
    "stage as sink": (lambda: declared_again("results"), "uid 'results' is declared twice"),
    "sink as stage": (a_sink_of_another_uid_twice, "uid 'parse' is declared twice"),
    "window without event time": (
        lambda: a_stream(None).transform("parse", same).key_by("a").window(
            "sums", MINUTE, n=agg.count()
        ),
        r"window 'sums' has no event time; name it: source\(\.\.\., event_time='column'\)",
    ),
    "window behind a window": (
        lambda: a_stage().key_by("a").window("one", MINUTE, n=agg.count()).key_by("n").window(
            "two", MINUTE, m=agg.count()
        ),
        "window 'two' has no event time",
    ),
    "window on a source": (
        lambda: a_stream().key_by("a").window("sums", MINUTE, n=agg.count()),
        r"window 'sums' reads the source 'events' itself.*put a transform\(\) between them",
    ),
    "short window": (
        lambda: Tumbling(timedelta(microseconds=1)),
        "a tumbling window of 0:00:00.000001 is too short; use 1 ms or more",
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
    "where after a consumer": (
        where_after_a_consumer, "before its consumers; 'parse' is already consumed"
    ),
    "where after a sink": (where_after_a_sink, "before its consumers; 'parse' is already consumed"),
    "where on a source": (lambda: a_stream().where("a > 1"), "stage.*'events' is a source"),
    "select on a source": (lambda: a_stream().select("a"), "'events' is a source"),
    "empty key": (lambda: a_stage().key_by(), r"key_by\(\) needs at least one column"),
    "top 0": (
        lambda: a_stage().key_by("a").top_n("best", 0, by="n", unique="a"),
        "top_n 'best' has n = 0; use 1 or more",
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
        lambda: Pipeline("auctions", parallelism=0), "stage 'auctions' has parallelism 0"
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_with_the_things_name_and_the_fix(mistake: str) -> None:
    declare, message = MISTAKES[mistake]

    with pytest.raises(ConfigurationError, match=message):
        declare()


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
    assert [stage.input for stage in pipeline.stages.values()] == ["log", "parse", "known"]
    assert [stage.event_time for stage in pipeline.stages.values()] == ["at"] * 3
    assert isinstance(window.operator, WindowAggregate)
    assert window.keys == ("name", "day")
    assert window.key_expressions == {"day": "date(at)"}
    assert window.needed_columns == ("at", "users")
    assert window.where == ("failed >= 5", "users > 1")
    assert window.select == ("name", "failed")
    assert [p.name for p in pipeline.params] == ["input", "names", "output", "year"]
    assert [source.uid for source in pipeline.stream_sources()] == ["log"]
    assert pipeline.sources["log"].out_of_orderness_ms == 5_000
    assert pipeline.sinks_of("window_rule") == (pipeline.sinks["alerts"],)
    assert pipeline.source_of("parse") == pipeline.sources["log"]
    assert pipeline.source_of("known") is None


def test_the_nearest_parallelism_counts() -> None:
    pipeline = Pipeline("auctions", parallelism=4)
    pipeline.source("events", Nexmark()).transform("own", same, parallelism=3).transform("a", same)

    assert pipeline.parallelism_of("own", override=8) == 3
    assert pipeline.parallelism_of("a", override=8) == 8
    assert pipeline.parallelism_of("a") == 4


def test_a_keyed_stage_shuffles_what_it_needs_and_no_more() -> None:
    keyed = a_stage().key_by("a")
    pipeline = keyed.stream.pipeline
    keyed.aggregate("sums", n=agg.count(), total=agg.sum("price"), best=agg.max("price"))
    keyed.top_n("best", 3, by="price", unique=("a", "b"))

    assert pipeline.stages["sums"].needed_columns == ("price",)
    assert isinstance(pipeline.stages["sums"].operator, KeyedAggregate)
    assert pipeline.stages["best"].needed_columns is None
    assert pipeline.stages["parse"].needed_columns is None
    assert pipeline.stages["parse"].keys == ()
    assert pipeline.stages["best"].operator == TopN(keys=("a",), n=3, by="price", unique=("a", "b"))


def test_an_aggregate_of_values_needs_their_column() -> None:
    with pytest.raises(ConfigurationError, match=r"sum\(\) needs the name of a column"):
        agg.Aggregate(kind=agg.AggregateKind.SUM)
