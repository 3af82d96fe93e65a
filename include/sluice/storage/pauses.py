"""Pauses between races for the journal: chosen here, as the core knows neither time nor chance."""

from __future__ import annotations

import random
import time

FIRST_S = 0.01  # An append takes about as long.
LONGEST_S = 1.0


def jittered_pause(races: int) -> None:
    """Sleep after *races* lost in a row: a random time, up to a bound that doubles."""
    bound_s = min(LONGEST_S, FIRST_S * 2.0 ** min(races, 20))
    time.sleep(random.uniform(0, bound_s))  # noqa: S311 - no secret


def no_pause(races: int) -> None:
    """No pause: for tests, and for callers without competitors."""
