"""Files of rows are bounded by rows and by bytes, and do not depend on how rows were cut."""

from __future__ import annotations

from random import Random

import polars as pl
import pyarrow as pa
import pytest

from sluice.state import segments as row_files
from sluice.state.segments import RowFiles, fixed_width, row_sizes


def files_of(rows: pl.DataFrame, *cuts: int) -> list[pa.Table]:
    written: list[pa.Table] = []
    files = RowFiles(written.append)
    for start, end in zip((0, *cuts), (*cuts, rows.height), strict=True):
        files.add(rows[start:end])
    files.finish()
    return written


def test_wide_rows_fill_a_file_long_before_their_number_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_files, "BYTES_PER_FILE", 1_000_000)
    rows = pl.DataFrame({"doc": ["x" * 100_000] * 35})

    assert [table.num_rows for table in files_of(rows, 3, 20)] == [10, 10, 10, 5]
    assert max(table.nbytes for table in files_of(rows, 3, 20)) < 1_100_000


@pytest.mark.parametrize("seed", range(5))
def test_the_same_rows_give_the_same_files_however_they_were_cut(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(row_files, "BYTES_PER_FILE", 500)
    monkeypatch.setattr(row_files, "WIDE_ROWS_PER_FILE", 9)
    random = Random(seed)
    rows = pl.DataFrame(
        {
            "text": ["y" * random.choice([0, 1, 40, 700]) for _ in range(200)],
            "list": [["z" * random.randrange(9)] * random.randrange(3) for _ in range(200)],
        }
    )

    whole = files_of(rows)
    cut = files_of(rows, *sorted(random.sample(range(1, 200), 20)))

    assert pa.concat_tables(whole).equals(pa.concat_tables(cut))
    assert [table.num_rows for table in whole] == [table.num_rows for table in cut]
    assert len(whole) > 20


def test_narrow_rows_fill_a_file_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "ROWS_PER_FILE", 100)

    assert [table.num_rows for table in files_of(pl.DataFrame({"n": range(250)}), 99)] == [
        100,
        100,
        50,
    ]
    assert files_of(pl.DataFrame({"n": []})) == []


def test_the_size_of_a_row_is_that_of_its_content() -> None:
    rows = pl.DataFrame(
        {
            "n": [1, None],
            "text": ["abc", None],
            "body": [b"12345", None],
            "list": [[1, 2], None],
            "texts": [["ab", "c"], []],
            "nested": [{"a": "abcd", "b": [True]}, {"a": None, "b": None}],
        }
    )

    assert row_sizes(rows).to_list() == [
        8 + (3 + 8) + (5 + 8) + (16 + 8) + (2 + 8 + 1 + 8 + 8) + (1 + 4 + 8 + 1 + 8),
        8 + 8 + 8 + 8 + 8 + (1 + 8 + 8),
    ]
    assert fixed_width(rows.schema) is None
    assert fixed_width(pl.Schema({"n": pl.Int64(), "b": pl.Boolean(), "d": pl.Date()})) == 13


def test_structs_of_numbers_alone_have_a_size_for_each_row() -> None:
    pairs = pl.Struct({"f0": pl.Int64, "f1": pl.Float32})
    rows = pl.DataFrame(
        {"pair": [{"f0": 1, "f1": 2.0}] * 3, "pairs": [[], [{"f0": 1, "f1": 2.0}] * 2, None]},
        schema={"pair": pairs, "pairs": pl.List(pairs)},
    )

    assert fixed_width(rows.select("pair").schema) == 13
    assert row_sizes(rows).to_list() == [13 + 8, 13 + 8 + 26, 13 + 8]
    assert [table.num_rows for table in files_of(rows, 1)] == [3]
