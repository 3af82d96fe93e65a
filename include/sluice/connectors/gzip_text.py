"""The bytes of a gzip-compressed file between two offsets of the text.

A range is read by decompressing from the start: gzip has no other way.  Several members after one
another, as ``cat a.gz b.gz`` makes, are one text; so are zeros behind the last one.  Memory is
bounded by a block, however well the text is compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from sluice.connectors import line_scan
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.storage.object_store import ObjectStore

GZIP = 31  # zlib's number for its largest window and a gzip header.


def read_text(
    store: ObjectStore, key: str, what: str, start: int, end: int | None
) -> Iterator[bytes]:
    """Yield bytes *start* to *end*, or to the last, of the text; *what* names the file in errors.

    Raises:
        ConfigurationError: the file is not a whole gzip file, or its text is shorter.
        StoreUnavailable: the file vanished.
    """
    at = 0
    for text in _decompressed(_compressed(store, key, what), what):
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


def _decompressed(blocks: Iterable[bytes], what: str) -> Iterator[bytes]:
    member = zlib.decompressobj(GZIP)
    is_whole = True  # Without a byte there is a text, an empty one.
    try:
        for block in blocks:
            rest = block
            while rest:
                if member.eof:
                    rest = rest.lstrip(b"\0")
                    if not rest:
                        break
                    member = zlib.decompressobj(GZIP)
                yield member.decompress(rest, line_scan.BLOCK_BYTES)
                rest = member.unused_data if member.eof else member.unconsumed_tail
            is_whole = member.eof
        yield member.flush()
    except zlib.error as error:
        raise ConfigurationError(
            f"{what} is not a gzip file ({error}); correct it, or its name"
        ) from error
    if not is_whole:
        raise ConfigurationError(
            f"{what} ends in the middle of its text; write the file elsewhere and move it here "
            "when it is whole"
        )
