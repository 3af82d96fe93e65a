"""How many records an epoch takes, so that its checkpoint lasts about as long as a target (ADR 9).

Flink's BufferDebloater sizes buffers by what is consumed in a target time; here the epoch is what
is in flight.  The measure is the retained checkpoints themselves: how many records each took, and
how long it lasted from its trigger to its completion.  So every coordinator comes to the same size.
"""

from __future__ import annotations

from sluice.core.completed import CompletedCheckpoint
from sluice.core.reasons import CheckpointFailureReason
from sluice.core.state import CoordinatorState

FIRST_RECORDS = 10_000  # Nothing is measured yet: seconds, whatever the stages do.
LEAST_RECORDS = 1_000  # Below it an epoch is all overhead, and a backlog is never worked off.
MOST_RECORDS = 10**12
MOST_GROWTH = 10  # From one epoch to the next: a small one is mostly overhead.
MOST_SHRINKING = 4  # A pause of the machine is not to make many small epochs of one.
TELLING_PART = 2  # An epoch of half the records of the largest one tells of the rate.


def records_of_next_epoch(state: CoordinatorState) -> int | None:
    """The most that the next epoch takes from all sources together; None if it takes all there is.

    A checkpoint that expired since the last one was completed had too many: each one halves it.
    """
    target_ms = state.configuration.target_epoch_ms
    if target_ms is None:
        return None
    since = max((one.checkpoint_id for one in state.completed), default=0)
    expired = sum(
        failed.reason is CheckpointFailureReason.CHECKPOINT_EXPIRED
        for failed in state.failed
        if failed.checkpoint_id > since
    )
    telling = _telling(state.completed)
    records = FIRST_RECORDS if telling is None else _sized(telling, target_ms)
    return min(max(records >> expired, LEAST_RECORDS), MOST_RECORDS)


def _sized(epoch: CompletedCheckpoint, target_ms: int) -> int:
    duration_ms = max(1, epoch.completed_at_ms - epoch.triggered_at_ms)
    sized = epoch.records * target_ms // duration_ms
    return min(max(sized, epoch.records // MOST_SHRINKING), epoch.records * MOST_GROWTH)


def _telling(completed: tuple[CompletedCheckpoint, ...]) -> CompletedCheckpoint | None:
    """The newest epoch that had enough to do; None if none had anything.

    A savepoint copies files as well, and an epoch that found few records tells of no rate.
    """
    epochs = [one for one in completed if one.records and not one.type.is_savepoint]
    most = max((one.records for one in epochs), default=0)
    return next((one for one in reversed(epochs) if one.records * TELLING_PART >= most), None)
