"""The parts that a checkpoint continues: the stages, sources and tables of its parent, and what a
stage makes of them in this epoch.

The parent is completed, and its ``_metadata`` describes it.  Or, with several concurrent
checkpoints, it is still pending; then a stage of it is known as soon as its subtasks have
acknowledged.

A subtask starts from the parent's state, cut to its own hashes (Flink's StateAssignmentOperation).
How far event time has come at a barrier is computed from the parent and the acks.

Behind a checkpoint its state may be compacted.  Correctness never depends on the record of a
compaction: it names merged state with the same rows as the runs that it replaces, and only an epoch
that still has all of those runs takes it over.

The positions of sources in the bucket.

A position of many partitions is kept in layers, which checkpoints share.  A layer is read when the
position is needed in full, and written under the id of the checkpoint that adds it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

from sluice.core.answers import Ack
from sluice.core.compaction import Compaction, still_useful
from sluice.core.completed import CheckpointMetadata, InFlightData, StageState, SubtaskState
from sluice.core.event_time import MIN_WATERMARK, SourceClock, StageClock, measured_by
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan, PartitionOffset, SourceCut, TaskPlan
from sluice.core.position import Position, with_whole
from sluice.core.state import CoordinatorState
from sluice.core.transitions import Fingerprint
from sluice.declaration.nodes import SourceNode
from sluice.declaration.pipeline import side_outputs
from sluice.declaration.places import SourcePosition
from sluice.errors import RestoreError
from sluice.job.answers import acks_of, plan_of
from sluice.job.job import Job, uncollected
from sluice.job.snapshots import verified
from sluice.protocol.records import (
    checksum,
    decode_compaction,
    decode_position_layer,
    encode_compaction,
    encode_position_layer,
)
from sluice.store.object_store import AlreadyExists, Created, in_parallel

PARALLEL_READS = 16  # Below the client's connection pool.


class Lineage(Protocol):
    """The parent that a checkpoint continues; None for a stage or source that it did not have."""

    def stage(self, uid: str) -> StageState | None:
        """Raises NotYetAcknowledged when the parent is pending and its stage still runs."""
        ...

    def max_parallelism(self, uid: str) -> int | None: ...

    def is_finished(self, uid: str) -> bool: ...

    def was_overtaken(self, uid: str) -> bool: ...

    def source(self, uid: str) -> SourceCut | None: ...

    def fingerprint(self, uid: str) -> Fingerprint | None: ...

    @property
    def tables(self) -> dict[str, int]:
        """By sink, the checkpoint whose commit made the version of its table."""
        ...


@dataclass(frozen=True, slots=True)
class CompletedParent:
    """``metadata`` is None for a job that starts from empty state; ``decided`` are the versions of
    the tables, if a restore or a submission has decided them.
    """

    metadata: CheckpointMetadata | None
    decided: Mapping[str, int] | None = None

    def stage(self, uid: str) -> StageState | None:
        return self.metadata.stage(uid) if self.metadata is not None else None

    def max_parallelism(self, uid: str) -> int | None:
        stage = self.stage(uid)
        return stage.max_parallelism if stage is not None else None

    def is_finished(self, uid: str) -> bool:
        stage = self.stage(uid)
        return stage is not None and stage.is_finished

    def was_overtaken(self, uid: str) -> bool:
        stage = self.stage(uid)
        return stage is not None and stage.is_overtaken

    def source(self, uid: str) -> SourceCut | None:
        return self.metadata.source(uid) if self.metadata is not None else None

    def fingerprint(self, uid: str) -> Fingerprint | None:
        return self.metadata.fingerprints.get(uid) if self.metadata is not None else None

    @property
    def tables(self) -> dict[str, int]:
        if self.decided is not None:
            return dict(self.decided)
        return dict(self.metadata.tables) if self.metadata is not None else {}


@dataclass(frozen=True, slots=True)
class PendingParent:
    """A pending parent: aligned, as concurrent checkpoints are, so it leaves nothing in flight."""

    job: Job
    state: CoordinatorState
    plan: CheckpointPlan
    pending: PendingCheckpoint
    before: Lineage

    def stage(self, uid: str) -> StageState | None:
        if uid in self.plan.finished:
            return self.before.stage(uid)
        if all(task.uid != uid for task in self.plan.tasks):
            return None
        acks = acks_of(self.job, self.state, self.pending.checkpoint_id)
        return stage_state(self.job, self.plan, self.pending, uid, self.before, acks)

    def max_parallelism(self, uid: str) -> int | None:
        known = {task.uid: task.max_parallelism for task in self.plan.tasks}
        return known.get(uid, self.before.max_parallelism(uid))

    def is_finished(self, uid: str) -> bool:
        return uid in self.plan.finished

    def was_overtaken(self, uid: str) -> bool:
        return uid in self.pending.overtaken

    def source(self, uid: str) -> SourceCut | None:
        return next((cut for cut in self.plan.sources if cut.uid == uid), None)

    def fingerprint(self, uid: str) -> Fingerprint | None:
        return self.plan.fingerprints.get(uid)

    @property
    def tables(self) -> dict[str, int]:
        return tables_of(self.job, self.plan, self.before)


def lineage_of_tip(job: Job, state: CoordinatorState) -> Lineage:
    """The lineage of a checkpoint that is triggered now."""
    if state.pending:
        return _pending_parent(job, state, state.pending[-1])
    return CompletedParent(job.base_metadata(state), state.tables)


@uncollected
def lineage_of(job: Job, state: CoordinatorState, plan: CheckpointPlan) -> Lineage:
    """The lineage of *plan*, which belongs to a pending checkpoint of *state*."""
    parent = None if plan.parent is None else state.pending_checkpoint(plan.parent)
    if parent is not None and plan.origin is None:
        return _pending_parent(job, state, parent)
    is_base = state.is_base(plan.parent, plan.origin)
    return CompletedParent(job.parent_metadata(plan), state.tables if is_base else None)


def _pending_parent(job: Job, state: CoordinatorState, pending: PendingCheckpoint) -> PendingParent:
    plan = plan_of(job, pending.checkpoint_id)
    return PendingParent(job, state, plan, pending, lineage_of(job, state, plan))


def tables_of(job: Job, plan: CheckpointPlan, lineage: Lineage) -> dict[str, int]:
    """By sink the checkpoint that makes its table's version, once *plan* is committed.

    A sink whose stage has finished keeps the version it has.  The first checkpoint of a generation
    publishes every table, side outputs too: a restore may have rolled them back.
    """
    running = {task.uid for task in plan.tasks}
    published = {uid for uid, sink in job.pipeline.sinks.items() if sink.input in running}
    if plan.starts_lineage:
        published |= {*job.pipeline.sinks, *side_outputs(job.pipeline)}
    return lineage.tables | dict.fromkeys(sorted(published), int(plan.checkpoint_id))


def stage_state(
    job: Job,
    plan: CheckpointPlan,
    pending: PendingCheckpoint,
    uid: str,
    lineage: Lineage,
    acks: Callable[[str], list[Ack]],
) -> StageState:
    """The stage as this checkpoint leaves it, from its acks and those of what it reads."""
    task, before = plan.task(uid), lineage.stage(uid)
    upstream = _upstream(job, pending, plan, uid, acks)
    if uid in pending.overtaken:
        return _overtaken(task, before, upstream)
    own = acks(uid)
    watermark_ms, no_say, known_ms = watermark_after_stage(job, plan, uid, own, before)
    return StageState(
        uid=uid,
        parallelism=task.parallelism,
        max_parallelism=task.max_parallelism,
        subtasks=tuple(
            SubtaskState(subtask=ack.subtask, state=ack.state, output=ack.output) for ack in own
        ),
        watermark_ms=watermark_ms,
        in_flight=_left(job, task, before, lineage, upstream) if task.is_unaligned else (),
        event_times_ms=known_ms,
        rows_per_group=_rows_per_group(own, before),
        schema=_schema(job, uid, own, before),
        has_no_say=no_say,
    )


def _upstream(
    job: Job,
    pending: PendingCheckpoint,
    plan: CheckpointPlan,
    uid: str,
    acks: Callable[[str], list[Ack]],
) -> dict[str, list[Ack]]:
    """The acks of each stage that *uid* reads and that ran in this epoch, if *uid* leaves their
    streams in flight.
    """
    leaves_input = uid in pending.overtaken or plan.task(uid).is_unaligned
    running = {task.uid for task in plan.tasks} - set(pending.overtaken) if leaves_input else set()
    return {
        producer: acks(producer)
        for producer in job.pipeline.upstream_of(uid)
        if producer in running
    }


def _overtaken(
    task: TaskPlan, before: StageState | None, upstream: Mapping[str, list[Ack]]
) -> StageState:
    """The stage as the parent left it; this epoch's streams join what it has in flight."""
    stage = before or StageState(
        uid=task.uid,
        parallelism=task.parallelism,
        max_parallelism=task.max_parallelism,
        subtasks=tuple(SubtaskState(subtask=s, state=(), output=()) for s in task.subtasks),
        watermark_ms=MIN_WATERMARK,
    )
    in_flight = _in_flight(upstream, stage)
    return replace(_without_output(stage), in_flight=in_flight, is_overtaken=True)


def _left(
    job: Job,
    task: TaskPlan,
    before: StageState | None,
    lineage: Lineage,
    upstream: Mapping[str, list[Ack]],
) -> tuple[InFlightData, ...]:
    """The rows that an unaligned stage leaves in flight: this epoch's streams, and what it could
    not read of earlier ones, as the columns of one of its streams are not known yet.
    """
    has_read = all(
        schema_before(before, lineage.stage(producer), producer)
        for producer in job.pipeline.upstream_of(task.uid)
    )
    return _in_flight(upstream, None if has_read else before)


def schema_before(stage: StageState | None, producer: StageState | None, uid: str) -> bytes:
    """The serialized Arrow schema of the stream of the stage *uid* that *stage* reads, as the
    parent knew both; empty where no stage before it has run yet.
    """
    left = stage.in_flight_of(uid) if stage is not None else None
    return (left.schema if left is not None else b"") or (producer.schema if producer else b"")


def _in_flight(
    upstream: Mapping[str, list[Ack]], before: StageState | None = None
) -> tuple[InFlightData, ...]:
    """The rows that *before* left in flight, and behind them those that *upstream* sealed now."""
    left = {data.producer: data for data in (before.in_flight if before is not None else ())}
    for producer, acks in upstream.items():
        earlier = left.get(producer)
        sealed = tuple(segment for ack in acks for segment in ack.output)
        left[producer] = InFlightData(
            producer=producer,
            segments=(*(earlier.segments if earlier is not None else ()), *sealed),
            schema=acks[0].schema or (earlier.schema if earlier is not None else b""),
        )
    return tuple(left.values())


def _schema(job: Job, uid: str, acks: list[Ack], before: StageState | None) -> bytes:
    """The output's schema, if a stage that reads it has other inputs, and so may outlive it."""
    if all(len(consumer.inputs) == 1 for consumer in job.pipeline.consumers_of(uid)):
        return b""
    return acks[0].schema or (before.schema if before is not None else b"")


def _rows_per_group(acks: list[Ack], before: StageState | None) -> float | None:
    """The number of rows of a key in this epoch; as before, if there were none."""
    groups = sum(ack.metrics.groups for ack in acks)
    if not groups:
        return before.rows_per_group if before is not None else None
    return round(sum(ack.metrics.rows_in for ack in acks) / groups, 2)


def finished_stage(before: StageState) -> StageState:
    """A stage that ended at an earlier barrier: it keeps its state, and seals no rows any more."""
    return replace(_without_output(before), is_finished=True, is_overtaken=False)


def _without_output(stage: StageState) -> StageState:
    return replace(stage, subtasks=tuple(replace(subtask, output=()) for subtask in stage.subtasks))


def assigned_state(
    before: StageState | None, task: TaskPlan
) -> tuple[tuple[StateHandle, ...], ...]:
    """By new subtask the segments it reads, cut to its hash range, in the order of their runs.

    The ranges follow each other, so a binary search finds the new owners of a handle.  A segment
    that several old subtasks name, as it was cut before, is one file.
    """
    handles = [
        handle
        for subtask in (before.subtasks if before is not None else ())
        for handle in subtask.state
    ]
    handles.sort(key=lambda handle: (handle.table, handle.run))
    most, count = task.max_parallelism, task.parallelism
    ranges = [hash_range(most, key_group_range(most, count, index)) for index in range(count)]
    shares: list[list[StateHandle]] = [[] for _ in ranges]
    firsts = [first for first, _ in ranges]
    for handle in handles:
        owner = bisect_right(firsts, handle.first_hash) - 1
        end = bisect_right(firsts, handle.last_hash)
        for index in range(owner, end):
            shares[index].append(_cut_to(handle, *ranges[index]))
    return tuple(map(tuple, shares))


def _cut_to(handle: StateHandle, first: int, last: int) -> StateHandle:
    if first <= handle.first_hash and handle.last_hash <= last:
        return handle
    return replace(
        handle,
        first_hash=max(first, handle.first_hash),
        last_hash=min(last, handle.last_hash),
    )


def stage_clock(
    job: Job,
    plan: CheckpointPlan,
    stage: str,
    streams_ms: int | None,
    before: StageState | None,
) -> StageClock:
    """The clock of a stage at this barrier; *streams_ms* is the watermark of the streams it reads,
    None if there is none, or none that holds event time back.
    """
    return StageClock(
        sources=tuple(
            _source_clock(job, plan, source, before.event_times_ms if before is not None else {})
            for source in job.pipeline.sources_of(stage)
        ),
        streams_ms=streams_ms,
        floor_ms=before.watermark_ms if before is not None else MIN_WATERMARK,
    )


def watermark_after_stage(
    job: Job, plan: CheckpointPlan, stage: str, acks: Sequence[Ack], before: StageState | None
) -> tuple[int, bool, dict[str, int]]:
    """Three answers about a stage at this barrier, once all its subtasks have acknowledged.

    The watermark behind it (ms since 1970); whether it holds no event time back, because none of
    its inputs does; and the latest event time of each partition of its sources (ms since 1970).
    """
    clock = stage_clock(job, plan, stage, None, before)
    measured_ms = measured_by(acks)
    known = {
        name: at_ms
        for source in clock.sources
        for name, at_ms in source.known_ms(measured_ms).items()
    }
    return clock.behind_ms(acks), clock.has_no_say(acks), dict(sorted(known.items()))


def watermark_after_source(
    job: Job, plan: CheckpointPlan, source: SourceNode, acks: Sequence[Ack], after: StageState
) -> tuple[int | None, int | None]:
    """The source's own watermark behind its barrier, and the latest event time that is known of it.
    The first is None if the source does not hold event time back, the second if it has none.

    *after* is the state of a stage that reads it, and *acks* are those of that stage.
    """
    clock = _source_clock(job, plan, source, {})
    own = f"{source.uid}/"
    known = [at_ms for name, at_ms in after.event_times_ms.items() if name.startswith(own)]
    watermark_ms = clock.watermark_of(after.event_times_ms, measured_by(acks))
    return watermark_ms, max(known, default=None)


def is_idle(job: Job, plan: CheckpointPlan, producer: str) -> bool:
    """Whether a source is idle, or everything that a stage reads."""
    if producer in job.pipeline.sources:
        return _cut(job, plan, producer).is_idle
    producers = job.pipeline.stages[producer].producers
    return all(is_idle(job, plan, uid) for uid in producers)


def _source_clock(
    job: Job, plan: CheckpointPlan, source: SourceNode, before_ms: Mapping[str, int]
) -> SourceClock:
    return SourceClock(
        uid=source.uid,
        cut=_cut(job, plan, source.uid),
        before_ms=before_ms,
        out_of_orderness_ms=source.out_of_orderness_ms,
        drains=plan.drains,
        has_event_time=source.event_time is not None,
    )


def _cut(job: Job, plan: CheckpointPlan, source: str) -> SourceCut:
    """The layers are read only if a partition in one of them may hold event time back."""
    cut = plan.source(source)
    return whole_cut(job, cut) if cut.needs_layers else cut


def compactions_of(job: Job, stage: str) -> list[Compaction]:
    """The recorded compactions of *stage*, oldest first.  Costs a LIST, and a GET for each."""
    found: list[Compaction] = []
    for listed in job.store.list(job.paths.compactions(stage)):
        if not job.paths.is_compaction(listed.key):
            continue
        raw = job.store.get(listed.key)
        if raw is not None:  # Else the garbage collector has deleted it since.
            found.append(decode_compaction(raw, listed.key))
    return found


def useful_compactions(job: Job, keys_in_use: Collection[str]) -> set[str]:
    """The records of compactions that an epoch may still take over, and the files they name.

    An epoch may as long as a retained checkpoint, which names *keys_in_use*, has the state that the
    compaction replaces.  Call it before merged state is deleted: a record that outlived its files
    would fail every epoch that takes it over.
    """
    listed = (one.key for one in job.store.list(job.paths.all_compactions()))
    keys = [key for key in listed if job.paths.is_compaction(key)]
    bodies = in_parallel(job.store.get, keys, PARALLEL_READS)
    found = {  # A record without a body was deleted by another collector since.
        key: decode_compaction(raw, key)
        for key, raw in zip(keys, bodies, strict=True)
        if raw is not None
    }
    kept = still_useful(found.values(), keys_in_use)
    files = {segment.key for compaction in kept for segment in compaction.files}
    # A record without merged state stays: it keeps any other from taking its place.
    return files.union(key for key, one in found.items() if one in kept or not one.merged)


def record_compaction(job: Job, compaction: Compaction) -> bool:
    """Record a compaction.  False if another attempt was faster, so that its own record counts."""
    key = job.paths.compaction(compaction.stage, compaction.checkpoint_id)
    return isinstance(job.store.create(key, encode_compaction(compaction)), Created)


def named_meanwhile(job: Job, doomed: Iterable[str]) -> set[str]:
    """The *doomed* files of merged state that a record names by now.

    No record can come to name the others: where there is none, an empty one is written for good,
    because the process that uploaded the files may sleep for a day before it records them.
    """
    folders = defaultdict[tuple[str, CheckpointId], set[str]](set)
    for key in doomed:
        folders[job.paths.compaction_of(key)].add(key)
    named: set[str] = set()
    for (stage, checkpoint_id), files in folders.items():
        key = job.paths.compaction(stage, checkpoint_id)
        if key in files:
            continue  # Recording it again would change nothing.
        closed = Compaction(stage=stage, checkpoint_id=checkpoint_id, merged=())
        result = job.store.create(key, encode_compaction(closed))
        if isinstance(result, AlreadyExists):
            recorded = decode_compaction(result.body, key)
            named |= files.intersection(segment.key for segment in recorded.files)
    return named


LAYERS_KEPT = 8  # Decoded, for the next checkpoint of this process: those of a source or two.


def load_position(job: Job, cut: SourceCut | None) -> Position:
    """The position of the source at the barrier, in full, and the layers that say so.

    A *cut* of None is that of a source which was never read.

    Raises:
        RestoreError: a layer is gone.
        CorruptSegment: its bytes are not those that were written.
    """
    if cut is None:
        return Position()
    return Position.of(cut, [_layer(job, handle) for handle in cut.layers])


def position_of(job: Job, cut: SourceCut) -> SourcePosition:
    """All partitions of the cut, as the source takes them.  Raises as ``load_position``."""
    return load_position(job, cut).whole if cut.layers else cut.position


def whole_cut(job: Job, cut: SourceCut) -> SourceCut:
    """*cut* as if it had no layers.  Raises as ``load_position``."""
    return with_whole(cut, load_position(job, cut)) if cut.layers else cut


def layer_of(entries: Sequence[PartitionOffset]) -> SegmentHandle:
    """A layer of *entries*, inline until ``store_layers`` writes it as a file."""
    body = encode_position_layer(entries)
    return SegmentHandle(
        key="", size_bytes=len(body), rows=len(entries), checksum=checksum(body), inline=body
    )


def store_layers(job: Job, cut: SourceCut, checkpoint_id: CheckpointId) -> SourceCut:
    """Write the layer that the cut adds under the checkpoint's id, so that an abort finds it.

    The layer's name is its content's: another coordinator that plans the same checkpoint writes the
    same file, or a different one, which is garbage as soon as the checkpoint is over.
    """

    def stored(layer: SegmentHandle) -> SegmentHandle:
        if layer.inline is None:
            return layer
        key = job.paths.position_layer(cut.uid, checkpoint_id, layer.checksum)
        job.store.put(key, layer.inline)
        return replace(layer, key=key, inline=None)

    return replace(cut, layers=tuple(stored(layer) for layer in cut.layers))


def _layer(job: Job, handle: SegmentHandle) -> Mapping[str, PartitionOffset]:
    raw = handle.inline
    if raw is None:
        raw = job.store_at(handle.root).get(handle.key)
    if raw is None:
        raise RestoreError(
            f"{handle.root or job.store.root}/{handle.key} is gone, so it is not known how far its "
            "source was read; restore another checkpoint"
        )
    return entries_of(verified(handle, raw, "restore another checkpoint"), handle.key)


@lru_cache(maxsize=LAYERS_KEPT)
def entries_of(raw: bytes, key: str) -> Mapping[str, PartitionOffset]:
    return {entry.partition: entry for entry in decode_position_layer(raw, key)}
