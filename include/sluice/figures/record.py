"""The figures of a checkpoint, of its stages and subtasks, and the history of all that ended.

Named as in Flink's REST API where Flink has them: moments in milliseconds since 1970, durations in
milliseconds, sizes in bytes.  None is what was not measured, and never a zero.

The statistics of a checkpoint are one object that is written once.  Its ``History`` has a line for
each of the checkpoints that ended shortly before, at most ``TAIL`` of them, and names the object
that has the older ones, up to the bound.  So the whole history is in the newest object and one
other; see docs/adr/0017-statistics-lag-and-spans.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from sluice.core.answers import HotGroup, LateRows, StoreRequests

TAIL = 100  # An object every hundredth has all lines; the others have this many at most.


# Measured by a subtask under these names, and added up where its stage or checkpoint has the name.
COUNTED = ("rows_in", "rows_out", "groups", "late_rows", "malformed_rows")
SIZES = ("checkpointed_size", "state_size")


class CheckpointStatus(StrEnum):
    """Flink's CheckpointStatsStatus."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class SubtaskStatus(StrEnum):
    """The status of a subtask as in Flink's REST API: it has answered, or it has not."""

    COMPLETED = "completed"
    PENDING_OR_FAILED = "pending_or_failed"


class CheckpointDuration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``sync``: reading, merging, encoding, while uploads run beside it; ``async``: from there
    until everything was durable.  ``async_start_delay``: the longest that an upload waited to
    begin (Flink's AsyncCheckpointRunnable logs it).
    """

    sync: int
    async_: int = msgspec.field(name="async")
    async_start_delay: int = 0


class CheckpointAlignment(msgspec.Struct, frozen=True, kw_only=True):
    """``duration``: how long the first input's barrier waited for the last input's; ``persisted``:
    the bytes that the checkpoint left in flight.
    """

    duration: int | None = None
    persisted: int | None = None


class SubtaskStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subtask's own figures (Flink's SubtaskStateStats), on its machine's clock."""

    index: int
    status: SubtaskStatus = SubtaskStatus.COMPLETED
    attempt: int | None = None
    start_timestamp: int | None = None
    ack_timestamp: int | None = None
    start_delay: int | None = None
    end_to_end_duration: int | None = None
    checkpoint: CheckpointDuration | None = None
    checkpointed_size: int | None = None
    state_size: int | None = None
    rows_in: int | None = None
    rows_out: int | None = None
    groups: int | None = None
    late_rows: int | None = None
    malformed_rows: int | None = None
    requests: StoreRequests | None = None


class SourceStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source in a checkpoint: what its epoch has read, and what was seen behind the barrier when
    it was triggered (Flink's pendingRecords and pendingBytes).

    ``pending_splits`` are the partitions, files or snapshots that had some; with
    ``pending_is_least`` there may have been more.  ``watermark`` is the source's own behind its
    barrier, ``event_time`` the latest that was seen of its rows, ``emit_timestamp`` when the first
    stage that reads it had acknowledged.
    """

    id: str
    records: int
    size: int | None = None
    pending_records: int | None = None
    pending_bytes: int | None = None
    pending_splits: int | None = None
    pending_is_least: bool = False
    exhausted: bool = False
    watermark: int | None = None
    event_time: int | None = None
    emit_timestamp: int | None = None


class StageStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stage's figures, summed over its subtasks (Flink's TaskStateStats).

    ``status`` is COMPLETED once all its subtasks have acknowledged, and the checkpoint's before.
    ``unaligned_checkpoint``: it waited for no other stage, or the coordinator acknowledged for it.
    ``watermark`` is that of its output; ``bytes_out`` are those of its stream and of what it staged
    for sinks, as they are stored.  ``requests`` are those to stores, before the acks.
    ``late`` are the late rows by the source or stage that they are of; none once the watermark was
    MAX.  ``hot_groups`` are the key groups that had most rows, if they had twice the mean.
    """

    id: str
    status: CheckpointStatus
    num_subtasks: int
    num_acknowledged_subtasks: int
    attempt: int | None = None
    latest_ack_timestamp: int | None = None
    end_to_end_duration: int | None = None
    checkpointed_size: int | None = None
    state_size: int | None = None
    alignment: CheckpointAlignment = CheckpointAlignment()
    unaligned_checkpoint: bool = False
    watermark: int | None = None
    rows_in: int | None = None
    rows_out: int | None = None
    bytes_out: int | None = None
    late_rows: int | None = None
    late: dict[str, LateRows] | None = None
    hot_groups: tuple[HotGroup, ...] = ()
    malformed_rows: int | None = None
    requests: StoreRequests | None = None
    subtasks: tuple[SubtaskStats, ...] = ()


class TaskException(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The failure of a task of the checkpoint, or the decline of subtask ``index`` of a stage.

    ``stage`` is None of a task that runs no stage; ``stack`` begins with the user's frames.
    """

    task: str
    attempt: int
    message: str
    stage: str | None = None
    index: int | None = None
    stack: str = ""


class CheckpointStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint in a line (Flink's CheckpointStatistics without its tasks).

    ``checkpoint_type`` is Sluice's; ``finalization_duration`` is from the latest ack until the
    checkpoint was completed; ``committed``: whether every sink has published it, as far as that is
    known.  ``pending_records`` and ``pending_bytes`` were left behind its barriers, over the
    sources that can say; ``watermark_lag`` is how far the least watermark of its stages was behind
    the trigger.  ``queue_duration`` is how long its request waited in the queue, if it did;
    ``coordinator_state_size`` what the coordinator itself snapshots: the positions of the sources
    (Flink's enumerators) and the answers of master hooks.  ``generation`` took it, and
    ``declaration`` is a digest of the fingerprints of the declaration that it was made of.
    """

    id: int
    status: CheckpointStatus
    checkpoint_type: str
    is_savepoint: bool
    trigger_timestamp: int
    savepoint: str | None = None
    cause: str = ""
    latest_ack_timestamp: int | None = None
    completed_timestamp: int | None = None
    end_to_end_duration: int | None = None
    finalization_duration: int | None = None
    checkpointed_size: int | None = None
    state_size: int | None = None
    persisted_data: int | None = None
    queue_duration: int | None = None
    coordinator_state_size: int | None = None
    num_subtasks: int | None = None
    num_acknowledged_subtasks: int | None = None
    unaligned_checkpoint: bool | None = None
    attempts: int | None = None
    records: int | None = None
    pending_records: int | None = None
    pending_bytes: int | None = None
    watermark_lag: int | None = None
    rows_out: int | None = None
    late_rows: int | None = None
    malformed_rows: int | None = None
    committed: bool | None = None
    generation: int | None = None
    declaration: str | None = None
    failure_timestamp: int | None = None
    failure_reason: str | None = None
    failure_message: str | None = None


class Flow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rows and bytes that a source gave, or a stage read and wrote, in one epoch."""

    rows_in: int | None = None
    rows_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None


class EpochFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A completed epoch; ``nodes`` are its sources and stages by uid."""

    id: int
    trigger_timestamp: int
    completed_timestamp: int
    nodes: dict[str, Flow]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """``checkpoints`` in the order of their ids; those before them are in the object of ``older``.

    ``completed`` and ``failed`` count everything that has ended since the job's first checkpoint.
    """

    checkpoints: tuple[CheckpointStats, ...] = ()
    older: int | None = None
    completed: int = 0
    failed: int = 0


class CheckpointStatistics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The statistics object of a checkpoint that has ended.

    ``parent`` is the checkpoint that its epoch continues; ``flow`` are the last completed epochs,
    up to this checkpoint.
    """

    checkpoint: CheckpointStats
    history: History
    parent: int | None = None
    sources: tuple[SourceStats, ...] = ()
    stages: tuple[StageStats, ...] = ()
    flow: tuple[EpochFlow, ...] = ()
    exceptions: tuple[TaskException, ...] = ()


def needs_older(previous: History) -> bool:
    """Whether ``extended`` needs the lines of the object that *previous* names."""
    return previous.older is not None and len(previous.checkpoints) >= TAIL


def extended(
    previous: History,
    ended: Sequence[CheckpointStats],
    *,
    previous_id: int | None,
    older: Sequence[CheckpointStats] = (),
    bound: int,
) -> History:
    """*previous*, kept under *previous_id*, with the lines of what has *ended* since.

    A checkpoint that *previous* has counted is not counted again; its line is replaced if it was
    published or measured since.  *older* are the lines of the object that *previous* names, where
    ``needs_older``.  Without *previous_id* everything stays in one piece.
    """
    lines = {line.id: line for line in previous.checkpoints}
    counted = _counted_up_to(previous)
    new = {line.id: line for line in ended if line.id not in lines and line.id > counted}
    merged = {line.id: _merged(lines[line.id], line) for line in ended if line.id in lines}
    news = new | {n: line for n, line in merged.items() if line != lines[n]}
    history = msgspec.structs.replace(
        previous,
        completed=previous.completed + _count(new.values(), CheckpointStatus.COMPLETED),
        failed=previous.failed + _count(new.values(), CheckpointStatus.FAILED),
    )
    if needs_older(previous):
        return _with(history, {line.id: line for line in older} | lines | news, None, bound)
    if previous.older is None and len(lines) >= TAIL and previous_id is not None:
        return _with(history, news, previous_id, bound)
    return _with(history, lines | news, previous.older, bound)


def whole_history(
    newest: History,
    older: Sequence[CheckpointStats],
    ended: Sequence[CheckpointStats],
    *,
    bound: int,
) -> History:
    """The lines of the newest object, of the *older* one that it names, and of what has *ended*."""
    latest = extended(newest, ended, previous_id=None, bound=bound)
    lines = {line.id: line for line in (*older, *newest.checkpoints, *latest.checkpoints)}
    return _with(latest, lines, None, bound)


def is_due_for_pruning(before: History, after: History) -> bool:
    """Once in ``TAIL`` checkpoints."""
    return _total(before) // TAIL != _total(after) // TAIL


def kept_objects(bound: int) -> int:
    """The number of newest objects to keep, so that the objects they name are among them."""
    return max(bound, TAIL) + TAIL


def _counted_up_to(history: History) -> int:
    """The greatest id that the history may have counted without having its line any more."""
    if history.older is not None:
        return history.older
    is_whole = len(history.checkpoints) == _total(history)
    return 0 if is_whole else history.checkpoints[0].id


def _with(
    history: History, lines: dict[int, CheckpointStats], older: int | None, bound: int
) -> History:
    newest = sorted(lines)[-bound:]
    return msgspec.structs.replace(
        history, checkpoints=tuple(lines[n] for n in newest), older=older
    )


def _merged(line: CheckpointStats, other: CheckpointStats) -> CheckpointStats:
    """The line with measured figures, if one has them: the journal alone knows few."""
    best = other if line.num_subtasks is None else line
    committed = other.committed if line.committed is None else line.committed or other.committed
    return msgspec.structs.replace(best, committed=committed)


def _total(history: History) -> int:
    return history.completed + history.failed


def _count(lines: Iterable[CheckpointStats], status: CheckpointStatus) -> int:
    return sum(line.status is status for line in lines)


def sum_of_measured(values: Iterable[int | None]) -> int | None:
    """The sum of those that were measured; None without any."""
    measured = [value for value in values if value is not None]
    return sum(measured) if measured else None


def totals(parts: Sequence[msgspec.Struct], whole: type[msgspec.Struct]) -> dict[str, Any]:
    """The figures of *whole* that are the sums of those that were measured of its *parts*."""
    return {
        name: sum_of_measured(getattr(part, name) for part in parts)
        for name in (*SIZES, *COUNTED)
        if name in whole.__struct_fields__
    }


def sum_if_whole(values: Iterable[int | None]) -> int | None:
    """The sum, if all of them were measured."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
