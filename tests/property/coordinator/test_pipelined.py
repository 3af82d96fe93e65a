"""Checkpoints that overlap in any order of their acts: every record is counted once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from harness.jobs import STAGES, a_pipeline, a_running_job, published_records, trigger_one
from sluice.core.plan import CheckpointPlan
from sluice.errors import NotYetAcknowledged
from sluice.job.job import Job
from tests.builders import ids_of
from tests.examples import TIMES
from tests.subtasks import acknowledge, finish, state_records


def a_job(concurrent: int) -> Job:
    checkpointing: dict[str, Any] = {"tolerable_failed_checkpoints": 9, "num_retained": 1}
    return a_running_job(a_pipeline(max_concurrent_checkpoints=concurrent, **checkpointing))


@pytest.mark.parametrize("concurrent", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5 * TIMES))
def test_whatever_the_order_every_record_is_counted_once(concurrent: int, seed: int) -> None:
    """Acts in random order; what cannot be done yet says so, and is tried again."""
    job, random = a_job(concurrent), Random(seed)
    plans: list[CheckpointPlan] = []
    acts: list[tuple[str, CheckpointPlan]] = []
    while len(job.state().completed) == 0 or job.state().completed[-1].checkpoint_id < 8:
        if not acts or (random.random() < 0.3 and len(job.state().pending) < concurrent):
            plans.append(trigger_one(job))
            acts += [(act, plans[-1]) for act in (*STAGES, "finalize")]
        act, plan = random.choice(acts)
        try:
            if act == "finalize":
                finish(job, plan.checkpoint_id)
            else:
                acknowledge(job, plan, act)
        except NotYetAcknowledged:
            continue
        acts.remove((act, plan))

    last = job.state().completed[-1].checkpoint_id
    assert ids_of(job.state().completed) == [last]
    metadata = job.metadata(last)
    assert [state_records(job, metadata, uid) for uid in STAGES] == [list(range(10 * last))] * 2
    assert published_records(job) == list(range(10 * last))
