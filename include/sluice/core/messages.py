"""What the coordinator hears (events) and what it asks for (commands).

Events are facts: past tense, already true.  Commands are wishes: imperative, not yet true, carried
out by ``sluice.runner``.  Both are plain frozen data, so a run can be written down and replayed.

Every event that reaches the journal names the generation of its author; an author of a lower
generation than the journal's is fenced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sluice.core.acks import Ack, Decline
from sluice.core.completed import CompletedCheckpoint
from sluice.core.ids import CheckpointId, Generation
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.core.properties import JobStatus, Retention
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.restart import RestartStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfiguration:
    """What a submission fixed: every task of the job reads it from the journal, never from its
    own environment, so all of them agree.
    """

    params: Mapping[str, str] = field(default_factory=dict[str, str])
    parallelism: int | None = None
    max_records_per_epoch: int | None = None
    num_retained: int = 3
    tolerable_failed_checkpoints: int = 0
    max_concurrent: int = 1
    min_pause_ms: int = 0
    retention: Retention = Retention.RETAIN_ON_CANCELLATION
    restart: RestartStrategy = field(default_factory=RestartStrategy)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A new life of the pipeline from empty state; checkpoints of an earlier life stay."""

    at_ms: int
    generation: Generation
    configuration: JobConfiguration


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTriggered:
    """The plan is durable; the checkpoint is pending."""

    generation: Generation
    plan: CheckpointPlan
    savepoint_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """A stage runs again for the same checkpoint; acks of its earlier attempts no longer count."""

    generation: Generation
    checkpoint_id: CheckpointId
    stage: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AckReceived:
    """A subtask's snapshot is durable.  Never journaled: the ack itself is in the bucket."""

    ack: Ack


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclineReceived:
    """A subtask cannot take part."""

    generation: Generation
    at_ms: int
    decline: Decline


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCompleted:
    """Every planned ack is present and ``_metadata`` is durable."""

    generation: Generation
    at_ms: int
    checkpoint_id: CheckpointId
    checkpointed_bytes: int
    full_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """Every sink published what it staged for the checkpoint."""

    generation: Generation
    at_ms: int
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """Something ended the checkpoint.  ``is_task_failure`` fails the job over at once.

    ``is_task_level``: a task said so, not the coordinator; savepoints make the difference.
    """

    generation: Generation
    at_ms: int
    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason
    message: str = ""
    is_task_failure: bool = False
    is_task_level: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRestored:
    """The job continues from *checkpoint_id* (None: from empty) under the next generation."""

    at_ms: int
    generation: Generation
    checkpoint_id: CheckpointId | None
    savepoint: str | None = None
    configuration: JobConfiguration | None = None  # None keeps the old one.


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStopped:
    """A person cancelled or suspended the job, or it failed for good."""

    at_ms: int
    generation: Generation
    status: JobStatus


Event: TypeAlias = (
    JobSubmitted
    | CheckpointTriggered
    | AttemptStarted
    | AckReceived
    | DeclineReceived
    | CheckpointCompleted
    | CheckpointCommitted
    | CheckpointFailed
    | JobRestored
    | JobStopped
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizeCheckpoint:
    """Write ``_metadata`` from the plan and these acks, then say CheckpointCompleted."""

    pending: PendingCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCheckpoint:
    """Have every sink publish what it staged (notify complete), then say CheckpointCommitted."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardPending:
    """Delete what the aborted checkpoint's acks and plan name, but shared files still in use."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardCompleted:
    """The checkpoint was subsumed, or its job ended: its files go, but those still in use."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartJob:
    """The job failed over: restore it, not before ``at_ms``."""

    at_ms: int


Command: TypeAlias = (
    FinalizeCheckpoint | CommitCheckpoint | DiscardPending | DiscardCompleted | RestartJob
)
