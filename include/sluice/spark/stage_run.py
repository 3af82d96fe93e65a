"""``StageRun``: one execution attempt of one stage in one epoch, on its driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.core.completed import StageState
from sluice.core.configuration import JobConfiguration
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.declaration.nodes import StageNode
from sluice.epoch.stage_input import StageInput
from sluice.job.job import Job
from sluice.subtask.faults import Fault

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """One execution attempt of one stage.

    ``given`` are the streams it reads, ``before`` is the stage's state in the parent checkpoint,
    and ``fault`` a fault to inject into this attempt alone.
    """

    job: Job
    spark: SparkSession
    plan: CheckpointPlan
    node: StageNode
    configuration: JobConfiguration
    given: StageInput
    before: StageState | None
    attempt: int
    fault: Fault | None = None

    @property
    def task(self) -> TaskPlan:
        return self.plan.task(self.node.uid)
