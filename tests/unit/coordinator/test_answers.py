"""An answer is of one plan and of one driver: any other counts for nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import tests.subtasks
from harness.jobs import (
    ONE,
    RANK,
    STAGES,
    TWO,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    records_of,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, start_attempt, watch
from sluice.coordinator.publication import commit
from sluice.coordinator.submission import configure, submit
from sluice.core.answers import StageAnswer
from sluice.core.events import Event, Transition
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, SubtaskId
from sluice.core.plan import CheckpointPlan, TaskPlan
from sluice.core.state import CoordinatorState
from sluice.errors import NotYetAcknowledged, StageFailed
from sluice.job.answers import answer_of
from sluice.job.job import Job, open_job
from sluice.store.journal import Head, Journal
from tests.builders import SUBTASKS, an_ack
from tests.subtasks import (
    acknowledge,
    carry_out,
    decline,
    finish,
    state_records,
    take_checkpoint,
    token_of,
)

FIRST, LAST = STAGES


def deployed(job: Job, plan: CheckpointPlan, stage: str, **behaviour: Any) -> Any:
    """What a driver of the stage was given when it started; ``answer_of`` it when its job ends."""
    usual = {"writes_state": True, "compacts": False}
    task: TaskPlan = plan.task(stage)
    return tests.subtasks._deploy(job, plan, task, 1, **usual | behaviour)  # noqa: SLF001


def answers_otherwise(run: Any) -> Any:
    """An execution whose function says something else: it reads the clock, or calls a service."""
    return replace(run, records=tuple(record + 1_000 for record in run.records))


def begun_anew(job: Job) -> Job:
    """The root emptied, and the job submitted again, with smaller epochs, by another process."""
    job.store.delete(keys_of(job))
    again = open_job(
        a_pipeline(stages=(FIRST,), max_records_per_epoch=4), job.location, clock=job.clock
    )
    submit(again, configure(again.pipeline, {}))
    return again


def test_a_driver_of_an_earlier_life_answers_for_nothing() -> None:
    old = a_running_job(a_pipeline(stages=(FIRST,)))
    late = tests.subtasks.answer_of(deployed(old, trigger_one(old), FIRST))
    new = begun_anew(old)
    plan = trigger_one(new)

    old.answers.write(late)
    with pytest.raises(NotYetAcknowledged, match="lacks the acks"):
        finalize(new, plan.checkpoint_id)
    carry_out(new, plan)
    last = take_checkpoint(new)

    assert published_records(new) == [*range(8)]
    assert state_records(new, new.metadata(last), FIRST) == [*range(8)]


def test_a_decline_of_an_earlier_life_aborts_nothing() -> None:
    old = a_running_job(a_pipeline(stages=(FIRST,)))
    token = trigger_one(old).token
    new = begun_anew(old)
    plan = trigger_one(new)
    decline(old, ONE, SubtaskId(FIRST, 0), plan=token)

    assert watch(new).actions == ()
    carry_out(new, plan)

    assert published_records(new) == records_of(plan)


def test_an_answer_that_lies_there_before_its_checkpoint_is_triggered_does_not_count() -> None:
    job = a_running_job(a_pipeline(stages=(FIRST,)))
    acks = tuple(an_ack(SubtaskId(FIRST, n), checkpoint_id=2) for n in range(2))
    for plan in ("", token_of(job, TWO), "a1b2c3"):
        job.answers.write(
            StageAnswer(
                checkpoint_id=TWO, stage=FIRST, attempt=1, plan=plan, driver="nobody", acks=acks
            )
        )
    take_checkpoint(job)

    second = trigger_one(job)
    with pytest.raises(NotYetAcknowledged):
        finalize(job, second.checkpoint_id)
    carry_out(job, second)

    assert published_records(job) == [*range(20)]


def test_of_two_drivers_of_one_attempt_the_first_answers_for_all_subtasks() -> None:
    """A cluster starts a driver again, in the same attempt, while the first is not quite dead."""
    job = a_running_job(a_pipeline(stages=(FIRST,)))
    plan = trigger_one(job)
    first = tests.subtasks.answer_of(deployed(job, plan, FIRST), driver="first")
    second = tests.subtasks.answer_of(
        answers_otherwise(deployed(job, plan, FIRST)), driver="second"
    )

    assert job.answers.write(first) == first
    assert job.answers.write(second) == first
    finish(job, plan.checkpoint_id)

    assert published_records(job) == records_of(plan)
    assert len(keys_of(job, job.paths.answers(ONE))) == 1
    assert job.metadata(ONE).drivers == {FIRST: "first"}


def test_a_stage_that_read_another_driver_s_rows_than_those_that_count_is_no_part_of_it() -> None:
    """One driver ran the first stage alone; another, in the same attempt, a chain of both."""
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    plan = trigger_one(job)
    acknowledge(job, plan, FIRST)
    told = deployed(job, plan, LAST)
    behind = replace(tests.subtasks.answer_of(told, driver="chain"), read={FIRST: "chain"})
    front = replace(answer_of(job, job.state(), ONE, FIRST), driver="chain")

    assert job.answers.write_chain([front, behind]) == FIRST
    with pytest.raises(StageFailed, match="another driver has answered"):
        finalize(job, ONE)

    assert [pending.checkpoint_id for pending in job.state().pending] == [1]
    fail_checkpoint(job, ONE, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, "a mixture")
    take_checkpoint(job)
    assert published_records(job) == [*range(10)]


class Meanwhile(Journal):
    """A journal before whose next append something else happens."""

    happens: Callable[[], None]

    def append(
        self, decide: Callable[[CoordinatorState], Event], *, head: Head | None = None
    ) -> Transition:
        happens, self.happens = self.happens, lambda: None
        happens()
        return super().append(decide, head=head)


def asleep(job: Job, happens: Callable[[], None]) -> Job:
    """A coordinator that sleeps before it journals, while something *happens*."""
    journal = Meanwhile(job.store, job.paths)
    journal.happens = happens
    return replace(job, journal=journal)


def a_concurrent_job() -> tuple[Job, CheckpointPlan]:
    job = a_running_job(
        a_pipeline(stages=(FIRST,), max_concurrent_checkpoints=2, tolerable_failed_checkpoints=9)
    )
    plan = trigger_one(job)
    acknowledge(job, plan)
    return job, plan


def test_no_checkpoint_completes_as_an_attempt_that_was_overtaken() -> None:
    """A child would stand on one attempt's answer, the table on another's."""
    job, plan = a_concurrent_job()
    children: list[CheckpointPlan] = []

    def runs_again() -> None:
        assert start_attempt(job, ONE, FIRST) == 2
        again = answers_otherwise(deployed(job, plan, FIRST))
        job.answers.write(tests.subtasks.answer_of(replace(again, attempt=2)))
        children.append(trigger_one(job))
        acknowledge(job, children[0])

    with pytest.raises(StageFailed, match=f"stage '{FIRST}' of checkpoint 1 ran again"):
        finalize(asleep(job, runs_again), ONE)

    assert job.state().completed == ()
    assert [pending.checkpoint_id for pending in job.state().pending] == [1, 2]


def test_metadata_of_an_attempt_that_was_overtaken_is_not_taken_for_that_of_the_next() -> None:
    """Its author died before it journaled."""
    job, plan = a_concurrent_job()

    def dies() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finalize(asleep(job, dies), ONE)
    start_attempt(job, ONE, FIRST)
    acknowledge(job, plan, attempt=2)
    with pytest.raises(StageFailed, match="ran again"):
        finalize(job, ONE)
    fail_checkpoint(job, ONE, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE, "ran again")
    take_checkpoint(job)

    assert published_records(job) == [*range(10)]


def test_metadata_says_which_answers_it_was_made_of() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    drivers = {stage: answer_of(job, job.state(), ONE, stage).driver for stage in STAGES}
    start_attempt(job, ONE, RANK)
    acknowledge(job, plan, RANK, attempt=2)
    drivers[RANK] = answer_of(job, job.state(), ONE, RANK).driver

    finalize(job, ONE)
    commit(job, ONE)

    assert job.metadata(ONE).attempts == {FIRST: 1, RANK: 2}
    assert job.metadata(ONE).drivers == drivers


@pytest.mark.parametrize(
    "subtask", [SubtaskId("ghost", 0), SubtaskId(LAST, 99)], ids=["stage", "index"]
)
def test_a_decline_of_a_subtask_that_is_not_there_aborts_nothing(subtask: SubtaskId) -> None:
    job = a_running_job()
    plan = trigger_one(job)
    decline(job, 1, subtask)

    assert watch(job).actions == ()
    carry_out(job, plan)

    assert [done.checkpoint_id for done in job.state().completed] == [1]


def test_the_log_of_an_abort_by_decline_has_the_words_of_the_decline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = a_running_job()
    trigger_one(job)
    decline(job, 1, SUBTASKS[0])

    with caplog.at_level(logging.WARNING):
        fail_checkpoint(
            job, CheckpointId(1), CheckpointFailureReason.CHECKPOINT_EXPIRED, "it was too slow"
        )

    (line,) = [r.getMessage() for r in caplog.records if "checkpoint aborted" in r.getMessage()]
    assert f"reason=CHECKPOINT_DECLINED message={SUBTASKS[0]}: the input is odd" in line
    assert "too slow" not in line
