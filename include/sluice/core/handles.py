"""References to immutable files of rows: an ack names them, and a checkpoint keeps them.

A handle never changes and never points at a mutable object; a file that no handle of a retained
checkpoint names is garbage.  Keys are relative to the root, so a copy of it can be read.
``damaged_files`` compares what handles record with what is in the bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import require

MIN_HASH = -(2**63)
MAX_HASH = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHandle:
    """One immutable segment: of a stream, of keyed state, or of a side output.

    ``checksum`` is the hex blake2b-128 of the bytes; a reader verifies it.  ``inline`` holds the
    bytes themselves when they are small (Flink's ``state.storage.fs.memory-threshold``); then
    ``key`` is empty.  ``root`` names another root when the file is not in the job's own: that of a
    checkpoint the job was restored from.
    """

    key: str
    size_bytes: int
    rows: int
    checksum: str
    inline: bytes | None = None
    root: str = ""

    def __post_init__(self) -> None:
        is_file = self.inline is None
        require(bool(self.key) is is_file, "a segment is a file or inline bytes")
        require(self.size_bytes >= 0, "a segment has 0 bytes or more")
        require(self.rows >= 0, "a segment has 0 rows or more")
        require(self.checksum.isalnum(), "a checksum is letters and digits")  # It names a file.


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHandle:
    """A segment of keyed state, and the part of the hash space in which it is valid.

    Rows are sorted by the signed 64-bit hash of the key; ``first_hash`` to ``last_hash`` (both
    inclusive) slices them after a rescale.  ``table`` names the part of the stage's state, and
    ``run`` numbers its sorted sequences, of which each segment is a piece: the larger is the newer.
    ``min_time_ms`` is the earliest event time that any live row waits for, so that the file need
    not be opened at a watermark before it; ``last_write_ms`` is the newest write in it, after whose
    TTL it is dead.
    """

    segment: SegmentHandle
    first_hash: int = MIN_HASH
    last_hash: int = MAX_HASH
    table: str = ""
    run: int = 0
    min_time_ms: int | None = None
    last_write_ms: int | None = None

    def __post_init__(self) -> None:
        require(
            MIN_HASH <= self.first_hash <= self.last_hash <= MAX_HASH,
            "the hashes of a piece of state are a range of 64 bits",
        )


def damaged_files(
    sizes: Mapping[SegmentHandle, int | None], checksums: Mapping[SegmentHandle, str] | None
) -> list[str]:
    """A sentence for each file that is missing, or of another size or checksum than recorded.

    *checksums* None: no file was read.  A file of another size is named once, for its size.
    """
    resized = {h: size for h, size in sizes.items() if size != h.size_bytes}
    return [
        *(
            f"{handle.key} {'is missing' if size is None else f'has {size} bytes'}, "
            f"expected {handle.size_bytes} bytes"
            for handle, size in resized.items()
        ),
        *(
            f"{handle.key or 'inline state'} is damaged: checksum {handle.checksum} was recorded, "
            f"its {handle.size_bytes} bytes have {found}"
            for handle, found in (checksums or {}).items()
            if found != handle.checksum and handle not in resized
        ),
    ]
