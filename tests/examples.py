"""How many examples a property is drawn: few in the check, ``make properties`` draws many."""

from __future__ import annotations

import os

from hypothesis import settings

TIMES = int(os.environ.get("SLUICE_EXAMPLES", "1"))
OF_A_PROPERTY = 40  # Of one that says no number of its own.


def examples(count: int) -> settings:
    """The settings of a property that takes longer, or that needs more, than others."""
    return settings(max_examples=count * TIMES)
