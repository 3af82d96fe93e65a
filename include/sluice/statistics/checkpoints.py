"""The figures of one checkpoint, of its stages and of their subtasks.

Named as in Flink's REST API where Flink has them: moments in milliseconds since 1970, durations in
milliseconds, sizes in bytes.  None is what was not measured, and never a zero.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from sluice.core.acks import StoreRequests


class CheckpointStatus(StrEnum):
    """Flink's CheckpointStatsStatus."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class SubtaskStatus(StrEnum):
    """As in Flink's REST API: a subtask has answered, or it has not."""

    COMPLETED = "completed"
    PENDING_OR_FAILED = "pending_or_failed"


class CheckpointDuration(msgspec.Struct, frozen=True, kw_only=True):
    """``sync``: reading, merging, encoding, while uploads run beside it; ``async``: from there
    until everything was durable.
    """

    sync: int
    async_: int = msgspec.field(name="async")


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

    ``unaligned_checkpoint``: it waited for no other stage, or the coordinator acknowledged for it.
    ``watermark`` is that of its output; ``bytes_out`` are those of its stream and of what it staged
    for sinks, as they are stored.  ``requests`` are those to stores, before the acks.
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
    malformed_rows: int | None = None
    requests: StoreRequests | None = None
    subtasks: tuple[SubtaskStats, ...] = ()


class SubtaskException(msgspec.Struct, frozen=True, kw_only=True):
    """The words in which a subtask declined."""

    stage: str
    index: int
    attempt: int
    message: str


class CheckpointStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint in a line (Flink's CheckpointStatistics without its tasks).

    ``checkpoint_type`` is Sluice's; ``finalization_duration`` is from the latest ack until the
    checkpoint was completed; ``committed``: whether every sink has published it, as far as that is
    known.  ``pending_records`` and ``pending_bytes`` were left behind its barriers, over the
    sources that can say; ``watermark_lag`` is how far the least watermark of its stages was behind
    the trigger.
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
    failure_timestamp: int | None = None
    failure_reason: str | None = None
    failure_message: str | None = None
