"""The records of compactions in the bucket: written behind a checkpoint, looked up by later epochs.

Correctness never depends on one: it names merged state with the same rows as the runs that it
replaces, and only an epoch that still has all of those runs takes it over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from sluice.core.compaction import Compaction, useful
from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from sluice.protocol.records import decode_compaction, encode_compaction
from sluice.storage.object_store import AlreadyExists, Created
from sluice.storage.parallel import in_parallel

PARALLEL_READS = 16  # Below the client's connection pool.


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


def useful_compactions(job: Job, keys_in_use: Collection[str]) -> set[str]:
    """Records of merged state that an epoch may still take over, and their files.

    It does so only while what it continues, which is retained and names *keys_in_use*, has the
    state they replace.  Call it before merged state is deleted: a record that outlived its
    files would fail every epoch that takes it over.
    """
    records = [
        one.key
        for one in job.store.list(job.paths.all_compactions())
        if job.paths.is_compaction(one.key)
    ]
    bodies = in_parallel(job.store.get, records, PARALLEL_READS)
    found = {  # Where there is no body a collector came between.
        key: decode_compaction(raw, key)
        for key, raw in zip(records, bodies, strict=True)
        if raw is not None
    }
    kept = useful(found.values(), keys_in_use)
    files = {segment.key for compaction in kept for segment in compaction.files}
    stays = (key for key, one in found.items() if one in kept or not one.merged)
    return files.union(stays)


def record_compaction(job: Job, compaction: Compaction) -> bool:
    """Record a compaction; whether this one counts, as another attempt may have been faster."""
    key = job.paths.compaction(compaction.stage, compaction.checkpoint_id)
    return isinstance(job.store.create(key, encode_compaction(compaction)), Created)


def named_meanwhile(job: Job, doomed: Iterable[str]) -> set[str]:
    """The *doomed* files of merged state that a record has come to name meanwhile.

    No record can come to name the others: where there is none, an empty one is written for good,
    because the process that uploaded the files may sleep for a day before it records them.
    """
    folders = defaultdict[tuple[str, CheckpointId], set[str]](set)
    for key in doomed:
        folders[job.paths.compaction_of(key)].add(key)
    named: set[str] = set()
    for (stage, checkpoint_id), files in folders.items():
        key = job.paths.compaction(stage, checkpoint_id)
        if key in files:
            continue  # Recording it again would change nothing.
        closed = Compaction(stage=stage, checkpoint_id=checkpoint_id, merged=())
        result = job.store.create(key, encode_compaction(closed))
        if isinstance(result, AlreadyExists):
            recorded = decode_compaction(result.body, key)
            named |= files.intersection(segment.key for segment in recorded.files)
    return named
