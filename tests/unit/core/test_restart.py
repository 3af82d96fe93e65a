"""Restart strategies: when a failed job runs again, and when it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.restart import RestartHistory, RestartStrategy, RestartType, next_restart

NOW_MS = 10_000_000


def pauses(strategy: RestartStrategy, times_ms: list[int]) -> list[int | None]:
    """The pause after a failure at each of these times, None when it is final."""
    history, found = RestartHistory(), list[int | None]()
    for failed_at_ms in times_ms:
        history, restart_at_ms = next_restart(strategy, history, failed_at_ms)
        found.append(None if restart_at_ms is None else restart_at_ms - failed_at_ms)
    return found


def test_none_never_restarts() -> None:
    assert pauses(RestartStrategy(type=RestartType.NONE), [NOW_MS]) == [None]


def test_a_fixed_delay_restarts_so_many_times_after_the_same_pause() -> None:
    strategy = RestartStrategy(type=RestartType.FIXED_DELAY, attempts=2, delay_ms=700)

    assert pauses(strategy, [NOW_MS, NOW_MS + 1, NOW_MS + 2]) == [700, 700, None]


def test_an_exponential_delay_grows_to_its_maximum() -> None:
    strategy = RestartStrategy(delay_ms=1_000, multiplier=2.0, max_delay_ms=5_000, jitter=0.0)

    assert pauses(strategy, [NOW_MS + n for n in range(5)]) == [1_000, 2_000, 4_000, 5_000, 5_000]


def test_an_exponential_delay_starts_again_after_a_healthy_time() -> None:
    strategy = RestartStrategy(
        delay_ms=1_000, multiplier=2.0, jitter=0.0, reset_after_ms=60_000, attempts=2
    )

    found = pauses(strategy, [NOW_MS, NOW_MS + 59_999, NOW_MS + 119_999, NOW_MS + 120_000])

    assert found == [1_000, 2_000, 1_000, 2_000]


def test_exhausted_attempts_are_final_and_are_counted() -> None:
    strategy = RestartStrategy(attempts=1, jitter=0.0)
    history, _ = next_restart(strategy, RestartHistory(), NOW_MS)

    history, restart_at_ms = next_restart(strategy, history, NOW_MS + 1)

    assert restart_at_ms is None
    assert history == RestartHistory(failures=2, last_failure_ms=NOW_MS + 1)


@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(1, 10))
def test_the_jitter_stays_within_its_share_and_is_the_same_for_everybody(
    failures: int, jitter: float, multiplier: float
) -> None:
    strategy = RestartStrategy(jitter=jitter, multiplier=multiplier)
    history = RestartHistory(failures=failures, last_failure_ms=NOW_MS)

    _, restart_at_ms = next_restart(strategy, history, NOW_MS)

    assert restart_at_ms is not None
    assert restart_at_ms == next_restart(strategy, history, NOW_MS)[1]
    assert 0 <= restart_at_ms - NOW_MS <= strategy.max_delay_ms * (1 + jitter) + 1


@pytest.mark.parametrize("type_", list(RestartType))
def test_every_strategy_counts_the_failure(type_: RestartType) -> None:
    history, _ = next_restart(RestartStrategy(type=type_), RestartHistory(), NOW_MS)

    assert history == RestartHistory(failures=1, last_failure_ms=NOW_MS)
