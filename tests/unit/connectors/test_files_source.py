"""Lines of files as a source: exact cuts, exact line numbers, nothing lost and nothing twice."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.connectors.files import lines as files_lines
from sluice.connectors.files.lines import BYTE_ORDER_MARK
from sluice.connectors.files.text import MAX_TABLE_BYTES, FilesSource
from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.declaration.places import Barrier, SourcePosition
from sluice.errors import ConfigurationError
from sluice.store.memory import InMemoryStore, named_store
from tests.examples import examples

Row = tuple[str, str, int]


def rows_of(source: FilesSource, pieces: tuple[Slice, ...]) -> list[Row]:
    batches = [batch for piece in pieces for batch in source.read(piece)]
    assert all(batch.schema == source.schema() for batch in batches)
    return [
        (row["file"], row["line"], row["line_number"])
        for batch in batches
        for row in batch.to_pylist()
    ]


def places(position: SourcePosition) -> SourcePosition:
    """Without what the files are known by."""
    return tuple(replace(one, version="") for one in position)


def plan_all(source: FilesSource, position: SourcePosition = ()) -> Barrier:
    return source.plan(position, max_records=None, parallelism=2)


def an_empty_epoch(position: SourcePosition, *, exhausted: bool) -> Barrier:
    nothing = Unread(records=0, size_bytes=0)
    return Barrier(position=position, slices=(), exhausted=exhausted, unread=nothing, size_bytes=0)


def a_folder(tmp_path: Path, **files: str) -> Path:
    for name, text in files.items():
        (tmp_path / name).write_text(text, newline="")
    return tmp_path


def test_lines_of_all_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    source = FilesSource(str(a_folder(tmp_path, b="three\n", a="one\n\ntwo")))

    barrier = plan_all(source)

    assert rows_of(source, barrier.slices) == [
        ("a", "one", 1),
        ("a", "", 2),
        ("a", "two", 3),
        ("b", "three", 1),
    ]
    assert barrier.exhausted
    assert places(barrier.position) == (
        PartitionOffset(partition="a", offset=8, records=3, sealed=True),
        PartitionOffset(partition="b", offset=6, records=1, sealed=True),
    )


def test_an_epoch_without_records_keeps_its_position(tmp_path: Path) -> None:
    source = FilesSource(str(a_folder(tmp_path, a="one\n")))
    first = plan_all(source)

    second = plan_all(source, first.position)

    assert second == an_empty_epoch(first.position, exhausted=True)


def test_the_cap_is_kept_to_the_line_and_filled_file_by_file(tmp_path: Path) -> None:
    source = FilesSource(str(a_folder(tmp_path, a="1\n2\n3\n", b="4\n5\n")))

    barrier = source.plan((), max_records=4, parallelism=4)

    assert [row[1] for row in rows_of(source, barrier.slices)] == ["1", "2", "3", "4"]
    assert [piece.records for piece in barrier.slices] == [1, 1, 1, 1]
    assert not barrier.exhausted
    assert source.plan(barrier.position, max_records=1, parallelism=1).exhausted


def test_a_line_still_being_written_is_left_until_its_newline_arrives(tmp_path: Path) -> None:
    path = a_folder(tmp_path, log="one\ntw") / "log"
    source = FilesSource(str(tmp_path), bounded=False)

    first = plan_all(source)
    unchanged = plan_all(source, first.position)
    with path.open("a") as file:
        file.write("o\nthree")
    second = plan_all(source, first.position)

    assert rows_of(source, first.slices) == [("log", "one", 1)]
    assert unchanged == an_empty_epoch(first.position, exhausted=False)
    assert rows_of(source, second.slices) == [("log", "two", 2)]


def test_windows_line_ends_and_invalid_bytes_do_not_lose_a_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"a\r\n\r\r\nb\xff\xe2\x82\nc\rd\n\xe2\x82\xac\r")
    source = FilesSource(str(tmp_path / "log"))

    rows = rows_of(source, plan_all(source).slices)

    lines = ["a", "\r", "b\\xff\\xe2\\x82", "c\rd", "\u20ac"]
    assert rows == [("log", line, number) for number, line in enumerate(lines, 1)]


def test_hidden_files_are_not_read_and_folders_are_entered(tmp_path: Path) -> None:
    for name in ["x/y/deep", "x-y", ".hidden", "_SUCCESS", ".git/config", "x/_temporary/part"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    source = FilesSource(f"file://{tmp_path}")

    assert [row[0] for row in rows_of(source, plan_all(source).slices)] == ["x-y", "x/y/deep"]


def test_a_missing_location_is_named_and_an_empty_folder_is_fine(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"no file and no folder at file://{tmp_path}/no"):
        plan_all(FilesSource(str(tmp_path / "no")))
    with pytest.raises(ConfigurationError, match="with a slash at its end"):
        plan_all(FilesSource("memory://empty-place/logs"))

    assert plan_all(FilesSource(str(tmp_path))) == an_empty_epoch((), exhausted=True)
    assert plan_all(FilesSource("memory://empty-place/logs/")).slices == ()


def test_a_file_that_shrank_is_named_with_its_offset_and_size(tmp_path: Path) -> None:
    source = FilesSource(str(a_folder(tmp_path, log="one\ntwo\n")), bounded=False)
    position = plan_all(source).position
    a_folder(tmp_path, log="one\n")

    with pytest.raises(ConfigurationError, match=r"log of .* to byte 8 and has shrunk to 4 bytes"):
        plan_all(source, position)


def test_a_file_that_vanished_half_read_stops_a_bounded_source(tmp_path: Path) -> None:
    source = FilesSource(str(a_folder(tmp_path, a="one\ntwo\n", b="")))
    position = source.plan((), max_records=1, parallelism=1).position
    (tmp_path / "a").unlink()

    with pytest.raises(ConfigurationError, match=r"a of .* read to byte 4 and is gone"):
        plan_all(source, position)
    assert plan_all(FilesSource(str(tmp_path), bounded=False), position).position == position


def test_a_slice_of_a_file_that_was_edited_is_refused(tmp_path: Path) -> None:
    source = FilesSource(str(a_folder(tmp_path, log="one\ntwo\n")))
    barrier = source.plan((), max_records=None, parallelism=1)
    a_folder(tmp_path, log="one two\n")

    with pytest.raises(ConfigurationError, match="was replaced after this epoch was planned"):
        rows_of(source, barrier.slices)


def test_a_file_whose_name_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "log-\udcff").write_text("line")

    with pytest.raises(ConfigurationError, match="is not UTF-8; rename the file"):
        plan_all(FilesSource(str(tmp_path)))


def test_another_format_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="use 'text'"):
        FilesSource("/tmp", format="xml")


@pytest.mark.parametrize(
    "location", ["memory://bucket-of-one/logs/a.log", "memory://bucket-of-one"]
)
def test_a_location_is_one_object_or_all_below_it(location: str) -> None:
    named_store("bucket-of-one").put("logs/a.log", b"one\n")
    source = FilesSource(location)

    [(file, line, number)] = rows_of(source, plan_all(source).slices)

    assert (file.endswith("a.log"), line, number) == (True, "one", 1)


def test_a_table_has_a_version_that_follows_its_bytes(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, a="# allowed\n\n10.0.0.1\n")
    version, table = FilesSource(str(folder)).snapshot()
    again, _ = FilesSource(str(folder)).snapshot()
    a_folder(tmp_path, a="# allowed\n\n10.0.0.2\n")
    changed, _ = FilesSource(str(folder)).snapshot()

    assert table["line"].to_pylist() == ["# allowed", "", "10.0.0.1"]
    assert table["line_number"].to_pylist() == [1, 2, 3]
    assert version == again != changed


def test_a_table_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(MAX_TABLE_BYTES + 1)

    with pytest.raises(ConfigurationError, match="read it as a stream"):
        FilesSource(str(tmp_path)).snapshot()


def test_a_table_has_no_line_of_a_file_that_is_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(BYTE_ORDER_MARK)
    (tmp_path / "b").write_bytes(BYTE_ORDER_MARK + b"x\n")

    _, table = FilesSource(str(tmp_path)).snapshot()

    assert table["line"].to_pylist() == ["x"]


def test_slices_of_many_lines_are_nearly_equal() -> None:
    blocks = [b"x\n" * 50_000] * 4
    before = PartitionOffset(partition="f", offset=0, records=7)

    cut = files_lines.scan_lines(blocks, before, size=400_000, max_records=None, bounded=True)
    pieces = files_lines.slices_of([cut], 7)

    assert len(pieces) == 7
    assert sum(piece.records for piece in pieces) == 200_000
    assert max(piece.records for piece in pieces) < 200_000 / 7 * 1.01
    assert all(piece.end - piece.start == 2 * piece.records for piece in pieces)


@pytest.mark.parametrize("most", [None, 299_999, 250_000, 3])
def test_a_cut_does_not_depend_on_how_a_store_hands_out_the_bytes(most: int | None) -> None:
    """Some lines are longer than a piece, most are short; the text is longer than its beginning."""
    lines = [b"x" * (number % 50) for number in range(300_000)]
    lines[::20_000] = [b"y" * (files_lines.PIECE_BYTES + 1)] * len(lines[::20_000])
    text = b"\n".join(lines)
    before = PartitionOffset(partition="f", offset=0, records=0)

    def a_cut(block_bytes: int) -> files_lines.FileCut:
        blocks = (text[at : at + block_bytes] for at in range(0, len(text), block_bytes))
        return files_lines.scan_lines(
            blocks, before, size=len(text), max_records=most, bounded=True
        )

    cut = a_cut(files_lines.BLOCK_BYTES)

    assert len(text) > files_lines.TO_THE_LINE_BYTES
    assert cut == a_cut(100_003) == a_cut(len(text))
    assert cut.records == (most or len(lines))
    assert all(text[:end].count(b"\n") == upto for upto, end in cut.marks[::100])
    pieces = files_lines.slices_of([cut], 7)
    assert sum(piece.records for piece in pieces) == cut.records


line = st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"")) | st.sampled_from(
    [b"", b"\r", b"long" * 20]
)
contents = st.lists(line, max_size=12).map(b"\n".join)
cuts = st.lists(
    st.tuples(st.none() | st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=30
)


class Sizes(NamedTuple):
    block: int
    piece: int
    pieces_to_the_line: int
    marks: int


SMALLEST = Sizes(block=1, piece=1, pieces_to_the_line=0, marks=2)
sizes = st.builds(
    Sizes, st.integers(1, 20), st.integers(1, 9), st.integers(0, 4), st.integers(2, 8)
)


@examples(150)
@example(files=[(BYTE_ORDER_MARK, False)], cuts=[(None, 1)], sizes=SMALLEST)
@example(files=[(BYTE_ORDER_MARK, True)], cuts=[(1, 1)], sizes=SMALLEST)
@example(files=[(BYTE_ORDER_MARK + b"\n", False)], cuts=[(None, 1)], sizes=SMALLEST)
@given(
    files=st.lists(st.tuples(contents, st.booleans()), max_size=4),
    cuts=cuts,
    sizes=sizes,
)
def test_any_sequence_of_cuts_covers_every_line_exactly_once(
    files: list[tuple[bytes, bool]],
    cuts: list[tuple[int | None, int]],
    sizes: Sizes,
) -> None:
    store = named_store("covers-every-line")
    store.delete([listed.key for listed in store.list("")])
    expected: list[Row] = []
    for number, (content, is_compressed) in enumerate(files):
        name = f"file-{number}.gz" if is_compressed else f"file-{number}"
        store.put(name, gzip.compress(content, mtime=0) if is_compressed else content)
        expected += [
            (name, text, line_number)
            for line_number, text in lines_of(content.removeprefix(BYTE_ORDER_MARK))
        ]
    source = FilesSource("memory://covers-every-line/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_lines, "BLOCK_BYTES", sizes.block)
        patch.setattr(files_lines, "PIECE_BYTES", sizes.piece)
        patch.setattr(files_lines, "TO_THE_LINE_BYTES", sizes.pieces_to_the_line * sizes.piece)
        patch.setattr(files_lines, "MAX_MARKS", sizes.marks)

        rows: list[Row] = []
        for barrier, max_records, parallelism in epochs(source, cuts):
            read = rows_of(source, barrier.slices)
            assert len(read) == barrier.records
            assert max_records is None or len(read) <= max_records
            assert len(barrier.slices) <= parallelism + len(files)
            rows += read

    assert rows == expected


def epochs(
    source: FilesSource, cuts: list[tuple[int | None, int]]
) -> Iterator[tuple[Barrier, int | None, int]]:
    """Plan until the source is exhausted: the given cuts, and then one of all that is left."""
    position: SourcePosition = ()
    for max_records, parallelism in [*cuts, (None, 3)]:
        barrier = source.plan(position, max_records=max_records, parallelism=parallelism)
        yield barrier, max_records, parallelism
        if barrier.exhausted:
            return
        position = barrier.position
    pytest.fail("a cut without a cap leaves nothing")


def lines_of(content: bytes) -> Iterator[tuple[int, str]]:
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for number, raw in enumerate(lines, 1):
        yield number, raw.decode("utf-8", "backslashreplace").removesuffix("\r")


def test_a_store_without_a_name_is_its_own() -> None:
    InMemoryStore().put("a", b"x")

    assert InMemoryStore().get("a") is None
