"""The algebra of changes: every cell of the tables in docs/reference/pipelines.md, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration import results
from sluice.declaration.changelog import (
    Append,
    Kind,
    Retract,
    StreamRead,
    Upsert,
    after,
    analysed,
    check_row_kind_column,
    check_sink,
)
from sluice.declaration.expressions import Filter, Projection
from sluice.declaration.keyed_functions import Context, KeyedProcessFunction, Row
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import Attached, Session, Tumbling, Union
from sluice.declaration.pipeline import KeyedStream, Pipeline, Stream
from sluice.errors import ConfigurationError
from sluice.sinks import DeltaTable, FilesTable, IcebergTable, KafkaTopic, PostgresTable, SinkSpec
from sluice.sources import Nexmark

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "pipelines.md"
READ: dict[str, Kind] = {"append": Append(("u",)), "upsert": Upsert(("u",)), "retract": Retract()}
MINUTE, HOUR = Tumbling(timedelta(minutes=1)), timedelta(hours=1)


class Silent(KeyedProcessFunction):
    """Yields nothing."""

    def process(self, row: Row, context: Context) -> None:
        """Nothing."""


def a_stream(kind: Kind) -> Stream:
    """Rows of that kind, those that are only appended with event time."""
    pipeline = Pipeline("auctions")
    events = pipeline.source("events", Nexmark(10), event_time="at")
    match kind:
        case Append():
            return events.key_by("u").deduplicate("appended")
        case Upsert():
            return events.key_by("u").latest("updated", by="at")
        case Retract():
            current = events.key_by("u").latest("current", by="at")
            return current.union("updated", pipeline.source("more", Nexmark(10)))


def keyed(stream: Stream) -> KeyedStream:
    return stream.key_by("k")


def another(stream: Stream) -> KeyedStream:
    return stream.pipeline.source("others", Nexmark(10), event_time="at").key_by("k")


def spark_code(stream: Stream, result: results.Result) -> Stream:
    return stream.pipeline.spark(
        "it", lambda rows: rows, reads={"rows": stream}, schema="k int", result=result
    )


def a_table(stream: Stream) -> Stream:
    return stream.pipeline.source("names", Nexmark(10), table=True)


DECLARED: Mapping[str, Callable[[Stream], Stream]] = {
    "`transform`": lambda s: s.transform("it", lambda rows: rows),
    "`where`": lambda s: s.transform("it", lambda rows: rows).where("a > 1"),
    "`select` that keeps the key, or renames it": (
        lambda s: s.transform("it", lambda rows: rows).select("a + 1 AS a", "u")
    ),
    "`select` that drops a column of the key": (
        lambda s: s.transform("it", lambda rows: rows).select("a", "u + 1 AS u")
    ),
    "`lookup`": lambda s: s.lookup("it", a_table(s), on="a", keep="unmatched"),
    "`lookup` that adds columns, without `valid_from`": (
        lambda s: s.lookup("it", a_table(s), on="a", add=("name",))
    ),
    "`union`": lambda s: s.union(
        "it", s.pipeline.source("others", Nexmark(10), event_time=s.time_column)
    ),
    "`aggregate`": lambda s: keyed(s).aggregate("it", n=agg.count()),
    "`latest`": lambda s: keyed(s).latest("it", by="a"),
    "`top_n`": lambda s: keyed(s).top_n("it", 3, by="a", unique="u"),
    "`window`": lambda s: keyed(s).window("it", MINUTE, n=agg.count()),
    "`window` with lateness": (
        lambda s: keyed(s).window("it", MINUTE, allowed_lateness=HOUR, n=agg.count())
    ),
    "`window` with lateness, `Attached`": (
        lambda s: keyed(s).window("it", Attached(), allowed_lateness=HOUR, n=agg.count())
    ),
    "`window_top_n`": lambda s: keyed(s).window_top_n("it", MINUTE, 1, by="a"),
    "`deduplicate`": lambda s: keyed(s).deduplicate("it"),
    "`join`, inner and semi": lambda s: keyed(s).join("it", another(s), how="semi"),
    "`join`, left, right, full and anti": lambda s: keyed(s).join("it", another(s), how="anti"),
    "`window_join`": lambda s: keyed(s).window_join("it", another(s), MINUTE),
    "`interval_join`": lambda s: keyed(s).interval_join("it", another(s), upper=HOUR),
    "`process`": (
        lambda s: keyed(s).process(
            "it", lambda rows, state: (rows, state), state={"a": int}, result={"a": int}
        )
    ),
    "`process_keyed`": lambda s: keyed(s).process_keyed("it", Silent(), result={"a": int}),
    "`spark` of `Append`": lambda s: spark_code(s, results.Append()),
    "`spark` of a result with a key": lambda s: spark_code(s, results.Replace("k")),
    "`spark` of one without": lambda s: spark_code(s, results.ReplacePartitions("k")),
    "`spark` of its `changes`": lambda s: s.pipeline.spark(
        "it", lambda rows: rows, changes={"rows": s}, schema="k int", result=results.Append()
    ),
}


def table(first: str) -> dict[str, dict[str, str]]:
    """The table of the page whose first column is called so: row -> column -> cell."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if re.match(r"\|.*\|$", line)
    ]
    start = next(number for number, row in enumerate(rows) if row[0] == first)
    end = next(
        (n for n in range(start + 2, len(rows)) if rows[n][0] == "sink" or len(rows[n]) != 4),
        len(rows),
    )
    columns = [name.removeprefix("reads ") for name in rows[start][1:]]
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows[start + 2 : end]}


def in_words(declare: Callable[[Stream], Stream], read: Kind) -> str:
    try:
        stream = declare(a_stream(read))
    except ConfigurationError:
        return "refused"
    match stream.kind:
        case Upsert(key=("u",)):
            return "upsert by the same"
        case Upsert(key=("k", *others)):
            return f"upsert by {', '.join(['keys', *others])}"
        case kind:
            return str(kind)


def test_the_page_says_of_every_operator_what_it_yields_of_what_it_reads() -> None:
    assert table("operator") == {
        name: {reads: in_words(declare, kind) for reads, kind in READ.items()}
        for name, declare in DECLARED.items()
    }


def test_other_readers_of_a_stream_do_not_change_its_kind() -> None:
    alone = a_stream(Upsert(("u",)))
    alone.transform("it", lambda rows: rows)
    beside = a_stream(Upsert(("u",)))
    beside.key_by("k").aggregate("sibling", n=agg.count())
    beside.transform("it", lambda rows: rows)

    assert beside.pipeline.stages["it"] != alone.pipeline.stages["it"]  # Another function.
    assert beside.pipeline.stages["it"].inputs == alone.pipeline.stages["it"].inputs
    assert alone.pipeline.stages["it"].inputs == (Input(producer="updated", kind=Upsert(("u",))),)


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        (("*",), Upsert(("a", "b"))),
        (("c", "b", "a"), Upsert(("a", "b"))),
        (("b AS c", "`a` as `d`"), Upsert(("d", "c"))),
        (("`b`", "A `d`"), Upsert(("d", "b"))),
        (('"b"', "a"), Retract()),  # To Spark a text.
        (("a", "c"), Retract()),
        (("a", "lower(b) AS b"), Retract()),
        (("b AS a", "a AS b"), Upsert(("b", "a"))),
        (("a + b AS a",), Retract()),
    ],
)
def test_a_key_is_kept_by_its_columns_whatever_they_are_called(
    columns: tuple[str, ...], kind: Kind
) -> None:
    steps = (Filter("a > 1"), Projection(columns))

    assert after(steps, Upsert(("a", "b"))) == kind
    assert [after(steps, other) for other in (Append(), Retract())] == [Append(), Retract()]


def test_projections_follow_each_other() -> None:
    steps = (Projection(("a AS x", "b")), Projection(("b", "x AS y")))

    assert after(steps, Upsert(("a", "b"))) == Upsert(("y", "b"))
    assert after((*steps, Projection(("x",))), Upsert(("a", "b"))) == Retract()


def test_a_function_that_drops_a_column_of_the_key_leaves_rows_that_nothing_identifies() -> None:
    assert analysed(Upsert(("a", "b")), ["b", "c", "a"]) == Upsert(("a", "b"))
    assert analysed(Upsert(("a", "b")), ["b", "c"]) == Retract()
    assert analysed(Append(), ["c"]) == Append()
    assert analysed(Retract(), ["c"]) == Retract()


def test_sessions_are_of_their_start_for_those_of_a_key_lie_apart() -> None:
    stage = (
        keyed(a_stream(Append()))
        .window("it", Session(HOUR), allowed_lateness=HOUR, n=agg.count())
        .pipeline.stages["it"]
    )

    assert stage.kind == Upsert(("k", "window_start"))


def test_a_key_is_named_once_however_often_it_is_part_of_a_window() -> None:
    stream = a_stream(Append()).key_by("k", "window_start")
    stream.window("it", Attached(), allowed_lateness=HOUR, n=agg.count())

    kind = stream.stream.pipeline.stages["it"].kind
    assert kind == Upsert(("k", "window_start", "window_end"))


ROWS_ARE_TOLD_APART_BY: Mapping[str, tuple[str, ...]] = {
    "`transform`": ("u",),
    "`where`": ("u",),
    "`select` that keeps the key, or renames it": ("u",),
    "`lookup`": ("u",),
    "`window`": ("k", "window_start"),
    "`window_top_n`": ("k", "window_start", "rank"),
    "`deduplicate`": ("k",),
}


@pytest.mark.parametrize("name", DECLARED)
def test_appended_rows_are_told_apart_by_what_their_declaration_shows(name: str) -> None:
    kind = DECLARED[name](a_stream(Append())).kind

    if isinstance(kind, Append):
        assert kind.key == ROWS_ARE_TOLD_APART_BY.get(name, ())


def test_windows_that_may_begin_at_once_are_told_apart_by_their_ends_and_ties_by_nothing() -> None:
    stream = a_stream(Append()).key_by("k")
    windows = stream.window("counts", Attached(), n=agg.count())
    best = stream.window_top_n("best", Attached(), 1, by="a")
    tied = stream.window_top_n("tied", MINUTE, 1, by="a", ties=True)

    found = [one.pipeline.stages[one.producer].kind for one in (windows, best, tied)]
    assert [one.key for one in found if isinstance(one, Append)] == [
        ("k", "window_start", "window_end"),
        ("k", "window_start", "window_end", "rank"),
        (),
    ]


def test_what_a_function_drops_does_not_tell_appended_rows_apart() -> None:
    kind = analysed(Append(("a", "b")), ("a", "c"))

    assert isinstance(kind, Append)
    assert kind.key == ()


def test_kinds_in_words() -> None:
    kinds = (Append(), Upsert(("a", "b")), Retract())

    assert [str(kind) for kind in kinds] == ["append", "upsert by a, b", "retract"]


SINKS: Mapping[str, SinkSpec] = {
    "appends": FilesTable(),
    "`upsert_key` (Kafka: `upsert=True`)": FilesTable(upsert_key=("v", "u")),
    "`changelog=True`": FilesTable(changelog=True),
}


def test_the_page_says_of_every_sink_what_it_takes() -> None:
    def is_taken(spec: SinkSpec, kind: Kind) -> bool:
        try:
            check_sink("out", spec, StreamRead("stage", kind))
        except ConfigurationError:
            return False
        return True

    assert {
        name: {reads: cell != "refused" for reads, cell in row.items()}
        for name, row in table("sink").items()
    } == {
        name: {reads: is_taken(spec, kind) for reads, kind in READ.items()}
        for name, spec in SINKS.items()
    }


REPLACED = "stage 'it' reads 'updated', whose rows replace earlier ones with the same u, and "
TAKEN_BACK = "stage 'it' reads 'updated', which takes rows back, and "
REFUSED = {
    "`window`": (
        "window() cannot take a row back; use aggregate() with the time among the keys: "
        "key_by(hour=\"date_trunc('hour', at)\")"
    ),
    "`window_top_n`": (
        "window_top_n() cannot take a row back; use top_n() with the window's start among the keys"
    ),
    "`deduplicate`": "deduplicate() cannot take a row back; use latest()",
    "`window_join`": (
        "window_join() cannot take a row back; use join() with the window's start among the keys"
    ),
    "`interval_join`": "interval_join() cannot take a row back; use join() and where()",
    "`process`": (
        "a function of your own cannot take a row back; put it before that stage, or use "
        "aggregate(), top_n(), latest() or join()"
    ),
}
for _result in ("`Append`", "a result with a key", "one without"):
    REFUSED[f"`spark` of {_result}"] = (
        "Spark code, which is given the rows that came, cannot take a row back; give it to the "
        "function as one of changes={...}, where a column _change says what a row does, or as "
        "current(stream), the rows that are there, or use aggregate(), top_n(), latest() or join()"
    )
REFUSED["`process_keyed`"] = REFUSED["`process`"]
REFUSED["`window` with lateness"] = REFUSED["`window`"]


@pytest.mark.parametrize("name", ["`lookup`", "`lookup` that adds columns, without `valid_from`"])
def test_a_lookup_of_updated_rows_needs_a_key_for_what_it_sent(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DECLARED[name](a_stream(Retract()))

    assert str(caught.value) == (
        f"{TAKEN_BACK}lookup() cannot take a row back; look up what that stage reads, before it, "
        "or give its rows a key with key_by(...).latest(...)"
    )
    stages = DECLARED[name](a_stream(Upsert(("u",)))).pipeline.stages
    assert (stages["it"].is_stateful, stages["it"].keys) == (True, ("u",))
    assert not DECLARED[name](a_stream(Append())).pipeline.stages["it"].is_stateful


@pytest.mark.parametrize("name", REFUSED)
def test_an_operation_that_cannot_take_a_row_back_names_one_that_can(name: str) -> None:
    for kind, reads in ((Upsert(("u",)), REPLACED), (Retract(), TAKEN_BACK)):
        stream = a_stream(kind)
        with pytest.raises(ConfigurationError) as caught:
            DECLARED[name](stream)

        assert str(caught.value) == reads + REFUSED[name]
        assert "it" not in stream.pipeline.stages


SINK_MISTAKES: Mapping[str, tuple[SinkSpec, Kind, str]] = {
    "upserts what is appended": (
        FilesTable(upsert_key=("a", "b")),
        Append(),
        (
            "sink 'out' upserts by a, b, but 'best' may append several rows of one such key, and "
            "nothing says which of a checkpoint's is the newest; choose it with "
            "key_by('a', 'b').latest(...), or append every row"
        ),
    ),
    "a key that is not all of it": (
        KafkaTopic("localhost", "t", key="a", upsert=True),
        Append(("a", "window_start")),
        (
            "sink 'out' upserts by a, but 'best' may append several rows of one such key, and "
            "nothing says which of a checkpoint's is the newest; upsert by ('a', 'window_start'), "
            "choose it with key_by('a').latest(...), or append every row"
        ),
    ),
    "appends updates": (
        FilesTable(),
        Upsert(("a", "b")),
        (
            "sink 'out' appends, but rows of 'best' replace earlier ones with the same a, b; keep "
            "the newest with upsert_key=('a', 'b'), which of a KafkaTopic is key=... and "
            "upsert=True, or write every change with changelog=True"
        ),
    ),
    "appends what is taken back": (
        FilesTable(),
        Retract(),
        (
            "sink 'out' appends, but 'best' takes rows back; write every change with "
            "changelog=True, or give its rows a key with key_by(...).latest(...) and keep "
            "the newest with upsert_key=..."
        ),
    ),
    "another key": (
        FilesTable(upsert_key=("player",)),
        Upsert(("game", "rank")),
        (
            "sink 'out' upserts by player, but 'best' has a row for each game, rank, several of "
            "which may share a key; upsert by ('game', 'rank'), or choose one with "
            "key_by('player').latest(...)"
        ),
    ),
    "a key that is misspelt here or there": (
        FilesTable(upsert_key=("user",)),
        Upsert(("usr",)),
        (
            "sink 'out' upserts by user, but 'best' has a row for each usr, several of which may "
            "share a key; if 'usr' or 'user' is misspelt, mend it; else upsert by ('usr',), or "
            "choose one with key_by('user').latest(...)"
        ),
    ),
    "a key of a topic": (
        KafkaTopic("localhost", "t", key="game", upsert=True),
        Upsert(("game", "rank")),
        (
            "sink 'out' upserts by game, but 'best' has a row for each game, rank, several of "
            "which may share a key; upsert by ('game', 'rank'), or choose one with "
            "key_by('game').latest(...)"
        ),
    ),
    "a key of what has none": (
        FilesTable(upsert_key=("a", "b")),
        Retract(),
        (
            "sink 'out' upserts by a, b, but no columns identify a row of 'best'; choose one with "
            "key_by('a', 'b').latest(...), or write every change with changelog=True"
        ),
    ),
}


@pytest.mark.parametrize("mistake", SINK_MISTAKES)
def test_a_sink_that_cannot_show_its_stream_names_the_fix(mistake: str) -> None:
    spec, kind, message = SINK_MISTAKES[mistake]

    with pytest.raises(ConfigurationError) as caught:
        check_sink("out", spec, StreamRead("best", kind))

    assert str(caught.value) == message


def test_a_sink_is_refused_where_it_is_declared() -> None:
    best = a_stream(Append()).key_by("game").top_n("best", 1, by="score")

    with pytest.raises(
        ConfigurationError, match="sink 'leaders' upserts by player, but 'best' has"
    ):
        best.sink("leaders", FilesTable(upsert_key=("player",)))
    assert best.pipeline.sinks == {}


def test_a_changelog_needs_the_column_kind_for_itself() -> None:
    spec = FilesTable(changelog=True)
    check_row_kind_column("out", spec, "best", ["kinds"])
    check_row_kind_column("out", FilesTable(), "best", ["kind"])

    with pytest.raises(ConfigurationError) as caught:
        check_row_kind_column("out", spec, "best", ["a", "kind"])

    assert str(caught.value) == (
        "sink 'out' writes a changelog, whose column 'kind' says what a row does, but 'best' has a "
        "column of that name; rename it: select('kind AS ...')"
    )


BOTH: Mapping[str, Callable[[], SinkSpec]] = {
    "FilesTable": lambda: FilesTable(upsert_key=("a", "b"), changelog=True),
    "IcebergTable 'shop.t'": lambda: IcebergTable(
        "shop.t", {"type": "sql"}, upsert_key=("a", "b"), changelog=True
    ),
    "DeltaTable 's3://lake/t'": lambda: DeltaTable(
        "s3://lake/t", upsert_key=("a", "b"), changelog=True
    ),
    "PostgresTable 'shop.t'": lambda: PostgresTable(
        "host=db", "shop.t", upsert_key=("a", "b"), changelog=True
    ),
    "KafkaTopic 't'": lambda: KafkaTopic("localhost", "t", key="a", upsert=True, changelog=True),
}


@pytest.mark.parametrize("name", BOTH)
def test_a_table_holds_every_change_or_the_newest_rows(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        BOTH[name]()

    key = "a" if name.startswith("Kafka") else "a, b"
    assert str(caught.value) == (
        f"{name} keeps the newest row per {key}, and changelog=True every change; write one of "
        "the two"
    )


def test_a_stage_knows_whether_rows_are_taken_back_from_it() -> None:
    def a_stage(*kinds: Kind) -> StageNode:
        inputs = tuple(Input(producer="p", kind=kind) for kind in kinds)
        return StageNode(uid="it", operation=Union(), inputs=inputs)

    assert not a_stage(Append(), Append()).reads_updates
    assert a_stage(Append(), Retract()).reads_updates


def test_keys_that_are_forgotten_come_again_so_no_sink_upserts_them() -> None:
    stream = Pipeline("p").source("events", Nexmark(10), event_time="at").key_by("u")

    stream.deduplicate("for_ever").sink("kept", FilesTable(upsert_key=("u",)))

    with pytest.raises(ConfigurationError, match="'forgets' may append several rows of one such"):
        stream.deduplicate("forgets", ttl=HOUR).sink("out", FilesTable(upsert_key=("u",)))
