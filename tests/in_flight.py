"""Jobs with rows in flight, and how to see where each row is."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

from harness.jobs import COUNT, RANK, ManualClock, a_pipeline, a_running_job, trigger_one
from sluice.coordinator.failure import overtake
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.job.job import Job
from tests.subtasks import acknowledge, finish, in_flight_records, state_records

TOP = "top_bids"
THREE_STAGES = (COUNT, RANK, TOP)
TIMEOUT_MS = 5_000


def an_unaligned_job(*stages: str, **checkpointing: Any) -> Job:
    """Unaligned from the start."""
    return a_running_job(
        a_pipeline(
            stages=stages or THREE_STAGES,
            unaligned=True,
            tolerable_failed_checkpoints=9,
            **checkpointing,
        )
    )


def a_patient_job(clock: ManualClock | None = None, **checkpointing: Any) -> Job:
    """Aligned, until the timeout passes."""
    given: dict[str, Any] = {"unaligned": True, "tolerable_failed_checkpoints": 9} | checkpointing
    timeout = timedelta(milliseconds=TIMEOUT_MS)
    return a_running_job(a_pipeline(aligned_checkpoint_timeout=timeout, **given), clock=clock)


def complete(job: Job, plan: CheckpointPlan) -> CheckpointId:
    return finish(job, plan.checkpoint_id)


def an_overtaken_checkpoint(job: Job, **given: Any) -> CheckpointId:
    """Stage RANK is behind when the timeout passes."""
    plan = trigger_one(job, **given)
    acknowledge(job, plan, COUNT)
    overtake(job, plan.checkpoint_id, [RANK])
    return complete(job, plan)


def absorbed(job: Job, checkpoint_id: CheckpointId, stage: str = RANK) -> list[int]:
    return state_records(job, job.metadata(checkpoint_id), stage)


def in_flight(job: Job, checkpoint_id: CheckpointId, stage: str = RANK) -> list[int]:
    return in_flight_records(job, job.metadata(checkpoint_id), stage)


def is_one_cut(job: Job, checkpoint_id: CheckpointId) -> bool:
    """What a stage absorbed and what is on its way to it is what the stage before it absorbed."""
    metadata = job.metadata(checkpoint_id)
    assert metadata.sources[0].position[0].offset == len(absorbed(job, checkpoint_id, COUNT))
    stages = [stage.uid for stage in metadata.stages]
    return all(
        sorted(absorbed(job, checkpoint_id, uid) + in_flight(job, checkpoint_id, uid))
        == absorbed(job, checkpoint_id, before)
        for before, uid in pairwise(stages)
    )


def last_stage_first(job: Job, **given: Any) -> CheckpointId:
    plan = trigger_one(job, **given)
    for task in reversed(plan.tasks):
        acknowledge(job, plan, task.uid)
    return complete(job, plan)
