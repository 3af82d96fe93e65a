"""Files as a source: exact cuts, exact line numbers, nothing lost and nothing twice.

Files that changed after they were read are found by any process, by the position alone.  Files that
are still being written are read when they are whole, and not waited for in vain.  A barrier names
the files that wait behind it, and their first records can be read.  Where names only grow,
positions are small and listings short, and yet nothing is read twice or missed.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.connectors.files import encodings as files_encodings
from sluice.connectors.files import lines as files_lines
from sluice.connectors.files import source as files_source
from sluice.connectors.files import text as files_text
from sluice.connectors.files.avro import AvroSource
from sluice.connectors.files.encodings import BYTE_ORDER_MARK
from sluice.connectors.files.file_set import HEAD_BYTES, TAIL_BYTES
from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.source import COUNTED, SEALED_KEPT
from sluice.connectors.files.text import FilesSource
from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.declaration.places import Barrier, SourcePosition
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.store.folder import FileStore
from sluice.store.memory import InMemoryStore, named_store
from sluice.store.object_store import Listed
from tests.contract.source_rules import epochs, places, plan_all
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


def texts_of(source: FilesSource, pieces: tuple[Slice, ...]) -> list[str]:
    return [text for _, text, _ in rows_of(source, pieces)]


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

    assert texts_of(source, barrier.slices) == ["1", "2", "3", "4"]
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


@pytest.mark.parametrize("how", [{}, {"bounded": False}, {"bounded": False, "ordered": True}])
def test_a_file_that_vanished_half_read_stops_the_source_and_helps_when_it_is_back(
    tmp_path: Path, how: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    source = FilesSource(str(a_folder(tmp_path, a="one\ntwo\n", b="three\n")), **how)
    position = source.plan((), max_records=1, parallelism=1).position
    body = (tmp_path / "a").read_text()
    (tmp_path / "a").unlink()
    a_folder(tmp_path, c="four\n")  # It may get the id of the file that is gone.

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"a of .* read to byte 4 and is gone; put it"):
            plan_all(source, position)
    skipping = replace(source, skips_lost=True)
    passed = plan_all(skipping, position)
    assert texts_of(skipping, passed.slices) == ["three", "four"]
    assert not plan_all(skipping, passed.position).slices
    assert caplog.text.count("RECORDS ARE LOST") == 1
    a_folder(tmp_path, a=body)
    assert texts_of(source, plan_all(source, position).slices) == ["two", "three", "four"]


@pytest.mark.parametrize("format_", [FilesSource, ParquetSource])
def test_a_file_that_vanished_before_it_was_read_is_lost_and_a_renamed_one_is_not(
    tmp_path: Path, format_: type[FilesSource | ParquetSource]
) -> None:
    for name in "ab":
        if format_ is FilesSource:
            a_folder(tmp_path, **{name: "one\n" * 5})
        else:
            write_parquet(tmp_path / name, 0)
    source = format_(str(tmp_path), bounded=False)
    position = source.plan((), max_records=2, parallelism=1).position
    (tmp_path / "b").rename(tmp_path / "c")

    assert plan_all(source, position).records == 8
    (tmp_path / "c").unlink()
    with pytest.raises(ConfigurationError, match=r"b of .* is gone; put it back"):
        plan_all(source, position)


def test_a_file_that_was_read_to_its_end_may_go_and_one_like_it_is_new(tmp_path: Path) -> None:
    source = FilesSource(str(a_folder(tmp_path, hb1="ok\n")), bounded=False)
    position = plan_all(source).position
    for number in range(2, 5):
        (tmp_path / f"hb{number - 1}").unlink()
        a_folder(tmp_path, **{f"hb{number}": "ok\n"})  # Often with the id of the one before.
        barrier = plan_all(source, position)
        position = barrier.position

        assert rows_of(source, barrier.slices) == [(f"hb{number}", "ok", 1)]


def test_a_slice_of_a_file_that_was_edited_is_refused(tmp_path: Path) -> None:
    source = FilesSource(str(a_folder(tmp_path, log="one\ntwo\n")))
    barrier = plan_all(source)
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


def test_a_table_has_the_lines_that_are_there_now(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, a="# allowed\n\n10.0.0.1\n", b="10.0.0.2")

    whole = [(name, lines.to_pydict()) for name, lines in FilesSource(str(folder)).whole(1_000)]

    assert [(name, lines["line"], lines["line_number"]) for name, lines in whole] == [
        ("a", ["# allowed", "", "10.0.0.1"], [1, 2, 3]),
        ("b", ["10.0.0.2"], [1]),
    ]


def test_a_table_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(1_001)

    with pytest.raises(ConfigurationError, match="read it as a stream"):
        [*FilesSource(str(tmp_path)).whole(1_000)]


def test_a_table_has_no_line_of_a_file_that_is_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(BYTE_ORDER_MARK)
    (tmp_path / "b").write_bytes(BYTE_ORDER_MARK + b"x\n")

    ((name, lines),) = FilesSource(str(tmp_path)).whole(1_000)

    assert (name, lines["line"].to_pylist()) == ("b", ["x"])


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

    cut = a_cut(files_encodings.BLOCK_BYTES)

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
@example(files=[(b"\x1f\x8b", False)], cuts=[(None, 1)], sizes=SMALLEST)
@example(files=[(b"a\0", False)], cuts=[(None, 1)], sizes=SMALLEST)
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
        patch.setattr(files_encodings, "BLOCK_BYTES", sizes.block)
        patch.setattr(files_lines, "PIECE_BYTES", sizes.piece)
        patch.setattr(files_lines, "TO_THE_LINE_BYTES", sizes.pieces_to_the_line * sizes.piece)
        patch.setattr(files_lines, "MAX_MARKS", sizes.marks)

        rows: list[Row] = []
        try:
            for barrier, (max_records, parallelism) in epochs(source, cuts):
                read = rows_of(source, barrier.slices)
                assert len(read) == barrier.records
                assert max_records is None or len(read) <= max_records
                assert len(barrier.slices) <= parallelism + len(files)
                rows += read
        except ConfigurationError:
            assert any(may_be_no_text(content) for content, _ in files)
            assert rows == expected[: len(rows)]
            return

    assert rows == expected


def may_be_no_text(content: bytes) -> bool:
    """Whether it begins as another format does, or has NUL bytes, as wide characters have."""
    try:
        [*files_encodings.checked_text([content], 0, "it")]
    except ConfigurationError:
        return True
    return b"\0" in content


def lines_of(content: bytes) -> Iterator[tuple[int, str]]:
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    for number, raw in enumerate(lines, 1):
        yield number, raw.decode("utf-8", "backslashreplace").removesuffix("\r")


def test_a_store_without_a_name_is_its_own() -> None:
    InMemoryStore().put("a", b"x")

    assert InMemoryStore().get("a") is None


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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("one\n", "was read to byte 8 and has shrunk to 4 bytes"),
        ("ONE\ntwo\nthree\n", "is not what was read to byte 8: the checksum of the 8 bytes"),
        ("ONE\ntwo\n", "is not what was read to byte 8: the checksum of the 8 bytes"),
    ],
    ids=["shorter", "longer", "as_long"],
)
def test_a_log_that_was_rewritten_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    source = FilesSource(str(a_folder(tmp_path, log="one\ntwo\n")), bounded=False)
    position = plan_all(source).position
    a_folder(tmp_path, log=text)

    with pytest.raises(ConfigurationError, match=f"log of .* {sentence}"):
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


def test_a_log_that_was_rewritten_is_found_by_its_first_bytes_too(tmp_path: Path) -> None:
    """As one that is truncated and filled again, with an end that all such logs have."""
    path, end = tmp_path / "log", b"tail\n" * TAIL_BYTES
    path.write_bytes(b"first\n" + end)
    source = FilesSource(str(tmp_path), bounded=False)
    half, whole = source.plan((), max_records=2000, parallelism=1), plan_all(source)
    grown = plan_all(source, half.position)
    path.write_bytes(b"other\n" + end)

    for barrier in (half, whole, grown):
        with pytest.raises(
            ConfigurationError, match=f"the checksum of the first {HEAD_BYTES} byte"
        ):
            plan_all(source, barrier.position)
    with pytest.raises(ConfigurationError, match=f"planned: the first {HEAD_BYTES} bytes are"):
        rows_of(source, whole.slices)


@dataclass
class RotatedLog:
    """A log as logrotate keeps it, in all its ways; every line is another one."""

    path: Path
    written: list[str] = field(default_factory=list)

    def write(self, count: int, *, half: bool = False) -> None:
        with self.path.open("a") as file:
            for _ in range(count):
                self.written.append(f"line {len(self.written)} {'x' * 99}")
                file.write(f"{self.written[-1]}\n")
            file.write("half" * half)

    def rotate(self, kind: str, keep: int = 3) -> None:
        """*kind*: ``rename``, ``copytruncate``, ``gzip``, ``date``."""
        if kind == "date":
            old = self.path.with_name(f"app.log-{len(self.written):08d}")
            self.path.rename(old)
            self._compress(old, old.with_name(f"{old.name}.gz"))
        else:
            self._shift(keep)
            old = self.path.with_name("app.log.1")
            if kind == "copytruncate":
                old.write_bytes(self.path.read_bytes())
                self.path.write_bytes(b"")
            else:
                self.path.rename(old)
            if kind == "gzip":
                self._compress(old, self.path.with_name("app.log.2.gz"))
        if kind != "copytruncate":
            self.path.touch()

    def _shift(self, keep: int) -> None:
        for number in range(keep, 0, -1):
            for end in ("", ".gz"):
                old = self.path.with_name(f"app.log.{number}{end}")
                if not old.exists():
                    continue
                if number == keep:
                    old.unlink()
                else:
                    old.rename(self.path.with_name(f"app.log.{number + 1}{end}"))

    @staticmethod
    def _compress(old: Path, new: Path) -> None:
        new.write_bytes(gzip.compress(old.read_bytes()))
        shutil.copystat(old, new)
        old.unlink()


@pytest.mark.parametrize("kind", ["rename", "copytruncate", "gzip", "date"])
@pytest.mark.parametrize("lines", [3, 100], ids=["small", "large"])
def test_a_log_is_followed_when_it_is_rotated(tmp_path: Path, kind: str, lines: int) -> None:
    """What was read is not read again, the rest is read under the new name."""
    log = RotatedLog(tmp_path / "app.log")
    log.write(lines)
    source = FilesSource(str(tmp_path), bounded=False)
    first = plan_all(source)
    read = texts_of(source, first.slices)
    log.write(2)
    log.rotate(kind)
    log.write(lines)

    second = plan_all(source, first.position)
    rows = rows_of(source, second.slices)
    assert sorted([*read, *(text for _, text, _ in rows)]) == sorted(log.written)
    moved = {name: number for name, _, number in rows if name != "app.log"}
    assert list(moved.values()) == [lines + 2]
    assert "app.log" not in moved
    assert not plan_all(source, second.position).slices


@pytest.mark.parametrize("seed", range(12))
def test_every_line_of_a_rotated_log_is_read_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    log = RotatedLog(tmp_path / "app.log")
    log.write(1)
    source = FilesSource(str(tmp_path), bounded=False)
    position: SourcePosition = ()
    read: list[str] = []
    rotations = ["rename", "copytruncate", "gzip"] if seed % 2 else ["date"]
    for _ in range(25):
        log.write(random.choice([0, 1, 5, 60]), half=False)
        if log.path.stat().st_size and random.random() < 0.5:
            log.rotate(random.choice(rotations), keep=9)
        barrier = source.plan(position, max_records=random.choice([7, 50, None]), parallelism=2)
        read += texts_of(source, barrier.slices)
        position = barrier.position
    rest = plan_all(source, position)
    read += texts_of(source, rest.slices)

    assert sorted(read) == sorted(log.written)


def test_the_oldest_file_goes_when_it_was_read_and_is_lost_before(tmp_path: Path) -> None:
    log = RotatedLog(tmp_path / "app.log")
    source = FilesSource(str(tmp_path), bounded=False)
    position: SourcePosition = ()
    read: list[str] = []
    for _ in range(8):
        log.write(4)
        barrier = plan_all(source, position)
        read += texts_of(source, barrier.slices)
        position = barrier.position
        log.rotate("rename", keep=2)
    assert read == log.written
    log.write(4)
    position = source.plan(position, max_records=1, parallelism=1).position
    for _ in range(4):
        log.rotate("rename", keep=2)
        log.write(1)

    with pytest.raises(ConfigurationError, match=r"app\.log of .* with on_lost='skip'"):
        plan_all(source, position)


def test_a_single_file_is_followed_to_its_name_beside_it(tmp_path: Path) -> None:
    """As /var/log/auth.log, also while there is none of this name yet."""
    log = RotatedLog(tmp_path / "app.log")
    a_folder(tmp_path, other="never\n")
    log.write(3)
    source = FilesSource(str(log.path), bounded=False)
    position: SourcePosition = ()
    read: list[str] = []
    for number in range(6):
        barrier = source.plan(position, max_records=4, parallelism=1)
        read += texts_of(source, barrier.slices)
        position = barrier.position
        log.write(2)
        log.rotate("rename" if number % 2 else "gzip", keep=9)
        if number == 2:
            log.path.unlink()
            barrier = plan_all(source, position)
            read += texts_of(source, barrier.slices)
            position = barrier.position
        log.write(1)
    read += texts_of(source, plan_all(source, position).slices)

    assert sorted(read) == sorted(log.written)


@pytest.mark.parametrize("kind", ["rename", "gzip", "date"])
def test_a_single_file_that_is_rotated_often_between_plans_is_read_whole(
    tmp_path: Path, kind: str
) -> None:
    """But for what it was before the first plan, copies, and the logs of others."""
    log = RotatedLog(tmp_path / "app.log")
    source = FilesSource(str(log.path), bounded=False)
    position: SourcePosition = ()
    read: list[str] = []

    def write() -> None:
        log.write(1)
        os.utime(log.path, (len(log.written), len(log.written)))

    write()
    log.rotate("rename", keep=9)
    for rotations in (0, 2, 1, 3, 0):
        write()
        barrier = plan_all(source, position)
        read += texts_of(source, barrier.slices)
        position = barrier.position
        assert sorted(read) == sorted(log.written[1:])
        for _ in range(rotations):
            log.rotate(kind, keep=9)
            write()
        for other in ("app.log2", "app.log.notes", "app.log.1.bak"):
            (tmp_path / other).write_text("not of the log\n")

    assert not plan_all(source, position).slices


def test_a_planned_log_is_read_under_its_new_name(tmp_path: Path) -> None:
    log = RotatedLog(tmp_path / "app.log")
    log.write(3)
    source = FilesSource(str(tmp_path), bounded=False)
    barrier = plan_all(source)
    planned = rows_of(source, barrier.slices)
    log.rotate("rename")
    log.write(9)

    assert rows_of(source, barrier.slices) == planned
    assert {name for name, _, _ in planned} == {"app.log"}


def test_a_rotated_log_whose_old_file_is_nowhere_is_refused_with_the_way_on(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = RotatedLog(folder / "app.log")
    log.write(3)
    source = FilesSource(str(folder), bounded=False)
    position = plan_all(source).position
    log.path.rename(tmp_path / "elsewhere")
    log.write(1)

    for ordered in (False, True):
        refusing = replace(source, ordered=ordered)
        with pytest.raises(ConfigurationError, match=r"has shrunk .* with on_lost='skip'"):
            plan_all(refusing, position)
        skipping = replace(refusing, skips_lost=True)
        assert texts_of(skipping, plan_all(skipping, position).slices) == log.written[3:]


def test_a_position_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    source = FilesSource(str(a_folder(tmp_path, log="one\n")), bounded=False)
    old = tuple(
        replace(one, version="4-0a1b2c3d4e5f6071-0a1b2c3d4e5f") for one in plan_all(source).position
    )

    with pytest.raises(ProtocolViolation, match="does not say what was read of a file"):
        plan_all(source, old)


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
    a_folder(tmp_path, **dict.fromkeys("abc", "0123456\n" * 1000))
    (tmp_path / "z.gz").write_bytes(gzip.compress(b"one\n"))
    source = FilesSource(str(tmp_path), bounded=False)
    position = plan_all(source).position
    reads.clear()

    same = plan_all(source, position)
    with (tmp_path / "b").open("a") as file:
        file.write("new\n" * 2000)
    grown = plan_all(source, position)

    assert (same.position, same.slices) == (position, ())
    head, tail = ("b", 0, HEAD_BYTES), ("b", 8000 - TAIL_BYTES, 8000)
    assert reads == [head, tail, ("b", 8000, 16000)]
    assert grown.records == 2000


def test_a_bounded_file_that_grew_behind_its_end_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = FilesSource(str(a_folder(tmp_path, log="one\n")))
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
    source = FilesSource(str(a_folder(tmp_path, a="one\n", b="two\n")))
    position = source.plan((), max_records=1, parallelism=1).position
    (tmp_path / "a").write_text("ONE\n")
    touch(tmp_path / "a")

    with pytest.raises(ConfigurationError, match=r"a of .* is not what was read to byte 4"):
        plan_all(source, position)


def test_a_position_without_marks_gets_those_of_its_files(tmp_path: Path) -> None:
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


NUMBERS = range(2000)


def a_parquet_file() -> bytes:
    body = io.BytesIO()
    pq.write_table(pa.table({"n": pa.array(NUMBERS)}), body)
    return body.getvalue()


def an_avro_file() -> bytes:
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": "long"}]}
    body = io.BytesIO()
    fastavro.writer(body, schema, [{"n": n} for n in NUMBERS], sync_interval=1000)
    return body.getvalue()


TEXT = b"".join(b"%d\n" % n for n in NUMBERS)
KINDS: dict[str, tuple[Callable[..., ParquetSource | AvroSource | FilesSource], bytes]] = {
    "a.parquet": (ParquetSource, a_parquet_file()),
    "a.avro": (AvroSource, an_avro_file()),
    "a.gz": (FilesSource, gzip.compress(TEXT)),
    "a.zst": (FilesSource, zstandard.compress(TEXT)),
}


def silent_for(path: Path, seconds: int) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("cut", [2, 0.4, 0.95])
def test_an_unbounded_source_waits_for_the_whole_file(
    tmp_path: Path, name: str, cut: float, caplog: pytest.LogCaptureFixture
) -> None:
    kind, body = KINDS[name]
    source = kind(str(tmp_path), bounded=False)
    size = int(cut * len(body)) if cut < 1 else int(cut)
    (tmp_path / name).write_bytes(body[:size])

    with caplog.at_level(logging.INFO):
        first = source.plan((), max_records=5, parallelism=1)
    (tmp_path / name).write_bytes(body)
    second = source.plan(first.position, max_records=5, parallelism=1)
    third = plan_all(source, second.position)

    assert (first.slices, first.is_backlog, first.exhausted) == ((), False, False)
    assert [record.getMessage() for record in caplog.records] == [
        f"file is not whole yet, left for a later epoch file={name} size_bytes={size}"
    ]
    assert (second.records, third.records) == (5, len(NUMBERS) - 5)


@pytest.mark.parametrize("name", KINDS)
def test_a_bounded_source_and_one_out_of_patience_name_the_file(tmp_path: Path, name: str) -> None:
    kind, body = KINDS[name]
    path = tmp_path / name
    path.write_bytes(body[: len(body) // 2])

    with pytest.raises(ConfigurationError, match=f"{name} of .* when it is whole"):
        plan_all(kind(str(tmp_path)))
    silent_for(path, 3590)
    assert plan_all(kind(str(tmp_path), bounded=False)).slices == ()
    silent_for(path, 3610)
    with pytest.raises(ConfigurationError, match=f"{name} of .*; it was not written to .* 3600 s"):
        plan_all(kind(str(tmp_path), bounded=False))
    with pytest.raises(ConfigurationError, match="it was not written to for 0 s"):
        plan_all(kind(str(tmp_path), bounded=False, give_up_after_s=0))


@pytest.mark.parametrize("name", KINDS)
def test_files_behind_a_half_written_one_are_read(tmp_path: Path, name: str) -> None:
    kind, body = KINDS[name]
    (tmp_path / name).write_bytes(body[:-7])
    (tmp_path / f"b-{name}").write_bytes(body)
    source = kind(str(tmp_path), bounded=False)

    assert {piece.partition for piece in plan_all(source).slices} == {f"b-{name}"}
    assert source.schema().names in (["n"], ["line", "file", "line_number"])


def test_a_compressed_file_that_somebody_has_just_opened_is_not_taken_for_empty(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.gz"
    path.touch()
    source = FilesSource(str(tmp_path), bounded=False)
    first = plan_all(source)
    path.write_bytes(gzip.compress(TEXT))
    whole = plan_all(source, first.position)
    path.write_bytes(b"")
    silent_for(path, 3610)
    given_up = plan_all(source)

    assert [one.sealed for one in first.position] == [False]
    assert whole.records == len(NUMBERS)
    assert [one.sealed for one in given_up.position] == [True]


def test_a_file_of_another_format_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not at all what was declared, by no means")
    for kind in (ParquetSource, AvroSource):
        with pytest.raises(ConfigurationError, match=r"notes of .* is not a whole"):
            plan_all(kind(str(tmp_path), bounded=False))


def numbered_lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


def head_of(source: FilesSource, name: str) -> list[str]:
    return texts_of(source, source.heads([name]))


def test_a_file_of_which_the_cap_left_lines_waits_and_half_a_line_does_not(tmp_path: Path) -> None:
    source = FilesSource(str(a_folder(tmp_path, a="1\n2\n3", b="1\n2\n", c="")), bounded=False)

    barriers: list[Barrier] = []
    for most in (1, 1, 1, None):
        position = barriers[-1].position if barriers else ()
        barriers.append(source.plan(position, max_records=most, parallelism=1))

    assert [barrier.waiting for barrier in barriers] == [("a", "b"), ("a", "b"), ("b",), ()]


@pytest.mark.parametrize("is_packed", [False, True])
def test_the_head_of_a_file_is_its_first_records_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    monkeypatch.setattr(files_text, "HEAD_RECORDS", 3)
    name = "a.gz" if is_packed else "a"
    text = numbered_lines(10).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if is_packed else text)

    assert head_of(FilesSource(str(tmp_path)), name) == ["line 0", "line 1", "line 2"]


def test_a_head_of_long_lines_is_what_is_whole_of_its_first_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_text, "FIRST_BYTES", 16)
    a_folder(tmp_path, a=numbered_lines(10), b="x" * 100, c="no newline")
    source = FilesSource(str(tmp_path))

    assert head_of(source, "a") == ["line 0", "line 1"]
    assert source.heads(["b", "gone"]) == ()
    assert head_of(source, "c") == ["no newline"]
    assert FilesSource(str(tmp_path), bounded=False).heads(["c"]) == ()


def test_the_head_of_a_parquet_file_is_its_first_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(5_000)}), tmp_path / "a", row_group_size=10)
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "b")
    (tmp_path / "c").write_bytes(b"PAR1 half")
    source = ParquetSource(str(tmp_path), bounded=False)

    [piece] = source.heads(["a", "b", "c"])

    assert (piece.partition, piece.start, piece.end) == ("a", 0, files_source.HEAD_RECORDS)
    assert sum(batch.num_rows for batch in source.read(piece)) == files_source.HEAD_RECORDS


def a_source(root: Path | str) -> FilesSource:
    return FilesSource(str(root), bounded=False, ordered=True)


def write(folder: Path, number: int, text: str) -> None:
    (folder / f"log-{number:06d}").write_text(text)


def names(position: SourcePosition) -> list[int]:
    return [int(one.partition.rpartition("-")[2]) for one in position]


def test_the_position_forgets_what_is_read(tmp_path: Path) -> None:
    for number in range(100):
        write(tmp_path, number, "one\n")
    source = a_source(tmp_path)

    first = plan_all(source)
    second = plan_all(source, first.position)
    for number in range(100, 103):
        write(tmp_path, number, "two\n")
    third = plan_all(source, second.position)

    assert first.records == 100
    assert [one.sealed for one in first.position] == [True] * 99 + [False]
    assert names(second.position) == list(range(83, 100))
    assert third.records == 3
    assert names(third.position) == list(range(84, 103))
    assert names(plan_all(source, third.position).position) == list(range(86, 103))


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
    first = plan_all(source)
    write(tmp_path, 2, "three\nfour")
    second = plan_all(source, first.position)

    assert texts_of(source, first.slices) == ["one"]
    assert texts_of(source, second.slices) == ["two", "three"]
    assert [one.sealed for one in second.position] == [True, False]


def test_a_file_that_came_late_by_a_few_names_is_read_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (*range(30), 31, 32):
        write(tmp_path, number, "one\n")
    source = a_source(tmp_path)
    position = plan_all(source).position
    position = plan_all(source, position).position
    write(tmp_path, 30, "late\n")

    with caplog.at_level(logging.WARNING):
        barrier = plan_all(source, position)

    assert texts_of(source, barrier.slices) == ["late"]
    assert ["file came out of order" in record.getMessage() for record in caplog.records] == [True]


def test_a_file_that_grew_after_the_next_one_appeared_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 1, "one\n")
    write(tmp_path, 2, "two\n")
    source = a_source(tmp_path)
    position = plan_all(source).position
    write(tmp_path, 1, "one\nlate\n")

    with caplog.at_level(logging.WARNING):
        plan_all(source, position)

    assert "grew after it was read to its end" in caplog.text


def test_files_that_vanished_do_not_hold_the_floor(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, number, "one\n" * 3)
    source = a_source(tmp_path)
    position = source.plan((), max_records=2, parallelism=1).position
    for number in range(2):
        (tmp_path / f"log-{number:06d}").unlink()

    with pytest.raises(ConfigurationError, match=r"log-000000 of .* is gone"):
        plan_all(source, position)
    after = plan_all(replace(source, skips_lost=True), position)

    assert [(one.sealed, one.offset) for one in after.position] == [(True, 8), (False, 12)]


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
    position = plan_all(source).position
    folder.rename(tmp_path / "elsewhere")

    with pytest.raises(ConfigurationError, match="no file and no folder"):
        plan_all(source, position)
