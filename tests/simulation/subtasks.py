"""Subtasks: they read, compute, and write; a driver acknowledges for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from harness.jobs import records_of
from sluice.connectors.staged_files import data_prefix
from sluice.core.answers import Ack, Committable
from sluice.core.compaction import Merges
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import SubtaskId
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.errors import CorruptSegment, StageFailed
from sluice.job.job import Job
from sluice.job.lineage import Lineage, assigned_state, compactions_of
from sluice.store.open import StoreLocation
from tests.simulation.dataflow import (
    COLUMNS,
    Row,
    a_segment,
    body_of,
    checksum,
    live_rows,
    owner,
    rows_of,
    run,
    said_by,
)
from tests.simulation.settings import ROOT
from tests.simulation.world import World


@dataclass(slots=True)
class Execution:
    """A Spark task: one execution of one subtask, which may run several times."""

    job: Job
    plan: CheckpointPlan
    task: TaskPlan
    depth: int
    subtask: SubtaskId
    attempt: int
    driver: str
    token: str
    inherited: tuple[StateHandle, ...]
    inputs: tuple[SegmentHandle, ...]
    state: tuple[StateHandle, ...] = ()
    output: tuple[SegmentHandle, ...] = ()
    committables: tuple[Committable, ...] = ()
    said: tuple[Row, ...] = ()
    handed: tuple[Row, ...] | None = None  # By the stage that it is chained to.
    share: float = 1.0  # Of its input that it is given.

    @property
    def label(self) -> str:
        """Without the checkpoint's id, which is another one when an earlier one is left out."""
        return f"{self.subtask}.{self.attempt}"

    def again(self, driver: str) -> Execution:
        return replace(self, driver=driver, token=driver)

    def run(self, world: World, *, share: float, is_last: bool) -> None:
        """State, then output; each is durable before the next."""
        self.share = share
        self.absorb(world)
        if is_last:
            self.emit(world)

    def absorb(self, world: World) -> None:
        self.state = _state(world, self)

    def emit(self, world: World) -> None:
        if self.job.pipeline.sinks_of(self.subtask.stage):
            self.committables = _staged(world, self)
        else:
            self.output = (_output(self),)

    def ack(self) -> Ack:
        return Ack(
            checkpoint_id=self.plan.checkpoint_id,
            subtask=self.subtask,
            attempt=self.attempt,
            state=self.state,
            output=self.output,
            schema=COLUMNS.serialize().to_pybytes(),
            watermark_ms=0,
            committables=self.committables,
        )


def inherited(
    world: World, plan: CheckpointPlan, stage: str, lineage: Lineage
) -> tuple[tuple[StateHandle, ...], ...]:
    """The state of the stage's subtasks before the epoch."""
    states = assigned_state(lineage.stage(stage), plan.task(stage))
    if world.chance(0.7):  # Otherwise too few are due for a merge.
        merged = compactions_of(world.job, stage)
        states = tuple(map(Merges(merged).applied_to, states))
    return states


def prepared(
    world: World,
    plan: CheckpointPlan,
    stage: str,
    attempt: int,
    states: tuple[tuple[StateHandle, ...], ...],
    inputs: tuple[SegmentHandle, ...] = (),
    *,
    driver: str,
) -> list[Execution]:
    """The subtasks of the stage, which *driver* has not run yet."""
    task = plan.task(stage)
    return [
        Execution(
            job=world.job,
            plan=plan,
            task=task,
            depth=world.stages.index(stage),
            subtask=subtask,
            attempt=attempt,
            driver=driver,
            token=f"t{world.random.randrange(10**6)}",
            inherited=states[subtask.index],
            inputs=inputs,
        )
        for subtask in task.subtasks
    ]


def _state(world: World, one: Execution) -> tuple[StateHandle, ...]:
    """The inherited segments and a new one; or both in one file, as after a compaction."""
    kept = tuple(_own(one, handle) for handle in one.inherited)
    before = [
        row
        for handle in kept
        for row in live_rows(one.depth, handle, body_of_segment(one.job, handle.segment))
    ]
    rows = run(one.depth, before, _input(one))
    one.said = tuple(rows)
    if world.chance(0.3):
        kept, rows = (), sorted([*before, *rows])
    body = body_of(rows)
    content = f"{one.subtask.index:05d}-{checksum(body)}"
    key = one.job.paths.shared_segment(one.subtask.stage, one.plan.checkpoint_id, content)
    is_inline = world.chance(0.2)
    segment = a_segment(key, body, is_inline=is_inline)
    if not is_inline:
        one.job.store.put(key, body)
    groups = key_group_range(one.task.max_parallelism, one.task.parallelism, one.subtask.index)
    first, last = hash_range(one.task.max_parallelism, groups)
    return (*kept, StateHandle(segment=segment, first_hash=first, last_hash=last))


def _own(one: Execution, handle: StateHandle) -> StateHandle:
    """A copy of the segment: the first checkpoint after a NO_CLAIM restore shares no file."""
    segment = handle.segment
    if not one.plan.is_full or segment.inline is not None:
        return handle
    content = f"{one.subtask.index:05d}-{segment.checksum}"
    key = one.job.paths.shared_segment(one.subtask.stage, one.plan.checkpoint_id, content)
    one.job.store.put(key, body_of_segment(one.job, segment))
    return replace(handle, segment=replace(segment, key=key))


def _input(one: Execution) -> list[Row]:
    """The rows of its key groups: of the source, or of the stage before it."""
    rows: list[Row] = [(number, 1) for number in records_of(one.plan)]
    if one.handed is not None:
        rows = [*one.handed]
    elif one.depth > 0:
        rows = [row for handle in one.inputs for row in rows_of(body_of_segment(one.job, handle))]
    maximum, parallelism = one.task.max_parallelism, one.task.parallelism
    mine = [r for r in rows if owner(one.depth, r[0], maximum, parallelism) == one.subtask.index]
    return mine[: math.ceil(one.share * len(mine))]


def body_of_segment(job: Job, segment: SegmentHandle) -> bytes:
    if segment.inline is not None:
        return segment.inline
    body = job.store.get(segment.key)
    if body is None:
        raise StageFailed(f"{segment.key} is missing")
    if checksum(body) != segment.checksum:
        raise CorruptSegment(segment.key)
    return body


def _output(one: Execution) -> SegmentHandle:
    name = f"{one.subtask.index:05d}-{one.attempt}-{one.token}"
    key = one.job.paths.stream_segment(one.subtask.stage, one.plan.checkpoint_id, name)
    body = body_of(said_by(one.driver, one.said))
    one.job.store.put(key, body)
    return a_segment(key, body)


def _staged(world: World, one: Execution) -> tuple[Committable, ...]:
    """Stage rows as the sinks do, except for the format of the file."""
    if not one.said:
        return ()
    token = one.job.paths.checkpoint_token(one.plan.token)
    file = (
        f"{data_prefix(one.plan.checkpoint_id, token)}{one.subtask.index:05d}"
        f"-{one.attempt}-{one.token}.parquet"
    )
    body = body_of(said_by(one.driver, one.said))
    sinks = [node.uid for node in one.job.pipeline.sinks_of(one.subtask.stage)]
    for sink in sinks:
        world.open_store(StoreLocation(root=f"{ROOT}/{one.job.names.table(sink)}")).put(file, body)
    return tuple(
        Committable(
            sink=sink, file=file, rows=len(one.said), size_bytes=len(body), checksum=checksum(body)
        )
        for sink in sinks
    )
