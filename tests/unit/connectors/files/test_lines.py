"""Lines of gzip and zstd files: whole when they appear, the same ever after, whatever the cuts."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sluice.connectors.files.text import FilesSource
from sluice.core.plan import PartitionOffset
from sluice.errors import ConfigurationError
from tests.contract.source_rules import places, plan_all, rows_of


def test_a_compressed_file_ends_in_an_unbounded_source_too(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"one\ntwo\nthree", mtime=0))
    source = FilesSource(str(tmp_path), bounded=False)

    first = source.plan((), max_records=1, parallelism=1)
    second = source.plan(first.position, max_records=2, parallelism=1)

    assert places(first.position) == (PartitionOffset(partition="log.gz", offset=4, records=1),)
    assert (first.is_backlog, second.is_backlog) == (True, False)
    assert places(second.position) == (
        PartitionOffset(partition="log.gz", offset=13, records=3, sealed=True),
    )
    assert rows_of(source, second) == [
        {"line": "two", "file": "log.gz", "line_number": 2},
        {"line": "three", "file": "log.gz", "line_number": 3},
    ]
    assert plan_all(source, second.position).slices == ()


def test_a_barrier_from_outside_may_lie_in_a_compressed_file(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"one\ntwo\nthree", mtime=0))
    source = FilesSource(str(tmp_path))

    first = source.plan((), max_records=None, parallelism=1, until={"log.gz": 8})
    second = source.plan(first.position, max_records=None, parallelism=1, until={"log.gz": 13})

    assert [first.records, second.records] == [2, 1]
    assert (first.exhausted, second.exhausted) == (False, True)
    with pytest.raises(ConfigurationError, match="to 13, what can be read"):
        source.plan(first.position, max_records=None, parallelism=1, until={"log.gz": 14})


def test_a_compressed_file_that_changed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"one\ntwo\n", mtime=0))
    source = FilesSource(str(tmp_path), bounded=False)
    position = source.plan((), max_records=1, parallelism=1).position
    whole = source.plan((), max_records=None, parallelism=1)

    path.write_bytes(gzip.compress(b"one\ntwo\n", mtime=0) * 2)

    for begun in (position, whole.position):
        with pytest.raises(ConfigurationError, match=r"log.gz of .* may not change"):
            plan_all(source, begun)
    path.write_bytes(gzip.compress(b"one\n", mtime=0))
    with pytest.raises(ConfigurationError, match="was replaced after this epoch was planned"):
        rows_of(source, whole)


MOST = 64 * 1024  # Bytes of a table.


def test_a_compressed_table_is_refused_by_the_size_of_its_text(tmp_path: Path) -> None:
    (tmp_path / "small.gz").write_bytes(gzip.compress(b"10.0.0.1\n", mtime=0))
    (tmp_path / "big.gz").write_bytes(gzip.compress(bytes(MOST + 1), 1))

    ((_, lines),) = FilesSource(str(tmp_path / "small.gz")).whole(MOST)
    assert lines["line"].to_pylist() == ["10.0.0.1"]
    with pytest.raises(ConfigurationError, match="more bytes when it is decompressed"):
        [*FilesSource(str(tmp_path / "big.gz")).whole(MOST)]
