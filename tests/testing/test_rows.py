"""Rows in every form that people have them, and one clear sentence for what is no row."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, isnan, nan
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sluice.errors import ConfigurationError
from sluice.local.given import INSTANT, DeclaredRows, RowsByEpoch, check_cut, cut, source_rows

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ANY = DeclaredRows()
SHOP = DeclaredRows(
    schema=pa.schema([("shop", pa.string()), ("price", pa.int64()), ("at", INSTANT)]),
    fills={"offset": lambda first, count: pa.array(range(first, first + count))},
)


def read(given: Any, declared: DeclaredRows = ANY, event_time: str | None = None) -> RowsByEpoch:
    return source_rows("orders", given, declared, event_time)


def refusal(given: Any, declared: DeclaredRows = ANY) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read(given, declared)
    return str(refused.value)


@pytest.mark.parametrize("form", [list, pl.DataFrame], ids=["dicts", "a frame"])
def test_neither_a_time_of_day_nor_a_number_is_lost_in_silence(form: Any) -> None:
    flags = DeclaredRows(schema=pa.schema([("day", pa.date32()), ("is_new", pa.bool_())]))
    midnight = NOON.replace(hour=0)

    (rows,) = read(form([{"day": midnight, "is_new": True}]), flags).chunks
    assert rows.to_pylist() == [{"day": midnight.date(), "is_new": True}]
    for wrong, what in (({"day": NOON}, "12, 0"), ({"is_new": 2}, "has 2 in column 'is_new'")):
        good = {"day": midnight, "is_new": "is_new" not in wrong}
        assert what in refusal(form([{**good, **wrong}]), flags)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param([{"id": 1, "name": "a"}, {"id": 2}], id="dicts"),
        pytest.param(pl.DataFrame({"id": [1, 2], "name": ["a", None]}), id="polars"),
        pytest.param(pl.LazyFrame({"id": [1, 2], "name": ["a", None]}), id="lazy polars"),
        pytest.param(pd.DataFrame({"id": [1, 2], "name": ["a", None]}, index=[7, 8]), id="pandas"),
        pytest.param(pa.table({"id": [1, 2], "name": ["a", None]}), id="pyarrow"),
        pytest.param(pa.RecordBatch.from_pydict({"id": [1, 2], "name": ["a", None]}), id="batch"),
    ],
)
def test_every_form_is_one_table_of_spark_s_types(given: Any) -> None:
    rows = read(given)

    expected = pa.table({"id": pa.array([1, 2], pa.int64()), "name": pa.array(["a", None])})
    assert rows == RowsByEpoch((expected,), is_cut=False)


def test_a_list_of_frames_or_lists_is_one_for_each_epoch() -> None:
    rows = read([[{"id": 1}], pl.DataFrame({"id": [2, 3]}), []])

    assert [chunk["id"].to_pylist() for chunk in rows.chunks] == [[1], [2, 3], []]
    assert rows.is_cut


def test_types_that_spark_has_not_become_those_that_hold_them() -> None:
    frame = pl.DataFrame(
        {
            "tag": pl.Series(["a"], dtype=pl.Categorical),
            "small": pl.Series([255], dtype=pl.UInt8),
            "large": pl.Series([2**64 - 1], dtype=pl.UInt64),
            "at": pl.Series([NOON], dtype=pl.Datetime("ns", "Europe/Berlin")),
            "many": pl.Series([["x"]]),
        }
    )

    (table,) = read(frame).chunks

    assert table.schema == pa.schema(
        [
            ("tag", pa.string()),
            ("small", pa.int16()),
            ("large", pa.decimal128(20, 0)),
            ("at", INSTANT),
            ("many", pa.list_(pa.string())),
        ]
    )
    assert table.to_pylist() == [
        {"tag": "a", "small": 255, "large": Decimal(2**64 - 1), "at": NOON, "many": ["x"]}
    ]


def test_event_time_without_a_zone_is_utc_and_may_be_a_text_where_its_type_is_declared() -> None:
    naive = NOON.replace(tzinfo=None)

    (of_frame,) = read(pl.DataFrame({"at": [naive]}), ANY, "at").chunks
    (of_text,) = read([{"shop": "a", "price": 1, "at": "2026-01-01T12:00"}], SHOP).chunks

    assert of_frame["at"].to_pylist() == of_text["at"].to_pylist() == [NOON]


def test_columns_that_only_the_place_knows_are_filled_unless_they_are_given() -> None:
    declared = DeclaredRows(
        schema=pa.schema([("id", pa.int64()), ("offset", pa.int64())]), fills=SHOP.fills
    )

    counted = read([[{"id": 5}], [{"id": 6}, {"id": 7}]], declared)
    given = read([{"id": 5, "offset": 40}], declared)

    assert [chunk["offset"].to_pylist() for chunk in counted.chunks] == [[0], [1, 2]]
    assert given.chunks[0]["offset"].to_pylist() == [40]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"epochs": 2}, [[0, 1], [2, 3, 4]]),
        ({"rows_per_epoch": 2}, [[0, 1], [2, 3], [4]]),
        ({"rows_per_epoch": 5}, [[0, 1, 2, 3, 4]]),
        ({"epochs": 1}, [[0, 1, 2, 3, 4]]),
    ],
)
def test_rows_in_one_piece_are_cut_and_those_by_epoch_stay(
    how: dict[str, int], expected: list[list[int]]
) -> None:
    both: dict[str, int | None] = {"epochs": None, "rows_per_epoch": None, **how}
    by_epoch = read([[{"id": 1}], [{"id": 2}]])

    pieces = cut(read([{"id": number} for number in range(5)]), **both)

    assert [chunk["id"].to_pylist() for chunk in pieces.chunks] == expected
    assert cut(by_epoch, **both) == by_epoch


def test_a_cut_that_is_said_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_cut(epochs=2, rows_per_epoch=3)

    assert str(refused.value) == (
        "epochs= and rows_per_epoch= both say where rows are cut; give one of the two"
    )


def test_what_is_wrong_is_said_with_its_row_and_column() -> None:
    good = {"shop": "a", "price": 1, "at": NOON}

    assert refusal([good, {**good, "price": "x"}], SHOP) == (
        "row 2 of source 'orders' has 'x' in column 'price', which is int64; give a value of that "
        "type, or None"
    )
    assert refusal([[good], [{**good, "at": "noon"}]], SHOP) == (
        "row 1 of source 'orders' in epoch 2 has 'noon' in column 'at', which is "
        "timestamp[us, tz=UTC]; give a value of that type, or None"
    )
    assert refusal(pl.DataFrame([{**good, "price": 1.5}]), SHOP) == (
        "row 1 of source 'orders' has 1.5 in column 'price', which is double where int64 is "
        "declared; cast it, or correct the value"
    )
    assert refusal([{**good, "prise": 2}], SHOP) == (
        "the rows of source 'orders' have a column 'prise' (did you mean 'price'?); it is declared "
        "with shop, price, at"
    )
    assert refusal([{"shop": "a", "at": NOON}], SHOP) == (
        "no row of source 'orders' has the column 'price', with which it is declared; give it, as "
        "None where a row has none"
    )


PLACES = pl.Struct({"town": pl.String(), "is_open": pl.Int64()})
NESTED = pa.struct([("town", pa.string()), ("is_open", pa.bool_())])


@pytest.mark.parametrize(
    ("given", "declared"),
    [
        (pl.Series([0.5]), pa.bool_()),
        (pl.Series([1e300]), pa.float32()),
        (pl.Series([[-1e300, nan]]), pa.list_(pa.float32())),
        (pl.Series([1.239]), pa.decimal128(10, 2)),
        (pl.Series([Decimal("12345678901234567890.12")]), pa.float64()),
        (pl.Series([[NOON]]), pa.list_(pa.date32())),
        (pl.Series([{"town": "a", "is_open": 2}], dtype=PLACES), NESTED),
        (pl.Series([{"town": "a"}]), pa.struct([("twon", pa.string())])),
        (pl.Series([{"town": "a", "is_open": 1}], dtype=PLACES), pa.struct([NESTED.field(0)])),
    ],
)
def test_a_column_of_which_arrow_would_cut_a_value_is_refused(
    given: pl.Series, declared: pa.DataType
) -> None:
    frame = pl.DataFrame({"it": given.extend_constant(None, 1).reverse()})

    message = refusal(frame, DeclaredRows(schema=pa.schema([("it", declared)])))

    assert message.startswith("row 2 of source 'orders' has ")
    assert message.endswith(f"where {declared} is declared; cast it, or correct the value")


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (1.5, pa.int64()),
        ([1, 1.5], pa.list_(pa.int64())),
        ([2**60 + 1, 1.5], pa.list_(pa.int64())),
        ({"n": (2**60 + 1, 1.5)}, pa.struct([("n", pa.list_(pa.int64()))])),
        (1e300, pa.float32()),
        ([{"n": 1e300}], pa.list_(pa.struct([("n", pa.float32())]))),
        ([NOON], pa.list_(pa.date32())),
        ({"town": "a", "street": "b"}, pa.struct([NESTED.field(0)])),
        ([{"town": "a", "n": 0.5}], pa.list_(pa.struct([("n", pa.int8()), NESTED.field(0)]))),
    ],
)
def test_a_value_of_a_dict_of_which_arrow_would_drop_a_part_is_refused(
    value: object, declared: pa.DataType
) -> None:
    shape = DeclaredRows(schema=pa.schema([("it", declared)]))

    message = refusal([{"it": None}, {"it": value}], shape)

    assert message == (
        f"row 2 of source 'orders' has {value!r} in column 'it', which is {declared}; give a value "
        "of that type, or None"
    )


def test_a_fraction_beside_a_large_number_is_refused() -> None:
    shape = DeclaredRows(schema=pa.schema([("it", pa.int64())]))

    message = refusal([{"it": 2**60 + 1}, {"it": 1.5}], shape)

    assert message.startswith("row 2 of source 'orders' has 1.5 in column 'it', which is int64")


def test_what_is_no_number_stands_beside_a_day_within_a_dict() -> None:
    of = pa.struct([("day", pa.date32()), ("n", pa.float64())])
    shape = DeclaredRows(schema=pa.schema([("it", of)]))
    given = {"day": datetime(2026, 1, 1, tzinfo=UTC), "n": nan}

    (rows,) = read([{"it": given}], shape).chunks

    kept = rows["it"][0].as_py()
    assert kept["day"] == date(2026, 1, 1)
    assert isnan(kept["n"])


@pytest.mark.parametrize(
    ("value", "declared", "read_as"),
    [
        (1e18, pa.int64(), 10**18),
        (2.0, pa.int32(), 2),
        ([1.0, None], pa.list_(pa.int16()), [1, None]),
        ([2**60 + 1, 2.0], pa.list_(pa.int64()), [2**60 + 1, 2]),
        ([inf, None, 0.5], pa.list_(pa.float32()), [inf, None, 0.5]),
        ([1, 2.5], pa.list_(pa.float64()), [1.0, 2.5]),
        ([Decimal("1.5")], pa.list_(pa.decimal128(10, 2)), [Decimal("1.50")]),
        ([NOON.replace(tzinfo=None)], pa.list_(INSTANT), [NOON]),
        ({"town": None}, NESTED, {"town": None, "is_open": None}),
        ([("a", 1), ("b", None)], pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)]),
    ],
)
def test_a_value_of_a_dict_that_loses_nothing_is_taken(
    value: object, declared: pa.DataType, read_as: object
) -> None:
    shape = DeclaredRows(schema=pa.schema([("it", declared)]))

    (rows,) = read([{"it": value}, {"it": None}], shape).chunks

    assert rows["it"].to_pylist() == [read_as, None]


def test_a_column_of_another_type_with_the_same_values_is_taken() -> None:
    floats, open_ = [-0.47, 512939473.01, None], [{"town": "a", "is_open": 1}, None, None]
    declared = pa.schema(
        [("f", pa.decimal128(18, 2)), ("d", pa.float64()), ("b", pa.bool_()), ("s", NESTED)]
    )
    frame = pl.DataFrame(
        {
            "f": floats,
            "d": pl.Series([Decimal("0.10"), Decimal("-7.25"), None]),
            "b": [0.0, 1.0, None],
            "s": pl.Series(open_, dtype=PLACES),
        }
    )

    (rows,) = read(frame, DeclaredRows(schema=declared)).chunks

    assert rows.schema == declared
    assert rows["f"].to_pylist() == [Decimal("-0.47"), Decimal("512939473.01"), None]
    assert rows["d"].to_pylist() == [0.1, -7.25, None]
    assert rows["b"].to_pylist() == [False, True, None]
    assert rows["s"].to_pylist() == [{"town": "a", "is_open": True}, None, None]


def test_rows_of_no_form_and_of_no_type_are_refused() -> None:
    assert refusal([{"id": 1}, {"id": "x"}]) == (
        "row 2 of source 'orders' has 'x' in column 'id', which is int64 in the rows before; give "
        "one type for each column"
    )
    assert refusal([{"id": 1}, 2]) == (
        "row 2 of source 'orders' is 2; a row is a dict of its columns"
    )
    assert refusal({"id": [1]}) == (
        "the rows of source 'orders' are 'dict'; give a list of dicts, a frame, or a list of one "
        "of these for each epoch"
    )
    assert refusal([]) == (
        "nothing says which columns source 'orders' has, as there is no row of it; give an empty "
        'frame with columns, such as polars.DataFrame(schema={"id": polars.Int64})'
    )
