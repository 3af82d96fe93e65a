"""The coordinator's whole memory: the fold of the journal, and what every entry carries."""

from __future__ import annotations

from dataclasses import dataclass, field

from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import CheckpointType, ClaimMode, JobConfiguration, JobStatus, Timing
from sluice.core.decider import CheckpointRequest
from sluice.core.failures import CheckpointFailureReason, FailureCount
from sluice.core.ids import (
    NO_GENERATION,
    CheckpointId,
    CheckpointIdCounter,
    Generation,
    SavepointId,
)
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import SnapshotOrigin
from sluice.core.restart import RestartHistory
from sluice.core.tables import TableRecovery
from sluice.core.transitions import NO_CONSENT, Consent
from sluice.errors import require

REMEMBERED_FAILURES = 16  # Flink remembers 16 recent ids; here they also feed the history page.
REMEMBERED_LIVES = 64  # A files table that one of them wrote gives way to a new life by itself.
REMEMBERED_TRIGGERS = 16  # As many refused ones as failed checkpoints, for the same page.
REMEMBERED_REJECTIONS = 64  # For the owners of queued requests, who come back and ask.
REMEMBERED_RESTORES = 128  # That people asked for: a task is tried again within days.


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCheckpoint:
    """A checkpoint that was aborted, and why; kept for people, no rule reads it."""

    checkpoint_id: CheckpointId
    type: CheckpointType
    triggered_at_ms: int
    failed_at_ms: int
    reason: CheckpointFailureReason
    message: str
    cause: str = ""
    queued_ms: int = 0

    def __str__(self) -> str:
        detail = f": {self.message}" if self.message else ""
        return f"checkpoint {self.checkpoint_id} was aborted, {self.reason.value}{detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredCheckpoint:
    """The checkpoint that the job was restored from; kept for people, no rule reads it.

    ``origin`` is set when it is not one of the job's own.
    """

    checkpoint_id: CheckpointId
    restored_at_ms: int
    is_savepoint: bool
    origin: SnapshotOrigin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRestore:
    """The outcome of the request *cause*, which is answered once, however often it is tried."""

    cause: str
    generation: Generation
    checkpoint_id: CheckpointId | None
    origin: SnapshotOrigin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRequest:
    """A queued request that will never run, and why."""

    request_id: str
    reason: CheckpointFailureReason
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsuccessfulTrigger:
    """A trigger that was refused, so that there is no checkpoint; kept for people, no rule reads
    it.
    """

    failed_at_ms: int
    type: CheckpointType
    reason: CheckpointFailureReason
    message: str
    cause: str = ""

    def __str__(self) -> str:
        return f"no checkpoint was triggered, {self.reason.value}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorState:
    """All that the coordinator remembers of a job.

    ``base`` is the checkpoint that the next epoch continues, kept at ``origin`` when it is not one
    of the job's own; ``completed`` are the retained ones, ``discarding`` those that left the store
    and whose files may still be there, all old to new.  ``pending`` is a chain: each continues the
    one before it, the first one ``base``.  ``restart_at_ms`` is set while the job is RESTARTING.

    ``life`` is drawn when the job is submitted; ``earlier_lives`` had the same journal.  ``place``
    is the root in which it was: the journal of a copy of that root names another one.  ``tables``
    is per sink the version that the job continues, as a restore has decided it; None: the version
    that the base pins.  A ``table_recovery`` is owed, across generations and lives, until every
    sink has carried the decision out.  ``is_repaired``: entries of the journal were lost, and with
    them perhaps what a table shows, so the next restore asks every sink.
    """

    status: JobStatus = JobStatus.CREATED
    status_since_ms: int | None = None  # By a restore anew, whatever the status was.
    life: str = ""
    place: str = ""
    earlier_lives: tuple[str, ...] = ()
    generation: Generation = NO_GENERATION
    ids: CheckpointIdCounter = field(default_factory=CheckpointIdCounter)
    base: CheckpointId | None = None
    origin: SnapshotOrigin | None = None
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    ignores_in_flight: bool = False
    dropped_stages: tuple[str, ...] = ()  # Uids whose state in the base the job does not take.
    consent: Consent = NO_CONSENT  # To what becomes of state whose meaning is another than in it.
    must_restore_hooks: bool = False
    tables: dict[str, int] | None = None
    table_recovery: TableRecovery | None = None
    tables_recovered_by: Generation = NO_GENERATION  # Whose recovery reached every table last.
    configuration: JobConfiguration = field(default_factory=JobConfiguration)
    timing: Timing = field(default_factory=Timing)
    queue: tuple[CheckpointRequest, ...] = ()
    rejected: tuple[RejectedRequest, ...] = ()
    pending: tuple[PendingCheckpoint, ...] = ()
    completed: tuple[CompletedCheckpoint, ...] = ()
    discarding: tuple[CompletedCheckpoint, ...] = ()
    claimed_savepoints: tuple[SavepointId, ...] = ()
    releasing_savepoints: tuple[SavepointId, ...] = ()  # Claimed ones that are being deleted.
    num_releases: int = 0  # Releases of savepoints so far: what was verified before may be gone.
    failed: tuple[FailedCheckpoint, ...] = ()
    unsuccessful_triggers: tuple[UnsuccessfulTrigger, ...] = ()
    num_unsuccessful_triggers: int = 0  # In a row: Flink's numUnsuccessfulCheckpointsTriggers.
    last_triggered_at_ms: int | None = None
    last_completed_at_ms: int | None = None
    processing_time_ms: int = 0  # Of the base: what was aborted, or left behind, moved nothing.
    is_backlog: bool = False  # As of the newest barrier.
    failure_count: FailureCount = field(default_factory=FailureCount)
    restarts: RestartHistory = field(default_factory=RestartHistory)
    restart_at_ms: int | None = None
    num_restarts: int = 0  # After failures: a restore that a person asked for is none.
    num_restored: int = 0  # Since the first submission, restores from the empty state apart.
    restored: RestoredCheckpoint | None = None  # The latest of them.
    served: tuple[ServedRestore, ...] = ()  # The restores that were asked for, old to new.
    restores_of_base: int = 0  # In a row: with no checkpoint completed since the first of them.
    stopped_because: str = ""  # Why sluice gave up; empty where a person stopped the job.
    is_repaired: bool = False

    def __post_init__(self) -> None:
        if self.status is not JobStatus.RUNNING:
            require(not self.pending, "whatever ends the job ends what is pending")
            require(not self.queue, "whatever ends the job rejects what is queued")
        parent = self.base
        for pending in self.pending:
            require(pending.parent == parent, "pending checkpoints are a chain")
            require(
                pending.checkpoint_id < self.next_checkpoint_id,
                "a pending checkpoint's id was handed out",
            )
            parent = pending.checkpoint_id

    @property
    def is_alive(self) -> bool:
        """Whether it has to be stopped before it can be submitted anew."""
        return self.status in (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FAILING)

    @property
    def min_pause_ms(self) -> int:
        """The pause in force."""
        changed = self.timing.min_pause_ms
        return self.configuration.min_pause_ms if changed is None else changed

    @property
    def tolerable_failed_checkpoints(self) -> int:
        """The number in force."""
        changed = self.timing.tolerable_failed_checkpoints
        return self.configuration.tolerable_failed_checkpoints if changed is None else changed

    @property
    def owes_a_restore(self) -> bool:
        """Whether something outside is still to be put back, before anything new is triggered."""
        return self.must_restore_hooks or self.table_recovery is not None

    @property
    def must_recover_tables(self) -> bool:
        """Whether the tables are to be recovered now.

        They are once the job runs, or before its base can be published.
        """
        is_due = self.status is JobStatus.RUNNING or self.owed is not None
        return self.table_recovery is not None and is_due

    def is_base(self, checkpoint_id: CheckpointId | None, origin: SnapshotOrigin | None) -> bool:
        """Whether that is what the next epoch continues already."""
        return bool(self.life) and (checkpoint_id, origin) == (self.base, self.origin)

    def continues(self, checkpoint_id: CheckpointId | None, origin: SnapshotOrigin | None) -> bool:
        """Whether that is the job's base already, so that its tables need no decision."""
        return self.is_base(checkpoint_id, origin) and not self.is_repaired

    @property
    def next_checkpoint_id(self) -> CheckpointId:
        return self.ids.get()

    @property
    def tip(self) -> CheckpointId | None:
        """The parent of a checkpoint triggered now: the newest pending one, else ``base``."""
        return self.pending[-1].checkpoint_id if self.pending else self.base

    @property
    def tip_processing_time_ms(self) -> int:
        """The processing time of the parent of a checkpoint that would be triggered now."""
        return self.pending[-1].processing_time_ms if self.pending else self.processing_time_ms

    def pending_checkpoint(self, checkpoint_id: int) -> PendingCheckpoint | None:
        return next((p for p in self.pending if p.checkpoint_id == checkpoint_id), None)

    def completed_checkpoint(self, checkpoint_id: int) -> CompletedCheckpoint | None:
        return next((c for c in self.completed if c.checkpoint_id == checkpoint_id), None)

    def failed_checkpoint(self, checkpoint_id: int) -> FailedCheckpoint | None:
        return next((f for f in self.failed if f.checkpoint_id == checkpoint_id), None)

    @property
    def savepoints_under_way(self) -> tuple[SavepointId, ...]:
        """The savepoints that the job writes."""
        written = (
            *(pending.savepoint for pending in self.pending),
            *(done.savepoint for done in self.completed if not done.is_committed),
        )
        return tuple(savepoint for savepoint in written if savepoint is not None)

    def is_free(self, savepoint: SavepointId) -> bool:
        """Whether the job has not claimed the savepoint, and does not write it."""
        return savepoint not in (*self.savepoints_under_way, *self.claimed_savepoints)

    def served_restore(self, cause: str) -> ServedRestore | None:
        """The restore that the request with the id *cause* got; None if it got none yet."""
        return next((one for one in self.served if cause and one.cause == cause), None)

    def rejected_request(self, request_id: str) -> RejectedRequest | None:
        """The reason why the request will never run; None when it waits, ran, or was forgotten."""
        return next((r for r in self.rejected if r.request_id == request_id), None)

    def rejection(self, request_id: str) -> CheckpointFailureReason | None:
        """The reason of ``rejected_request``."""
        rejected = self.rejected_request(request_id)
        return None if rejected is None else rejected.reason

    @property
    def latest_completed(self) -> CompletedCheckpoint | None:
        """The checkpoint that a failure restores: the newest completed one of this life of the job.

        None where an ``origin`` is set: the base is not the job's own, even if an own one has its
        id.
        """
        if self.base is None or self.origin is not None:
            return None
        return self.completed_checkpoint(self.base)

    @property
    def owed(self) -> CompletedCheckpoint | None:
        """The latest completed checkpoint, while its commit is owed to the sinks."""
        latest = self.latest_completed
        return None if latest is None or latest.is_committed else latest
