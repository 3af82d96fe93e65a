"""Flink's reasons by name: the product's own, and those that cannot occur in it."""

from __future__ import annotations

from sluice.core.failures import CheckpointFailureReason

# Each as one of the same kind that the product gives; none counts, in Flink neither.
CANNOT_OCCUR = {
    "BLOCKING_OUTPUT_EXIST": CheckpointFailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
    "CHANNEL_STATE_SHARED_STREAM_EXCEPTION": (
        CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
    ),
    "CHECKPOINT_DECLINED_SUBSUMED": CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING,
    "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER": (
        CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
    ),
    "CHECKPOINT_COORDINATOR_SHUTDOWN": CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
    "TASK_CHECKPOINT_FAILURE": CheckpointFailureReason.TASK_FAILURE,
    "UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE": CheckpointFailureReason.TASK_FAILURE,
}


def reason_named(name: str) -> CheckpointFailureReason:
    """Raises ValueError when Flink has no such reason."""
    return CANNOT_OCCUR.get(name) or CheckpointFailureReason(name)


def is_a_reason(name: str) -> bool:
    return name in CANNOT_OCCUR or name in CheckpointFailureReason.__members__
