"""Builders for tests: they say what matters and hide the rest.

The first half makes events and states of the pure core; the second half a tiny declared pipeline
(Nexmark -> two keyed stages -> FilesTable) on a store in memory, and subtasks that answer without
Spark: their state segments, output segments, staged files and acks are real.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sluice import aggregates as agg
from sluice.config import Checkpointing
from sluice.connectors.files_table import FilesTable as FilesTableSink
from sluice.core.acks import Ack, Committable, Decline, SubtaskMetrics
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.coordinator import step
from sluice.core.handles import MIN_HASH, SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, Generation, SubtaskId
from sluice.core.key_groups import hash_range, key_group_of, key_group_range, subtask_of
from sluice.core.messages import (
    AckReceived,
    AttemptStarted,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    Command,
    DeclineReceived,
    Event,
    JobConfiguration,
    JobRestored,
    JobStopped,
    JobSubmitted,
)
from sluice.core.plan import CheckpointPlan, PartitionOffset, Slice, SourceCut, TaskPlan
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import CoordinatorState
from sluice.pipeline import Pipeline
from sluice.runner.completion import commit, finalize
from sluice.runner.job import Job, open_job
from sluice.runner.submission import configure, submit
from sluice.runner.trigger import Triggered, trigger
from sluice.runtime.state.segments import HASH, checksum, decode_segment, encode_segment
from sluice.sinks import FilesTable, open_sink
from sluice.sources import Nexmark
from sluice.spark.stage import assigned_state
from sluice.storage.open import StoreLocation

STAGES = ("count_bids", "rank_bids")
SINK = "results"
TASKS = tuple(TaskPlan(uid=uid, parallelism=2, max_parallelism=128) for uid in STAGES)
SUBTASKS = tuple(subtask for task in TASKS for subtask in task.subtasks)
TIMEOUT_MS = 600_000


def a_plan(checkpoint_id: int = 1, **given: Any) -> CheckpointPlan:
    """Of generation 1, from empty state, one slice of ten records."""
    position = PartitionOffset(partition="nexmark", offset=10, records=10)
    piece = Slice(partition="nexmark", start=0, end=10, first_record=0, records=10)
    plan: dict[str, Any] = {
        "checkpoint_id": CheckpointId(checkpoint_id),
        "generation": Generation(1),
        "parent": None,
        "type": CheckpointType.CHECKPOINT,
        "triggered_at_ms": 1_000,
        "expires_at_ms": 1_000 + TIMEOUT_MS,
        "drains": given.get("type") is CheckpointType.SAVEPOINT_TERMINATE,
        "sources": (SourceCut(uid="events", position=(position,), slices=(piece,)),),
        "tasks": TASKS,
    }
    return CheckpointPlan(**plan | given)


def triggered(checkpoint_id: int = 1, savepoint: str | None = None, **plan: Any) -> Event:
    made = a_plan(checkpoint_id, **plan)
    return CheckpointTriggered(generation=made.generation, plan=made, savepoint_name=savepoint)


def an_ack(subtask: SubtaskId, *, checkpoint_id: int = 1, attempt: int = 1) -> AckReceived:
    return AckReceived(
        ack=Ack(checkpoint_id=CheckpointId(checkpoint_id), subtask=subtask, attempt=attempt)
    )


def all_acks(checkpoint_id: int = 1) -> list[Event]:
    return [an_ack(subtask, checkpoint_id=checkpoint_id) for subtask in SUBTASKS]


def an_attempt(
    attempt: int, *, stage: str = STAGES[0], checkpoint_id: int = 1, generation: int = 1
) -> Event:
    return AttemptStarted(
        generation=Generation(generation),
        checkpoint_id=CheckpointId(checkpoint_id),
        stage=stage,
        attempt=attempt,
    )


def declined(
    subtask: SubtaskId = SUBTASKS[0],
    *,
    checkpoint_id: int = 1,
    attempt: int = 1,
    generation: int = 1,
    at_ms: int = 2_000,
) -> Event:
    decline = Decline(
        checkpoint_id=CheckpointId(checkpoint_id), subtask=subtask, attempt=attempt, message="no"
    )
    return DeclineReceived(generation=Generation(generation), at_ms=at_ms, decline=decline)


def completed(checkpoint_id: int = 1, *, generation: int = 1, at_ms: int = 3_000) -> Event:
    return CheckpointCompleted(
        generation=Generation(generation),
        at_ms=at_ms,
        checkpoint_id=CheckpointId(checkpoint_id),
        checkpointed_bytes=100,
        full_bytes=200,
    )


def committed(checkpoint_id: int = 1, *, generation: int = 1) -> Event:
    return CheckpointCommitted(
        generation=Generation(generation), at_ms=4_000, checkpoint_id=CheckpointId(checkpoint_id)
    )


def failed(
    checkpoint_id: int = 1,
    reason: CheckpointFailureReason = CheckpointFailureReason.CHECKPOINT_EXPIRED,
    *,
    generation: int = 1,
    at_ms: int = 5_000,
    is_task_failure: bool = False,
) -> Event:
    return CheckpointFailed(
        generation=Generation(generation),
        at_ms=at_ms,
        checkpoint_id=CheckpointId(checkpoint_id),
        reason=reason,
        message="because",
        is_task_failure=is_task_failure,
    )


def restored(
    checkpoint_id: int | None, *, generation: int = 2, savepoint: str | None = None, **given: Any
) -> Event:
    return JobRestored(
        at_ms=6_000,
        generation=Generation(generation),
        checkpoint_id=None if checkpoint_id is None else CheckpointId(checkpoint_id),
        savepoint=savepoint,
        **given,
    )


def stopped(status: JobStatus, *, generation: int = 1) -> Event:
    return JobStopped(at_ms=7_000, generation=Generation(generation), status=status)


def submitted(*, generation: int = 1, **configuration: Any) -> Event:
    return JobSubmitted(
        at_ms=0,
        generation=Generation(generation),
        configuration=JobConfiguration(**configuration),
    )


def run(state: CoordinatorState, *events: Event) -> tuple[CoordinatorState, list[Command]]:
    """The state after *events*, and every command on the way."""
    commands: list[Command] = []
    for event in events:
        transition = step(state, event)
        state = transition.state
        commands.extend(transition.commands)
    return state, commands


def after(state: CoordinatorState, *events: Event) -> CoordinatorState:
    return run(state, *events)[0]


def a_submitted(**configuration: Any) -> CoordinatorState:
    """RUNNING under generation 1; the next checkpoint is 1."""
    return after(CoordinatorState(), submitted(**configuration))


def a_checkpoint(checkpoint_id: int = 1, parent: int | None = None, **plan: Any) -> list[Event]:
    """Triggered, completed and committed."""
    generation = plan.get("generation", 1)
    return [
        triggered(checkpoint_id, parent=parent, **plan),
        completed(checkpoint_id, generation=generation),
        committed(checkpoint_id, generation=generation),
    ]


def ids_of(checkpoints: Iterable[CompletedCheckpoint]) -> list[int]:
    return [int(checkpoint.checkpoint_id) for checkpoint in checkpoints]


@dataclass
class ManualClock:
    now_ms: int = 1_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds


def a_pipeline(
    *,
    stages: tuple[str, ...] = STAGES,
    location: str = "",
    events: int = 0,
    **checkpointing: Any,
) -> Pipeline:
    """Ten records an epoch, unless told otherwise."""
    pipeline = Pipeline(
        "auctions", checkpointing=Checkpointing(**{"max_records_per_epoch": 10} | checkpointing)
    )
    stream = pipeline.source("events", Nexmark(events))
    for number, uid in enumerate(stages):
        key = "bid_auction" if number == 0 else "bids"
        stream = stream.key_by(key).aggregate(uid, bids=agg.count())
    stream.sink(SINK, FilesTable(location))
    return pipeline


def a_job(
    pipeline: Pipeline | None = None,
    *,
    root: str | None = None,
    clock: ManualClock | None = None,
) -> Job:
    """A handle on a job that nobody submitted; the root is a new one unless it is named."""
    location = StoreLocation(root=root or f"memory://{secrets.token_hex(6)}")
    return open_job(pipeline or a_pipeline(), location, clock=clock or ManualClock())


def a_running_job(pipeline: Pipeline | None = None, *, clock: ManualClock | None = None) -> Job:
    job = a_job(pipeline, clock=clock)
    submit(job, configure(job.pipeline, {}))
    return job


def trigger_one(job: Job, **given: Any) -> CheckpointPlan:
    outcome = trigger(job, **given)
    assert isinstance(outcome, Triggered), outcome
    return outcome.plan


def take_checkpoint(job: Job, **given: Any) -> CheckpointId:
    """Trigger, acknowledge, finalize, commit."""
    plan = trigger_one(job, **given)
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)
    return plan.checkpoint_id


def hash_of(record: int) -> int:
    digest = hashlib.blake2b(str(record).encode(), digest_size=8).digest()
    return int.from_bytes(digest) + MIN_HASH


def records_of(plan: CheckpointPlan) -> list[int]:
    return [n for piece in plan.sources[0].slices for n in range(piece.start, piece.end)]


def acknowledge(
    job: Job,
    plan: CheckpointPlan,
    stage: str | None = None,
    *,
    attempt: int = 1,
    only: Iterable[int] | None = None,
    writes_state: bool = True,
) -> list[Ack]:
    """Answer as the subtasks of *stage*, or of all stages, would: a real ack each."""
    acks: list[Ack] = []
    for task in plan.tasks:
        if stage not in (None, task.uid):
            continue
        for index in range(task.parallelism) if only is None else only:
            ack = _snapshot(job, plan, task, index, attempt, writes_state=writes_state)
            job.answers.write_ack(ack)
            acks.append(ack)
    return acks


def _snapshot(
    job: Job, plan: CheckpointPlan, task: TaskPlan, index: int, attempt: int, *, writes_state: bool
) -> Ack:
    """What it inherits, and one new segment of the records whose key groups it owns."""
    parent = job.parent_metadata(plan)
    inherited = assigned_state(parent.stage(task.uid) if parent else None, task)[index]
    mine = [
        record
        for record in records_of(plan)
        if subtask_of(
            key_group_of(hash_of(record), task.max_parallelism),
            task.max_parallelism,
            task.parallelism,
        )
        == index
    ]
    mine.sort(key=hash_of)
    table = pa.table({HASH: pa.array(map(hash_of, mine), pa.int64()), "record": pa.array(mine)})
    groups = key_group_range(task.max_parallelism, task.parallelism, index)
    first_hash, last_hash = hash_range(task.max_parallelism, groups)
    state = inherited
    if writes_state:
        key = f"{index:05d}-{checksum(encode_segment(table))}"
        segment = _upload(job, job.paths.shared_segment(task.uid, plan.checkpoint_id, key), table)
        state = (
            *inherited,
            StateHandle(segment=segment, first_hash=first_hash, last_hash=last_hash),
        )
    output: tuple[SegmentHandle, ...] = ()
    committables: tuple[Committable, ...] = ()
    if sinks := job.pipeline.sinks_of(task.uid):
        sink = open_sink(sinks[0], job.state().configuration.params, job.location, job.paths)
        staged = sink.stage(
            table.drop_columns([HASH]),
            checkpoint_id=plan.checkpoint_id,
            subtask=index,
            attempt_token=f"{attempt}-{secrets.token_hex(4)}",
        )
        committables = (staged,) if staged else ()
    else:
        stream = job.paths.stream_segment(task.uid, plan.checkpoint_id, f"{index:05d}-{attempt}")
        output = (_upload(job, stream, table),)
    return Ack(
        checkpoint_id=plan.checkpoint_id,
        subtask=SubtaskId(task.uid, index),
        attempt=attempt,
        state=state,
        output=output,
        watermark_ms=plan.triggered_at_ms,
        committables=committables,
        metrics=SubtaskMetrics(checkpointed_bytes=10, full_bytes=10 * len(state)),
    )


def _upload(job: Job, key: str, table: pa.Table) -> SegmentHandle:
    body = encode_segment(table)
    job.store.put(key, body)
    return SegmentHandle(
        key=key, size_bytes=len(body), rows=table.num_rows, checksum=checksum(body)
    )


def decline(job: Job, checkpoint_id: int, subtask: SubtaskId, *, attempt: int = 1) -> None:
    job.answers.write_decline(
        Decline(
            checkpoint_id=CheckpointId(checkpoint_id),
            subtask=subtask,
            attempt=attempt,
            message="the input is odd",
        )
    )


def state_records(job: Job, metadata: CheckpointMetadata, stage: str) -> list[int]:
    """Every record that the stage's state has absorbed, each as often as it was."""
    found: list[int] = []
    kept = metadata.stage(stage)
    assert kept is not None
    for handle in (handle for subtask in kept.subtasks for handle in subtask.state):
        segment = handle.segment
        body = job.store.get(segment.key)
        assert body is not None, f"{segment.key} is missing"
        rows = decode_segment(body, checksum=segment.checksum, name=segment.key).to_pylist()
        found += [
            row["record"] for row in rows if handle.first_hash <= row[HASH] <= handle.last_hash
        ]
    return sorted(found)


def published_records(job: Job, version: int | None = None) -> list[int]:
    rows = results(job).read(version).to_pylist()
    return sorted(row["record"] for row in rows)


def results(job: Job) -> FilesTableSink:
    return job.result_table(job.state().configuration.params)


def keys_of(job: Job, prefix: str = "") -> list[str]:
    return [listed.key for listed in job.store.list(prefix)]
