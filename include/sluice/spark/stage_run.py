"""One execution attempt of one stage in one epoch: what its driver knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.core.completed import StageState
from sluice.core.configuration import JobConfiguration
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.nodes import StageNode
from sluice.runner.job import Job
from sluice.runner.stage_input import StageInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    """``given`` are the streams it reads, ``before`` is the stage as the parent left it."""

    job: Job
    spark: SparkSession
    plan: CheckpointPlan
    node: StageNode
    configuration: JobConfiguration
    given: StageInput
    before: StageState | None
    attempt: int

    @property
    def task(self) -> TaskPlan:
        return self.plan.task(self.node.uid)
