"""What became of a request for a savepoint, by the ``cause`` under which it was triggered."""

from __future__ import annotations

import msgspec

from sluice.job.job import Job
from sluice.statistics.checkpoints import CheckpointStatus
from sluice.views.statistics import overview


class SavepointOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """``location`` of one that completed, ``failure`` of one that was aborted, else neither."""

    checkpoint_id: int
    location: str | None = None
    failure: str | None = None


def savepoint_outcome(job: Job, cause: str) -> SavepointOutcome | None:
    """Of the newest checkpoint of that *cause*; None when it triggered none, or long ago."""
    mine = next((one for one in overview(job).history if one.cause == cause), None)
    if mine is None:
        return None
    if mine.status is CheckpointStatus.FAILED:
        said = ": ".join(filter(None, (mine.failure_reason, mine.failure_message)))
        return SavepointOutcome(checkpoint_id=mine.id, failure=said)
    if mine.status is CheckpointStatus.COMPLETED and mine.savepoint is not None:
        place = f"{job.store.root}/{job.paths.savepoint(mine.savepoint)}"
        return SavepointOutcome(checkpoint_id=mine.id, location=place)
    return SavepointOutcome(checkpoint_id=mine.id)
