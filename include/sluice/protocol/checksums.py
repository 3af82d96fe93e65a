"""The checksum by which a file's bytes are known: of an ack, of a handle, of what was staged."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BYTES = 16  # blake2b-128: collision-free in practice, 32 characters in an ack.


class _Writable(Protocol):
    def write(self, body: bytes, /) -> int: ...


class Written(io.RawIOBase):
    """A stream that knows the checksum and the size of all that is written through it."""

    def __init__(self, stream: _Writable) -> None:
        super().__init__()
        self._stream = stream
        self._hash = hashlib.blake2b(digest_size=_BYTES)
        self.size_bytes = 0

    @property
    def checksum(self) -> str:
        """As ``checksum`` of all bytes so far."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, body: Buffer, /) -> int:
        view = memoryview(body).cast("B")
        self._stream.write(bytes(view))
        self._hash.update(view)
        self.size_bytes += len(view)
        return len(view)


def checksum_of(pieces: Iterable[bytes]) -> str:
    """The ``checksum`` of *pieces*, one after the other."""
    found = hashlib.blake2b(digest_size=_BYTES)
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def checksum(body: bytes | memoryview) -> str:
    """Hex blake2b-128 of the bytes, as a ``SegmentHandle`` records it."""
    return hashlib.blake2b(body, digest_size=_BYTES).hexdigest()
