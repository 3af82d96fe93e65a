"""What is done at once is what Polars' queries do."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import pytest
from polars.testing import assert_frame_equal, assert_series_equal

from sluice.state.at_once import agree, chosen, constant, differ, passing, without

NAN = float("nan")
ROWS = pl.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"], "c": [True, False, True]})
PAIRS: dict[str, tuple[list[object], list[object], pl.DataType]] = {
    "numbers": ([1, 2, 3], [1, 0, 3], pl.Int64()),
    "nulls on one side": ([1, None, 3], [1, 2, 3], pl.Int64()),
    "nulls on both": ([None, None, 3], [None, 2, 4], pl.Int64()),
    "NaN and both zeros": ([NAN, 0.0, 1.0], [NAN, -0.0, NAN], pl.Float64()),
    "texts": (["x", "", "é"], ["x", " ", "é"], pl.String()),
    "bytes": ([b"x", b"", b"y"], [b"x", b"y", b"y"], pl.Binary()),
    "booleans": ([True, False, True], [True, True, True], pl.Boolean()),
    "decimals": ([Decimal("1.1")] * 3, [Decimal("1.1"), Decimal("1.2"), None], pl.Decimal(10, 2)),
    "days": ([date(2026, 1, 1)] * 3, [date(2026, 1, 1), date(1, 1, 1), None], pl.Date()),
    "moments": (
        [datetime(2026, 1, 1, tzinfo=UTC)] * 2,
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)],
        pl.Datetime("us", "UTC"),
    ),
    "lists": ([[1], [1, None], None], [[1], [1, 2], None], pl.List(pl.Int64())),
    "structs": ([{"x": 1}, {"x": None}], [{"x": 1}, {"x": 2}], pl.Struct({"x": pl.Int64()})),
    "none": ([], [], pl.Int64()),
    "one beside one": ([1], [2], pl.Int64()),
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS)
def test_columns_are_compared_as_with_missing(pair: str) -> None:
    left, right, dtype = PAIRS[pair]
    one, other = pl.Series("v", left, dtype), pl.Series("v", right, dtype)

    assert_series_equal(differ(one, other), one.ne_missing(other))
    assert_series_equal(agree(one, other), one.eq_missing(other))


@pytest.mark.parametrize(
    "mask", [[True] * 3, [False] * 3, [True, False, True], [True, None, True], [None] * 3]
)
def test_rows_pass_as_a_filter_lets_them(mask: list[bool | None]) -> None:
    column = pl.Series(mask, dtype=pl.Boolean)

    assert_frame_equal(passing(ROWS, column), ROWS.filter(column))
    assert_frame_equal(passing(ROWS.clear(), column.clear()), ROWS.clear())


def test_columns_are_chosen_and_left_out_as_by_select_and_drop() -> None:
    assert_frame_equal(chosen(ROWS, ("c", "a")), ROWS.select("c", "a"))
    assert_frame_equal(without(ROWS, ("b", "there is none")), ROWS.drop("b"))
    assert without(ROWS, ("there is none",)) is ROWS
    with pytest.raises(pl.exceptions.ColumnNotFoundError):
        chosen(ROWS, ("there is none",))


@pytest.mark.parametrize("height", [0, 1, 3])
def test_a_constant_is_a_literal_of_so_many_rows(height: int) -> None:
    made = constant("w", -1, pl.Int8(), height)

    literal = ROWS.head(height).select(pl.repeat(-1, pl.len(), dtype=pl.Int8).alias("w"))
    assert_series_equal(made, literal["w"])


def test_no_names_leave_no_columns() -> None:
    assert_frame_equal(chosen(ROWS, ()), ROWS.select())
    assert_frame_equal(without(ROWS, ROWS.columns), ROWS.select())
