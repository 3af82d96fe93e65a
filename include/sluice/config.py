"""How a pipeline takes checkpoints: one frozen dataclass, checked when it is built.

Field names are those of Flink's CheckpointConfig; where a default differs, DESIGN names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from sluice.core.properties import Retention
from sluice.core.restart import RestartStrategy
from sluice.errors import ConfigurationError

MINIMAL_CHECKPOINT_TIME = timedelta(milliseconds=10)  # Flink's CheckpointConfig constant.


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """``interval`` is the schedule of the checkpoint DAG; ``max_records_per_epoch`` caps what one
    epoch takes from each source, None takes everything there is.
    """

    interval: timedelta = timedelta(minutes=1)
    timeout: timedelta = timedelta(minutes=10)
    min_pause: timedelta = timedelta(0)
    num_retained: int = 3
    tolerable_failed_checkpoints: int = 0
    max_records_per_epoch: int | None = None
    retention: Retention = Retention.RETAIN_ON_CANCELLATION
    restart_strategy: RestartStrategy = field(default_factory=RestartStrategy)

    def __post_init__(self) -> None:
        for name in ("interval", "timeout"):
            value: timedelta = getattr(self, name)
            if value < MINIMAL_CHECKPOINT_TIME:
                raise ConfigurationError(
                    f"checkpointing {name} is {value}; it must be at least 10 ms"
                )
        if self.min_pause < timedelta(0):
            raise ConfigurationError(f"checkpointing min_pause is {self.min_pause}; use 0 or more")
        if self.num_retained < 1:
            raise ConfigurationError(
                f"checkpointing num_retained is {self.num_retained}; retain at least 1, "
                "or there is nothing to restore"
            )
        if self.tolerable_failed_checkpoints < 0:
            raise ConfigurationError(
                "checkpointing tolerable_failed_checkpoints is "
                f"{self.tolerable_failed_checkpoints}; use 0 or more"
            )
        check_max_records(self.max_records_per_epoch)


def check_max_records(value: int | None) -> None:
    """Raises ConfigurationError unless *value* is None or at least 1."""
    if value is not None and value < 1:
        raise ConfigurationError(
            f"max_records_per_epoch is {value}; use 1 or more, or leave it out"
        )
