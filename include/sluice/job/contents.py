"""What a checkpoint's files hold, byte by byte: read from where they lie, past every cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluice.core.completed import CheckpointMetadata
from sluice.core.handles import SegmentHandle
from sluice.errors import CorruptSegment
from sluice.job.job import Job
from sluice.protocol.checksums import checksum, checksum_of
from sluice.storage.parallel import in_parallel

PARALLEL_READS = 8  # Each holds a segment in memory, as those who copy one do.


def checksums_of(job: Job, handles: Iterable[SegmentHandle]) -> dict[SegmentHandle, str]:
    """Of each file that is there, what its bytes amount to now.  Reads every one of them."""
    distinct = [*dict.fromkeys(handles)]

    def read(handle: SegmentHandle) -> str | None:
        raw = job.store_at(handle.root).get(handle.key) if handle.key else handle.inline
        return None if raw is None else checksum(raw)

    found = zip(distinct, in_parallel(read, distinct, PARALLEL_READS), strict=True)
    return {handle: digest for handle, digest in found if digest is not None}


def segments_of(metadata: CheckpointMetadata) -> tuple[SegmentHandle, ...]:
    """Every file that a restore reads, and what is kept inline."""
    inline = (
        handle.segment
        for stage in metadata.stages
        for subtask in stage.subtasks
        for handle in subtask.state
        if handle.segment.inline is not None
    )
    return (*metadata.files, *inline)


def verified(handle: SegmentHandle, raw: bytes, what: str) -> bytes:
    """*raw*, which was read at *handle*.  Raises as ``verify``."""
    verify(handle, [raw], what)
    return raw


def verify(handle: SegmentHandle, pieces: Iterable[bytes], what: str) -> None:
    """Compare *pieces*, one after the other, with what was written at *handle*.

    Raises:
        CorruptSegment: these are other bytes than were written; *what* says what cannot be done.
    """
    size_bytes = 0

    def counted() -> Iterator[bytes]:
        nonlocal size_bytes
        for piece in pieces:
            size_bytes += len(piece)
            yield piece

    actual = checksum_of(counted())
    if actual != handle.checksum:
        raise CorruptSegment(
            f"{handle.key} is damaged: checksum {handle.checksum} was recorded, its {size_bytes} "
            f"bytes have {actual}; {what}"
        )
