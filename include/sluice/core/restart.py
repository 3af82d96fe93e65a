"""Whether, and how long after a failure, the job restarts (Flink's RestartBackoffTimeStrategy).

Pure: the jitter is derived from the number of the failure, so two coordinators agree.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import assert_never


class RestartType(Enum):
    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    EXPONENTIAL_DELAY = "exponential-delay"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartStrategy:
    """Flink's ``restart-strategy.*`` options; ``attempts`` None is without limit."""

    type: RestartType = RestartType.EXPONENTIAL_DELAY
    attempts: int | None = None
    delay_ms: int = 1_000  # The pause of fixed-delay, the first one of exponential-delay.
    max_delay_ms: int = 60_000
    multiplier: float = 1.5
    jitter: float = 0.1
    reset_after_ms: int = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartHistory:
    """Failures since the job was last healthy for long enough."""

    failures: int = 0
    last_failure_ms: int = 0


def next_restart(
    strategy: RestartStrategy, history: RestartHistory, failed_at_ms: int
) -> tuple[RestartHistory, int | None]:
    """Count a failure; return when to restart (ms since 1970), or None when it is final."""
    failures = history.failures + 1
    if (
        strategy.type is RestartType.EXPONENTIAL_DELAY
        and failed_at_ms - history.last_failure_ms >= strategy.reset_after_ms
    ):
        failures = 1
    counted = RestartHistory(failures=failures, last_failure_ms=failed_at_ms)
    if strategy.attempts is not None and failures > strategy.attempts:
        return counted, None
    match strategy.type:
        case RestartType.NONE:
            return counted, None
        case RestartType.FIXED_DELAY:
            return counted, failed_at_ms + strategy.delay_ms
        case RestartType.EXPONENTIAL_DELAY:
            return counted, failed_at_ms + _backoff_ms(strategy, failures)
        case _:
            assert_never(strategy.type)


def _backoff_ms(strategy: RestartStrategy, failures: int) -> int:
    exponent = min(failures - 1, 64)  # Past the cap for any multiplier; keeps the float finite.
    pause = min(strategy.delay_ms * strategy.multiplier**exponent, strategy.max_delay_ms)
    digest = hashlib.blake2b(str(failures).encode(), digest_size=4).digest()
    spread = int.from_bytes(digest) / 0xFFFFFFFF * 2 - 1
    return max(0, round(pause * (1 + strategy.jitter * spread)))
