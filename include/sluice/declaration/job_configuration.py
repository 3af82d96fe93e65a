"""What a submission or a restore fixes of a declaration, until the next one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from sluice.core.configuration import JobConfiguration
from sluice.declaration.config import Checkpointing


def fixed_configuration(checkpointing: Checkpointing) -> JobConfiguration:
    """The configuration of a job that is submitted now, without parameters and parallelism."""
    backlog, target = checkpointing.interval_during_backlog, checkpointing.target_epoch
    return JobConfiguration(
        max_records_per_epoch=checkpointing.max_records_per_epoch,
        target_epoch_ms=None if target is None else milliseconds(target),
        num_retained=checkpointing.num_retained,
        retain_ms=milliseconds(checkpointing.retain_for),
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


def renewed(checkpointing: Checkpointing, before: JobConfiguration) -> JobConfiguration:
    """The configuration *before* with the options of the declaration as it is now, which is what a
    restore takes; what a person gave stays.
    """
    fixed = fixed_configuration(checkpointing)
    given = before.has_given_max_records
    return replace(
        fixed,
        params=before.params,
        parallelism=before.parallelism,
        stage_parallelism=before.stage_parallelism,
        max_records_per_epoch=(
            before.max_records_per_epoch if given else fixed.max_records_per_epoch
        ),
        has_given_max_records=given,
    )


def milliseconds(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)
