"""A file is its exact name, size and mark: read once, or refused by name.

Few cases each; ``make properties`` draws more.  In ordered folders files may be late, half-written
or behind a cap, and come and go: each row is read once.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.source import SEALED_KEPT
from sluice.connectors.files.text import FilesSource
from sluice.declaration.places import SourcePosition
from sluice.errors import ConfigurationError
from tests.examples import TIMES, examples
from tests.property.connectors.formats import (
    AVRO,
    FORMATS,
    NAMES,
    PARQUET,
    ROWS,
    TEXT,
    TYPES,
    Format,
    epochs,
    folders,
    rows_of,
    tried,
    with_columns,
    write,
)

CAPS = st.lists(st.integers(1, 5), max_size=6)
each_format = pytest.mark.parametrize("format_", FORMATS, ids=repr)
some = examples(8)


@each_format
@some
@given(data=st.data())
def test_files_of_any_name_are_read_once_in_the_order_of_their_names(
    tmp_path_factory: pytest.TempPathFactory, format_: Format, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("names")
    files = data.draw(folders(format_, min_size=1))
    for name, rows in files.items():
        write(folder, name, format_.encoded(rows))
    write(folder, "_ignored" + format_.suffix, format_.encoded(["never read"]))
    write(folder, "folder of its own/.ignored" + format_.suffix, format_.encoded(["never read"]))

    read = epochs(format_.source(folder), (), data.draw(CAPS))

    assert read == [row for name in sorted(files) for row in files[name]]


@each_format
@some
@given(name=NAMES, rows=ROWS, others=ROWS)
def test_one_file_is_read_alone_whatever_its_name_means_to_others(
    tmp_path_factory: pytest.TempPathFactory,
    format_: Format,
    name: str,
    rows: list[str],
    others: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("one")
    write(folder, name + format_.suffix, format_.encoded(rows))
    for other in ("a", "b", "1", "a b", "a1"):
        if not (folder / other).exists():
            write(folder, other, format_.encoded(others))

    assert epochs(format_.source(folder / (name + format_.suffix)), (), []) == rows


@each_format
@some
@given(name=NAMES, before=ROWS, after=ROWS, most=st.none() | st.integers(1, 4))
def test_a_file_that_is_replaced_between_plan_and_read_gives_its_own_rows_or_an_error(
    tmp_path_factory: pytest.TempPathFactory,
    format_: Format,
    name: str,
    before: list[str],
    after: list[str],
    most: int | None,
) -> None:
    assume(before)
    folder = tmp_path_factory.mktemp("replaced")
    name += format_.suffix
    old, new = format_.encoded(before), format_.encoded(after)
    write(folder, name, old)
    source = format_.source(folder)
    barrier = source.plan((), max_records=most, parallelism=2)
    planned = rows_of(source, barrier)
    end = barrier.position[0].offset if format_.grows else len(old)
    write(folder, name, new)
    is_same = new[:end] == old[:end] if format_.grows else new == old

    if is_same:
        assert rows_of(source, barrier) == planned
    else:
        with pytest.raises(ConfigurationError) as refused:
            rows_of(source, barrier)
        assert f"{name} of {source.location} was replaced" in str(refused.value)
        with pytest.raises(ConfigurationError):
            source.plan(barrier.position, max_records=None, parallelism=2)
    (folder / name).unlink()
    with pytest.raises(ConfigurationError) as gone:
        rows_of(source, barrier)
    assert f"{name} of {source.location} is gone" in str(gone.value)


@each_format
@some
@given(rows=ROWS, at=st.integers(0, 10_000), data=st.data())
def test_a_file_that_is_written_slowly_is_read_once_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    format_: Format,
    rows: list[str],
    at: int,
    data: st.DataObject,
) -> None:
    """Cut at any byte, then whole: only where a format has no end may a part pass for the whole."""
    folder = tmp_path_factory.mktemp("slow")
    whole = format_.encoded(rows)
    name = "a" + format_.suffix
    (folder / name).write_bytes(whole[: at % (len(whole) + 1)])
    source = format_.source(folder, bounded=False)
    first = source.plan((), max_records=data.draw(st.none() | st.integers(1, 4)), parallelism=2)
    read = rows_of(source, first)
    (folder / name).write_bytes(whole)

    caps = data.draw(CAPS)
    rest, error = tried(lambda: epochs(source, first.position, caps))

    if rest is not None:
        assert read + rest == rows
        return
    assert not format_.has_end, error
    assert f"{name} of {source.location}" in error
    assert read == rows[: len(read)]


@each_format
@some
@given(rows=ROWS, at=st.integers(0, 10_000))
def test_a_part_of_a_file_is_no_other_rows(
    tmp_path_factory: pytest.TempPathFactory, format_: Format, rows: list[str], at: int
) -> None:
    folder = tmp_path_factory.mktemp("part")
    whole = format_.encoded(rows)
    at %= len(whole) + 1
    name = "a" + format_.suffix
    (folder / name).write_bytes(whole[:at])
    source = format_.source(folder)

    read, error = tried(lambda: epochs(source, (), []))

    if read is None:
        assert not format_.grows
        assert at < len(whole)
        assert name in error
    elif format_.grows:  # The last line is a record, though cut in the middle of a letter.
        assert read[:-1] == rows[: max(len(read) - 1, 0)]
    else:
        assert read == rows[: len(read)]
        assert not format_.has_end or at in {0, len(whole)}


@each_format
@some
@given(rows=ROWS, at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_wrong_byte_is_an_error_with_the_files_name_or_no_error_at_all(
    tmp_path_factory: pytest.TempPathFactory, format_: Format, rows: list[str], at: int, flip: int
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    body = bytearray(format_.encoded([*rows, "last"]))
    body[at % len(body)] ^= flip
    name = "a" + format_.suffix
    (folder / name).write_bytes(body)
    source: Any = format_.source(folder)

    barrier, error = tried(lambda: source.plan((), max_records=None, parallelism=2))
    if barrier is None:
        assert name in error
    elif "line" in source.schema().names:
        read, error = tried(lambda: rows_of(source, barrier))
        assert len(read) == barrier.records if read is not None else name in error


@pytest.mark.parametrize("format_", [PARQUET, AVRO], ids=repr)
@some
@given(files=st.lists(st.tuples(TYPES, st.booleans()), min_size=1, max_size=4))
def test_files_with_other_columns_are_refused_before_a_row_is_read(
    tmp_path_factory: pytest.TempPathFactory, format_: Format, files: list[tuple[str, bool]]
) -> None:
    """A column of another type, or with another one beside it."""
    folder = tmp_path_factory.mktemp("drift")
    for number, (kind, has_more) in enumerate(files):
        write(folder, str(number), with_columns(format_, kind, has_more=has_more))
    source = format_.source(folder)

    barrier, error = tried(lambda: source.plan((), max_records=1, parallelism=2))

    if len(set(files)) == 1:
        assert barrier is not None, error
        assert barrier.records == 1
    else:
        assert "column 'line' of" in error or "column 'more' of" in error


# What happens before each epoch, and its cap.
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["new", "new", "late", "begin", "end", "nothing"]),
        st.integers(0, 5),
        st.sampled_from([1, 2, 4, None]),
    ),
    max_size=40,
)


@pytest.mark.parametrize("format_", [TEXT, PARQUET], ids=repr)
@examples(40)
@given(acts=ACTS)
def test_every_row_is_read_once_however_files_come(
    tmp_path_factory: pytest.TempPathFactory,
    format_: Format,
    acts: list[tuple[str, int, int | None]],
) -> None:
    """A file is late by few names, or half-written while later ones are there and partly read."""
    folder = tmp_path_factory.mktemp("ordered")
    source = format_.source(folder, bounded=False, ordered=True)
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
                path.write_bytes(format_.encoded(rows))
                written += rows
        elif act in {"new", "begin"}:
            if format_ is TEXT:
                complete()  # The next file shows that a text file is complete.
            last += 10
            path = folder / f"{last:06d}"
            body = format_.encoded(rows)
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
    (folder / "999999").write_bytes(format_.encoded([]))
    read += epochs(source, position, [None] * 2)

    assert sorted(read, key=int) == written


def test_a_file_that_is_behind_the_cap_stays_open(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(PARQUET.encoded(["b"] * 10))
    whole = PARQUET.encoded(["a"] * 10)
    (tmp_path / "a").write_bytes(whole[: len(whole) // 2])
    source = ParquetSource(str(tmp_path), bounded=False, ordered=True)
    position = source.plan((), max_records=4, parallelism=1).position
    (tmp_path / "a").write_bytes(whole)

    read = epochs(source, position, [4] * 4)

    assert "".join(read) == "a" * 10 + "b" * 6


def test_a_late_file_that_stays_open_makes_no_forgotten_file_new(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:03d}0").write_text(f"{number}\n")
    source = FilesSource(str(tmp_path), bounded=False, ordered=True)
    position: SourcePosition = ()
    for _ in range(2):
        position = source.plan(position, max_records=None, parallelism=1).position
    (tmp_path / "0355").write_text("late\n" * 4)

    assert epochs(source, position, [1] * 6) == ["late"] * 4


def test_lines_that_come_between_two_listings_of_a_folder_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last file of a folder grows, and only then the next folder's first file is begun."""
    first, second = tmp_path / "d1" / "2.log", tmp_path / "d2" / "3.log"
    first.parent.mkdir()
    second.parent.mkdir()
    (first.parent / "1.log").write_text("x\n")
    first.write_text("a0\n")
    source = FilesSource(str(tmp_path), bounded=False, ordered=True)
    real = FilesSource._part  # noqa: SLF001 - between two listings of one plan

    def part(self: FilesSource, before: Any, file: Any, asked: Any) -> Any:
        if file.key == "d1/1.log" and not second.exists():
            with first.open("a") as file_of_ours:
                file_of_ours.write("a1\n")
            second.write_text("b0\n")
        return real(self, before, file, asked)

    monkeypatch.setattr(FilesSource, "_part", part)

    barrier = source.plan((), max_records=None, parallelism=1)

    assert rows_of(source, barrier) == ["x", "a0", "a1", "b0"]


@pytest.mark.parametrize("seed", range(20 * TIMES))
def test_every_line_is_read_once_while_files_come_and_go(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    source = FilesSource(str(tmp_path), bounded=False, ordered=True)
    position: SourcePosition = ()
    written: list[str] = []
    read: list[str] = []
    number = 0
    for _ in range(40):
        for _ in range(random.randrange(4)):
            number += random.random() < 0.7
            lines = [f"{number}:{len(written) + n}" for n in range(random.randrange(4))]
            written += lines
            with (tmp_path / f"log-{number:06d}").open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
        most = random.choice([1, 2, 5, None])
        barrier = source.plan(position, max_records=most, parallelism=2)
        assert barrier == source.plan(position, max_records=most, parallelism=2)
        read += rows_of(source, barrier)
        position = barrier.position
    read += epochs(source, position, [])

    assert read == written
