"""The statistics of checkpoints that have ended: an object each, written once, the newest kept.

What cannot be read counts as absent: nothing but what people see depends on it.
"""

from __future__ import annotations

import logging

from sluice.core.ids import CheckpointId
from sluice.errors import ProtocolViolation
from sluice.protocol.paths import PipelinePaths
from sluice.protocol.records import decode_statistics, encode_statistics
from sluice.statistics.history import CheckpointStatistics
from sluice.storage.foreign import ours
from sluice.storage.object_store import ObjectStore

log = logging.getLogger(__name__)

DELETE_BATCH = 1_000  # What S3 takes at once.
MAX_UNREADABLE = 3  # Damaged ones in a row, before the history begins anew.


class StatisticsStore:
    def __init__(self, store: ObjectStore, paths: PipelinePaths) -> None:
        self._store = store
        self._paths = paths

    def read(self, checkpoint_id: int) -> CheckpointStatistics | None:
        """What is kept of a checkpoint; None of one that has not ended, or ended long ago."""
        key = self._paths.statistics(checkpoint_id)
        raw = self._store.get(key)
        try:
            return None if raw is None else decode_statistics(raw, key)
        except ProtocolViolation as error:
            log.warning("statistics are passed over: %s", error)
            return None

    def newest(self, likely: int | None = None) -> CheckpointStatistics | None:
        """Of the checkpoint with the greatest id: one GET if that is *likely*, and there; else a
        LIST more.
        """
        found = self.read(likely) if likely is not None else None
        if found is not None:
            return found
        readable = (self.read(one) for one in reversed(self.ids()[-MAX_UNREADABLE:]))
        return next((one for one in readable if one is not None), None)

    def write(self, statistics: CheckpointStatistics) -> None:
        """Once: what another coordinator wrote of the same checkpoint stays."""
        key = self._paths.statistics(statistics.checkpoint.id)
        self._store.create(key, encode_statistics(statistics))

    def ids(self) -> list[CheckpointId]:
        """Of every checkpoint that statistics are kept of, in order; one LIST a thousand."""
        listed = self._store.list(self._paths.all_statistics())
        found = ours(listed, self._paths.is_statistics, self._store.root)
        return [self._paths.statistics_of(one.key) for one in found]

    def prune(self, keep: int) -> int:
        """Delete all but the newest *keep*; return how many."""
        gone = [self._paths.statistics(one) for one in self.ids()[:-keep]]
        for start in range(0, len(gone), DELETE_BATCH):
            self._store.delete(gone[start : start + DELETE_BATCH])
        return len(gone)
