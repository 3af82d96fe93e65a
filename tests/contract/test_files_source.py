"""Files as a source, on every store: one object or all below a prefix, read as they grow."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from sluice.connectors.files.text import FilesSource
from sluice.core.plan import PartitionOffset
from sluice.declaration.places import SourcePosition
from sluice.errors import ConfigurationError
from sluice.store.open import StoreLocation, open_store
from tests.contract.source_rules import check_replay


def places(position: SourcePosition) -> SourcePosition:
    """Without what the files are known by."""
    return tuple(replace(one, version="") for one in position)


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


def test_one_object_is_read_alone(location: StoreLocation) -> None:
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


def test_nothing_at_all_is_reported(location: StoreLocation) -> None:
    source = FilesSource(f"{location.root}/absent", endpoint_url=location.endpoint_url)

    with pytest.raises(ConfigurationError, match=f"no folder at {location.root}/absent"):
        lines_after(source, ())
