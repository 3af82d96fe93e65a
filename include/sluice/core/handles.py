"""References to immutable files of rows: what an ack names and a checkpoint keeps.

A handle never changes and never points at a mutable object; a file that no handle of a retained
checkpoint names is garbage.  Keys are relative to the root, so a root can be copied elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.core.invariants import require

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
    ``min_time_ms`` is the earliest event time any live row waits for, so that a watermark before it
    need not open the file; ``last_write_ms`` the newest write in it, after whose TTL it is dead.
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
