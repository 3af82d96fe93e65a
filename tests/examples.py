"""How many examples a property is drawn: few in the check, ``make properties`` draws many."""

from __future__ import annotations

import os

from hypothesis import settings

TIMES = int(os.environ.get("SLUICE_EXAMPLES", "1"))
OF_A_PROPERTY = 40  # Of one that says no number of its own.
_SHARE_OF_A_CHECK = 2  # A check draws one half: it has minutes for all, and is run every day anew.


def examples(count: int) -> settings:
    """The settings of a property that takes longer, or that needs more, than others.

    Drawn are *count* examples SLUICE_EXAMPLES times; where that is not said, half as many.
    """
    few = -(-count // _SHARE_OF_A_CHECK)
    return settings(max_examples=few if "SLUICE_EXAMPLES" not in os.environ else count * TIMES)
