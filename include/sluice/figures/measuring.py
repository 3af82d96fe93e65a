"""The figures of a checkpoint, from its plan, the acks of its subtasks and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from sluice.core.answers import Ack, HotGroup, LateRows, StoreRequests
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
    Scope,
    StageStats,
    SubtaskStats,
    SubtaskStatus,
    figures_of,
    sum_of_measured,
    totals,
)

MOST_HOT_GROUPS = 5  # Of a stage.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The acks of a stage's subtasks, all of execution attempt ``attempt``; none until it ends."""

    attempt: int | None = None
    acks: tuple[Ack, ...] = ()


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

    *sources* has True for a stage that reads a source, whose barrier arrives with the trigger.
    """
    arrivals: dict[str, int | None] = {}
    found: list[StageStats] = []
    for task in plan.tasks:
        barriers = [arrivals.get(producer) for producer in task.reads]
        if (sources or {}).get(task.uid):
            barriers.append(plan.triggered_at_ms)
        stage = _stage(
            plan,
            task,
            answered.get(task.uid, Answered()),
            status,
            barriers,
            is_overtaken=task.uid in overtaken,
            kept=metadata.stage(task.uid) if metadata is not None else None,
        )
        is_sealed = stage.num_acknowledged_subtasks == stage.num_subtasks
        arrivals[task.uid] = stage.latest_ack_timestamp if is_sealed else None
        found.append(stage)
    return tuple(found)


def _stage(
    plan: CheckpointPlan,
    task: TaskPlan,
    answered: Answered,
    status: CheckpointStatus,
    barriers: Sequence[int | None],
    *,
    is_overtaken: bool,
    kept: StageState | None,
) -> StageStats:
    known = {ack.subtask.index: _subtask(plan, ack) for ack in answered.acks}
    subtasks = tuple(
        known.get(index) or SubtaskStats(index=index, status=SubtaskStatus.PENDING_OR_FAILED)
        for index in range(task.parallelism)
    )
    done = [subtask for subtask in subtasks if subtask.status is SubtaskStatus.COMPLETED]
    latest = max((s.ack_timestamp for s in done if s.ack_timestamp), default=None)
    requests = [subtask.requests for subtask in done if subtask.requests is not None]
    in_flight = kept.in_flight_segments if kept is not None else None
    is_unaligned = is_overtaken or task.is_unaligned
    # The coordinator acknowledged for a stage that was overtaken.
    num_acknowledged = task.parallelism if is_overtaken else len(done)
    has_acknowledged = num_acknowledged == task.parallelism
    return StageStats(
        id=task.uid,
        status=CheckpointStatus.COMPLETED if has_acknowledged else status,
        num_subtasks=task.parallelism,
        num_acknowledged_subtasks=num_acknowledged,
        attempt=answered.attempt,
        latest_ack_timestamp=latest,
        end_to_end_duration=_since(plan.triggered_at_ms, latest),
        alignment=CheckpointAlignment(
            duration=None if is_unaligned else _alignment(barriers),
            persisted=None if in_flight is None else sum(file.size_bytes for file in in_flight),
        ),
        unaligned_checkpoint=is_unaligned,
        watermark=None if kept is None else kept.watermark_ms,
        bytes_out=_bytes_out(answered.acks),
        late=sum_of_late(ack.metrics.late for ack in answered.acks) or None,
        hot_groups=hottest(ack.metrics.hot_groups for ack in answered.acks),
        requests=sum(requests, StoreRequests()) if requests else None,
        subtasks=() if is_overtaken else subtasks,
        **totals(done, Scope.STAGE),
    )


def sum_of_late(parts: Iterable[Mapping[str, LateRows]]) -> dict[str, LateRows]:
    """The late rows of all *parts*, by producer."""
    found: dict[str, LateRows] = {}
    for part in parts:
        for producer, late in part.items():
            found[producer] = found.get(producer, LateRows()) + late
    return found


def hottest(parts: Iterable[Sequence[HotGroup]]) -> tuple[HotGroup, ...]:
    """The hottest key groups of all *parts*, old to new, the one with most rows first; the keys of
    a group are the newest.
    """
    found: dict[int, HotGroup] = {}
    for one in chain.from_iterable(parts):
        before = found.get(one.group)
        rows = one.rows + (0 if before is None else before.rows)
        found[one.group] = replace(one, rows=rows)
    return tuple(sorted(found.values(), key=lambda one: -one.rows)[:MOST_HOT_GROUPS])


def _bytes_out(acks: Sequence[Ack]) -> int | None:
    if not acks:
        return None
    streamed = sum(segment.size_bytes for ack in acks for segment in ack.output)
    return streamed + sum(staged.size_bytes for ack in acks for staged in ack.committables)


def _subtask(plan: CheckpointPlan, ack: Ack) -> SubtaskStats:
    metrics = ack.metrics
    started = metrics.started_at_ms or None
    acknowledged = metrics.acknowledged_at_ms or None
    return SubtaskStats(
        index=ack.subtask.index,
        attempt=ack.attempt,
        start_timestamp=started,
        ack_timestamp=acknowledged,
        start_delay=_since(plan.triggered_at_ms, started),
        end_to_end_duration=_since(plan.triggered_at_ms, acknowledged),
        checkpoint=CheckpointDuration(
            sync=metrics.sync_ms,
            async_=metrics.async_ms,
            async_start_delay=metrics.async_start_delay_ms,
        ),
        checkpointed_size=metrics.checkpointed_bytes,
        state_size=metrics.full_bytes,
        requests=metrics.requests,
        **{
            one.path: getattr(metrics, one.path)
            for one in figures_of(Scope.SUBTASK)
            if hasattr(metrics, one.path)
        },
    )


def _alignment(barriers: Sequence[int | None]) -> int | None:
    """The time from the first barrier's arrival to the last one's; None before all have arrived.

    A stage with one input waits for no other: 0.
    """
    arrived = [at_ms for at_ms in barriers if at_ms is not None]
    if len(barriers) == 1:
        return 0
    return max(arrived) - min(arrived) if arrived and len(arrived) == len(barriers) else None


def _since(start_ms: int, end_ms: int | None) -> int | None:
    """Never negative: the two moments are those of two machines' clocks."""
    return None if end_ms is None else max(0, end_ms - start_ms)


def stats_of_completed(
    done: CompletedCheckpoint, stages: Sequence[StageStats] | None = None
) -> CheckpointStats:
    """*done* in a line; without *stages* it has the journal's figures alone."""
    line = msgspec.structs.replace(
        _line(done, CheckpointStatus.COMPLETED),
        savepoint=done.savepoint_name,
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


def stats_of_failed(
    failed: FailedCheckpoint,
    plan: CheckpointPlan | None = None,
    stages: Sequence[StageStats] | None = None,
) -> CheckpointStats:
    line = msgspec.structs.replace(
        _line(failed, CheckpointStatus.FAILED),
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


def stats_of_pending(
    pending: PendingCheckpoint, stages: Sequence[StageStats] | None = None
) -> CheckpointStats:
    line = msgspec.structs.replace(
        _line(pending, CheckpointStatus.IN_PROGRESS),
        savepoint=pending.savepoint_name,
        records=pending.records,
    )
    return line if stages is None else _with_stages(line, stages)


def _line(
    checkpoint: CompletedCheckpoint | FailedCheckpoint | PendingCheckpoint, status: CheckpointStatus
) -> CheckpointStats:
    return CheckpointStats(
        id=checkpoint.checkpoint_id,
        status=status,
        checkpoint_type=checkpoint.type.value,
        is_savepoint=checkpoint.type.is_savepoint,
        trigger_timestamp=checkpoint.triggered_at_ms,
        cause=checkpoint.cause,
        queue_duration=checkpoint.queued_ms or None,  # Most requests need not wait.
    )


def coordinator_state_size(metadata: CheckpointMetadata) -> int:
    """The bytes of the coordinator's own state: positions with their layers, and hooks' answers."""
    layers = sum(layer.size_bytes for cut in metadata.sources for layer in cut.layers)
    positions = [replace(cut, slices=(), heads=()) for cut in metadata.sources]
    own = msgspec.json.encode((positions, metadata.master_states))
    return layers + len(own)


def _with_stages(line: CheckpointStats, stages: Sequence[StageStats]) -> CheckpointStats:
    latest = max((s.latest_ack_timestamp for s in stages if s.latest_ack_timestamp), default=None)
    attempts = [stage.attempt for stage in stages if stage.attempt is not None]
    return msgspec.structs.replace(
        line,
        latest_ack_timestamp=latest,
        end_to_end_duration=_since(line.trigger_timestamp, latest),
        persisted_data=sum_of_measured(stage.alignment.persisted for stage in stages),
        num_subtasks=sum(stage.num_subtasks for stage in stages),
        num_acknowledged_subtasks=sum(stage.num_acknowledged_subtasks for stage in stages),
        unaligned_checkpoint=any(stage.unaligned_checkpoint for stage in stages),
        attempts=max(attempts, default=None),
        watermark_lag=lag_behind(line.trigger_timestamp, least_watermark(stages)),
        **totals(stages, Scope.CHECKPOINT),
    )
