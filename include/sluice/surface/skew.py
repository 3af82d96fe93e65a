"""The unevenness of each stage's subtasks, over a job's last completed checkpoints.

Read off the statistics of these checkpoints; nothing is kept for it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from sluice.core.answers import LATE_BOUNDS_MS, HotGroup, LateRows
from sluice.figures.measuring import hottest, sum_of_late
from sluice.figures.record import (
    CheckpointStatistics,
    CheckpointStatus,
    Scope,
    SubtaskStats,
    figures_of,
)
from sluice.job.job import Job
from sluice.store.checkpoints import StatisticsStore
from sluice.surface.checkpoints import overview

MAX_CHECKPOINTS = 50  # The newest, of which each is a GET.


class SkewPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A figure in one checkpoint: over its subtasks, and the ``subtask`` that has the ``max``."""

    checkpoint: int
    trigger_timestamp: int
    median: float
    max: int
    subtask: int


class Skew(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over the checkpoints, old to new.

    ``ratio`` is the sum of the maxima by that of the medians, None where the medians are 0: a stage
    waits for its slowest subtask in each checkpoint anew.  ``worst`` is the subtask that has the
    maximum most often, in ``worst_in`` of the checkpoints.
    """

    ratio: float | None
    worst: int
    worst_in: int
    points: tuple[SkewPoint, ...]


class StageSkew(msgspec.Struct, frozen=True, kw_only=True):
    """``figures``: ``rows_in``, ``late_rows``, ``state_size`` and ``checkpointed_size`` in bytes,
    and ``duration``, in ms from a subtask's start to its ack; those that were measured.  ``late``:
    the late rows of all these checkpoints, by the source or stage that they are of.
    ``hot_groups``: the key groups that had most of their ``rows_in``, of epochs in which they had
    twice the mean of their subtask; ``keys`` came often, in the newest such epoch.
    """

    id: str
    num_subtasks: int
    figures: dict[str, Skew]
    late: dict[str, LateRows]
    rows_in: int = 0
    hot_groups: tuple[HotGroup, ...] = ()


class JobSkew(msgspec.Struct, frozen=True, kw_only=True):
    """Over the newest ``checkpoints``, at most 50, that completed with the present parallelism.

    ``late_bounds`` are those of ``within``, in ms behind the watermark.
    """

    checkpoints: int
    stages: tuple[StageSkew, ...]
    late_bounds: tuple[int, ...] = LATE_BOUNDS_MS


def job_skew(job: Job, *, names_keys: bool = True) -> JobSkew:
    """Two GETs beside the journal's newest entry, and one for each checkpoint.

    Without *names_keys* hot key groups are shown without their keys, which are rows' values.
    """
    done = frozenset({CheckpointStatus.COMPLETED})
    lines = overview(job, limit=MAX_CHECKPOINTS, statuses=done).history
    newest = lines[0].num_subtasks if lines else None
    alike = [line.id for line in lines if line.num_subtasks == newest]
    kept = StatisticsStore(job.store, job.paths).read_each(alike[::-1])
    uids = [stage.id for stage in kept[-1].stages] if kept else []
    stages = tuple(_stage_skew(uid, kept) for uid in uids)
    if not names_keys:
        stages = tuple(map(_nameless, stages))
    return JobSkew(checkpoints=len(kept), stages=stages)


def _nameless(stage: StageSkew) -> StageSkew:
    groups = (dataclasses.replace(one, keys=()) for one in stage.hot_groups)
    return msgspec.structs.replace(stage, hot_groups=tuple(groups))


def _stage_skew(uid: str, kept: Sequence[CheckpointStatistics]) -> StageSkew:
    of_stage = [(one, stage) for one in kept for stage in one.stages if stage.id == uid]
    subtasks = [(one, stage.subtasks) for one, stage in of_stage]
    points: dict[str, list[SkewPoint]] = {}
    for one, measured in subtasks:
        for figure, value in _FIGURES.items():
            values = {s.index: v for s in measured if (v := value(s)) is not None}
            if not values:
                continue
            worst = max(values, key=values.__getitem__)
            points.setdefault(figure, []).append(
                SkewPoint(
                    checkpoint=one.checkpoint.id,
                    trigger_timestamp=one.checkpoint.trigger_timestamp,
                    median=statistics.median(values.values()),
                    max=values[worst],
                    subtask=worst,
                )
            )
    return StageSkew(
        id=uid,
        num_subtasks=max((len(measured) for _, measured in subtasks), default=0),
        figures={figure: _skew(found) for figure, found in points.items()},
        late=sum_of_late(stage.late or {} for _, stage in of_stage),
        rows_in=sum(stage.rows_in or 0 for _, stage in of_stage),
        hot_groups=hottest(stage.hot_groups for _, stage in of_stage),
    )


def _skew(points: Sequence[SkewPoint]) -> Skew:
    medians = sum(point.median for point in points)
    ((worst, times),) = Counter(point.subtask for point in points if point.max).most_common(1) or (
        (points[0].subtask, 0),
    )
    return Skew(
        ratio=sum(point.max for point in points) / medians if medians else None,
        worst=worst,
        worst_in=times,
        points=tuple(points),
    )


def _duration(subtask: SubtaskStats) -> int | None:
    if subtask.ack_timestamp is None or subtask.start_timestamp is None:
        return None
    return max(0, subtask.ack_timestamp - subtask.start_timestamp)


_FIGURES: dict[str, Callable[[SubtaskStats], int | None]] = {"duration": _duration} | {
    one.name: one.of for one in figures_of(Scope.SUBTASK) if one.has_skew
}
