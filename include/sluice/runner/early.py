"""AT_LEAST_ONCE: rows are shown before their checkpoint is completed, so an abort may come between.

    who shows       notes that it begins; finds the checkpoint pending; shows
    who aborts      journals the abort; looks for notes; deletes what was staged

Each writes before it reads, so one of the two sees the other: either nothing is shown any more, or
what may be shown stays.  No clock is involved, and either may sleep for a day between two steps.
"""

from __future__ import annotations

from collections.abc import Iterable

from sluice.connectors.sink import Sink
from sluice.core.ids import CheckpointId
from sluice.runner.job import Job


def note_early_publish(job: Job, checkpoint_id: CheckpointId, sink: str) -> None:
    job.store.create(job.paths.early_publish(checkpoint_id, sink), b"")


def forget_early_publishes(job: Job, checkpoint_id: CheckpointId, sinks: Iterable[str]) -> None:
    """The checkpoint is completed: nothing aborts it any more."""
    job.store.delete([job.paths.early_publish(checkpoint_id, sink) for sink in sinks])


def abort_staged(job: Job, checkpoint_id: CheckpointId, sinks: dict[str, Sink]) -> None:
    """Delete what the aborted checkpoint staged, but what somebody may be about to show."""
    noted = {sink for _, sink in early_publishes(job, checkpoint_id)}
    for uid, sink in sinks.items():
        if uid not in noted or sink.is_published(checkpoint_id):  # Then the sink knows its files.
            sink.abort(checkpoint_id)


def early_publishes(
    job: Job, checkpoint_id: CheckpointId | None = None
) -> frozenset[tuple[CheckpointId, str]]:
    """The checkpoints, or one alone, and sinks of which rows may be shown early at any moment."""
    listed = job.store.list(job.paths.early_publishes(checkpoint_id))
    return frozenset(job.paths.early_publish_of(one.key) for one in listed)
