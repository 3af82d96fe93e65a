"""The kinds of bytes of a text file: UTF-8, compressed text, or something that is no text.

A name says whether a file is compressed, since a compressed one does not grow, and its last line
and its rotation are judged by that; its bytes say how.  Where the two disagree, and where the bytes
are those of wide characters, of an archive or of a table, the file is refused by its name: no line
is made of them.  Magic numbers are those of the formats' specifications.  Wide text is known by its
byte order mark or, without one, by its NUL bytes, also where it begins within a file, as an editor
or a shell appends it.  NUL bytes in UTF-8, as a crash leaves them in a log, are read as they are.

A range of compressed text is read by decompressing from the start.  Several members, frames or
streams, as ``cat a.gz b.gz`` makes, are one text; zeros behind the last of a gzip or xz file are
ignored.  Memory is bounded by a block (and a window of at most 128 MiB), however well the text is
compressed.
"""

from __future__ import annotations

import io
import re
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from itertools import chain, product
from typing import Literal

from sluice.connectors.files.source import NotWholeError
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.store.object_store import ObjectStore

# The byte order mark that Windows editors write; Hadoop's and Spark's readers drop it, too.
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# One ranged read: on S3 the transfer takes as long as the latency, and the coordinator's memory is
# shared with other tasks.
BLOCK_BYTES = 1024 * 1024

# The compressions that are read, with the ends of names that say them.
SUFFIXES = {
    "gzip": (".gz",),
    "zstd": (".zst", ".zstd"),
    "bzip2": (".bz2",),
    "xz": (".xz",),
}
GZIP_MAGIC = b"\x1f\x8b"
MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    "bzip2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
}
# What is known, and not read as text: what it is, and what to do.
_EXTRACT = "compress its text with gzip, zstd, bzip2 or xz"
_FOREIGN = (
    (re.compile(rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18"), "compressed with lz4", _EXTRACT),
    (re.compile(rb"\xff\x06\0\0sNaPpY"), "compressed with snappy", _EXTRACT),
    (re.compile(rb"\x5d\0\0"), "compressed with lzma", _EXTRACT),
    (re.compile(rb"LZIP\x01"), "compressed with lzip", _EXTRACT),
    (re.compile(rb"\x89LZO\0"), "compressed with lzop", _EXTRACT),
    (re.compile(rb"\x1f[\x9d\xa0]"), "compressed with compress", _EXTRACT),
    (re.compile(rb"PK(?:\x03\x04|\x05\x06|\x07\x08)"), "a zip archive", "extract it"),
    (re.compile(rb"7z\xbc\xaf\x27\x1c"), "a 7z archive", "extract it"),
    (re.compile(rb"Rar!\x1a\x07"), "a rar archive", "extract it"),
    (re.compile(rb"(?s:.{257})ustar[\0 ]"), "a tar archive", "extract it"),
    (re.compile(rb"PAR1\x15|PARE"), "a Parquet file", "declare format='parquet'"),
    (re.compile(rb"Obj\x01"), "an Avro file", "declare format='avro'"),
    (re.compile(rb"ORC[\0-\x08\x0e-\x1f\x80-\xff]"), "an ORC file", "write its rows as Parquet"),
    (re.compile(rb"ARROW1\0"), "an Arrow file", "write its rows as Parquet"),
)

_WIDE_MARKS = (  # The marks of UTF-32 first: one of them begins with one of UTF-16.
    (b"\xff\xfe\0\0", "UTF-32LE"),
    (b"\0\0\xfe\xff", "UTF-32BE"),
    (b"\xff\xfe", "UTF-16LE"),
    (b"\xfe\xff", "UTF-16BE"),
)
_WIDE = {"UTF-32LE": 4, "UTF-32BE": 4, "UTF-16LE": 2, "UTF-16BE": 2}  # Bytes of a character.
# Enough for some lines of text; a file's mark has as many.
SAMPLE_BYTES = 4096
# Of wide text at least so many characters are ASCII: its line ends, blanks, digits and commas.  A
# stray NUL in UTF-8 looks like one of thousands.
ASCII_SHARE = 1 / 64
ASCII_SHARE_OF_ONE_LINE = 1 / 2
MOST_SCRIPTS = 5  # Pages of 256 characters that a text has which looks like UTF-8, too: Cyrillic.

GZIP = 31  # zlib's code for its largest window and a gzip header.
MAX_WINDOW_BYTES = 128 * 1024 * 1024  # As zstd's; xz's strongest level needs 65 MiB.


def compression_said_by(name: str) -> str | None:
    """The compression that the end of a file's name says, in any case."""
    lower = name.lower()
    return next((kind for kind, ends in SUFFIXES.items() if lower.endswith(ends)), None)


def is_compressed(name: str) -> bool:
    return compression_said_by(name) is not None


def checked_text(blocks: Iterable[bytes], start: int, what: str) -> Iterator[bytes]:
    """The *blocks* of a file's text from byte *start* on, once they were looked at.

    Raises:
        ConfigurationError: they are no text in UTF-8; *what* names the file.
    """
    at = start
    head = b""  # The text's first bytes, as far as they came in earlier blocks.
    for block in blocks:
        if at < SAMPLE_BYTES and at == len(head):
            head += block[: SAMPLE_BYTES - at]
            _check_head(head, what)
        nul = block.find(b"\0")
        if nul >= 0:
            line = block.rfind(b"\n", 0, nul) + 1
            _check_not_wide(block[line : line + SAMPLE_BYTES], what)
        at += len(block)
        yield block


def _check_head(head: bytes, what: str) -> None:
    for kind, magic in MAGIC.items():
        if magic.match(head):
            raise ConfigurationError(
                f"{what} is compressed with {kind}, which its name does not say; rename it so that "
                f"it ends in {SUFFIXES[kind][0]}, once"
            )
    _check_not_foreign(head, what)
    for mark, encoding in _WIDE_MARKS:
        if head.startswith(mark):
            raise _is_wide(what, encoding)


def _check_not_foreign(head: bytes, what: str) -> None:
    for magic, kind, remedy in _FOREIGN:
        if magic.match(head):
            raise ConfigurationError(f"{what} is {kind}, which is not read as text; {remedy}")


def _check_not_wide(sample: bytes, what: str) -> None:
    # A line end's byte in another character, as in U+4E0A, is where no character begins.
    for shift, (encoding, width) in product(range(4), _WIDE.items()):
        is_shifted = 0 < shift < width and b"\n" in sample
        if (shift == 0 or is_shifted) and _is_text_in(sample[shift:], encoding, width):
            raise _is_wide(what, encoding)


def _is_text_in(sample: bytes, encoding: str, width: int) -> bool:
    """Whether *sample*, which has a NUL byte, is text of characters of *width* bytes."""
    try:
        text = sample[: len(sample) // width * width].decode(encoding)
    except UnicodeDecodeError as error:
        # The second half of a pair of surrogates may be missing.
        if error.reason != "unexpected end of data":
            return False
        text = sample[: error.start].decode(encoding)
    if "\0" in text:
        return False
    found, lines = sum(map(str.isascii, text)), sample.count(b"\n")
    if lines == 0:
        return len(sample) % width == 0 and 0 < found >= ASCII_SHARE_OF_ONE_LINE * len(text)
    # Bytes that are UTF-8 may be that, with NUL bytes: letters in pairs are of many scripts.
    is_one_or_other = _is_utf8(sample)
    if is_one_or_other and len({ord(letter) >> 8 for letter in text}) > MOST_SCRIPTS:
        return False
    needed = lines // 2 + 1 if is_one_or_other else 1
    return text.count("\n") >= needed and found >= ASCII_SHARE * len(text)


def _is_utf8(sample: bytes) -> bool:
    """Whether *sample*, whose last character may be cut, is UTF-8 but for its NUL bytes."""
    try:
        getincrementaldecoder("utf-8")().decode(sample.replace(b"\0", b""))
    except UnicodeDecodeError:
        return False
    return True


def _is_wide(what: str, encoding: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} is text in {encoding}, and lines are read in UTF-8; convert it to UTF-8 "
        f"(iconv -f {encoding} -t UTF-8)"
    )


def read_text(
    store: ObjectStore, key: str, what: str, start: int, end: int | None
) -> Iterator[bytes]:
    """Yield bytes *start* to *end*, or to the last, of the text; *what* names the file in errors.

    Raises:
        NotWholeError: the file ends in the middle of its text.
        ConfigurationError: the file is not compressed as its name says, or its text is shorter.
        StoreUnavailable: the file vanished.
    """
    at = 0
    for text in _decompressed(_compressed(store, key, what), key, what):
        begin, at = at, at + len(text)
        wanted = text[max(start - begin, 0) : None if end is None else max(end - begin, 0)]
        if wanted:
            yield wanted
        if end is not None and at >= end:
            return
    needed = start if end is None else end
    if at < needed:
        raise ConfigurationError(
            f"{what} had at least {needed} bytes of text and has {at}; restore it, for a "
            "compressed source file may not change"
        )


def _compressed(store: ObjectStore, key: str, what: str) -> Iterator[bytes]:
    at = 0
    while True:
        block = store.get_range(key, at, at + BLOCK_BYTES)
        if block is None:
            raise StoreUnavailable(f"{what} vanished while it was read")
        if not block:
            return
        yield block
        at += len(block)


def _decompressed(blocks: Iterator[bytes], key: str, what: str) -> Iterator[bytes]:
    """The text, by the compression that the first bytes show, or else by that of the name."""
    first = next(blocks, b"")
    if not first:
        return iter(())  # A file without bytes is an empty text.
    _check_not_foreign(first, what)
    by_bytes = (kind for kind, magic in MAGIC.items() if magic.match(first))
    kind = next(by_bytes, None) or compression_said_by(key)
    blocks = chain([first], blocks)
    match kind:
        case "zstd":
            return _unzstd(blocks, what)
        case "bzip2" | "xz":
            return _members(blocks, kind, what)
        case _:
            return _gunzip(blocks, what)


def _gunzip(blocks: Iterable[bytes], what: str) -> Iterator[bytes]:
    """Decompress with ISA-L, in less than half of the time that zlib takes."""
    from isal import igzip_lib, isal_zlib

    member = None
    is_whole = True
    try:
        for block in blocks:
            rest = block
            while rest:
                if member is None or member.eof:
                    rest = rest if member is None else rest.lstrip(b"\0")
                    if not rest:
                        break
                    if not (rest.startswith(GZIP_MAGIC) or rest == GZIP_MAGIC[:1]):
                        raise _not_compressed(what, "gzip", "incorrect header")
                    member = isal_zlib.decompressobj(GZIP)
                yield member.decompress(rest, BLOCK_BYTES)
                rest = member.unused_data if member.eof else member.unconsumed_tail
            is_whole = member is None or member.eof
    except igzip_lib.IsalError as error:  # type: ignore[misc] # Its stub calls it an instance.
        raise _not_compressed(what, "gzip", str(error)) from error
    if not is_whole:
        raise _not_whole(what)


def _members(blocks: Iterable[bytes], kind: Literal["bzip2", "xz"], what: str) -> Iterator[bytes]:
    """Decompress with the standard library, a stream after the other."""
    from bz2 import BZ2Decompressor
    from lzma import FORMAT_XZ, LZMADecompressor, LZMAError

    def new_member() -> BZ2Decompressor | LZMADecompressor:
        if kind == "bzip2":
            return BZ2Decompressor()
        return LZMADecompressor(FORMAT_XZ, memlimit=MAX_WINDOW_BYTES)

    member: BZ2Decompressor | LZMADecompressor | None = None
    try:
        for block in blocks:
            rest = block
            while True:
                if member is None or member.eof:
                    if member is not None and kind == "xz":
                        rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    member = new_member()
                yield member.decompress(rest, BLOCK_BYTES)
                rest = member.unused_data if member.eof else b""
                if not member.eof and member.needs_input:
                    break
    except (OSError, LZMAError) as error:
        raise _not_compressed(what, kind, str(error)) from error
    if member is not None and not member.eof:
        raise _not_whole(what)


def _not_compressed(what: str, kind: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"{what} is not a {kind} file ({why}); correct it, or its name")


def _unzstd(blocks: Iterator[bytes], what: str) -> Iterator[bytes]:
    """Decompress with Arrow, which, unlike ``zstandard``, reports a last frame that is cut off."""
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.PythonFile(_Blocks(blocks), "r"), "zstd")
    try:
        while text := stream.read(BLOCK_BYTES):
            yield text
    except OSError as error:
        if "Truncated" in str(error):
            raise _not_whole(what) from error
        raise _not_compressed(what, "zstd", str(error)) from error


class _Blocks(io.RawIOBase):
    """Blocks as a file that is read once, in order."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        super().__init__()
        self._blocks = blocks
        self._block = io.BytesIO()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        taken = self._block.read(size)
        if not taken:
            self._block = io.BytesIO(next(self._blocks, b""))
            taken = self._block.read(size)
        return taken


def _not_whole(what: str) -> NotWholeError:
    return NotWholeError(
        f"{what} ends in the middle of its text; write the file elsewhere and move it here "
        "when it is whole"
    )
