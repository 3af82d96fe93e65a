"""The checkpoints that the journal's state still remembers to have ended, a line each."""

from __future__ import annotations

from sluice.core.state import CoordinatorState
from sluice.statistics.checkpoints import CheckpointStats
from sluice.statistics.measuring import of_completed, of_failed


def newest_ended(state: CoordinatorState, *, other_than: int | None = None) -> int | None:
    """The greatest id that was handed out and is not pending, perhaps that of a plan without a
    checkpoint; None before the first has ended.
    """
    still = {*(one.checkpoint_id for one in state.pending), other_than}
    ids = range(state.next_checkpoint_id - 1, 0, -1)
    return next((one for one in ids if one not in still), None)


def ended_checkpoints(state: CoordinatorState) -> list[CheckpointStats]:
    """In the order of their ids, with what the journal knows of them.

    They fill in for an object that a coordinator died before it wrote.
    """
    found = [of_completed(done) for done in (*state.completed, *state.discarding)]
    found += [of_failed(failed) for failed in state.failed]
    return sorted(found, key=lambda one: one.id)
