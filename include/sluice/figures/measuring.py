"""The figures of a checkpoint, out of its plan, the acks of its subtasks and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from sluice.core.answers import Ack, StoreRequests
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint, StageState
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.state import FailedCheckpoint
from sluice.figures.rates import lag_behind, least_watermark
from sluice.figures.record import (
    CheckpointAlignment,
    CheckpointDuration,
    CheckpointStats,
    CheckpointStatus,
    StageStats,
    SubtaskStats,
    SubtaskStatus,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What is known of a stage's subtasks: the acks, or at least the moments at which single ones
    were received (``received_at_ms`` by index), all of execution attempt ``attempt``.
    """

    attempt: int | None = None
    acks: tuple[Ack, ...] = ()
    received_at_ms: Mapping[int, int] = field(default_factory=dict[int, int])


def measured_stages(
    plan: CheckpointPlan,
    answered: Mapping[str, Answered],
    *,
    status: CheckpointStatus,
    overtaken: Sequence[str] = (),
    sources: Mapping[str, bool] | None = None,
    metadata: CheckpointMetadata | None = None,
) -> tuple[StageStats, ...]:
    """The figures of each stage of *plan*, in its order.

    *sources* says of which stages an input is a source: its barrier arrives when it is triggered.
    """
    arrivals: dict[str, int | None] = {}
    found: list[StageStats] = []
    for task in plan.tasks:
        kept = metadata.stage(task.uid) if metadata is not None else None
        stage = _stage(
            plan,
            task,
            answered.get(task.uid, Answered()),
            status,
            is_overtaken=task.uid in overtaken,
            kept=kept,
        )
        waits = not stage.unaligned_checkpoint
        barriers = [arrivals.get(producer) for producer in task.reads]
        if (sources or {}).get(task.uid):
            barriers.append(plan.triggered_at_ms)
        duration = _alignment(barriers) if waits else None
        stage = msgspec.structs.replace(
            stage, alignment=msgspec.structs.replace(stage.alignment, duration=duration)
        )
        is_sealed = stage.num_acknowledged_subtasks == stage.num_subtasks
        arrivals[task.uid] = stage.latest_ack_timestamp if is_sealed else None
        found.append(stage)
    return tuple(found)


def of_completed(
    done: CompletedCheckpoint, stages: Sequence[StageStats] | None = None
) -> CheckpointStats:
    """*done* in a line; without *stages* with what the journal alone knows of it."""
    line = CheckpointStats(
        id=done.checkpoint_id,
        status=CheckpointStatus.COMPLETED,
        checkpoint_type=done.type.value,
        is_savepoint=done.type.is_savepoint,
        trigger_timestamp=done.triggered_at_ms,
        savepoint=done.savepoint_name,
        cause=done.cause,
        completed_timestamp=done.completed_at_ms,
        checkpointed_size=done.checkpointed_bytes,
        state_size=done.full_bytes,
        records=done.records,
        committed=done.is_committed,
    )
    if stages is None:
        return line
    line = _with_stages(line, stages)
    if line.latest_ack_timestamp is None:
        return line
    finalization = max(0, done.completed_at_ms - line.latest_ack_timestamp)
    return msgspec.structs.replace(line, finalization_duration=finalization)


def of_failed(
    failed: FailedCheckpoint,
    plan: CheckpointPlan | None = None,
    stages: Sequence[StageStats] | None = None,
) -> CheckpointStats:
    line = CheckpointStats(
        id=failed.checkpoint_id,
        status=CheckpointStatus.FAILED,
        checkpoint_type=failed.type.value,
        is_savepoint=failed.type.is_savepoint,
        trigger_timestamp=failed.triggered_at_ms,
        cause=failed.cause,
        records=None if plan is None else plan.records,
        failure_timestamp=failed.failed_at_ms,
        failure_reason=failed.reason.value,
        failure_message=failed.message or None,
    )
    if stages is not None:
        line = _with_stages(line, stages)
    return msgspec.structs.replace(
        line, end_to_end_duration=max(0, failed.failed_at_ms - failed.triggered_at_ms)
    )


def of_pending(
    pending: PendingCheckpoint, stages: Sequence[StageStats] | None = None
) -> CheckpointStats:
    line = CheckpointStats(
        id=pending.checkpoint_id,
        status=CheckpointStatus.IN_PROGRESS,
        checkpoint_type=pending.type.value,
        is_savepoint=pending.type.is_savepoint,
        trigger_timestamp=pending.triggered_at_ms,
        savepoint=pending.savepoint_name,
        cause=pending.cause,
        records=pending.records,
    )
    return line if stages is None else _with_stages(line, stages)


def _stage(
    plan: CheckpointPlan,
    task: TaskPlan,
    answered: Answered,
    status: CheckpointStatus,
    *,
    is_overtaken: bool,
    kept: StageState | None,
) -> StageStats:
    known = {ack.subtask.index: _subtask(plan, ack) for ack in answered.acks}
    subtasks = tuple(
        known.get(index) or _unmeasured(plan, answered, index) for index in range(task.parallelism)
    )
    done = [one for one in subtasks if one.status is SubtaskStatus.COMPLETED]
    latest = max((one.ack_timestamp for one in done if one.ack_timestamp), default=None)
    in_flight = kept.in_flight_segments if kept is not None else None
    return StageStats(
        id=task.uid,
        status=status,
        num_subtasks=task.parallelism,
        # The coordinator acknowledged for a stage that was overtaken.
        num_acknowledged_subtasks=task.parallelism if is_overtaken else len(done),
        attempt=answered.attempt,
        latest_ack_timestamp=latest,
        end_to_end_duration=_since(plan.triggered_at_ms, latest),
        checkpointed_size=_sum(one.checkpointed_size for one in done),
        state_size=_sum(one.state_size for one in done),
        alignment=CheckpointAlignment(
            persisted=None if in_flight is None else sum(one.size_bytes for one in in_flight)
        ),
        unaligned_checkpoint=is_overtaken or task.is_unaligned,
        watermark=None if kept is None else kept.watermark_ms,
        rows_in=_sum(one.rows_in for one in done),
        rows_out=_sum(one.rows_out for one in done),
        bytes_out=_bytes_out(answered.acks),
        late_rows=_sum(one.late_rows for one in done),
        malformed_rows=_sum(one.malformed_rows for one in done),
        requests=_all_requests(done),
        subtasks=() if is_overtaken else subtasks,
    )


def _bytes_out(acks: Sequence[Ack]) -> int | None:
    if not acks:
        return None
    streamed = sum(one.size_bytes for ack in acks for one in ack.output)
    return streamed + sum(one.size_bytes for ack in acks for one in ack.committables)


def _subtask(plan: CheckpointPlan, ack: Ack) -> SubtaskStats:
    told = ack.metrics
    started = told.started_at_ms or None
    acknowledged = told.acknowledged_at_ms or None
    return SubtaskStats(
        index=ack.subtask.index,
        attempt=ack.attempt,
        start_timestamp=started,
        ack_timestamp=acknowledged,
        start_delay=_since(plan.triggered_at_ms, started),
        end_to_end_duration=_since(plan.triggered_at_ms, acknowledged),
        checkpoint=CheckpointDuration(sync=told.sync_ms, async_=told.async_ms),
        checkpointed_size=told.checkpointed_bytes,
        state_size=told.full_bytes,
        rows_in=told.rows_in,
        rows_out=told.rows_out,
        groups=told.groups,
        late_rows=told.late_rows,
        malformed_rows=told.malformed_rows,
        requests=told.requests,
    )


def _all_requests(subtasks: Sequence[SubtaskStats]) -> StoreRequests | None:
    known = [one.requests for one in subtasks if one.requests is not None]
    return sum(known, StoreRequests()) if known else None


def _unmeasured(plan: CheckpointPlan, answered: Answered, index: int) -> SubtaskStats:
    """A subtask of which only the key of its ack was seen, or not even that."""
    received = answered.received_at_ms.get(index)
    if received is None:
        return SubtaskStats(index=index, status=SubtaskStatus.PENDING_OR_FAILED)
    return SubtaskStats(
        index=index,
        attempt=answered.attempt,
        ack_timestamp=received,
        end_to_end_duration=_since(plan.triggered_at_ms, received),
    )


def _with_stages(line: CheckpointStats, stages: Sequence[StageStats]) -> CheckpointStats:
    latest = max((s.latest_ack_timestamp for s in stages if s.latest_ack_timestamp), default=None)
    attempts = [stage.attempt for stage in stages if stage.attempt is not None]
    return msgspec.structs.replace(
        line,
        latest_ack_timestamp=latest,
        end_to_end_duration=_since(line.trigger_timestamp, latest),
        checkpointed_size=_sum(stage.checkpointed_size for stage in stages),
        state_size=_sum(stage.state_size for stage in stages),
        persisted_data=_sum(stage.alignment.persisted for stage in stages),
        num_subtasks=sum(stage.num_subtasks for stage in stages),
        num_acknowledged_subtasks=sum(stage.num_acknowledged_subtasks for stage in stages),
        unaligned_checkpoint=any(stage.unaligned_checkpoint for stage in stages),
        attempts=max(attempts, default=None),
        rows_out=_sum(stage.rows_out for stage in stages),
        late_rows=_sum(stage.late_rows for stage in stages),
        malformed_rows=_sum(stage.malformed_rows for stage in stages),
        watermark_lag=lag_behind(line.trigger_timestamp, least_watermark(stages)),
    )


def _alignment(barriers: Sequence[int | None]) -> int | None:
    """From the first barrier's arrival to the last one's; None before all of them have arrived.

    A stage with one input waits for no other: 0.
    """
    arrived = [at_ms for at_ms in barriers if at_ms is not None]
    if len(barriers) == 1:
        return 0
    return max(arrived) - min(arrived) if arrived and len(arrived) == len(barriers) else None


def _since(start_ms: int, end_ms: int | None) -> int | None:
    """Never negative: the two moments are those of two machines' clocks."""
    return None if end_ms is None else max(0, end_ms - start_ms)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
