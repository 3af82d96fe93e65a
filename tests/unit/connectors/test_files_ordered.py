"""Names that only grow: small positions and short listings, and nothing read twice or missed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.source import COUNTED, SEALED_KEPT
from sluice.connectors.files.text import FilesSource
from sluice.declaration.places import Barrier, SourcePosition
from sluice.errors import ConfigurationError
from sluice.store.memory import InMemoryStore, named_store
from sluice.store.object_store import Listed


def a_source(root: Path | str) -> FilesSource:
    return FilesSource(str(root), bounded=False, ordered=True)


def write(folder: Path, number: int, text: str) -> None:
    (folder / f"log-{number:06d}").write_text(text)


def lines_of(source: FilesSource, barrier: Barrier) -> list[str]:
    return [
        line
        for piece in barrier.slices
        for batch in source.read(piece)
        for line in batch.column("line").to_pylist()
    ]


def names(position: SourcePosition) -> list[int]:
    return [int(one.partition.rpartition("-")[2]) for one in position]


def test_the_position_forgets_what_is_read(tmp_path: Path) -> None:
    for number in range(100):
        write(tmp_path, number, "one\n")
    source = a_source(tmp_path)

    first = source.plan((), max_records=None, parallelism=1)
    second = source.plan(first.position, max_records=None, parallelism=1)
    for number in range(100, 103):
        write(tmp_path, number, "two\n")
    third = source.plan(second.position, max_records=None, parallelism=1)

    assert first.records == 100
    assert [one.sealed for one in first.position] == [True] * 99 + [False]
    assert names(second.position) == list(range(83, 100))
    assert third.records == 3
    assert names(third.position) == list(range(84, 103))
    assert [
        name - 86
        for name in names(source.plan(third.position, max_records=None, parallelism=1).position)
    ] == list(range(17))


def test_a_long_backlog_is_listed_no_further_than_the_epoch_and_what_is_counted_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = named_store("long-backlog")
    for number in range(3 * COUNTED):
        store.put(f"log-{number:06d}", b"1\n2\n")
    listed: list[str] = []
    real = InMemoryStore.list

    def counted(store: InMemoryStore, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        for found in real(store, prefix, start_after=start_after):
            listed.append(found.key)
            yield found

    monkeypatch.setattr(InMemoryStore, "list", counted)
    source = a_source("memory://long-backlog/")
    position: SourcePosition = ()
    for _ in range(10):
        barrier = source.plan(position, max_records=10, parallelism=2)
        position = barrier.position
        assert (barrier.records, barrier.is_backlog) == (10, True)
        assert barrier.unread is not None
        assert barrier.unread.is_least
        assert barrier.unread.partitions >= COUNTED
        assert len(position) <= SEALED_KEPT + 7

    assert len(listed) <= 10 * (COUNTED + SEALED_KEPT + 12)


def test_the_last_line_of_a_file_is_a_record_when_the_next_file_is_there(tmp_path: Path) -> None:
    write(tmp_path, 1, "one\ntwo")
    source = a_source(tmp_path)
    first = source.plan((), max_records=None, parallelism=1)
    write(tmp_path, 2, "three\nfour")
    second = source.plan(first.position, max_records=None, parallelism=1)

    assert lines_of(source, first) == ["one"]
    assert lines_of(source, second) == ["two", "three"]
    assert [one.sealed for one in second.position] == [True, False]


def test_a_file_that_came_late_by_a_few_names_is_read_and_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (*range(30), 31, 32):
        write(tmp_path, number, "one\n")
    source = a_source(tmp_path)
    position = source.plan((), max_records=None, parallelism=1).position
    position = source.plan(position, max_records=None, parallelism=1).position
    write(tmp_path, 30, "late\n")

    with caplog.at_level(logging.WARNING):
        barrier = source.plan(position, max_records=None, parallelism=1)

    assert lines_of(source, barrier) == ["late"]
    assert ["file came out of order" in record.getMessage() for record in caplog.records] == [True]


def test_a_file_that_grew_after_the_next_one_appeared_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1, "one\n")
    write(tmp_path, 2, "two\n")
    source = a_source(tmp_path)
    position = source.plan((), max_records=None, parallelism=1).position
    write(tmp_path, 1, "one\nlate\n")

    with caplog.at_level(logging.WARNING):
        source.plan(position, max_records=None, parallelism=1)

    assert "grew after it was read to its end" in caplog.text


def test_files_that_vanished_do_not_hold_the_floor(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, number, "one\n" * 3)
    source = a_source(tmp_path)
    position = source.plan((), max_records=2, parallelism=1).position
    for number in range(2):
        (tmp_path / f"log-{number:06d}").unlink()

    after = source.plan(position, max_records=None, parallelism=1)

    assert [(one.sealed, one.offset) for one in after.position] == [
        (True, 8),
        (False, 12),
    ]


def test_rows_of_ordered_parquet_files_stay_known_in_the_epoch_that_reads_them(
    tmp_path: Path,
) -> None:
    for number in range(40):
        pq.write_table(pa.table({"n": [number]}), tmp_path / f"part-{number:03d}")
    source = ParquetSource(str(tmp_path), bounded=False, ordered=True)
    position: SourcePosition = ()
    rows: list[int] = []
    while True:
        barrier = source.plan(position, max_records=7, parallelism=2)
        if not barrier.slices:
            break
        known = {one.partition: one.sealed for one in barrier.position}
        assert all(known[piece.partition] for piece in barrier.slices)
        assert len(barrier.position) <= SEALED_KEPT + 8
        for piece in barrier.slices:
            rows += [n for batch in source.read(piece) for n in batch.column("n").to_pylist()]
        position = barrier.position

    assert rows == list(range(40))
    assert source.schema().names == ["n"]


def test_a_folder_that_is_gone_is_reported_behind_a_floor_too(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(2 * SEALED_KEPT):
        write(folder, number, "one\n")
    source = a_source(folder)
    position = source.plan((), max_records=None, parallelism=1).position
    folder.rename(tmp_path / "elsewhere")

    with pytest.raises(ConfigurationError, match="no file and no folder"):
        source.plan(position, max_records=None, parallelism=1)
