"""The configuration of a job, fixed by its submission or a restore and journaled with it.

What kind of checkpoint this is, and whether the end of the job discards it.

Flink's CheckpointProperties and SnapshotType; the discard matrix is CheckpointPropertiesTest's.

What a person changed of a running job's checkpointing: a pause, and other times.

It is kept beside the configuration that the submission fixed, through failovers and restores, until
a person takes it back or the job is submitted anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from sluice.core.restart import RestartStrategy


class CheckpointingMode(Enum):
    """When a sink shows what it staged: once the checkpoint completed, or once its stage acked."""

    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfiguration:
    """What a submission or the latest restore fixed: every task of the job reads it from the
    journal, never from its own environment, so all of them agree.

    ``parallelism`` is that of stages that declare none; ``stage_parallelism`` beats what a stage
    declares.  Where a person gave ``max_records_per_epoch`` with the submission it beats what is
    declared, then and at a restore.
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
    max_queued: int = 1_000
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


class ClaimMode(Enum):
    """The owner of the savepoint that a job was restored from (Flink's RecoveryClaimMode)."""

    NO_CLAIM = "NO_CLAIM"  # Its owner does; the first checkpoint after the restore shares no file.
    CLAIM = "CLAIM"  # The job does, and deletes it when no checkpoint uses it any more.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """None: as the job was submitted.  While ``is_paused`` no periodic checkpoint is taken."""

    is_paused: bool = False
    interval_ms: int | None = None
    min_pause_ms: int | None = None
    timeout_ms: int | None = None
    tolerable_failed_checkpoints: int | None = None
    changed_at_ms: int | None = None
    changed_by: str = ""
