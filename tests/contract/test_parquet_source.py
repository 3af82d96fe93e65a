"""Parquet files as a source, on every store."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.files.parquet import ParquetSource
from sluice.core.plan import PartitionOffset
from sluice.declaration.places import SourcePosition
from sluice.errors import ConfigurationError
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store
from tests.contract.source_rules import check_replay, rows_of


def places(position: SourcePosition) -> SourcePosition:
    """Without what the files are known by."""
    return tuple(replace(one, version="") for one in position)


def put(store: ObjectStore, name: str, start: int, end: int, group: int = 4) -> None:
    body = io.BytesIO()
    numbers = range(start, end)
    text = pa.array([f"row {n}" for n in numbers], pa.string())
    table = pa.table({"n": pa.array(numbers, pa.int64()), "text": text})
    pq.write_table(table, body, row_group_size=group)
    store.put(name, body.getvalue())


def a_folder(location: StoreLocation, *, bounded: bool = True) -> ParquetSource:
    return ParquetSource(
        f"{location.root}/events", bounded=bounded, endpoint_url=location.endpoint_url
    )


def test_every_cut_of_a_folder_gives_the_same_rows(location: StoreLocation) -> None:
    store = open_store(location)
    put(store, "events/b.parquet", 10, 25)
    put(store, "events/a.parquet", 0, 10)
    put(store, "events/c.parquet", 0, 0)
    put(store, "events/_temporary/d.parquet", 100, 101)
    put(store, "events-of-others/e.parquet", 100, 101)
    expected = [{"n": n, "text": f"row {n}"} for n in range(25)]

    for cuts in ([], [(3, 1)] * 9, [(7, 2)] * 4, [(1, 3), (12, 5)]):
        check_replay(a_folder(location), cuts, expected, files=3)


def test_new_files_appear_in_an_unbounded_source(location: StoreLocation) -> None:
    store = open_store(location)
    put(store, "events/b", 0, 5)
    source = a_folder(location, bounded=False)
    first = source.plan((), max_records=None, parallelism=2)
    put(store, "events/a", 5, 8)

    second = source.plan(first.position, max_records=2, parallelism=1)
    third = source.plan(second.position, max_records=2, parallelism=1)

    assert [row["n"] for row in rows_of(source, second)] == [5, 6]
    assert [row["n"] for row in rows_of(source, third)] == [7]
    assert (second.is_backlog, third.is_backlog, third.exhausted) == (True, False, False)
    assert places(third.position) == (
        PartitionOffset(partition="a", offset=3, records=3, sealed=True),
        PartitionOffset(partition="b", offset=5, records=5, sealed=True),
    )


def test_one_object_is_read_alone(location: StoreLocation) -> None:
    store = open_store(location)
    put(store, "events/a.parquet", 0, 3)
    put(store, "events/a.parquet-old", 7, 9)
    source = ParquetSource(f"{location.root}/events/a.parquet", endpoint_url=location.endpoint_url)

    check_replay(source, [(2, 1)], [{"n": n, "text": f"row {n}"} for n in range(3)], files=1)


def test_a_file_that_changed_is_refused(location: StoreLocation) -> None:
    store = open_store(location)
    put(store, "events/a", 0, 5)
    source = a_folder(location, bounded=False)
    half = source.plan((), max_records=2, parallelism=1).position
    whole = source.plan((), max_records=None, parallelism=1).position
    put(store, "events/a", 0, 6)

    for position in (half, whole):
        with pytest.raises(ConfigurationError, match=r"a of .*events .* may not change"):
            source.plan(position, max_records=None, parallelism=1)


def test_nothing_at_all_is_reported(location: StoreLocation) -> None:
    with pytest.raises(ConfigurationError, match=f"no folder at {location.root}/events"):
        a_folder(location).plan((), max_records=None, parallelism=1)
