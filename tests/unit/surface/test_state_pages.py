"""Pages of keyed state: every row once, whatever the size of a page, in values that JSON has."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest

from sluice.errors import ConfigurationError
from sluice.surface.state import json_value, state_page
from tests.unit.surface.epochs import COUNTING, a_counting_job, take


def test_pages_of_any_size_have_every_row_once() -> None:
    job = a_counting_job()
    take(job)
    whole = state_page(job, "latest", COUNTING, table=None, offset=0, limit=1_000)
    rows: list[dict[str, object]] = []
    offset: int | None = 0

    while offset is not None:
        page = state_page(job, "1", COUNTING, table=whole.table, offset=offset, limit=7)
        rows += page.rows
        offset = page.next

    assert len(rows) > 14
    assert rows == [*whole.rows]
    assert whole.next is None
    assert (whole.checkpoint, whole.stored_rows) == (1, len(rows))
    assert {column.name: column.is_key for column in whole.columns}["bid_auction"]
    assert msgspec.json.decode(msgspec.json.encode(whole))["rows"] == [*whole.rows]


def test_a_table_that_is_not_there_is_refused_with_those_that_are() -> None:
    job = a_counting_job()
    take(job)

    with pytest.raises(ConfigurationError, match=f"of stage '{COUNTING}' has no table 'x'; it has"):
        state_page(job, "latest", COUNTING, table="x", offset=0, limit=1)


def test_what_json_has_no_value_for_is_text() -> None:
    row = {"b": b"\xff", "d": Decimal("1.50"), "t": timedelta(milliseconds=1500), "l": [b"a"]}

    assert json_value(row) == {"b": "/w==", "d": "1.50", "t": 1.5, "l": ["YQ=="]}
