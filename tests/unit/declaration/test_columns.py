"""Names and types of columns: those of our own are refused, and schemas are read as Spark does."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import sluice
from sluice import Append, KeyedProcessFunction, Pipeline, Tumbling
from sluice import aggregates as agg
from sluice.declaration.column_types import ColumnType, row_schema
from sluice.declaration.columns import (
    OF_SOURCES,
    OF_STAGES,
    check_source_columns,
    is_reserved,
)
from sluice.errors import ConfigurationError
from sluice.job.analysis import analyse
from sluice.sinks import FilesTable
from sluice.sources import Files

PACKAGE = Path(sluice.__file__).parent
# Rooms whose frames hold columns beside those of a user.
ROOMS = ("declaration", "state", "operators", "exchange", "spark", "connectors")
# Texts that look like names of columns, and are none.
OTHERS = {
    *("_expr", "_is_distinct", "_plan"),  # Of a node of Spark Connect.
    *("_change_type", "_commit_version"),  # Of Delta's change data feed, and so of its rows.
    "_no_columns_yet",  # Of a Delta table's log alone: no row has it.
    *("_is_protocol", "_jdf", "_latest", "_manifests", "_metadata", "_ms", "_rows_of_the_epoch"),
    *("_sluice_states", "_timers"),
}


class Visits(KeyedProcessFunction):
    def process(self, row: Any, context: Any) -> Iterator[Any]:
        yield row


def same(*_: object) -> Any: ...


def rows(schema: str = "k string, n bigint, at timestamp") -> Any:
    files = Files("/rows", format="json", schema=schema)
    return Pipeline("p").source("rows", files, event_time="at")


def a_table(stream: Any) -> Any:
    return stream.pipeline.source("t", Files("/t", format="csv", schema="k string"), table=True)


def answers(name: str, schema: str) -> object:
    stream = rows()
    return stream.pipeline.spark_results(
        "c", lambda rows: {}, reads={"rows": stream}, results={name: (schema, Append())}
    )


# Each place where a user can write the name of a column.
WRITTEN: dict[str, Callable[[str], object]] = {
    "a schema of files": lambda name: rows(f"k string, `{name}` bigint"),
    "a key": lambda name: rows().key_by(name),
    "a computed key": lambda name: rows().key_by("k", **{name: "n + 1"}),
    "a column that is selected": lambda name: rows().select("k", f"n AS {name}"),
    "one that is selected as it is": lambda name: rows().select("k", name),
    "one that is selected of a struct": lambda name: rows().select("k", f"s.{name}"),
    "one that is selected behind a stage": lambda name: (
        rows().key_by("k").aggregate("a", n=agg.count()).select("k", f"n AS {name}")
    ),
    "an aggregate": lambda name: rows().key_by("k").aggregate("a", **{name: agg.count()}),
    "an aggregate of a window": lambda name: (
        rows().key_by("k").window("w", Tumbling(timedelta(1)), **{name: agg.count()})
    ),
    "a column that a lookup adds": lambda name: (stream := rows()).lookup(
        "l", a_table(stream), on="k", add={name: "k"}
    ),
    "a column of that name that a lookup adds": lambda name: (stream := rows()).lookup(
        "l", a_table(stream), on="k", add=(name,)
    ),
    "an event time": lambda name: Pipeline("p").source("rows", Files("/rows"), event_time=name),
    "an event time behind a stage": lambda name: (
        rows().key_by("k").aggregate("a", n=agg.count()).event_time(name)
    ),
    "state of a function": lambda name: (
        rows().key_by("k").process("f", same, state={name: int}, result={"k": str})
    ),
    "a result of a function": lambda name: (
        rows().key_by("k").process("f", same, state={}, result={name: int})
    ),
    "a result of a keyed function": lambda name: (
        rows().key_by("k").process_keyed("f", Visits(), result={name: datetime})
    ),
    "a schema of Spark code": lambda name: (stream := rows()).pipeline.spark(
        "c", lambda rows: rows, reads={"rows": stream}, schema=f"`{name}` int", result=Append()
    ),
    "a schema of one of its results": lambda name: answers("one", f"`{name}` int"),
    "one of its results": lambda name: answers(name, "k string"),
}


NAMES = (*sorted(OF_SOURCES | OF_STAGES), "_Malformed", "_HASH", "_where_1")


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (place, name)
        for place in WRITTEN
        for name in NAMES
        # A user does not choose the names of what is read, but may give these another one.
        if place != "a schema of files" or name.lower() not in OF_STAGES
    ],
)
def test_a_name_of_ours_is_refused_where_it_is_written(place: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"has a column '{name}', a name that sluice"):
        WRITTEN[place](name)


@pytest.mark.parametrize("place", WRITTEN)
def test_other_names_that_begin_so_are_taken(place: str) -> None:
    WRITTEN[place]("_id")


# Each place where a user can say that a column is read.
READ: dict[str, Callable[[str], object]] = {
    "an order": lambda name: rows().key_by("k").latest("s", by=("n", name)),
    "a rank": lambda name: rows().key_by("k").top_n("s", 1, by=name),
    "a tie": lambda name: rows().key_by("k").top_n("s", 1, by="n", ties_by=name),
    "what is unique": lambda name: rows().key_by("k").top_n("s", 1, by="n", unique=name),
    "a rank in a window": lambda name: rows().window_top_n("s", Tumbling(timedelta(1)), 1, by=name),
    "the first": lambda name: rows().key_by("k").deduplicate("s", by=name),
    "a bound": lambda name: (stream := rows().key_by("k")).interval_join("s", stream, upper=name),
    "a key": lambda name: rows().key_by(n=f"{name} % 2").aggregate("s", c=agg.count()),
    "a sum": lambda name: rows().key_by("k").aggregate("s", c=agg.sum(name)),
    "a condition": lambda name: rows().key_by("k").aggregate("s", c=agg.count(where=f"{name} > 0")),
    "an aggregate's order": lambda name: (
        rows().key_by("k").aggregate("s", c=agg.last("n", by=name))
    ),
    "a column that is looked up": lambda name: (stream := rows()).lookup(
        "s", a_table(stream), on={name: "k"}
    ),
    "a column of a table": lambda name: (stream := rows()).lookup(
        "s", a_table(stream), on={"k": f"upper({name})"}
    ),
    "a column that a table gives": lambda name: (stream := rows()).lookup(
        "s", a_table(stream), on="k", add={"v": f"{name}.record"}
    ),
    "a filter behind a stage": lambda name: (
        rows().key_by("k").aggregate("s", c=agg.count()).where(f"{name} > 0")
    ),
    "a column behind a stage": lambda name: (
        rows().key_by("k").aggregate("s", c=agg.count()).select("k", f"{name} AS v")
    ),
}


@pytest.mark.parametrize("name", ["_weight", "_Source", "_malformed", "_raw", "_record"])
@pytest.mark.parametrize("place", READ)
def test_a_column_of_ours_is_refused_where_it_is_read(place: str, name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"reads the column '{name}' in .*is sluice's own"
    ):
        READ[place](name)


def test_steps_of_a_source_read_where_a_row_came_from() -> None:
    found = rows().where("_source.record > 3").select("k", "_source.partition", "_raw AS text")

    with pytest.raises(ConfigurationError, match="reads the column '_weight'"):
        rows().where("_weight > 0")

    assert len(found.steps) == 2


CASES = {
    "a schema": lambda: rows("k string, K bigint"),
    "a key": lambda: rows().key_by("k", "K"),
    "a computed key": lambda: rows().key_by("k", K="n + 1"),
    "a select": lambda: rows().select("k", "n AS K"),
    "a select behind a stage": lambda: (
        rows().key_by("k").aggregate("a", n=agg.count()).select("k", "n AS K")
    ),
    "an aggregate and a key": lambda: rows().key_by("k").aggregate("a", K=agg.count()),
    "two aggregates": lambda: rows().key_by("k").aggregate("a", n=agg.count(), N=agg.count()),
    "two columns of a table": lambda: (
        (stream := rows()).lookup("l", a_table(stream), on="k", add={"k": "k", "K": "k"})
    ),
    "state": lambda: rows().key_by("k").process("f", same, state={"K": int}, result={"k": str}),
    "a result": lambda: (
        rows().key_by("k").process_keyed("f", Visits(), result={"k": str, "K": str})
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", CASES)
def test_columns_that_differ_only_in_case_are_refused(place: str) -> None:
    with pytest.raises(ConfigurationError, match=r"which differ only in case|'K' twice"):
        CASES[place]()


def test_a_key_twice_and_a_key_without_a_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"key_by\(\) of 'rows' has two columns 'k'"):
        rows().key_by("k", "k")
    with pytest.raises(ConfigurationError, match=r"key_by\(\) of 'rows' has a column without"):
        rows().key_by("")


def test_a_result_of_a_join_that_differs_only_in_case_is_refused_before_anything_is_read() -> None:
    one = rows()
    other = one.pipeline.source("more", Files("/m", format="json", schema="j string, N bigint"))
    both = one.key_by("k").join("both", other.key_by("j"))
    both.sink("out", FilesTable())

    with pytest.raises(
        ConfigurationError, match=r"result of stage 'both' has the columns 'n' and 'N', which diff"
    ):
        analyse(one.pipeline, {}, None)


@pytest.mark.parametrize("name", sorted(OF_STAGES - {"_hash"}))
def test_a_source_may_have_a_name_of_a_stage_that_a_select_changes(name: str) -> None:
    stream = rows(f"k string, `{name}` bigint, at timestamp")
    stream.select("k", f"{name} AS n").key_by("k").aggregate("a", n=agg.count()).sink(
        "out", FilesTable(upsert_key=("k",))
    )
    assert analyse(stream.pipeline, {}, None)["a"]

    stream.key_by("k").latest("b", by="at").sink("also", FilesTable(upsert_key=("k",)))
    with pytest.raises(
        ConfigurationError, match=rf"stage 'b', in what it reads of 'rows', has a column '{name}'"
    ):
        analyse(stream.pipeline, {}, None)


@pytest.mark.parametrize("name", [*sorted(OF_SOURCES), "_MALFORMED", "_Source", "_order_1"])
def test_a_source_has_no_name_that_reading_adds_in_whatever_case(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"a.parquet has a column '{name}', a name that"):
        check_source_columns(["n", name], "a.parquet")


@pytest.mark.parametrize("name", ["*", "^n$", "^.*$", "^\n$"])
def test_a_name_that_is_a_pattern_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="which looks like a pattern of names; rename it"):
        check_source_columns(["n", name], "a.parquet")


def test_other_names_of_a_source_are_taken_once_each() -> None:
    check_source_columns(["n", "a.b", "`", "^n", "n$", "**", "", " "], "a.parquet")
    with pytest.raises(ConfigurationError, match=r"a\.parquet has two columns 'n'"):
        check_source_columns(["n", "m", "n"], "a.parquet")
    with pytest.raises(ConfigurationError, match=r"the columns 'n' and 'N', which differ only in"):
        check_source_columns(["n", "m", "N"], "a.parquet")


def constants() -> Iterator[tuple[str, str]]:
    """Each text of the product that has the form of one of our names, with its file."""
    for path in (path for room in ROOMS for path in (PACKAGE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if re.fullmatch(r"_[a-z]+[a-z_]*", node.value):
                yield node.value, str(path.relative_to(PACKAGE))


def test_every_column_of_our_own_is_in_the_list() -> None:
    found = [*constants()]
    unknown = {
        (name, file)
        for name, file in found
        if not is_reserved(name) and not is_reserved(f"{name}1") and name not in OTHERS
    }

    assert unknown == set()
    assert {name for name, file in found if not file.endswith("/columns.py")} >= (
        OF_SOURCES | OF_STAGES
    )


def test_every_form_of_a_type_is_read() -> None:
    text = (
        "a string COLLATE UTF8_LCASE, b array<struct<x: int, y decimal(10, 2)>> COMMENT 'it, s', "
        "`c d` map<string, long> NOT NULL, e interval day to second, f dec, g timestamp_ltz, "
        "h struct<>"
    )

    columns = row_schema("Files('x')", text)

    inner = (("x", ColumnType("int")), ("y", ColumnType("decimal", (10, 2))))
    assert columns == {
        "a": ColumnType("string"),
        "b": ColumnType("array", (), (("", ColumnType("struct", (), inner)),)),
        "c d": ColumnType("map", (), (("", ColumnType("string")), ("", ColumnType("bigint")))),
        "e": ColumnType("interval"),
        "f": ColumnType("decimal"),
        "g": ColumnType("timestamp"),
        "h": ColumnType("struct"),
    }


NO_TYPE = "gives 'a' the type '{}', which Spark does not have ({})"
DECIMAL = "it takes at most 38 digits, and how many of them are decimals"


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            "type strng",
            "gives 'type' the type 'strng', which Spark does not have (did you mean 'string'?)",
        ),
        ("a string b int", "lacks a comma before 'b'"),
        ("a", "lacks a type of 'a' at its end"),
        ("a int,", "lacks a column's name at its end"),
        ("a int, A int", "names the column 'A' twice"),
        ("a decimal(x)", "has 'x' where a number belongs"),
        ("a array<decimal(39, 2)>", NO_TYPE.format("decimal(39,2)", DECIMAL)),
        ("a decimal(10, 11)", NO_TYPE.format("decimal(10,11)", DECIMAL)),
        ("a decimal(40)", NO_TYPE.format("decimal(40)", DECIMAL)),
        ("a varchar", NO_TYPE.format("varchar", "it takes a length")),
        ("a int(5)", NO_TYPE.format("int(5)", "it takes no number")),
        ("a array<int", "lacks '>' at its end"),
        ("a int, = b", "lacks a column's name before '='"),
    ],
)
def test_a_mistake_is_one_sentence_when_the_source_is_declared(text: str, mistake: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Files("x.csv", format="csv", schema=text)

    assert str(error.value) == (
        f"Files('x.csv') has the schema {text!r}, which {mistake}; write it as 'name string, "
        "n bigint'"
    )


def test_a_type_is_written_as_in_a_schema() -> None:
    text = "a array<struct<x:int,y:decimal(10,2)>>, b map<string,bigint>, c struct<>"

    columns = row_schema("Files('x')", text)

    assert ", ".join(f"{name} {of}" for name, of in columns.items()) == text


@pytest.mark.parametrize("of", ["array<int>", "map<string,int>", "struct<x:int>"])
def test_what_no_field_of_csv_holds_is_refused_when_the_source_is_declared(of: str) -> None:
    said = f"the schema of Files('x.csv') has a column 'b' of type {of}, and a field of CSV holds"

    with pytest.raises(ConfigurationError, match=re.escape(said)):
        Files("x.csv", format="csv", schema=f"a int, b {of}")
