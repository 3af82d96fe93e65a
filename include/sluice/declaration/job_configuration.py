"""What a submission fixes of a declaration, for the life of the job."""

from __future__ import annotations

from datetime import timedelta

from sluice.core.configuration import JobConfiguration
from sluice.declaration.config import Checkpointing


def fixed_configuration(checkpointing: Checkpointing) -> JobConfiguration:
    """The configuration of a job that is submitted now, without parameters and parallelism."""
    backlog = checkpointing.interval_during_backlog
    return JobConfiguration(
        max_records_per_epoch=checkpointing.max_records_per_epoch,
        num_retained=checkpointing.num_retained,
        on_damaged_checkpoint=checkpointing.on_damaged_checkpoint,
        tolerable_failed_checkpoints=checkpointing.tolerable_failed_checkpoints,
        max_concurrent=checkpointing.max_concurrent_checkpoints,
        min_pause_ms=milliseconds(checkpointing.min_pause),
        interval_during_backlog_ms=None if backlog is None else milliseconds(backlog),
        mode=checkpointing.mode,
        unaligned=checkpointing.unaligned,
        aligned_timeout_ms=milliseconds(checkpointing.aligned_checkpoint_timeout),
        checkpoints_after_tasks_finish=checkpointing.checkpoints_after_tasks_finish,
        inline_threshold_bytes=checkpointing.data_inline_threshold,
        retention=checkpointing.externalized_checkpoint_retention,
        restart=checkpointing.restart_strategy,
    )


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
