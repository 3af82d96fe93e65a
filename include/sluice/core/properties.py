"""What kind of checkpoint this is, and whether the end of the job discards it.

Flink's CheckpointProperties and SnapshotType; the discard matrix is CheckpointPropertiesTest's.
"""

from __future__ import annotations

from enum import Enum


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


class CheckpointType(Enum):
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


class CheckpointingMode(Enum):
    """When a sink shows what it staged: once the checkpoint completed, or once its stage acked."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


class ClaimMode(Enum):
    """The owner of the savepoint that a job was restored from (Flink's RecoveryClaimMode)."""

    NO_CLAIM = "NO_CLAIM"  # Its owner does; the first checkpoint after the restore shares no file.
    CLAIM = "CLAIM"  # The job does, and deletes it when no checkpoint uses it any more.


class DamagedCheckpoint(Enum):
    """What becomes of a job whose restart meets a checkpoint that is not what was written.

    A person's restore is refused either way.
    """

    STOP = "STOP"  # The job is FAILED, and says what is damaged: a person decides.
    OLDER = "OLDER"  # The next older one that is whole, if the tables can go back with it.


class Retention(Enum):
    """What becomes of the retained checkpoints when the job ends (externalized retention)."""

    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    RETAIN_ON_FAILURE = "RETAIN_ON_FAILURE"
    NEVER_RETAIN_AFTER_TERMINATION = "NEVER_RETAIN_AFTER_TERMINATION"


def is_discarded(
    type: CheckpointType,  # noqa: A002 - Flink's word
    retention: Retention,
    ended: JobStatus | None,
) -> bool:
    """Whether a checkpoint goes when the job reaches *ended*; None: when it is subsumed.

    A savepoint is its owner's and never goes.
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
