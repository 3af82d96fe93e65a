"""The rows of a side output: where they came from, and every column that they had."""

from __future__ import annotations

import polars as pl

from sluice.declaration.places import MALFORMED_COLUMN, RAW
from sluice.exchange.output import readable_rows
from sluice.exchange.reading import SOURCE

ORIGIN = {SOURCE: [{"partition": "a.json", "record": 6}]}
MALFORMED = {MALFORMED_COLUMN: ["no object"], RAW: ["{"]}


def test_a_row_that_could_not_be_read_says_where_it_was_and_why() -> None:
    rows = pl.DataFrame({"id": [None]} | MALFORMED | ORIGIN)

    assert readable_rows(rows).to_dicts() == [
        {"partition": "a.json", "record_number": 7, "id": None, "reason": "no object", "line": "{"}
    ]


def test_columns_that_rows_have_themselves_stay_theirs() -> None:
    theirs = {"reason": ["late"], "line": ["U8"], "partition": ["p"], "record_number": [1]}
    taken = {"_reason": ["of hers"]}
    rows = pl.DataFrame(theirs | taken | MALFORMED | ORIGIN)

    (found,) = readable_rows(rows).to_dicts()

    assert found == {
        "_partition": "a.json",
        "_record_number": 7,
        "reason": "late",
        "line": "U8",
        "partition": "p",
        "record_number": 1,
        "_reason": "of hers",
        "__reason": "no object",
        "_line": "{",
    }
