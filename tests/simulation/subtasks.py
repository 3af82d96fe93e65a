"""The acts of subtasks: read, compute, write, acknowledge; late, twice, or never."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.jobs import records_of
from sluice.coordinator.recovery import fail_checkpoint
from sluice.core.acks import Ack, Committable, Decline
from sluice.core.compaction import Merges
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import SubtaskId
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.reasons import CheckpointFailureReason as Reason
from sluice.epoch.acks import acks_of
from sluice.epoch.assignment import assigned_state
from sluice.epoch.compactions import compactions_of
from sluice.epoch.lineage import lineage_of
from sluice.epoch.stage_input import stage_input
from sluice.errors import CorruptSegment, StageFailed
from sluice.job.job import Job
from sluice.storage.open import StoreLocation
from tests.simulation.acts import act
from tests.simulation.bucket import Crash
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
from tests.simulation.world import EXPECTED, World

STEPS = 3


@dataclass(slots=True)
class Execution:
    """One execution of one subtask; ``step`` is the next step that it takes."""

    job: Job
    plan: CheckpointPlan
    task: TaskPlan
    depth: int
    subtask: SubtaskId
    attempt: int
    token: str
    inherited: tuple[StateHandle, ...]
    inputs: tuple[SegmentHandle, ...]
    state: tuple[StateHandle, ...] = ()
    output: tuple[SegmentHandle, ...] = ()
    committables: tuple[Committable, ...] = ()
    said: tuple[Row, ...] = ()
    step: int = 0

    @property
    def label(self) -> str:
        """Without the checkpoint's id, which is another one when an earlier one is left out."""
        return f"{self.subtask}.{self.attempt}"

    def again(self, token: str) -> Execution:
        return replace(self, token=token, step=0)


def _next_stage(world: World, pending: PendingCheckpoint) -> str | None:
    """The first stage that was not deployed in its attempt and whose input is complete."""
    for task in pending.tasks:
        uid, depth = task.uid, world.stages.index(task.uid)
        is_deployed = (pending.checkpoint_id, uid, pending.attempt_of(uid)) in world.deployed
        if is_deployed or uid in pending.overtaken:
            continue
        before = world.head.pending_checkpoint(pending.parent or 0)
        is_sealed = depth == 0 or task.is_unaligned or world.is_sealed(pending, depth - 1)
        is_continued = before is None or world.is_sealed(before, depth)
        return uid if is_sealed and is_continued else None
    return None


def _is_deployable(world: World) -> bool:
    return any(_next_stage(world, pending) is not None for pending in world.head.pending)


@act(weight=lambda world: 12 if _is_deployable(world) else 0.3 if world.head.pending else 0.1)
def deploys(world: World) -> str:
    """Start the next stage; now and then a stray of an earlier attempt, or of any stage.

    No subtask runs as an attempt before the journal has given its number.
    """
    pending = world.pending()
    stage = _next_stage(world, pending)
    if stage is None or world.chance(0.1):
        stage = world.pick([task.uid for task in pending.tasks])
    attempt = pending.attempt_of(stage)
    if world.chance(0.1):
        attempt = max(0, attempt - world.random.choice([1, 1, 2]))
    plan = world.job.plan(pending.checkpoint_id)
    if plan is None:
        return "no plan"
    started = executions(world, plan, stage, attempt)
    world.deployed.add((plan.checkpoint_id, stage, attempt))
    world.running += started
    return f"{len(started)} subtasks of {plan.checkpoint_id} {stage}.{attempt}"


@act(weight=lambda world: 45 if world.running else 0)
def works(world: World) -> str:
    """Some steps of one subtask, which may run again, or die and perhaps be run again."""
    if not world.running:
        return "nobody"
    pending = {p.checkpoint_id for p in world.head.pending}
    useful = [one for one in world.running if one.plan.checkpoint_id in pending]
    workers = useful if useful and world.chance(0.9) else world.running
    one = world.pick(workers, lambda execution: execution.label)
    world.running.remove(one)  # It takes one step at a time.
    steps = world.random.randint(1, STEPS)
    token = f"t{world.random.randrange(10**6)}"
    is_retried, is_repeated = world.chance(0.8), world.chance(0.1)
    try:
        while one.step < STEPS and steps > 0:
            advance(world, one)
            steps -= 1
    except (Crash, *EXPECTED):
        if is_retried:
            world.running.append(one.again(token))
        raise
    except CorruptSegment as error:
        failure = Reason.TASK_FAILURE
        fail_checkpoint(
            world.job, one.plan.checkpoint_id, failure, str(error), is_task_failure=True
        )
        raise
    if one.step < STEPS:
        world.running.append(one)
    elif is_repeated:
        world.running.append(one.again(token))
    return f"{one.plan.checkpoint_id} {one.label} up to step {one.step}"


@act(weight=lambda world: 4 if world.head.pending else 0.1)
def bundles(world: World) -> str:
    """The driver of a stage writes its acks as one object; some driver, some time later."""
    pending = world.pending()
    stage = world.pick([task.uid for task in pending.tasks])
    acks = acks_of(world.job, world.head, pending.checkpoint_id)(stage)
    world.job.answers.write_stage(acks)
    return f"{len(acks)} acks of {pending.checkpoint_id} {stage}"


@act(weight=lambda world: 0.4 if world.head.pending else 0)
def declines(world: World) -> str:
    pending = world.pending()
    subtask = world.random.choice(pending.not_yet_acknowledged)
    attempt = world.random.choice([1, pending.attempt_of(subtask.stage)])
    world.job.answers.write_decline(
        Decline(checkpoint_id=pending.checkpoint_id, subtask=subtask, attempt=attempt, message="no")
    )
    return f"{pending.checkpoint_id} {subtask}.{attempt}"


def executions(world: World, plan: CheckpointPlan, stage: str, attempt: int) -> list[Execution]:
    """The executions of a stage, prepared as by ``sluice.spark.stage.run_stage``.

    Raises:
        NotYetAcknowledged: the stage that it reads has not acknowledged.
        FencedError: the checkpoint is not pending any more.
    """
    task, depth = plan.task(stage), world.stages.index(stage)
    state = world.job.state()
    lineage = lineage_of(world.job, state, plan)
    states = assigned_state(lineage.stage(stage), task)
    if world.chance(0.7):  # Otherwise too few are due for a merge.
        merged = compactions_of(world.job, stage)
        states = tuple(map(Merges(merged).applied_to, states))
    given = stage_input(world.job, state, plan, stage, lineage)
    inputs = tuple(segment for one in given.streams.values() for segment in one.segments)
    return [
        Execution(
            job=world.job,
            plan=plan,
            task=task,
            depth=depth,
            subtask=subtask,
            attempt=attempt,
            token=f"t{world.random.randrange(10**6)}",
            inherited=states[subtask.index],
            inputs=inputs,
        )
        for subtask in task.subtasks
    ]


def advance(world: World, one: Execution) -> None:
    """State, then output, then the ack; each step is durable before the next."""
    one.step += 1
    if one.step == 1:
        one.state = _state(world, one)
    elif one.step == 2 and one.job.pipeline.sinks_of(one.subtask.stage):
        one.committables = _staged(world, one)
    elif one.step == 2:
        one.output = (_output(one),)
    else:
        one.job.answers.write_ack(
            Ack(
                checkpoint_id=one.plan.checkpoint_id,
                subtask=one.subtask,
                attempt=one.attempt,
                state=one.state,
                output=one.output,
                schema=COLUMNS.serialize().to_pybytes(),
                watermark_ms=0,
                committables=one.committables,
            )
        )


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
    if one.depth > 0:
        rows = [row for handle in one.inputs for row in rows_of(body_of_segment(one.job, handle))]
    maximum, parallelism = one.task.max_parallelism, one.task.parallelism
    return [r for r in rows if owner(one.depth, r[0], maximum, parallelism) == one.subtask.index]


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
    body = body_of(said_by(one.attempt, one.said))
    one.job.store.put(key, body)
    return a_segment(key, body)


def _staged(world: World, one: Execution) -> tuple[Committable, ...]:
    """Stage rows as the sinks do, except for the format of the file."""
    if not one.said:
        return ()
    file = (
        f"data/{one.plan.checkpoint_id:020d}-{one.subtask.index:05d}"
        f"-{one.attempt}-{one.token}.parquet"
    )
    body = body_of(said_by(one.attempt, one.said))
    sinks = [node.uid for node in one.job.pipeline.sinks_of(one.subtask.stage)]
    for sink in sinks:
        world.open_store(StoreLocation(root=f"{ROOT}/{one.job.paths.table(sink)}")).put(file, body)
    return tuple(
        Committable(
            sink=sink, file=file, rows=len(one.said), size_bytes=len(body), checksum=checksum(body)
        )
        for sink in sinks
    )
