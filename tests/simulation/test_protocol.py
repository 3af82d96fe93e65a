"""The invariants of DESIGN section 8, whatever dies, is lost, comes late or goes by a wrong clock.

Method: a seeded ``World`` plays with a bucket that loses requests and answers, applies some of them
later, restarts, and kills its callers.  The ``Invariants`` see every write and every delete as it
happens, and refuse what must never be.  Then the faults end, and the job has to come to itself.

SIM_SEEDS=50000 plays more, and so does ``make sim``.  A failure prints its seed and its shortest
history; ``python -m tests.simulation --help`` says how to see it again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.simulation.conftest import PLAYED
from tests.simulation.seeds import explain, play_seeds

SEEDS = int(os.environ.get("SIM_SEEDS", "75"))  # 2 s on two processors.


@pytest.mark.timeout(0)
def test_no_loss_death_or_race_breaks_an_invariant(
    record_property: Callable[[str, object], None],
) -> None:
    played = play_seeds(range(SEEDS))

    record_property(PLAYED, str(played))
    if played.failed is not None:
        pytest.fail(explain(played.failed), pytrace=False)
