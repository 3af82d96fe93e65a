"""The retained checkpoint that a person names, ``latest`` or an id; of one that is gone, why.

The checkpoints that the journal's state still remembers to have ended, a line each.

What a checkpoint's files hold, byte by byte: read from where they lie, past every cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import JobStatus
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, CorruptSegment
from sluice.figures.measuring import of_completed, of_failed
from sluice.figures.record import CheckpointStats
from sluice.job.job import Job
from sluice.protocol.records import checksum, checksum_of
from sluice.store.object_store import in_parallel

LATEST = "latest"


def retained_checkpoint(job: Job, named: str) -> CheckpointId:
    """The id of the retained checkpoint that is *named* by its number, or as ``latest``.

    Raises:
        ConfigurationError: it is not retained; the message says what became of it.
    """
    state = job.state()
    retained = [done.checkpoint_id for done in state.completed]
    if named == LATEST and retained:
        return max(retained)
    checkpoint_id = None if named == LATEST else parsed_checkpoint_id(named)
    if checkpoint_id is None or checkpoint_id not in retained:
        raise ConfigurationError(why_not_retained(job, state, named))
    return checkpoint_id


def parsed_checkpoint_id(named: str) -> CheckpointId:
    """Raises ConfigurationError: *named* is no number."""
    if not (named.isascii() and named.isdecimal()):
        raise ConfigurationError(f"checkpoint {named!r} is no number; write {LATEST!r}, or an id")
    return CheckpointId(int(named))


def why_not_retained(job: Job, state: CoordinatorState, named: str) -> str:
    """What became of a checkpoint that cannot be looked at, or restored."""
    uid = job.pipeline.uid
    number = None if named == LATEST else int(named)
    failed = None if number is None else state.failed_checkpoint(number)
    if failed is not None:
        return str(failed)
    if number is not None and state.pending_checkpoint(number) is not None:
        return f"checkpoint {number} is pending; look again once it has completed"
    if state.completed:
        retained = ", ".join(str(done.checkpoint_id) for done in state.completed)
        return f"checkpoint {named} is not retained; retained are: {retained}"
    what = "no checkpoint" if number is None else f"no checkpoint {number}"
    if state.status is JobStatus.FINISHED:
        return (
            f"job {uid!r} has {what} any more: it is FINISHED, and a job that has read all of its "
            f"input discards its checkpoints; 'sluice run {uid} --epochs N' stops after N of them "
            "and keeps them"
        )
    if state.status.is_terminal:
        return (
            f"job {uid!r} has {what}: it is {state.status.value}, and its retention is "
            f"{state.configuration.retention.value}; Checkpointing("
            "externalized_checkpoint_retention=...) says what an ended job keeps"
        )
    return f"job {uid!r} has {what}: it has completed none in {job.store.root} yet"


def newest_ended(state: CoordinatorState, *, other_than: int | None = None) -> int | None:
    """The greatest id that was handed out and is not pending, perhaps that of a plan without a
    checkpoint; None before the first has ended.
    """
    still = {*(one.checkpoint_id for one in state.pending), other_than}
    ids = range(state.next_checkpoint_id - 1, 0, -1)
    return next((one for one in ids if one not in still), None)


def ended_checkpoints(state: CoordinatorState) -> list[CheckpointStats]:
    """In the order of their ids, with what the journal knows of them.

    They fill in for an object that a coordinator died before it wrote.
    """
    found = [of_completed(done) for done in (*state.completed, *state.discarding)]
    found += [of_failed(failed) for failed in state.failed]
    return sorted(found, key=lambda one: one.id)


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
