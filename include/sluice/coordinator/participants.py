"""The stages that take part in the next checkpoint, and how each of them does.

Flink's CheckpointPlanCalculator waits for every subtask that runs.  Here a stage finishes as a
whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.core.key_groups import check_parallelism, default_max_parallelism
from sluice.core.plan import SourceCut, TaskPlan
from sluice.core.state import CoordinatorState
from sluice.core.watermarks import MAX_WATERMARK
from sluice.epoch.lineage import Lineage, PendingParent
from sluice.job.job import Job


def running_and_finished(
    job: Job, lineage: Lineage, cuts: Mapping[str, SourceCut]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The stages that take part, and those that saw the end of their input at the parent's barrier.

    When every one has, all take part: the job is about to end, or was restored after its end.
    """
    done: set[str] = set()
    for uid, stage in job.pipeline.stages.items():
        inputs_ended = all(
            _had_ended(lineage, cuts[producer]) if producer in cuts else producer in done
            for producer in stage.producers
        )
        if inputs_ended and _has_seen_the_end(lineage, uid):
            done.add(uid)
    running = tuple(uid for uid in job.pipeline.stages if uid not in done)
    if not running:
        return tuple(job.pipeline.stages), ()
    return running, tuple(uid for uid in job.pipeline.stages if uid in done)


def _had_ended(lineage: Lineage, cut: SourceCut) -> bool:
    """Whether the source was exhausted at the parent's barrier, and still is."""
    before = lineage.source(cut.uid)
    return before is not None and before.exhausted and cut.exhausted and not cut.slices


def _has_seen_the_end(lineage: Lineage, uid: str) -> bool:
    if isinstance(lineage, PendingParent):
        return True  # It reads the end in the parent's epoch, which is aligned.
    stage = lineage.stage(uid)
    if stage is None or stage.in_flight_segments:
        return False
    return stage.watermark_ms == MAX_WATERMARK


def _is_needed_now(job: Job, uid: str, lineage: Lineage) -> bool:
    """Whether a stage behind this one reads a source as well, and no column of this one is known.

    Records of a source do not wait: the epoch that was cut has to read them.
    """
    stage = lineage.stage(uid)
    if stage is not None and stage.schema:
        return False
    return any(
        _reads_a_source(job, consumer.uid) or _is_needed_now(job, consumer.uid, lineage)
        for consumer in job.pipeline.consumers_of(uid)
    )


def _is_before_a_source(job: Job, uid: str) -> bool:
    """Whether a stage behind this one reads a source as well: it would be overtaken with this one,
    and the records of its source that were cut for this epoch would never be read.
    """
    return any(
        _reads_a_source(job, consumer.uid) or _is_before_a_source(job, consumer.uid)
        for consumer in job.pipeline.consumers_of(uid)
    )


def _reads_a_source(job: Job, uid: str) -> bool:
    return len(job.pipeline.upstream_of(uid)) < len(job.pipeline.stages[uid].inputs)


def task_plan(
    job: Job, state: CoordinatorState, uid: str, lineage: Lineage, *, must_align: bool
) -> TaskPlan:
    """One stage of the plan, and whether it may be overtaken.

    A stage that reads a source is never overtaken, and none before it: its unread records are in
    the source, not in flight.  A stage that was overtaken in the parent is not overtaken again, so
    that it advances.  One whose columns are unknown runs where a stage behind it cannot read its
    source without them.
    """
    parallelism = job.parallelism_of(uid, state.configuration)
    declared = job.pipeline.max_parallelism or default_max_parallelism(parallelism)
    max_parallelism = lineage.max_parallelism(uid) or declared
    check_parallelism(uid, parallelism, max_parallelism)
    upstream = job.pipeline.upstream_of(uid)
    is_wanted = state.configuration.unaligned and not must_align
    is_possible = is_wanted and not _reads_a_source(job, uid)
    can_be_behind = is_possible and not _is_needed_now(job, uid, lineage)
    is_from_the_start = state.configuration.aligned_timeout_ms == 0
    is_unaligned = can_be_behind and (is_from_the_start or lineage.was_overtaken(uid))
    may_be_overtaken = can_be_behind and not is_unaligned and not _is_before_a_source(job, uid)
    return TaskPlan(
        uid=uid,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        is_unaligned=is_unaligned,
        may_be_overtaken=may_be_overtaken,
        reads=upstream,
    )
