"""The counter of failed checkpoints: Flink's CheckpointFailureManager."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice.core.properties import CheckpointType
from sluice.core.reasons import CheckpointFailureReason

NO_SUCCESS = 0  # Below every checkpoint's id.
UNKNOWN_CHECKPOINT_ID = -1  # It failed before it had an id; every such failure counts.
MAX_COUNTED_IDS = 1_000  # Bounds the journal entry; the job has failed long before.


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Failures since the last success.  Each id counts once; a newer success resets."""

    last_succeeded_id: int = NO_SUCCESS
    counted_ids: tuple[int, ...] = ()
    continuous: int = 0

    def succeed(self, checkpoint_id: int) -> FailureCount:
        if checkpoint_id <= self.last_succeeded_id:
            return self
        return FailureCount(last_succeeded_id=checkpoint_id)

    def fail(
        self,
        checkpoint_id: int,
        reason: CheckpointFailureReason,
        *,
        tolerable: int | None,
        type: CheckpointType = CheckpointType.CHECKPOINT,  # noqa: A002 - Flink's word
        is_task_level: bool = False,
    ) -> tuple[FailureCount, bool]:
        """Return the new count, and whether the job must fail; then the count starts again.

        A savepoint's failure at the coordinator never counts; a task that fails a stopping one
        always fails the job, or it would wait for ever (CheckpointFailureManager's javadoc).
        """
        if is_task_level and type.stops_the_job:
            return FailureCount(last_succeeded_id=self.last_succeeded_id), True
        if not reason.counts or (type.is_savepoint and not is_task_level):
            return self, False
        if checkpoint_id != UNKNOWN_CHECKPOINT_ID and (
            self._has_succeeded_since(checkpoint_id) or checkpoint_id in self.counted_ids
        ):
            return self, False
        if tolerable is not None and self.continuous + 1 > tolerable:
            return FailureCount(last_succeeded_id=self.last_succeeded_id), True
        return (
            replace(
                self,
                counted_ids=(*self.counted_ids, checkpoint_id)[-MAX_COUNTED_IDS:],
                continuous=self.continuous + 1,
            ),
            False,
        )

    def _has_succeeded_since(self, checkpoint_id: int) -> bool:
        """Whether that checkpoint or a newer one succeeded; before the first success every failure
        is news, whatever its id (Flink's lastSucceededCheckpointId begins at Long.MIN_VALUE).
        """
        return self.last_succeeded_id != NO_SUCCESS and checkpoint_id <= self.last_succeeded_id
