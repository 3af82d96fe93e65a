"""Files that wait behind a barrier: which they are, and their first records."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice.connectors.files import source as files_source
from sluice.connectors.files import text as files
from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.text import FilesSource
from sluice.declaration.places import Barrier


def lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


def read(source: FilesSource, name: str) -> list[str]:
    [piece] = source.heads([name])
    return [line for batch in source.read(piece) for line in batch.column("line").to_pylist()]


def test_a_file_of_which_the_cap_left_lines_waits_and_half_a_line_does_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3")
    (tmp_path / "b").write_text("1\n2\n")
    (tmp_path / "c").write_text("")
    source = FilesSource(str(tmp_path), bounded=False)

    barriers: list[Barrier] = []
    for most in (1, 1, 1, None):
        position = barriers[-1].position if barriers else ()
        barriers.append(source.plan(position, max_records=most, parallelism=1))

    assert [barrier.waiting for barrier in barriers] == [("a", "b"), ("a", "b"), ("b",), ()]


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_head_of_a_file_is_its_first_records_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    monkeypatch.setattr(files, "HEAD_RECORDS", 3)
    name = "a.gz" if is_packed else "a"
    text = lines(10).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if is_packed else text)

    assert read(FilesSource(str(tmp_path)), name) == ["line 0", "line 1", "line 2"]


def test_a_head_of_long_lines_is_what_is_whole_of_its_first_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "HEAD_BYTES", 16)
    (tmp_path / "a").write_text(lines(10))
    (tmp_path / "b").write_text("x" * 100)
    (tmp_path / "c").write_text("no newline")
    source = FilesSource(str(tmp_path))

    assert read(source, "a") == ["line 0", "line 1"]
    assert source.heads(["b", "gone"]) == ()
    assert read(source, "c") == ["no newline"]
    assert FilesSource(str(tmp_path), bounded=False).heads(["c"]) == ()


def test_the_head_of_a_parquet_file_is_its_first_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(5_000)}), tmp_path / "a", row_group_size=10)
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "b")
    (tmp_path / "c").write_bytes(b"PAR1 half")
    source = ParquetSource(str(tmp_path), bounded=False)

    [piece] = source.heads(["a", "b", "c"])

    assert (piece.partition, piece.start, piece.end) == ("a", 0, files_source.HEAD_RECORDS)
    assert sum(batch.num_rows for batch in source.read(piece)) == files_source.HEAD_RECORDS
