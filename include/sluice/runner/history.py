"""The checkpoints a job has taken, read from its journal (Flink's checkpoint history).

Derived from the events each time; nothing of it is stored twice.
"""

from __future__ import annotations

import msgspec

from sluice.core.messages import CheckpointTriggered
from sluice.core.state import CoordinatorState
from sluice.runner.job import Job

DEFAULT_ENTRIES = 400  # About 100 checkpoints; each entry is one small GET.


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


def history(job: Job, *, entries: int = DEFAULT_ENTRIES) -> list[CheckpointRecord]:
    """Checkpoints that the newest *entries* of the journal speak of, in id order."""
    triggered: dict[int, CheckpointTriggered] = {}
    latest: dict[int, CheckpointRecord] = {}
    for entry in job.journal.entries(entries):
        if isinstance(entry.event, CheckpointTriggered):
            triggered[entry.event.plan.checkpoint_id] = entry.event
        latest.update(_records(entry.state, triggered))
    return [latest[checkpoint_id] for checkpoint_id in sorted(latest)]


def _records(
    state: CoordinatorState, triggered: dict[int, CheckpointTriggered]
) -> dict[int, CheckpointRecord]:
    found: dict[int, CheckpointRecord] = {}
    for pending in state.pending:
        found[pending.checkpoint_id] = CheckpointRecord(
            id=pending.checkpoint_id,
            type=pending.type.value,
            status="IN_PROGRESS",
            triggered_at_ms=pending.triggered_at_ms,
            duration_ms=None,
            records=pending.records,
            checkpointed_bytes=None,
            committed=False,
        )
    for done in state.completed:
        found[done.checkpoint_id] = CheckpointRecord(
            id=done.checkpoint_id,
            type=done.type.value,
            status="COMPLETED",
            triggered_at_ms=done.triggered_at_ms,
            duration_ms=done.completed_at_ms - done.triggered_at_ms,
            records=done.records,
            checkpointed_bytes=done.checkpointed_bytes,
            committed=done.is_committed,
        )
    for failed in state.failed:
        event = triggered.get(failed.checkpoint_id)
        found[failed.checkpoint_id] = CheckpointRecord(
            id=failed.checkpoint_id,
            type=failed.type.value,
            status="FAILED",
            triggered_at_ms=failed.triggered_at_ms,
            duration_ms=failed.failed_at_ms - failed.triggered_at_ms,
            records=event.plan.records if event is not None else 0,
            checkpointed_bytes=None,
            committed=False,
            reason=failed.reason.value,
            message=failed.message or None,
        )
    return found
