"""Declared columns that do not fit the input are refused by name, before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from sluice.declaration import aggregates as agg
from sluice.declaration import operations as ops
from sluice.declaration.operations import Attached, Session, Tumbling, Window
from sluice.errors import ConfigurationError
from sluice.operators.aggregate import KeyedAggregateOperator
from sluice.operators.operator import FILTER
from sluice.operators.ranking import (
    DeduplicateOperator,
    LatestOperator,
    TopNOperator,
    WindowTopNOperator,
)
from sluice.operators.windows import AlignedWindow, SessionWindow
from tests.property.operators.played import a_stage

SECOND = timedelta(seconds=1)
INPUT = pl.Schema(
    {
        "id": pl.Int64(),
        "name": pl.String(),
        "tags": pl.List(pl.String()),
        "at": pl.Datetime("us", "UTC"),
    }
)

Declare = Callable[[], object]


def an_aggregate(*keys: str, **aggregates: agg.Aggregate) -> Declare:
    stage = a_stage(ops.KeyedAggregate(aggregates=aggregates), keys=keys, event_time=None)
    return lambda: KeyedAggregateOperator(stage, INPUT)


def a_condition(where: str) -> Declare:
    """A count whose condition, as computed, has the type of the column *where*."""
    aggregates = {"n": agg.count(where=where)}
    stage = a_stage(ops.KeyedAggregate(aggregates=aggregates), keys=["id"], event_time=None)
    computed = pl.Schema({**INPUT, f"{FILTER}n": INPUT[where]})
    return lambda: KeyedAggregateOperator(stage, computed)


def a_largest_of_bytes() -> object:
    of_bytes = pl.Schema({"id": pl.Int64(), "raw": pl.Binary()})
    operation = ops.KeyedAggregate(aggregates={"s": agg.max("raw")})
    return KeyedAggregateOperator(a_stage(operation, keys=["id"], event_time=None), of_bytes)


def a_window_by(key: str) -> Declare:
    """A window over the result of another one, keyed by a bound of that."""
    operation = ops.WindowAggregate(window=Tumbling(SECOND), aggregates={"n": agg.count()})
    stage = a_stage(operation, keys=["id", key])
    return lambda: AlignedWindow(stage, pl.Schema({**INPUT, key: INPUT["at"]}))


def a_window(window: Window, event_time: str | None = "at", **aggregates: agg.Aggregate) -> Declare:
    operation = ops.WindowAggregate(window=window, aggregates=aggregates)
    stage = a_stage(operation, keys=["id"], event_time=event_time)
    operator = SessionWindow if isinstance(window, Session) else AlignedWindow
    return lambda: operator(stage, INPUT)


def a_top_n(by: str, n: int, **columns: Any) -> Declare:
    operation = ops.TopN(n=n, by=by, **columns)
    stage = a_stage(operation, keys=["id"])
    return lambda: TopNOperator(stage, INPUT)


def a_latest(*by: str) -> Declare:
    return lambda: LatestOperator(a_stage(ops.Latest(by=by), keys=["id"]), INPUT)


def a_deduplicate(by: str | None = None, **given: Any) -> Declare:
    operation = ops.Deduplicate(by=by)
    return lambda: DeduplicateOperator(a_stage(operation, keys=["id"], **given), INPUT)


def a_window_top_n(window: ops.RankedWindow, by: str, n: int) -> Declare:
    stage = a_stage(ops.WindowTopN(window=window, n=n, by=by), keys=[])
    return lambda: WindowTopNOperator(stage, INPUT)


UNKNOWN = (
    r"stage 'stage' has no column 'nmae' for min\(\) as 'm'; did you mean 'name'\? "
    "its columns are: id, name, tags, at"
)


@pytest.mark.parametrize(
    ("message", "declare"),
    [
        (UNKNOWN, an_aggregate("id", m=agg.min("nmae"))),
        ("no column 'ID' for its key; did you mean 'id'", an_aggregate("ID", n=agg.count())),
        ("'stage' has no column 'xyz' for its key; its columns are", an_aggregate("xyz")),
        (
            r"cannot use column 'name' of type string for sum\(\)",
            an_aggregate("id", s=agg.sum("name")),
        ),
        (r"column 'at' .* avg\(\) as 's', which takes n", an_aggregate("id", s=agg.avg("at"))),
        (r"'tags' of .* for max\(\) as 's', which takes nu", an_aggregate("id", s=agg.max("tags"))),
        (
            r"'raw' of type binary for max\(\).* takes numbers, times, text and b",
            a_largest_of_bytes,
        ),
        ("would have a column 'id' that is there twice", an_aggregate("id", id=agg.count())),
        (
            "would have a column '_count_n' that is there twice",
            an_aggregate("id", n=agg.avg("id"), _count_n=agg.count()),
        ),
        (
            "would have a column '_deleted' that is reserved",
            an_aggregate("id", _deleted=agg.count()),
        ),
        ("would have a column '_rows' that is reserved", an_aggregate("id", _rows=agg.count())),
        (
            "would have a column '_written_ms' that is reserved",
            an_aggregate("id", _written_ms=agg.count()),
        ),
        (
            r"event time, by which first\(\) as 'f' could be ordered; name a column: first",
            an_aggregate("id", f=agg.first("name")),
        ),
        (
            r"no column 'when' to order last\(\) as 'l' by",
            an_aggregate("id", l=agg.last("name", by="when")),
        ),
        (
            r"cannot use column 'id' of type bigint for string_agg\(\) as 's', which takes text;",
            an_aggregate("id", s=agg.string_agg("id")),
        ),
        (
            r"cannot use column 'name' of type string for percentile\(\) as 'p'",
            an_aggregate("id", p=agg.percentile("name", 0.5)),
        ),
        (
            "'stage' cannot use column 'name' of type string as event time",
            a_window(Tumbling(SECOND), "name"),
        ),
        ("no column 'att' for its event time; did you mean 'at'", a_window(Session(SECOND), "att")),
        ("no column 'window_start' of an attached window", a_window(Attached())),
        (
            "column 'window_end' that is there twice",
            a_window(Tumbling(SECOND), window_end=agg.count()),
        ),
        ("would have a column 'window_start' that is there twice", a_window_by("window_start")),
        ("would have a column 'window_end' that is there twice", a_window_by("window_end")),
        (
            r"cannot use column 'id' of type bigint as the condition of count\(\) as 'n', which is",
            a_condition("id"),
        ),
        ("'stage' has no column 'score' to rank by", a_top_n("score", 1)),
        (r"cannot use column 'tags' of type array.* to rank by", a_top_n("tags", 1)),
        ("no column 'score' to rank equal ones by", a_top_n("at", 1, ties_by=("score",))),
        ("no column 'score' to make its rows unique", a_top_n("at", 1, unique=("score",))),
        ("needs a column by which one row is later than another", a_latest()),
        ("no column 'score' to tell which row is the latest", a_latest("at", "score")),
        ("no column 'score' to tell which row is the first", a_deduplicate(event_time="score")),
        ("no column '' to tell which row is the first", a_deduplicate(by="", event_time="at")),
        ("no column 'score' to rank by", a_window_top_n(Tumbling(SECOND), "score", 1)),
    ],
)
def test_a_declaration_the_input_cannot_satisfy_is_refused(message: str, declare: Declare) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declare()
