"""The figures of a checkpoint, of its stages and subtasks, and the history of all that ended.

Named as in Flink's REST API where Flink has them: moments in milliseconds since 1970, durations in
milliseconds, sizes in bytes.  None is what was not measured, and never a zero.

A figure is a field of a record and a line of ``FIGURES``, and nothing besides: totals, metrics,
attributes of spans, distributions, and the columns of the command line and of pages are taken from
there.

The statistics of a checkpoint are one object that is written once.  Its ``History`` has a line for
each of the checkpoints that ended shortly before, at most ``TAIL`` of them, and names the object
that has the older ones, up to the bound.  So the whole history is in the newest object and one
other; see docs/adr/0017-statistics-lag-and-spans.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

import msgspec

from sluice.core.answers import HotGroup, LateRows, StoreRequests

TAIL = 100  # An object every hundredth has all lines; the others have this many at most.


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
    async_start_delay: int | None = None


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


class Scope(StrEnum):
    """What a figure is of."""

    JOB = "job"
    CHECKPOINT = "checkpoint"
    SOURCE = "source"
    STAGE = "stage"
    SUBTASK = "subtask"


class Unit(StrEnum):
    NUMBER = "number"
    BYTES = "bytes"
    MILLISECONDS = "ms"
    NANOSECONDS = "ns"
    MOMENT = "ms since 1970"
    PER_SECOND = "number/s"
    BYTES_PER_SECOND = "bytes/s"
    FLAG = "0 or 1"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the records of a scope, at ``path`` in them; behind ``subtasks`` the greatest.

    ``title`` heads its column, and ``says``, a clause, is its hint and the help of its metric.
    ``metric`` and ``span`` are its names there, ``is_flinks``: Flink's own.  ``adds_up``: it is the
    sum of those of its parts.  With ``is_listed`` the command line has a column for it, and with
    ``has_skew`` the page of skew a row.
    """

    scope: Scope
    path: str
    unit: Unit
    title: str
    says: str
    metric: str = ""
    span: str = ""
    is_flinks: bool = True
    adds_up: bool = False
    is_listed: bool = False
    has_skew: bool = False

    @property
    def name(self) -> str:
        """The last name of the path; summaries have it under this."""
        return self.path.rpartition(".")[2]

    def of(self, record: object) -> int | None:
        """None is what was not measured."""
        return _at(record, self.path.split("."))


def _at(value: object, names: Sequence[str]) -> int | None:
    if isinstance(value, tuple):
        return max((n for one in value if (n := _at(one, names)) is not None), default=None)
    if value is None or not names:
        return cast("int | None", value)
    return _at(getattr(value, names[0]), names[1:])


_CHECKPOINT, _STAGE, _SUBTASK = Scope.CHECKPOINT, Scope.STAGE, Scope.SUBTASK
_N, _B, _MS, _AT = Unit.NUMBER, Unit.BYTES, Unit.MILLISECONDS, Unit.MOMENT

# fmt: off
FIGURES = (
    Figure(_CHECKPOINT, "end_to_end_duration", _MS, "Duration",
           "from the trigger to the latest ack", "lastCheckpointDuration"),
    Figure(_CHECKPOINT, "queue_duration", _MS, "In the queue",
           "how long its request had waited in the queue", "lastCheckpointQueueDuration",
           is_flinks=False),
    Figure(_CHECKPOINT, "finalization_duration", _MS, "Finalization",
           "from the latest ack to the completion", "finalizationDuration", is_flinks=False),
    Figure(_CHECKPOINT, "checkpointed_size", _B, "Checkpointed", "what was written for the state",
           "lastCheckpointSize", span="checkpointedSize", adds_up=True),
    Figure(_CHECKPOINT, "state_size", _B, "State", "the whole state",
           "lastCheckpointFullSize", span="fullSize", adds_up=True),
    Figure(_CHECKPOINT, "persisted_data", _B, "In flight", "what it left in flight",
           "lastCheckpointPersistedData"),
    Figure(_CHECKPOINT, "coordinator_state_size", _B, "Coordinator",
           "positions of sources and answers of hooks, the coordinator's own state",
           "lastCheckpointCoordinatorStateSize", is_flinks=False),
    Figure(_CHECKPOINT, "records", _N, "Records", "records read from the sources",
           "numRecords", span="numRecords", is_flinks=False),
    Figure(_CHECKPOINT, "pending_records", _N, "Pending",
           "records that it left behind its barriers, of the sources that count them"),
    Figure(_CHECKPOINT, "pending_bytes", _B, "Pending bytes",
           "bytes of files that it left behind its barriers"),
    Figure(_CHECKPOINT, "watermark_lag", _MS, "Watermark lag",
           "from the least watermark of its stages to the trigger"),
    Figure(_CHECKPOINT, "rows_out", _N, "Rows out", "records that its stages emitted",
           adds_up=True),
    Figure(_CHECKPOINT, "late_rows", _N, "Late rows", "records behind the watermark",
           adds_up=True),
    Figure(_CHECKPOINT, "malformed_rows", _N, "Malformed rows",
           "records that could not be decoded", adds_up=True),
    Figure(_CHECKPOINT, "attempts", _N, "Attempts", "the most execution attempts of a stage"),
    Figure(_STAGE, "end_to_end_duration", _MS, "Duration", "from the trigger to its latest ack",
           is_listed=True),
    Figure(_STAGE, "subtasks.start_delay", _MS, "Start delay",
           "from the trigger to the start of its latest subtask", "checkpointStartDelayNanos",
           is_listed=True),
    Figure(_STAGE, "alignment.duration", _MS, "Alignment",
           "from its first input's barrier to its last input's", "checkpointAlignmentTime",
           is_listed=True),
    Figure(_STAGE, "subtasks.checkpoint.sync", _MS, "Sync", "the sync part of its slowest subtask",
           "syncDuration", is_flinks=False, is_listed=True),
    Figure(_STAGE, "subtasks.checkpoint.async_", _MS, "Async",
           "the async part of its slowest subtask", "asyncDuration", is_flinks=False,
           is_listed=True),
    Figure(_STAGE, "subtasks.checkpoint.async_start_delay", _MS, "Async start delay",
           "the longest that an upload waited to begin", "asyncStartDelay", is_flinks=False),
    Figure(_STAGE, "checkpointed_size", _B, "Checkpointed", "what was written for the state",
           "checkpointedSize", "checkpointedSize", is_flinks=False, adds_up=True, is_listed=True),
    Figure(_STAGE, "state_size", _B, "State", "the whole state",
           "stateSize", "stateSize", is_flinks=False, adds_up=True, is_listed=True),
    Figure(_STAGE, "alignment.persisted", _B, "In flight", "what it left in flight"),
    Figure(_STAGE, "rows_in", _N, "Rows in", "records read",
           "numRecordsIn", "numRecordsIn", adds_up=True, is_listed=True),
    Figure(_STAGE, "rows_out", _N, "Rows out", "records emitted",
           "numRecordsOut", "numRecordsOut", adds_up=True, is_listed=True),
    Figure(_STAGE, "bytes_out", _B, "Bytes out",
           "bytes of the stream, and of what was staged for sinks", "numBytesOut"),
    Figure(_STAGE, "late_rows", _N, "Late", "records behind the watermark",
           "numLateRecordsDropped", adds_up=True, is_listed=True),
    Figure(_STAGE, "malformed_rows", _N, "Malformed", "records that could not be decoded",
           "numMalformedRecords", is_flinks=False, adds_up=True),
    Figure(_STAGE, "requests.total", _N, "Requests",
           "requests of its subtasks to stores, before their acks", is_listed=True),
    Figure(_STAGE, "watermark", _AT, "Watermark", "the watermark of its output",
           span="watermark", is_listed=True),
    Figure(_STAGE, "attempt", _N, "Attempt", "its execution attempt", span="attempt"),
    Figure(_SUBTASK, "end_to_end_duration", _MS, "Duration", "from the trigger to its ack"),
    Figure(_SUBTASK, "start_delay", _MS, "Start delay", "from the trigger to its start"),
    Figure(_SUBTASK, "checkpoint.sync", _MS, "Sync", "reading, merging and encoding"),
    Figure(_SUBTASK, "checkpoint.async_", _MS, "Async",
           "from there until all was durable: uploads that were left"),
    Figure(_SUBTASK, "checkpoint.async_start_delay", _MS, "Async start delay",
           "the longest that an upload waited to begin"),
    Figure(_SUBTASK, "checkpointed_size", _B, "Checkpointed", "what was written for the state",
           span="checkpointedSize", has_skew=True),
    Figure(_SUBTASK, "state_size", _B, "State", "the whole state", has_skew=True),
    Figure(_SUBTASK, "rows_in", _N, "Rows in", "records read", span="numRecordsIn",
           has_skew=True),
    Figure(_SUBTASK, "rows_out", _N, "Rows out", "records emitted", span="numRecordsOut"),
    Figure(_SUBTASK, "groups", _N, "Groups", "distinct keys of this epoch"),
    Figure(_SUBTASK, "late_rows", _N, "Late rows", "records behind the watermark", has_skew=True),
    Figure(_SUBTASK, "malformed_rows", _N, "Malformed", "records that could not be decoded"),
    Figure(_SUBTASK, "requests.total", _N, "Requests",
           "to stores, before its ack: GET, PUT, LIST and DELETE"),
    Figure(_SUBTASK, "attempt", _N, "Attempt", "its execution attempt", span="attempt"),
)
# fmt: on


def figures_of(scope: Scope) -> tuple[Figure, ...]:
    return tuple(one for one in FIGURES if one.scope is scope)


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


def totals(parts: Sequence[msgspec.Struct], scope: Scope) -> dict[str, Any]:
    """The figures of *scope* that are the sums of those that were measured of its *parts*."""
    sums = (one.path for one in figures_of(scope) if one.adds_up)
    return {path: sum_of_measured(getattr(part, path) for part in parts) for path in sums}


def sum_if_whole(values: Iterable[int | None]) -> int | None:
    """The sum, if all of them were measured."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total
