"""Options of a job in words."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta

import pytest

from sluice import Checkpointing
from sluice.surface.options import value_with_unit

GIVEN = Checkpointing(
    interval_during_backlog=timedelta(minutes=1), target_epoch=timedelta(seconds=5)
)
PERIODS = [f.name for f in fields(GIVEN) if isinstance(getattr(GIVEN, f.name), timedelta)]


@pytest.mark.parametrize("name", PERIODS)
def test_a_period_has_a_unit(name: str) -> None:
    assert value_with_unit(name, 90_000) == "90 s"


def test_other_numbers_have_none() -> None:
    assert value_with_unit("num_retained", 90_000) == "90000"
