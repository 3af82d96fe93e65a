"""The records of compactions in the bucket: written behind a checkpoint, looked up by later epochs.

Correctness never depends on one: what it names is merged state that says what the runs it replaces
say, and only who still has all of those takes it over.
"""

from __future__ import annotations

from sluice.core.compaction import Compaction
from sluice.protocol.records import decode_compaction, encode_compaction
from sluice.runner.job import Job
from sluice.storage.object_store import Created


def compactions_of(job: Job, stage: str) -> list[Compaction]:
    """Those of *stage* that are recorded, oldest first.  Costs a LIST, and a GET for each."""
    found: list[Compaction] = []
    for listed in job.store.list(job.paths.compactions(stage)):
        if not job.paths.is_compaction(listed.key):
            continue
        raw = job.store.get(listed.key)
        if raw is not None:  # Else the garbage collector came between.
            found.append(decode_compaction(raw, listed.key))
    return found


def record_compaction(job: Job, compaction: Compaction) -> bool:
    """Whether it is ours that counts: another attempt may have been faster."""
    key = job.paths.compaction(compaction.stage, compaction.checkpoint_id)
    return isinstance(job.store.create(key, encode_compaction(compaction)), Created)
