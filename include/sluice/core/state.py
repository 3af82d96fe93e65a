"""The coordinator's whole memory: the fold of the journal, and what every entry carries."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.core.completed import CompletedCheckpoint
from sluice.core.failures import FailureCount
from sluice.core.ids import FIRST_CHECKPOINT_ID, NO_GENERATION, CheckpointId, Generation
from sluice.core.messages import JobConfiguration
from sluice.core.pending import PendingCheckpoint
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.restart import RestartHistory

REMEMBERED_FAILURES = 16  # Flink remembers 16 recent ids; here they also feed the history page.


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCheckpoint:
    """A checkpoint that was aborted, and why; kept for people, no rule reads it."""

    checkpoint_id: CheckpointId
    type: CheckpointType
    triggered_at_ms: int
    failed_at_ms: int
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorState:
    """``base`` is the checkpoint the next epoch continues; ``completed`` the retained ones, old to
    new.  ``restart_at_ms`` is set while the job is RESTARTING.
    """

    status: JobStatus = JobStatus.CREATED
    generation: Generation = NO_GENERATION
    next_checkpoint_id: CheckpointId = FIRST_CHECKPOINT_ID
    base: CheckpointId | None = None
    base_savepoint: str | None = None
    configuration: JobConfiguration = field(default_factory=JobConfiguration)
    pending: tuple[PendingCheckpoint, ...] = ()
    completed: tuple[CompletedCheckpoint, ...] = ()
    failed: tuple[FailedCheckpoint, ...] = ()
    last_completed_at_ms: int | None = None
    failure_count: FailureCount = field(default_factory=FailureCount)
    restarts: RestartHistory = field(default_factory=RestartHistory)
    restart_at_ms: int | None = None
    num_restarts: int = 0

    def __post_init__(self) -> None:
        ids = [pending.checkpoint_id for pending in self.pending]
        assert ids == sorted(set(ids)), "pending checkpoints are in id order"
        assert all(known < self.next_checkpoint_id for known in ids)

    def pending_checkpoint(self, checkpoint_id: int) -> PendingCheckpoint | None:
        return next((p for p in self.pending if p.checkpoint_id == checkpoint_id), None)

    def completed_checkpoint(self, checkpoint_id: int) -> CompletedCheckpoint | None:
        return next((c for c in self.completed if c.checkpoint_id == checkpoint_id), None)

    def failed_checkpoint(self, checkpoint_id: int) -> FailedCheckpoint | None:
        return next((f for f in self.failed if f.checkpoint_id == checkpoint_id), None)

    @property
    def latest_completed(self) -> CompletedCheckpoint | None:
        """What a failure restores: the newest completed one of this life of the job."""
        return self.completed_checkpoint(self.base) if self.base is not None else None
