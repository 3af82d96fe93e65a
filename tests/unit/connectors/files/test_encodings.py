"""The bytes of a text file decide what is read, and its lines are whole when they appear."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from sluice.connectors.files.text import FilesSource
from sluice.core.plan import PartitionOffset
from sluice.declaration.places import TextDecoding
from sluice.errors import ConfigurationError
from tests.contract.source_rules import check_replay, places, plan_all, rows_of

LINES = [f"line {number}" for number in range(100)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()
COMPRESSED = {
    "gzip": gzip.compress(TEXT, mtime=0),
    "zstd": zstandard.compress(TEXT),
    "bzip2": bz2.compress(TEXT),
    "xz": lzma.compress(TEXT),
}
CJK = "上海\t一二三四五六七八九十\t上上\n" * 40
WIDE = ("utf-16le", "utf-16be", "utf-32le", "utf-32be")


def frames(*texts: bytes) -> bytes:
    return b"".join(zstandard.compress(text) for text in texts)


def zipped() -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr("a.log", TEXT)
    return body.getvalue()


def tarred() -> bytes:
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w") as archive:
        member = tarfile.TarInfo("a.log")
        member.size = len(TEXT)
        archive.addfile(member, io.BytesIO(TEXT))
    return body.getvalue()


def parquet() -> bytes:
    body = io.BytesIO()
    pq.write_table(pa.table({"n": [1, 2]}), body)
    return body.getvalue()


def sources(folder: Path, *, bounded: bool) -> list[FilesSource]:
    """Lines of text, JSON and CSV."""
    schema = {"json": "n bigint", "csv": "a string, b string"}
    decodings = [
        TextDecoding(format=kind, schema=schema[kind], options={}) for kind in ("json", "csv")
    ]
    return [
        FilesSource(str(folder), bounded=bounded),
        *(
            FilesSource(str(folder), bounded=bounded, format=how.format, text_decoding=how)
            for how in decodings
        ),
    ]


@pytest.mark.parametrize("name", ["a.gz", "a.zst", "a.zstd", "a.bz2", "a.xz", "A.GZ", "A.Bz2"])
@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_name_says_that_text_is_compressed_and_its_bytes_how(
    tmp_path: Path, name: str, kind: str
) -> None:
    (tmp_path / name).write_bytes(COMPRESSED[kind])

    source = FilesSource(str(tmp_path))

    assert [row["line"] for row in rows_of(source, plan_all(source))] == LINES


@pytest.mark.parametrize("cuts", [[], [(1, 1)] * 9, [(2, 2)] * 3, [(4, 3)]])
@pytest.mark.parametrize(("kind", "end"), [("bzip2", b""), ("xz", bytes(4))])
def test_every_cut_of_several_streams_gives_the_same_lines(
    tmp_path: Path, kind: str, end: bytes, cuts: list[tuple[int | None, int]]
) -> None:
    compress = bz2.compress if kind == "bzip2" else lzma.compress
    texts = (b"1\n2", b"2\n", b"", b"3\nlast")
    (tmp_path / f"a.{kind[-2:] if kind == 'xz' else 'bz2'}").write_bytes(
        b"".join(compress(text) + end for text in texts)
    )
    name = next(tmp_path.iterdir()).name
    expected = [
        {"line": line, "file": name, "line_number": number}
        for number, line in enumerate(["1", "22", "3", "last"], 1)
    ]

    check_replay(FilesSource(str(tmp_path)), cuts, expected, files=1)


@pytest.mark.parametrize("cuts", [[], [(1, 1)] * 9, [(2, 2)] * 3, [(4, 3)]])
def test_every_cut_of_several_frames_gives_the_same_lines(
    tmp_path: Path, cuts: list[tuple[int | None, int]]
) -> None:
    (tmp_path / "a.zst").write_bytes(frames(b"1\n2", b"2\n", b"", b"3\nlast"))
    (tmp_path / "b.zstd").write_bytes(frames(b""))
    (tmp_path / "c.zst").write_bytes(b"")
    expected = [
        {"line": line, "file": "a.zst", "line_number": number}
        for number, line in enumerate(["1", "22", "3", "last"], 1)
    ]

    check_replay(FilesSource(str(tmp_path)), cuts, expected, files=3)


@pytest.mark.parametrize(
    ("name", "body", "sentence"),
    [
        ("log.gz", gzip.compress(b"one\n" * 99, mtime=0)[:-9], "ends in the middle of its text"),
        ("log.gz", b"one\n", "is not a gzip file"),
        ("log.gz", gzip.compress(b"one\n", mtime=0) + b"two\n", "is not a gzip file"),
        ("log.zst", frames(b"one\n" * 99)[:-3], "ends in the middle of its text"),
        ("log.zst", frames(b"one\n") + frames(b"two\n")[:3], "ends in the middle of its text"),
        ("log.zst", b"one\n" * 9, "is not a zstd file"),
        ("log.zst", frames(b"one\n") + b"two\n" * 9, "is not a zstd file"),
        ("a.bz2", COMPRESSED["bzip2"][:-9], "ends in the middle of its text"),
        ("a.bz2", COMPRESSED["bzip2"] + b"rest", "is not a bzip2 file"),
        ("a.bz2", TEXT, "is not a bzip2 file"),
        ("a.xz", COMPRESSED["xz"][:-9], "ends in the middle of its text"),
        ("a.xz", COMPRESSED["xz"] + b"the rest of it", "is not a xz file"),
        ("a.xz", TEXT, "is not a xz file"),
        ("a.gz", zipped(), "is a zip archive"),
        ("a.gz", gzip.compress(tarred()), "is a tar archive"),
        ("a.gz", gzip.compress(COMPRESSED["gzip"]), "is compressed with gzip"),
        ("a.zst", zstandard.compress("ö\n".encode("utf-16")), "is text in UTF-16LE"),
    ],
)
def test_what_a_compressed_name_has_beside_text_is_refused(
    tmp_path: Path, name: str, body: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(body)

    with pytest.raises(
        ConfigurationError, match=f"{re.escape(name)} of file://{tmp_path} {sentence}"
    ):
        plan_all(FilesSource(str(tmp_path)))


NO_TEXT = [
    *((f"is compressed with {kind}", body) for kind, body in COMPRESSED.items()),
    ("is compressed with lz4", b"\x04\x22\x4d\x18" + TEXT),
    ("is compressed with snappy", b"\xff\x06\0\0sNaPpY" + TEXT),
    ("is compressed with lzma", lzma.compress(TEXT, lzma.FORMAT_ALONE)),
    ("is a zip archive", zipped()),
    ("is a tar archive", tarred()),
    ("is a Parquet file", parquet()),
    *(
        (f"is text in {kind.upper()}", mark + text.encode(kind))
        for kind in WIDE
        for text in (TEXT.decode(), "a", "ü,ö\nä\n", "привет мир\n" * 9, CJK)
        for mark in (b"", "\ufeff".encode(kind))
    ),
]


@pytest.mark.parametrize(("sentence", "body"), NO_TEXT)
@pytest.mark.parametrize("bounded", [True, False])
def test_no_line_is_made_of_bytes_that_are_no_text(
    tmp_path: Path, sentence: str, body: bytes, bounded: bool
) -> None:
    (tmp_path / "a.log").write_bytes(TEXT)
    (tmp_path / "b.log").write_bytes(body)
    if not bounded and b"\n" not in body:
        return  # No line of it is complete yet.

    for source in sources(tmp_path, bounded=bounded):
        with pytest.raises(ConfigurationError, match=f"b.log of file://{tmp_path} {sentence}"):
            plan_all(source)


@pytest.mark.parametrize("kind", WIDE)
@pytest.mark.parametrize("before", [b"", b"one\n", TEXT])
def test_wide_text_is_refused_where_it_begins_in_a_file_that_grows(
    tmp_path: Path, kind: str, before: bytes
) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(before)
    source = FilesSource(str(tmp_path), bounded=False)
    read = plan_all(source)
    path.write_bytes(before + TEXT.decode().encode(kind))

    with pytest.raises(ConfigurationError, match=r"a\.log of .* is text in UTF-"):
        plan_all(source, read.position)


def test_a_file_that_waits_is_looked_at_for_event_times_as_it_would_be_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.log").write_bytes(codecs.BOM_UTF16_LE + "one\n".encode("utf-16-le"))

    with pytest.raises(ConfigurationError, match="is text in UTF-16LE"):
        FilesSource(str(tmp_path)).heads(["a.log"])


def test_a_table_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(COMPRESSED["gzip"])

    with pytest.raises(ConfigurationError, match=r"compressed with gzip.* ends in \.gz"):
        [*FilesSource(str(tmp_path)).whole(1_000)]


@pytest.mark.parametrize(
    "text",
    [
        b"{\0}",
        b"a\0b",
        b"one\n" + bytes(4096) + b"two\n",
        b"a\0b\nc\n",
        b"find\0prints\0names\0so\0\n",
        b"ab\0\ncd\n",
        b"a single \0 byte in a line\n" * 50,
        b"BZh1 is how this text begins\n",
        b"PAR1, Obj and ORC are words\n",
        b"\xfc\xe4\xf6\n",
        b"\xef\xbb\xbfone\n",
        "上海 一二三\n".encode(),
    ],
)
def test_nul_bytes_and_words_like_magic_numbers_are_text(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.log").write_bytes(text)
    source = FilesSource(str(tmp_path))

    lines = [row["line"] for row in rows_of(source, plan_all(source))]

    clean = text.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n")
    assert lines == clean.decode("utf-8", "backslashreplace").split("\n")


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
