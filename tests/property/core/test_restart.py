"""The restart strategies: Flink's own examples, and each against a mutable copy of its rule."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.restart import RestartHistory, RestartStrategy, RestartType, next_restart

NOW_MS = 10_000_000
HOUR_MS = 3_600_000


def a_fixed_delay(**options: Any) -> RestartStrategy:
    return RestartStrategy(type=RestartType.FIXED_DELAY, **options)


def a_failure_rate(
    max_failures_per_interval: int, failure_rate_interval_ms: int
) -> RestartStrategy:
    return RestartStrategy(
        type=RestartType.FAILURE_RATE,
        max_failures_per_interval=max_failures_per_interval,
        failure_rate_interval_ms=failure_rate_interval_ms,
    )


def an_exponential_delay(
    delay_ms: int,
    max_delay_ms: int,
    multiplier: float,
    *,
    jitter: float = 0.0,
    reset_after_ms: int = 8,
    attempts: int | None = None,
) -> RestartStrategy:
    return RestartStrategy(
        delay_ms=delay_ms,
        max_delay_ms=max_delay_ms,
        multiplier=multiplier,
        jitter=jitter,
        reset_after_ms=reset_after_ms,
        attempts=attempts,
    )


def pauses(strategy: RestartStrategy, times_ms: list[int]) -> list[int | None]:
    """The pause after a failure at each of these times, None when it is final."""
    history, found = RestartHistory(), list[int | None]()
    for failed_at_ms in times_ms:
        history, restart_at_ms = next_restart(strategy, history, failed_at_ms)
        found.append(None if restart_at_ms is None else restart_at_ms - failed_at_ms)
    return found


def pauses_in_a_row(strategy: RestartStrategy, failures: int) -> list[int]:
    """The pauses of a job that fails again 1 ms after each restart."""
    history, found, failed_at_ms = RestartHistory(), list[int](), NOW_MS
    for _ in range(failures):
        history, restart_at_ms = next_restart(strategy, history, failed_at_ms)
        assert restart_at_ms is not None
        found.append(restart_at_ms - failed_at_ms)
        failed_at_ms = restart_at_ms + 1
    return found


def test_the_defaults_are_those_of_flink() -> None:
    assert RestartStrategy() == RestartStrategy(
        type=RestartType.EXPONENTIAL_DELAY,
        attempts=None,
        delay_ms=1_000,
        max_delay_ms=60_000,
        multiplier=1.5,
        jitter=0.1,
        reset_after_ms=HOUR_MS,
        max_failures_per_interval=1,
        failure_rate_interval_ms=60_000,
    )


def test_none_never_restarts() -> None:
    assert pauses(RestartStrategy(type=RestartType.NONE), [NOW_MS, NOW_MS + HOUR_MS]) == [
        None,
        None,
    ]


def test_a_type_that_nobody_knows_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        pauses(RestartStrategy(type=cast("RestartType", "tea")), [NOW_MS])


def test_a_fixed_delay_restarts_so_many_times_whenever_they_are() -> None:
    strategy = a_fixed_delay(attempts=2, delay_ms=700)

    assert pauses(strategy, [NOW_MS, NOW_MS + 1, NOW_MS + HOUR_MS]) == [700, 700, None]


def test_a_fixed_delay_without_attempts_restarts_for_ever() -> None:
    assert pauses(a_fixed_delay(delay_ms=0), [NOW_MS] * 50) == [0] * 50


def test_failures_within_the_rate_restart() -> None:
    assert pauses(a_failure_rate(1, 1), [0, 2, 4, 6]) == [1_000] * 4


def test_a_failure_more_than_the_rate_allows_is_final() -> None:
    assert pauses(a_failure_rate(3, 10_000), [NOW_MS] * 4) == [1_000, 1_000, 1_000, None]


def test_the_interval_of_the_failure_rate_must_be_over() -> None:
    assert pauses(a_failure_rate(1, 100), [0, 100]) == [1_000, None]
    assert pauses(a_failure_rate(1, 100), [0, 101]) == [1_000, 1_000]


def test_the_first_pause_of_an_exponential_delay_is_the_initial_one() -> None:
    assert pauses(an_exponential_delay(42, 45, 2.0), [NOW_MS]) == [42]


def test_an_exponential_delay_grows_by_its_multiplier_to_its_maximum() -> None:
    assert pauses_in_a_row(an_exponential_delay(4, 300, 2.3), 3) == [4, 9, 21]
    assert pauses_in_a_row(an_exponential_delay(1, 6, 2.0), 5) == [1, 2, 4, 6, 6]


def test_growth_past_every_number_is_the_maximum() -> None:
    strategy = an_exponential_delay(1_000, 60_000, 1e200, jitter=0.1, reset_after_ms=HOUR_MS)

    assert pauses_in_a_row(strategy, 4)[1:] == [60_000] * 3
    whole_number = replace(strategy, multiplier=2)
    assert next_restart(whole_number, RestartHistory(attempts=5_000), 0)[1] == 60_000


def test_the_attempts_of_an_exponential_delay_run_out() -> None:
    strategy = an_exponential_delay(1, 3, 1.2, reset_after_ms=100, attempts=3)

    assert pauses(strategy, [0, 10, 20, 30]) == [1, 1, 1, None]


def test_failures_while_the_restart_is_due_are_one_attempt() -> None:
    strategy = an_exponential_delay(100, 1_000, 2.0, reset_after_ms=HOUR_MS, attempts=2)

    assert pauses(strategy, [0, 40, 100, 101, 301, 302]) == [100, 60, 0, 200, 0, None]


def test_a_healthy_time_after_the_restart_resets_delay_and_attempts() -> None:
    strategy = an_exponential_delay(10, 500, 2.0, reset_after_ms=8, attempts=2)

    just_too_soon = [0, 17]
    assert pauses(strategy, just_too_soon) == [10, 20]
    just_healthy = [*just_too_soon, 37 + 8]
    assert pauses(strategy, just_healthy) == [10, 20, 10]


@pytest.mark.parametrize(
    ("delay_ms", "jitter", "attempts", "expected"),
    [
        (2, 0.25, 1, {3, 4, 5}),
        (2, 0.25, 2, {6, 7}),
        (2, 0.25, 3, {7}),
        (1, 1.0, 0, {1, 2}),
        (1, 1.0, 1, {1, 2, 3, 4}),
        (1, 1.0, 2, {1, 2, 3, 4, 5, 6, 7}),
    ],
)
def test_the_jitter_takes_every_value_between_the_initial_delay_and_the_maximum(
    delay_ms: int, jitter: float, attempts: int, expected: set[int]
) -> None:
    strategy = an_exponential_delay(delay_ms, 7, 2.0, jitter=jitter)
    history = RestartHistory(attempts=attempts)

    found = {
        (next_restart(strategy, history, failed_at_ms)[1] or 0) - failed_at_ms
        for failed_at_ms in range(NOW_MS, NOW_MS + 500)
    }

    assert found == expected


class ExponentialDelay:
    """Flink's class of that name, without jitter."""

    def __init__(self, strategy: RestartStrategy) -> None:
        self.strategy = strategy
        self.attempt = 0
        self.next_restart_ms = -(2**31)

    def fail(self, now_ms: int) -> int | None:
        if now_ms > self.next_restart_ms:
            if now_ms - self.next_restart_ms >= self.strategy.reset_after_ms:
                self.attempt = 0
            pause_ms = self.strategy.delay_ms
            for _ in range(self.attempt):
                pause_ms = min(pause_ms * 2, self.strategy.max_delay_ms)
            self.next_restart_ms = now_ms + pause_ms
            self.attempt += 1
        if self.strategy.attempts is not None and self.attempt > self.strategy.attempts:
            return None
        return self.next_restart_ms


histories = st.lists(st.integers(0, 30), max_size=20).map(
    lambda gaps: [NOW_MS + after for after in accumulate(gaps)]
)


@given(
    histories,
    st.integers(1, 8),
    st.integers(0, 20),
    st.integers(1, 25),
    st.none() | st.integers(1, 4),
)
def test_an_exponential_delay_is_that_of_flink(
    times_ms: list[int], delay_ms: int, more_ms: int, reset_after_ms: int, attempts: int | None
) -> None:
    strategy = an_exponential_delay(
        delay_ms, delay_ms + more_ms, 2.0, reset_after_ms=reset_after_ms, attempts=attempts
    )
    flink, history = ExponentialDelay(strategy), RestartHistory()

    for failed_at_ms in times_ms:
        history, restart_at_ms = next_restart(strategy, history, failed_at_ms)
        assert restart_at_ms == flink.fail(failed_at_ms)


@given(histories, st.integers(1, 4), st.integers(1, 60))
def test_a_failure_rate_counts_the_failures_of_its_last_interval(
    times_ms: list[int], most: int, interval_ms: int
) -> None:
    found = pauses(a_failure_rate(most, interval_ms), times_ms)

    for number, now_ms in enumerate(times_ms):
        recent = [at for at in times_ms[: number + 1] if now_ms - at <= interval_ms]
        assert (found[number] is None) == (len(recent) > most)


@given(
    st.integers(0, 10_000),
    st.floats(0, 1),
    st.floats(1.001, 1e6),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(0, 2**45),
)
def test_a_jittered_delay_keeps_within_its_bounds_and_is_the_same_for_everybody(
    attempts: int, jitter: float, multiplier: float, delay_ms: int, more_ms: int, at_ms: int
) -> None:
    strategy = an_exponential_delay(delay_ms, delay_ms + more_ms, multiplier, jitter=jitter)
    history = RestartHistory(attempts=attempts)

    after, restart_at_ms = next_restart(strategy, history, at_ms)

    assert restart_at_ms is not None
    assert delay_ms <= restart_at_ms - at_ms <= delay_ms + more_ms
    assert (after, restart_at_ms) == next_restart(strategy, history, at_ms)
    assert after == RestartHistory(attempts=attempts + 1, restart_at_ms=restart_at_ms)


strategies = st.builds(
    RestartStrategy,
    type=st.sampled_from(RestartType),
    attempts=st.none() | st.integers(0, 3),
    max_failures_per_interval=st.integers(1, 3),
)


@given(strategies, histories)
def test_a_history_survives_the_journal_and_does_not_grow(
    strategy: RestartStrategy, times_ms: list[int]
) -> None:
    history = RestartHistory()

    for failed_at_ms in times_ms:
        history, _ = next_restart(strategy, history, failed_at_ms)
        journaled = msgspec.json.encode(history)
        assert msgspec.json.decode(journaled, type=RestartHistory) == history
        assert len(history.failures_ms) <= strategy.max_failures_per_interval + 1
