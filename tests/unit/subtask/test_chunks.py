"""Batches on their way to Spark are bounded by bytes as well as by rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.exchange import reading
from sluice.exchange.reading import bounded


def test_a_batch_of_wide_rows_is_cut_and_a_small_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1_000)
    wide = pa.RecordBatch.from_pydict({"doc": ["x" * 400] * 7})
    small = pa.RecordBatch.from_pydict({"n": [1, 2]})

    found = list(bounded([wide, small]))

    assert [batch.num_rows for batch in found] == [3, 3, 1, 2]
    assert pa.Table.from_batches(found[:3]).equals(pa.Table.from_batches([wide]))


def test_a_batch_of_many_rows_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BATCH_ROWS", 2)

    assert [
        batch.num_rows for batch in bounded([pa.RecordBatch.from_pydict({"n": [1, 2, 3]})])
    ] == [
        2,
        1,
    ]
