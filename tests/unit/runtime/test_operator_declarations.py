"""What a declaration asks of its input is checked when it is declared, and refused by name."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from sluice import aggregates as agg
from sluice.errors import ConfigurationError
from sluice.runtime.operators.aggregate import KeyedAggregate
from sluice.runtime.operators.top_n import TopN
from sluice.runtime.operators.windows import TumblingWindow

INPUT = pl.Schema({"id": pl.Int64(), "name": pl.String(), "at": pl.Datetime("us", "UTC")})


def an_aggregate(*keys: str, **aggregates: agg.Aggregate) -> Callable[[], object]:
    return lambda: KeyedAggregate(uid="agg", keys=keys, aggregates=aggregates, schema=INPUT)


def a_window(event_time: str, size_ms: int) -> Callable[[], object]:
    return lambda: TumblingWindow(
        uid="win", keys=["id"], size_ms=size_ms, event_time=event_time, aggregates={}, schema=INPUT
    )


def a_top_n(by: str, n: int, *unique: str) -> Callable[[], object]:
    return lambda: TopN(uid="top", keys=["id"], n=n, by=by, unique=unique, schema=INPUT)


UNKNOWN = (
    r"stage 'agg' has no column 'nmae' for min\(\) as 'm'; did you mean 'name'\? "
    "its columns are: id, name, at"
)


@pytest.mark.parametrize(
    ("message", "declare"),
    [
        (UNKNOWN, an_aggregate("id", m=agg.min("nmae"))),
        ("'agg' has no column 'xyz' for its key; its columns are", an_aggregate("xyz")),
        (
            r"'agg' cannot use column 'name' of type String for sum\(\)",
            an_aggregate("id", s=agg.sum("name")),
        ),
        ("'agg' would have a column 'id' that is there twice", an_aggregate("id", id=agg.count())),
        (
            "'agg' would have a column '_deleted' that is reserved",
            an_aggregate("id", _deleted=agg.count()),
        ),
        ("'agg' needs at least one key column", an_aggregate()),
        ("'win' needs a window of 1 ms or more, not 0", a_window("at", 0)),
        ("'win' cannot use column 'name' of type String as event time", a_window("name", 1)),
        ("'win' has no column 'att' for its event time; did you mean 'at'", a_window("att", 1)),
        ("'top' needs n of 1 or more, not 0", a_top_n("at", 0, "name")),
        ("'top' has no column 'score' to rank by", a_top_n("score", 1, "name")),
        ("'top' needs the columns that make a row unique", a_top_n("at", 1)),
    ],
)
def test_a_declaration_the_input_cannot_satisfy_is_refused(
    message: str, declare: Callable[[], object]
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        declare()
