"""The checksum by which a file's bytes are known: of an ack, of a handle, of what was staged."""

from __future__ import annotations

import hashlib

_BYTES = 16  # blake2b-128: collision-free in practice, 32 characters in an ack.


def checksum(body: bytes | memoryview) -> str:
    """Hex blake2b-128 of the bytes, as a ``SegmentHandle`` records it."""
    return hashlib.blake2b(body, digest_size=_BYTES).hexdigest()
