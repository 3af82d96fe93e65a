"""The configuration of a job and of its checkpoints: Flink's CheckpointConfig and SnapshotType.

A submission or a restore fixes the ``JobConfiguration``, which is journaled.  What a person changed
of a running job's checkpointing is kept beside it, as its ``Timing``, through failovers and
restores, until a person takes it back or the job is submitted anew.  ``is_discarded`` is the
discard matrix of Flink's CheckpointProperties, and CheckpointPropertiesTest holds for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from sluice.core.restart import RestartStrategy

MAX_QUEUED_REQUESTS = 1_000  # Flink's DEFAULT_MAX_QUEUED_REQUESTS.


class CheckpointingMode(Enum):
    """The moment when a sink shows what it staged: its checkpoint completed, or its stage acked."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class DamagedCheckpoint(Enum):
    """The way of a restart where the bytes of its checkpoint are not those that were written.

    A person's restore is refused either way.
    """

    STOP = "STOP"  # The job is FAILED, and names what is damaged: a person decides.
    OLDER = "OLDER"  # It takes the next older whole checkpoint, if the tables can go back with it.


class Retention(Enum):
    """The fate of the retained checkpoints when the job ends for good (externalized retention).

    A job that is SUSPENDED keeps them all, as does one that sluice stopped for a person to decide.
    """

    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    RETAIN_ON_FAILURE = "RETAIN_ON_FAILURE"
    NEVER_RETAIN_AFTER_TERMINATION = "NEVER_RETAIN_AFTER_TERMINATION"


class CheckpointType(Enum):
    """Flink's SnapshotType."""

    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    SAVEPOINT_SUSPEND = "SAVEPOINT_SUSPEND"  # Stop; event time stays where it is.
    SAVEPOINT_TERMINATE = "SAVEPOINT_TERMINATE"  # Drain: watermark to MAX, windows fire, FINISHED.

    @property
    def is_savepoint(self) -> bool:
        return self is not CheckpointType.CHECKPOINT

    @property
    def stops_the_job(self) -> bool:
        """Flink's synchronous savepoint."""
        return self in (CheckpointType.SAVEPOINT_SUSPEND, CheckpointType.SAVEPOINT_TERMINATE)


class ClaimMode(Enum):
    """The owner of the savepoint that a job was restored from (Flink's RecoveryClaimMode)."""

    NO_CLAIM = "NO_CLAIM"  # A person; the first checkpoint after the restore shares no file.
    CLAIM = "CLAIM"  # The job, which deletes it when no checkpoint uses it any more.


class JobStatus(Enum):
    """Flink's JobStatus.  Checkpoints are triggered in RUNNING and nowhere else."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"  # Failed for good; its last completed checkpoint is still to be committed.
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"
    FINISHED = "FINISHED"

    @property
    def is_globally_terminal(self) -> bool:
        return self in (JobStatus.CANCELED, JobStatus.FAILED, JobStatus.FINISHED)

    @property
    def is_terminal(self) -> bool:
        """Whether nothing goes on but by a restore: it has ended for good, or is SUSPENDED."""
        return self.is_globally_terminal or self is JobStatus.SUSPENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfiguration:
    """The configuration that a submission or the latest restore fixed.

    Every task of the job reads it from the journal, never from its own environment, so all agree.
    ``parallelism`` is that of stages that declare none; ``stage_parallelism`` beats what a stage
    declares.  With ``has_given_max_records`` a person gave ``max_records_per_epoch`` with the
    submission; it beats what is declared, then and at a restore.
    """

    params: Mapping[str, str] = field(default_factory=dict[str, str])
    parallelism: int | None = None
    stage_parallelism: Mapping[str, int] = field(default_factory=dict[str, int])
    max_records_per_epoch: int | None = None
    has_given_max_records: bool = False
    target_epoch_ms: int | None = None
    num_retained: int = 3
    retain_ms: int = 0  # 0: by their number alone.
    tolerable_failed_checkpoints: int = 0
    max_concurrent: int = 1
    max_queued: int = MAX_QUEUED_REQUESTS
    min_pause_ms: int = 0
    interval_during_backlog_ms: int | None = None
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    unaligned: bool = False
    aligned_timeout_ms: int = 0  # 0: unaligned from the start.
    checkpoints_after_tasks_finish: bool = True
    inline_threshold_bytes: int = 20_480  # Flink's data-inline-threshold, 20 kb.
    retention: Retention = Retention.RETAIN_ON_CANCELLATION
    on_damaged_checkpoint: DamagedCheckpoint = DamagedCheckpoint.STOP
    restart: RestartStrategy = field(default_factory=RestartStrategy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Changes to a running job's checkpointing; None: as submitted.

    While ``is_paused`` no periodic checkpoint is taken.
    """

    is_paused: bool = False
    interval_ms: int | None = None
    min_pause_ms: int | None = None
    timeout_ms: int | None = None
    tolerable_failed_checkpoints: int | None = None
    changed_at_ms: int | None = None
    changed_by: str = ""


def is_discarded(
    type: CheckpointType,  # noqa: A002 - Flink's word
    retention: Retention,
    ended: JobStatus | None,
) -> bool:
    """Whether a checkpoint goes when the job reaches *ended*; None: when it is subsumed.

    A savepoint is its owner's and never goes.  The matrix has a row for SUSPENDED, as Flink's has,
    and as in Flink nobody asks for it: ``core/lifecycle.py`` applies it to a final end only.
    """
    if type.is_savepoint:
        return False
    return ended is None or ended not in _KEPT_ON[retention]


_KEPT_ON = {
    Retention.RETAIN_ON_CANCELLATION: frozenset(
        {JobStatus.CANCELED, JobStatus.FAILED, JobStatus.SUSPENDED}
    ),
    Retention.RETAIN_ON_FAILURE: frozenset({JobStatus.FAILED}),
    Retention.NEVER_RETAIN_AFTER_TERMINATION: frozenset[JobStatus](),
}
