"""A job's checkpoints at a glance (Flink's CheckpointingStatistics).

Counts, the latest of each kind, the history, and the distribution of each figure (Flink's
StatsSummary).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from sluice.figures.record import (
    CheckpointStats,
    CheckpointStatus,
    Scope,
    SourceStats,
    StageStats,
    SubtaskStats,
    TaskException,
    figures_of,
)


class StatsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Named as in Flink's REST API."""

    min: int
    max: int
    avg: int
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Since the job's first checkpoint, also of those that the history has no more.

    ``unsuccessful_triggers``: that were refused in a row, since the last one that succeeded.
    """

    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int
    unsuccessful_triggers: int = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Over the completed checkpoints of the history."""

    checkpointed_size: StatsSummary | None
    state_size: StatsSummary | None
    end_to_end_duration: StatsSummary | None
    finalization_duration: StatsSummary | None
    persisted_data: StatsSummary | None
    records: StatsSummary | None


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot that the job was restored from last, and the place where it is, or was."""

    id: int
    restore_timestamp: int
    is_savepoint: bool
    external_path: str


class Latest(msgspec.Struct, frozen=True, kw_only=True):
    completed: CheckpointStats | None
    savepoint: CheckpointStats | None
    failed: CheckpointStats | None
    restored: Restored | None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """``history`` is from the newest to the oldest, as Flink lists it."""

    counts: Counts
    summary: Summary
    latest: Latest
    failures: dict[str, int]  # By reason, of the history.
    history: tuple[CheckpointStats, ...]


class StageSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Over the subtasks of a stage that have answered."""

    checkpointed_size: StatsSummary | None
    state_size: StatsSummary | None
    end_to_end_duration: StatsSummary | None
    sync: StatsSummary | None
    async_: StatsSummary | None = msgspec.field(name="async")
    start_delay: StatsSummary | None
    async_start_delay: StatsSummary | None
    rows_in: StatsSummary | None


_OVER_SUBTASKS = frozenset(StageSummary.__struct_fields__)


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint with all that was measured of it; ``summaries`` are by stage."""

    checkpoint: CheckpointStats
    sources: tuple[SourceStats, ...]
    stages: tuple[StageStats, ...]
    summaries: dict[str, StageSummary]
    exceptions: tuple[TaskException, ...]
    discarded: bool
    external_path: str | None


def summary_of_checkpoints(checkpoints: Iterable[CheckpointStats]) -> Summary:
    completed = [line for line in checkpoints if line.status is CheckpointStatus.COMPLETED]
    return Summary(
        **{
            figure: summary_of(getattr(line, figure) for line in completed)
            for figure in Summary.__struct_fields__
        }
    )


def summary_of_stage(subtasks: Sequence[SubtaskStats]) -> StageSummary:
    figures = [one for one in figures_of(Scope.SUBTASK) if one.name in _OVER_SUBTASKS]
    return StageSummary(**{one.name: summary_of(map(one.of, subtasks)) for one in figures})


def latest_of(checkpoints: Sequence[CheckpointStats], restored: Restored | None) -> Latest:
    """*checkpoints* are in the order of their ids."""
    # The last of equal keys stays.
    newest = {(line.status, line.is_savepoint): line for line in checkpoints}
    return Latest(
        completed=newest.get((CheckpointStatus.COMPLETED, False)),
        savepoint=newest.get((CheckpointStatus.COMPLETED, True)),
        failed=next(
            (line for line in reversed(checkpoints) if line.status is CheckpointStatus.FAILED), None
        ),
        restored=restored,
    )


def failures_by_reason(checkpoints: Iterable[CheckpointStats]) -> dict[str, int]:
    """The number of checkpoints that each reason has ended, the most frequent first."""
    counts: dict[str, int] = {}
    for line in checkpoints:
        if line.failure_reason is not None:
            counts[line.failure_reason] = counts.get(line.failure_reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def history_page(
    checkpoints: Sequence[CheckpointStats],
    *,
    limit: int | None = None,
    before: int | None = None,
    statuses: frozenset[CheckpointStatus] = frozenset(CheckpointStatus),
    types: frozenset[str] = frozenset(),
) -> tuple[CheckpointStats, ...]:
    """The newest *limit* of *checkpoints* with an id below *before*, newest first.

    Without *types* of every type.
    """
    fitting = [
        line
        for line in sorted(checkpoints, key=lambda line: -line.id)
        if line.status in statuses
        and (not types or line.checkpoint_type in types)
        and (before is None or line.id < before)
    ]
    return tuple(fitting[:limit])


def summary_of(values: Iterable[int | None]) -> StatsSummary | None:
    """The distribution of the *values* that were measured; None without any."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    return StatsSummary(
        min=known[0],
        max=known[-1],
        avg=sum(known) // len(known),
        p50=interpolated_percentile(known, 0.5),
        p90=interpolated_percentile(known, 0.9),
        p95=interpolated_percentile(known, 0.95),
        p99=interpolated_percentile(known, 0.99),
        p999=interpolated_percentile(known, 0.999),
    )


def interpolated_percentile(ordered: Sequence[int], share: float) -> float:
    """The value below which *share* of the *ordered* values lie, by the rule that Flink uses: at
    ``share * (n + 1)``, between two values in proportion, and never outside of them.
    """
    position = share * (len(ordered) + 1)
    before = math.floor(position)
    if before < 1:
        return float(ordered[0])
    if before >= len(ordered):
        return float(ordered[-1])
    low, high = ordered[before - 1], ordered[before]
    return low + (position - before) * (high - low)
