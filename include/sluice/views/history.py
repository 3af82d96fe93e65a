"""The checkpoints a job has taken, a line each (Flink's checkpoint history)."""

from __future__ import annotations

import msgspec

from sluice.job.job import Job
from sluice.statistics.checkpoints import CheckpointStats, CheckpointStatus
from sluice.views.statistics import overview


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the history.  ``status`` is Flink's IN_PROGRESS, COMPLETED or FAILED."""

    id: int
    type: str
    status: str
    triggered_at_ms: int
    duration_ms: int | None
    records: int
    checkpointed_bytes: int | None
    committed: bool
    reason: str | None = None
    message: str | None = None


def history(
    job: Job,
    *,
    limit: int | None = None,
    statuses: frozenset[CheckpointStatus] = frozenset(CheckpointStatus),
) -> list[CheckpointRecord]:
    """The newest *limit* checkpoints of the *statuses*, in id order; all that are kept without."""
    page = overview(job, limit=limit, statuses=statuses).history
    return [_record(one) for one in reversed(page)]


def _record(one: CheckpointStats) -> CheckpointRecord:
    ended = one.completed_timestamp or one.failure_timestamp
    is_done = one.status is CheckpointStatus.COMPLETED
    return CheckpointRecord(
        id=one.id,
        type=one.checkpoint_type,
        status=one.status.value,
        triggered_at_ms=one.trigger_timestamp,
        duration_ms=None if ended is None else ended - one.trigger_timestamp,
        records=one.records or 0,
        checkpointed_bytes=one.checkpointed_size if is_done else None,
        committed=bool(one.committed),
        reason=one.failure_reason,
        message=one.failure_message,
    )
