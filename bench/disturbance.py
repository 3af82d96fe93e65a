"""Whether other processes took the machine from an engine while it was measured.

Every measured epoch notes what all processors did, from ``/proc/stat``, and what the engine's
process tree did; the difference is the others'.  A sample in which they had more than
``DISTURBED_SHARE`` of the processors is disturbed: it is taken once more, and if that one is
disturbed too, marked.  Nothing is compared with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from bench.protocol import EpochRecord

# An idle machine's own processes take below 1 %.  With 5 % of two processors gone, an engine that
# wants both is slower by at most 5 %, which is below what its own repetitions differ by.
DISTURBED_SHARE = 0.05

# The kernel counts the machine's time in ticks of 10 ms, and a process's by its scheduler: over a
# short epoch they differ by some ticks.
RESOLUTION_S = 0.1


def other_share(epochs: Iterable[EpochRecord]) -> float:
    """The share of all processors' time that other processes had during *epochs*."""
    epochs = tuple(epochs)
    available_s = sum(epoch.wall_s for epoch in epochs) * (os.cpu_count() or 1)
    others_s = sum(epoch.other_cpu_s for epoch in epochs)
    if others_s <= RESOLUTION_S or available_s <= 0:
        return 0.0
    return min(others_s / available_s, 1.0)


def is_disturbed(share: float) -> bool:
    return share > DISTURBED_SHARE
