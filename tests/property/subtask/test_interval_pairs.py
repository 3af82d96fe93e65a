"""Pairs of an interval join against two loops, whatever repeats, is null, or is missing."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from sluice.operators.timed_joins import interval_pairs
from tests.examples import examples

LEFT = pl.Schema({"id": pl.Int64(), "name": pl.String(), "lower": pl.Int64(), "upper": pl.Int64()})
RIGHT = pl.Schema({"id": pl.Int64(), "name": pl.String(), "at": pl.Int64()})

_ids = st.integers(0, 2)
_names = st.sampled_from(["", "a", None])
_times = st.integers(-4, 4)
_bounds = st.none() | _times


@examples(150)
@given(
    st.lists(st.tuples(_ids, _names, _bounds, _bounds), max_size=12),
    st.lists(st.tuples(_ids, st.sampled_from(["", "a"]), _times), max_size=30),
)
def test_pairs_are_those_of_two_loops(
    left: list[tuple[int, str | None, int | None, int | None]], right: list[tuple[int, str, int]]
) -> None:
    right.sort()

    which, where = interval_pairs(
        pl.DataFrame(left, LEFT, orient="row"),
        pl.DataFrame(right, RIGHT, orient="row"),
        ("id", "name"),
        lower=pl.col("lower"),
        upper=pl.col("upper"),
        at=pl.col("at"),
    )

    assert list(zip(which.tolist(), where.tolist(), strict=True)) == [
        (row, place)
        for row, (key, name, lower, upper) in enumerate(left)
        for place, (other, other_name, at) in enumerate(right)
        if (key, name) == (other, other_name)
        and lower is not None
        and upper is not None
        and lower <= at <= upper
    ]
