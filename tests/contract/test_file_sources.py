"""Avro container files as a source, on every store.

Parquet files as a source, on every store.

Files as a source, on every store: one object or all below a prefix, read as they grow.
"""

from __future__ import annotations

import gzip
import io
from dataclasses import replace

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.files.avro import AvroSource
from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.text import FilesSource
from sluice.core.plan import PartitionOffset
from sluice.declaration.places import SourcePosition
from sluice.errors import ConfigurationError
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store
from tests.contract.source_rules import check_replay, rows_of

SCHEMA = {
    "type": "record",
    "name": "event",
    "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": ["null", "string"]}],
}


def put(store: ObjectStore, name: str, start: int, end: int, codec: str = "deflate") -> None:
    body = io.BytesIO()
    rows = [{"n": n, "text": f"row {n}" if n % 3 else None} for n in range(start, end)]
    fastavro.writer(body, SCHEMA, rows, codec=codec, sync_interval=20)
    store.put(name, body.getvalue())


def a_folder(location: StoreLocation, *, bounded: bool = True, ordered: bool = False) -> AvroSource:
    return AvroSource(
        f"{location.root}/events",
        bounded=bounded,
        ordered=ordered,
        endpoint_url=location.endpoint_url,
    )


def test_every_cut_of_a_folder_gives_the_same_rows(location: StoreLocation) -> None:
    store = open_store(location)
    put(store, "events/b.avro", 10, 25, "null")
    put(store, "events/a.avro", 0, 10)
    put(store, "events/c.avro", 0, 0)
    put(store, "events/_temporary/d.avro", 100, 101)
    expected = [{"n": n, "text": f"row {n}" if n % 3 else None} for n in range(25)]

    for cuts in ([], [(3, 1)] * 9, [(7, 2)] * 4, [(1, 3), (12, 5)]):
        check_replay(a_folder(location), cuts, expected, files=3)


def test_new_files_appear_in_an_ordered_source(location: StoreLocation) -> None:
    store = open_store(location)
    source = a_folder(location, bounded=False, ordered=True)
    put(store, "events/000", 0, 2)
    position = source.plan((), max_records=None, parallelism=1).position
    read: list[int] = []
    for number in range(1, 21):
        put(store, f"events/{number:03d}", 2 * number, 2 * number + 2)
        barrier = source.plan(position, max_records=None, parallelism=2)
        read += [row["n"] for row in rows_of(source, barrier)]
        position = barrier.position

    assert read == list(range(2, 42))
    assert len(position) == 17


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


def places(position: SourcePosition) -> SourcePosition:
    """Without what the files are known by."""
    return tuple(replace(one, version="") for one in position)


def put_of_parquet_source(
    store: ObjectStore, name: str, start: int, end: int, group: int = 4
) -> None:
    body = io.BytesIO()
    numbers = range(start, end)
    text = pa.array([f"row {n}" for n in numbers], pa.string())
    table = pa.table({"n": pa.array(numbers, pa.int64()), "text": text})
    pq.write_table(table, body, row_group_size=group)
    store.put(name, body.getvalue())


def a_folder_of_parquet_source(location: StoreLocation, *, bounded: bool = True) -> ParquetSource:
    return ParquetSource(
        f"{location.root}/events", bounded=bounded, endpoint_url=location.endpoint_url
    )


def test_every_cut_of_a_folder_gives_the_same_rows_in_parquet_source(
    location: StoreLocation,
) -> None:
    store = open_store(location)
    put_of_parquet_source(store, "events/b.parquet", 10, 25)
    put_of_parquet_source(store, "events/a.parquet", 0, 10)
    put_of_parquet_source(store, "events/c.parquet", 0, 0)
    put_of_parquet_source(store, "events/_temporary/d.parquet", 100, 101)
    put_of_parquet_source(store, "events-of-others/e.parquet", 100, 101)
    expected = [{"n": n, "text": f"row {n}"} for n in range(25)]

    for cuts in ([], [(3, 1)] * 9, [(7, 2)] * 4, [(1, 3), (12, 5)]):
        check_replay(a_folder_of_parquet_source(location), cuts, expected, files=3)


def test_new_files_appear_in_an_unbounded_source(location: StoreLocation) -> None:
    store = open_store(location)
    put_of_parquet_source(store, "events/b", 0, 5)
    source = a_folder_of_parquet_source(location, bounded=False)
    first = source.plan((), max_records=None, parallelism=2)
    put_of_parquet_source(store, "events/a", 5, 8)

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
    put_of_parquet_source(store, "events/a.parquet", 0, 3)
    put_of_parquet_source(store, "events/a.parquet-old", 7, 9)
    source = ParquetSource(f"{location.root}/events/a.parquet", endpoint_url=location.endpoint_url)

    check_replay(source, [(2, 1)], [{"n": n, "text": f"row {n}"} for n in range(3)], files=1)


def test_a_file_that_changed_is_refused_in_parquet_source(location: StoreLocation) -> None:
    store = open_store(location)
    put_of_parquet_source(store, "events/a", 0, 5)
    source = a_folder_of_parquet_source(location, bounded=False)
    half = source.plan((), max_records=2, parallelism=1).position
    whole = source.plan((), max_records=None, parallelism=1).position
    put_of_parquet_source(store, "events/a", 0, 6)

    for position in (half, whole):
        with pytest.raises(ConfigurationError, match=r"a of .*events .* may not change"):
            source.plan(position, max_records=None, parallelism=1)


def test_nothing_at_all_is_reported(location: StoreLocation) -> None:
    with pytest.raises(ConfigurationError, match=f"no folder at {location.root}/events"):
        a_folder_of_parquet_source(location).plan((), max_records=None, parallelism=1)


def lines_after(source: FilesSource, position: tuple[PartitionOffset, ...]) -> list[str]:
    barrier = source.plan(position, max_records=None, parallelism=3)
    batches = [batch for piece in barrier.slices for batch in source.read(piece)]
    return [line for batch in batches for line in batch.column("line").to_pylist()]


def test_a_prefix_is_read_as_it_grows(location: StoreLocation) -> None:
    store = open_store(location)
    store.put("logs/b", b"3\n4\n")
    store.put("logs/a", b"1\n2\nhalf")
    store.put("logs-of-others/c", b"never\n")
    folder = FilesSource(f"{location.root}/logs", bounded=False, endpoint_url=location.endpoint_url)

    first = folder.plan((), max_records=3, parallelism=2)
    store.put("logs/a", b"1\n2\nhalf a line\n")

    assert places(first.position) == (
        PartitionOffset(partition="a", offset=4, records=2),
        PartitionOffset(partition="b", offset=2, records=1),
    )
    assert lines_after(folder, first.position) == ["half a line", "4"]


def test_one_object_is_read_alone_in_files_source(location: StoreLocation) -> None:
    store = open_store(location)
    store.put("logs/a.log", b"1\n2")
    store.put("logs/a.log-old", b"never\n")
    source = FilesSource(f"{location.root}/logs/a.log", endpoint_url=location.endpoint_url)

    assert lines_after(source, ()) == ["1", "2"]
    version, table = source.snapshot()
    assert (len(version), table["file"].to_pylist()) == (32, ["a.log", "a.log"])


def test_every_cut_of_plain_and_compressed_files_gives_the_same_lines(
    location: StoreLocation,
) -> None:
    store = open_store(location)
    store.put("logs/a.log", b"1\n2\nlast")
    store.put("logs/b.gz", gzip.compress(b"1\n2\n") + gzip.compress(b"3\n\nlast") + b"\0" * 9)
    store.put("logs/c.gz", gzip.compress(b""))
    store.put("logs/d.gz", b"")
    source = FilesSource(f"{location.root}/logs", endpoint_url=location.endpoint_url)
    expected = [
        {"line": line, "file": file, "line_number": number}
        for file, lines in [("a.log", "1 2 last"), ("b.gz", "1 2 3  last")]
        for number, line in enumerate(lines.split(" "), 1)
    ]

    for cuts in ([], [(1, 1)] * 9, [(4, 2)] * 2, [(3, 3)] * 3):
        check_replay(source, cuts, expected, files=4)


def test_nothing_at_all_is_reported_in_files_source(location: StoreLocation) -> None:
    source = FilesSource(f"{location.root}/absent", endpoint_url=location.endpoint_url)

    with pytest.raises(ConfigurationError, match=f"no folder at {location.root}/absent"):
        lines_after(source, ())
