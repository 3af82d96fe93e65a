"""A job with a thousand checkpoints, of which the newest has a thousand subtasks in each stage."""

from __future__ import annotations

from pathlib import Path

from harness.jobs import a_pipeline, trigger_one
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, submit
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from tests.subtasks import acknowledge, take_checkpoint

CHECKPOINTS, SUBTASKS = 1_000, 1_000
KEPT_ENTRIES = 20
COMPLETED, PENDING = CheckpointId(CHECKPOINTS - 1), CheckpointId(CHECKPOINTS)


def a_long_job(root: str) -> Job:
    """In *root*, of ``auctions``: one checkpoint that completed, others that failed, one that
    completed with a thousand subtasks, and one in progress that waits for a stage of them.

    It is made in memory, and copied.
    """
    pipeline = a_pipeline(tolerable_failed_checkpoints=CHECKPOINTS)
    pipeline.max_parallelism = SUBTASKS
    job = open_job(pipeline, StoreLocation(root="memory://many"))
    submit(job, configure(pipeline, {}))
    take_checkpoint(job)
    expired = CheckpointFailureReason.CHECKPOINT_EXPIRED
    while (plan := trigger_one(job)).checkpoint_id < COMPLETED - 1:
        fail_checkpoint(job, plan.checkpoint_id, expired, "rank_bids did not acknowledge")
        if plan.checkpoint_id % KEPT_ENTRIES == 0:
            job.journal.truncate(keep=KEPT_ENTRIES)
    restore(job, Latest(), configuration=configure(pipeline, {}, parallelism=SUBTASKS))
    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)
    acknowledge(job, trigger_one(job), "count_bids")
    return _copied(job, root)


def _copied(job: Job, root: str) -> Job:
    """A folder's objects are its files; a store would sync each of four thousand to the disk."""
    folder = Path(root.removeprefix("file://"))
    for listed in job.store.list(""):
        body = job.store.get(listed.key)
        assert body is not None
        path = folder / listed.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return open_job(job.pipeline, StoreLocation(root=root))  # It is only read.
