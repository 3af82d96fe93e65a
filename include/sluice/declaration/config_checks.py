"""Checks of a configuration: each refusal names the field, its value and the fix."""

from __future__ import annotations

import math
from datetime import timedelta
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, NoReturn, get_args, get_type_hints

from sluice.core.properties import CheckpointingMode, DamagedCheckpoint, Retention
from sluice.core.restart import RestartStrategy, RestartType
from sluice.declaration.schedules import Continuous
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.config import Checkpointing, StateBackend

MINIMAL_CHECKPOINT_TIME = timedelta(milliseconds=10)  # Flink's CheckpointConfig constant.
MAXIMAL_PAUSE = timedelta(days=365)  # Flink's CheckpointCoordinator cuts a longer one to this.
MAXIMAL_RETAINED = (
    1_000  # By their age: a commit reads the _metadata of each, the journal lists all.
)
MAXIMAL_HISTORY = 10_000  # An overview is one object of about 50 bytes each, compressed.
MAXIMAL_INLINE_BYTES = 1_048_576  # Flink's FileSystemCheckpointStorage constant.

_WANTED: dict[type, str] = {
    timedelta: "a timedelta, e.g. timedelta(seconds=30)",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    CheckpointingMode: "a CheckpointingMode, e.g. CheckpointingMode.EXACTLY_ONCE",
    DamagedCheckpoint: "a DamagedCheckpoint, e.g. DamagedCheckpoint.STOP",
    Retention: "a Retention, e.g. Retention.RETAIN_ON_CANCELLATION",
    RestartStrategy: "a RestartStrategy, e.g. fixed_delay(attempts=3)",
    Continuous: "a Schedule, e.g. Continuous() or Cron('0 * * * *')",
    RestartType: "a RestartType, e.g. RestartType.FIXED_DELAY",
}


def check_max_records(value: int | None) -> None:
    """Raises ConfigurationError unless *value* is None or at least 1."""
    if value is not None and value < 1:
        raise ConfigurationError(
            f"max_records_per_epoch is {value}; use 1 or more, or leave it out"
        )


def check_limits(given: Checkpointing) -> None:
    refuse = partial(_refuse, "checkpointing", given)
    _check_periods(given)
    if given.max_concurrent_checkpoints < 1:
        refuse("max_concurrent_checkpoints", "use 1 or more")
    if given.num_retained < 1:
        refuse("num_retained", "retain at least 1, or there is nothing to restore")
    if given.tolerable_failed_checkpoints < 0:
        refuse("tolerable_failed_checkpoints", "use 0 or more")
    if not 0 <= given.data_inline_threshold <= MAXIMAL_INLINE_BYTES:
        refuse("data_inline_threshold", f"use 0 to {MAXIMAL_INLINE_BYTES} bytes")
    if not 1 <= given.history_size <= MAXIMAL_HISTORY:
        refuse("history_size", f"use 1 to {MAXIMAL_HISTORY}")
    check_max_records(given.max_records_per_epoch)


def _check_periods(given: Checkpointing) -> None:
    refuse = partial(_refuse, "checkpointing", given)
    if given.interval is not None and given.interval < MINIMAL_CHECKPOINT_TIME:
        refuse("interval", "use 10 ms or more, or None for checkpoints by hand only")
    if given.timeout < MINIMAL_CHECKPOINT_TIME:
        refuse("timeout", "use 10 ms or more")
    if given.target_epoch is not None and given.target_epoch < MINIMAL_CHECKPOINT_TIME:
        refuse("target_epoch", "use 10 ms or more, or leave it out")
    for name in ("min_pause", "retain_for", "aligned_checkpoint_timeout"):
        if getattr(given, name) < timedelta(0):
            refuse(name, "use 0 or more")
    if given.min_pause > MAXIMAL_PAUSE:
        refuse("min_pause", "use 365 days or less")
    if given.target_epoch is not None and given.target_epoch >= given.timeout:
        refuse(
            "target_epoch",
            f"a checkpoint expires after the timeout, {given.timeout}: use less, or a longer "
            "timeout",
        )


def check_combinations(given: Checkpointing) -> None:
    refuse = partial(_refuse, "checkpointing", given)
    backlog = given.interval_during_backlog
    if backlog == timedelta(0):
        refuse(
            "interval_during_backlog",
            "Flink takes no checkpoint during a backlog then, but here an epoch's data is "
            "processed by its checkpoint, so the job would stop: use the interval or more, or "
            "leave it out",
        )
    if backlog is not None and given.interval is None:
        refuse(
            "interval_during_backlog",
            "interval is None, so no checkpoint is periodic: give an interval too, or leave it out",
        )
    if backlog is not None and given.interval is not None and backlog < given.interval:
        refuse("interval_during_backlog", f"use the interval, {given.interval}, or more")
    if given.unaligned and given.mode is CheckpointingMode.AT_LEAST_ONCE:
        refuse(
            "unaligned",
            "mode is AT_LEAST_ONCE, in which no stage waits for a barrier: use EXACTLY_ONCE, or "
            "leave unaligned out",
        )
    if given.unaligned and given.max_concurrent_checkpoints > 1:
        refuse(
            "unaligned",
            f"max_concurrent_checkpoints is {given.max_concurrent_checkpoints}, and unaligned "
            "checkpoints cannot overlap: use 1, or leave unaligned out",
        )
    if isinstance(given.schedule, Continuous) and given.max_concurrent_checkpoints > 1:
        refuse(
            "max_concurrent_checkpoints",
            "the schedule is Continuous, and Airflow runs one continuous run at a time: use 1, or "
            "an interval",
        )
    is_by_interval = given.schedule is None and given.interval is not None
    if is_by_interval and given.retain_for > MAXIMAL_RETAINED * (given.interval or timedelta(0)):
        refuse(
            "retain_for",
            f"with the interval, {given.interval}, more than {MAXIMAL_RETAINED:,} checkpoints "
            "would be retained: use a longer interval or a shorter time, and savepoints to go back "
            "further",
        )
    if given.aligned_checkpoint_timeout and not given.unaligned:
        refuse(
            "aligned_checkpoint_timeout",
            "unaligned is False, so nothing would look at it: add unaligned=True, or leave it out",
        )


def check_restart_strategy(given: RestartStrategy) -> None:
    """Of the fields that a strategy of this type reads, as Flink's classes check them."""
    check_types("restart_strategy", given)
    refuse = partial(_refuse, "restart_strategy", given)
    if given.type is RestartType.NONE:
        return
    counts = given.type is not RestartType.FAILURE_RATE
    if counts and given.attempts is not None and given.attempts < 1:
        refuse("attempts", "use 1 or more, None for no limit, or no_restart()")
    if given.delay_ms < 0:
        refuse("delay_ms", "use 0 or more")
    if given.type is RestartType.EXPONENTIAL_DELAY:
        _check_exponential_delay(given)
    if given.type is RestartType.FAILURE_RATE:
        if given.max_failures_per_interval < 1:
            refuse("max_failures_per_interval", "use 1 or more, or no_restart()")
        if given.failure_rate_interval_ms < 1:
            refuse("failure_rate_interval_ms", "use 1 ms or more")


def _check_exponential_delay(given: RestartStrategy) -> None:
    refuse = partial(_refuse, "restart_strategy", given)
    if given.delay_ms < 1:
        refuse("delay_ms", "use 1 ms or more, as no multiplier makes 0 longer")
    if given.max_delay_ms < given.delay_ms:
        refuse("max_delay_ms", f"use the delay, {given.delay_ms} ms, or more")
    if not 1 < given.multiplier < math.inf:
        refuse("multiplier", "use more than 1, or fixed_delay()")
    if not 0 <= given.jitter <= 1:
        refuse("jitter", "use 0 to 1")
    if given.reset_after_ms < 1:
        refuse("reset_after_ms", "use 1 ms or more")


def _refuse(subject: str, given: object, name: str, fix: str) -> NoReturn:
    raise ConfigurationError(f"{subject} {name} is {getattr(given, name)}; {fix}")


def checked(strategy: RestartStrategy) -> RestartStrategy:
    check_restart_strategy(strategy)
    return strategy


def check_types(subject: str, given: Checkpointing | RestartStrategy | StateBackend) -> None:
    for name, hint in get_type_hints(type(given)).items():
        check_type(f"{subject} {name}", getattr(given, name), get_args(hint) or (hint,))


def check_type(name: str, value: object, allowed: tuple[type, ...]) -> None:
    if isinstance(value, bool):
        fits = bool in allowed  # To Python it is an int.
    else:
        fits = isinstance(value, allowed) or (float in allowed and isinstance(value, int))
    if not fits:
        nothing = ", or None" if NoneType in allowed else ""
        raise ConfigurationError(
            f"{name} is {value!r} ({type(value).__name__}); use {_WANTED[allowed[0]]}{nothing}"
        )


def milliseconds(name: str, value: timedelta) -> int:
    check_type(f"restart_strategy {name}", value, (timedelta,))
    return value // timedelta(milliseconds=1)
