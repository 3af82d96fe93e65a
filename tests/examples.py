"""How many examples a property is drawn: few in a check, ``make properties`` draws many.

SLUICE_EXAMPLES is how many times as many are drawn as a property asks for: 1 where the branches of
the core are counted.  A check, which says nothing, draws a sixth: it has minutes for all, and
others every day.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import settings

TIMES = int(os.environ.get("SLUICE_EXAMPLES", "1"))
IS_CHECK = "SLUICE_EXAMPLES" not in os.environ
OF_A_PROPERTY = 40  # Of one that says no number of its own.
# A test that takes more than two CPU seconds, and whose like a check plays at another seed, place
# or form: ``make slow``.
slow = pytest.mark.slow
PLAYS_SLOW = os.environ.get("SLUICE_SLOW") == "all"

T = TypeVar("T")


def slow_but(values: Iterable[Any], *played: Any) -> list[Any]:
    """Values of a parameter of which a check takes *played* alone."""
    return [one if one in played else pytest.param(one, marks=slow) for one in values]


def sampled(cases: Sequence[T]) -> Sequence[T]:
    """Of cases by the hundred that differ in a value each, a check plays every fifth."""
    return cases[::5] if IS_CHECK else cases


def drawn(count: int) -> int:
    """Of *count* examples that a property asks for."""
    return -(-count // 6) if IS_CHECK else count * TIMES


def examples(count: int) -> settings:
    """The settings of a property that takes longer, or that needs more, than others."""
    return settings(max_examples=drawn(count))
