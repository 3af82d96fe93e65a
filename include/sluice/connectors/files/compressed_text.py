"""The bytes of a gzip or zstd file between two offsets of its text.

A range is read by decompressing from the start, as neither format can be read otherwise.  Several
members or frames, as ``cat a.gz b.gz`` makes, are one text; zeros behind the last member of a gzip
file are ignored.  Memory is bounded by a block (and zstd's own window of at most 128 MiB), however
well the text is compressed.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from sluice.connectors.files import line_scan
from sluice.connectors.files.half_written import NotWholeError
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.storage.object_store import ObjectStore

GZIP_SUFFIXES = (".gz",)
ZSTD_SUFFIXES = (".zst", ".zstd")
GZIP_MAGIC = b"\x1f\x8b"
GZIP = 31  # zlib's code for its largest window and a gzip header.


def is_compressed(name: str) -> bool:
    return name.endswith(GZIP_SUFFIXES + ZSTD_SUFFIXES)


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
    blocks = _compressed(store, key, what)
    texts = _unzstd(blocks, what) if key.endswith(ZSTD_SUFFIXES) else _gunzip(blocks, what)
    for text in texts:
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
        block = store.get_range(key, at, at + line_scan.BLOCK_BYTES)
        if block is None:
            raise StoreUnavailable(f"{what} vanished while it was read")
        if not block:
            return
        yield block
        at += len(block)


def _gunzip(blocks: Iterable[bytes], what: str) -> Iterator[bytes]:
    """Decompress with ISA-L, in less than half of the time that zlib takes."""
    from isal import igzip_lib, isal_zlib

    member = None
    is_whole = True  # A file without bytes is an empty text.
    try:
        for block in blocks:
            rest = block
            while rest:
                if member is None or member.eof:
                    rest = rest if member is None else rest.lstrip(b"\0")
                    if not rest:
                        break
                    if not (rest.startswith(GZIP_MAGIC) or rest == GZIP_MAGIC[:1]):
                        raise _not_gzip(what, "incorrect header")
                    member = isal_zlib.decompressobj(GZIP)
                yield member.decompress(rest, line_scan.BLOCK_BYTES)
                rest = member.unused_data if member.eof else member.unconsumed_tail
            is_whole = member is None or member.eof
    except igzip_lib.IsalError as error:  # type: ignore[misc] # Its stub calls it an instance.
        raise _not_gzip(what, str(error)) from error
    if not is_whole:
        raise _not_whole(what)


def _not_gzip(what: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"{what} is not a gzip file ({why}); correct it, or its name")


def _unzstd(blocks: Iterator[bytes], what: str) -> Iterator[bytes]:
    """Decompress with Arrow, which, unlike ``zstandard``, reports a last frame that is cut off."""
    import pyarrow as pa

    stream = pa.CompressedInputStream(pa.PythonFile(_Blocks(blocks), "r"), "zstd")
    try:
        while text := stream.read(line_scan.BLOCK_BYTES):
            yield text
    except OSError as error:
        if "Truncated" in str(error):
            raise _not_whole(what) from error
        raise ConfigurationError(
            f"{what} is not a zstd file ({error}); correct it, or its name"
        ) from error


def _not_whole(what: str) -> NotWholeError:
    return NotWholeError(
        f"{what} ends in the middle of its text; write the file elsewhere and move it here "
        "when it is whole"
    )


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
