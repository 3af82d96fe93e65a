"""A job's checkpoints as in Flink's REST API: a page of the history, one, one's subtasks."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.core.ids import CheckpointId
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.statistics.checkpoints import (
    CheckpointStats,
    CheckpointStatus,
    SourceStats,
    StageStats,
    SubtaskException,
)
from sluice.statistics.overview import Overview, StageSummary
from sluice.statistics.percentiles import StatsSummary
from sluice.views.statistics import details, overview


class CheckpointPage(Overview, frozen=True, kw_only=True):
    """Flink's CheckpointingStatistics.  ``next``: the older page is that *before* this id."""

    next: int | None


class CheckpointWithTasks(CheckpointStats, frozen=True, kw_only=True, omit_defaults=True):
    """Flink's CheckpointStatistics: a checkpoint, with the sums of each stage in ``tasks``, and the
    figures of each source.

    ``discarded``: it completed, and its files are gone; ``external_path``: where they are;
    ``exceptions``: the words of subtasks that declined.
    """

    discarded: bool
    external_path: str | None
    sources: dict[str, SourceStats]
    tasks: dict[str, StageStats]
    exceptions: tuple[SubtaskException, ...]


class CheckpointDurations(msgspec.Struct, frozen=True, kw_only=True):
    sync: StatsSummary | None
    async_: StatsSummary | None = msgspec.field(name="async")


class SubtaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Over the subtasks that have answered."""

    checkpointed_size: StatsSummary | None
    state_size: StatsSummary | None
    end_to_end_duration: StatsSummary | None
    checkpoint_duration: CheckpointDurations
    start_delay: StatsSummary | None
    rows_in: StatsSummary | None


class StageWithSubtasks(StageStats, frozen=True, kw_only=True, omit_defaults=True):
    """Flink's TaskCheckpointStatisticsWithSubtaskDetails; ``id`` is the stage's uid here."""

    checkpoint_id: int
    summary: SubtaskSummary


def checkpoint_page(
    job: Job,
    *,
    limit: int,
    before: int | None = None,
    statuses: frozenset[CheckpointStatus] = frozenset(CheckpointStatus),
    types: frozenset[str] = frozenset(),
) -> CheckpointPage:
    """The newest *limit* checkpoints with an id below *before*, and what is true of all of them."""
    found = overview(job, limit=limit + 1, before=before, statuses=statuses, types=types)
    shown = found.history[:limit]
    has_more = len(found.history) > limit
    return CheckpointPage(
        counts=found.counts,
        summary=found.summary,
        latest=found.latest,
        failures=found.failures,
        history=shown,
        next=shown[-1].id if has_more else None,
    )


def checkpoint_with_tasks(job: Job, checkpoint_id: CheckpointId) -> CheckpointWithTasks:
    """Raises ConfigurationError: there is none, or nothing is kept of it any more."""
    found = details(job, checkpoint_id)
    return CheckpointWithTasks(
        **_fields(found.checkpoint),
        discarded=found.discarded,
        external_path=found.external_path,
        sources={source.id: source for source in found.sources},
        tasks={stage.id: msgspec.structs.replace(stage, subtasks=()) for stage in found.stages},
        exceptions=found.exceptions,
    )


def stage_with_subtasks(job: Job, checkpoint_id: CheckpointId, stage: str) -> StageWithSubtasks:
    """Raises ConfigurationError: there is no such checkpoint, or nothing is known of that stage."""
    found = details(job, checkpoint_id)
    known = {one.id: one for one in found.stages}
    if stage not in known:
        raise ConfigurationError(
            f"of stage {stage!r} nothing is known in checkpoint {checkpoint_id}; it has "
            f"{', '.join(known) or 'no figures of stages'}"
        )
    return StageWithSubtasks(
        **_fields(known[stage]),
        checkpoint_id=checkpoint_id,
        summary=_summary(found.summaries[stage]),
    )


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _summary(flat: StageSummary) -> SubtaskSummary:
    return SubtaskSummary(
        checkpointed_size=flat.checkpointed_size,
        state_size=flat.state_size,
        end_to_end_duration=flat.end_to_end_duration,
        checkpoint_duration=CheckpointDurations(sync=flat.sync, async_=flat.async_),
        start_delay=flat.start_delay,
        rows_in=flat.rows_in,
    )
