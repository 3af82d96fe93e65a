"""Windows of event time: ``Tumbling(timedelta(minutes=10))``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from sluice.errors import ConfigurationError

_SHORTEST = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, back to back, aligned to 1970 (TumblingEventTimeWindows)."""

    size: timedelta

    def __post_init__(self) -> None:
        _check("a tumbling window", self.size)


@dataclass(frozen=True, slots=True)
class Hopping:
    """Windows of one size that start every ``slide``, aligned to 1970 (SlidingEventTimeWindows)."""

    size: timedelta
    slide: timedelta

    def __post_init__(self) -> None:
        _check("a hopping window", self.size)
        _check("the slide of a hopping window", self.slide)
        if self.size % self.slide:
            raise ConfigurationError(
                f"a hopping window of {self.size} cannot slide by {self.slide}; "
                "make the size a multiple of the slide"
            )


@dataclass(frozen=True, slots=True)
class Session:
    """Rows of a key that follow each other within ``gap`` (EventTimeSessionWindows)."""

    gap: timedelta

    def __post_init__(self) -> None:
        _check("the gap of a session window", self.gap)


@dataclass(frozen=True, slots=True)
class Attached:
    """The windows that the rows already carry, in ``window_start`` and ``window_end``.

    What an earlier window stage yields is windowed again, as Flink's cascading window TVFs.
    """


Window: TypeAlias = Tumbling | Hopping | Session | Attached


def _check(what: str, length: timedelta) -> None:
    if length < _SHORTEST:
        raise ConfigurationError(f"{what} of {length} is too short; use 1 ms or more")
    if length % _SHORTEST:
        raise ConfigurationError(f"{what} of {length} is not whole milliseconds; round it")
