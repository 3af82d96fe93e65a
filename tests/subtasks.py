"""Subtasks that answer without Spark: their segments, staged files and acks are real.

A stage that reads a source absorbs the records of its slices; one behind another stage absorbs the
records of the segments that it reads, and no others.  So ``state_records`` tells whether a
checkpoint is one consistent cut.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace

import pyarrow as pa

from harness.jobs import answer_with, trigger_one
from harness.key_groups import key_group_of, subtask_of
from sluice.coordinator.completion import finalize
from sluice.coordinator.publication import commit
from sluice.core.answers import Ack, Attempt, Committable, Decline, StageAnswer, SubtaskMetrics
from sluice.core.compaction import Merges
from sluice.core.completed import CheckpointMetadata, StageState
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.handles import MIN_HASH, SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.state import CoordinatorState
from sluice.exchange.sinks import open_sink
from sluice.job.answers import still_pending
from sluice.job.job import Job, new_token
from sluice.job.lineage import assigned_state, compactions_of, lineage_of
from sluice.job.stage_input import StageInput, stage_input
from sluice.protocol.records import checksum
from sluice.state.segments import HASH, decode_segment, encode_segment

RECORDS = pa.schema([(HASH, pa.int64()), ("record", pa.int64())])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """The input of all subtasks of one execution attempt, as ``run_stage`` passes it to Spark."""

    job: Job
    plan: CheckpointPlan
    task: TaskPlan
    attempt: int
    before: StageState | None
    state: tuple[tuple[StateHandle, ...], ...]
    given: StageInput
    records: tuple[int, ...]
    inline_threshold_bytes: int
    writes_state: bool
    compacts: bool

    @property
    def has_input(self) -> bool:
        return self.given.is_known


def take_checkpoint(job: Job, **given: object) -> CheckpointId:
    """Trigger, acknowledge, finalize, commit."""
    return carry_out(job, trigger_one(job, **given))


def take_checkpoints(job: Job, count: int) -> list[CheckpointId]:
    return [take_checkpoint(job) for _ in range(count)]


def complete_one(job: Job, **given: object) -> CheckpointPlan:
    """A checkpoint that is completed, and not committed."""
    plan = trigger_one(job, **given)
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    return plan


def carry_out(job: Job, plan: CheckpointPlan) -> CheckpointId:
    """Acknowledge, finalize, commit."""
    acknowledge(job, plan)
    return finish(job, plan.checkpoint_id)


def finish(job: Job, checkpoint_id: CheckpointId) -> CheckpointId:
    finalize(job, checkpoint_id)
    commit(job, checkpoint_id)
    return checkpoint_id


def measure(job: Job, *metrics: SubtaskMetrics) -> CheckpointId:
    """A checkpoint whose subtasks of the first stage have measured *metrics*, in their order."""
    plan = trigger_one(job)
    first, *others = plan.tasks
    acks = [
        Ack(checkpoint_id=plan.checkpoint_id, subtask=subtask, attempt=1, metrics=measured)
        for subtask, measured in zip(first.subtasks, metrics, strict=True)
    ]
    answer_with(job, plan, acks)
    for task in others:
        acknowledge(job, plan, task.uid)
    return finish(job, plan.checkpoint_id)


def a_savepoint(job: Job, name: str = "mine", **given: object) -> CheckpointId:
    usual = {"type": CheckpointType.SAVEPOINT, "savepoint_name": name, "is_periodic": False}
    return take_checkpoint(job, **usual | given)


def savepoint_key(job: Job, name: str = "mine") -> str:
    """The key of the ``_metadata`` of the savepoint that the name means."""
    meant = job.savepoint_origin(name).incarnation
    assert meant is not None
    return job.paths.savepoint_metadata(meant)


def acknowledge(
    job: Job,
    plan: CheckpointPlan,
    stage: str | None = None,
    *,
    attempt: int = 1,
    writes_state: bool = True,
    compacts: bool = False,
    takes_over: bool = False,
) -> list[Ack]:
    """Answer as the driver of *stage*, or of all stages not yet overtaken, would; return the acks
    that count.  Who *compacts*
    leaves one segment, of all that its state has absorbed; who *takes_over* continues the state
    with what compactions have merged, as the driver of a real stage does.
    """
    counted: list[Ack] = []
    for task in plan.tasks:
        if stage not in (None, task.uid) or (stage is None and is_overtaken(job, plan, task)):
            continue
        deployed = _deploy(job, plan, task, attempt, writes_state=writes_state, compacts=compacts)
        if takes_over:
            merged = compactions_of(job, task.uid)
            deployed = replace(
                deployed, state=tuple(map(Merges(merged).applied_to, deployed.state))
            )
        counted += job.answers.write(answer_of(deployed)).acks
    return counted


def answer_of(deployed: _Stage, *, driver: str = "") -> StageAnswer:
    """What the driver of a stage answers once all its subtasks have taken their snapshots."""
    task = deployed.task
    return StageAnswer(
        checkpoint_id=deployed.plan.checkpoint_id,
        stage=task.uid,
        attempt=deployed.attempt,
        plan=deployed.plan.token,
        driver=driver or new_token(),
        acks=tuple(_snapshot(deployed, index) for index in range(task.parallelism)),
        read=deployed.given.drivers,
    )


def is_overtaken(job: Job, plan: CheckpointPlan, task: TaskPlan) -> bool:
    return task.uid in still_pending(_state(job, plan), plan.checkpoint_id).overtaken


def decline(
    job: Job,
    checkpoint_id: int,
    subtask: SubtaskId,
    *,
    attempt: int = 1,
    reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_DECLINED,
    plan: str | None = None,
) -> None:
    job.answers.write_decline(
        Decline(
            checkpoint_id=CheckpointId(checkpoint_id),
            subtask=subtask,
            attempt=attempt,
            message="the input is odd",
            reason=reason,
            plan=token_of(job, checkpoint_id) if plan is None else plan,
        )
    )


def token_of(job: Job, checkpoint_id: int) -> str:
    """The token of the plan of a pending checkpoint; none of one that has ended."""
    pending = job.state().pending_checkpoint(checkpoint_id)
    return "" if pending is None else pending.token


def state_records(job: Job, metadata: CheckpointMetadata, stage: str) -> list[int]:
    """Every record that the stage's state has absorbed, each as often as it was."""
    kept = metadata.stage(stage)
    assert kept is not None
    handles = [handle for subtask in kept.subtasks for handle in subtask.state]
    return sorted(record for handle in handles for record in handle_records(job, handle))


def in_flight_records(job: Job, metadata: CheckpointMetadata, stage: str) -> list[int]:
    """Every record that another stage sent, and *stage* has not absorbed."""
    kept = metadata.stage(stage)
    assert kept is not None
    return sorted(
        record for handle in kept.in_flight_segments for record in read_records(job, handle)
    )


def handle_records(job: Job, handle: StateHandle) -> list[int]:
    return [
        record
        for record in read_records(job, handle.segment)
        if handle.first_hash <= hash_of(record) <= handle.last_hash
    ]


def read_records(job: Job, segment: SegmentHandle) -> list[int]:
    table = decode_segment(_body(job, segment), checksum=segment.checksum, name=segment.key)
    return [row["record"] for row in table.to_pylist()]


def hash_of(record: int) -> int:
    digest = hashlib.blake2b(str(record).encode(), digest_size=8).digest()
    return int.from_bytes(digest) + MIN_HASH


def _state(job: Job, plan: CheckpointPlan) -> CoordinatorState:
    """As the journal has it; to a zombie the checkpoint still looks as it was triggered."""
    state = job.state()
    if state.pending_checkpoint(plan.checkpoint_id) is not None:
        return state
    return replace(
        state,
        status=JobStatus.RUNNING,
        pending=(PendingCheckpoint.of(plan),),
        base=plan.parent,
        restart_at_ms=None,
    )


def _deploy(
    job: Job, plan: CheckpointPlan, task: TaskPlan, attempt: int, **behaviour: bool
) -> _Stage:
    state = job.state()
    lineage = lineage_of(job, state, plan)
    given = stage_input(job, _state(job, plan), plan, task.uid, lineage)
    records = [
        piece.first_record + number
        for source in job.pipeline.sources_of(task.uid)
        for piece in plan.source(source.uid).slices
        for number in range(piece.records)
    ]
    records += [
        record
        for stream in given.streams.values()
        for segment in stream.segments
        for record in read_records(job, segment)
    ]
    return _Stage(
        job=job,
        plan=plan,
        task=task,
        attempt=attempt,
        before=lineage.stage(task.uid),
        state=assigned_state(lineage.stage(task.uid), task),
        given=given,
        records=tuple(records),
        inline_threshold_bytes=state.configuration.inline_threshold_bytes,
        **behaviour,
    )


def _snapshot(deployed: _Stage, index: int) -> Ack:
    """The inherited segments, and a new one of the records whose key groups the subtask owns."""
    task, state = deployed.task, deployed.state[index]
    blank = Ack(
        checkpoint_id=deployed.plan.checkpoint_id,
        subtask=SubtaskId(task.uid, index),
        attempt=deployed.attempt,
        state=state,
        watermark_ms=deployed.given.watermark_ms(deployed.before),
    )
    if not deployed.has_input:
        return blank  # No stage before it has run yet.
    mine = [record for record in deployed.records if _owner(record, task) == index]
    if deployed.compacts:
        kept = [n for handle in state for n in handle_records(deployed.job, handle)]
        state = _with_segment(deployed, index, (), [*kept, *mine])
    elif deployed.writes_state:
        state = _with_segment(deployed, index, state, mine)
    if deployed.plan.is_full:
        state = tuple(_copied(deployed, index, handle) for handle in state)
    rows = table_of(mine)
    return replace(
        blank,
        state=state,
        output=_output(deployed, index, rows),
        schema=RECORDS.serialize().to_pybytes(),
        committables=staged_for_sinks(deployed, index, rows),
        metrics=SubtaskMetrics(checkpointed_bytes=10, full_bytes=10 * len(state)),
    )


def table_of(records: list[int]) -> pa.Table:
    ordered = sorted(records, key=hash_of)
    return pa.table(
        [pa.array(map(hash_of, ordered), pa.int64()), pa.array(ordered, pa.int64())], schema=RECORDS
    )


def _with_segment(
    deployed: _Stage, index: int, state: tuple[StateHandle, ...], records: list[int]
) -> tuple[StateHandle, ...]:
    task = deployed.task
    if not records or not deployed.job.pipeline.stages[task.uid].keys:
        return state
    groups = key_group_range(task.max_parallelism, task.parallelism, index)
    first_hash, last_hash = hash_range(task.max_parallelism, groups)
    segment = _write_state(deployed, index, encode_segment(table_of(records)), len(records))
    return (*state, StateHandle(segment=segment, first_hash=first_hash, last_hash=last_hash))


def _owner(record: int, task: TaskPlan) -> int:
    group = key_group_of(hash_of(record), task.max_parallelism)
    return subtask_of(group, task.max_parallelism, task.parallelism)


def _write_state(deployed: _Stage, index: int, body: bytes, rows: int) -> SegmentHandle:
    segment = SegmentHandle(
        key="", size_bytes=len(body), rows=rows, checksum=checksum(body), inline=body
    )
    if len(body) < deployed.inline_threshold_bytes:
        return segment
    key = _state_key(deployed, index, segment.checksum)
    deployed.job.store.put(key, body)
    return replace(segment, key=key, inline=None)


def _copied(deployed: _Stage, index: int, handle: StateHandle) -> StateHandle:
    key = _state_key(deployed, index, handle.segment.checksum)
    if handle.segment.key in ("", key):
        return handle
    deployed.job.store.put(key, _body(deployed.job, handle.segment))
    return replace(handle, segment=replace(handle.segment, key=key, root=""))


def _state_key(deployed: _Stage, index: int, digest: str) -> str:
    name = f"{index:05d}-{digest}"
    return deployed.job.paths.shared_segment(deployed.task.uid, deployed.plan.checkpoint_id, name)


def _output(deployed: _Stage, index: int, rows: pa.Table) -> tuple[SegmentHandle, ...]:
    if not (rows.num_rows and deployed.job.pipeline.consumers_of(deployed.task.uid)):
        return ()
    body, name = encode_segment(rows), f"{index:05d}-{deployed.attempt}"
    key = deployed.job.paths.stream_segment(deployed.task.uid, deployed.plan.checkpoint_id, name)
    deployed.job.store.put(key, body)
    return (
        SegmentHandle(key=key, size_bytes=len(body), rows=rows.num_rows, checksum=checksum(body)),
    )


def staged_for_sinks(deployed: _Stage, index: int, rows: pa.Table) -> tuple[Committable, ...]:
    job, params = deployed.job, deployed.job.state().configuration.params
    staged = [
        open_sink(node, params, job.location, job.paths).stage(
            rows.drop_columns([HASH]),
            Attempt(
                checkpoint_id=deployed.plan.checkpoint_id,
                subtask=index,
                checkpoint_token=job.paths.checkpoint_token(deployed.plan.token),
                attempt_token=f"{deployed.attempt}-{secrets.token_hex(4)}",
            ),
        )
        for node in job.pipeline.sinks_of(deployed.task.uid)
    ]
    return tuple(committable for committable in staged if committable is not None)


def _body(job: Job, segment: SegmentHandle) -> bytes:
    if segment.inline is not None:
        return segment.inline
    body = job.store_at(segment.root).get(segment.key)
    assert body is not None, f"{segment.key} is missing from {segment.root or job.store.root}"
    return body
