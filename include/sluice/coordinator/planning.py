"""The plan of the next checkpoint: the barrier in every source, and the stages that take part.

Flink's CheckpointPlanCalculator waits for every subtask that runs.  Here a stage finishes as a
whole.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from sluice.coordinator.compatibility import require_same_chain
from sluice.coordinator.notifications import call_hook, hold
from sluice.coordinator.requests import timeout_ms
from sluice.core.configuration import CheckpointType, ClaimMode
from sluice.core.decider import CheckpointRequest
from sluice.core.event_time import MAX_WATERMARK, with_activity
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.core.key_groups import check_parallelism, default_max_parallelism
from sluice.core.plan import CheckpointPlan, Slice, SourceCut, TaskPlan
from sluice.core.position import Position, with_layers
from sluice.core.requests import records_of_next_epoch
from sluice.core.restoring import recomputed_since
from sluice.core.state import CoordinatorState
from sluice.core.transitions import Fingerprint, adoption, columns_begun, with_past
from sluice.declaration.fingerprints import fingerprints, shorter_ttls_ms
from sluice.declaration.places import Barrier, Source, takes_rows_back
from sluice.errors import BEGIN_ANEW, ConfigurationError, SourceUnreadable, of_pipeline
from sluice.job.job import Job, new_token
from sluice.job.lineage import (
    CompletedParent,
    Lineage,
    PendingParent,
    layer_of,
    lineage_of_tip,
    load_position,
    store_layers,
)
from sluice.job.places import (
    NOT_COPIED,
    keeps_copies,
    open_source,
    starts_at_end,
    store_copies,
    with_copies,
    write_table,
)
from sluice.store.journal import Head

log = logging.getLogger(__name__)

Barriers: TypeAlias = Mapping[str, Mapping[str, int]]
"""An end offset per source and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToDo:
    """A periodic checkpoint would read nothing, as nothing is there."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailed:
    """A master hook refused the checkpoint."""

    message: str


def make_plan(
    job: Job, head: Head, request: CheckpointRequest, barriers: Barriers
) -> CheckpointPlan | NothingToDo:
    """The plan of the checkpoint that *request* asks for; nothing is written yet.

    *barriers* are those that were decided elsewhere.

    Raises:
        ConfigurationError: a source cannot be read as declared, or the chain is not that of before.
        RestoreError: the checkpoint that the epoch continues is gone.
    """
    state = head.state
    lineage = lineage_of_tip(job, state)
    require_same_chain(job.pipeline, state, lineage)
    full = request.is_full or is_full(state)
    if request.again:
        cuts = cut_again(job, state, lineage, request.again, shares_files=not full)
    else:
        cuts = cut_sources(job, state, lineage, barriers, shares_files=not full)
    streams = {source.uid for source in job.pipeline.stream_sources()}
    exhausted = all(cut.exhausted for cut in cuts if cut.uid in streams)
    drains = exhausted or request.type is CheckpointType.SAVEPOINT_TERMINATE
    running, finished = running_and_finished(job, lineage, {c.uid: c for c in cuts})
    # A finished stage runs once more to copy its state.  With checkpoints_after_tasks_finish off
    # none finishes before the job does: a checkpoint is what reads on here, so the others' rest
    # would never be read.
    finishes = state.configuration.checkpoints_after_tasks_finish
    declared = fingerprints(job.pipeline, state.configuration.params)
    begun = () if state.pending else state.consent.within(declared).begun
    recomputed = _recomputed(lineage, declared)
    anew = (*begun, *recomputed)
    rewrites = (
        bool(recomputed)
        or _adopts(job, lineage, declared)
        or any(
            columns_begun(begun, uid)
            or shorter_ttls_ms(stage, lineage.fingerprint(uid), declared.get(uid))
            for uid, stage in job.pipeline.stages.items()
        )
    )
    if full or request.is_canonical or rewrites or not finishes:
        running, finished = tuple(job.pipeline.stages), ()
    must_align = request.type.is_savepoint or drains or full or rewrites
    now_ms = job.now_ms()
    plan = CheckpointPlan(
        checkpoint_id=state.next_checkpoint_id,
        token=new_token(),
        generation=state.generation,
        parent=state.tip,
        origin=None if state.pending else state.origin,
        ignores_in_flight=not state.pending and state.ignores_in_flight,
        begun=begun,
        recomputed=tuple(sorted(recomputed)),
        fingerprints={
            uid: with_past(uid, lineage.fingerprint(uid), of, anew) for uid, of in declared.items()
        },
        type=request.type,
        triggered_at_ms=now_ms,
        expires_at_ms=now_ms + timeout_ms(job, state),
        drains=drains,
        sources=cuts,
        tasks=tuple(task_plan(job, state, uid, lineage, must_align=must_align) for uid in running),
        finished=finished,
        starts_lineage=_starts_lineage(state, lineage),
        is_full=full,
        is_canonical=request.is_canonical,
        processing_time_ms=max(now_ms, state.tip_processing_time_ms),
        cause=request.cause,
        savepoint_token="" if request.savepoint_name is None else new_token(),
        journal_seq=head.seq,
    )
    has_work = bool(plan.records) or drains or full
    if request.is_periodic and not (has_work or work_without_records(job, state, lineage)):
        return NothingToDo(message="no new records since the last checkpoint")
    return plan


def work_without_records(job: Job, state: CoordinatorState, lineage: Lineage) -> str:
    """Why the next epoch has work though there are no new records; empty if it has none."""
    if is_full(state):
        return "the first checkpoint after a restore shares no files"
    if starting := _starting_sources(job, state, lineage):
        return f"{', '.join(starting)} begins with what comes from now on"
    if _has_rows_in_flight(job, lineage):
        return "rows are in flight"
    declared = fingerprints(job.pipeline, state.configuration.params)
    if _recomputed(lineage, declared) or _adopts(job, lineage, declared):
        return "the declaration changed, and what is kept has to follow it"
    return ""


def _recomputed(lineage: Lineage, declared: Mapping[str, Fingerprint]) -> frozenset[str]:
    parent = lineage.metadata if isinstance(lineage, CompletedParent) else None
    return frozenset() if parent is None else recomputed_since(parent, declared)


def _adopts(job: Job, lineage: Lineage, declared: Mapping[str, Fingerprint]) -> bool:
    return any(
        adoption(uid, lineage.fingerprint(uid), declared.get(uid))
        for uid in (*job.pipeline.stages, *job.pipeline.sinks)
    )


def _starting_sources(job: Job, state: CoordinatorState, lineage: Lineage) -> tuple[str, ...]:
    """The sources that start at the end of their input, and have no position yet.

    A checkpoint keeps that end though it reads nothing; else the next would start at a later one.
    """
    return tuple(
        node.uid
        for node in job.pipeline.stream_sources()
        if lineage.source(node.uid) is None
        and starts_at_end(open_source(job, node.uid, state.configuration.params))
    )


def is_full(state: CoordinatorState) -> bool:
    """The first checkpoint behind a snapshot that is not the job's own shares no file with it."""
    return not state.pending and state.origin is not None and state.claim_mode is ClaimMode.NO_CLAIM


def cut_sources(
    job: Job,
    state: CoordinatorState,
    lineage: Lineage,
    barriers: Barriers,
    *,
    shares_files: bool,
) -> tuple[SourceCut, ...]:
    """The checkpoint's barrier in each source of the pipeline, and the records before it.

    With *shares_files* a position may continue layers that an earlier checkpoint wrote.

    Raises:
        ConfigurationError: a source cannot be read as declared, or a barrier is for none.
    """
    _check_barriers(job, barriers)
    left, streams = records_of_next_epoch(state), len(job.pipeline.stream_sources())
    cuts: list[SourceCut] = []
    for uid, source in job.pipeline.sources.items():
        share = None if left is None else -(-left // max(1, streams))
        limits = (share, state.configuration.max_records_per_epoch)
        max_records = min((limit for limit in limits if limit is not None), default=None)
        cuts.append(
            _cut(job, state, uid, lineage, barriers, max_records, shares_files=shares_files)
        )
        if not source.is_table:  # Records that a source has not got are left to those behind it.
            streams -= 1
            left = None if left is None else max(streams, left - cuts[-1].records)
    return tuple(cuts)


def cut_again(
    job: Job,
    state: CoordinatorState,
    lineage: Lineage,
    words: Sequence[str],
    *,
    shares_files: bool,
) -> tuple[SourceCut, ...]:
    """The barriers of a backfill: what *words* choose is read again, and nothing else is read.

    Raises:
        ConfigurationError: they choose nothing, or input that may not be replaced.
    """
    cuts: list[SourceCut] = []
    is_chosen, unknown = False, {*words}
    others: dict[str, Source] = {}
    params = state.configuration.params
    keepers = replaceable_sources(job, state)
    for uid, node in job.pipeline.sources.items():
        if node.is_table:
            cuts.append(_cut(job, state, uid, lineage, {}, None, shares_files=shares_files))
            continue
        previous = lineage.source(uid)
        source = with_copies(job, previous, open_source(job, uid, params))
        before = load_position(job, previous)
        _require_kept(uid, previous, before, source)
        if keeps_copies(source):
            named = source.named_by(before.whole, words)
            if uid == keepers[-1]:  # It refuses words that no source knows.
                named = (*named, *(word for word in unknown if word not in named))
            unknown -= {*named}
            barrier = source.plan_again(before.whole, named, parallelism=_readers(job, state, uid))
            is_chosen = is_chosen or bool(barrier.slices)
        else:
            others[uid] = source
            barrier = source.plan(before.whole, max_records=None, parallelism=1, until={})
        cuts.append(_as_cut(job, uid, previous, before, source, barrier, shares_files=shares_files))
    if not is_chosen:
        asked = ", ".join(words)
        if not keepers:
            in_folders = [uid for uid, of in others.items() if of.partition_values(()) is not None]
            refused = in_folders[-1] if in_folders else ""
            raise ConfigurationError(not_replaceable_message(job, asked, refused))
        raise ConfigurationError(
            f"no file that was read, or is there, is in {asked}; name folders as "
            "'dt=2026-03-01', 'dt=2026-03-01..02' or 'dt=2026-03-01/country=de'"
        )
    return tuple(cuts)


def replaceable_sources(job: Job, state: CoordinatorState) -> list[str]:
    """The uids of the sources that can read their input again."""
    given = state.configuration.params
    return [
        uid
        for uid, node in job.pipeline.sources.items()
        if takes_rows_back(node.spec) and keeps_copies(open_source(job, uid, given))
    ]


def not_replaceable_message(job: Job, asked: str, source: str = "") -> str:
    """The reason why *asked* cannot be read again: no source, or not *source*, declares it."""
    what = f"source {source!r}" if source else f"no source of {job.pipeline.uid!r}"
    declares = "does not declare" if source else "declares"
    return (
        f"{what} {declares} input that is replaced, so {asked} cannot be read again "
        "without counting it twice; declare Files(..., replaced='by partition')"
    )


def _check_barriers(job: Job, barriers: Barriers) -> None:
    streams = [source.uid for source in job.pipeline.stream_sources()]
    for uid in barriers:
        if uid not in streams:
            raise ConfigurationError(
                f"a barrier is given for {uid!r}, which is no stream source of "
                f"{job.pipeline.uid!r}; those are {', '.join(streams)}"
            )


def _cut(
    job: Job,
    state: CoordinatorState,
    uid: str,
    lineage: Lineage,
    barriers: Barriers,
    max_records: int | None,
    *,
    shares_files: bool,
) -> SourceCut:
    node, previous = job.pipeline.sources[uid], lineage.source(uid)
    source = with_copies(job, previous, open_source(job, uid, state.configuration.params))
    if node.is_table:
        return SourceCut(uid=uid, position=(), table=previous.table if previous else None)
    before = load_position(job, previous)
    _require_kept(uid, previous, before, source)
    try:
        barrier = source.plan(
            before.whole,
            max_records=max_records,
            parallelism=_readers(job, state, uid),
            until=barriers.get(uid, {} if node.is_induced else None),
        )
    except ConfigurationError as error:
        if uid in barriers:
            raise  # The caller's barrier may be wrong, and not the source.
        raise SourceUnreadable(of_pipeline(str(error), job.pipeline.uid)) from error
    return _as_cut(job, uid, previous, before, source, barrier, shares_files=shares_files)


def _require_kept(uid: str, previous: SourceCut | None, before: Position, source: Source) -> None:
    """Check that the root has copies of what was read if, and only if, rows may be taken back.

    Raises:
        SourceUnreadable: it differs, because the source was declared otherwise when it was read.
    """
    was_kept = previous is not None and bool(previous.copies)
    if was_kept == keeps_copies(source) or not any(entry.offset for entry in before.whole):
        return
    what = (
        "does not take rows back any more, and the stages behind it keep state of rows that it may"
        if was_kept
        else "takes rows back now, and of what it has read the root keeps no copies"
    )
    raise SourceUnreadable(
        f"source {uid!r} {what}; declare it as it was (replaced=), or "
        f"{BEGIN_ANEW} without this state"
    )


def _readers(job: Job, state: CoordinatorState, uid: str) -> int:
    """The largest parallelism of the stages that read the source."""
    return max(
        job.parallelism_of(stage.uid, state.configuration)
        for stage in job.pipeline.stages.values()
        if uid in stage.producers
    )


def _as_cut(
    job: Job,
    uid: str,
    previous: SourceCut | None,
    before: Position,
    source: Source,
    barrier: Barrier,
    *,
    shares_files: bool,
) -> SourceCut:
    node = job.pipeline.sources[uid]
    cut = SourceCut(
        uid=uid,
        position=barrier.position,
        slices=barrier.slices,
        exhausted=barrier.exhausted,
        is_backlog=barrier.is_backlog,
        heads=_heads(source, barrier, before) if node.event_time is not None else (),
        copies=_copies(previous, barrier),
        taken_back=_taken_back(previous, barrier),
        partitions_end=source.partitions_end and node.idle_after_ms is None,
        unread=barrier.unread,
        size_bytes=barrier.size_bytes,
    )
    cut = with_activity(
        cut,
        barrier.waiting,
        before.entries,
        previous=previous,
        now_ms=None if node.idle_after_ms is None else job.now_ms(),
        idle_after_ms=node.idle_after_ms,
    )
    return with_layers(cut, before, shares_files=shares_files, layer_of=layer_of)


def _copies(previous: SourceCut | None, barrier: Barrier) -> dict[str, SegmentHandle]:
    """The copies of what is read up to *barrier*; ``store_copies`` writes those that it begins."""
    read = {entry.partition for entry in barrier.position if entry.offset > 0}
    kept = {} if previous is None else previous.copies
    known = {name: handle for name, handle in kept.items() if name in read}
    return known | dict.fromkeys(barrier.begun, NOT_COPIED)


def _taken_back(previous: SourceCut | None, barrier: Barrier) -> dict[str, SegmentHandle]:
    names = {piece.partition for piece in barrier.slices if piece.is_taken_back}
    kept = {} if previous is None else previous.copies
    return {name: kept[name] for name in sorted(names)}


def _heads(source: Source, barrier: Barrier, before: Position) -> tuple[Slice, ...]:
    """The first records of waiting partitions that are new since the parent's barrier.

    Each partition is read ahead once.
    """
    unread = {part.partition for part in barrier.position if part.offset == 0}
    new = unread - before.entries.keys()
    return source.heads([name for name in barrier.waiting if name in new])


def running_and_finished(
    job: Job, lineage: Lineage, cuts: Mapping[str, SourceCut]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The stages that take part, and those that saw the end of their input at the parent's barrier.

    If all stages saw it, all take part: the job is about to end, or was restored after its end.
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


def task_plan(
    job: Job, state: CoordinatorState, uid: str, lineage: Lineage, *, must_align: bool
) -> TaskPlan:
    """One stage of the plan, and whether it may be overtaken.

    A stage that reads a source is never overtaken, nor is one before it: its unread records are in
    the source, not in flight.  A stage that was overtaken in the parent is not overtaken again, so
    that it advances.  Nor is one whose columns are unknown, if a stage behind it cannot read its
    source without them.
    """
    parallelism = job.parallelism_of(uid, state.configuration)
    declared = job.pipeline.max_parallelism or default_max_parallelism(parallelism)
    max_parallelism = lineage.max_parallelism(uid) or declared
    check_parallelism(uid, parallelism, max_parallelism)
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
        reads=job.pipeline.upstream_of(uid),
    )


def _is_needed_now(job: Job, uid: str, lineage: Lineage) -> bool:
    """Whether a stage behind this one also reads a source, and the columns of this one are unknown.

    Records of a source do not wait: the epoch that they were cut for has to read them.
    """
    stage = lineage.stage(uid)
    if stage is not None and stage.schema:
        return False
    return any(
        _reads_a_source(job, consumer.uid) or _is_needed_now(job, consumer.uid, lineage)
        for consumer in job.pipeline.consumers_of(uid)
    )


def _is_before_a_source(job: Job, uid: str) -> bool:
    """Whether a stage behind this one also reads a source: it would be overtaken with this one, and
    the records of its source that were cut for this epoch would never be read.
    """
    return any(
        _reads_a_source(job, consumer.uid) or _is_before_a_source(job, consumer.uid)
        for consumer in job.pipeline.consumers_of(uid)
    )


def _reads_a_source(job: Job, uid: str) -> bool:
    return len(job.pipeline.upstream_of(uid)) < len(job.pipeline.stages[uid].inputs)


def _starts_lineage(state: CoordinatorState, lineage: Lineage) -> bool:
    """An origin may be of another job, so its generation says nothing."""
    if not isinstance(lineage, CompletedParent):
        return False
    before = lineage.metadata
    return before is None or state.origin is not None or before.generation != state.generation


def _has_rows_in_flight(job: Job, lineage: Lineage) -> bool:
    """Whether rows are in flight: then an epoch without new records has work to do."""
    return isinstance(lineage, CompletedParent) and any(
        stage.in_flight_segments
        for uid in job.pipeline.stages
        if (stage := lineage.stage(uid)) is not None
    )


def call_pre_barrier_hooks(job: Job, state: CoordinatorState) -> HookFailed | None:
    """Call the hooks that are due before the barrier is cut; if one fails, there is no plan."""
    for hook in job.pipeline.hooks.values():
        if hook.prepare_snapshot_pre_barrier is None:
            continue
        try:
            act = partial(hook.prepare_snapshot_pre_barrier, state.next_checkpoint_id)
            call_hook(act, hook.timeout)
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            return _hook_failed(hook.uid, state.next_checkpoint_id, error)
    return None


def pin_outside(
    job: Job, state: CoordinatorState, plan: CheckpointPlan
) -> CheckpointPlan | HookFailed:
    """Pin the sources and trigger the master hooks under this checkpoint id, in that order.

    A table source is pinned as of this barrier; an unchanged one keeps its segment, unless that is
    not the job's own.  The layer that a position adds is written.  There is no plan if a hook
    fails.
    """
    params = state.configuration.params
    cuts = tuple(
        replace(
            cut,
            table=write_table(
                job, cut.uid, params, plan.checkpoint_id, None if plan.is_full else cut.table
            ),
        )
        if job.pipeline.sources[cut.uid].is_table
        else store_copies(
            job,
            store_layers(job, cut, plan.checkpoint_id),
            open_source(job, cut.uid, params),
            plan,
        )
        for cut in plan.sources
    )
    hold(job, state, cuts, str(plan.checkpoint_id))
    answers: dict[str, str | None] = {}
    for hook in job.pipeline.hooks.values():
        try:
            act = partial(hook.trigger, plan.checkpoint_id, plan.triggered_at_ms)
            answers[hook.uid] = call_hook(act, hook.timeout)
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            return _hook_failed(hook.uid, plan.checkpoint_id, error)
    return replace(plan, sources=cuts, master_states=answers)


def _hook_failed(uid: str, checkpoint_id: CheckpointId, error: Exception) -> HookFailed:
    message = f"master hook {uid!r} failed: {error}"
    log.warning("no checkpoint checkpoint_id=%d: %s", checkpoint_id, message)
    return HookFailed(message=message)
