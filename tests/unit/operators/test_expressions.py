"""Filters and projections of a stage's result: in the order written, a row at a time."""

from __future__ import annotations

import polars as pl
import pytest

from sluice.declaration.expressions import Filter, Projection, Step
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import Union
from sluice.errors import ConfigurationError
from sluice.exchange.output import projected_result
from sluice.operators.operator import WEIGHT

ROWS = pl.DataFrame(
    {
        "n": [1, 2, 30],
        "user": ["ann", "bob", "cid"],
        "date": ["2026-01-01", "2026-01-02", None],
        "current_date": [7, 8, 9],
        "year": [1, 2, 3],
        "s": [{"user": 4}, {"user": 5}, {"user": 6}],
    }
)


def kept(*steps: Step, rows: pl.DataFrame = ROWS) -> pl.DataFrame:
    stage = StageNode(uid="s", operation=Union(), inputs=(Input(producer="r"),), steps=steps)
    return projected_result(stage, rows)


def test_a_filter_behind_a_projection_sees_its_columns() -> None:
    steps = Projection(("user", "n * 10 AS n")), Filter("n >= 20"), Projection(("n + 1 AS n",))

    assert kept(*steps).rows() == [(21,), (301,)]
    assert kept(Filter("n >= 20"), Projection(("n * 10 AS n",))).rows() == [(300,)]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("user", ["ann", "bob", "cid"]),
        ("user AS u", ["ann", "bob", "cid"]),
        ("upper(user) AS u", ["ANN", "BOB", "CID"]),
        ("current_date", [7, 8, 9]),
        ("current_date + Year AS x", [8, 10, 12]),
        ("date", ["2026-01-01", "2026-01-02", None]),
        ("date IS NULL AND user <> 'user' AS x", [False, False, True]),
        ("s.user", [4, 5, 6]),
        ("cast(n AS double) IS NULL AS x", [False, False, False]),
        ("extract(year from date '2026-05-01') AS y", [2026, 2026, 2026]),
        ("'user' AS x", ["user", "user", "user"]),
        ('"user" AS x', ["user", "user", "user"]),
        ("`user`", ["ann", "bob", "cid"]),
        ("CASE WHEN n >= 2 THEN user ELSE 'none' END AS x", ["none", "bob", "cid"]),
    ],
)
def test_a_column_called_like_a_function_or_a_keyword_is_the_column(
    column: str, values: list[object]
) -> None:
    assert kept(Projection((column,))).to_series().to_list() == values


def test_literals_alone_are_as_many_as_the_rows() -> None:
    assert kept(Projection(("1 AS one",))).rows() == [(1,), (1,), (1,)]
    assert kept(Projection(("1 AS one",)), rows=ROWS.clear()).height == 0


def test_a_star_is_every_column_and_weights_stay() -> None:
    rows = ROWS.select("n", "user").with_columns(pl.lit(-1, pl.Int8()).alias(WEIGHT))

    assert kept(Projection(("*", "n + 1 AS more")), rows=rows).columns == [
        "n",
        "user",
        "more",
        WEIGHT,
    ]
    assert kept(Projection(("1 AS one",)), rows=rows).rows() == [(1, -1)] * 3


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"stage 's' cannot keep nobody > 1 of its result"):
        kept(Filter("nobody > 1"))
