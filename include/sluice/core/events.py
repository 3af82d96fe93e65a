"""The events that the coordinator takes, the commands that it gives, and its transitions.

Events are facts: past tense, already true.  Commands are wishes: imperative, not yet true, carried
out by ``sluice.coordinator``.  Both are plain frozen data: a run can be written down and replayed.

Every event that reaches the journal names the generation of its author; an author of a lower
generation than the journal's is fenced.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from sluice.core.answers import Ack, Decline
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import ClaimMode, JobConfiguration, JobStatus, Timing
from sluice.core.decider import CheckpointRequest
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, Generation, SavepointId
from sluice.core.pending import AckResult
from sluice.core.plan import CheckpointPlan, SnapshotOrigin
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableDecision
from sluice.core.transitions import NO_CONSENT, Consent
from sluice.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A new life of the pipeline from empty state; checkpoints of an earlier life stay.

    ``life`` is a token that no other submission has, of whatever journal; ``place`` is the root.
    """

    at_ms: int
    generation: Generation
    configuration: JobConfiguration
    life: str
    place: str = ""
    tables: TableDecision = field(default_factory=TableDecision)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested:
    """A checkpoint is wanted and cannot start now, or a queued request is asked about again."""

    generation: Generation
    at_ms: int
    request: CheckpointRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTriggered:
    """The plan is durable; the checkpoint that *request* asked for is pending."""

    generation: Generation
    plan: CheckpointPlan
    request: CheckpointRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerFailed:
    """The request was refused, and has no id: no plan could be made, as ``message`` explains."""

    generation: Generation
    at_ms: int
    request: CheckpointRequest
    reason: CheckpointFailureReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWithdrawn:
    """A queued request needs no checkpoint: there is nothing to do, or its host took up another
    one.  Nobody refused it.
    """

    generation: Generation
    at_ms: int
    request: CheckpointRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """A stage runs again for the same checkpoint; acks of its earlier attempts no longer count."""

    generation: Generation
    checkpoint_id: CheckpointId
    stage: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcksReceived:
    """Snapshots of subtasks, one or thousands, are durable: acks of one checkpoint, as read.

    Never journaled: the acks themselves are in the bucket.
    """

    checkpoint_id: CheckpointId
    acks: tuple[Ack, ...]

    def __post_init__(self) -> None:
        require(
            all(ack.checkpoint_id == self.checkpoint_id for ack in self.acks),
            "acks that are read together are of one checkpoint",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclineReceived:
    """A subtask cannot take part."""

    generation: Generation
    at_ms: int
    decline: Decline


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentTimedOut:
    """The aligned checkpoint timeout passed while *stages* were behind: they are overtaken."""

    generation: Generation
    at_ms: int
    checkpoint_id: CheckpointId
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCompleted:
    """Every planned ack is present and ``_metadata`` is durable.

    ``attempts`` are those whose answers ``_metadata`` was made of, per stage that was not
    overtaken: refused unless each is current.
    """

    generation: Generation
    at_ms: int
    checkpoint_id: CheckpointId
    attempts: dict[str, int]
    checkpointed_bytes: int
    full_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """Every sink published what it staged; the files of the ``discarded`` checkpoints are gone.

    ``sinks`` are those that had something staged; the others keep the version they have.
    """

    generation: Generation
    at_ms: int
    checkpoint_id: CheckpointId
    sinks: tuple[str, ...] = ()
    discarded: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotsDiscarded:
    """The files of snapshots that the state lists for deletion were deleted, not by a commit."""

    generation: Generation
    checkpoints: tuple[CheckpointId, ...] = ()
    savepoints: tuple[SavepointId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointsReleased:
    """No checkpoint uses these savepoints: from now on nothing is restored from them.

    They are claimed, or with ``is_disposal`` a person's who wants them deleted.
    """

    generation: Generation
    savepoints: tuple[SavepointId, ...]
    is_disposal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFailed:
    """The checkpoint is aborted for ``reason``.  ``is_task_failure`` fails the job over at once.

    ``is_task_level``: a task reports it, not the coordinator; only then a savepoint's counts.
    """

    generation: Generation
    at_ms: int
    checkpoint_id: CheckpointId
    reason: CheckpointFailureReason
    message: str = ""
    is_task_failure: bool = False
    is_task_level: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """The job cannot go on, whatever its checkpoints do: it fails over (a global failure)."""

    generation: Generation
    at_ms: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRestored:
    """The job continues from *checkpoint_id* (None: from empty) under the next generation.

    ``origin`` is the place of a checkpoint that is not the job's own.  ``dropped_stages`` are the
    uids, sources and sinks among them, whose state a person consented to drop; ``consent`` is for
    state whose meaning has changed.  ``tables`` None: no sink was asked, for the job goes on from
    where it is.  ``life`` is set for a job that was never submitted here, as is ``place``, the
    root.  ``processing_time_ms`` is the checkpoint's.  ``passed_over`` are damaged checkpoints that
    a restart met before it found this one, and ``message`` names their damage.
    """

    at_ms: int
    generation: Generation
    checkpoint_id: CheckpointId | None
    origin: SnapshotOrigin | None = None
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    ignores_in_flight: bool = False
    has_hooks: bool = False  # Master hooks are to be restored before anything new is triggered.
    is_latest: bool = False  # The newest was chosen: refused if another completed meanwhile.
    tables: TableDecision | None = None
    life: str = ""
    place: str = ""
    dropped_stages: tuple[str, ...] = ()
    consent: Consent = NO_CONSENT
    configuration: JobConfiguration | None = None  # None keeps the old one.
    cause: str = ""  # The id of the request, which is served once.
    processing_time_ms: int = 0
    passed_over: tuple[CheckpointId, ...] = ()
    message: str = ""
    releases: int = 0  # ``num_releases`` when the snapshot was verified.


@dataclass(frozen=True, slots=True, kw_only=True)
class RootAdopted:
    """A person says that the job is at *place* now, and that nothing of it runs elsewhere."""

    at_ms: int
    generation: Generation
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksRestored:
    """Every master hook has put its outside world back to the restored checkpoint."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesRecovered:
    """Every sink's table has become what the latest decision about the tables says."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStopped:
    """A person cancelled or suspended the job, or sluice gave it up, and ``message`` tells a person
    why, and how to go on.
    """

    at_ms: int
    generation: Generation
    status: JobStatus
    message: str = ""

    @property
    def is_final(self) -> bool:
        """Whether nothing of the job is to be resumed."""
        return self.status.is_globally_terminal and not self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointingChanged:
    """A person paused or resumed checkpointing, or changed its times: ``timing`` holds from now."""

    at_ms: int
    generation: Generation
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRepaired:
    """Entries *first* to *last*, the newest, cannot be read: the job goes on from the one before.

    Their effects are undone.  ``generation`` and ``next_checkpoint_id`` are above every one that
    these entries may have used.  ``completed`` is a checkpoint that is known to have completed in
    one of them.
    """

    at_ms: int
    generation: Generation
    first: int
    last: int
    next_checkpoint_id: CheckpointId
    completed: CheckpointCompleted | None = None
    message: str = ""


Event: TypeAlias = (
    CheckpointRequested
    | CheckpointTriggered
    | TriggerFailed
    | RequestWithdrawn
    | AttemptStarted
    | AcksReceived
    | DeclineReceived
    | AlignmentTimedOut
    | CheckpointCompleted
    | CheckpointCommitted
    | CheckpointFailed
    | JobSubmitted
    | JobFailed
    | JobRestored
    | RootAdopted
    | HooksRestored
    | TablesRecovered
    | JobStopped
    | SavepointsReleased
    | SnapshotsDiscarded
    | CheckpointingChanged
    | JournalRepaired
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardPending:
    """Delete what the aborted checkpoint's acks and plan name, but shared files still in use, and
    what was written of the *savepoint* that it was to be.  ``plan`` is its plan's token.
    """

    checkpoint_id: CheckpointId
    plan: str
    savepoint: SavepointId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardCompleted:
    """The checkpoint was subsumed, or its job ended: its files go, but those still in use."""

    checkpoint: CompletedCheckpoint


Command: TypeAlias = DiscardPending | DiscardCompleted


class Verdict(Enum):
    """The verdict on an event."""

    APPLIED = auto()
    IGNORED = auto()  # Already true, or about something that ended: repeating is harmless.
    FENCED = auto()  # Its author's generation was overtaken.
    REFUSED = auto()  # Not allowed in this state; the caller asks for the reason.


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """``ack_results`` are of the event's acks, in their order."""

    state: CoordinatorState
    verdict: Verdict = Verdict.APPLIED
    commands: tuple[Command, ...] = ()
    ack_results: tuple[AckResult, ...] = ()


def ignored(state: CoordinatorState) -> Transition:
    return Transition(state=state, verdict=Verdict.IGNORED)


def refused(state: CoordinatorState) -> Transition:
    return Transition(state=state, verdict=Verdict.REFUSED)
