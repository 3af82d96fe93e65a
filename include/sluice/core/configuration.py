"""The configuration of a job, fixed by its submission or a restore and journaled with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.core.properties import CheckpointingMode, DamagedCheckpoint, Retention
from sluice.core.restart import RestartStrategy


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
