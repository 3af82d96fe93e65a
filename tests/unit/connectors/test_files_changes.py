"""Files that changed after they were read: found by any process, by the position alone."""

from __future__ import annotations

import gzip
import logging
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.files.file_set import TAIL_BYTES
from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.text import FilesSource
from sluice.declaration.places import Barrier, SourcePosition
from sluice.errors import ConfigurationError
from sluice.store.folder import FileStore


def plan_all(source: FilesSource | ParquetSource, position: SourcePosition = ()) -> Barrier:
    return source.plan(position, max_records=None, parallelism=1)


def touch(path: Path, seconds: int = 60) -> None:
    later = path.stat().st_mtime + seconds
    os.utime(path, (later, later))


def write_parquet(path: Path, first: int) -> None:
    table = pa.table({"n": pa.array(range(first, first + 5))})
    pq.write_table(table, path, compression="none", use_dictionary=False)


@pytest.fixture(name="reads")
def _reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The ranges that are read of files, but for the empty one that asks whether there is one."""
    reads: list[tuple[str, int, int]] = []
    read = FileStore.get_range

    def counted(store: FileStore, key: str, start: int, end: int) -> bytes | None:
        if end > start:
            reads.append((key, start, end))
        return read(store, key, start, end)

    monkeypatch.setattr(FileStore, "get_range", counted)
    return reads


def test_a_log_that_was_rewritten_longer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\ntwo\n")
    source = FilesSource(str(tmp_path), bounded=False)
    position = plan_all(source).position
    (tmp_path / "log").write_text("ONE\ntwo\nthree\n")

    with pytest.raises(
        ConfigurationError, match=r"log of .* is not what was read to byte 8: the checksum of the 8"
    ):
        plan_all(source, position)


def test_growing_by_many_small_lines_is_verified_as_far_as_before(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {n}\n" for n in range(1000)))
    source = FilesSource(str(tmp_path), bounded=False)
    position = plan_all(source).position
    for _ in range(3):
        with path.open("a") as file:
            file.write("x\n")
        position = plan_all(source, position).position
    body = bytearray(path.read_bytes())
    body[-TAIL_BYTES + 10] ^= 1
    path.write_bytes(body + b"more\n")

    with pytest.raises(ConfigurationError, match=f"the {TAIL_BYTES} bytes before"):
        plan_all(source, position)


def test_a_file_that_was_only_touched_or_copied_is_the_same(tmp_path: Path) -> None:
    folder, copy = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    (folder / "log").write_text("one\ntwo")
    (folder / "log.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    position = plan_all(FilesSource(str(folder), bounded=False)).position
    for name in ("log", "log.gz"):
        touch(folder / name)
    folder.rename(copy)
    (copy / "log").write_text("one\ntwo\n")

    after = plan_all(FilesSource(str(copy), bounded=False), position)

    assert [(piece.partition, piece.start) for piece in after.slices] == [("log", 4)]


def test_a_parquet_file_of_the_same_size_with_other_rows_is_refused(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a", 0)
    source = ParquetSource(str(tmp_path), bounded=False)
    position = plan_all(source).position
    size = (tmp_path / "a").stat().st_size
    touch(tmp_path / "a")
    assert plan_all(source, position).slices == ()
    write_parquet(tmp_path / "a", 7)
    assert (tmp_path / "a").stat().st_size == size

    with pytest.raises(ConfigurationError, match=r"a of .* is not what was read to row 5"):
        plan_all(source, position)


def test_what_did_not_change_is_not_read_and_what_grew_is_read_once(
    tmp_path: Path, reads: list[tuple[str, int, int]]
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("0123456\n" * 1000)
    (tmp_path / "z.gz").write_bytes(gzip.compress(b"one\n"))
    source = FilesSource(str(tmp_path), bounded=False)
    position = plan_all(source).position
    reads.clear()

    same = plan_all(source, position)
    with (tmp_path / "b").open("a") as file:
        file.write("new\n" * 2000)
    grown = plan_all(source, position)

    assert (same.position, same.slices) == (position, ())
    assert reads == [("b", 8000 - TAIL_BYTES, 8000), ("b", 8000, 16000)]
    assert grown.records == 2000


def test_a_bounded_file_that_grew_behind_its_end_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log").write_text("one\n")
    source = FilesSource(str(tmp_path))
    position = plan_all(source).position
    (tmp_path / "log").write_text("one\ntwo\n")

    with caplog.at_level(logging.WARNING):
        after = plan_all(source, position)
        plan_all(source, after.position)

    assert (after.slices, after.exhausted) == ((), True)
    assert [record.getMessage() for record in caplog.records] == [
        (
            "file grew after it was read to its end, the rest is not read file=log read_bytes=4 "
            f"size_bytes=8 location=file://{tmp_path}"
        )
    ]


def test_a_bounded_file_that_was_edited_after_it_was_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "b").write_text("two\n")
    source = FilesSource(str(tmp_path))
    position = source.plan((), max_records=1, parallelism=1).position
    (tmp_path / "a").write_text("ONE\n")
    touch(tmp_path / "a")

    with pytest.raises(ConfigurationError, match=r"a of .* is not what was read to byte 4"):
        plan_all(source, position)


def test_a_position_of_an_older_version_learns_what_its_files_are(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\n")
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    source = FilesSource(str(tmp_path), bounded=False)
    position = tuple(
        replace(one, version="", sealed=False)
        for one in source.plan((), max_records=2, parallelism=1).position
    )

    learned = plan_all(source, position)

    assert all(one.version for one in learned.position)
    (tmp_path / "log").write_text("ONE\nmore\n")
    with pytest.raises(ConfigurationError, match="is not what was read to byte 4"):
        plan_all(source, learned.position)
