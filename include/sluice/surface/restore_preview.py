"""What a restore from a snapshot would repeat and abort, before anybody asks for it.

What becomes of its tables is in ``Snapshot.tables_ahead``, of a list with checks.
"""

from __future__ import annotations

import msgspec

from sluice.job.job import Job
from sluice.job.snapshots import LATEST
from sluice.surface.differences import SnapshotName, open_pair, read_between


class RestorePreview(msgspec.Struct, frozen=True, kw_only=True):
    """``repeats`` are the records per source that completed checkpoints have read since, and that
    are read again; ``aborts`` are pending checkpoints, whose ``pending_records`` are, too.
    """

    repeats: dict[str, int]
    aborts: tuple[int, ...]
    pending_records: int


def restore_preview(job: Job, named: str) -> RestorePreview:
    """*named*: ``latest``, an id, or a savepoint's name.

    Raises:
        ConfigurationError: it is not retained.
        RestoreError: its ``_metadata`` is gone, or there is no such savepoint.
    """
    state = job.state()
    repeats: dict[str, int] = {}
    if state.completed:
        pair = open_pair(job, SnapshotName(named=named), SnapshotName(named=LATEST))
        repeats = read_between(pair)
    return RestorePreview(
        repeats=repeats,
        aborts=tuple(pending.checkpoint_id for pending in state.pending),
        pending_records=sum(pending.records for pending in state.pending),
    )
