"""Durations: positive where they must be, and no unit lost below what is kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import (
    Hopping,
    Orchestration,
    Pipeline,
    Session,
    StateTtlConfig,
    Tumbling,
    ValueState,
    exponential_delay,
    fixed_delay,
)
from sluice import aggregates as agg
from sluice.coordinator.requests import NewTimes, UserRequest
from sluice.declaration.durations import (
    LONGEST,
    MS,
    DurationLimits,
    duration_of,
    from_words,
    in_words,
    milliseconds,
    what_to_use,
)
from sluice.declaration.pipeline import KeyedStream
from sluice.errors import ConfigurationError
from sluice.sources import Nexmark, PostgresTable

HALF_A_MS = timedelta(microseconds=500)
SECOND = timedelta(seconds=1)


def rows(**options: Any) -> KeyedStream:
    source = Pipeline("p").source("rows", Nexmark(1), event_time="at", **options)
    return source.key_by("k")


def same(*_: object) -> None: ...


# Each public parameter that is a duration, with a declaration that gives it.
GIVEN: dict[str, Callable[[Any], object]] = {
    "out_of_orderness": lambda d: rows(out_of_orderness=d),
    "idle_after": lambda d: rows(idle_after=d),
    "timeout of a hook": lambda d: Pipeline("p").hook("h", trigger=same, restore=same, timeout=d),  # type: ignore[arg-type]
    "size": Tumbling,
    "size of hops": lambda d: Hopping(d, MS),
    "slide": lambda d: Hopping(SECOND, d),
    "gap": Session,
    "allowed_lateness": lambda d: rows().window(
        "w", Tumbling(SECOND), n=agg.count(), allowed_lateness=d
    ),
    "ttl of aggregate": lambda d: rows().aggregate("a", n=agg.count(), ttl=d),
    "ttl of top_n": lambda d: rows().top_n("a", 1, by="n", ttl=d),
    "ttl of latest": lambda d: rows().latest("a", by="n", ttl=d),
    "ttl of deduplicate": lambda d: rows().deduplicate("a", ttl=d),
    "ttl of join": lambda d: (one := rows()).join("a", one, ttl=d),
    "ttl of process": lambda d: rows().process("a", same, state={}, result={"n": int}, ttl=d),  # type: ignore[arg-type]
    "ttl of a state": lambda d: ValueState(int, ttl=d),
    "ttl": StateTtlConfig,
    "delay": lambda d: fixed_delay(delay=d),
    "max_delay": lambda d: exponential_delay(max_delay=d),
    "reset_after": lambda d: exponential_delay(reset_after=d),
    "task_timeout": lambda d: Orchestration(task_timeout=d),
    "interval of a running job": lambda d: NewTimes(interval=d),
    "min_pause of a running job": lambda d: NewTimes(min_pause=d),
    "waits": lambda d: UserRequest(by="me", waits=d),
}  # fmt: skip


@pytest.mark.parametrize("parameter", GIVEN)
@pytest.mark.parametrize("wrong", [-SECOND, -HALF_A_MS, LONGEST + SECOND, timedelta.max], ids=str)
def test_a_negative_duration_and_one_without_end_are_refused(
    parameter: str, wrong: timedelta
) -> None:
    with pytest.raises(
        ConfigurationError, match=r" is -?[\d.,]+ (d|h|min|s|ms); use .* or (more|l)"
    ):
        GIVEN[parameter](wrong)


@pytest.mark.parametrize("parameter", GIVEN)
def test_a_duration_that_loses_a_unit_is_refused_and_not_floored(parameter: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is 3600\.0005\d* s; use whole milliseconds"):
        GIVEN[parameter](timedelta(hours=1) + HALF_A_MS)


@pytest.mark.parametrize("parameter", GIVEN)
def test_a_number_or_a_text_instead_of_a_duration_is_refused_with_its_spelling(
    parameter: str,
) -> None:
    with pytest.raises(ConfigurationError, match=r"is 60 \(int\); write timedelta\(seconds=60\)"):
        GIVEN[parameter](60)
    with pytest.raises(ConfigurationError, match=r"\(str\); write timedelta\(minutes=5\)"):
        GIVEN[parameter]("5 minutes")


@pytest.mark.parametrize("bound", ["lower", "upper"])
def test_bounds_of_an_interval_join_may_be_negative_but_lose_nothing(bound: str) -> None:
    one = rows()
    bounds: dict[str, Any] = {"lower": -SECOND, "upper": -MS}

    one.interval_join("both", one, **bounds)

    with pytest.raises(ConfigurationError, match=rf"{bound} is -0\.5 ms; use whole milliseconds"):
        one.interval_join("more", one, **bounds | {bound: -HALF_A_MS})
    with pytest.raises(ConfigurationError, match=r"'more'\): upper is None \(NoneType\); use"):
        one.interval_join("more", one, upper=None)  # type: ignore[arg-type]


def test_a_database_compares_microseconds() -> None:
    def of(lag: timedelta) -> PostgresTable:
        return PostgresTable("dsn", "public.t", "n", late_commits=lag, lag_column="at")

    assert of(HALF_A_MS).late_commits == HALF_A_MS
    with pytest.raises(ConfigurationError, match=r"late_commits is 0; use 0\.001 ms or more"):
        of(timedelta(0))


@given(st.timedeltas(min_value=-LONGEST, max_value=LONGEST))
def test_what_is_taken_is_kept_exactly(duration: timedelta) -> None:
    if what_to_use(duration, DurationLimits(-LONGEST)) is None:
        assert milliseconds(duration) * MS == duration
    else:
        assert duration % MS


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0s", timedelta(0)),
        ("500ms", 500 * MS),
        ("90s", 90 * SECOND),
        ("30m", timedelta(minutes=30)),
        ("1h", timedelta(hours=1)),
        ("365000d", LONGEST),
    ],
)
def test_a_text_is_a_number_and_a_unit(text: str, duration: timedelta) -> None:
    assert duration_of("--grace", text) == duration


@pytest.mark.parametrize("text", ["", "5", "-5s", "1.5h", "5 s", "٣s", "1h30m", "5S"])
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--grace '.*' is not understood; write 90s"):
        duration_of("--grace", text)


def test_a_text_has_the_limits_of_its_option() -> None:
    with pytest.raises(ConfigurationError, match="--wait-for is 500ms; use 1 s or more"):
        duration_of("--wait-for", "500ms", least=SECOND)
    for text in ("365001d", "9" * 5_000 + "s"):
        with pytest.raises(ConfigurationError, match=r"use 365,000 d or less"):
            duration_of("--grace", text)


@pytest.mark.parametrize(
    ("duration", "words"),
    [
        (timedelta(0), "0"),
        (-5 * SECOND, "-5 s"),
        (90 * SECOND, "90 s"),
        (timedelta(hours=-1), "-1 h"),
        (HALF_A_MS, "0.5 ms"),
        (SECOND + HALF_A_MS, "1.000500 s"),
    ],
)
def test_a_duration_in_words_says_its_sign(duration: timedelta, words: str) -> None:
    assert in_words(duration) == words


@given(st.integers(1, 10**13))
def test_words_are_understood_as_what_they_were_made_of(ms: int) -> None:
    duration = timedelta(milliseconds=ms)

    assert from_words(in_words(duration)) == duration
