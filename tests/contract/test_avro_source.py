"""Avro container files as a source, on every store."""

from __future__ import annotations

import io

import fastavro
import pytest

from sluice.connectors.files.avro import AvroSource
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
