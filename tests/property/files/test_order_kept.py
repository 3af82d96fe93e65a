"""Ordered folders in which files are late, half-written or capped: each row is read once."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.source import SEALED_KEPT, FileSource
from sluice.connectors.files.text import FilesSource
from sluice.declaration.places import SourcePosition
from tests.examples import examples
from tests.property.files.formats import rows_of


def parquet(rows: Sequence[str]) -> bytes:
    body = io.BytesIO()
    pq.write_table(pa.table({"line": pa.array(rows, pa.string())}), body)
    return body.getvalue()


def lines(rows: Sequence[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


KINDS: dict[str, tuple[type[FileSource[Any]], Any]] = {
    "text": (FilesSource, lines),
    "parquet": (ParquetSource, parquet),
}


# What happens before each epoch, and its cap.
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["new", "new", "late", "begin", "end", "nothing"]),
        st.integers(0, 5),
        st.sampled_from([1, 2, 4, None]),
    ),
    max_size=40,
)


@pytest.mark.parametrize("kind", KINDS)
@examples(40)
@given(acts=ACTS)
def test_every_row_is_read_once_however_files_come(
    tmp_path_factory: pytest.TempPathFactory, kind: str, acts: list[tuple[str, int, int | None]]
) -> None:
    """A file is late by few names, or half-written while later ones are there and partly read."""
    folder = tmp_path_factory.mktemp("ordered")
    source_of, encoded = KINDS[kind]
    source = source_of(str(folder), bounded=False, ordered=True)
    position: SourcePosition = ()
    written: list[str] = []
    read: list[str] = []
    open_file: tuple[Path, bytes] | None = None
    last = 0

    def complete() -> None:
        nonlocal open_file
        if open_file is not None:
            path, body = open_file
            path.write_bytes(body)
            open_file = None

    for act, count, most in acts:
        rows = [f"{len(written) + number}" for number in range(count)]
        if act == "late" and last:
            path = folder / f"{max(last - SEALED_KEPT * 5 + 7, 2) + 1:06d}"
            if not path.exists():
                path.write_bytes(encoded(rows))
                written += rows
        elif act in {"new", "begin"}:
            if kind == "text":
                complete()  # A text file says that it is complete by the next one.
            last += 10
            path = folder / f"{last:06d}"
            body = encoded(rows)
            if act == "begin" and open_file is None:
                open_file = path, body
                body = body[: len(body) // 2]
            path.write_bytes(body)
            written += rows
        elif act == "end":
            complete()
        barrier = source.plan(position, max_records=most, parallelism=2)
        read += rows_of(source, barrier)
        position = barrier.position
    complete()
    (folder / "999999").write_bytes(encoded([]))
    for _ in range(3):
        barrier = source.plan(position, max_records=None, parallelism=1)
        read += rows_of(source, barrier)
        position = barrier.position

    assert sorted(read, key=int) == written


def test_a_file_that_is_behind_the_cap_stays_open(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(parquet(["b"] * 10))
    whole = parquet(["a"] * 10)
    (tmp_path / "a").write_bytes(whole[: len(whole) // 2])
    source = ParquetSource(str(tmp_path), bounded=False, ordered=True)
    position = source.plan((), max_records=4, parallelism=1).position
    (tmp_path / "a").write_bytes(whole)
    read: list[str] = []

    for _ in range(4):
        barrier = source.plan(position, max_records=4, parallelism=1)
        read += rows_of(source, barrier)
        position = barrier.position

    assert "".join(read) == "a" * 10 + "b" * 6


def test_a_late_file_that_stays_open_makes_no_forgotten_file_new(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:03d}0").write_text(f"{number}\n")
    source = FilesSource(str(tmp_path), bounded=False, ordered=True)
    position: SourcePosition = ()
    for _ in range(2):
        position = source.plan(position, max_records=None, parallelism=1).position
    (tmp_path / "0355").write_text("late\n" * 4)
    read: list[str] = []

    for _ in range(6):
        barrier = source.plan(position, max_records=1, parallelism=1)
        read += rows_of(source, barrier)
        position = barrier.position

    assert read == ["late"] * 4


def test_lines_that_come_between_two_looks_at_a_folder_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last file of a folder grows, and only then the next folder's first file is begun."""
    first, second = tmp_path / "d1" / "2.log", tmp_path / "d2" / "3.log"
    first.parent.mkdir()
    second.parent.mkdir()
    (first.parent / "1.log").write_text("x\n")
    first.write_text("a0\n")
    source = FilesSource(str(tmp_path), bounded=False, ordered=True)
    real = FilesSource._part  # noqa: SLF001 - between two looks of one plan

    def part(self: FilesSource, before: Any, file: Any, asked: Any) -> Any:
        if file.key == "d1/1.log" and not second.exists():
            with first.open("a") as file_of_ours:
                file_of_ours.write("a1\n")
            second.write_text("b0\n")
        return real(self, before, file, asked)

    monkeypatch.setattr(FilesSource, "_part", part)

    barrier = source.plan((), max_records=None, parallelism=1)

    assert rows_of(source, barrier) == ["x", "a0", "a1", "b0"]
