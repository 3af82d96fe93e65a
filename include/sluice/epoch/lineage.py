"""The lineage of a checkpoint: the stages, sources and tables of its parent.

The parent is completed and described by its ``_metadata``, or, with several concurrent checkpoints,
still pending; then a stage of it is known as soon as its subtasks have acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from sluice.core.acks import Ack
from sluice.core.completed import CheckpointMetadata, InFlightData, StageState, SubtaskState
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan, SourceCut, TaskPlan
from sluice.core.state import CoordinatorState
from sluice.core.watermarks import MIN_WATERMARK
from sluice.declaration.side_outputs import side_outputs
from sluice.epoch.acks import acks_of
from sluice.epoch.event_time import behind_stage
from sluice.job.collector import uncollected
from sluice.job.job import Job
from sluice.job.owed_work import plan_of


class Lineage(Protocol):
    """The parent that a checkpoint continues; None for a stage or source that it did not have."""

    def stage(self, uid: str) -> StageState | None:
        """Raises NotYetAcknowledged when the parent is pending and its stage still runs."""
        ...

    def max_parallelism(self, uid: str) -> int | None: ...

    def is_finished(self, uid: str) -> bool: ...

    def was_overtaken(self, uid: str) -> bool: ...

    def source(self, uid: str) -> SourceCut | None: ...

    @property
    def tables(self) -> dict[str, int]:
        """Per sink, the checkpoint whose commit made the version of its table."""
        ...


@dataclass(frozen=True, slots=True)
class CompletedParent:
    """``metadata`` None: the job starts from empty state.  ``decided`` are the versions of the
    tables, where a restore or submission has decided them.
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

    @property
    def tables(self) -> dict[str, int]:
        if self.decided is not None:
            return dict(self.decided)
        return dict(self.metadata.tables) if self.metadata is not None else {}


@dataclass(frozen=True, slots=True)
class PendingParent:
    """Always aligned: unaligned checkpoints are not concurrent, so nothing is in flight."""

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
    is_base = state.continues(plan.parent, plan.origin)
    return CompletedParent(job.parent_metadata(plan), state.tables if is_base else None)


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
    mine = acks(uid)
    watermark_ms, no_say, known_ms = behind_stage(job, plan, uid, mine, before)
    return StageState(
        uid=uid,
        parallelism=task.parallelism,
        max_parallelism=task.max_parallelism,
        subtasks=tuple(
            SubtaskState(subtask=ack.subtask, state=ack.state, output=ack.output) for ack in mine
        ),
        watermark_ms=watermark_ms,
        in_flight=_left(job, task, before, lineage, upstream) if task.is_unaligned else (),
        event_times_ms=known_ms,
        rows_per_group=_rows_per_group(mine, before),
        schema=_schema(job, uid, mine, before),
        has_no_say=no_say,
    )


def schema_before(stage: StageState | None, producer: StageState | None, uid: str) -> bytes:
    """The serialized Arrow schema of the stream of the stage *uid* that *stage* reads, as the
    parent knew both; empty where no stage before it has run yet.
    """
    left = stage.in_flight_of(uid) if stage is not None else None
    return (left.schema if left is not None else b"") or (producer.schema if producer else b"")


def finished_stage(before: StageState) -> StageState:
    """A stage that ended at an earlier barrier: its state stays, its files are older."""
    return replace(_without_output(before), is_finished=True, is_overtaken=False)


def tables_of(job: Job, plan: CheckpointPlan, lineage: Lineage) -> dict[str, int]:
    """Per sink the checkpoint that makes its table's version, once *plan* is committed.

    A sink whose stage has finished keeps the version it has.  The first checkpoint of a generation
    publishes every table, side outputs too: a restore may have rolled them back.
    """
    running = {task.uid for task in plan.tasks}
    published = {uid for uid, sink in job.pipeline.sinks.items() if sink.input in running}
    if plan.starts_lineage:
        published |= {*job.pipeline.sinks, *side_outputs(job.pipeline)}
    return lineage.tables | dict.fromkeys(sorted(published), int(plan.checkpoint_id))


def _pending_parent(job: Job, state: CoordinatorState, pending: PendingCheckpoint) -> PendingParent:
    plan = plan_of(job, pending.checkpoint_id)
    return PendingParent(job, state, plan, pending, lineage_of(job, state, plan))


def _upstream(
    job: Job,
    pending: PendingCheckpoint,
    plan: CheckpointPlan,
    uid: str,
    acks: Callable[[str], list[Ack]],
) -> dict[str, list[Ack]]:
    """The acks of each stage that *uid* reads and that ran in this epoch, if *uid* left them."""
    leaves_input = uid in pending.overtaken or plan.task(uid).is_unaligned
    running = {task.uid for task in plan.tasks} - set(pending.overtaken) if leaves_input else set()
    return {
        producer: acks(producer)
        for producer in job.pipeline.upstream_of(uid)
        if producer in running
    }


def _left(
    job: Job,
    task: TaskPlan,
    before: StageState | None,
    lineage: Lineage,
    upstream: Mapping[str, list[Ack]],
) -> tuple[InFlightData, ...]:
    """What an unaligned stage leaves in flight: this epoch's streams, and what it has not read.

    It reads nothing before the columns of all its streams are known.
    """
    streams = job.pipeline.upstream_of(task.uid)
    has_read = all(schema_before(before, lineage.stage(one), one) for one in streams)
    return _in_flight(upstream, None if has_read else before)


def _in_flight(
    upstream: Mapping[str, list[Ack]], before: StageState | None = None
) -> tuple[InFlightData, ...]:
    """What *before* left in flight, and behind it what *upstream* sealed in this epoch."""
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
    """The output's schema, if a stage that reads it may go on when this one has finished."""
    if all(len(consumer.inputs) == 1 for consumer in job.pipeline.consumers_of(uid)):
        return b""
    return acks[0].schema or (before.schema if before is not None else b"")


def _rows_per_group(acks: list[Ack], before: StageState | None) -> float | None:
    """How often a key came in this epoch; as before, if nothing came."""
    groups = sum(ack.metrics.groups for ack in acks)
    if not groups:
        return before.rows_per_group if before is not None else None
    return round(sum(ack.metrics.rows_in for ack in acks) / groups, 2)


def _overtaken(
    task: TaskPlan, before: StageState | None, upstream: Mapping[str, list[Ack]]
) -> StageState:
    """As the parent left it; what it did not consume of this epoch joins what is in flight."""
    stage = before or StageState(
        uid=task.uid,
        parallelism=task.parallelism,
        max_parallelism=task.max_parallelism,
        subtasks=tuple(SubtaskState(subtask=s, state=(), output=()) for s in task.subtasks),
        watermark_ms=MIN_WATERMARK,
    )
    return replace(
        _without_output(stage),
        in_flight=_in_flight(upstream, stage),
        is_overtaken=True,
    )


def _without_output(stage: StageState) -> StageState:
    return replace(stage, subtasks=tuple(replace(subtask, output=()) for subtask in stage.subtasks))
