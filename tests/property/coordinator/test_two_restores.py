"""Readers see what the job stands for, whatever is restored, and whatever overlaps."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import pytest

from harness.jobs import STAGES, a_pipeline, a_running_job, published_records, trigger_one
from sluice.coordinator.restore import restore
from sluice.coordinator.restore_plan import plan_restore
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Stop
from sluice.errors import NotYetAcknowledged, RestoreError
from sluice.job.job import Job
from tests.builders import ids_of
from tests.examples import TIMES
from tests.subtasks import acknowledge, finish, state_records, take_checkpoint, take_checkpoints
from tests.table_cases import PLAIN, ROLL_BACK, a_case, absorbed, complete, to


@pytest.mark.parametrize("kind", ["files", "noted"])
@pytest.mark.parametrize("has_commit", [True, False], ids=["committed", "not committed"])
@pytest.mark.parametrize("targets", [*itertools.permutations((1, 2, 3), 2), (1, 1), (3, 3)])
@pytest.mark.parametrize("rolls_back", [*itertools.product((True, False), repeat=2)])
def test_after_two_restores_and_one_checkpoint_readers_see_what_the_job_stands_for(
    kind: str, has_commit: bool, targets: tuple[int, int], rolls_back: tuple[bool, bool]
) -> None:
    """A files table shows just that.  Another may show rows twice if it was not rolled back, but
    lacks none: a restore that cannot see to it is refused, as its dry run says, and changes
    nothing.
    """
    case = a_case(kind)
    take_checkpoints(case.job, 2)
    (take_checkpoint if has_commit else complete)(case.job)

    for target, rolling in zip(targets, rolls_back, strict=True):
        options = ROLL_BACK if rolling else PLAIN
        planned = plan_restore(case.job, to(target), options)
        before = (case.job.state(), case.seen())
        if isinstance(planned, Stop):
            with pytest.raises(RestoreError, match="lacks checkpoint"):
                restore(case.job, to(target), options)
            assert (case.job.state(), case.seen()) == before
            assert kind == "noted"
        else:
            restore(case.job, to(target), options)
            if rolling:
                assert case.seen() == absorbed(case.job)
    take_checkpoint(case.job)

    if kind == "files" or all(rolls_back):
        assert case.seen() == absorbed(case.job)
    assert set(case.seen()) >= {*absorbed(case.job)}


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
