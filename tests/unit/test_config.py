"""How checkpoints are taken: the limits, and what is said about a value outside of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sluice.config import Checkpointing, check_max_records
from sluice.core.properties import Retention
from sluice.core.restart import RestartType
from sluice.errors import ConfigurationError


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"interval": timedelta(milliseconds=9)}, "interval is 0:00:00.009000; .* at least 10 ms"),
        ({"timeout": timedelta(0)}, "timeout is 0:00:00; it must be at least 10 ms"),
        ({"min_pause": timedelta(seconds=-1)}, "min_pause is .*; use 0 or more"),
        ({"num_retained": 0}, "num_retained is 0; retain at least 1"),
        ({"tolerable_failed_checkpoints": -1}, "tolerable_failed_checkpoints is -1; use 0 or more"),
        ({"max_records_per_epoch": 0}, "max_records_per_epoch is 0; use 1 or more, or leave"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "message",
)
def test_a_value_outside_its_limits_is_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Checkpointing(**wrong)


def test_the_limits_themselves_are_allowed() -> None:
    checkpointing = Checkpointing(
        interval=timedelta(milliseconds=10),
        timeout=timedelta(milliseconds=10),
        num_retained=1,
        max_records_per_epoch=1,
    )

    assert checkpointing.num_retained == 1


def test_the_defaults_are_those_of_the_design() -> None:
    default = Checkpointing()

    assert default.timeout == timedelta(minutes=10)
    assert default.num_retained == 3
    assert default.tolerable_failed_checkpoints == 0
    assert default.retention is Retention.RETAIN_ON_CANCELLATION
    assert default.restart_strategy.type is RestartType.EXPONENTIAL_DELAY


@pytest.mark.parametrize("value", [0, -5])
def test_a_cap_below_one_record_is_refused(value: int) -> None:
    check_max_records(None)
    check_max_records(1)

    with pytest.raises(ConfigurationError, match=f"max_records_per_epoch is {value}"):
        check_max_records(value)
