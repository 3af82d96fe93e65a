"""A job's checkpoints and their statistics, for pages, REST, the command line and metrics alike.

``overview`` and ``details`` are the model: an overview of 1,000 checkpoints is two GETs beside the
journal's newest entry, and the details of one checkpoint are one; the figures of a pending
checkpoint are read from the acks that are there.  ``checkpoint_page`` and what follows it are
Flink's REST API, ``history`` is a line for each checkpoint.

``lags`` and ``rates``: how far the sources of a job are behind, and how fast rows flow.  No source
is asked for it: each checkpoint's trigger measured its sources, and the figures are in the plan of
a pending checkpoint and in the statistics of one that has ended.

``job_skew`` is the unevenness of each stage's subtasks over the last completed checkpoints, read
off their statistics; nothing is kept for it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from sluice.core.answers import LATE_BOUNDS_MS, HotGroup, LateRows
from sluice.core.completed import CompletedCheckpoint
from sluice.core.failures import UNKNOWN_CHECKPOINT_ID
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import CoordinatorState, UnsuccessfulTrigger
from sluice.errors import ConfigurationError
from sluice.figures.measuring import (
    hottest,
    stats_of_completed,
    stats_of_failed,
    stats_of_pending,
    sum_of_late,
)
from sluice.figures.overview import (
    Counts,
    Details,
    Overview,
    Restored,
    StatsSummary,
    failures_by_reason,
    history_page,
    latest_of,
    summary_of_checkpoints,
    summary_of_stage,
)
from sluice.figures.rates import (
    Rates,
    SourceLag,
    SourcesAtTrigger,
    lags_of,
    measured_sources,
    rates_of,
    with_pending,
)
from sluice.figures.record import (
    CheckpointAlignment,
    CheckpointStatistics,
    CheckpointStats,
    CheckpointStatus,
    History,
    Scope,
    SourceStats,
    StageStats,
    SubtaskStats,
    SubtaskStatus,
    TaskException,
    figures_of,
    whole_history,
)
from sluice.job.answers import exceptions_in_folder, stages_in_folder
from sluice.job.job import Job
from sluice.job.snapshots import ended_checkpoints, newest_ended, why_not_retained
from sluice.protocol.keys import PipelinePaths
from sluice.store.checkpoints import StatisticsStore


class CheckpointPage(Overview, frozen=True, kw_only=True):
    """Flink's CheckpointingStatistics.  ``next``: the older page is that *before* this id."""

    next: int | None


class CheckpointWithTasks(CheckpointStats, frozen=True, kw_only=True, omit_defaults=True):
    """Flink's CheckpointStatistics: a checkpoint, with the sums of each stage in ``tasks``, and the
    figures of each source.

    ``discarded``: it completed, and its files are gone; ``external_path``: where they are;
    ``exceptions``: what subtasks declined with, and tasks failed with.
    """

    discarded: bool
    external_path: str | None
    sources: dict[str, SourceStats]
    tasks: dict[str, StageStats]
    exceptions: tuple[TaskException, ...]


class CheckpointDurations(msgspec.Struct, frozen=True, kw_only=True):
    sync: StatsSummary | None
    async_: StatsSummary | None = msgspec.field(name="async")
    async_start_delay: StatsSummary | None


class SubtaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Over the subtasks that have answered."""

    checkpointed_size: StatsSummary | None
    state_size: StatsSummary | None
    end_to_end_duration: StatsSummary | None
    checkpoint_duration: CheckpointDurations
    start_delay: StatsSummary | None
    rows_in: StatsSummary | None


class SubtaskWithAlignment(SubtaskStats, frozen=True, kw_only=True):
    """Flink's SubtaskCheckpointStatistics.  ``alignment`` and ``unaligned_checkpoint`` are the
    stage's: its inputs are sealed for all of its subtasks at once.
    """

    status: SubtaskStatus
    alignment: CheckpointAlignment
    unaligned_checkpoint: bool


class StageWithSubtasks(StageStats, frozen=True, kw_only=True, omit_defaults=True):
    """Flink's TaskCheckpointStatisticsWithSubtaskDetails; ``id`` is the stage's uid here."""

    checkpoint_id: int
    summary: SubtaskSummary
    subtasks: tuple[SubtaskWithAlignment, ...] = ()


class CheckpointRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the history.  ``status`` is Flink's IN_PROGRESS, COMPLETED or FAILED.

    ``discarded``: it completed, and left the store since; of a savepoint only the copy is left.
    ``id`` is Flink's UNKNOWN_CHECKPOINT_ID, -1, where the trigger was refused, so that there is no
    checkpoint: FAILED as well, and as in Flink's counts.
    """

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
    discarded: bool = False


class JobLag(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of each source, and the rates of each node, as far as they are known.

    ``checkpoint`` is the completed checkpoint that they are of, ``age_ms`` ago.
    """

    checkpoint: int | None
    age_ms: int | None
    sources: tuple[SourceLag, ...]
    rates: Rates | None


def overview(
    job: Job,
    *,
    limit: int | None = None,
    before: int | None = None,
    statuses: frozenset[CheckpointStatus] = frozenset(CheckpointStatus),
    types: frozenset[str] = frozenset(),
    state: CoordinatorState | None = None,
) -> Overview:
    """Counts, distributions, the latest of each kind, and a page of the history, as of *state*.

    The page has the newest *limit* checkpoints with an id below *before*, of the *statuses* and, if
    any are given, *types*.  A pending checkpoint costs a LIST, and a GET for each stage that ended.
    """
    state = state or job.state()
    ended = _history(job, state)
    pending = [_pending(job, checkpoint).checkpoint for checkpoint in state.pending]
    known = [*ended.checkpoints, *pending]
    return Overview(
        counts=Counts(
            restored=state.num_restored,
            total=ended.completed + ended.failed + len(pending),
            in_progress=len(pending),
            completed=ended.completed,
            failed=ended.failed,
            unsuccessful_triggers=state.num_unsuccessful_triggers,
        ),
        summary=summary_of_checkpoints(known),
        latest=latest_of(known, _restored(job, state)),
        failures=failures_by_reason(known),
        history=history_page(known, limit=limit, before=before, statuses=statuses, types=types),
    )


def details(job: Job, checkpoint_id: CheckpointId) -> Details:
    """All that was measured of a checkpoint, retained or not, pending or failed.

    Raises:
        ConfigurationError: there is none, or it ended so long ago that nothing is kept of it.
    """
    state = job.state()
    pending = state.pending_checkpoint(checkpoint_id)
    if pending is not None:
        kept = _pending(job, pending)
    else:
        stored = StatisticsStore(job.store, job.paths).read(checkpoint_id)
        kept = stored or _derived(job, state, checkpoint_id)
    retained = state.completed_checkpoint(checkpoint_id)
    path = f"{job.store.root}/{job.paths.checkpoint(checkpoint_id)}"
    line = kept.checkpoint
    is_done = line.status is CheckpointStatus.COMPLETED
    committed = retained.is_committed if retained is not None else line.committed or None
    return Details(
        checkpoint=msgspec.structs.replace(line, committed=committed),
        sources=kept.sources,
        stages=kept.stages,
        summaries={stage.id: summary_of_stage(stage.subtasks) for stage in kept.stages},
        exceptions=kept.exceptions,
        discarded=is_done and retained is None,
        external_path=None if retained is None else path,
    )


def checkpoint_page(
    job: Job,
    *,
    limit: int,
    before: int | None = None,
    statuses: frozenset[CheckpointStatus] = frozenset(CheckpointStatus),
    types: frozenset[str] = frozenset(),
) -> CheckpointPage:
    """The newest *limit* checkpoints with an id below *before*, and the figures of all of them."""
    whole = overview(job, limit=limit + 1, before=before, statuses=statuses, types=types)
    has_more = len(whole.history) > limit
    shown = whole.history[:limit]
    fields = _fields(whole) | {"history": shown}
    return CheckpointPage(**fields, next=shown[-1].id if has_more else None)


def checkpoint_with_tasks(job: Job, checkpoint_id: CheckpointId) -> CheckpointWithTasks:
    """Raises ConfigurationError: there is none, or nothing is kept of it any more."""
    known = details(job, checkpoint_id)
    return CheckpointWithTasks(
        **_fields(known.checkpoint),
        discarded=known.discarded,
        external_path=known.external_path,
        sources={source.id: source for source in known.sources},
        tasks={stage.id: _without_rows(stage) for stage in known.stages},
        exceptions=known.exceptions,
    )


def _without_rows(stage: StageStats) -> StageStats:
    """Without its subtasks, and without hot keys: those are rows' values."""
    return msgspec.structs.replace(stage, subtasks=(), hot_groups=())


def stage_with_subtasks(job: Job, checkpoint_id: CheckpointId, stage: str) -> StageWithSubtasks:
    """Raises ConfigurationError: there is no such checkpoint, or nothing is known of that stage."""
    known = details(job, checkpoint_id)
    stages = {figures.id: figures for figures in known.stages}
    if stage not in stages:
        raise ConfigurationError(
            f"of stage {stage!r} nothing is known in checkpoint {checkpoint_id}; it has "
            f"{', '.join(stages) or 'no figures of stages'}"
        )
    flat, figures = known.summaries[stage], stages[stage]
    subtasks = tuple(
        SubtaskWithAlignment(
            **_fields(subtask),
            alignment=CheckpointAlignment(duration=figures.alignment.duration),
            unaligned_checkpoint=figures.unaligned_checkpoint,
        )
        for subtask in figures.subtasks
    )
    return StageWithSubtasks(
        **_fields(_without_rows(figures)) | {"subtasks": subtasks},
        checkpoint_id=checkpoint_id,
        summary=SubtaskSummary(
            **_picked(flat, SubtaskSummary),
            checkpoint_duration=CheckpointDurations(**_picked(flat, CheckpointDurations)),
        ),
    )


def history(
    job: Job,
    *,
    limit: int | None = None,
    statuses: frozenset[CheckpointStatus] = frozenset(CheckpointStatus),
) -> list[CheckpointRecord]:
    """The newest *limit* checkpoints of the *statuses*, in id order; None is all that are kept.

    Among them, by its time, is each refused trigger that the journal remembers.
    """
    state = job.state()
    page = overview(job, limit=limit, statuses=statuses, state=state).history
    records = [_record(checkpoint, state) for checkpoint in reversed(page)]
    refused = state.unsuccessful_triggers if CheckpointStatus.FAILED in statuses else ()
    for trigger in refused:
        later = (n for n, one in enumerate(records) if one.triggered_at_ms > trigger.failed_at_ms)
        records.insert(next(later, len(records)), _refused(trigger))
    return records if limit is None else records[-limit:]


def job_lag(job: Job) -> JobLag:
    """A LIST and two GETs; one more for each checkpoint that is pending, or failed since."""
    state = job.state()
    done, kept = newest_measured(job, state)
    return JobLag(
        checkpoint=None if done is None else done.checkpoint_id,
        age_ms=None if done is None else max(0, job.now_ms() - done.completed_at_ms),
        sources=lags(job, state, done, kept),
        rates=rates(job, kept),
    )


def newest_measured(
    job: Job, state: CoordinatorState
) -> tuple[CompletedCheckpoint | None, CheckpointStatistics | None]:
    """The newest completed checkpoint, or savepoint, and its statistics: a GET."""
    done = newest_of(state)
    kept = None if done is None else StatisticsStore(job.store, job.paths).read(done.checkpoint_id)
    return done, kept


def newest_of(state: CoordinatorState) -> CompletedCheckpoint | None:
    """The newest completed checkpoint, or savepoint."""
    return max(state.completed, key=attrgetter("checkpoint_id"), default=None)


def lags(
    job: Job,
    state: CoordinatorState,
    done: CompletedCheckpoint | None,
    kept: CheckpointStatistics | None,
) -> tuple[SourceLag, ...]:
    """The lag of each source; *done* is the newest completed checkpoint, *kept* its statistics.

    A GET for each pending checkpoint, or for each that failed since.
    """
    completed = None
    if done is not None:
        completed = SourcesAtTrigger(at_ms=done.triggered_at_ms, sources=_sources(job, done, kept))
    newest = 0 if done is None else done.checkpoint_id
    if any(pending.checkpoint_id > newest for pending in state.pending):
        later = _pending_triggers(job, state, newest)
    else:
        later = _failed_triggers(job, state, newest)
    return lags_of(completed, later)


def rates(job: Job, kept: CheckpointStatistics | None) -> Rates | None:
    return None if kept is None else rates_of(kept.flow, job.now_ms())


def _history(job: Job, state: CoordinatorState) -> History:
    """The checkpoints that have ended, the newest ``history_size`` of them."""
    store, ended = StatisticsStore(job.store, job.paths), ended_checkpoints(state)
    bound = job.pipeline.checkpointing.history_size
    likely = newest_ended(state)
    newest = None if likely is None else store.newest(likely)
    if newest is None:
        return whole_history(History(), (), ended, bound=bound)
    before = newest.history
    older = store.read(before.older) if before.older is not None else None
    lines = older.history.checkpoints if older is not None else ()
    return whole_history(before, lines, ended, bound=bound)


def _pending(job: Job, pending: PendingCheckpoint) -> CheckpointStatistics:
    """The figures of a pending checkpoint so far; without its plan, only that it is pending."""
    checkpoint_id = pending.checkpoint_id
    plan = job.plan(checkpoint_id)
    sources = () if plan is None else measured_sources(plan)
    stages: tuple[StageStats, ...] | None = None
    exceptions: tuple[TaskException, ...] = ()
    if plan is not None:
        folder = [*job.store.list(job.paths.checkpoint(checkpoint_id))]
        exceptions = exceptions_in_folder(job, checkpoint_id, folder)
        stages = stages_in_folder(
            job,
            plan,
            folder,
            status=CheckpointStatus.IN_PROGRESS,
            attempts={task.uid: pending.attempt_of(task.uid) for task in plan.tasks},
            overtaken=pending.overtaken,
        )
    return CheckpointStatistics(
        checkpoint=with_pending(stats_of_pending(pending, stages), sources),
        history=History(),
        sources=sources,
        stages=stages or (),
        exceptions=exceptions,
    )


def _derived(
    job: Job, state: CoordinatorState, checkpoint_id: CheckpointId
) -> CheckpointStatistics:
    """Statistics that were not kept, from a retained checkpoint's folder or the history's line."""
    done, failed = state.completed_checkpoint(checkpoint_id), state.failed_checkpoint(checkpoint_id)
    if done is not None:
        stages = _retained_stages(job, checkpoint_id)
        line = stats_of_completed(done, stages)
        return CheckpointStatistics(checkpoint=line, history=History(), stages=stages or ())
    if failed is not None:
        return CheckpointStatistics(checkpoint=stats_of_failed(failed), history=History())
    for ended in _history(job, state).checkpoints:
        if ended.id == checkpoint_id:
            return CheckpointStatistics(checkpoint=ended, history=History())
    raise ConfigurationError(why_not_retained(job, state, str(checkpoint_id)))


def _retained_stages(job: Job, checkpoint_id: CheckpointId) -> tuple[StageStats, ...] | None:
    plan = job.plan(checkpoint_id)
    if plan is None:
        return None
    metadata = job.metadata(checkpoint_id)
    return stages_in_folder(
        job,
        plan,
        [*job.store.list(job.paths.checkpoint(checkpoint_id))],
        status=CheckpointStatus.COMPLETED,
        overtaken=[stage.uid for stage in metadata.stages if stage.is_overtaken],
        metadata=metadata,
    )


def _restored(job: Job, state: CoordinatorState) -> Restored | None:
    restored = state.restored
    if restored is None:
        return None
    origin = restored.origin
    root = (origin.root if origin is not None else "") or job.store.root
    names = PipelinePaths((origin.pipeline if origin is not None else "") or job.pipeline.uid)
    if origin is None:
        key = job.paths.checkpoint(restored.checkpoint_id)
    elif origin.savepoint is not None:
        key = names.savepoint(origin.savepoint)
    else:
        key = names.of_journal(origin.token).checkpoint(restored.checkpoint_id)
    return Restored(
        id=restored.checkpoint_id,
        restore_timestamp=restored.restored_at_ms,
        is_savepoint=restored.is_savepoint,
        external_path=f"{root}/{key}",
    )


def _picked(record: msgspec.Struct, of: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: value for name, value in _fields(record).items() if name in of.__struct_fields__}


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _record(stats: CheckpointStats, state: CoordinatorState) -> CheckpointRecord:
    ended = stats.completed_timestamp or stats.failure_timestamp
    is_done = stats.status is CheckpointStatus.COMPLETED
    return CheckpointRecord(
        id=stats.id,
        type=stats.checkpoint_type,
        status=stats.status.value,
        triggered_at_ms=stats.trigger_timestamp,
        duration_ms=None if ended is None else ended - stats.trigger_timestamp,
        records=stats.records or 0,
        checkpointed_bytes=stats.checkpointed_size if is_done else None,
        committed=bool(stats.committed),
        reason=stats.failure_reason,
        message=stats.failure_message,
        discarded=is_done and state.completed_checkpoint(stats.id) is None,
    )


def _refused(trigger: UnsuccessfulTrigger) -> CheckpointRecord:
    return CheckpointRecord(
        id=UNKNOWN_CHECKPOINT_ID,
        type=trigger.type.value,
        status=CheckpointStatus.FAILED.value,
        triggered_at_ms=trigger.failed_at_ms,
        duration_ms=None,
        records=0,
        checkpointed_bytes=None,
        committed=False,
        reason=trigger.reason.value,
        message=trigger.message,
    )


def _sources(
    job: Job, done: CompletedCheckpoint, kept: CheckpointStatistics | None
) -> tuple[SourceStats, ...]:
    """The sources in the statistics, or else, with fewer figures, those in the plan."""
    if kept is not None and kept.sources:
        return kept.sources
    plan = job.plan(done.checkpoint_id)
    return () if plan is None else measured_sources(plan)


def _pending_triggers(job: Job, state: CoordinatorState, newest: int) -> list[SourcesAtTrigger]:
    """The pending checkpoints after *newest*, each of which continues the one before it."""
    ids = sorted(one.checkpoint_id for one in state.pending if one.checkpoint_id > newest)
    plans = [job.plan(checkpoint_id) for checkpoint_id in ids]
    return [
        SourcesAtTrigger(at_ms=plan.triggered_at_ms, sources=measured_sources(plan))
        for plan in plans
        if plan is not None
    ]


def _failed_triggers(job: Job, state: CoordinatorState, newest: int) -> list[SourcesAtTrigger]:
    """The checkpoint that failed last after *newest*, and the failed ones that it continued."""
    triggers: list[SourcesAtTrigger] = []
    checkpoint_id = max((failed.checkpoint_id for failed in state.failed), default=0)
    while checkpoint_id > newest:
        kept = StatisticsStore(job.store, job.paths).read(checkpoint_id)
        if kept is None:
            break
        triggers.append(
            SourcesAtTrigger(at_ms=kept.checkpoint.trigger_timestamp, sources=kept.sources)
        )
        checkpoint_id = min(kept.parent or 0, checkpoint_id - 1)
    return triggers[::-1]


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
