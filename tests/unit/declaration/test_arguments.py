"""The border: every mistake in a call is one sentence, with the argument, its value and the fix."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sluice
from sluice import (
    Checkpointing,
    Continuous,
    Cron,
    KeyedProcessFunction,
    Pipeline,
    Session,
    Submit,
    Tumbling,
    fixed_delay,
    sinks,
    sources,
    state_processor,
    testing,
)
from sluice import aggregates as agg
from sluice.core.configuration import CheckpointingMode
from sluice.declaration.arguments import checked_arguments
from sluice.declaration.params import param
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable, PostgresTable
from sluice.sources import Files, Json, Kafka, Nexmark
from sluice.testing import Kill, run_local

HOUR = Tumbling(timedelta(hours=1))


class Visits(KeyedProcessFunction):
    def process(self, row: Any, context: Any) -> Iterator[Any]:
        yield row


def pipeline() -> Any:
    return Pipeline("p")


def source(**options: Any) -> Any:
    return pipeline().source("rows", Nexmark(1), event_time="at", **options)


def keyed() -> Any:
    return source().key_by("k")


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a text as a window": (
        lambda: keyed().window("w", "1 hour", n=agg.count()),
        "window('w'): window is '1 hour' (str); write Tumbling(timedelta(hours=1))",
    ),
    "a timedelta as a window": (
        lambda: keyed().window("w", timedelta(minutes=5), n=agg.count()),
        ("window('w'): window is datetime.timedelta(seconds=300) (timedelta); write "
        "Tumbling(timedelta(minutes=5))"),
    ),
    "a class as a window": (
        lambda: keyed().window("w", Session, n=agg.count()),
        "window('w'): window is Session (type); write an instance of it, Session(...)",
    ),
    "a number as a duration": (
        lambda: Tumbling(3600),  # type: ignore[arg-type]
        "Tumbling(): size is 3600 (int); write timedelta(seconds=3600)",
    ),
    "an aggregate that is not called": (
        lambda: keyed().aggregate("a", n=agg.count),
        "aggregate('a'): n is count (function); write agg.count()",
    ),
    "an aggregate of a column that is not called": (
        lambda: keyed().window("w", HOUR, total=agg.sum),
        "window('w'): total is sum (function); write agg.sum('column')",
    ),
    "SQL as an aggregate": (
        lambda: keyed().aggregate("a", n="count(*)"),
        "aggregate('a'): n is 'count(*)' (str); write agg.count()",
    ),
    "SQL of a column as an aggregate": (
        lambda: keyed().aggregate("a", n="SUM(price)"),
        "aggregate('a'): n is 'SUM(price)' (str); write agg.sum('price')",
    ),
    "an option by another name": (
        lambda: keyed().window("w", HOUR, lateness=timedelta(1), n=agg.count()),
        ("window('w'): lateness is datetime.timedelta(days=1) (timedelta); did you mean "
        "allowed_lateness? A result is an aggregate, such as agg.count() or agg.sum('price')"),
    ),
    "an option that there is not": (
        lambda: keyed().window("w", HOUR, early=timedelta(1), n=agg.count()),
        ("window('w'): early is datetime.timedelta(days=1) (timedelta); window() has no such "
        "option, but allowed_lateness and parallelism; a result is an aggregate, such as "
        "agg.count() or agg.sum('price')"),
    ),
    "an option that there is not, of a text": (
        lambda: keyed().aggregate("a", how="left", n=agg.count()),
        ("aggregate('a'): how is 'left' (str); aggregate() has no such option, but ttl and "
        "parallelism; a result is an aggregate, such as agg.count() or agg.sum('price')"),
    ),
    "an aggregate by the name of an option": (
        lambda: keyed().aggregate("a", ttl=agg.count()),
        ("aggregate('a'): ttl is an Aggregate; ttl is an option of aggregate(), a timedelta, "
        "e.g. timedelta(seconds=30) or None, so no result can have its name; call it ttl_ or the "
        "like"),
    ),
    "a function as a condition": (
        lambda: source().where(lambda row: row),
        "where(): condition is <lambda> (function); write SQL as a text, such as 'price > 3'",
    ),
    "a function as a column": (
        lambda: agg.sum(lambda row: row),  # type: ignore[arg-type]
        "sum(): column is <lambda> (function); write SQL as a text, such as 'price > 3'",
    ),
    "a parameter in a text": (
        lambda: source().where(f"n > {param('least')}"),
        ("parameter 'least' has no value yet where a text is made of it; give it to a function "
        "that makes the text: transform('uid', function, least=...)"),
    ),
    "a list of keys": (
        lambda: source().key_by(["a", "b"]),
        "key_by(): columns is ['a', 'b'] (list); write key_by('a', 'b')",
    ),
    "a text for a tuple": (
        lambda: FilesTable(upsert_key="customer"),  # type: ignore[arg-type]
        "FilesTable(): upsert_key is 'customer' (str); write ('customer',)",
    ),
    "a list of other things": (
        lambda: FilesTable(partition_by=[1, 2]),  # type: ignore[arg-type]
        "FilesTable(): partition_by is [1, 2] (list); use a tuple of texts, such as ('a', 'b')",
    ),
    "a dict as a schema": (
        lambda: Files("/x", format="json", schema={"a": "string", "n": "int"}),  # type: ignore[arg-type]
        "Files('/x'): schema is {'a': 'string', 'n': 'int'} (dict); write 'a string, n int'",
    ),
    "a misspelt option": (
        lambda: FilesTable(upsert_keys=("a",)),  # type: ignore[call-arg]
        "FilesTable() has no argument 'upsert_keys'; did you mean upsert_key?",
    ),
    "a misspelt option of a stage": (
        lambda: keyed().top_n("t", 3, by="n", tiesby="k"),
        "top_n('t') has no argument 'tiesby'; did you mean ties_by?",
    ),
    "a missing option": (
        lambda: keyed().top_n("t", 3), "top_n('t') lacks by; add by=..., a text"
    ),
    "one argument too many": (
        lambda: keyed().latest("l", "at"),
        ("latest('l') is given 'at', and takes uid, and by name by, ttl, parallelism; give it by "
        "its name"),
    ),
    "a result without a name": (
        lambda: keyed().aggregate("a", agg.count()),
        ("aggregate('a') is given Aggregate(kind=<AggregateKin...raction=None, separator=None), "
        "and takes uid, and by name ttl, parallelism, aggregates; give the result a name: n=..."),
    ),
    "streams in a list": (
        lambda: source().union("u", [source()]),
        ("union('u'): others is [Stream(pipeline=Pipeline(uid...lost_time='', lost_column='')] "
        "(list); put a * before the list"),
    ),
    "an argument given twice": (
        lambda: keyed().top_n("t", 3, n=3, by="n"), "top_n('t') is given 'n' twice; write it once"
    ),
    "a choice in another case": (
        lambda: keyed().join("j", keyed(), how="INNER"),
        "join('j'): how is 'INNER'; write 'inner', or 'left', 'right', 'full', 'semi', 'anti'",
    ),
    "a choice that there is not": (
        lambda: Kafka("h:1", "t", on_expired="ignore"),  # type: ignore[arg-type]
        "Kafka('h:1'): on_expired is 'ignore'; use 'fail' or 'skip'",
    ),
    "a stream that is not keyed": (
        lambda: keyed().join("j", source()),
        "join('j'): other is a Stream; write stream.key_by('column') of it",
    ),
    "no parallelism": (
        lambda: keyed().aggregate("a", n=agg.count(), parallelism=0),
        "aggregate('a'): parallelism is 0; use 1 to 32768",
    ),
    "a negative parallelism": (
        lambda: source().transform("t", lambda rows: rows, parallelism=-1),
        "transform('t'): parallelism is -1; use 1 to 32768",
    ),
    "half a subtask": (
        lambda: Pipeline("p", parallelism=1.5),  # type: ignore[arg-type]
        "Pipeline('p'): parallelism is 1.5 (float); use a whole number",
    ),
    "half a row": (
        lambda: keyed().top_n("t", 1.5, by="n"), "top_n('t'): n is 1.5 (float); use a whole number"
    ),
    "True as a number": (
        lambda: keyed().top_n("t", True, by="n"), "top_n('t'): n is True (bool); use a whole number"
    ),
    "no rows of a window": (
        lambda: source().window_top_n("t", HOUR, 0, by="n"),
        "window_top_n('t'): n is 0; use 1 to 2147483647",
    ),
    "no fraction": (
        lambda: agg.percentile("v", float("nan")), "percentile('v'): fraction is nan; use 0 to 1"
    ),
    "a text for a number": (
        lambda: Checkpointing(num_retained="3"),  # type: ignore[arg-type]
        "Checkpointing(): num_retained is '3' (str); write 3",
    ),
    "a text for True": (
        lambda: FilesTable(latest="true"),  # type: ignore[arg-type]
        "FilesTable(): latest is 'true' (str); write True",
    ),
    "a text for a member": (
        lambda: Checkpointing(mode="at_least_once"),  # type: ignore[arg-type]
        "Checkpointing(): mode is 'at_least_once' (str); write CheckpointingMode.AT_LEAST_ONCE",
    ),
    "a text for a schedule": (
        lambda: Checkpointing(schedule="0 * * * *"),  # type: ignore[arg-type]
        ("Checkpointing(): schedule is '0 * * * *' (str); use Continuous(), Cron('0 * * * *'), "
        "OnAsset(uri=...) or None"),
    ),
    "a class as a source": (
        lambda: pipeline().source("rows", Files),
        "source('rows'): spec is Files (type); write an instance of it, Files(...)",
    ),
    "a path as a source": (
        lambda: pipeline().source("rows", "/folder"),
        "source('rows'): spec is '/folder' (str); use a source, such as Files('/folder')",
    ),
    "a source as a sink": (
        lambda: source().sink("out", "/folder"),
        "sink('out'): spec is '/folder' (str); use a sink, such as FilesTable()",
    ),
    "the source of that name as a sink": (
        lambda: source().sink("out", sources.DeltaTable("s3://lake/sales")),
        ("sink('out'): spec is a DeltaTable; import that of sluice.sinks for a sink; this is "
         "sluice.sources.DeltaTable"),
    ),
    "an argument of the sink to the source of that name": (
        lambda: sources.DeltaTable("s3://lake/sales", create=True),  # type: ignore[call-arg]
        ("DeltaTable('s3://lake/sales') has no argument 'create'; import that of sluice.sinks for "
         "a sink; this is sluice.sources.DeltaTable"),
    ),
    "an argument of the source to the sink of that name": (
        lambda: sinks.PostgresTable("postgresql://db/shop", "sales", offset_column="id"),  # type: ignore[call-arg]
        ("PostgresTable('postgresql://db/shop') has no argument 'offset_column'; import that of "
         "sluice.sources for a source; this is sluice.sinks.PostgresTable"),
    ),
    "a source without what its sink has not": (
        lambda: sources.PostgresTable("postgresql://db/shop", "sales"),  # type: ignore[call-arg]
        ("PostgresTable('postgresql://db/shop') lacks offset_column; add offset_column=..., a "
         "text; or import that of sluice.sinks for a sink; this is sluice.sources.PostgresTable"),
    ),
    "what cannot be called": (
        lambda: source().transform("t", "parse"),
        "transform('t'): function is 'parse' (str); use a function",
    ),
    "types as a list": (
        lambda: keyed().process_keyed("f", Visits(), result=["n"]),
        "process_keyed('f'): result is ['n'] (list); use a dict",
    ),
    "a class for an instance": (
        lambda: Pipeline("p", checkpointing=Checkpointing),  # type: ignore[arg-type]
        ("Pipeline('p'): checkpointing is Checkpointing (type); write an instance of it, "
        "Checkpointing(...)"),
    ),
    "epochs of a local run": (
        lambda: run_local(pipeline(), {}, epochs=0), "run_local(): epochs is 0; use 1 or more"
    ),
    "an epoch of a kill": (
        lambda: Kill(stage="s", epoch=0), "Kill('s'): epoch is 0; use 1 or more"
    ),
    "a number as an expression of cron": (
        lambda: Cron(5),  # type: ignore[arg-type]
        "Cron(): expression is 5 (int); use a text",
    ),
    "executors": (
        lambda: Submit(num_executors=0), "Submit(): num_executors is 0; use 1 or more"
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence_with_the_argument_its_value_and_the_fix(mistake: str) -> None:
    declare, sentence = MISTAKES[mistake]

    with pytest.raises(ConfigurationError) as caught:
        declare()

    said = str(caught.value)
    assert said == sentence
    assert "\n" not in said


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (
            lambda: source().window,
            "a Stream has no 'window'; write key_by('column').window(...)",
        ),
        (lambda: keyed().where, "a KeyedStream has no 'where'; write where(...) before key_by()"),
        (lambda: source().groupBy, "a Stream has no 'groupBy'; write key_by('column')"),
        (lambda: keyed().agregate, "a KeyedStream has no 'agregate'; did you mean aggregate?"),
        (lambda: keyed().foo, "a KeyedStream has no 'foo'; it has aggregate, deduplicate, "),
    ],
)
def test_a_method_that_is_not_there_is_told_what_is(
    mistake: Callable[[], object], sentence: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        mistake()

    assert str(caught.value).startswith(sentence)


def test_the_error_is_raised_by_the_users_own_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        keyed().window("w", "1 hour", n=agg.count())

    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [frame for frame in frames if "/sluice/" in frame.filename]
    assert {frame.filename.rpartition("/")[2] for frame in ours} == {"arguments.py"}
    assert caught.value.__cause__ is None


def test_a_value_that_may_be_secret_is_not_shown() -> None:
    with pytest.raises(ConfigurationError, match=r"SchemaRegistry\('http://r'\): password is a"):
        sources.SchemaRegistry("http://r", "me", b"hunter2-hunter2")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        PostgresTable("postgresql://me:hunter2@h/d", 3)  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


def test_what_fits_is_passed_on_as_it_is() -> None:
    @checked_arguments
    def given(*names: str, n: int | None = None, rate: float = 1.0, **more: bool) -> object:
        """What it was given."""
        return names, n, rate, more

    assert given("a", "b", n=3, rate=2, x=True) == (("a", "b"), 3, 2, {"x": True})
    assert given() == ((), None, 1.0, {})
    assert given.__doc__ == "What it was given."
    assert [*inspect.signature(given).parameters] == ["names", "n", "rate", "more"]


def test_what_can_mean_nothing_else_is_taken_in_the_form_of_the_hint() -> None:
    table = FilesTable(Path("/x"), upsert_key=["a", "b"])  # type: ignore[arg-type]
    assert table == FilesTable("/x", upsert_key=("a", "b"))
    assert hash(table) == hash(FilesTable("/x", upsert_key=("a", "b")))
    assert type(Pipeline("p", parallelism=np.int64(2)).parallelism) is int  # type: ignore[arg-type]
    assert Kafka("h:1", ["a", "b"]).topics == ("a", "b")  # type: ignore[arg-type]


def test_values_of_every_hint_are_taken() -> None:
    assert Checkpointing(schedule=Continuous(), interval=None).schedule == Continuous()
    assert Checkpointing(mode=CheckpointingMode.AT_LEAST_ONCE, restart_strategy=fixed_delay())
    assert Kafka("h:1", ("a", "b"), Json("n int"), start={"a/0": 1}, timeout_s=5).timeout_s == 5
    assert Nexmark(sluice.param("events"), columns=("bid",)).params


def test_a_name_that_only_type_checkers_know_is_not_checked() -> None:
    @checked_arguments
    def given(frame: pl.DataFrame, of: Iterable[pl.Series[int]] | None, n: int) -> object:  # type: ignore[name-defined]  # noqa: F821 - on purpose
        return frame, of, n

    assert given("a", ["b"], 3) == ("a", ["b"], 3)
    with pytest.raises(ConfigurationError, match=r"given\('a'\): n is '3' \(str\); write 3"):
        given("a", None, "3")  # type: ignore[arg-type]


def public_callables() -> Iterator[tuple[str, Callable[..., object]]]:
    """Each public function, initializer, and method that declares something."""
    own = {name for name, of in vars(agg).items() if getattr(of, "__module__", "") == agg.__name__}
    aggregates = [name for name in own if name.islower() and not name.startswith("_")]
    for module in (sluice, sources, sinks, testing, state_processor, agg):
        for name in getattr(module, "__all__", aggregates):
            found: Any = getattr(module, name)
            if inspect.isfunction(found) and found.__module__.startswith("sluice."):
                yield name, found
            if isinstance(found, type) and not getattr(found, "_is_protocol", False):
                if inspect.isfunction(vars(found).get("__init__")):
                    yield name, found.__init__  # type: ignore[misc]
                if found in (Pipeline, sluice.Stream, sluice.KeyedStream):
                    yield from (
                        (f"{name}.{method}", function)
                        for method, function in vars(found).items()
                        if inspect.isfunction(function) and not method.startswith("_")
                    )


# Whom the runtime calls, or builds: no user writes such a call.
BUILT_BY_THE_RUNTIME = {
    "BroadcastContext", "CheckpointDeclined", "Context", "Env", "LocalEpoch", "LocalRun",
    "OnTimerContext", "Param", "SubtaskContext", "WrittenSavepoint", "WrittenTable",
    *(
        f"Pipeline.{name}"
        for name in (
            "add_sink", "add_stage", "check_answers", "consumers_of", "disable_chaining",
            "is_consumed", "kind_of", "loses_event_time", "parallelism_of", "sinks_of",
            "sources_of", "timeless_source", "upstream_of",
        )
    ),
}  # fmt: skip


def test_every_public_function_is_checked() -> None:
    unchecked = {
        name
        for name, function in public_callables()
        if function.__code__.co_filename.rpartition("/")[2] != "arguments.py"
        and len(inspect.signature(function).parameters) > ("." in name or name[0].isupper())
    }

    assert unchecked <= BUILT_BY_THE_RUNTIME


def test_every_public_duration_has_limits() -> None:
    bare = [
        f"{name}({parameter})"
        for name, function in public_callables()
        for parameter, hint in inspect.get_annotations(inspect.unwrap(function)).items()
        if "timedelta" in str(hint) and "DurationLimits" not in str(hint)
    ]

    assert bare == []
