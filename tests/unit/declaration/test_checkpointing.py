"""How checkpoints are taken: the limits of each option, and the messages of other values."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from sluice.core.configuration import CheckpointingMode, Retention
from sluice.core.restart import RestartStrategy, RestartType
from sluice.declaration.checkpointing import (
    Checkpointing,
    exponential_delay,
    failure_rate,
    fixed_delay,
    no_restart,
)
from sluice.declaration.durations import in_words
from sluice.declaration.schedules import Cron
from sluice.errors import ConfigurationError

SECOND = timedelta(seconds=1)
YEAR = timedelta(days=365)
TOO_SHORT = timedelta(microseconds=9_999)


# The longer fixes of the table below.
BACKLOG_FIX = (
    "Flink takes no checkpoint during a backlog then, but here an epoch's data is processed by its "
    "checkpoint, so the job would stop: use the interval or more, or leave it out"
)
NO_INTERVAL_FIX = (
    "interval is None, so no checkpoint is periodic: give an interval too, or leave it out"
)
MODE_FIX = (
    "mode is AT_LEAST_ONCE, in which no stage waits for a barrier: use EXACTLY_ONCE, or leave "
    "unaligned out"
)
CONCURRENT_FIX = (
    "max_concurrent_checkpoints is 2, and unaligned checkpoints cannot overlap: use 1, or leave "
    "unaligned out"
)
RETAIN_FIX = (
    "with the interval, 1 min, more than 1,000 checkpoints would be retained: use a longer "
    "interval or a shorter time, and savepoints to go back further"
)
ALIGNED_FIX = "unaligned is False, so nothing would look at it: add unaligned=True, or leave it out"


def as_given(value: object) -> str:
    """The id of a parameter: what a declaration gives."""
    return ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else ""


def refusal(declare: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        declare()
    return str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"interval": TOO_SHORT}, "use 10 ms or more"),
        ({"interval_during_backlog": timedelta(0)}, BACKLOG_FIX),
        ({"interval_during_backlog": SECOND}, "use the interval, 1 min, or more"),
        ({"interval_during_backlog": SECOND, "interval": None}, NO_INTERVAL_FIX),
        ({"timeout": TOO_SHORT}, "use 10 ms or more"),
        ({"min_pause": -SECOND}, "use 0 or more"),
        ({"min_pause": YEAR + SECOND}, "use 365 d or less"),
        ({"max_concurrent_checkpoints": 0}, "use 1 or more"),
        ({"num_retained": 0}, "retain at least 1, or there is nothing to restore"),
        ({"retain_for": -SECOND}, "use 0 or more"),
        ({"retain_for": timedelta(minutes=1_001)}, RETAIN_FIX),
        ({"tolerable_failed_checkpoints": -1}, "use 0 or more"),
        ({"unaligned": True, "mode": CheckpointingMode.AT_LEAST_ONCE}, MODE_FIX),
        ({"unaligned": True, "max_concurrent_checkpoints": 2}, CONCURRENT_FIX),
        ({"aligned_checkpoint_timeout": SECOND}, ALIGNED_FIX),
        ({"aligned_checkpoint_timeout": -SECOND, "unaligned": True}, "use 0 or more"),
        ({"data_inline_threshold": -1}, "use 0 to 1048576 bytes"),
        ({"data_inline_threshold": 1_048_577}, "use 0 to 1048576 bytes"),
        ({"history_size": 0}, "use 1 to 10000"),
        ({"history_size": 10_001}, "use 1 to 10000"),
        ({"max_records_per_epoch": 0}, "use 1 or more, or leave it out"),
        ({"target_epoch": timedelta(milliseconds=9)}, "use 10 ms or more"),
        (
            {"target_epoch": timedelta(minutes=10)},
            "a checkpoint expires after the timeout, 10 min: use less, or a longer timeout",
        ),
    ],
    ids=as_given,
)
def test_a_value_outside_its_limits_is_refused_with_the_fix(
    wrong: dict[str, Any], fix: str
) -> None:
    name, value = next(iter(wrong.items()))

    shown = in_words(value) if isinstance(value, timedelta) else value
    assert refusal(partial(Checkpointing, **wrong)).endswith(f"{name} is {shown}; {fix}")


@pytest.mark.parametrize(
    "given",
    [
        {"interval": timedelta(milliseconds=10)},
        {"interval": None},
        {"interval": None, "min_pause": SECOND},
        {"interval": SECOND, "interval_during_backlog": SECOND},
        {"timeout": timedelta(milliseconds=10)},
        {"interval": YEAR, "min_pause": YEAR},
        {"max_concurrent_checkpoints": 2},
        {"num_retained": 1},
        {"retain_for": timedelta(minutes=1_000)},
        {"retain_for": YEAR, "interval": timedelta(hours=9)},
        {"retain_for": YEAR, "interval": None},
        {"retain_for": YEAR, "schedule": Cron("0 * * * *")},
        {"tolerable_failed_checkpoints": 7},
        {"mode": CheckpointingMode.AT_LEAST_ONCE, "max_concurrent_checkpoints": 2},
        {"unaligned": True},
        {"unaligned": True, "aligned_checkpoint_timeout": SECOND},
        {"externalized_checkpoint_retention": Retention.NEVER_RETAIN_AFTER_TERMINATION},
        {"checkpoints_after_tasks_finish": False},
        {"data_inline_threshold": 0},
        {"data_inline_threshold": 1_048_576},
        {"history_size": 1},
        {"history_size": 10_000},
        {"max_records_per_epoch": 1},
        {"target_epoch": timedelta(milliseconds=10)},
        {"restart_strategy": RestartStrategy(type=RestartType.NONE)},
    ],
    ids=as_given,
)
def test_the_limits_themselves_are_allowed_and_kept_as_given(
    given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    checkpointing = Checkpointing(**given)

    assert {name: getattr(checkpointing, name) for name in given} == given
    assert caplog.records == []


def test_the_defaults_are_those_of_the_design() -> None:
    default = Checkpointing()

    assert default.interval == timedelta(minutes=1)
    assert default.timeout == timedelta(minutes=10)
    assert default.max_concurrent_checkpoints == 1
    assert default.num_retained == 3
    assert default.tolerable_failed_checkpoints == 0
    assert default.mode is CheckpointingMode.EXACTLY_ONCE
    assert not default.unaligned
    assert default.externalized_checkpoint_retention is Retention.RETAIN_ON_CANCELLATION
    assert default.restart_strategy == exponential_delay()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"interval": 60}, "60 (int); write timedelta(seconds=60)"),
        ({"timeout": 0.5}, "0.5 (float); write timedelta(seconds=0.5)"),
        ({"timeout": None}, "None (NoneType); use a timedelta, e.g. timedelta(seconds=30)"),
        ({"num_retained": True}, "True (bool); use a whole number"),
        ({"num_retained": 3.0}, "3.0 (float); write 3"),
        ({"max_records_per_epoch": "9"}, "'9' (str); write 9"),
        ({"unaligned": 1}, "1 (int); use True or False"),
        (
            {"mode": "EXACTLY_ONCE"},
            "'EXACTLY_ONCE' (str); write CheckpointingMode.EXACTLY_ONCE",
        ),
    ],
    ids=as_given,
)
def test_a_value_of_another_type_is_refused_in_one_sentence(
    wrong: dict[str, Any], message: str
) -> None:
    name = next(iter(wrong))

    assert refusal(partial(Checkpointing, **wrong)) == f"Checkpointing(): {name} is {message}"


@pytest.mark.parametrize("name", [field.name for field in fields(Checkpointing)])
def test_every_field_is_checked_for_its_type(name: str) -> None:
    message = refusal(partial(Checkpointing, **{name: object()}))  # type: ignore[arg-type]

    assert message.startswith(f"Checkpointing(): {name} is <object object at ")


@pytest.mark.parametrize("name", [field.name for field in fields(RestartStrategy)])
def test_every_field_of_a_restart_strategy_is_checked_for_its_type(name: str) -> None:
    strategy = RestartStrategy(**{name: object()})  # type: ignore[arg-type]

    message = refusal(partial(Checkpointing, restart_strategy=strategy))

    assert message.startswith(f"restart_strategy {name} is <object object at ")


@pytest.mark.parametrize(
    ("given", "effective", "warnings"),
    [
        (
            {"interval": SECOND, "min_pause": 5 * SECOND},
            {"interval": 5 * SECOND, "min_pause": 5 * SECOND},
            ["field=interval given=0:00:01 effective=0:00:05 min_pause=0:00:05"],
        ),
        (
            {"interval": SECOND, "interval_during_backlog": 2 * SECOND, "min_pause": 5 * SECOND},
            {"interval": 5 * SECOND, "interval_during_backlog": 5 * SECOND},
            [
                "field=interval given=0:00:01 effective=0:00:05 min_pause=0:00:05",
                "field=interval_during_backlog given=0:00:02 effective=0:00:05 min_pause=0:00:05",
            ],
        ),
        (
            {"min_pause": SECOND, "max_concurrent_checkpoints": 3},
            {"min_pause": SECOND, "max_concurrent_checkpoints": 1},
            ["field=max_concurrent_checkpoints given=3 effective=1 min_pause=0:00:01"],
        ),
    ],
    ids=as_given,
)
def test_what_min_pause_overrules_is_corrected_with_a_warning(
    given: dict[str, Any],
    effective: dict[str, Any],
    warnings: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpointing = Checkpointing(**given)

    assert {name: getattr(checkpointing, name) for name in effective} == effective
    assert caplog.record_tuples == [
        (
            "sluice.declaration.checkpointing",
            logging.WARNING,
            f"checkpointing corrected for min_pause {warning}",
        )
        for warning in warnings
    ]


def test_a_corrected_configuration_is_not_corrected_again(caplog: pytest.LogCaptureFixture) -> None:
    corrected = Checkpointing(interval=SECOND, min_pause=5 * SECOND, max_concurrent_checkpoints=2)
    caplog.clear()

    assert replace(corrected) == corrected
    assert caplog.records == []


@pytest.mark.parametrize(
    ("wrong", "fix"),
    [
        ({"attempts": 0}, "use 1 or more, None for no limit, or no_restart()"),
        ({"delay_ms": -1, "type": RestartType.FIXED_DELAY}, "use 0 or more"),
        ({"delay_ms": -1, "type": RestartType.FAILURE_RATE}, "use 0 or more"),
        ({"delay_ms": 0}, "use 1 ms or more, as no multiplier makes 0 longer"),
        ({"max_delay_ms": 999}, "use the delay, 1000 ms, or more"),
        ({"multiplier": 1.0}, "use more than 1, or fixed_delay()"),
        ({"multiplier": math.inf}, "use more than 1, or fixed_delay()"),
        ({"multiplier": math.nan}, "use more than 1, or fixed_delay()"),
        ({"jitter": -0.1}, "use 0 to 1"),
        ({"jitter": 1.1}, "use 0 to 1"),
        ({"reset_after_ms": 0}, "use 1 ms or more"),
        (
            {"max_failures_per_interval": 0, "type": RestartType.FAILURE_RATE},
            "use 1 or more, or no_restart()",
        ),
        ({"failure_rate_interval_ms": 0, "type": RestartType.FAILURE_RATE}, "use 1 ms or more"),
    ],
    ids=as_given,
)
def test_a_restart_strategy_outside_its_limits_is_refused_with_the_fix(
    wrong: dict[str, Any], fix: str
) -> None:
    name, value = next(iter(wrong.items()))
    declare = partial(Checkpointing, restart_strategy=RestartStrategy(**wrong))

    assert refusal(declare) == f"restart_strategy {name} is {value}; {fix}"


@pytest.mark.parametrize(
    "strategy",
    [
        {"type": RestartType.NONE, "attempts": 0},
        {"type": RestartType.FIXED_DELAY, "attempts": 1, "delay_ms": 0},
        {"type": RestartType.FIXED_DELAY, "delay_ms": 120_000},  # Longer than a max_delay_ms.
        {"delay_ms": 60_000, "jitter": 0, "multiplier": 2},  # A whole number is a number.
        {"jitter": 1.0, "reset_after_ms": 1},
        {"type": RestartType.FAILURE_RATE, "failure_rate_interval_ms": 1, "delay_ms": 0},
        {"type": RestartType.FAILURE_RATE, "attempts": 0},
    ],
    ids=as_given,
)
def test_only_what_a_restart_strategy_reads_has_limits(strategy: dict[str, Any]) -> None:
    declared = RestartStrategy(**strategy)

    assert Checkpointing(restart_strategy=declared).restart_strategy == declared


@pytest.mark.parametrize(
    ("built", "strategy"),
    [
        (no_restart(), {"type": RestartType.NONE}),
        (fixed_delay(), {"type": RestartType.FIXED_DELAY, "attempts": 1, "delay_ms": 1_000}),
        (
            fixed_delay(attempts=None, delay=5 * SECOND),
            {"type": RestartType.FIXED_DELAY, "attempts": None, "delay_ms": 5_000},
        ),
        (exponential_delay(), {}),
        (
            exponential_delay(
                attempts=9,
                delay=2 * SECOND,
                max_delay=3 * SECOND,
                multiplier=4.0,
                jitter=0.5,
                reset_after=6 * SECOND,
            ),
            {
                "attempts": 9,
                "delay_ms": 2_000,
                "max_delay_ms": 3_000,
                "multiplier": 4.0,
                "jitter": 0.5,
                "reset_after_ms": 6_000,
            },
        ),
        (failure_rate(), {"type": RestartType.FAILURE_RATE}),
        (
            failure_rate(
                max_failures_per_interval=7, failure_rate_interval=8 * SECOND, delay=9 * SECOND
            ),
            {
                "type": RestartType.FAILURE_RATE,
                "max_failures_per_interval": 7,
                "failure_rate_interval_ms": 8_000,
                "delay_ms": 9_000,
            },
        ),
    ],
)
def test_a_restart_strategy_is_built_from_durations(
    built: RestartStrategy, strategy: dict[str, Any]
) -> None:
    assert built == RestartStrategy(**strategy)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (partial(fixed_delay, attempts=0), "restart_strategy attempts is 0; use 1 or more"),
        (partial(exponential_delay, jitter=7.0), "restart_strategy jitter is 7.0; use 0 to 1"),
        (partial(failure_rate, delay=-SECOND), "failure_rate(): delay is -1 s; use 0 or more"),
        (lambda: fixed_delay(delay=5), "fixed_delay(): delay is 5 (int); write timedelta("),  # type: ignore[arg-type]  # on purpose
        (
            lambda: failure_rate(failure_rate_interval=None),  # type: ignore[arg-type]  # on purpose
            "failure_rate(): failure_rate_interval is None (None",
        ),
    ],
)
def test_a_restart_strategy_is_checked_where_it_is_built(
    declare: Callable[[], object], message: str
) -> None:
    assert refusal(declare).startswith(message)
