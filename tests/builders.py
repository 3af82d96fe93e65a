"""Builders for tests: they say what matters and hide the rest.

The first half makes events and states of the pure core; the second half a tiny declared pipeline
(Nexmark -> two keyed stages -> FilesTable) on a store in memory; ``tests.subtasks`` answers for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sluice import aggregates as agg
from sluice.config import Checkpointing
from sluice.connectors.files_table import FilesTable as FilesTableSink
from sluice.core.acks import Ack, Decline
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobConfiguration
from sluice.core.coordinator import step
from sluice.core.decider import CheckpointRequest
from sluice.core.ids import CheckpointId, Generation, SubtaskId
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
    JobRestored,
    JobStopped,
    JobSubmitted,
)
from sluice.core.plan import (
    CheckpointPlan,
    PartitionOffset,
    Slice,
    SnapshotOrigin,
    SourceCut,
    TaskPlan,
)
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import CoordinatorState
from sluice.core.table_recovery import TableDecision
from sluice.pipeline import Pipeline
from sluice.runner.job import Job, open_job
from sluice.runner.submission import configure, submit
from sluice.runner.trigger import Triggered, trigger
from sluice.sinks import FilesTable
from sluice.sinks.spec import SinkSpec
from sluice.sources import Nexmark
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


def a_request(request_id: str = "r", **given: Any) -> CheckpointRequest:
    """A person's, at once; see the core's request decider for the rest."""
    return CheckpointRequest(
        **{"request_id": request_id, "is_periodic": False, "requested_at_ms": 1_000} | given
    )


def triggered(checkpoint_id: int = 1, savepoint: str | None = None, **plan: Any) -> Event:
    made = a_plan(checkpoint_id, **plan)
    request = a_request(f"r{checkpoint_id}", type=made.type, savepoint_name=savepoint)
    return CheckpointTriggered(generation=made.generation, plan=made, request=request)


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
    if savepoint is not None and checkpoint_id is not None:
        given["origin"] = SnapshotOrigin(
            checkpoint_id=CheckpointId(checkpoint_id), savepoint=savepoint
        )
    if given.get("origin") is not None:
        given = {"tables": TableDecision(), "life": "restored"} | given
    return JobRestored(
        at_ms=6_000,
        generation=Generation(generation),
        checkpoint_id=None if checkpoint_id is None else CheckpointId(checkpoint_id),
        **given,
    )


def stopped(status: JobStatus, *, generation: int = 1) -> Event:
    return JobStopped(at_ms=7_000, generation=Generation(generation), status=status)


def submitted(*, generation: int = 1, **configuration: Any) -> Event:
    return JobSubmitted(
        at_ms=0,
        generation=Generation(generation),
        configuration=JobConfiguration(**configuration),
        life=f"life-{generation}",
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
    sink: SinkSpec | None = None,
    beside: Mapping[str, SinkSpec] | None = None,
    events: int = 0,
    **checkpointing: Any,
) -> Pipeline:
    """Ten records an epoch and every state in a file, unless told otherwise."""
    usual = {"max_records_per_epoch": 10, "data_inline_threshold": 0}
    pipeline = Pipeline("auctions", checkpointing=Checkpointing(**usual | checkpointing))
    stream = pipeline.source("events", Nexmark(events))
    for number, uid in enumerate(stages):
        key = "bid_auction" if number == 0 else "bids"
        stream = stream.key_by(key).aggregate(uid, bids=agg.count())
    stream.sink(SINK, sink or FilesTable(location, changelog=True))
    for uid, spec in (beside or {}).items():
        stream.sink(uid, spec)
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


def records_of(plan: CheckpointPlan) -> list[int]:
    return [n for piece in plan.sources[0].slices for n in range(piece.start, piece.end)]


def published_records(job: Job, version: int | None = None) -> list[int]:
    rows = results(job).read(version).to_pylist()
    return sorted(row["record"] for row in rows)


def results(job: Job) -> FilesTableSink:
    return job.result_table(job.state().configuration.params)


def keys_of(job: Job, prefix: str = "") -> list[str]:
    return [listed.key for listed in job.store.list(prefix)]
