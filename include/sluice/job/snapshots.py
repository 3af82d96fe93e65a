"""The checkpoints of a job that are not pending: found by the name that a person gives, listed as
far as the journal's state remembers them, and their files compared with what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import JobStatus
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, CorruptSegment
from sluice.figures.measuring import stats_of_completed, stats_of_failed
from sluice.figures.record import CheckpointStats
from sluice.job.job import Job
from sluice.protocol.records import checksum, checksum_of
from sluice.store.object_store import in_parallel

LATEST = "latest"
PARALLEL_READS = 8  # Each of them holds a segment in memory.


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
    """The reason why a checkpoint can be neither shown nor restored, with what to do."""
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
    if state.status.is_globally_terminal:
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
    not_these = {*(pending.checkpoint_id for pending in state.pending), other_than}
    ids = range(state.next_checkpoint_id - 1, 0, -1)
    return next((checkpoint_id for checkpoint_id in ids if checkpoint_id not in not_these), None)


def ended_checkpoints(state: CoordinatorState) -> list[CheckpointStats]:
    """The ended checkpoints that the journal still remembers, in the order of their ids.

    They stand in for statistics that a coordinator died before it wrote.
    """
    ended = [stats_of_completed(done) for done in (*state.completed, *state.discarding)]
    ended += [stats_of_failed(failed) for failed in state.failed]
    return sorted(ended, key=lambda line: line.id)


def checksums_of(job: Job, handles: Iterable[SegmentHandle]) -> dict[SegmentHandle, str]:
    """The checksum of each file that is there, as its bytes are now.

    Reads every one of them where it lies, past every cache.
    """
    distinct = [*dict.fromkeys(handles)]

    def read(handle: SegmentHandle) -> str | None:
        raw = job.store_at(handle.root).get(handle.key) if handle.key else handle.inline
        return None if raw is None else checksum(raw)

    found = zip(distinct, in_parallel(read, distinct, PARALLEL_READS), strict=True)
    return {handle: digest for handle, digest in found if digest is not None}


def segments_of(metadata: CheckpointMetadata) -> tuple[SegmentHandle, ...]:
    """Every file that a restore reads, and the segments of state that are kept inline."""
    inline = (
        handle.segment
        for stage in metadata.stages
        for subtask in stage.subtasks
        for handle in subtask.state
        if handle.segment.inline is not None
    )
    return (*metadata.files, *inline)


def verified(handle: SegmentHandle, raw: bytes, what: str) -> bytes:
    """*raw*, which was read from *handle*.  Raises as ``verify_segment``."""
    verify_segment(handle, [raw], what)
    return raw


def verify_segment(handle: SegmentHandle, pieces: Iterable[bytes], what: str) -> None:
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
