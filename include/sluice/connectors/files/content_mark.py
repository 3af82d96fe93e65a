"""``ContentMark``: the identity of a file's content, stored in ``PartitionOffset.version``.

A mark has the number of bytes, a checksum of the last of them, and the version of the content in
the store's listing.  While the listing shows the same version, nothing is read.  When it shows
another one, a ranged read decides: a file that was touched, copied or appended to has the same
bytes before the mark's end.  A change further ahead that keeps the size is not found; the ends of
gzip, Parquet and Avro files depend on all bytes before them, those of text files do not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from sluice.storage.object_store import Listed

# One small request to a bucket; a disk reads at least as much.
TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ContentMark:
    """The first ``end`` bytes of a file; ``listed_as`` is a digest of ``Listed.version``."""

    end: int
    checksum: str
    listed_as: str

    @classmethod
    def parse(cls, text: str) -> ContentMark:
        end, checksum, listed_as = text.split("-")
        return cls(int(end), checksum, listed_as)

    def __str__(self) -> str:
        return f"{self.end}-{self.checksum}-{self.listed_as}"


def mark_of(end: int, tail: bytes, file: Listed) -> ContentMark:
    """The mark of a file up to *end*; *tail* are the ``tail_bytes(end)`` bytes before that."""
    assert len(tail) == tail_bytes(end)
    return ContentMark(end, checksum_of(tail), listing_of(file))


def tail_bytes(end: int) -> int:
    return min(end, TAIL_BYTES)


def checksum_of(tail: bytes) -> str:
    return hashlib.blake2b(tail, digest_size=8).hexdigest()


def is_listed_as(version: str, file: Listed) -> bool:
    """Whether a listing shows *file* as it did when the mark *version* was made."""
    return version.rpartition("-")[2] == listing_of(file)


def listing_of(file: Listed) -> str:
    return hashlib.blake2b(file.version.encode(), digest_size=6).hexdigest()
