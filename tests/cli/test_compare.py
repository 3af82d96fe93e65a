"""``sluice compare``: what one table has, and another has not, or otherwise."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.cli.conftest import Sluice

ROWS: list[dict[str, Any]] = [
    {"id": 1, "dt": "2026-03-01", "price": 5.0},
    {"id": 2, "dt": "2026-03-01", "price": None},
    {"id": 3, "dt": "2026-03-02", "price": 7.5},
]


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """*rows* as Spark writes them, a folder for each day."""
    schema = {"id": pl.Int64(), "dt": pl.String(), "price": pl.Float64()}
    for (day,), of_day in pl.DataFrame(rows, schema).group_by("dt"):
        (folder / f"dt={day}").mkdir(parents=True)
        of_day.drop("dt").write_parquet(folder / f"dt={day}" / "part-0.parquet")
    return folder


@pytest.mark.parametrize("keys", [(), ("--key", "id")])
def test_equal_tables_are_equal_however_they_are_cut_into_files(
    sluice: Sluice, tmp_path: Path, keys: tuple[str, ...]
) -> None:
    a = written(tmp_path / "a", ROWS)
    pl.DataFrame(ROWS[::-1]).with_columns(pl.col("dt").str.to_date()).write_parquet(
        tmp_path / "b.parquet"
    )

    answer = sluice("compare", a, tmp_path / "b.parquet", *keys)

    assert (answer.code, answer.out) == (0, "the tables are equal: 3 rows\n")


def test_missing_extra_and_different_rows_are_counted_and_shown(
    sluice: Sluice, tmp_path: Path
) -> None:
    a = written(tmp_path / "a", ROWS)
    b = written(tmp_path / "b", [ROWS[0] | {"price": 6.0}, ROWS[2], ROWS[2] | {"id": 4}])

    answer = sluice("compare", a, b, "--key", "id")

    assert answer.code == 2
    assert answer.out.splitlines() == [
        "the first table has 3 rows, the second 3",
        "rows missing in the second: 1; extra: 1; different: 1",
        "they differ in price",
        "  missing: id = 2",
        "  extra: id = 4",
        "  different: id = 1",
    ]
    told = sluice("compare", a, b, "--json")
    assert (told.code, told.json["missing"], told.json["extra"]) == (2, 2, 2)


def test_a_key_that_is_none_is_named(sluice: Sluice, tmp_path: Path) -> None:
    a = written(tmp_path / "a", ROWS)

    assert (
        "the first table has no column 'x' for --key; it has id, price, dt"
        in sluice("compare", a, a, "--key", "x").error
    )
    assert (
        "has several rows of dt = 2026-03-01, so --key does not"
        in sluice("compare", a, a, "--key", "dt").error
    )


@pytest.mark.parametrize(
    ("a", "b", "sentence"),
    [
        (pl.Int32(), pl.Int64(), ""),
        (pl.Datetime("ns"), pl.Datetime("us"), ""),
        (pl.Decimal(10, 1), pl.Decimal(12, 2), ""),
        (pl.String(), pl.Int64(), "column 'v' is String in the first table and Int64 in the sec"),
        (pl.Boolean(), pl.Int64(), "column 'v' is Boolean in the first table and Int64 in the sec"),
    ],
)
def test_types_that_hold_the_same_values_are_compared_and_others_are_named(
    sluice: Sluice, tmp_path: Path, a: pl.DataType, b: pl.DataType, sentence: str
) -> None:
    for name, kind in (("a", a), ("b", b)):
        values = pl.Series("v", [0]).cast(kind)
        pl.DataFrame({"id": [1], "v": values}).write_parquet(tmp_path / f"{name}.parquet")

    for keys in ((), ("--key", "id")):
        answer = sluice("compare", tmp_path / "a.parquet", tmp_path / "b.parquet", *keys)
        if sentence:
            assert sentence in answer.error
        else:
            assert answer.out == "the tables are equal: 1 rows\n"


def test_tables_without_a_column_in_common_are_refused(sluice: Sluice, tmp_path: Path) -> None:
    for name in "ab":
        pl.DataFrame({name: [1]}).write_parquet(tmp_path / f"{name}.parquet")

    answer = sluice("compare", tmp_path / "a.parquet", tmp_path / "b.parquet")

    assert "the tables have no column in common: a and b" in answer.error


def test_no_column_is_taken_for_one_of_the_comparison(sluice: Sluice, tmp_path: Path) -> None:
    rows = pl.DataFrame({"id": [1], "at": [1], "at_right": [2], "_copies": [3]})
    for name in ("a", "b"):
        rows.write_parquet(tmp_path / f"{name}.parquet")

    answer = sluice("compare", tmp_path / "a.parquet", tmp_path / "b.parquet", "--key", "id")

    assert (answer.code, answer.out) == (0, "the tables are equal: 1 rows\n")


def test_a_key_that_is_given_twice_is_one_key(sluice: Sluice, tmp_path: Path) -> None:
    a = written(tmp_path / "a", ROWS)

    answer = sluice("compare", a, a, "--key", "id", "--key", "id")

    assert (answer.code, answer.out) == (0, "the tables are equal: 3 rows\n")


def test_a_value_that_the_other_type_cannot_hold_is_named(sluice: Sluice, tmp_path: Path) -> None:
    for name, value, kind in (("a", Decimal(10**30), 0), ("b", Decimal("1.5"), 10)):
        column = pl.Series("price", [value], pl.Decimal(38, kind))
        pl.DataFrame(column).write_parquet(tmp_path / f"{name}.parquet")

    answer = sluice("compare", tmp_path / "a.parquet", tmp_path / "b.parquet")

    assert "which the type of the other table cannot hold" in answer.error
    assert "in column 'price'" in answer.error


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("_delta_log/00000000000000000000.json", "so files in it are a table of Delta, and may"),
        ("metadata/00000-x.metadata.json", "so files in it are a table of Iceberg, and may"),
        ("rows.csv", "'sluice compare' reads Parquet files and FilesTables"),
    ],
)
def test_what_is_no_table_of_parquet_files_alone_is_refused(
    sluice: Sluice, tmp_path: Path, file: str, sentence: str
) -> None:
    a = written(tmp_path / "a", ROWS)
    (a / file).parent.mkdir(exist_ok=True)
    (a / file).write_text("{}")

    answer = sluice("compare", a, a)

    assert answer.code == 1
    assert sentence in answer.error
