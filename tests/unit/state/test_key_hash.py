"""Key columns are hashed a block of rows at a time; where a block ends changes no hash."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from sluice.state.key_hash import key_hash

ROWS = 50_001
SLICE = 1_000  # Less than a block.
NUMBERS = pl.Series("number", range(ROWS))


@pytest.mark.parametrize(
    "key",
    [
        NUMBERS,
        NUMBERS.cast(pl.Int32),
        pl.Series([f"{number:036d}" for number in range(ROWS)]),
        pl.Series([f"{number:07d}".encode() for number in range(ROWS)]),
        pl.Series(["é" * (number % 41) for number in range(ROWS)]),
        pl.Series([None if number % 3 else f"key {number}" for number in range(ROWS)]),
        pl.Series([None] * ROWS, dtype=pl.String),
        pl.Series([""] * ROWS),
    ],
    ids=["long", "int", "texts", "bytes", "lengths", "nulls", "no text", "empty texts"],
)
def test_a_hash_does_not_depend_on_the_rows_around_it(key: pl.Series) -> None:
    rows = pl.DataFrame({"key": key, "number": NUMBERS})

    hashed = key_hash(rows, ["number", "key"])

    slices = [key_hash(part, ["number", "key"]) for part in rows.iter_slices(SLICE)]
    assert np.array_equal(hashed, np.concatenate(slices))
    assert np.array_equal(hashed[7:ROWS], key_hash(rows.slice(7), ["number", "key"]))
