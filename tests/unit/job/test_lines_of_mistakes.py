"""A mistake that shows when a pipeline is analysed names the line on which it is written."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration.nodes import SinkNode
from sluice.declaration.operations import Attached, Tumbling
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.errors import ConfigurationError
from sluice.job.analysis import analyse
from sluice.sinks import FilesTable
from sluice.sources import Files

COLUMNS = "user string, city string, n bigint, at timestamp"
HOUR = Tumbling(timedelta(hours=1))
Declare: TypeAlias = Callable[[Stream, Stream], Stream]
MISTAKES: dict[str, Declare] = {}


def mistake(expected: str) -> Callable[[Declare], Declare]:
    """A function with one mistake, on the line that ends with ``# wrong``."""

    def added(declare: Declare) -> Declare:
        MISTAKES[expected] = declare
        return declare

    return added


@mistake("no column 'usr' in what it reads of 'clicks', 'usr = 1'; did you mean 'user'?")
def _(clicks: Stream, _: Stream) -> Stream:
    return (
        clicks.where("n > 0")
        .where("usr = 1")  # wrong
        .key_by("city")
        .aggregate("t", n=agg.count())
    )


@mistake("no column 'cty' in what it reads of 'clicks', 'upper(cty) AS c'; did you mean 'city'?")
def _(clicks: Stream, _: Stream) -> Stream:
    shouted = clicks.select("user", "upper(cty) AS c")  # wrong
    return shouted.key_by("user").aggregate("t", n=agg.count())


@mistake("no column 'usr' for its key; did you mean 'user'?")
def _(clicks: Stream, _: Stream) -> Stream:
    by_user = clicks.key_by("usr")  # wrong
    return by_user.aggregate("t", n=agg.count())


@mistake("no column 'att' in its key 'day', 'date(att)'; did you mean 'at'?")
def _(clicks: Stream, _: Stream) -> Stream:
    return (
        clicks.where("n > 0")
        .key_by("user", day="date(att)")  # wrong
        .aggregate("t", n=agg.count())
    )


@mistake("no column 'nn' for sum() as 'total'; did you mean 'n'?")
def _(clicks: Stream, _: Stream) -> Stream:
    return clicks.key_by("user").aggregate(
        "t",
        many=agg.count(),
        total=agg.sum("nn"),  # wrong
    )


@mistake("no column 'nn' in an aggregate, 'nn * 2'; did you mean 'n'?")
def _(clicks: Stream, _: Stream) -> Stream:
    return clicks.key_by("user").aggregate(
        "t",
        many=agg.count(),
        most=agg.max("nn * 2"),  # wrong
    )


@mistake("no column 'citty' in where=, \"citty = 'Rome'\"; did you mean 'city'?")
def _(clicks: Stream, _: Stream) -> Stream:
    return clicks.key_by("user").aggregate(
        "t",
        many=agg.count(where="n > 1"),
        rome=agg.count(where="citty = 'Rome'"),  # wrong
    )


@mistake("no column 'aat' to order last() as 'newest' by; did you mean 'at'?")
def _(clicks: Stream, _: Stream) -> Stream:
    return clicks.key_by("user").aggregate(
        "t",
        newest=agg.last("n", by="aat"),  # wrong
        many=agg.count(),
    )


@mistake("cannot use column 'city' of type string for avg() as 'mean', which takes numbers")
def _(clicks: Stream, _: Stream) -> Stream:
    return clicks.key_by("user").window(
        "t",
        HOUR,
        mean=agg.avg("city"),  # wrong
    )


@mistake("no column 'cities' for count_distinct() as 'many'")
def _(clicks: Stream, _: Stream) -> Stream:
    named = agg.count_distinct("cities")  # wrong
    return clicks.key_by("user").window("t", HOUR, many=named)


@mistake("'mny' is no column; did you mean 'many'?")
def _(clicks: Stream, _: Stream) -> Stream:
    totals = clicks.key_by("user").aggregate("t", many=agg.count())
    often = totals.where("mny > 3")  # wrong
    return often.key_by("user").latest("next", by="many")


@mistake("'totl' is no column; did you mean 'total'?")
def _(clicks: Stream, _: Stream) -> Stream:
    totals = clicks.key_by("user").aggregate("t", total=agg.sum("n"))
    totals.sink("all", FilesTable(upsert_key=("user",)))
    return totals.select("user", "totl * 2 AS twice")  # wrong


@mistake("no column 'nn' to rank by; did you mean 'n'?")
def _(clicks: Stream, _: Stream) -> Stream:
    return (
        clicks.key_by("user")
        .top_n("t", 3, by="nn")  # wrong
        .where("rank < 3")
    )


@mistake("no column 'ussr' to rank equal ones by; did you mean 'user'?")
def _(clicks: Stream, _: Stream) -> Stream:
    cities = clicks.key_by("city")
    return cities.top_n("t", 3, by="n", ties_by="ussr")  # wrong


@mistake("no column 'when_' to tell which row is the latest")
def _(clicks: Stream, _: Stream) -> Stream:
    users = clicks.key_by("user")
    return users.latest("t", by="when_")  # wrong


@mistake("no column 'att' for the event time of 'timed'; did you mean 'at'?")
def _(clicks: Stream, _: Stream) -> Stream:
    spec = Files("s3://bucket/timed", format="csv", schema=COLUMNS)
    timed = clicks.pipeline.source("timed", spec, event_time="att")  # wrong
    return timed.key_by("user").window("t", HOUR, many=agg.count())


@mistake("cannot use column 'city' of type string as the event time of 'timed', which is")
def _(clicks: Stream, _: Stream) -> Stream:
    spec = Files("s3://bucket/timed", format="csv", schema=COLUMNS)
    timed = clicks.pipeline.source("timed", spec, event_time="city")  # wrong
    return timed.where("n > 0").key_by("user").aggregate("t", many=agg.count())


@mistake("no column 'town' to look up")
def _(clicks: Stream, cities: Stream) -> Stream:
    return (
        clicks.where("n > 0")
        .lookup("t", cities, on="town", add=("country",))  # wrong
        .where("country IS NOT NULL")
    )


@mistake("no column 'contry' in the table 'cities', 'contry'; did you mean 'country'?")
def _(clicks: Stream, cities: Stream) -> Stream:
    return clicks.lookup("t", cities, on="city", add=("contry",))  # wrong


@mistake("no column 'conty' in what it reads of 'cities', \"conty = 'IT'\"; did you mean")
def _(clicks: Stream, cities: Stream) -> Stream:
    italian = cities.where("conty = 'IT'")  # wrong
    return clicks.lookup("t", italian, on="city", add=("country",))


@mistake("no column 'city' in what it unites of 'clicks'")
def _(clicks: Stream, _: Stream) -> Stream:
    fewer = clicks.select("user", "n", "at")
    return clicks.union("t", fewer)  # wrong


@mistake("joins 'user' of 'clicks', which is string, with 'n' of 'clicks', which is bigint")
def _(clicks: Stream, _: Stream) -> Stream:
    users, numbers = clicks.key_by("user"), clicks.select("n", "city AS place").key_by("n")
    return users.join("t", numbers)  # wrong


@mistake("no column 'window_start' of an attached window")
def _(clicks: Stream, _: Stream) -> Stream:
    users = clicks.key_by("user")
    return users.window_top_n("t", Attached(), 1, by="n")  # wrong


@mistake("sink 'out' is partitioned by 'day', which 't' does not yield")
def _(clicks: Stream, _: Stream) -> Stream:
    totals = clicks.key_by("user").aggregate("t", many=agg.count())
    totals.sink("out", FilesTable(upsert_key=("user",), partition_by=("day",)))  # wrong
    return totals


@pytest.mark.parametrize("expected", MISTAKES)
def test_a_mistake_names_the_line_on_which_it_is_written(expected: str, tmp_path: Path) -> None:
    declare = MISTAKES[expected]
    pipeline = Pipeline("world")
    clicks = Files(str(tmp_path / "clicks.csv"), format="csv", schema=COLUMNS)
    cities = Files(str(tmp_path / "cities.csv"), format="csv", schema="city string, country string")
    declared = declare(
        pipeline.source("clicks", clicks, event_time="at"),
        pipeline.source("cities", cities, table=True),
    )
    if not pipeline.sinks or "all" in pipeline.sinks:
        declared.sink("changes", FilesTable(changelog=True))

    with pytest.raises(ConfigurationError) as error:
        analyse(pipeline, {}, None)

    text, begins = inspect.getsourcelines(declare)
    line = begins + next(n for n, code in enumerate(text) if code.rstrip().endswith("# wrong"))
    assert expected in str(error.value)
    assert str(error.value).endswith(f" (tests/unit/job/{Path(__file__).name}:{line})")


def test_a_line_is_no_part_of_what_is_declared() -> None:
    sinks = [SinkNode(uid="out", spec=FilesTable(), input="totals") for _ in range(2)]
    sums = [
        agg.sum("n"),
        agg.sum("n"),
    ]

    assert sums[0].line != sums[1].line
    assert sums[0] == sums[1]
    assert sinks[0] == sinks[1]
    assert "test_lines" not in repr((*sums, *sinks))
