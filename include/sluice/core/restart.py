"""Restart strategies: whether a job restarts, and when (Flink's RestartBackoffTimeStrategy).

Pure: the jitter is derived from the failure's number and time, so two coordinators agree, and two
jobs that wait for the same outage do not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

_LONGEST_MS = 2**62  # Keeps exponential growth finite; past any maximum.


class RestartType(Enum):
    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    EXPONENTIAL_DELAY = "exponential-delay"
    FAILURE_RATE = "failure-rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartStrategy:
    """Flink's ``restart-strategy.*`` options; each type reads its own.

    ``attempts`` None sets no limit; for exponential-delay it counts since the last reset (Flink's
    ``attempts-before-reset-backoff``).
    """

    type: RestartType = RestartType.EXPONENTIAL_DELAY
    attempts: int | None = None
    delay_ms: int = 1_000  # For exponential-delay the first delay, and the least.
    max_delay_ms: int = 60_000
    multiplier: float = 1.5
    jitter: float = 0.1
    reset_after_ms: int = 3_600_000
    max_failures_per_interval: int = 1
    failure_rate_interval_ms: int = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartHistory:
    """The memory of the restart strategies; each type reads its own.

    ``attempts`` counts restarts, for exponential-delay since the last reset; ``restart_at_ms`` is
    when the latest is due.  ``failures_ms`` are the newest failures, as many as the failure rate
    needs.
    """

    attempts: int = 0
    restart_at_ms: int | None = None
    failures_ms: tuple[int, ...] = ()


def next_restart(
    strategy: RestartStrategy, history: RestartHistory, failed_at_ms: int
) -> tuple[RestartHistory, int | None]:
    """Count a failure; return when to restart (ms since 1970), or None when it is final."""
    match strategy.type:
        case RestartType.NONE:
            return history, None
        case RestartType.FIXED_DELAY:
            counted = _attempt(history, failed_at_ms + strategy.delay_ms)
            return counted, _unless_exhausted(strategy, counted)
        case RestartType.EXPONENTIAL_DELAY:
            counted = _back_off(strategy, history, failed_at_ms)
            return counted, _unless_exhausted(strategy, counted)
        case RestartType.FAILURE_RATE:
            return _rate(strategy, history, failed_at_ms)
        case _:
            assert_never(strategy.type)


def _attempt(history: RestartHistory, restart_at_ms: int) -> RestartHistory:
    return replace(history, attempts=history.attempts + 1, restart_at_ms=restart_at_ms)


def _unless_exhausted(strategy: RestartStrategy, counted: RestartHistory) -> int | None:
    if strategy.attempts is not None and counted.attempts > strategy.attempts:
        return None
    return counted.restart_at_ms


def _back_off(
    strategy: RestartStrategy, history: RestartHistory, failed_at_ms: int
) -> RestartHistory:
    """Failures until the restart is due are one attempt; a healthy time after it starts anew."""
    due_ms = history.restart_at_ms
    if due_ms is not None and failed_at_ms <= due_ms:
        return history
    if due_ms is not None and failed_at_ms - due_ms >= strategy.reset_after_ms:
        history = replace(history, attempts=0)
    pause_ms = _backoff_ms(strategy, history.attempts, failed_at_ms)
    return _attempt(history, failed_at_ms + pause_ms)


def _backoff_ms(strategy: RestartStrategy, attempts: int, failed_at_ms: int) -> int:
    try:
        current_ms = int(strategy.delay_ms * strategy.multiplier**attempts)
    except OverflowError:
        current_ms = _LONGEST_MS
    current_ms = min(current_ms, _LONGEST_MS)
    spread_ms = int(current_ms * strategy.jitter)
    digest = hashlib.blake2b(f"{attempts}/{failed_at_ms}".encode(), digest_size=16).digest()
    jitter_ms = int.from_bytes(digest) % (2 * spread_ms + 1) - spread_ms
    return max(strategy.delay_ms, min(current_ms + jitter_ms, strategy.max_delay_ms))


def _rate(
    strategy: RestartStrategy, history: RestartHistory, failed_at_ms: int
) -> tuple[RestartHistory, int | None]:
    """Final when an interval has more failures than ``max_failures_per_interval``."""
    too_many = strategy.max_failures_per_interval + 1
    failures_ms = (*history.failures_ms, failed_at_ms)[-too_many:]
    restart_at_ms = failed_at_ms + strategy.delay_ms
    counted = replace(_attempt(history, restart_at_ms), failures_ms=failures_ms)
    has_room = len(failures_ms) < too_many
    is_slow = failed_at_ms - failures_ms[0] > strategy.failure_rate_interval_ms
    return counted, restart_at_ms if has_room or is_slow else None
