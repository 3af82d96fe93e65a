"""``Attempts``: runs stages with retries, as Airflow does, and injects deaths of attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.coordinator.recovery import start_attempt
from sluice.core.ids import CheckpointId
from sluice.errors import StageFailed
from sluice.job.job import Job
from sluice.spark.stage import AcknowledgedStage, run_stage
from sluice.subtask.faults import Fault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class Attempts:
    """A ``StageRunner`` with retries.

    ``dying`` are the stages whose first attempt dies in the next epoch; ``counts`` is the number
    of attempts of each stage in it.
    """

    dying: frozenset[str] = frozenset()
    counts: Counter[str] = field(default_factory=Counter[str])

    def next_epoch(self, dying: Iterable[str]) -> None:
        self.dying = frozenset(dying)
        self.counts = Counter()

    def __call__(
        self,
        job: Job,
        spark: SparkSession,
        checkpoint_id: CheckpointId,
        stage: str,
        *,
        attempt: int,
    ) -> AcknowledgedStage:
        self.counts[stage] += 1
        pending = job.state().pending_checkpoint(checkpoint_id)
        # An earlier stage was run again, which fences the stages behind it.
        if pending is not None:
            attempt = pending.attempt_of(stage)
        if stage not in self.dying:
            return run_stage(job, spark, checkpoint_id, stage, attempt=attempt)
        fault = Fault(kind="kill-worker", stage=stage, checkpoint_id=checkpoint_id)
        try:
            return run_stage(job, spark, checkpoint_id, stage, attempt=attempt, fault=fault)
        except StageFailed:
            again = start_attempt(job, checkpoint_id, stage)
            self.counts[stage] += 1
            return run_stage(job, spark, checkpoint_id, stage, attempt=again)
