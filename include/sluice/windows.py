"""How event time is cut into windows: ``Tumbling(timedelta(minutes=10))``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sluice.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, back to back, aligned to 1970 (TumblingEventTimeWindows)."""

    size: timedelta

    def __post_init__(self) -> None:
        if self.size < timedelta(milliseconds=1):
            raise ConfigurationError(
                f"a tumbling window of {self.size} is too short; use 1 ms or more"
            )
