"""How a pipeline takes checkpoints: one frozen dataclass, checked when it is built.

Field names and limits are those of Flink's CheckpointConfig.  docs/reference/configuration.md shows
every field beside its Flink option, and where a default differs.

A value outside its limits is refused, with the fix.  Two values that Flink corrects without a word
are corrected with a warning: an interval below ``min_pause``, and more than one concurrent
checkpoint beside a ``min_pause``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta

from sluice.core.properties import CheckpointingMode, DamagedCheckpoint, Retention
from sluice.core.restart import RestartStrategy, RestartType
from sluice.declaration.config_checks import (
    check_combinations,
    check_limits,
    check_max_records,
    check_restart_strategy,
    check_types,
    checked,
    milliseconds,
)
from sluice.declaration.schedules import Schedule
from sluice.errors import ConfigurationError

__all__ = [
    "Checkpointing",
    "CheckpointingMode",
    "DamagedCheckpoint",
    "RestartStrategy",
    "Retention",
    "StateBackend",
    "check_max_records",
    "exponential_delay",
    "failure_rate",
    "fixed_delay",
    "no_restart",
]

log = logging.getLogger(__name__)

MINIMAL_SUBTASK_MEMORY = 1024**2  # One Arrow batch of a few columns.
MAXIMAL_RUNS = 1_000  # Every lookup of an epoch searches every run: more is of no use.


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """``interval`` is the schedule of the checkpoint DAG, None takes checkpoints by hand only; a
    ``schedule``, if there is one, decides in its place.

    ``max_records_per_epoch`` caps what one epoch takes from each source, None takes everything
    there is; ``target_epoch`` sizes epochs by the measured rate, so that a checkpoint lasts about
    as long.  ``aligned_checkpoint_timeout`` 0 with ``unaligned`` is unaligned from the start.
    Checkpoints stay for ``retain_for`` after they completed, however many these are, and the newest
    ``num_retained`` for longer.
    """

    interval: timedelta | None = timedelta(minutes=1)
    schedule: Schedule | None = None
    interval_during_backlog: timedelta | None = None
    timeout: timedelta = timedelta(minutes=10)
    min_pause: timedelta = timedelta(0)
    max_concurrent_checkpoints: int = 1
    num_retained: int = 3
    retain_for: timedelta = timedelta(0)
    tolerable_failed_checkpoints: int = 0
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    unaligned: bool = False
    aligned_checkpoint_timeout: timedelta = timedelta(0)
    externalized_checkpoint_retention: Retention = Retention.RETAIN_ON_CANCELLATION
    on_damaged_checkpoint: DamagedCheckpoint = DamagedCheckpoint.STOP
    checkpoints_after_tasks_finish: bool = True
    data_inline_threshold: int = 20_480  # Bytes; smaller state travels inside the ack.
    max_records_per_epoch: int | None = None
    target_epoch: timedelta | None = None
    history_size: int = 1_000  # Checkpoints whose statistics are kept after they have ended.
    restart_strategy: RestartStrategy = field(default_factory=RestartStrategy)

    def __post_init__(self) -> None:
        check_types("checkpointing", self)
        check_limits(self)
        check_combinations(self)
        check_restart_strategy(self.restart_strategy)
        for name in ("interval", "interval_during_backlog"):
            interval: timedelta | None = getattr(self, name)
            if interval is not None and interval < self.min_pause:
                self._correct(name, self.min_pause)
        if self.min_pause and self.max_concurrent_checkpoints > 1:
            self._correct("max_concurrent_checkpoints", 1)

    def _correct(self, name: str, value: timedelta | int) -> None:
        """Make the field what ``min_pause`` makes of it anyway, and say so."""
        log.warning(
            "checkpointing corrected for min_pause field=%s given=%s effective=%s min_pause=%s",
            name,
            getattr(self, name),
            value,
            self.min_pause,
        )
        object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBackend:
    """How a subtask keeps its state.  It changes no result, so it may change at any time.

    ``memory_per_subtask``, in bytes, is what an epoch's groups, the state they touch and the output
    may take together; what is more goes through local disk.  ``max_runs`` is how many sorted runs a
    lookup may have to search: beyond it an epoch merges them itself, and does not wait for the
    compaction behind it; 1 keeps all state in one run.
    """

    memory_per_subtask: int = 512 * 1024**2  # Half of what a Spark task of 2 GB cores may take.
    max_runs: int = 16

    def __post_init__(self) -> None:
        check_types("state backend", self)
        if self.memory_per_subtask < MINIMAL_SUBTASK_MEMORY:
            raise ConfigurationError(
                f"memory_per_subtask is {self.memory_per_subtask}; use {MINIMAL_SUBTASK_MEMORY} "
                "bytes or more"
            )
        if not 1 <= self.max_runs <= MAXIMAL_RUNS:
            raise ConfigurationError(f"max_runs is {self.max_runs}; use 1 to {MAXIMAL_RUNS}")


def no_restart() -> RestartStrategy:
    """The first failure is final."""
    return RestartStrategy(type=RestartType.NONE)


def fixed_delay(
    *, attempts: int | None = 1, delay: timedelta = timedelta(seconds=1)
) -> RestartStrategy:
    """Restart *delay* after a failure, at most *attempts* times; None is without limit."""
    return checked(
        RestartStrategy(
            type=RestartType.FIXED_DELAY, attempts=attempts, delay_ms=milliseconds("delay", delay)
        )
    )


def exponential_delay(
    *,
    attempts: int | None = None,
    delay: timedelta = timedelta(seconds=1),
    max_delay: timedelta = timedelta(minutes=1),
    multiplier: float = 1.5,
    jitter: float = 0.1,
    reset_after: timedelta = timedelta(hours=1),
) -> RestartStrategy:
    """Restart *delay* after a failure, *multiplier* times that after the next, up to *max_delay*.

    After *reset_after* without a failure the delay and the *attempts* start anew.  *jitter* is
    the part of the delay that is added or taken off, so that jobs do not restart all at once.
    """
    return checked(
        RestartStrategy(
            type=RestartType.EXPONENTIAL_DELAY,
            attempts=attempts,
            delay_ms=milliseconds("delay", delay),
            max_delay_ms=milliseconds("max_delay", max_delay),
            multiplier=multiplier,
            jitter=jitter,
            reset_after_ms=milliseconds("reset_after", reset_after),
        )
    )


def failure_rate(
    *,
    max_failures_per_interval: int = 1,
    failure_rate_interval: timedelta = timedelta(minutes=1),
    delay: timedelta = timedelta(seconds=1),
) -> RestartStrategy:
    """Restart *delay* after a failure, until there are more of them in one interval than that."""
    return checked(
        RestartStrategy(
            type=RestartType.FAILURE_RATE,
            max_failures_per_interval=max_failures_per_interval,
            failure_rate_interval_ms=milliseconds("failure_rate_interval", failure_rate_interval),
            delay_ms=milliseconds("delay", delay),
        )
    )
