"""Files as a source, on every store: one object or all below a prefix, read as they grow.

Rules of Avro and Parquet files are tested for both in turn, not as parameters: of a test's
parameters only one runs on S3.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.versitygw import IS_CHOSEN, KEYS_ARE_PATHS
from sluice.connectors.files.avro import AvroSource
from sluice.connectors.files.folders import FolderColumns
from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.text import FilesSource
from sluice.connectors.files.whole_files import WholeFileSource
from sluice.core.plan import PartitionOffset
from sluice.errors import ConfigurationError
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, behind_layers, open_store
from sluice.store.s3 import S3Store
from tests.contract.source_rules import Cut, Row, check_replay, places, plan_all, rows_of

AVRO_SCHEMA = {
    "type": "record",
    "name": "event",
    "fields": [{"name": "n", "type": "long"}, {"name": "text", "type": ["null", "string"]}],
}
PARQUET_SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def rows(*numbers: int) -> list[Row]:
    return [{"n": n, "text": f"row {n}" if n % 3 else None} for n in numbers]


def avro(rows: list[Row]) -> bytes:
    body = io.BytesIO()
    codec = "deflate" if len(rows) < 15 else "null"
    fastavro.writer(body, AVRO_SCHEMA, rows, codec=codec, sync_interval=20)
    return body.getvalue()


def parquet(rows: list[Row]) -> bytes:
    body = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, PARQUET_SCHEMA), body, row_group_size=4)
    return body.getvalue()


@dataclass(frozen=True)
class Format:
    source: type[WholeFileSource]
    encoded: Callable[[list[Row]], bytes]

    def put(self, store: ObjectStore, name: str, *numbers: int) -> None:
        store.put(f"{self.source.__name__}/{name}", self.encoded(rows(*numbers)))

    def open(self, location: StoreLocation, name: str = "events", **how: Any) -> WholeFileSource:
        root = f"{location.root}/{self.source.__name__}/{name}"
        how["folders"] = FolderColumns()  # As in a job, which has inferred them once.
        return self.source(root, endpoint_url=location.endpoint_url, **how)


FORMATS = (Format(AvroSource, avro), Format(ParquetSource, parquet))


def test_every_cut_of_a_folder_gives_the_same_rows(location: StoreLocation) -> None:
    store = open_store(location)
    for kind in FORMATS:
        kind.put(store, "events/b", *range(10, 25))
        kind.put(store, "events/a", *range(10))
        kind.put(store, "events/c")
        kind.put(store, "events/_temporary/d", 100)
        kind.put(store, "events-of-others/e", 100)

        cuts: list[list[Cut]] = [[(1, 3), (12, 5)], [], [(3, 1)] * 9, [(7, 2)] * 4]
        for cut in cuts if location.root.startswith("file://") else cuts[:1]:
            check_replay(kind.open(location), cut, rows(*range(25)), files=3)


def test_new_files_appear_in_an_ordered_source(location: StoreLocation) -> None:
    store = open_store(location)
    for kind in FORMATS:
        source = kind.open(location, bounded=False, ordered=True)
        kind.put(store, "events/000", 0, 1)
        position = plan_all(source).position
        read: list[Row] = []
        for number in range(1, 21):
            kind.put(store, f"events/{number:03d}", 2 * number, 2 * number + 1)
            barrier = plan_all(source, position)
            for piece in barrier.slices:
                read += [row for batch in source.read(piece) for row in batch.to_pylist()]
            position = barrier.position

        assert read == rows(*range(2, 42))
        assert len(position) == 17


def test_new_files_appear_in_an_unbounded_source(location: StoreLocation) -> None:
    store = open_store(location)
    for kind in FORMATS:
        kind.put(store, "events/b", *range(5))
        source = kind.open(location, bounded=False)
        first = plan_all(source)
        kind.put(store, "events/a", 5, 6, 7)

        second = source.plan(first.position, max_records=2, parallelism=1)
        third = source.plan(second.position, max_records=2, parallelism=1)

        assert rows_of(source, second) == rows(5, 6)
        assert rows_of(source, third) == rows(7)
        assert (second.is_backlog, third.is_backlog, third.exhausted) == (True, False, False)
        assert places(third.position) == (
            PartitionOffset(partition="a", offset=3, records=3, sealed=True),
            PartitionOffset(partition="b", offset=5, records=5, sealed=True),
        )


def test_one_object_is_read_alone(location: StoreLocation) -> None:
    store = open_store(location)
    for kind in FORMATS:
        kind.put(store, "events/a", 0, 1, 2)
        kind.put(store, "events/a-old", 7, 8)

        check_replay(kind.open(location, "events/a"), [(2, 1)], rows(0, 1, 2), files=1)


def test_a_file_that_changed_is_refused(location: StoreLocation) -> None:
    store = open_store(location)
    for kind in FORMATS:
        kind.put(store, "events/a", *range(5))
        source = kind.open(location, bounded=False)
        half = source.plan((), max_records=2, parallelism=1).position
        whole = plan_all(source).position
        kind.put(store, "events/a", *range(6))

        for position in (half, whole):
            with pytest.raises(ConfigurationError, match=r"a of .*events .* may not change"):
                plan_all(source, position)


ODD_KEYS = (
    "/x.json",
    "//y//z.json",
    "a b=1/ d.json ",
    "a/b.json",
    "a/b.json/below",
    "ü+%20 #?&*[1]\\.json",
    "\u65e5\u672c/\U0001f600.json",
    "tab\t, new\nline",
    f"{'long/' * 190}end",
    "with-bytes/",
)


def put_as_it_is(location: StoreLocation, key: str, body: bytes) -> None:
    """Write an object as others do, whose keys are any text."""
    rest = location.root.split("://")[1]
    name, _, prefix = rest.partition("/")
    full_key = f"{prefix}/{key}" if prefix else key
    store = behind_layers(open_store(location))
    if isinstance(store, S3Store):
        store._clients.repeating.put_object(Bucket=name, Key=full_key, Body=body)  # noqa: SLF001 - no verb takes such a key
    else:
        assert isinstance(store, InMemoryStore)
        store._objects.write(full_key, body)  # noqa: SLF001 - as above


@pytest.mark.skipif(IS_CHOSEN, reason=KEYS_ARE_PATHS)
def test_keys_of_a_bucket_are_any_text(location: StoreLocation) -> None:
    if location.root.startswith("file://"):
        pytest.skip("a disk has no such names")
    for number, key in enumerate(sorted(ODD_KEYS, key=str.encode)):
        put_as_it_is(location, f"in/{key}", b"%d\n%d\n" % (number, number))
        put_as_it_is(location, f"pq/{key}", parquet(rows(number)))
    put_as_it_is(location, "in/", b"")
    put_as_it_is(location, "in/sub/", b"")
    how: Any = {"endpoint_url": location.endpoint_url, "folders": FolderColumns()}
    of_text = FilesSource(f"{location.root}/in/", **how)

    read = rows_of(of_text, plan_all(of_text, parallelism=3))

    found = [(row["file"], row["line"]) for row in read]
    in_order = enumerate(sorted(ODD_KEYS, key=str.encode))
    assert found == [(key, str(number)) for number, key in in_order for _ in range(2)]
    check_replay(of_text, [(3, 2)] * 9, read, files=len(ODD_KEYS) + 2)
    of_rows = ParquetSource(f"{location.root}/pq/", **how)
    check_replay(of_rows, [(2, 1)] * 9, rows(*range(len(ODD_KEYS))), files=len(ODD_KEYS))


@pytest.mark.skipif(IS_CHOSEN, reason=KEYS_ARE_PATHS)
def test_a_location_in_a_bucket_has_two_slashes_where_it_says_so(location: StoreLocation) -> None:
    if location.root.startswith("file://"):
        pytest.skip("a disk has no such names")
    for key in ("in/a", "in//a", "in//report//b", "in///c"):
        put_as_it_is(location, key, f"{key}\n".encode())

    def read(at: str) -> list[str]:
        source = FilesSource(f"{location.root}/{at}", endpoint_url=location.endpoint_url)
        return lines_after(source)

    assert read("in//a") == ["in//a"]
    assert read("in//report/") == ["in//report//b"]
    assert read("in//report//b") == ["in//report//b"]
    assert read("in//") == ["in///c", "in//a", "in//report//b"]
    assert read("in/a") == ["in/a"]


def lines_after(source: FilesSource, position: tuple[PartitionOffset, ...] = ()) -> list[str]:
    return [row["line"] for row in rows_of(source, plan_all(source, position, parallelism=3))]


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


def test_one_file_of_lines_is_read_alone(location: StoreLocation) -> None:
    store = open_store(location)
    store.put("logs/a.log", b"1\n2")
    store.put("logs/a.log-old", b"never\n")
    source = FilesSource(f"{location.root}/logs/a.log", endpoint_url=location.endpoint_url)

    assert lines_after(source) == ["1", "2"]
    ((name, lines),) = source.whole(max_bytes=1_000)
    assert (name, lines["line"].to_pylist()) == ("a.log", ["1", "2"])


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


def test_nothing_at_all_is_reported(location: StoreLocation) -> None:
    for source in (AvroSource, ParquetSource, FilesSource):
        absent = source(f"{location.root}/absent", endpoint_url=location.endpoint_url)

        with pytest.raises(ConfigurationError, match=f"no folder at {location.root}/absent"):
            plan_all(absent)
