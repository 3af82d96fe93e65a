"""Failure and restore: what is chosen, what is verified, what is fenced, what rolls back."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from harness.jobs import (
    STAGES,
    ManualClock,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    results,
    trigger_one,
)
from sluice.coordinator import duties
from sluice.coordinator import restore as coordinator_restore
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.events import AttemptStarted
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.restoring import FromCheckpoint, Latest, RestoreOptions
from sluice.errors import FencedError, RestoreError
from sluice.job.job import Job
from sluice.store.journal import Head
from tests.builders import SUBTASKS
from tests.subtasks import acknowledge, decline, state_records, take_checkpoint

ONE, TWO = CheckpointId(1), CheckpointId(2)
EXPIRED, TASK_FAILURE = Reason.CHECKPOINT_EXPIRED, Reason.TASK_FAILURE
SAVEPOINT = CheckpointType.SAVEPOINT


def read_from(job: Job, checkpoint_id: CheckpointId) -> list[int]:
    return state_records(job, job.metadata(checkpoint_id), STAGES[0])


def test_a_failed_stage_is_restored_from_the_latest_completed_checkpoint() -> None:
    job = a_running_job()
    take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan, STAGES[0])
    state = fail_checkpoint(job, TWO, TASK_FAILURE, "worker lost", is_task_failure=True)
    assert state.status is JobStatus.RESTARTING

    restored = restore(job, Latest(), only_generation=state.generation)

    assert (restored.checkpoint_id, restored.origin) == (1, None)
    assert (restored.state.status, restored.state.generation) == (JobStatus.RUNNING, 2)
    again = take_checkpoint(job)
    assert again == 3
    assert read_from(job, again) == list(range(20))
    assert published_records(job) == list(range(20))


def test_without_a_completed_checkpoint_the_job_starts_from_empty() -> None:
    job = a_running_job()
    trigger_one(job)
    fail_checkpoint(job, ONE, TASK_FAILURE, "worker lost", is_task_failure=True)

    restored = restore(job, Latest())

    assert restored.checkpoint_id is None
    assert read_from(job, take_checkpoint(job)) == list(range(10))


def test_a_job_that_was_never_submitted_is_not_restored_without_its_parameters() -> None:
    job = a_job()

    with pytest.raises(RestoreError, match=r"'auctions' was never submitted .*; submit it first"):
        restore(job, Latest())
    assert keys_of(job) == []
    restored = restore(job, Latest(), configuration=configure(job.pipeline, {}))
    assert restored.state.configuration.max_records_per_epoch == 10


def test_the_table_rolls_back_with_a_restore_to_an_older_checkpoint() -> None:
    job = a_running_job(a_pipeline(max_records_per_epoch=10))
    for _ in range(3):
        take_checkpoint(job)
    assert published_records(job) == list(range(30))

    restore(job, FromCheckpoint(ONE))
    fourth = take_checkpoint(job)

    assert job.metadata(fourth).parent == 1
    assert job.metadata(fourth).previous_tables["results"] == 1
    assert published_records(job) == list(range(20))
    assert results(job).versions() == (1, 2, 3, 4)
    assert read_from(job, fourth) == list(range(20))


def test_a_checkpoint_that_is_not_retained_is_refused_with_those_that_are() -> None:
    job = a_running_job(a_pipeline(num_retained=2))
    for _ in range(3):
        take_checkpoint(job)

    with pytest.raises(RestoreError, match="checkpoint 1 is not retained; retained are: 2, 3"):
        restore(job, FromCheckpoint(ONE))
    with pytest.raises(RestoreError, match="retained are: none"):
        restore(a_running_job(), FromCheckpoint(ONE))


def test_every_missing_or_damaged_file_is_named() -> None:
    job = a_running_job()
    take_checkpoint(job)
    first, second = [handle.key for handle in job.metadata(ONE).files][:2]
    job.store.delete([first])
    job.store.put(second, b"short")
    before = job.state()

    with pytest.raises(RestoreError) as caught:
        restore(job, Latest())

    assert f"{first} is missing, expected" in str(caught.value)
    assert f"{second} has 5 bytes, expected" in str(caught.value)
    assert job.state() == before


def test_missing_metadata_is_named_with_what_to_do() -> None:
    job = a_running_job()
    take_checkpoint(job)
    job.store.delete([job.paths.metadata(ONE)])

    with pytest.raises(RestoreError, match=r"_metadata does not exist; .*'sluice checkpoints list"):
        restore(job, Latest())
    with pytest.raises(RestoreError, match=r"savepoints/nobodys/_metadata does not exist"):
        savepoint_target(job, "nobodys")


def test_state_of_a_removed_stage_is_refused_unless_it_may_be_dropped() -> None:
    job = a_running_job()
    take_checkpoint(job)
    smaller = replace(job, pipeline=a_pipeline(stages=STAGES[:1]))

    with pytest.raises(RestoreError, match="stage 'rank_bids' has state but is not in the pipel"):
        restore(smaller, Latest())
    restore(smaller, Latest(), RestoreOptions(allow_non_restored_state=True))

    assert read_from(smaller, take_checkpoint(smaller)) == list(range(20))


def test_a_removed_stage_without_state_is_skipped() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan, STAGES[0])
    acknowledge(job, plan, STAGES[1], writes_state=False)
    finalize(job, ONE)
    commit(job, ONE)

    restore(replace(job, pipeline=a_pipeline(stages=STAGES[:1])), Latest())

    assert job.state().generation == 2


def test_a_restore_for_a_generation_that_is_over_changes_nothing() -> None:
    job = a_running_job()
    take_checkpoint(job)
    restore(job, Latest(), only_generation=1)
    before = job.state()

    with pytest.raises(FencedError, match=r"is of generation 2 already.*was for generation 1"):
        restore(job, Latest(), only_generation=1)
    assert job.state() == before


def test_who_was_fenced_by_a_restore_cannot_finalize() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    restore(job, Latest())

    with pytest.raises(FencedError, match="checkpoint 1 was aborted, JOB_FAILOVER_REGION"):
        finalize(job, ONE)
    assert results(job).versions() == ()


def test_an_unfinished_commit_is_replayed_by_the_restore() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, ONE)

    restored = restore(job, Latest())

    assert published_records(job) == list(range(10))
    assert restored.state.completed[0].is_committed


def test_a_restore_may_change_the_parallelism_and_the_state_is_cut_anew() -> None:
    job = a_running_job()
    take_checkpoint(job)

    restore(job, Latest(), configuration=configure(job.pipeline, {}, parallelism=3))
    wide = take_checkpoint(job)

    assert [task.parallelism for task in job.metadata(wide).stages] == [3, 3]
    assert read_from(job, wide) == list(range(20))
    restore(job, Latest(), configuration=configure(job.pipeline, {}, parallelism=1))
    assert read_from(job, take_checkpoint(job)) == list(range(30))
    with pytest.raises(RestoreError, match=r"parallelism 200, which exceeds its max parallelism"):
        restore(job, Latest(), configuration=configure(job.pipeline, {}, parallelism=200))


def test_a_max_parallelism_is_fixed_for_life() -> None:
    job = a_running_job()
    take_checkpoint(job)
    job.pipeline.max_parallelism = 64

    with pytest.raises(RestoreError, match=r"'count_bids' declares max parallelism 64, but its st"):
        restore(job, Latest())
    job.pipeline.max_parallelism = 128
    restore(job, Latest())

    assert {stage.max_parallelism for stage in job.metadata(take_checkpoint(job)).stages} == {128}


def test_a_resubmitted_job_reads_from_the_start_and_its_ids_go_on() -> None:
    job = a_running_job()
    take_checkpoint(job)
    stop(job, JobStatus.CANCELED)

    submit(job, configure(job.pipeline, {}))
    second = take_checkpoint(job)

    assert second == 2
    assert read_from(job, second) == list(range(10))
    assert published_records(job) == list(range(10))


def test_a_decline_is_the_better_reason() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    trigger_one(job)
    decline(job, 1, SUBTASKS[0])

    state = fail_checkpoint(job, ONE, EXPIRED, "too slow")

    (failed,) = state.failed
    assert failed.reason is Reason.CHECKPOINT_DECLINED
    assert failed.message == "count_bids/0: the input is odd"


def test_a_decline_names_its_reason_and_one_that_counts_goes_before_one_that_does_not() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    trigger_one(job)
    decline(job, 1, SUBTASKS[0], reason=Reason.CHECKPOINT_DECLINED_TASK_CLOSING)

    once = fail_checkpoint(job, ONE, EXPIRED, "too slow")
    trigger_one(job)
    decline(job, 2, SUBTASKS[0], reason=Reason.CHECKPOINT_DECLINED_TASK_CLOSING)
    decline(job, 2, SUBTASKS[1])
    twice = fail_checkpoint(job, TWO, EXPIRED, "too slow")

    assert [f.reason for f in once.failed] == [Reason.CHECKPOINT_DECLINED_TASK_CLOSING]
    assert once.failure_count.continuous == 0
    assert twice.failed[-1].reason is Reason.CHECKPOINT_DECLINED
    assert twice.failure_count.continuous == 1


def test_a_task_failure_is_told_in_the_words_of_the_subtask_that_declined() -> None:
    job = a_running_job()
    trigger_one(job)
    decline(job, 1, SUBTASKS[0])

    state = fail_checkpoint(job, ONE, TASK_FAILURE, "Spark says", is_task_failure=True)

    assert state.status is JobStatus.RESTARTING
    assert [(f.reason, f.message) for f in state.failed] == [
        (TASK_FAILURE, "count_bids/0: the input is odd")
    ]


def test_a_decline_of_an_overtaken_attempt_does_not_keep_the_checkpoint_alive() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    trigger_one(job)
    decline(job, 1, SUBTASKS[0])
    job.journal.append(
        lambda state: AttemptStarted(
            generation=state.generation, checkpoint_id=ONE, stage=STAGES[0], attempt=2
        )
    )

    state = fail_checkpoint(job, ONE, EXPIRED, "too slow")

    assert [(f.reason, f.message) for f in state.failed] == [(EXPIRED, "too slow")]


def test_a_job_without_restarts_left_fails_and_can_be_restored_by_a_person() -> None:
    never = RestartStrategy(type=RestartType.NONE)
    job = a_running_job(a_pipeline(restart_strategy=never, timeout=timedelta(minutes=1)))
    take_checkpoint(job)
    trigger_one(job)

    state = fail_checkpoint(job, TWO, EXPIRED, "too slow")

    assert state.status is JobStatus.FAILED
    assert restore(job, Latest()).state.status is JobStatus.RUNNING
    assert isinstance(job.clock, ManualClock)


def test_a_restore_that_another_one_overtakes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would report a checkpoint whose commit was not replayed."""
    job = a_running_job()
    take_checkpoint(job)
    resume = duties.resume

    def meanwhile(job: Job, head: Head) -> Head:
        monkeypatch.setattr(coordinator_restore, "resume", resume)
        restore(job, Latest())
        return resume(job, job.journal.load())

    monkeypatch.setattr(coordinator_restore, "resume", meanwhile)

    with pytest.raises(FencedError, match="another coordinator restored job 'auctions' meanwhile"):
        restore(job, Latest())
    assert job.state().generation == 3
